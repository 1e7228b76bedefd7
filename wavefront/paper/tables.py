"""Grids of trials, their groups, and the table and bars of correct answers made from them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from wavefront.analysis import figures
from wavefront.analysis.figures import Figure, kind
from wavefront.evaluation.trials import (
    Runner,
    Trial,
    TrialGroup,
    TrialResult,
    compare_groups,
    model_name,
    percent_gap,
)
from wavefront.paper.claims import Claim, accuracy_claim
from wavefront.paper.published import dataset, first_number
from wavefront.results.table import Table

STRATEGIES = ("standard", "block(size=8)", "wavefront(size=8, radius=2)")
# The paper describes two ways to grow the wave, so both are evaluated.
EVALUATED = (*STRATEGIES, "wavefront(size=8, radius=2, grow='accumulate')")
BLOCK, WAVES = STRATEGIES[1], EVALUATED[2:]
BOTH_READINGS = (
    "Both readings of how the wave grows are evaluated. Decoding stops at the end of the answer, "
    "which gives the same text as filling the canvas. Shares have Wilson's 95 % intervals; "
    "differences are in pairs, bootstrapped over items, with the exact McNemar test."
)
RESULTS = ("right, %", "less base, %", "p (McNemar)", "items", "forwards", "tokens per forward",
           "seconds", "paper")  # fmt: skip
Key = tuple[str, ...]  # what identifies a group; the last part is the strategy
Groups = Mapping[Key, TrialGroup]


def grid(
    runner: Runner,
    strategies: Sequence[str] | None = None,
    *,
    case: str = "",
    seed: int = 0,
    options: Mapping[str, Any] | None = None,
) -> list[Trial]:
    """Return the trials of all models, tasks and strategies, one model after the other.

    Strategies are by default those of the scale.
    """
    return [
        Trial(model, task, spec, case, seed, options or {})
        for model in runner.models
        for task in runner.scale.tasks
        for spec in (runner.scale.strategies if strategies is None else strategies)
    ]


def group_by(
    results: Iterable[TrialResult], key: Callable[[TrialResult], Key]
) -> dict[Key, TrialGroup]:
    """Group results by a key, in the order of the trials."""
    found: dict[Key, list[TrialResult]] = {}
    for one in results:
        found.setdefault(key(one), []).append(one)
    return {name: TrialGroup(tuple(some)) for name, some in found.items()}


def by_dataset(result: TrialResult) -> Key:
    """Return model, the paper's data set, strategy."""
    trial = result.trial
    return model_name(trial.model), dataset(trial.task), trial.strategy


def by_task(result: TrialResult) -> Key:
    """Return model, task, strategy."""
    return model_name(result.trial.model), result.trial.task, result.trial.strategy


def by_case(result: TrialResult) -> Key:
    """Return model, the paper's data set, what else varies, strategy."""
    trial = result.trial
    return model_name(trial.model), dataset(trial.task), trial.case, trial.strategy


def spec_with_case(trial: Trial) -> str:
    """Return the strategy with what else varies as a further option of it."""
    return f"{trial.strategy[:-1]}, {trial.case})" if trial.case else trial.strategy


def pool(groups: Groups, *tail: str) -> TrialGroup:
    """Return all groups whose keys end like this, as one."""
    chosen = [group for key, group in groups.items() if key[-len(tail) :] == tail]
    return TrialGroup(tuple(one for group in chosen for one in group.results))


def wave_claims(groups: Groups, text: str, *base: str) -> list[Claim]:
    """Claim for each wave that it has more correct answers than the base, all else pooled.

    The base is the end of a key: the strategy, perhaps preceded by what else varies.
    """
    one = pool(groups, *base)
    return [
        accuracy_claim(text, spec, base=one, other=pool(groups, *base[:-1], spec)) for spec in WAVES
    ]


def first_block(strategies: Iterable[str]) -> str | None:
    """Return the first block strategy, which the paper compares with, or None."""
    return next((spec for spec in strategies if kind(spec) == "block"), None)


def block_key(groups: Groups, key: Key) -> Key | None:
    """Return the key of the block strategy that differs from this one by the strategy alone."""
    base = first_block(other[-1] for other in groups if other[:-1] == key[:-1])
    return None if base is None or base == key[-1] else (*key[:-1], base)


def accuracy_table(
    title: str,
    groups: Groups,
    columns: Sequence[str],
    *,
    paper: Callable[[Key], str | None] = lambda key: None,
    base: Callable[[Groups, Key], Key | None] = block_key,
    note: str = "",
) -> Table:
    """Return the table of correct answers and their cost."""
    rows: list[list[Any]] = []
    for key, group in groups.items():
        other = base(groups, key)
        found = None if other is None else compare_groups(groups[other], group)
        test = found.mcnemar if found else None
        compared = (percent_gap(found) if found else None, test.p if test else None)
        cost = (len(group.correct), group.forwards, group.tokens_per_forward, group.seconds)
        rows.append([*key, group.accuracy, *compared, *cost, paper(key)])
    return Table(title, [*columns, *RESULTS], rows, note)


def accuracy_bars(
    groups: Groups,
    place: Callable[[Key], str],
    *,
    paper: Callable[[Key], str | None] = lambda key: None,
) -> Figure:
    """Draw the groups as bars, side by side where the place is the same; marks are the paper's."""
    found = []
    for key, group in groups.items():
        published = first_number(paper(key))
        mark = None if published is None else published / 100
        share = group.accuracy.scaled(0.01)
        found.append(figures.Bar(place(key), key[-1], share.value, share.low, share.high, mark))
    return figures.bars(found, mark="the paper, on its models and data")
