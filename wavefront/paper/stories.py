"""Stories: which strategy writes the best stories, at one to eight tokens a step?"""

from __future__ import annotations

import html
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from wavefront.analysis import figures, quality
from wavefront.analysis.quality import MEASURES, TextQuality
from wavefront.core.errors import OptionError
from wavefront.evaluation import judging
from wavefront.evaluation.page import Figures, ResultsPage
from wavefront.evaluation.protocol import RATIOS
from wavefront.evaluation.task_spec import samples_of
from wavefront.evaluation.trials import SHOWN, Runner, Scale, Trial, TrialResult
from wavefront.paper.claims import NOT_MEASURABLE, TITLES, compare_texts
from wavefront.paper.experiment import figure_title
from wavefront.results.interval import Estimate
from wavefront.results.table import Cell, Table
from wavefront.tasks.base import Sample

NEEDS = "nothing; --paper: all 1,024 prompts, 160, 320 and 640 positions: a GPU"
SMALL = Scale(models=("tale",), tasks=("stories",), items=4, length=40, rows=4, canvases=(1, 2))
PAPER = Scale(
    models=("tale",), tasks=("stories",), items=None, length=160, rows=256, canvases=(1, 2, 4)
)
WAVE = "wavefront(size=8, radius=2)"
COMPARED = (
    "standard", "block(size=8)", "block(size=32)", WAVE, "wavefront(size=16, radius=4)",
    "left_to_right",
)  # fmt: skip
FEWEST = 6  # stories that can decide which strategy is better
TEXTS = "texts"
TEXT = (
    "Every strategy continues the same held-out openings, and decoding stops at the end of a "
    "story. Decoding is greedy unless the configuration lists a temperature. The judge is the "
    "autoregressive original of the model. Its own texts of the same openings, sampled at "
    "temperature 1 and cut to the same canvas, are the reference. Means are "
    "over stories, with 95 % bootstrap intervals; differences are in pairs. Nats include the end "
    "token. Lower nats than the original's own are not better: repetition is likely too. So a "
    "strategy counts as better only if its nats are lower, and neither its length, its share of "
    "distinct trigrams, its first 64 tokens nor its share of early ends is worse. The distinct "
    "trigrams of the first 64 tokens are those of texts with at least 64 tokens, because a shorter "
    "text repeats less."
)


class StoryCell(NamedTuple):
    """The stories of one strategy on one canvas at one budget, in the order of the items."""

    strategy: str
    length: int  # N
    steps: int  # T
    forwards: float  # made for a story until it ended, mean over stories
    story_steps: float  # until a story had ended, mean over stories
    seconds: float
    quality: list[TextQuality]
    texts: list[str]  # of the first stories


class Opening(NamedTuple):
    """An opening that the page of texts shows, with the original's own text."""

    id: str
    prompt: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Results:
    """Everything that was measured; the page is made from it."""

    configuration: Mapping[str, Any]
    openings: Sequence[Opening]
    cells: Sequence[StoryCell]
    originals: Mapping[int, Sequence[TextQuality]]  # by canvas


def run(runner: Runner) -> ResultsPage:
    """Decode the stories that results.jsonl does not have yet, and make the page."""
    task, samples = samples_of(runner.scale.tasks[0], runner.ask())
    if not judging.is_judged(task):
        raise OptionError(f"{runner.name} needs a task with a judge: leave out --task {task.name}.")
    if runner.scale.steps is not None:
        raise OptionError(f"{runner.name} uses T = N, N/2, N/4 and N/8: leave out --steps.")
    return _page(runner.name, _decode(runner, samples))


def _canvases(scale: Scale) -> list[int]:
    return [scale.length * factor for factor in scale.canvases]


