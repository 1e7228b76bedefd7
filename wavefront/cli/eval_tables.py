"""Tables of an evaluation: one line per run, and one per pair of runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from wavefront.cli.output import print_columns, stdout

if TYPE_CHECKING:
    from wavefront.evaluation.paired import RunComparison
    from wavefront.evaluation.run import Run

CHANCE = 0.05  # significance level of a difference


def print_runs(runs: Sequence[Run]) -> None:
    """Print one line per run."""
    from wavefront.evaluation.summary import cost, shares_of

    columns = ("task", "strategy", "items", "right", "95 %", "strict", "flexible", "forwards",
               "tokens/forward", "tokens/s", "seconds")  # fmt: skip
    rows = []
    for run in runs:
        shares, took = shares_of(run), cost(run)
        found = shares["correct"]
        row = [run.task, run.strategy, found.items, percent(found.value)]
        row += [f"{percent(found.low)} to {percent(found.high)}"]
        row += [percent(shares[name].value) for name in ("strict", "flexible")]
        row += [number(took["forwards"], 1), number(took["tokens_per_forward"], 2)]
        rows.append([*row, number(took["tokens_per_second"], 1), number(took["seconds"], 1)])
    print_columns(columns, rows)
    for run in runs:
        for note in _notes(run):
            stdout().print(Text(f"{run.folder}: {note}"), soft_wrap=True)


def _notes(run: Run) -> list[str]:
    from wavefront.evaluation.summary import cost, layers_of

    took, notes = cost(run), []
    if not run.finished:
        notes.append(f"only {len(run.answers)} of {run.expected} items are answered.")
    if took["too_long"]:
        notes.append(f"{took['too_long']} prompts were too long for the model and count as wrong.")
    cut = sum(answer["finish_reason"] == "length" for answer in run.answers.values())
    if cut:
        length = run.decides["options"]["max_new_tokens"]
        many = f"{cut} of {len(run.answers)} answers"
        notes.append(f"{many} did not end within {length} tokens; raise -n to give them more.")
    for layers in layers_of(run) or ():
        notes.append(f"code ran inside {', '.join(layers) or 'no sandbox'}.")
    return notes


def print_pairs(pairs: Sequence[RunComparison]) -> None:
    """Print one line per pair of runs."""
    if not pairs:
        return
    columns = ("task", "from", "to", "items", "points", "95 %", "only the first", "only the second",
               "p (McNemar)")  # fmt: skip
    rows = []
    for pair in pairs:
        found, test = pair.comparison, pair.comparison.mcnemar
        gap = found.gap
        row = [pair.task, *pair.strategies, found.count, f"{100 * gap.value:+.1f}"]
        row.append(f"{100 * gap.low:+.1f} to {100 * gap.high:+.1f}")
        assert test is not None  # verdicts are right or wrong
        rows.append([*row, test.first_only, test.second_only, p_value(test.p)])
    print()
    print_columns(columns, rows)


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def p_value(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def describe_pair(pair: RunComparison) -> str:
    """Return the result of a comparison in words."""
    found, test = pair.comparison, pair.comparison.mcnemar
    gap = found.gap
    assert test is not None
    text = (
        f"A has {percent(found.first)} right and B {percent(found.second)}: "
        f"{100 * gap.value:+.1f} points (95 %: {100 * gap.low:+.1f} to {100 * gap.high:+.1f}), "
        f"exact McNemar p = {p_value(test.p)}."
    )
    if test.first_only + test.second_only == 0:
        return f"{text} No verdict changed."
    if test.p < CHANCE:
        return f"{text} The difference is significant."
    return f"{text} The difference is not significant."
