"""Paired: compare two runs over the same items, item by item."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from wavefront.core.errors import RunError
from wavefront.evaluation import grades
from wavefront.evaluation.run import Run, SettingDifference, setting_differences
from wavefront.results.paired import Comparison, compare


class ChangedItem(NamedTuple):
    """An item that one run answers right and the other wrong."""

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
    other_texts: int  # items whose texts differ, whatever the verdicts
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


def compare_runs(
    first: Run, second: Run, *, verdict: str = "correct", intersect: bool = False
) -> RunComparison:
    """Compare two runs of one task.

    The runs must have the same items, unless `intersect` restricts the comparison to the items
    that both have.
    """
    one, two = grades.verdicts(first, verdict), grades.verdicts(second, verdict)
    shared = _shared_items(first, second)
    unshared = len(one.keys() | two.keys()) - len(shared)
    if first.task != second.task:
        raise RunError(f"{first.folder} is of {first.task} and {second.folder} of {second.task}.")
    if not shared or (unshared and not intersect):
        hint = ": --intersect compares those" if shared else ""
        raise RunError(
            f"{first.folder} and {second.folder} have different items: {unshared} are in only one "
            f"of them, or have another prompt, and {len(shared)} in both{hint}."
        )
    ids = [item for item in one if item in shared]
    comparison = compare({item: one[item] for item in ids}, {item: two[item] for item in ids})
    changed = [
        _changed_item(first, second, shared[item], first_right=one[item])
        for item in ids
        if one[item] != two[item]
    ]
    texts = [(first.answers[a]["text"], second.answers[b]["text"]) for a, b in shared.values()]
    return RunComparison(
        first.task,
        (str(first.folder), str(second.folder)),
        (first.strategy, second.strategy),
        comparison,
        verdict,
        setting_differences(_settings(first), _settings(second)),
        sorted(changed, key=lambda item: (not item.first_right, item.id)),
        sum(a != b for a, b in texts),
        unshared,
    )


def compare_with_first(runs: Sequence[Run]) -> list[RunComparison]:
    """Compare every run with the first run of its task, on the items that both have."""
    first: dict[str, Run] = {}
    comparisons = []
    for run in runs:
        base = first.setdefault(run.task, run)
        if base is not run and _shared_items(base, run):
            comparisons.append(compare_runs(base, run, intersect=True))
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
