"""Claims: a rule compares each sentence of the paper with an interval.

There are five verdicts, and no other:

- "confirmed" and "not confirmed": the 95 % interval of the paired difference excludes 0 on the
  claimed side, or on the other one, and for graded answers the exact test is below 0.05. For
  "alike within a margin": the interval lies inside the margin, or outside it.
- "no difference above x": neither. x is the larger end of the interval.
- "holds by construction": it follows from a definition, so a measurement cannot fail. It is counted
  apart from what was found.
- "not measurable here": fewer than six items, no interval, or a test bed that cannot decide. Tasks
  on which both strategies are above 95 % or below 5 % are left out of accuracy claims, and a model
  that was trained with masks shaped like a schedule does not decide between schedules.

The texts of a task with a judge are compared by their nats per token. A difference counts only if
nothing else is worse: length, distinct trigrams, the first 64 tokens, early ends.

Answers to one item under several seeds are one cluster and count as one item. If fewer than six
items differ, a bootstrap interval is too narrow, so the interval is exact. If none differs, the
rule of three bounds the difference on other items at 3 / n.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from wavefront.analysis import quality
from wavefront.analysis.quality import TextQuality
from wavefront.evaluation.trials import (
    TrialGroup,
    compare_groups,
    item_of,
    model_name,
    percent_gap,
)
from wavefront.results.interval import Estimate, Interval, bounds
from wavefront.results.paired import Comparison
from wavefront.results.table import Table

SIGNIFICANCE = 0.05
FEWEST = 6  # items; five items all point the same way by chance in 1 of 16 cases
SATURATED = (5.0, 95.0)  # %; a task outside of this decides nothing
COLUMNS = ["claim of the paper", "where", "found", "items", "p", "verdict"]
CONFIRMED, NOT_CONFIRMED = "confirmed", "not confirmed"
NO_DIFFERENCE, BY_CONSTRUCTION = "no difference above", "holds by construction"
NOT_MEASURABLE = "not measurable here"
VERDICTS = (CONFIRMED, NOT_CONFIRMED, NO_DIFFERENCE, BY_CONSTRUCTION, NOT_MEASURABLE)
TOO_FEW = f"{NOT_MEASURABLE}: fewer than {FEWEST} items"
NO_INTERVAL = f"{NOT_MEASURABLE}: there is no interval"
NATS_MARGIN = 0.02  # two texts whose nats differ by less are alike
TITLES = {
    "nats": "nats per token",
    "length": "tokens",
    "distinct": "distinct trigrams",
    "first_nats": "first 64: nats per token",
    "first_length": "first 64: tokens",
    "first_distinct": "first 64: distinct trigrams",
    "premature": "ends within 64 tokens",
}
# Which sign of a difference is worse. A likelier text is better only if nothing else is worse.
WORSE = {"nats": 1, "length": -1, "distinct": -1, "first_nats": 1, "first_length": -1,
         "first_distinct": -1, "premature": 1}  # fmt: skip
# Models trained with masks shaped like a schedule, and how.
TRAINED_FOR_SCHEDULES = {"ripple": "30 % of its training rows were masked from the left"}


class Claim(NamedTuple):
    """A sentence of the paper, what was found, and the verdict."""

    text: str
    where: str
    found: Estimate | bool
    items: int
    p: float | None
    verdict: str

    @property
    def word(self) -> str:
        """Return which of the five verdicts it is, without the number or the reason."""
        return verdict_word(self.verdict)


def verdict_word(verdict: str) -> str:
    """Return which of the five verdicts a text begins with."""
    return next(word for word in VERDICTS if verdict.startswith(word))


def no_difference(gap: Interval) -> str:
    """Return the verdict that says how large a difference is excluded."""
    return f"{NO_DIFFERENCE} {gap.excluded_above:.3g}"


def direction_verdict(gap: Estimate, items: int, claimed: str, *, p: float | None = None) -> str:
    """Decide whether a difference is "higher" or "lower" than 0, as claimed.

    Args:
        gap: The difference.
        items: The number of independent items.
        claimed: "higher" or "lower".
        p: The p-value of an exact test, which must be below 0.05 as well.
    """
    if gap is None:
        return NOT_MEASURABLE
    if items < FEWEST:
        return TOO_FEW
    if not isinstance(gap, Interval):
        return NO_INTERVAL
    if gap.low <= 0 <= gap.high or (p is not None and p >= SIGNIFICANCE):
        return no_difference(gap)
    return CONFIRMED if (gap.value < 0) == (claimed == "lower") else NOT_CONFIRMED


def margin_verdict(gap: Estimate, items: int, margin: float) -> str:
    """Decide whether a difference lies within a margin around 0."""
    if gap is None:
        return NOT_MEASURABLE
    if items < FEWEST:
        return TOO_FEW
    if not isinstance(gap, Interval):
        return NO_INTERVAL
    if gap.excluded_above <= margin:
        return CONFIRMED
    outside = gap.high < -margin or gap.low > margin
    return NOT_CONFIRMED if outside else no_difference(gap)


def accuracy_claim(
    text: str, where: str, *, base: TrialGroup, other: TrialGroup, claimed: str = "higher"
) -> Claim:
    """Claim that the other group has more correct answers than the base, or fewer.

    For a task with a judge: that its texts are better, or worse, by the rule of `compare_texts`.
    """
    if not base.results or not other.results:
        return Claim(text, where, None, 0, None, NOT_MEASURABLE)
    if base.judged:
        gap, verdict = compare_quality(base, other, claimed=claimed)
        return Claim(text, where, gap, base.items, None, _not_neutral(base, other) or verdict)
    found = _compare_unsaturated(base, other)
    if found is None:
        return Claim(text, where, None, base.items, None, _saturated_verdict())
    gap = gap_of_few(found)
    verdict = _not_neutral(base, other) or direction_verdict(
        gap, found.clusters, claimed, p=found.p
    )
    return Claim(text, where, gap, found.clusters, found.p, verdict)


def equal_accuracy_claim(
    text: str, where: str, *, base: TrialGroup, other: TrialGroup, margin: float = 2.0
) -> Claim:
    """Claim that two groups have equal accuracy, within a margin in percentage points.

    For a task with a judge: equal nats per token, within 0.02.
    If all texts are the same, the claim holds by construction, whatever the items are.
    """
    if _same_texts(base, other):
        reason = f"{BY_CONSTRUCTION}: the texts are the same"
        return Claim(text, where, 0.0, base.items, None, reason)
    if base.judged:
        gap = quality.differences(item_means(base), item_means(other))["nats"]
        verdict = _not_neutral(base, other) or margin_verdict(gap, base.items, NATS_MARGIN)
        return Claim(text, where, gap, base.items, None, verdict)
    found = _compare_unsaturated(base, other)
    if found is None:
        return Claim(text, where, None, base.items, None, _saturated_verdict())
    value, low, high = bounds(gap_of_few(found))
    unseen = 300 / found.clusters  # the rule of three
    gap = Interval.spanning(value, min(low, value - unseen), max(high, value + unseen))
    verdict = _not_neutral(base, other) or margin_verdict(gap, found.clusters, margin)
    return Claim(text, where, gap, found.clusters, found.p, verdict)


def compare_quality(
    base: TrialGroup, other: TrialGroup, *, claimed: str = "higher"
) -> tuple[Estimate, str]:
    """Return the difference in nats, and whether the other group's texts are better, as claimed."""
    one, two = item_means(base), item_means(other)
    gaps = quality.differences(one, two)
    gap = gaps["nats"]
    if base.items < FEWEST:
        return gap, TOO_FEW
    if _same_texts(base, other):
        return gap, f"{NO_DIFFERENCE} 0: the texts are the same"
    means = quality.estimates(one), quality.estimates(two)
    original = quality.estimates([*base.originals.values()])
    said = compare_texts(("base", "other"), gaps, means=means, original=original)
    if said.startswith(NOT_MEASURABLE):
        return gap, said
    if said in ("base", "other"):
        better = said == "other"
        return gap, CONFIRMED if better == (claimed == "higher") else NOT_CONFIRMED
    assert isinstance(gap, Interval)
    if said.startswith("mixed"):
        lost = said.partition("but worse ")[2]
        return gap, f"{NOT_CONFIRMED}: lower nats, but worse {lost}"
    return gap, no_difference(gap)


