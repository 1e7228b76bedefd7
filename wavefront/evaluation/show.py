"""Show: the answers of a run as a person reads them, and the section of a run in a report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from wavefront.analysis import quality
from wavefront.core import spec
from wavefront.evaluation.judging import qualities
from wavefront.evaluation.paired import QualityComparison, RunComparison, compare_with_first
from wavefront.evaluation.run import Run
from wavefront.evaluation.summary import cost, shares_of
from wavefront.results import table
from wavefront.results.interval import Estimate, Interval, bounds
from wavefront.results.paired import gap_of
from wavefront.results.table import Cell, Table

SECTION_ANSWERS = 20  # wrong answers of each run that a report shows
MAX_TEXT = 600  # characters of a prompt or an answer in a report


class AnswerView(NamedTuple):
    """One answer with its question and its grade."""

    id: str
    prompt: str
    text: str
    answer: str | None  # as the grader read it from the text; None if it found none
    target: str | None
    correct: bool | None  # None if the answer is not graded, or a judge scored it
    nats: float | None  # per token, if a judge scored it
    finish_reason: str | None
    forwards: int
    problem: str


def answer_views(run: Run) -> list[AnswerView]:
    """Return the answers of a run: the wrong ones first, or the least likely ones first."""
    found = [_view(answer, run.grades.get(key, {})) for key, answer in run.answers.items()]
    return sorted(found, key=lambda one: (one.correct is True, -(one.nats or 0.0), one.id))


def _view(answer: Any, grade: Any) -> AnswerView:
    scored = grade.get("quality") or {}
    return AnswerView(
        answer["id"],
        answer["prompt"],
        answer["text"],
        grade.get("answer"),
        grade.get("target"),
        grade.get("correct"),
        scored.get("nats"),
        answer["finish_reason"],
        answer["forwards"],
        answer.get("problem", ""),
    )


def report_section(runs: Sequence[Run]) -> table.Run:
    """Return the runs of one folder as a section of a report.

    The section has a table of runs, a table of pairs if there are several, and the wrong answers.
    """
    labels = [*dict.fromkeys(run.task_label for run in runs)]
    pairs = compare_with_first(runs)
    graded = [run for run in runs if not run.judged]
    judged = [run for run in runs if run.judged]
    tables = [_accuracies(graded)] if graded else []
    tables += [_qualities(judged)] if judged else []
    verdicts = [pair for pair in pairs if isinstance(pair, RunComparison)]
    tables += [_verdict_pairs(verdicts)] if verdicts else []
    measures = [pair for pair in pairs if isinstance(pair, QualityComparison)]
    tables += [_quality_pairs(measures)] if measures else []
    wrong = [run for run in graded if shares_of(run)["correct"].value < 1]
    tables += [_wrong_answers(run, several=len(runs) > 1) for run in wrong]
    first = runs[0]
    return table.Run(
        title=f"Evaluation on {', '.join(labels)}",
        text="Shares have Wilson's 95 % interval. Differences are paired by item.",
        configuration={
            "model": first.header["model"]["path"],
            "command": first.header.get("command", ""),
            "commit": first.header.get("commit"),
            "strategies": [run.strategy for run in runs],
        },
        tables=tables,
        folder=first.folder,
    )


def _strategy(run: Run) -> str:
    return spec.label(run.strategy)


def _accuracies(runs: Sequence[Run]) -> Table:
    columns = ["task", "strategy", "items", "right, %", "strict, %", "forwards",
               "tokens per forward", "seconds"]  # fmt: skip
    rows: list[list[Cell]] = []
    for run in runs:
        shares, spent = shares_of(run), cost(run)
        row: list[Cell] = [run.task_label, _strategy(run), shares["correct"].items]
        row += [shares["correct"].percent, shares["strict"].percent, spent["forwards"]]
        rows.append([*row, spent["tokens_per_forward"], spent["seconds"]])
    note = "Strict counts only answers in the exact form that the task asks for."
    return Table("Correct answers", columns, rows, note)


def _qualities(runs: Sequence[Run]) -> Table:
    rows: list[list[Cell]] = []
    for run in runs:
        found = [*qualities(run).values()]
        means = quality.estimates(found)
        row: list[Cell] = [run.task_label, _strategy(run), len(found)]
        rows.append([*row, *(_cell(means[name]) for name in ("nats", "length", "distinct"))])
    columns = ["task", "strategy", "items", "nats per token", "tokens", "distinct trigrams"]
    return Table("Quality under the judge", columns, rows)


def _verdict_pairs(pairs: Sequence[RunComparison]) -> Table:
    columns = ["task", "from", "to", "items", "difference, points", "only the first right",
               "only the second right", "p (McNemar)"]  # fmt: skip
    rows: list[list[Cell]] = []
    for pair in pairs:
        test: Any = pair.comparison.mcnemar
        row: list[Cell] = [pair.task, *_strategies(pair), pair.comparison.count]
        row += [gap_of(pair.comparison).scaled(100), test.first_only, test.second_only]
        rows.append([*row, round(test.p, 3)])
    return Table("Differences", columns, rows)


def _quality_pairs(pairs: Sequence[QualityComparison]) -> Table:
    columns = ["task", "from", "to", "items", "nats per token", "tokens", "distinct trigrams"]
    rows: list[list[Cell]] = []
    for pair in pairs:
        row: list[Cell] = [pair.task, *_strategies(pair), pair.count]
        rows.append([*row, *(_cell(pair.gaps[name]) for name in ("nats", "length", "distinct"))])
    return Table("Differences of quality", columns, rows, "Second minus first.")


def _strategies(pair: RunComparison | QualityComparison) -> list[str]:
    return [spec.label(strategy) for strategy in pair.strategies]


def _cell(found: Estimate) -> Cell:
    if found is None:
        return None
    return found if isinstance(found, Interval) else bounds(found)[0]


def _wrong_answers(run: Run, *, several: bool) -> Table:
    wrong = [one for one in answer_views(run) if one.correct is False]
    rows: list[list[Cell]] = [
        [one.id, _cut(one.prompt), _cut(one.text), one.answer or "(none)", one.target]
        for one in wrong[:SECTION_ANSWERS]
    ]
    name = f"{run.task_label}, {_strategy(run)}: wrong answers" if several else "Wrong answers"
    more = len(wrong) - len(rows)
    note = f"{more} more: `wavefront eval show {run.folder} --all` prints them." if more else ""
    return Table(
        f"{name} ({len(wrong)} of {len(run.answers)})",
        ["item", "prompt", "text", "answer read", "target"],
        rows,
        note,
    )


def _cut(text: str) -> str:
    text = text.strip()
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]} …"
