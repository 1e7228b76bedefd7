"""Paired: compare two runs over the same items, item by item."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from wavefront.analysis.quality import differences, estimates
from wavefront.core.errors import RunError
from wavefront.evaluation import grades
from wavefront.evaluation.judging import qualities
from wavefront.evaluation.run import Run, SettingDifference, setting_differences
from wavefront.results.interval import Estimate
from wavefront.results.paired import Comparison, compare


class ChangedItem(NamedTuple):
    """An item that only one of the two runs answers correctly."""

    id: str
    prompt: str
    target: str
    first: str  # texts
    second: str
    first_right: bool
    first_answer: str | None  # as the grader extracted it from the text
    second_answer: str | None


@dataclass(frozen=True)
class RunComparison:
    """The comparison of two runs."""

    task: str
    names: tuple[str, str]  # of the directories
    strategies: tuple[str, str]
    comparison: Comparison
    verdict: str
    settings: list[SettingDifference]  # settings that determine the answers and differ
    changed: list[ChangedItem]  # items that got worse come first
    other_texts: int  # items whose texts differ, regardless of the verdicts
    left_out: int  # items that only one run has

    def as_json(self) -> dict[str, Any]:
        found = self.comparison
        return asdict(self) | {
            "changed": [item._asdict() for item in self.changed],
            "settings": [setting._asdict() for setting in self.settings],
            "comparison": {
                "count": found.count,
                "first": found.first,
                "second": found.second,
                "gap": vars(found.gap),
                "mcnemar": None if found.mcnemar is None else found.mcnemar._asdict(),
            },
        }


@dataclass(frozen=True)
class QualityComparison:
    """The comparison of two runs whose answers a judge scored."""

    task: str
    names: tuple[str, str]  # of the directories
    strategies: tuple[str, str]
    count: int  # of items
    first: Mapping[str, Estimate]  # the means, by measure
    second: Mapping[str, Estimate]
    gaps: Mapping[str, Estimate]  # second - first, in pairs
    settings: list[SettingDifference]  # settings that determine the answers and differ
    other_texts: int  # items whose texts differ
    left_out: int  # items that only one run has

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"settings": [setting._asdict() for setting in self.settings]}


def compare_runs(
    first: Run, second: Run, *, verdict: str = "correct", intersect: bool = False
) -> RunComparison:
    """Compare two runs of one task.

    The runs must have the same items, unless `intersect` restricts the comparison to the items
    that both have.
    """
    one, two = grades.verdicts(first, verdict), grades.verdicts(second, verdict)
    shared, unshared = _check_comparable(first, second, intersect=intersect)
    ids = [item for item in one if item in shared]
    comparison = compare({item: one[item] for item in ids}, {item: two[item] for item in ids})
    changed = [
        _changed_item(first, second, shared[item], first_right=one[item])
        for item in ids
        if one[item] != two[item]
    ]
    return RunComparison(
        first.task_label,
        (str(first.folder), str(second.folder)),
        (first.strategy, second.strategy),
        comparison,
        verdict,
        setting_differences(_settings(first), _settings(second)),
        sorted(changed, key=lambda item: (not item.first_right, item.id)),
        _other_texts(first, second, shared),
        unshared,
    )


def compare_quality(first: Run, second: Run, *, intersect: bool = False) -> QualityComparison:
    """Compare two runs of one task whose answers a judge scored.

    The runs must have the same items, unless `intersect` restricts the comparison to the items
    that both have. An item whose prompt was too long in one of them is left out.
    """
    for run in (first, second):
        grades.check_graded(run)
    shared, unshared = _check_comparable(first, second, intersect=intersect)
    one, two = qualities(first), qualities(second)
    ids = [item for item in one if item in two and item in shared]
    if not ids:
        raise RunError(f"{first.folder} and {second.folder} have no scored item in common.")
    before, after = [one[item] for item in ids], [two[item] for item in ids]
    return QualityComparison(
        first.task_label,
        (str(first.folder), str(second.folder)),
        (first.strategy, second.strategy),
        len(ids),
        estimates(before),
        estimates(after),
        differences(before, after),
        setting_differences(_settings(first), _settings(second)),
        _other_texts(first, second, shared),
        unshared,
    )


def _check_comparable(
    first: Run, second: Run, *, intersect: bool
) -> tuple[dict[str, tuple[str, str]], int]:
    """Return the items that both runs have, and how many are in only one.

    Raises `RunError` if the runs have different tasks, graders, or items.
    """
    shared = _shared_items(first, second)
    every = {line["id"] for run in (first, second) for line in run.answers.values()}
    unshared = len(every) - len(shared)
    if first.task != second.task:
        raise RunError(
            f"{first.folder} is a run of {first.task_label}, but {second.folder} is a run of "
            f"{second.task_label}."
        )
    if first.grader != second.grader:
        raise RunError(
            f"{first.folder} and {second.folder} were graded by different graders: run "
            "`wavefront eval grade` on both."
        )
    if not shared or (unshared and not intersect):
        hint = ": --intersect compares those" if shared else ""
        raise RunError(
            f"{first.folder} and {second.folder} have different items: {unshared} are in only one "
            f"of them, or have another prompt, and {len(shared)} in both{hint}."
        )
    return shared, unshared


def _other_texts(first: Run, second: Run, shared: Mapping[str, tuple[str, str]]) -> int:
    """Return how many items have different texts in the two runs."""
    texts = [(first.answers[a]["text"], second.answers[b]["text"]) for a, b in shared.values()]
    return sum(a != b for a, b in texts)


def compare_with_first(runs: Sequence[Run]) -> list[RunComparison | QualityComparison]:
    """Compare every run with the first run of its task, on the items that both have."""
    first: dict[str, Run] = {}
    comparisons: list[RunComparison | QualityComparison] = []
    for run in runs:
        base = first.setdefault(run.task_label, run)
        if base is not run and _shared_items(base, run):
            compare_both = compare_quality if run.judged else compare_runs
            comparisons.append(compare_both(base, run, intersect=True))
    return comparisons


def _settings(run: Run) -> dict[str, Any]:
    """Return the settings of a run without its choice of items, which is compared separately."""
    return {name: part for name, part in run.decides.items() if name not in ("task", "ask")}


def _shared_items(first: Run, second: Run) -> dict[str, tuple[str, str]]:
    """Return the items with the same prompt in both runs: id -> the key in each."""
    one, two = _keys_by_item(first.answers), _keys_by_item(second.answers)
    return {item[0]: (key, two[item]) for item, key in one.items() if item in two}


def _keys_by_item(answers: Mapping[str, Mapping[str, Any]]) -> dict[tuple[str, str], str]:
    return {(line["id"], line["prompt_hash"]): key for key, line in answers.items()}


def _changed_item(
    first: Run, second: Run, keys: tuple[str, str], *, first_right: bool
) -> ChangedItem:
    mine, graded = first.answers[keys[0]], first.grades[keys[0]]
    return ChangedItem(
        mine["id"],
        mine["prompt"],
        graded["target"],
        mine["text"],
        second.answers[keys[1]]["text"],
        first_right,
        graded["answer"],
        second.grades[keys[1]]["answer"],
    )