def item_means(group: TrialGroup) -> list[TextQuality]:
    """Return the quality of every item's texts; several seeds of one item are averaged."""
    found: dict[tuple[Any, ...], list[TextQuality]] = {}
    for key, one in group.quality.items():
        found.setdefault(item_of(key), []).append(one)
    return [some[0] if len(some) == 1 else _mean_quality(some) for some in found.values()]


def _mean_quality(some: Sequence[TextQuality]) -> TextQuality:
    """Return the mean of every measure over the texts that have a value."""
    means: list[Any] = []
    for column in zip(*some, strict=True):
        known = [float(one) for one in column if one is not None]
        means.append(sum(known) / len(known) if known else None)
    return TextQuality(*means)


def compare_texts(
    names: tuple[str, str],
    gaps: Mapping[str, Estimate],
    *,
    means: tuple[Mapping[str, Estimate], Mapping[str, Estimate]],
    original: Mapping[str, Estimate],
) -> str:
    """Return which of two strategies is better, by the rule that the page states.

    Args:
        names: The names of the two.
        gaps: The second minus the first, in pairs, by measure.
        means: The means of both.
        original: The means of the original's own texts.
    """
    gap = gaps["nats"]
    assert isinstance(gap, Interval)  # of at least six stories
    if gap.low <= 0 <= gap.high:
        return f"no difference in nats above {gap.excluded_above:.3f}"
    if all(bounds(one["nats"])[0] < bounds(original["nats"])[0] for one in means):
        return f"{NOT_MEASURABLE}: both are likelier than the original's own texts"
    first_is_better = gap.low > 0
    side = -1 if first_is_better else 1  # the sign of a difference that the better one loses by
    lost = [
        TITLES[name]
        for name, sign in WORSE.items()
        if isinstance(one := gaps[name], Interval)
        and (one.low > 0 if side * sign > 0 else one.high < 0)
    ]
    better = names[0] if first_is_better else names[1]
    return f"mixed: {better} has lower nats, but worse {', '.join(lost)}" if lost else better


