"""Grids of trials, their groups, and the table and bars of correct answers made from them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from wavefront.analysis import figures, quality
from wavefront.analysis.figures import Figure, kind
from wavefront.analysis.quality import MEASURES
from wavefront.evaluation.trials import (
    Runner,
    Trial,
    TrialGroup,
    TrialResult,
    compare_groups,
    model_name,
    percent_gap,
)
from wavefront.paper.claims import (
    TITLES,
    Claim,
    accuracy_claim,
    compare_quality,
    item_means,
)
from wavefront.paper.published import data_name, first_number
from wavefront.results.table import Table

STRATEGIES = ("standard", "block(size=8)", "wavefront(size=8, radius=2)")
# The paper describes two ways to grow the wave, so both are evaluated.
EVALUATED = (*STRATEGIES, "wavefront(size=8, radius=2, grow='accumulate')")
BLOCK, WAVES = STRATEGIES[1], EVALUATED[2:]
BOTH_READINGS = (
    "Both readings of how the wave grows are evaluated. Decoding stops at the end of the answer, "
    "which gives the same text as filling the canvas."
)
SHARES_TEXT = (
    "Shares have Wilson's 95 % intervals; differences are in pairs, bootstrapped over items, with "
    "the exact McNemar test."
)
RESULTS = ("correct, %", "difference, points", "p (McNemar)", "items", "forwards",
           "tokens per forward", "seconds", "paper")  # fmt: skip
QUALITY_RESULTS = ("difference, nats", "better than the base", "items", "forwards",
                   "tokens per forward", "seconds")  # fmt: skip
NATS = "nats per token"
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

    By default, the strategies come from the scale.
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
    """Return model, the name of the data, strategy."""
    trial = result.trial
    return model_name(trial.model), data_name(trial.task), trial.strategy


def by_task(result: TrialResult) -> Key:
    """Return model, task, strategy."""
    return model_name(result.trial.model), result.trial.task, result.trial.strategy


def by_case(result: TrialResult) -> Key:
    """Return model, the name of the data, the other varying setting, and strategy."""
    trial = result.trial
    return model_name(trial.model), data_name(trial.task), trial.case, trial.strategy


def spec_with_case(trial: Trial) -> str:
    """Return the strategy with the other varying setting as an extra option."""
    return f"{trial.strategy[:-1]}, {trial.case})" if trial.case else trial.strategy


def pool(groups: Groups, *tail: str) -> TrialGroup:
    """Merge all groups whose keys have this ending."""
    chosen = [group for key, group in groups.items() if key[-len(tail) :] == tail]
    return TrialGroup(tuple(one for group in chosen for one in group.results))


def wave_claims(groups: Groups, text: str, *base: str) -> list[Claim]:
    """Claim for each wave that it has more correct answers than the base, all else pooled.

    The base is the end of a key: the strategy, possibly preceded by the other varying setting.
    """
    one = pool(groups, *base)
    return [
        accuracy_claim(text, spec, base=one, other=pool(groups, *base[:-1], spec)) for spec in WAVES
    ]


def first_block(strategies: Iterable[str]) -> str | None:
    """Return the first block strategy, which the paper compares with, or None."""
    return next((spec for spec in strategies if kind(spec) == "block"), None)


def block_key(groups: Groups, key: Key) -> Key | None:
    """Return the key that differs from this one only in having the block strategy."""
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
    """Return the table of correct answers and their cost; with a judge, that of the texts."""
    if any(group.judged for group in groups.values()):
        return _quality_table(quality_title(title), groups, columns, base=base, note=note)
    rows: list[list[Any]] = []
    for key, group in groups.items():
        other = base(groups, key)
        found = None if other is None else compare_groups(groups[other], group)
        compared = (percent_gap(found), found.p) if found else (None, None)
        cost = (group.items, group.forwards, group.tokens_per_forward, group.seconds)
        rows.append([*key, group.accuracy, *compared, *cost, paper(key)])
    return Table(title, [*columns, *RESULTS], rows, note)


def quality_title(title: str) -> str:
    """Return the title of a table or page of correct answers, for a task with a judge."""
    return title.replace("Correct answers", "Quality of texts").replace(
        "correct answers", "quality of texts"
    )


def _quality_table(
    title: str,
    groups: Groups,
    columns: Sequence[str],
    *,
    base: Callable[[Groups, Key], Key | None],
    note: str,
) -> Table:
    """Return every measure of the texts, the difference in nats to the base, and the cost."""
    rows: list[list[Any]] = []
    for key, group in groups.items():
        means = quality.estimates(item_means(group))
        other = base(groups, key)
        gap, better = (None, None) if other is None else compare_quality(groups[other], group)
        cost = (group.items, group.forwards, group.tokens_per_forward, group.seconds)
        rows.append([*key, *(means[name] for name in MEASURES), gap, better, *cost])
    own = quality.estimates([*next(iter(groups.values())).originals.values()])
    name = [*[None] * (len(columns) - 1), "the original's own texts"]
    rows.append([*name, *(own[name] for name in MEASURES), *[None] * len(QUALITY_RESULTS)])
    return Table(title, [*columns, *TITLES.values(), *QUALITY_RESULTS], rows, note)


def accuracy_bars(
    groups: Groups,
    place: Callable[[Key], str],
    *,
    paper: Callable[[Key], str | None] = lambda key: None,
) -> Figure:
    """Draw the groups as bars, grouped by place; marks show the paper's numbers."""
    found = []
    for key, group in groups.items():
        published = None if group.judged else first_number(paper(key))
        mark = None if published is None else published / 100
        share = group.score.scaled(0.01)
        found.append(figures.Bar(place(key), key[-1], share.value, share.low, share.high, mark))
    if any(group.judged for group in groups.values()):
        return figures.bars(found, ylabel=NATS)
    return figures.bars(found, mark="the paper, on its models and data")
