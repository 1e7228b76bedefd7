"""Pairs: two runs over the same items, compared item by item."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from wavefront.core.errors import RunError
from wavefront.evaluation import grades
from wavefront.evaluation.run import Contrast, Run, contrasts
from wavefront.results.paired import Comparison, compare


class Changed(NamedTuple):
    """An item that one run has right and the other wrong."""

    id: str
    prompt: str
    target: str
    first: str  # texts
    second: str
    first_right: bool
    first_answer: str | None  # as it was read out of the text
    second_answer: str | None


@dataclass(frozen=True)
class Pair:
    """Two runs, compared."""

    task: str
    names: tuple[str, str]  # of the directories
    strategies: tuple[str, str]
    comparison: Comparison
    verdict: str
    settings: list[Contrast]  # what decides the answers and is not the same
    changed: list[Changed]  # those that got worse first
    other_texts: int  # items whose texts differ, whatever the verdicts
    left_out: int  # items that are in one of them only

    def as_json(self) -> dict[str, Any]:
        made = asdict(self)
        made["changed"] = [one._asdict() for one in self.changed]
        made["settings"] = [one._asdict() for one in self.settings]
        found = self.comparison
        made["comparison"] = {
            "count": found.count,
            "first": found.first,
            "second": found.second,
            "gap": vars(found.gap),
            "mcnemar": None if found.mcnemar is None else found.mcnemar._asdict(),
        }
        return made


def difference(first: Run, second: Run, *, verdict: str = "correct", common: bool = False) -> Pair:
    """What the second run changed; over the items they share, where `common` allows that."""
    one, two = grades.verdicts(first, verdict), grades.verdicts(second, verdict)
    shared = _shared(first, second)
    lone = len(one.keys() | two.keys()) - len(shared)
    if first.task != second.task:
        raise RunError(f"{first.folder} is of {first.task} and {second.folder} of {second.task}.")
    if not shared or (lone and not common):
        hint = ": --common compares those they share" if shared else ""
        raise RunError(
            f"{first.folder} and {second.folder} are over different items: {lone} are in one of "
            f"them only, or asked otherwise, and {len(shared)} in both{hint}."
        )
    names = [item for item in one if item in shared]
    comparison = compare({name: one[name] for name in names}, {name: two[name] for name in names})
    changed = [_changed(first, second, *shared[n], one[n]) for n in names if one[n] != two[n]]
    texts = [(first.answers[a]["text"], second.answers[b]["text"]) for a, b in shared.values()]
    return Pair(
        first.task,
        (str(first.folder), str(second.folder)),
        (first.strategy, second.strategy),
        comparison,
        verdict,
        contrasts(_settings(first), _settings(second)),
        sorted(changed, key=lambda one: (not one.first_right, one.id)),
        sum(a != b for a, b in texts),
        lone,
    )


def against_first(runs: Sequence[Run]) -> list[Pair]:
    """Every run compared with the first of its task, where the items are the same."""
    first: dict[str, Run] = {}
    pairs = []
    for run in runs:
        base = first.setdefault(run.task, run)
        if base is not run and _shared(base, run):
            pairs.append(difference(base, run, common=True))
    return pairs


def _settings(run: Run) -> dict[str, Any]:
    """What decides, but for which items: that is told apart."""
    return {name: part for name, part in run.decides.items() if name not in ("task", "ask")}


def _shared(first: Run, second: Run) -> dict[str, tuple[str, str]]:
    """Items that both were asked in the same words: name -> the key in each."""
    one, two = _by_item(first.answers), _by_item(second.answers)
    return {item[0]: (key, two[item]) for item, key in one.items() if item in two}


def _by_item(answers: Mapping[str, Mapping[str, Any]]) -> dict[tuple[str, str], str]:
    return {(line["id"], line["prompt_hash"]): key for key, line in answers.items()}


def _changed(first: Run, second: Run, a: str, b: str, first_right: bool) -> Changed:
    mine, graded = first.answers[a], first.grades[a]
    return Changed(
        mine["id"],
        mine["prompt"],
        graded["target"],
        mine["text"],
        second.answers[b]["text"],
        first_right,
        graded["answer"],
        second.grades[b]["answer"],
    )