def is_saturated(*groups: TrialGroup) -> bool:
    """Return whether all groups are above 95 % or all are below 5 %: they decide nothing."""
    shares = [group.accuracy.value for group in groups]
    return all(one > SATURATED[1] for one in shares) or all(one < SATURATED[0] for one in shares)


def _compare_unsaturated(base: TrialGroup, other: TrialGroup) -> Comparison | None:
    """Compare two groups on the tasks that can decide; None if there are none."""
    tasks = dict.fromkeys(one.trial.task for one in base.results)
    kept = [task for task in tasks if not is_saturated(_on(base, task), _on(other, task))]
    return compare_groups(_on(base, *kept), _on(other, *kept)) if kept else None


def _on(group: TrialGroup, *tasks: str) -> TrialGroup:
    return TrialGroup(tuple(one for one in group.results if one.trial.task in tasks))


def _saturated_verdict() -> str:
    low, high = SATURATED
    return f"{NOT_MEASURABLE}: every task is above {high:g} % or below {low:g} %"


def gap_of_few(found: Comparison) -> Interval:
    """Return the difference in points; it is wide enough if few pairs differ, or none."""
    if found.differences:
        return percent_gap(found)
    unseen = 300 / found.clusters  # the rule of three
    return Interval(0.0, -unseen, unseen)


def _not_neutral(base: TrialGroup, other: TrialGroup) -> str | None:
    """Return the verdict for a model that cannot decide between these schedules, if it is one."""
    kinds = {one.trial.strategy.partition("(")[0] for one in (*base.results, *other.results)}
    models = {model_name(one.trial.model) for one in (*base.results, *other.results)}
    biased = sorted(models & {*TRAINED_FOR_SCHEDULES})
    if len(kinds) < 2 or not biased:
        return None
    return f"{NOT_MEASURABLE}: {biased[0]} does not decide between schedules"


def _same_texts(base: TrialGroup, other: TrialGroup) -> bool:
    """Return whether two groups have the same texts, item by item."""
    one, two = _texts(base), _texts(other)
    return bool(one) and one == two


def _texts(group: TrialGroup) -> dict[tuple[str, str, int, str], str]:
    return {
        (one.trial.model, one.trial.task, one.trial.seed, item): text
        for one in group.results
        for item, text in one.texts.items()
    }


def direction_claim(text: str, where: str, *, gap: Estimate, items: int, claimed: str) -> Claim:
    """Claim that a measured difference is "higher" or "lower" than 0."""
    return Claim(text, where, gap, items, None, direction_verdict(gap, items, claimed))


def margin_claim(text: str, where: str, *, gap: Estimate, items: int, margin: float) -> Claim:
    """Claim that a measured difference lies within a margin around 0."""
    return Claim(text, where, gap, items, None, margin_verdict(gap, items, margin))


def exact_claim(
    text: str, where: str, *, holds: bool, items: int, construction: bool = False
) -> Claim:
    """Claim that something holds for every item or step. It is counted, not estimated.

    Args:
        text: The claim.
        where: Where it was counted.
        holds: Whether it held everywhere.
        items: The number of items.
        construction: Whether it follows from a definition, so that it can only fail by a defect.
    """
    word = BY_CONSTRUCTION if construction else CONFIRMED if items >= FEWEST else TOO_FEW
    return Claim(text, where, holds, items, None, word if holds else NOT_CONFIRMED)


def correlation_interval(value: float | None, items: int) -> Estimate:
    """Return a rank correlation with its 95 % interval, by Fisher's transformation."""
    if value is None or items < FEWEST or abs(value) >= 1:
        return value
    middle, half = math.atanh(value), 1.959964 / math.sqrt(items - 3)
    return Interval(value, math.tanh(middle - half), math.tanh(middle + half))


def claims_table(claims: Sequence[Claim]) -> Table:
    """Return the claims with their verdicts as a table."""
    note = (
        "Verdicts follow a rule on 95 % intervals (docs/experiments.md). A difference is the first "
        "strategy minus the second, in percentage points for accuracies. Items are independent: "
        "several seeds of one item are one."
    )
    rows = [list(claim) for claim in claims]
    return Table("What the paper claims, and what was found", COLUMNS, rows, note)


def count_verdicts(claims: Sequence[Claim]) -> str:
    """Return the number of claims by verdict in words; those by construction come last."""
    count = Counter(claim.word for claim in claims)
    apart = count.pop(BY_CONSTRUCTION, 0)
    words = {NO_DIFFERENCE: "without a difference"}
    parts = [f"{count[word]} {words.get(word, word)}" for word in VERDICTS if word in count]
    text = f"Of {len(claims) - apart} claims of the paper: {', '.join(parts) or 'none decided'}."
    return f"{text} {apart} more hold by construction." if apart else text
