"""Claims: what the paper says, held against an interval by a rule, never by hand.

higher, lower: "agrees" or "disagrees" when the 95 % interval of the paired difference is clear of 0
and, for right and wrong answers, the exact McNemar test is below 0.05 too; otherwise undecided.
same: "agrees" when the interval lies within the margin, "disagrees" when it lies outside all of it.
Where no pair differs, other items still might: by the rule of three, up to 3 in so many.
Fewer than six items decide nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from wavefront.paper._groups import Group, gap, points
from wavefront.results.bootstrap import FEWEST, Found, ends, spanning, verdict
from wavefront.results.table import Table

CHANCE = 0.05
COLUMNS = ["claim of the paper", "where", "found", "items", "p", "verdict"]


class Claim(NamedTuple):
    """A sentence of the paper, what was found, and whether that bears it out."""

    text: str
    where: str
    found: Found | bool
    items: int
    p: float | None
    verdict: str

    @property
    def word(self) -> str:
        """agrees, disagrees, undecided or not."""
        return self.verdict.partition(":")[0].partition(" ")[0]


def directed(text: str, where: str, base: Group, other: Group, claimed: str = "higher") -> Claim:
    """That the other has more right answers than the base, or fewer."""
    if not base.cells or not other.cells:
        return Claim(text, where, None, 0, None, "not measurable here")
    found = gap(base, other)
    p = found.mcnemar.p if found.mcnemar else None
    said = verdict(points(found), found.count, claimed=claimed)
    if said in ("agrees", "disagrees") and p is not None and p >= CHANCE:
        said = f"undecided: McNemar's p is not below {CHANCE}"
    return Claim(text, where, points(found), found.count, p, said)


def alike(text: str, where: str, base: Group, other: Group, margin: float = 2.0) -> Claim:
    """That two have as many right answers, but for so many points of percent."""
    found = gap(base, other)
    rest = 300 / found.count  # the rule of three
    value, low, high = ends(points(found))
    wide = spanning(value, min(low, value - rest), max(high, value + rest))
    p = found.mcnemar.p if found.mcnemar else None
    return Claim(text, where, wide, found.count, p, within(wide, found.count, margin))


def within(found: Found, items: int, margin: float) -> str:
    """The verdict on a difference that is claimed to be small."""
    if found is None:
        return "not measurable here"
    if items < FEWEST:
        return f"undecided: fewer than {FEWEST} items"
    _, low, high = ends(found)
    if -margin <= low and high <= margin:
        return "agrees"
    if high < -margin or low > margin:
        return "disagrees"
    return f"undecided: the interval reaches beyond {margin:g} and does not lie beyond it"


def measured(text: str, where: str, found: Found, items: int, claimed: str) -> Claim:
    """That a difference, measured elsewhere with its interval, is "higher" or "lower" than 0."""
    return Claim(text, where, found, items, None, verdict(found, items, claimed=claimed))


def exact(text: str, where: str, holds: bool, items: int) -> Claim:
    """That something holds of every item or step, counted and not estimated."""
    return Claim(text, where, holds, items, None, "agrees" if holds else "disagrees")


def table(claims: Iterable[Claim]) -> Table:
    """The claims with their verdicts."""
    rows = [list(claim) for claim in claims]
    note = (
        "Verdicts follow a rule on 95 % intervals (docs/experiments.md). A difference is the first "
        "named less the second, in points of percent where answers are counted."
    )
    return Table("What the paper claims, and what was found", COLUMNS, rows, note)
