"""Tables of an evaluation: one line per run, and one per pair of runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from wavefront.cli.output import print_columns, stdout
from wavefront.core import spec
from wavefront.core.bounds import DEFAULT_STRATEGY
from wavefront.results.interval import FEWEST_DIFFERING, Estimate, Interval, bounds

if TYPE_CHECKING:
    from wavefront.evaluation.paired import QualityComparison, RunComparison
    from wavefront.evaluation.run import Run
    from wavefront.results.paired import Comparison

CHANCE = 0.05  # significance level of a difference


# Titles of the measures of quality, and their decimal places.
QUALITY = {
    "nats": ("nats", 3),
    "length": ("tokens", 1),
    "distinct": ("distinct", 3),
    "first_nats": ("nats@64", 3),
    "first_length": ("tokens@64", 1),
    "first_distinct": ("distinct@64", 3),
    "premature": ("early ends", 3),
}
LEGEND = (
    "nats: mean negative log-likelihood per token under the judge; distinct: share of different "
    "trigrams; @64: over the first 64 tokens; early ends: share that ends within them."
)
ORIGINAL = "(the original)"
GRADES = (
    "strict: share of correct answers in the exact form that the task asks for, such as after "
    "####; flexible: also counts a correct answer elsewhere in the text; right: the flexible "
    "share, except for wikitext, where an answer must match exactly."
)
TOO_FEW = "too few items differ"
EXACT = (
    f"95 %: where fewer than {FEWEST_DIFFERING} items differ, the interval is exact and wide; "
    "otherwise it is a paired bootstrap."
)


def print_runs(runs: Sequence[Run]) -> None:
    """Print one line per run. Runs that a judge scored have their own table."""
    graded, judged = ([run for run in runs if run.judged is kind] for kind in (False, True))
    if graded:
        _print_accuracies(graded)
    if judged:
        _print_qualities(judged)
    if any(_shown(run.strategy) == "default" for run in runs):
        stdout().print(Text(f"default: {DEFAULT_STRATEGY}."))
    for run in runs:
        for note in _notes(run):
            stdout().print(Text(f"{run.folder}: {note}"))


def _print_accuracies(runs: Sequence[Run]) -> None:
    from wavefront.evaluation.summary import cost, shares_of

    columns = ("task", "strategy", "items", "right", "95 %", "strict", "flexible", "forwards",
               "tokens/forward", "tokens/s", "seconds")  # fmt: skip
    rows = []
    for run in runs:
        shares, took = shares_of(run), cost(run)
        found = shares["correct"]
        digits = decimals(found.items)
        row = [run.task_label, _shown(run.strategy), found.items, percent(found.value, digits)]
        row += [f"{100 * found.low:.{digits}f} to {percent(found.high, digits)}"]
        row += [percent(shares[name].value, digits) for name in ("strict", "flexible")]
        row += [number(took["forwards"], 1), number(took["tokens_per_forward"], 2)]
        rows.append([*row, number(took["tokens_per_second"], 1), number(took["seconds"], 1)])
    print_columns(columns, rows)
    stdout().print(Text(GRADES))


def _print_qualities(runs: Sequence[Run]) -> None:
    """Print the quality of every run, and of the original's own texts on the same canvas."""
    from wavefront.analysis.quality import estimates
    from wavefront.evaluation.judging import qualities
    from wavefront.evaluation.summary import cost

    titles = [title for title, _ in QUALITY.values()]
    columns = ("task", "strategy", "items", *titles[:1], "95 %", *titles[1:], "forwards", "seconds")
    rows: list[list[object]] = []
    canvases: dict[tuple[str, int], Run] = {}
    for run in runs:
        took, found = cost(run), [*qualities(run).values()]
        spent = [number(took["forwards"], 1), number(took["seconds"], 1)]
        cells = _quality_cells(estimates(found))
        rows.append([run.task_label, _shown(run.strategy), len(found), *cells, *spent])
        canvases.setdefault((run.task, run.decides["options"]["max_new_tokens"]), run)
    for (task, length), run in canvases.items():
        found = [*qualities(run, "original").values()]
        name = ORIGINAL if len(canvases) == 1 else f"{ORIGINAL}, {length} positions"
        rows.append([task, name, len(found), *_quality_cells(estimates(found)), "", ""])
    print_columns(columns, rows)
    stdout().print(Text(LEGEND))


def _quality_cells(found: Mapping[str, Estimate]) -> list[str]:
    """Return the mean of every measure as text; the first one has its interval after it."""
    cells = [estimate_text(found[name], digits) for name, (_, digits) in QUALITY.items()]
    return [cells[0], interval_text(found["nats"], 3), *cells[1:]]


