"""Laws that need no model, checked on synthetic scores with many ties."""

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
    LENGTH,
    MASK,
    PAD,
    decisions,
    fill,
    random_canvas,
    row_scores,
    runs,
    simulate,
    to_meta,
)


class LawBroken(AssertionError):
    """A strategy breaks a law that the engine, the caches or the server rely on."""


def require(holds: bool, message: str) -> None:
    """Raise `LawBroken` with the message unless the law holds."""
    if not holds:
        raise LawBroken(message)


def _raw_decisions(strategy: Strategy) -> Iterator[tuple[View, Decision]]:
    """Yield every view of every run, and the strategy's decision before the rules are applied."""
    for canvas, scores, steps in runs(strategy):
        for before, view, _, _ in simulate(strategy, canvas, scores, steps=steps):
            yield view, strategy.step(view, before.state)


def commits_only_masked(strategy: Strategy) -> None:
    """Only masked positions are committed, before the engine applies its rules."""
    for view, decision in _raw_decisions(strategy):
        require(
            not bool((decision.commit & ~view.masked).any()),
            f"{strategy!r} commits a position that is not masked.",
        )


def commits_candidates_first(strategy: Strategy) -> None:
    """Candidates are masked, and positions outside are committed only after all candidates."""
    for view, decision in _raw_decisions(strategy):
        require(
            not bool((decision.candidates & ~view.masked).any()),
            f"{strategy!r} declares a candidate that is already decided.",
        )
        outside = (decision.commit & ~decision.candidates).any(-1)
        unused = (decision.candidates & ~decision.commit).any(-1)
        require(
            not bool((outside & unused).any()),
            f"{strategy!r} commits outside its candidates while candidates are left.",
        )


def keeps_its_front_small(strategy: Strategy) -> None:
    """The front holds only masked positions, and at most `size` of them."""
    size = getattr(strategy, "size", FAR)
    for canvas, scores, steps in runs(strategy):
        for _, _, decision, rows in simulate(strategy, canvas, scores, steps=steps):
            front = strategy.front(decision.state)
            if front is None:
                return
            require(
                # The engine completes a row at its last step, regardless of the front.
                not bool((front & ~rows.canvas.masked & ~rows.done[:, None]).any()),
                f"{strategy!r} keeps a decided position on its front.",
            )
            require(bool((front.sum(-1) <= size).all()), f"{strategy!r}: the front exceeds {size}.")


def declares_that_it_revises(strategy: Strategy) -> None:
    """A strategy that remasks or edits sets `revises = True`; else its steps may be skipped."""
    for _, decision in _raw_decisions(strategy):
        require(
            decision.remask is None or strategy.revises,
            f"{strategy!r} remasks but does not declare revises = True.",
        )
        require(
            decision.edit is None or strategy.revises,
            f"{strategy!r} edits but does not declare revises = True.",
        )


def makes_progress(strategy: Strategy) -> None:
    """A step that must commit leaves more positions decided, or more of them final."""
    for canvas, scores, steps in runs(strategy):
        for index, run in enumerate(simulate(strategy, canvas, scores, steps=steps)):
            before, _, decision, after = run
            if strategy.is_noop_step(LENGTH, steps, index):
                continue
            gained = decision.commit.sum(-1)
            if decision.remask is not None:
                gained = gained - decision.remask.sum(-1)
            # Remasking many positions is progress too, if others become final.
            moved = (gained > 0) | (after.final & ~before.final).any(-1)
            owed = (strategy.selector.min_commits(before.progress) > 0) & (before.progress.left > 0)
            require(bool(moved[owed].all()), f"{strategy!r} makes no progress at step {index}.")


def fills_everything(strategy: Strategy) -> None:
    """Every position is decided at the end, and committed once more than it is remasked."""
    for canvas, scores, steps in runs(strategy):
        count = torch.zeros_like(canvas.tokens)
        remasked = torch.zeros_like(canvas.tokens)
        masked = canvas.masked
        for _, _, decision, rows in simulate(strategy, canvas, scores, steps=steps):
            count, masked = count + decision.commit, rows.canvas.masked
            if decision.remask is not None:
                remasked = remasked + decision.remask
        require(not bool(masked.any()), f"{strategy!r} leaves positions undecided.")
        filled = (canvas.slot >= 0).long()
        require(
            bool((count - remasked == filled).all()),
            f"{strategy!r} commits a position twice without remasking it.",
        )


def never_remasks_final_tokens(strategy: Strategy) -> None:
    """A final token never changes, and no position is remasked over `max_remasks` times."""
    cap = getattr(strategy, "max_remasks", FAR)
    for canvas, scores, steps in runs(strategy):
        final = canvas.known
        remasks = torch.zeros_like(canvas.tokens)
        for before, view, decision, rows in simulate(strategy, canvas, scores, steps=steps):
            raw = strategy.step(view, before.state)
            if raw.remask is not None:
                require(
                    not bool((raw.remask & final).any()),
                    f"{strategy!r} remasks a final token.",
                )
                remasks = remasks + (decision.remask if decision.remask is not None else 0)
            if raw.edit is not None:
                require(
                    not bool((raw.edit & (final | view.masked)).any()),
                    f"{strategy!r} edits a final token, or a position without one.",
                )
            final = rows.final
        require(bool((remasks <= cap).all()), f"{strategy!r} remasks a position over {cap} times.")


