"""Claims: a rule compares each sentence of the paper with an interval.

Direction (higher, lower): "agrees" or "disagrees" when the 95 % interval of the paired difference
excludes 0 and, for graded answers, the exact McNemar test is below 0.05; otherwise "undecided".
Equality: "agrees" when the interval lies within the margin, "disagrees" when it lies outside.
Where no pair differs, other items may; by the rule of three, up to 3 in so many.
Fewer than six items decide nothing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from wavefront.evaluation.trials import TrialGroup, compare_groups, percent_gap
from wavefront.results.interval import Estimate, Interval, bounds
from wavefront.results.table import Table

SIGNIFICANCE = 0.05
FEWEST = 6  # items: five that all point one way do so by chance in 1 of 16 tries
COLUMNS = ["claim of the paper", "where", "found", "items", "p", "verdict"]
NOT_MEASURABLE = "not measurable here"
TOO_FEW = f"undecided: fewer than {FEWEST} items"


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
        """Return the verdict's first word: agrees, disagrees, undecided or not."""
        return self.verdict.partition(":")[0].partition(" ")[0]


def direction_verdict(gap: Estimate, items: int, claimed: str) -> str:
    """Decide whether a difference is "higher" or "lower" than 0, as claimed."""
    if gap is None:
        return NOT_MEASURABLE
    if items < FEWEST:
        return TOO_FEW
    value, low, high = bounds(gap)
    if low <= 0 <= high:
        return "undecided: the interval holds 0"
    return "agrees" if (value < 0) == (claimed == "lower") else "disagrees"


def margin_verdict(gap: Estimate, items: int, margin: float) -> str:
    """Decide whether a difference lies within a margin around 0."""
    if gap is None:
        return NOT_MEASURABLE
    if items < FEWEST:
        return TOO_FEW
    _, low, high = bounds(gap)
    if -margin <= low and high <= margin:
        return "agrees"
    if high < -margin or low > margin:
        return "disagrees"
    return f"undecided: the interval reaches beyond {margin:g} and does not lie beyond it"


def accuracy_claim(
    text: str, where: str, *, base: TrialGroup, other: TrialGroup, claimed: str = "higher"
) -> Claim:
    """Claim that the other group has more correct answers than the base, or fewer."""
    if not base.results or not other.results:
        return Claim(text, where, None, 0, None, NOT_MEASURABLE)
    found = compare_groups(base, other)
    gap, p = percent_gap(found), found.mcnemar.p if found.mcnemar else None
    verdict = direction_verdict(gap, found.count, claimed)
    if verdict in ("agrees", "disagrees") and p is not None and p >= SIGNIFICANCE:
        verdict = f"undecided: McNemar's p is not below {SIGNIFICANCE}"
    return Claim(text, where, gap, found.count, p, verdict)


def equal_accuracy_claim(
    text: str, where: str, *, base: TrialGroup, other: TrialGroup, margin: float = 2.0
) -> Claim:
    """Claim that two groups have as many correct answers, within a margin in points of percent."""
    found = compare_groups(base, other)
    value, low, high = bounds(percent_gap(found))
    unseen = 300 / found.count  # the rule of three
    gap = Interval.spanning(value, min(low, value - unseen), max(high, value + unseen))
    p = found.mcnemar.p if found.mcnemar else None
    return Claim(text, where, gap, found.count, p, margin_verdict(gap, found.count, margin))


def direction_claim(text: str, where: str, *, gap: Estimate, items: int, claimed: str) -> Claim:
    """Claim that a measured difference is "higher" or "lower" than 0."""
    return Claim(text, where, gap, items, None, direction_verdict(gap, items, claimed))


def margin_claim(text: str, where: str, *, gap: Estimate, items: int, margin: float) -> Claim:
    """Claim that a measured difference lies within a margin around 0."""
    return Claim(text, where, gap, items, None, margin_verdict(gap, items, margin))


def exact_claim(text: str, where: str, *, holds: bool, items: int) -> Claim:
    """Claim that something holds for every item or step; it is counted, not estimated."""
    return Claim(text, where, holds, items, None, "agrees" if holds else "disagrees")


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
        "named less the second, in points of percent where answers are counted."
    )
    rows = [list(claim) for claim in claims]
    return Table("What the paper claims, and what was found", COLUMNS, rows, note)


def count_verdicts(claims: Sequence[Claim]) -> str:
    """Return a sentence with the number of claims by verdict."""
    count = Counter(claim.word for claim in claims)
    words = {"agrees": "agree", "disagrees": "disagree", "undecided": "are undecided"}
    parts = [f"{count[word]} {verb}" for word, verb in words.items()]
    if count["not"]:
        parts.append(f"{count['not']} cannot be measured here")
    return f"Of {len(claims)} claims of the paper, {', '.join(parts)}."
