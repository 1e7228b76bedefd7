"""An experiment of the paper, the page it writes, and measurements repeated on every model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any, NamedTuple

from wavefront.core.errors import OptionError
from wavefront.evaluation.page import Figures, ResultsPage, Traces
from wavefront.evaluation.trials import Runner, Scale, model_name
from wavefront.paper import describe
from wavefront.paper.claims import Claim, claims_table, count_verdicts
from wavefront.paper.decoder import ItemDecoder
from wavefront.paper.published import caveats_table, place_in_paper, published_table
from wavefront.paper.tables import NATS, SHARES_TEXT, quality_title
from wavefront.results.table import Table
from wavefront.tasks.benchmarks.bbh import SUBSETS

JUDGED_TEXT = (
    "The judge is the autoregressive original of the model. Nats per token are under the judge; "
    "lower is likelier. Lower nats than the original's own texts are not better. A strategy counts "
    "as better only if neither length, distinct trigrams, the first 64 tokens nor early ends are "
    "worse. All means have 95 % bootstrap intervals over items."
)
MOST_TASKS = 4  # tasks that the title of a figure names; more are counted
# The paper's three models, by their hub ids.
LLADA, LLADA15, DREAM = (
    "GSAI-ML/LLaDA-8B-Instruct", "GSAI-ML/LLaDA-1.5", "Dream-org/Dream-v0-Instruct-7B",
)  # fmt: skip
# The tasks of the paper's tables on one model.
TABLE_TASKS = ("gsm8k", "math", "humaneval", *(f"bbh_{name}" for name in SUBSETS))


class Experiment(NamedTuple):
    """One table or figure of the paper.

    Its module defines `NEEDS`, `SMALL`, `PAPER` and `run`, and optionally `COMPARED`, the default
    strategies. The module's docstring starts with "Name: question". `paper.toml` holds the table or
    figure and the published numbers under the experiment's name.
    """

    name: str
    question: str  # the first line of the module
    place: str  # in the paper
    needs: str
    small: Scale
    paper: Scale
    strategies: tuple[str, ...]  # the default; empty if they cannot be chosen
    run: Callable[[Runner], ResultsPage]

    @classmethod
    def load(cls, name: str) -> Experiment:
        """Import the module of an experiment."""
        module: Any = import_module(f"wavefront.paper.{name.replace('-', '_')}")
        described = describe(name)
        return cls(
            name,
            described.question,
            described.paper,
            described.needs,
            module.SMALL,
            module.PAPER,
            getattr(module, "COMPARED", ()),
            module.run,
        )

    def scale(self, *, paper: bool = False, **changes: Any) -> Scale:
        """Return the small scale or the paper's scale, with changes. None leaves a value unchanged.

        Raises:
            OptionError: Strategies are given, and the experiment has fixed ones.
        """
        if changes.get("strategies") and not self.strategies:
            raise OptionError(f"{self.name} compares fixed strategies: leave out --strategy.")
        made = {name: value for name, value in changes.items() if value is not None}
        scale = self.paper if paper else self.small
        return replace(scale, **{"strategies": scale.strategies or self.strategies} | made)


def experiment_page(
    runner: Runner,
    *,
    title: str,
    text: str,
    claims: Sequence[Claim],
    tables: Sequence[Table],
    figures: Figures,
    numbers: Mapping[str, Any],
    configuration: Mapping[str, Any] | None = None,
    traces: Traces | None = None,
) -> ResultsPage:
    """Return the page: verdicts first, then what was measured, then the paper's own numbers."""
    place = place_in_paper(runner.name)
    beside = [one for one in (published_table(runner.name), caveats_table(runner.name)) if one]
    settings = runner.configuration() | dict(configuration or {})
    columns = {name for one in tables for name in one.columns}
    if "p (McNemar)" in columns:
        text = f"{text} {SHARES_TEXT}"
    if NATS in columns:
        title, text = quality_title(title), f"{text}\n\n{JUDGED_TEXT}"
        figures = {n: (made, quality_title(said)) for n, (made, said) in figures.items()}
    titled = {
        name: (replace(made, title=figure_title(caption, settings)), caption)
        for name, (made, caption) in figures.items()
    }
    return ResultsPage(
        title=title if place == "none" else f"{title} ({place} of the paper)",
        text=f"{text}\n\n{count_verdicts(claims)}",
        configuration=settings,
        tables=[*([claims_table(claims)] if claims else []), *tables, *beside],
        numbers={"claims": [claim._asdict() for claim in claims], **numbers},
        figures=titled,
        traces=traces or {},
    )


def figure_title(caption: str, settings: Mapping[str, Any]) -> str:
    """Return what a figure shows, on which tasks, how many items and which models."""
    tasks, items = settings["tasks"], settings["items of each task"]
    data = ", ".join(tasks) if len(tasks) <= MOST_TASKS else f"{len(tasks)} tasks"
    several = len(tasks) > 1
    # A task can have fewer items than were asked for.
    count = f"n {'≤' if several else '='} {items}" if isinstance(items, int) else f"{items} items"
    each = " per task" if several else ""
    named = any(task in caption for task in tasks)
    parts = [caption, *([] if named else [data]), count + each, ", ".join(settings["models"])]
    return " · ".join(parts)


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """What an experiment measured on one model."""

    title: str
    text: str
    items: int
    claims: Sequence[Claim]
    tables: Sequence[Table]
    numbers: Mapping[str, Any]
    figures: Figures
    traces: Traces = field(default_factory=dict)
    configuration: Mapping[str, Any] = field(default_factory=dict)


def _keep_for(runner: Runner, model: str) -> Callable[[str, Callable[[], Any]], Any]:
    """Return a function that keeps results of one model."""
    return lambda key, make: runner.keep(f"{model_name(model)}: {key}", make)


def measure_models(runner: Runner, measure: Callable[[ItemDecoder], Measurement]) -> ResultsPage:
    """Measure every model, and put the results on one page."""
    found: dict[str, Measurement] = {}
    configuration: dict[str, Any] = {}
    for model in runner.models:
        decoder = ItemDecoder(
            lm=runner.lm(model),
            scale=runner.scale,
            seed=runner.seed,
            items_seed=runner.items_seed,
            radius=runner.radius,
            data=runner.data,
            progress=runner.progress,
            keep=_keep_for(runner, model),
        )
        one = found[model_name(model)] = measure(decoder)
        configuration = configuration or {**decoder.configuration(), **one.configuration}
    tables, claims = [], []
    figures: dict[str, Any] = {}
    traces: dict[str, Any] = {}
    for model, one in found.items():
        end = f"-{model}" if len(found) > 1 else ""
        tables += [replace(t, title=f"{t.title}, {model}") if end else t for t in one.tables]
        figures |= {f"{name}{end}": made for name, made in one.figures.items()}
        traces |= {f"{name}{end}": made for name, made in one.traces.items()}
        claims += one.claims
    first = next(iter(found.values()))
    numbers = {model: {"n": one.items, **one.numbers} for model, one in found.items()}
    return experiment_page(
        runner,
        title=first.title,
        text=first.text,
        claims=claims,
        tables=tables,
        figures=figures,
        numbers={"n": first.items, "measured": numbers},
        configuration=configuration,
        traces=traces,
    )
