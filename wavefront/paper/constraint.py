"""Constraint: are answers that must end with a legal final answer also right more often?"""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Any

from wavefront.analysis import figures
from wavefront.core.bounds import DEFAULT_STRATEGY
from wavefront.core.errors import OptionError
from wavefront.evaluation.page import ResultsPage
from wavefront.evaluation.task_spec import constraint_of, open_task, samples_of
from wavefront.evaluation.trials import (
    Runner,
    Scale,
    Trial,
    TrialGroup,
    TrialResult,
    compare_groups,
    model_name,
    percent_gap,
)
from wavefront.paper.tables import STRATEGIES, Key, group_by
from wavefront.results.interval import wilson_share
from wavefront.results.paired import compare
from wavefront.results.table import Table

NEEDS = "nothing; it is not an experiment of the paper"
# Tasks that the built-in model neither always nor never solves. Their worked answers often need
# more than 64 positions, so without a constraint many answers have no end.
TASKS = ("date_understanding", "hyperbaton", "object_counting", "multistep_arithmetic_two", "gsm")
SMALL = Scale(tasks=TASKS[-2:], items=8, length=64, steps=16)
PAPER = Scale(tasks=TASKS, items=200, length=64, steps=16)
COMPARED = (
    DEFAULT_STRATEGY,
    "wavefront(size=8, radius=2, selector=threshold(tau=0.9))",
    *(STRATEGIES[0], STRATEGIES[2]),
)
RATIOS = (1, 4)  # T is N over this
FREE, FINAL, CHOICE = "none", "final", "choice"
TEXT = (
    "Every strategy answers the same items three times. Without a constraint it writes what it "
    "likes. With `final` it may reason, but its text must end with `####` and a final answer of "
    "the right kind: one of the choices of the question, or a number. With `choice` it writes "
    "only that, without reasoning. An answer is valid if it ends in this way, and right if its "
    "final answer is correct; a final answer without the mark also counts as right if the grader "
    "finds it. Shares have Wilson's 95 % intervals. Differences are in pairs with the decode "
    "without a constraint, bootstrapped over items, in percentage points, with the exact McNemar "
    "test for right answers."
)
Valid = dict[Path, dict[str, bool]]  # by run and item
COLUMNS = [
    *("model", "task", "T", "strategy", "constraint", "valid, %", "right, %"),
    *("valid, less none", "right, less none", "p (McNemar)", "items", "forwards", "seconds"),
]


def run(runner: Runner) -> ResultsPage:
    """Answer every item with and without each constraint."""
    trials = [
        Trial(model, task, strategy, f"T={steps} {how}", 0, {"steps": steps}, constrain)
        for model in runner.models
        for task in runner.scale.tasks
        for steps in dict.fromkeys(max(1, runner.steps // ratio) for ratio in RATIOS)
        for strategy in runner.scale.strategies
        for how, constrain in _constraints(runner, task)
    ]
    results = runner.measure(trials)
    valid = {one.folder: valid_answers(one, runner) for one in results}
    alone = _table("By task", group_by(results, _by_task), valid)
    pooled = _table("All tasks", group_by(results, _pooled), valid)
    bars = [
        figures.Bar(f"{key[4]}\nT={key[2]}", key[3], share.value, share.low, share.high, None)
        for key, group in group_by(results, _pooled).items()
        for share in [group.accuracy.scaled(0.01)]
        if key[4] != CHOICE
    ]
    return ResultsPage(
        title="Constraint: answers with and without",
        text=TEXT,
        configuration=runner.configuration(),
        tables=[pooled, alone],
        numbers={"pooled": pooled.records(), "by task": alone.records()},
        # Equal bars say nothing that the table does not say.
        figures={"constraint": (figures.bars(bars), "Right answers, all tasks")}
        if len({bar.mean for bar in bars}) > 1
        else {},
    )


def _constraints(runner: Runner, task: str) -> list[tuple[str, str]]:
    """Return the constraints that a task can have: what the table calls them, and the option.

    Raises `OptionError` if the task has no final answer, such as a task to write code.
    """
    opened, samples = samples_of(task, runner.ask())
    constraint_of(opened, samples[0], FINAL)
    found = [(FREE, ""), (FINAL, FINAL)]
    with contextlib.suppress(OptionError):  # such as a task whose answers are numbers
        constraint_of(opened, samples[0], CHOICE)
        found.append((CHOICE, CHOICE))
    return found


def valid_answers(result: TrialResult, runner: Runner) -> dict[str, bool]:
    """Return whether each answer of a run ends with a marked final answer of the right kind.

    The verdicts are kept with the results, so a page needs no answers.
    """
    key = f"valid answers of {result.trial.folder}"
    return runner.keep(key, lambda: _match_answers(result, runner), run=result.folder)


def _match_answers(result: TrialResult, runner: Runner) -> dict[str, bool]:
    task = open_task(result.trial.task)
    patterns = {
        sample.id: constraint_of(task, sample, FINAL)["regex"]
        for sample in samples_of(result.trial.task, runner.ask())[1]
    }
    return {
        line["id"]: re.fullmatch(patterns[line["id"]], line["text"]) is not None
        for line in result.run.answers.values()
    }


def _by_task(result: TrialResult) -> Key:
    trial = result.trial
    how = trial.constrain or FREE
    return model_name(trial.model), trial.task, str(trial.options["steps"]), trial.strategy, how


def _pooled(result: TrialResult) -> Key:
    """Return the key without the task. Tasks without choices have no part in `choice`."""
    model, _, *rest = _by_task(result)
    return model, "all", *rest


def _table(title: str, groups: dict[Key, TrialGroup], valid: Valid) -> Table:
    rows: list[list[Any]] = []
    for key, group in groups.items():
        own = _valid(group, valid)
        share = wilson_share(sum(own.values()), len(own)).percent
        gaps: list[Any] = [None, None, None]
        if key[4] != FREE:
            free = _same_tasks(groups[*key[:4], FREE], group)
            right = compare_groups(free, group)
            gaps = [
                percent_gap(compare(_valid(free, valid), own)),
                percent_gap(right),
                right.mcnemar.p if right.mcnemar else None,
            ]
        cost = (len(group.correct), group.forwards, group.seconds)
        rows.append([*key, share, group.accuracy, *gaps, *cost])
    return Table(title, COLUMNS, rows)


def _same_tasks(group: TrialGroup, other: TrialGroup) -> TrialGroup:
    """Return the results of a group whose tasks are also in the other one."""
    tasks = {one.trial.task for one in other.results}
    return TrialGroup(tuple(one for one in group.results if one.trial.task in tasks))


def _valid(group: TrialGroup, valid: Valid) -> dict[tuple[Any, ...], bool]:
    return {
        (one.trial.model, one.trial.task, item): verdict
        for one in group.results
        for item, verdict in valid[one.folder].items()
    }
