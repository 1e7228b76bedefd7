"""Groups: cells that count as one row of a table, and tables of right answers made of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from wavefront.paper._lab import Measured, short
from wavefront.paper._printed import dataset
from wavefront.paper.studies._bench import base_of
from wavefront.results.bootstrap import spanning
from wavefront.results.paired import Comparison, bootstrap, compare
from wavefront.results.statistics import share
from wavefront.results.table import Interval, Table

RESULTS = ("right, %", "less base, %", "p (McNemar)", "items", "forwards", "tokens per forward",
           "seconds", "paper")  # fmt: skip
Key = tuple[str, ...]
Groups = Mapping[Key, "Group"]


@dataclass(frozen=True)
class Group:
    """Cells of one kind: a strategy over several tasks, models or seeds."""

    cells: tuple[Measured, ...]

    @property
    def right(self) -> dict[tuple[Any, ...], bool]:
        """By item. What else varies is no part of the name, so that it can be compared over."""
        return {
            (one.cell.model, one.cell.task, one.cell.seed, item): verdict
            for one in self.cells
            for item, verdict in one.right.items()
        }

    @property
    def accuracy(self) -> Interval:
        """Right answers in %, with Wilson's interval."""
        right = self.right
        found = share(sum(right.values()), len(right))
        return spanning(found.value, found.low, found.high, scale=100)

    @property
    def forwards(self) -> float | None:
        """Of an item, on the mean."""
        told = [(one.cost["forwards"], len(one.right)) for one in self.cells]
        known = [(f, n) for f, n in told if f is not None]
        return sum(f * n for f, n in known) / sum(n for _, n in known) if known else None

    @property
    def rate(self) -> float | None:
        """Visible tokens for each forward."""
        tokens = sum(one.cost["tokens"] for one in self.cells)
        forwards = self.forwards
        return tokens / (forwards * len(self.right)) if forwards else None

    @property
    def seconds(self) -> float:
        return round(sum(one.cost["seconds"] for one in self.cells), 1)


def grouped(measured: Iterable[Measured], key: Callable[[Measured], Key]) -> dict[Key, Group]:
    """Groups by a key, in the order of the cells."""
    found: dict[Key, list[Measured]] = {}
    for one in measured:
        found.setdefault(key(one), []).append(one)
    return {name: Group(tuple(cells)) for name, cells in found.items()}


def by_dataset(one: Measured) -> Key:
    """Model, the paper's data set, strategy."""
    return short(one.cell.model), dataset(one.cell.task), one.cell.strategy


def by_task(one: Measured) -> Key:
    return short(one.cell.model), one.cell.task, one.cell.strategy


def by_case(one: Measured) -> Key:
    """Model, the paper's data set, what else varies, strategy."""
    return short(one.cell.model), dataset(one.cell.task), one.cell.case, one.cell.strategy


def pool(groups: Groups, *tail: str) -> Group:
    """All groups whose keys end like this, as one."""
    chosen = [group for key, group in groups.items() if key[-len(tail) :] == tail]
    return Group(tuple(cell for group in chosen for cell in group.cells))


def gap(base: Group, other: Group) -> Comparison:
    """The other less the base, in pairs."""
    return compare(base.right, other.right)


def points(found: Comparison) -> Interval:
    """A difference in points of percent."""
    return spanning(found.gap.mean, found.gap.low, found.gap.high, scale=100)


def booted(values: Sequence[float], *, scale: float = 1.0) -> Interval | None:
    """The mean of numbers, one an item, with its bootstrap interval; None of none."""
    if not values:
        return None
    found = bootstrap(list(values))
    return spanning(found.mean, found.low, found.high, scale=scale)


def base_key(groups: Groups, key: Key) -> Key | None:
    """The block strategy among those that differ from this one by the strategy alone."""
    beside = [other[-1] for other in groups if other[:-1] == key[:-1]]
    base = base_of(beside)
    return None if base is None or base == key[-1] else (*key[:-1], base)


def accuracy_table(
    title: str,
    groups: Groups,
    columns: Sequence[str],
    *,
    paper: Callable[[Key], str | None] = lambda key: None,
    base: Callable[[Groups, Key], Key | None] = base_key,
    note: str = "",
) -> Table:
    """The one table of right answers and their cost; the last part of a key is the strategy."""
    rows: list[list[Any]] = []
    for key, group in groups.items():
        other = base(groups, key)
        found = None if other is None else gap(groups[other], group)
        test = found.mcnemar if found else None
        compared = (points(found) if found else None, test.p if test else None)
        cost = (len(group.right), group.forwards, group.rate, group.seconds)
        rows.append([*key, group.accuracy, *compared, *cost, paper(key)])
    return Table(title, [*columns, *RESULTS], rows, note)


def as_numbers(table: Table) -> list[dict[str, Any]]:
    """The rows of a table by their columns."""
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows]