def _decode(runner: Runner, samples: Sequence[Sample]) -> Results:
    """Decode and judge every cell. Results that are on record are not made again."""
    scale = runner.scale
    trials = [
        Trial(
            runner.models[0],
            scale.tasks[0],
            spec,
            f"N={length} T={max(1, length // ratio)}",
            options={"max_new_tokens": length, "steps": max(1, length // ratio)},
        )
        for length in _canvases(scale)
        for ratio in RATIOS
        for spec in scale.strategies
    ]
    cells: list[StoryCell] = []
    originals: dict[int, list[TextQuality]] = {}
    for found in runner.measure(trials):
        cells.append(_cell(found, samples))
        originals.setdefault(found.length, [found.originals[sample.id] for sample in samples])
    return Results(
        configuration=runner.configuration()
        | {"positions (N)": _canvases(scale), "steps (T)": "N, N/2, N/4 and N/8", "eos": "stop"},
        openings=[
            Opening(sample.id, sample.prompt, sample.extra["text"]) for sample in samples[:SHOWN]
        ],
        cells=cells,
        originals=originals,
    )


def _cell(found: TrialResult, samples: Sequence[Sample]) -> StoryCell:
    if len(found.quality) < len(samples):
        raise OptionError(
            f"{len(samples) - len(found.quality)} prompts and {found.length} positions exceed the "
            "model: give a smaller -n or --canvas."
        )
    return StoryCell(
        found.trial.strategy,
        found.length,
        found.trial.options["steps"],
        found.cost["forwards"],
        statistics.fmean(found.counts["steps"].values()),
        found.cost["seconds"],
        [found.quality[sample.id] for sample in samples],
        [found.shown[sample.id] for sample in samples[:SHOWN]],
    )


# ---------------------------------------------------------------- the page


class CellEstimates(NamedTuple):
    """The means of a cell, and its paired differences to the wave at the same budget."""

    cell: StoryCell
    means: Mapping[str, Estimate]
    gaps: Mapping[str, Estimate] | None  # None: the wave itself, or it was not measured
    verdict: str | None


def _page(name: str, results: Results) -> ResultsPage:
    tables: list[Table] = []
    numbers: dict[str, Any] = {}
    panels: dict[int, list[CellEstimates]] = {}
    originals = {n: quality.estimates(some) for n, some in results.originals.items()}
    for length, original in originals.items():
        found = panels[length] = _estimates(results, length, original)
        tables += [
            Table(
                f"{length} positions",
                _columns(),
                [*_rows(found), _original_row(original)],
                f"Decoding took {sum(one.cell.seconds for one in found) / 60:.1f} minutes.",
            ),
            _difference_table(length, found),
        ]
        numbers[f"N={length}"] = {
            "measured": [_record(one) for one in found],
            "original": original,
        }
    items, seconds = len(results.cells[0].quality), sum(one.seconds for one in results.cells)
    device = results.configuration.get("device")
    return ResultsPage(
        title="Stories: the quality of continued stories",
        text=f"{TEXT}\n\n{items:,} stories for each line; decoding took {seconds:.0f} s in all on "
        f"{device}. [Some stories of every strategy]({TEXTS}.md) show what the numbers mean.",
        configuration=results.configuration,
        tables=tables,
        numbers={"n": items, "seconds": seconds, **numbers},
        figures=_figures(panels, originals, results.configuration),
        pages={TEXTS: _texts_page(name, results)},
    )


def _estimates(
    results: Results, length: int, original: Mapping[str, Estimate]
) -> list[CellEstimates]:
    """Return the estimates of a canvas, budget by budget."""
    cells = [one for one in results.cells if one.length == length]
    means = {(one.strategy, one.steps): quality.estimates(one.quality) for one in cells}
    waves = {one.steps: one for one in cells if one.strategy == WAVE}
    found: list[CellEstimates] = []
    for one in cells:
        own, wave = means[one.strategy, one.steps], waves.get(one.steps)
        if wave is None or wave is one:
            found.append(CellEstimates(one, own, None, None))
            continue
        gaps = quality.differences(wave.quality, one.quality)
        verdict = f"{NOT_MEASURABLE}: fewer than {FEWEST} stories"
        if len(one.quality) >= FEWEST:
            both = (means[WAVE, one.steps], own)
            names = ("the wave", one.strategy)
            verdict = compare_texts(names, gaps, means=both, original=original)
        found.append(CellEstimates(one, own, gaps, verdict))
    return found


def _columns() -> list[str]:
    return ["T", "strategy", *TITLES.values(), "forwards", "steps of a story", "seconds"]


def _rows(found: Sequence[CellEstimates]) -> list[list[Cell]]:
    return [
        [one.cell.steps, one.cell.strategy, *(one.means[name] for name in MEASURES),
         one.cell.forwards, one.cell.story_steps, one.cell.seconds]
        for one in found
    ]  # fmt: skip


def _original_row(original: Mapping[str, Estimate]) -> list[Cell]:
    return [None, "the original's own texts", *(original[n] for n in MEASURES), None, None, None]


def _difference_table(length: int, found: Sequence[CellEstimates]) -> Table:
    rows: list[list[Cell]] = [
        [one.cell.steps, one.cell.strategy, *(one.gaps[name] for name in MEASURES), one.verdict]
        for one in found
        if one.gaps is not None
    ]
    return Table(
        f"{length} positions: differences to {WAVE}",
        ["T", "strategy", *TITLES.values(), "better"],
        rows,
        "A difference is the strategy minus the wave on the same openings.",
    )


def _record(one: CellEstimates) -> dict[str, Any]:
    cell = one.cell
    return {
        "strategy": cell.strategy,
        "steps": cell.steps,
        **one.means,
        "differences to the wave": one.gaps,
        "better": one.verdict,
        "forwards": cell.forwards,
        "steps of a story": cell.story_steps,
        "seconds": cell.seconds,
    }


def _figures(
    panels: Mapping[int, Sequence[CellEstimates]],
    originals: Mapping[int, Mapping[str, Estimate]],
    settings: Mapping[str, Any],
) -> Figures:
    """Return the figure."""
    drawn: list[figures.QualityPanel] = []
    for length, found in panels.items():
        points: dict[str, list[figures.QualityPoint]] = {}
        for one in found:
            cost = (one.cell.steps, one.cell.forwards)
            point = figures.QualityPoint(*cost, one.means["nats"], one.means["length"])
            points.setdefault(one.cell.strategy, []).append(point)
        own = originals[length]
        original = figures.QualityPoint(0, 0.0, own["nats"], own["length"])
        drawn.append(figures.QualityPanel(f"{length} positions", points, original))
    caption = "Quality against forward passes"
    return {
        "stories": (
            replace(figures.quality(drawn), title=figure_title(caption, settings)),
            caption,
        )
    }


def _texts_page(name: str, results: Results) -> str:
    """Return the first stories of every strategy as Markdown."""
    first = min(one.length for one in results.cells)
    cells = [one for one in results.cells if one.length == first]
    about = results.configuration
    parts = [
        "# Stories of every strategy\n",
        f"These are the first {len(results.openings)} held-out openings of the report half, "
        "unselected, each continued by every strategy with the same model: "
        f"{first} positions. T = {first} decides one token a step, and T = "
        f"{max(1, first // RATIOS[-1])} decides {RATIOS[-1]} tokens a step. "
        "Nats per token are under the judge; lower is likelier. The numbers of the "
        f"original's own text are those of its first {first} tokens. [The tables](summary.md) have "
        "all stories.\n",
        f"Command: `{about.get('command') or f'wavefront paper run {name}'}`; commit "
        f"`{about.get('commit')}`, seed {about.get('seed')}, {about.get('device')}.\n",
    ]
    for number, opening in enumerate(results.openings):
        parts += [f"## Opening {number + 1}\n", f"**{_escape(opening.prompt)}** …\n"]
        own = results.originals[first][number]
        text = opening.text.lstrip().removeprefix(opening.prompt)
        parts.append(_story("The original's own text", own, text))
        for one in cells:
            title = f"`{one.strategy}`, T = {one.steps}"
            parts.append(_story(title, one.quality[number], one.texts[number]))
    return "\n".join(parts)


def _story(title: str, found: TextQuality, text: str) -> str:
    facts = f"{found.length} tokens, {found.nats:.2f} nats per token"
    return f"**{title}** ({facts})\n\n> … {_escape(text.strip()) or '(nothing)'}\n"


def _escape(text: str) -> str:
    """Return a text that Markdown shows as it is, on one line."""
    plain = re.sub(r"([\\`*_\[\]#~|])", r"\\\1", html.escape(text, quote=False))
    return "<br>".join(plain.splitlines())