def keeps_the_state_shape(strategy: Strategy) -> None:
    """The state keeps its structure, shapes and dtypes, as a CUDA graph requires."""
    for canvas, scores, steps in runs(strategy):
        try:
            for before, _, decision, _ in simulate(strategy, canvas, scores, steps=steps):
                old, new = _structure(before.state), _structure(decision.state)
                require(
                    old == new, f"{strategy!r} changes the structure of its state, {old} to {new}."
                )
        except (RuntimeError, ValueError, TypeError) as error:
            raise LawBroken(f"{strategy!r} changes the structure of its state: {error}") from error


def _structure(state: Any) -> Any:
    """Return the types, shapes and dtypes of a state."""
    if isinstance(state, Tensor):
        return tuple(state.shape), state.dtype
    return type(state).__name__, tuple(_structure(part) for part in state)


def rows_are_independent(strategy: Strategy) -> None:
    """A row decodes the same alone and in a batch."""
    for canvas, scores, steps in runs(strategy):
        together = decisions(strategy, canvas, scores, steps=steps)
        for row in range(canvas.tokens.shape[0]):
            alone = Canvas(*(t[row : row + 1] for t in canvas))
            found = decisions(strategy, alone, row_scores(scores, row), steps=steps, first_seed=row)
            require(
                all(
                    torch.equal(one.commit, all_rows.commit[row : row + 1])
                    for one, all_rows in zip(found, together, strict=True)
                ),
                f"{strategy!r}: a row decodes differently alone than in a batch.",
            )


def is_deterministic(strategy: Strategy) -> None:
    """The same input gives the same decisions."""
    for canvas, scores, steps in runs(strategy):
        one = decisions(strategy, canvas, scores, steps=steps)
        two = decisions(strategy, canvas, scores, steps=steps)
        require(
            all(bool((a.commit == b.commit).all()) for a, b in zip(one, two, strict=True)),
            f"{strategy!r} decides differently on equal input.",
        )


def padding_changes_nothing(strategy: Strategy) -> None:
    """Padding on either side of a row does not change the decisions."""
    for canvas, scores, steps in runs(strategy):
        left, right = 5, 3
        pads = (PAD, False, False, -1)
        wide = Canvas(
            *(
                torch.nn.functional.pad(t, (left, right), value=pad)
                for t, pad in zip(canvas, pads, strict=True)
            )
        )
        narrow = decisions(strategy, canvas, scores, steps=steps)
        padded = decisions(strategy, wide, scores, steps=steps)
        require(
            all(
                bool((a.commit == b.commit[:, left:-right]).all())
                for a, b in zip(narrow, padded, strict=True)
            ),
            f"{strategy!r} decides differently with padding. Use `slot` instead of absolute "
            "positions.",
        )


def reads_only_candidates(strategy: Strategy) -> None:
    """Changing values outside the candidates does not change the decision."""
    for canvas, scores, steps in runs(strategy):
        config = Config(strategy=strategy, fixed_budget=True)
        for before, _, decision, after in simulate(strategy, canvas, scores, steps=steps):
            readable = candidates(config, before)
            noise = torch.rand(before.score.shape) * 2 - 0.5
            poison = noise.masked_fill(noise > 1.2, float("nan"))
            parts = (None if s is None else torch.where(readable, s, poison) for s in before.stats)
            stats = Stats(*parts)  # pyright: ignore[reportArgumentType]
            rows = before._replace(
                score=torch.where(readable, before.score, poison),
                stats=stats,
                proposal=torch.where(readable, before.proposal, 9),
            )
            no = torch.zeros(canvas.tokens.shape[0], dtype=torch.bool)
            poisoned, _, again = decide_and_write(config, rows, MASK, bad=no, void=no)
            # A decision may call anything final in a row that is done, so compare the states.
            again = again._replace(final=poisoned.final)
            require(
                _same(decision._replace(final=after.final), again),
                f"{strategy!r} reads a position that `candidates` does not include.",
            )
            require(
                not bool((decision.written & ~readable).any()),
                f"{strategy!r} writes a position that `candidates` does not include.",
            )


def _same(one: Any, two: Any) -> bool:
    """Return whether two parts of a decision are equal."""
    if isinstance(one, Tensor):
        return isinstance(two, Tensor) and torch.equal(one, two)
    if one is None:
        return two is None
    return all(_same(a, b) for a, b in zip(one, two, strict=True))


def runs_on_meta(strategy: Strategy) -> None:
    """No step synchronises or has a shape that depends on data: the meta device has no data."""
    canvas = Canvas(*(t.to("meta") for t in random_canvas(0)))
    config = Config(strategy=strategy)
    column = torch.zeros(canvas.tokens.shape[0], dtype=torch.long, device="meta")
    rows = start(random_canvas(0), config, [LENGTH] * 4, seeds=[0] * 4)
    rows = to_meta(rows)
    try:
        readable = candidates(config, rows)
        rows = fill(rows, torch.rand(canvas.tokens.shape, device="meta"))
        decide_and_write(config, rows, MASK, bad=column.bool(), void=column.bool())
    except (RuntimeError, NotImplementedError) as error:
        raise LawBroken(
            f"{strategy!r} synchronises, or has a shape that depends on data: {error}"
        ) from error
    require(
        readable.shape == canvas.masked.shape, f"{strategy!r}: candidates do not have shape (B, L)."
    )


def repr_is_a_spec(strategy: Strategy) -> None:
    """The repr resolves to an equal strategy, so a result file can rebuild it."""
    again = spec.resolve(repr(strategy), "strategies")
    require(again == strategy, f"{strategy!r} is not equal to its resolved repr: {again!r}.")
