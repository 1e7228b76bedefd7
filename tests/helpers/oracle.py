"""The paper's strategies for one row, in sets and `sorted`: slow, and easy to compare with it.

This module follows only the paper and the specification, and imports nothing from the package. Do
not change it to match the tensor code: if they disagree, read the paper.

References: "line n" is a line of Algorithm 1, "eq. n" a numbered equation of section 3 (1 the
wavefront set, 2 the score, 3 the quota, 4 the expansion), "item n" the list in section 3.2,
"spec" section 1 of the specification.

Positions are integers. Some are known (prompt, given text, then commits) and some are masked. The
rest is padding, which still counts in a distance between positions (spec, infilling). Scores are
compared as given; use values that float32 holds exactly.
"""

from collections.abc import Callable, Iterable, Iterator
from math import isnan
from typing import Literal, NamedTuple

Scores = Callable[[int, frozenset[int]], dict[int, float]]
"""(step from 0, positions masked now) -> score of each of them; NaN and -inf are allowed.

Called once per step with a quota, never at a zero quota (spec: the forward pass is skipped)."""

Mutation = Literal["fresh-prune", "ties-right", "reserve-first"]


class Case(NamedTuple):
    """One row: the known positions, the positions to fill (ascending; slot = index), the steps."""

    known: frozenset[int]
    masked: tuple[int, ...]
    steps: int


class Record(NamedTuple):
    """One step: its quota, its scope, its commits in order, and W_t."""

    quota: int
    scope: frozenset[int]
    commit: tuple[int, ...]
    front_after: frozenset[int]  # empty for a strategy that keeps no front


def even(length: int, steps: int, step: int) -> int:
    """Quota k_t of `step` = t - 1 when `length` positions are spread over `steps` (eq. 3)."""
    base = length // steps  # line 3: k_base
    extra = length % steps  # line 3: extra
    return base + (1 if step + 1 <= extra else 0)  # line 5: [t <= extra], with t = step + 1


def ranked(places: Iterable[int], score: dict[int, float], *, right: bool = False) -> list[int]:
    """Best first (spec, order and ties): higher score, then smaller position.

    NaN and -inf share the last rank: among themselves only the position decides.
    `right` is the wrong rule of the mutation "ties-right".
    """

    def key(place: int) -> tuple[bool, float, int]:
        value = score[place]
        last = isnan(value) or value == float("-inf")
        return last, 0.0 if last else -value, -place if right else place

    return sorted(places, key=key)


def near(place: int, others: Iterable[int], radius: int) -> bool:
    """Return whether dist(place, others) <= R, the distance to the nearest one (eq. 1)."""
    return any(abs(place - other) <= radius for other in others)


def wavefront(
    case: Case,
    scores: Scores,
    *,
    size: int = 8,
    radius: int = 2,
    grow: Literal["rebuild", "accumulate"] = "rebuild",
    mutate: Mutation | None = None,
) -> Iterator[Record]:
    """Run Algorithm 1. `mutate` breaks one rule on purpose, to show that tests detect it."""
    if grow not in ("rebuild", "accumulate"):
        raise ValueError(f"grow={grow!r}: 'rebuild' or 'accumulate'")
    if mutate not in (None, "fresh-prune", "ties-right", "reserve-first"):
        raise ValueError(f"mutate={mutate!r}: no such mutation")
    right = mutate == "ties-right"

    known = set(case.known)  # section 3.1: C_0 is the prompt context
    masked = set(case.masked)  # line 2
    front = set(case.masked[:size])  # line 2; spec, wavefront 1: W_0, the first F masked positions

    for step in range(case.steps):  # line 4
        quota = even(len(case.masked), case.steps, step)  # line 5, eq. 3
        scope = frozenset(front)  # W_{t-1}
        if quota == 0:  # spec, quota: commits nothing, leaves the front unchanged
            yield Record(quota, scope, (), frozenset(front))
            continue

        score = scores(step, frozenset(masked))  # lines 6 and 7, eq. 2

        # Select (item 2, which Algorithm 1 leaves out): the k_t best of W_{t-1}, then
        # the best masked positions outside. The front comes first whatever the scores (spec).
        inside = ranked(front, score, right=right)
        fallback = ranked(masked - front, score, right=right)
        order = fallback + inside if mutate == "reserve-first" else inside + fallback
        commit = order[:quota]

        masked -= set(commit)  # line 8
        known |= set(commit)  # line 8: C_t, eq. 1; the prompt stays in it (spec, wavefront 3)

        # Expand (line 9, item 3).
        if grow == "rebuild":  # eqs. 1 and 4: masked positions within R of any known one
            grown = {place for place in masked if near(place, known, radius)}
        else:  # line 9 in the spec: the rest of the front, and the positions near the commits
            left = front - set(commit)
            grown = left | {place for place in masked if near(place, commit, radius)}

        # Prune (line 10, item 4) by the cached scores, those from before the commit.
        if mutate == "fresh-prune" and masked:
            score = scores(step + 1, frozenset(masked))
        front = set(ranked(grown, score, right=right)[:size])

        yield Record(quota, scope, tuple(commit), frozenset(front))


def standard(case: Case, scores: Scores) -> Iterator[Record]:
    """Section 2.2; spec: the k_t best of all masked positions."""
    masked = set(case.masked)
    for step in range(case.steps):
        quota = even(len(case.masked), case.steps, step)  # eq. 3
        scope = frozenset(masked)
        commit = ranked(scope, scores(step, scope))[:quota] if quota else []
        masked -= set(commit)
        yield Record(quota, scope, tuple(commit), frozenset())


def block_quotas(length: int, steps: int, size: int) -> list[int]:
    """The quota of each of the `steps`, blocks one after the other (spec, block)."""
    blocks = [range(start, min(start + size, length)) for start in range(0, length, size)]
    if steps < len(blocks):
        raise ValueError(f"{steps} steps for {len(blocks)} blocks: needs at least one each")
    quotas: list[int] = []
    for index, slots in enumerate(blocks):
        own = even(
            steps, len(blocks), index
        )  # T spread over the blocks, the remainder to the first
        quotas += [even(len(slots), own, step) for step in range(own)]
    return quotas or [0] * steps  # no positions, so no block


def block(case: Case, scores: Scores, *, size: int = 8) -> Iterator[Record]:
    """Section 2.3; spec: the best of the leftmost unfinished block, blocks counted by slot.

    A block with fewer positions than steps ends in zero quotas. It is finished by then, so the
    scope of those steps is already the next block.
    """
    masked = set(case.masked)
    block_of = {place: slot // size for slot, place in enumerate(case.masked)}
    for step, quota in enumerate(block_quotas(len(case.masked), case.steps, size)):
        current = min((block_of[place] for place in masked), default=None)
        scope = frozenset(place for place in masked if block_of[place] == current)
        commit = ranked(scope, scores(step, frozenset(masked)))[:quota] if quota else []
        masked -= set(commit)
        yield Record(quota, scope, tuple(commit), frozenset())


def left_to_right(case: Case, scores: Scores) -> Iterator[Record]:
    """Spec: the k_t leftmost masked positions, whatever `scores` says; they are the scope."""
    masked = set(case.masked)
    for step in range(case.steps):
        quota = even(len(case.masked), case.steps, step)  # eq. 3
        commit = sorted(masked)[:quota]
        masked -= set(commit)
        yield Record(quota, frozenset(commit), tuple(commit), frozenset())
