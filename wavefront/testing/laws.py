"""Laws of a strategy, checked on synthetic scores in which ties dominate."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from wavefront.core import spec
from wavefront.core.canvas import Canvas
from wavefront.core.masks import FAR
from wavefront.core.state import Config, candidates, decide_and_write, start
from wavefront.core.strategy import Decision, Stats, Strategy, View
from wavefront.testing.simulation import (
    MASK,
    PAD,
    PLACES,
    board,
    decisions,
    each_run,
    fill,
    of_row,
    simulate,
    to_meta,
)


class LawBroken(AssertionError):
    """A strategy breaks a law that the engine, the caches or the server stand on."""


def require(holds: bool, sentence: str) -> None:
    if not holds:
        raise LawBroken(sentence)


def _sayings(strategy: Strategy) -> Iterator[tuple[View, Decision]]:
    """Every view of every run, and what the strategy says of it before `settle` corrects it."""
    for canvas, scores, steps in each_run(strategy):
        for before, view, _, _ in simulate(strategy, canvas, scores, steps):
            yield view, strategy.step(view, before.state)


def commits_only_masked(strategy: Strategy) -> None:
    """commit ⊆ masked, as the strategy says it and before the engine would correct it."""
    for view, said in _sayings(strategy):
        require(
            not bool((said.commit & ~view.masked).any()),
            f"{strategy!r} commits a place that is not masked.",
        )


def looks_where_it_says(strategy: Strategy) -> None:
    """The scope is masked; a commit outside it comes from a reserve, when the scope is used up."""
    for view, said in _sayings(strategy):
        require(
            not bool((said.scope & ~view.masked).any()),
            f"{strategy!r} declares a scope in which a place is already decided.",
        )
        outside = (said.commit & ~said.scope).any(-1)
        unused = (said.scope & ~said.commit).any(-1)
        require(
            not bool((outside & unused).any()),
            f"{strategy!r} commits outside its scope while the scope has places left.",
        )


def keeps_its_front_small(strategy: Strategy) -> None:
    """The front holds undecided places only, and no more of them than `size` says."""
    size = getattr(strategy, "size", FAR)
    for canvas, scores, steps in each_run(strategy):
        for _, _, decision, rows in simulate(strategy, canvas, scores, steps):
            front = strategy.front(decision.state)
            if front is None:
                return
            require(
                # At its end a row is completed by the engine, whatever stood on the front.
                not bool((front & ~rows.canvas.masked & ~rows.done[:, None]).any()),
                f"{strategy!r} keeps a decided place on its front.",
            )
            require(bool((front.sum(-1) <= size).all()), f"{strategy!r}: the front exceeds {size}.")


def declares_that_it_revises(strategy: Strategy) -> None:
    """A strategy that takes back says `revises = True`, or idle steps would be cut short."""
    for _, said in _sayings(strategy):
        require(
            said.remask is None or strategy.revises,
            f"{strategy!r} takes back and does not declare revises = True.",
        )


def makes_progress(strategy: Strategy) -> None:
    """A step that is not idle leaves more decided, or more final, unless it leaves it to chance."""
    for canvas, scores, steps in each_run(strategy):
        for index, run in enumerate(simulate(strategy, canvas, scores, steps)):
            before, _, decision, after = run
            if strategy.is_noop_step(PLACES, steps, index):
                continue
            gained = decision.commit.sum(-1)
            if decision.remask is not None:
                gained = gained - decision.remask.sum(-1)
            # Taking much back is progress too, when something else can then never be taken back.
            moved = (gained > 0) | (after.final & ~before.final).any(-1)
            owed = (strategy.selector.min_commits(before.progress) > 0) & (before.progress.left > 0)
            require(bool(moved[owed].all()), f"{strategy!r} stands still at step {index}.")


def fills_everything(strategy: Strategy) -> None:
    """Every place is decided at the end; once each, if the strategy never takes back."""
    for canvas, scores, steps in each_run(strategy):
        count = torch.zeros_like(canvas.tokens)
        taken = torch.zeros_like(canvas.tokens)
        masked = canvas.masked
        for _, _, decision, rows in simulate(strategy, canvas, scores, steps):
            count, masked = count + decision.commit, rows.canvas.masked
            if decision.remask is not None:
                taken = taken + decision.remask
        require(not bool(masked.any()), f"{strategy!r} leaves places undecided.")
        filled = (canvas.slot >= 0).long()
        require(
            bool((count - taken == filled).all()),
            f"{strategy!r} commits a place twice without taking it back.",
        )


def keeps_its_word(strategy: Strategy) -> None:
    """Nothing declared final is ever taken back, and no place flips more often than `cap` says."""
    cap = getattr(strategy, "cap", FAR)
    for canvas, scores, steps in each_run(strategy):
        final = canvas.known
        flips = torch.zeros_like(canvas.tokens)
        for before, view, decision, rows in simulate(strategy, canvas, scores, steps):
            said = strategy.step(view, before.state)
            if said.remask is not None:
                require(
                    not bool((said.remask & final).any()),
                    f"{strategy!r} takes back what was final.",
                )
                flips = flips + (decision.remask if decision.remask is not None else 0)
            final = rows.final
        require(bool((flips <= cap).all()), f"{strategy!r} flips a place more than {cap} times.")


def keeps_the_state_shape(strategy: Strategy) -> None:
    """The state keeps its structure, shapes and dtypes: a captured graph has room for no other."""
    for canvas, scores, steps in each_run(strategy):
        try:
            for before, _, decision, _ in simulate(strategy, canvas, scores, steps):
                old, new = _form(before.state), _form(decision.state)
                require(old == new, f"{strategy!r} changes the form of its state, {old} to {new}.")
        except (RuntimeError, ValueError, TypeError) as error:
            raise LawBroken(f"{strategy!r} changes the form of its state: {error}") from error


def _form(state: Any) -> Any:
    if isinstance(state, Tensor):
        return tuple(state.shape), state.dtype
    return type(state).__name__, tuple(_form(part) for part in state)


def rows_are_independent(strategy: Strategy) -> None:
    """A row alone decodes as in company, so permuting the rows permutes the result."""
    for canvas, scores, steps in each_run(strategy):
        together = decisions(strategy, canvas, scores, steps)
        for row in range(canvas.tokens.shape[0]):
            alone = Canvas(*(t[row : row + 1] for t in canvas))
            found = decisions(strategy, alone, of_row(scores, row), steps, first_seed=row)
            require(
                all(
                    torch.equal(one.commit, all_rows.commit[row : row + 1])
                    for one, all_rows in zip(found, together, strict=True)
                ),
                f"{strategy!r}: a row decodes differently alone than in a batch.",
            )


def is_deterministic(strategy: Strategy) -> None:
    """The same input gives the same decisions."""
    for canvas, scores, steps in each_run(strategy):
        one = decisions(strategy, canvas, scores, steps)
        two = decisions(strategy, canvas, scores, steps)
        require(
            all(bool((a.commit == b.commit).all()) for a, b in zip(one, two, strict=True)),
            f"{strategy!r} decides differently on equal input.",
        )


def padding_changes_nothing(strategy: Strategy) -> None:
    """Padding to the left and right of every row moves the decisions and changes none."""
    for canvas, scores, steps in each_run(strategy):
        left, right = 5, 3
        pads = (PAD, False, False, -1)
        wide = Canvas(
            *(
                torch.nn.functional.pad(t, (left, right), value=pad)
                for t, pad in zip(canvas, pads, strict=True)
            )
        )
        narrow = decisions(strategy, canvas, scores, steps)
        padded = decisions(strategy, wide, scores, steps)
        require(
            all(
                bool((a.commit == b.commit[:, left:-right]).all())
                for a, b in zip(narrow, padded, strict=True)
            ),
            f"{strategy!r} lets padding change its choice.",
        )


def reads_only_its_reach(strategy: Strategy) -> None:
    """Values outside `reach` may be anything: poison them, and nothing changes."""
    for canvas, scores, steps in each_run(strategy):
        config = Config(strategy=strategy, fixed_budget=True)
        for before, _, decision, _ in simulate(strategy, canvas, scores, steps):
            wanted = candidates(config, before)
            noise = torch.rand(before.score.shape) * 2 - 0.5
            poison = noise.masked_fill(noise > 1.2, float("nan"))
            parts = (None if s is None else torch.where(wanted, s, poison) for s in before.stats)
            stats = Stats(*parts)  # pyright: ignore[reportArgumentType]
            rows = before._replace(
                score=torch.where(wanted, before.score, poison),
                stats=stats,
                proposal=torch.where(wanted, before.proposal, 9),
            )
            no = torch.zeros(canvas.tokens.shape[0], dtype=torch.bool)
            _, _, again = decide_and_write(config, rows, MASK, bad=no, void=no)
            same_state = _same(decision.state, again.state)
            require(
                bool((again.commit == decision.commit).all()) and same_state,
                f"{strategy!r} reads a place that it did not declare in reach.",
            )
            require(
                not bool((decision.commit & ~wanted).any()),
                f"{strategy!r} commits a place that it did not declare in reach.",
            )


def _same(one: Any, two: Any) -> bool:
    if isinstance(one, Tensor):
        return bool(torch.equal(one, two))
    return all(_same(a, b) for a, b in zip(one, two, strict=True))


def runs_on_meta(strategy: Strategy) -> None:
    """No host sync and no shape that depends on data: the meta device has no data to ask."""
    canvas = Canvas(*(t.to("meta") for t in board(0)))
    config = Config(strategy=strategy)
    column = torch.zeros(canvas.tokens.shape[0], dtype=torch.long, device="meta")
    rows = start(board(0), config, [PLACES] * 4, [0] * 4)
    rows = to_meta(rows)
    try:
        wanted = candidates(config, rows)
        rows = fill(rows, torch.rand(canvas.tokens.shape, device="meta"))
        decide_and_write(config, rows, MASK, bad=column.bool(), void=column.bool())
    except (RuntimeError, NotImplementedError) as error:
        raise LawBroken(
            f"{strategy!r} waits for the device or has a shape that depends on data: {error}"
        ) from error
    require(wanted.shape == canvas.masked.shape, f"{strategy!r}: reach is not (B, L).")


def repr_is_a_spec(strategy: Strategy) -> None:
    """`resolve(repr(s)) == s`, so that a result file can rebuild what made it."""
    again = spec.resolve(repr(strategy), "strategies")
    require(again == strategy, f"{strategy!r} does not come back from its repr: {again!r}.")