def _notes(run: Run) -> list[str]:
    from wavefront.evaluation.summary import cost, layers_of

    took, notes = cost(run), []
    if not run.finished:
        notes.append(f"only {len(run.answers)} of {run.expected} items are answered.")
    if took["too_long"]:
        counted = "have no quality" if run.judged else "count as wrong"
        notes.append(f"{took['too_long']} prompts were too long for the model and {counted}.")
    cut = sum(answer["finish_reason"] == "length" for answer in run.answers.values())
    if cut:
        length = run.decides["options"]["max_new_tokens"]
        many = f"{cut} of {len(run.answers)} answers did not end within {length} tokens"
        notes.append(f"{many}." if run.judged else f"{many}; raise -n to give them more.")
    for layers in layers_of(run) or ():
        notes.append(f"code ran inside {', '.join(layers) or 'no sandbox'}.")
    return notes


def print_pairs(pairs: Sequence[RunComparison | QualityComparison]) -> None:
    """Print one line per pair of runs, or one line per measure if a judge scored the runs."""
    from wavefront.evaluation.paired import RunComparison

    graded = [pair for pair in pairs if isinstance(pair, RunComparison)]
    if graded:
        _print_verdict_pairs(graded)
    judged = [pair for pair in pairs if not isinstance(pair, RunComparison)]
    if judged:
        columns = ("task", "from", "to", "items", "measure", "first", "second", "difference",
                   "95 %")  # fmt: skip
        rows = [
            [pair.task, *map(_shown, pair.strategies), pair.count, *cells]
            for pair in judged
            for cells in quality_rows(pair)
        ]
        print()
        print_columns(columns, rows)


def quality_rows(pair: QualityComparison) -> list[list[str]]:
    """Return a line for every measure: its name, both means, the difference and its interval."""
    return [
        [
            title,
            estimate_text(pair.first[name], digits),
            estimate_text(pair.second[name], digits),
            estimate_text(pair.gaps[name], digits, sign="+"),
            gap_text(pair.gaps[name], digits, items=pair.count),
        ]
        for name, (title, digits) in QUALITY.items()
    ]


def _print_verdict_pairs(pairs: Sequence[RunComparison]) -> None:
    from wavefront.results.paired import few_differ

    columns = ("task", "from", "to", "items", "points", "95 %", "only the first", "only the second",
               "p (McNemar)")  # fmt: skip
    rows = []
    for pair in pairs:
        found, test = pair.comparison, pair.comparison.mcnemar
        row = [pair.task, *map(_shown, pair.strategies), found.count, *points(found)]
        assert test is not None  # verdicts are right or wrong
        rows.append([*row, test.first_only, test.second_only, p_value(test.p)])
    print()
    print_columns(columns, rows)
    if any(few_differ(pair.comparison) for pair in pairs):
        stdout().print(Text(EXACT))


def _shown(strategy: str) -> str:
    """Return a strategy without the options that equal its defaults; see `spec.label`."""
    return spec.label(strategy)


def decimals(items: int) -> int:
    """Return the decimals of a percentage: none where one item is a point or more."""
    return 1 if items > 100 else 0


def percent(share: float, digits: int = 1) -> str:
    return f"{100 * share:.{digits}f} %"


def points(found: Comparison) -> tuple[str, str]:
    """Return a difference in percentage points and its interval.

    The interval is exact if few items differ, because a bootstrap cannot show what they leave open.
    """
    from wavefront.results.paired import gap_of

    digits, gap = decimals(found.count), gap_of(found).scaled(100)
    return f"{gap.value:+.{digits}f}", f"{gap.low:+.{digits}f} to {gap.high:+.{digits}f}"


def number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def estimate_text(found: Estimate, digits: int, *, sign: str = "") -> str:
    """Return a mean as text; empty if there is none."""
    return "" if found is None else f"{bounds(found)[0]:{sign}.{digits}f}"


def interval_text(found: Estimate, digits: int, *, sign: str = "") -> str:
    """Return the ends of an interval as text; empty if there is none."""
    if not isinstance(found, Interval):
        return ""
    return f"{found.low:{sign}.{digits}f} to {found.high:{sign}.{digits}f}"


def gap_text(found: Estimate, digits: int, *, items: int) -> str:
    """Return the interval of a paired difference, or say that too few items differ for one."""
    if found is None:
        return ""
    _, low, high = bounds(found)
    if items < FEWEST_DIFFERING or low == high:
        return TOO_FEW
    return interval_text(found, digits, sign="+")


def p_value(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def describe_pair(pair: RunComparison) -> str:
    """Return the result of a comparison in words."""
    from wavefront.results.paired import gap_of

    found, test = pair.comparison, pair.comparison.mcnemar
    digits = decimals(found.count)
    gap, interval = points(found)
    assert test is not None
    text = (
        f"A has {percent(found.first, digits)} right and B {percent(found.second, digits)}: "
        f"{gap} points (95 %: {interval}), exact McNemar p = {p_value(test.p)}."
    )
    if test.differing == 0:
        open_gap = 100 * gap_of(found).excluded_above
        return (
            f"{text} No verdict changed, but {found.count} items cannot exclude a difference of "
            f"{open_gap:.{digits}f} points."
        )
    if test.p < CHANCE:
        return f"{text} The difference is significant."
    return f"{text} The difference is not significant."
