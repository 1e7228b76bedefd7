"""The cells of one row of a decode: what to show at each position after each step."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from wavefront.player.visible_text import UNKNOWN
from wavefront.viewer.terminal_layout import (
    CONTROL,
    END,
    FRONT,
    MASKED,
    Cell,
    Frame,
    level,
)

if TYPE_CHECKING:
    from torch import Tensor

    from wavefront.core.state import Step
    from wavefront.lm import Stream
    from wavefront.viewer.trace_stream import TraceStream

GLOW = 0.4  # seconds for which a new commit stays coloured
MAX_BYTES = 4  # bytes of one UTF-8 character


class Board:
    """The display state of one row of a stream."""

    def __init__(
        self,
        stream: Stream | TraceStream,
        row: int = 0,
        *,
        glow: float = GLOW,
        prompt: bool = True,
        timed: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._decoding, self._tokenizer = stream.decoding, stream.lm.tokenizer
        self._row, self._glow, self._clock = row, glow, clock
        self._prompt, self._timed = prompt, timed
        self._began = clock()
        self._latest: Step | None = None
        self._logp: Tensor | None = None  # of every commit, at the step that made it
        # Position -> when it was first drawn as known. A fork starts with known positions.
        self._seen = dict.fromkeys(self._answered(), float("-inf"))
        self._pieces: dict[tuple[int, ...], str] = {}
        # A trace holds the pinned positions instead of its constraint.
        self._recorded_pins: frozenset[int] = getattr(stream, "pinned", frozenset())
        self._stops = frozenset(stream.decoding.plan.config.sampling.stop_ids)
        self.steps = stream.decoding.plan.steps

    @property
    def step(self) -> int:
        """The number of steps done."""
        return self._decoding.first_step if self._latest is None else self._latest.number + 1

    def _answered(self) -> list[int]:
        """Return the positions of the answer that are filled."""
        return (self._decoding.canvas.known[self._row] & self._answer()).nonzero()[:, 0].tolist()

    def _answer(self) -> Tensor:
        """Return (L,) bool: the positions of the answer, without the rest of a last block."""
        slot = self._decoding.canvas.slot[self._row]
        return (slot >= 0) & (slot < self._decoding.plan.length)

    def add(self, step: Step) -> None:
        """Record a step. Nothing is copied from the device until a frame is drawn."""
        logp = step.view.stats.logp[self._row]
        before = logp if self._logp is None else self._logp
        self._logp = logp.where(step.decision.commit[self._row], before)
        self._latest = step

    def frame(self) -> Frame:
        """Return the current frame."""
        canvas = self._decoding.canvas
        slot, known = canvas.slot[self._row].tolist(), canvas.known[self._row].tolist()
        answer = self._answer().tolist()
        inside = [known[at] for at, in_answer in enumerate(answer) if in_answer]
        return Frame(
            cells=self._cells(slot, known, answer=answer),
            strategy=repr(self._decoding.plan.config.strategy),
            step=self.step,
            steps=self.steps,
            forwards=self._decoding.forwards,
            committed=sum(inside),
            positions=len(inside),
            seconds=self._clock() - self._began if self._timed else None,
        )

    def _cells(
        self, slot: Sequence[int], known: Sequence[bool], *, answer: Sequence[bool]
    ) -> list[Cell]:
        canvas, row = self._decoding.canvas, self._row
        tokens, masked = canvas.tokens[row].tolist(), canvas.masked[row].tolist()
        scope = None if self._latest is None else self._latest.decision.candidates[row].tolist()
        chance = [] if self._logp is None else self._logp.exp().tolist()
        texts = self._texts(tokens, known)
        pinned = self._pinned(tokens, answer) if self._is_done(masked) else frozenset[int]()
        fresh = self._fresh(self._answered())
        cells: list[Cell] = []
        for at, token in enumerate(tokens):
            if slot[at] >= 0 and not answer[at]:
                continue
            if masked[at]:
                seen = scope is not None and scope[at]
                cells.append(Cell(FRONT, "front") if seen else Cell(MASKED, "masked"))
            elif known[at] and slot[at] < 0:
                cells += [Cell(texts[at], "prompt")] if self._prompt else []
            elif known[at]:  # padding is neither masked nor known, so it is not shown
                known_state = "pinned" if at in pinned else "known"
                text, state = (END, "end") if token in self._stops else (texts[at], known_state)
                cells.append(Cell(text, level(chance[at]) if at in fresh else state))
        return cells

    def _is_done(self, masked: Sequence[bool]) -> bool:
        """Return whether the row cannot change any more."""
        done = self._latest is not None and bool(self._latest.done[self._row])
        return done or not any(masked)

    def _pinned(self, tokens: Sequence[int], answer: Sequence[bool]) -> frozenset[int]:
        """Return the positions where the constraint allows only one text."""
        config = self._decoding.plan.config
        if config.constraint is None:
            return self._recorded_pins
        from wavefront.text.constraint import pinned_positions

        found = pinned_positions(
            self._tokenizer,
            config.constraint,
            tokens,
            answer=answer,
            at_start=bool(self._decoding.canvas.slot[self._row, -1] >= 0),  # no text follows a hole
        )
        return frozenset(found)

    def _fresh(self, committed: Iterable[int]) -> set[int]:
        """Return the positions that were committed within the last `glow` seconds."""
        now, before = self._clock(), self._seen
        # A position that was remasked is dropped, and counts as new when committed again.
        self._seen = {at: before.get(at, now) for at in committed}
        return {
            at for at, when in self._seen.items() if at not in before or now - when < self._glow
        }

    def _texts(self, tokens: Sequence[int], known: Sequence[bool]) -> dict[int, str]:
        """Return the text at every known position; tokens of one character are joined."""
        texts: dict[int, str] = {}
        for at, token in enumerate(tokens):
            if not known[at] or at in texts:
                continue
            texts[at] = self._piece((token,))
            longest = MAX_BYTES if UNKNOWN in texts[at] else 1
            for end in range(at + 2, min(at + longest, len(tokens)) + 1):
                joined = self._piece(tuple(tokens[at:end])) if all(known[at:end]) else UNKNOWN
                if UNKNOWN not in joined:
                    texts |= {at: joined, **dict.fromkeys(range(at + 1, end), "")}
                    break
        return texts

    def _piece(self, ids: tuple[int, ...]) -> str:
        if ids not in self._pieces:
            special = self._tokenizer.special_ids
            alone = CONTROL if ids[0] in special else self._tokenizer.pieces(ids)[0]
            self._pieces[ids] = alone if len(ids) == 1 else self._tokenizer.decode(ids)
        return self._pieces[ids]
