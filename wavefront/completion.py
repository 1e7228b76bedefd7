"""Completion: the result of a prompt, read from the tokens of its row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from wavefront.text.tokenizer import Tokenizer
from wavefront.traces.trace import Trace


@dataclass(frozen=True)
class Completion:
    """The result of one prompt."""

    text: str  # the answer up to its first stop token; after infilling, the whole text
    tokens: list[int]  # the answer up to its first stop token
    finish_reason: str | None  # "stop" at a stop token, "length" without one, None if unfinished
    forwards: int  # forward passes of the batch
    token_forwards: int  # positions computed in them; guidance computes each one twice
    prompt_tokens: int
    steps: int  # steps of this row that committed a token
    trace: Trace | None = None  # of the whole batch, if you asked for it

    @property
    def steps_per_forward(self) -> float:
        """Steps per forward pass. It is at most 1 without speculation."""
        return self.steps / self.forwards if self.forwards else 0.0


class Cost(NamedTuple):
    """The cost of a row so far."""

    forwards: int
    token_forwards: int
    steps: int = 0


class CompletionReader:
    """Makes completions from the tokens of a row. It cuts each hole at its first stop token."""

    def __init__(
        self, tokenizer: Tokenizer, stop_ids: Sequence[int], *, infilling: bool = False
    ) -> None:
        """Read rows of this tokenizer. With `infilling`, the text includes the given tokens."""
        self.tokenizer, self.stop_ids, self.infilling = tokenizer, stop_ids, infilling

    def __call__(
        self,
        tokens: Sequence[int],
        holes: Sequence[bool],
        open_: Sequence[bool],
        *,
        cost: Cost,
        trace: Trace | None = None,
    ) -> Completion:
        """Return the completion of a row.

        Args:
            tokens: The tokens of the row, without padding.
            holes: Whether each one is a position to fill.
            open_: Whether each one can still change. A hole is cut at the first one that can.
            cost: The cost of the row.
            trace: The trace of the batch.
        """
        ends = [t in self.stop_ids or o for t, o in zip(tokens, open_, strict=True)]
        shown = cut_holes(tokens, holes, ends)
        text = [token for token, hole in shown if hole or self.infilling]
        ended = "stop" if len(shown) < len(tokens) else "length"
        return Completion(
            text=self.tokenizer.decode(text),
            tokens=[token for token, hole in shown if hole],
            finish_reason=None if any(open_) else ended,
            forwards=cost.forwards,
            token_forwards=cost.token_forwards,
            prompt_tokens=len(holes) - sum(holes),
            steps=cost.steps,
            trace=trace,
        )


def cut_holes(
    tokens: Sequence[int], holes: Sequence[bool], ends: Sequence[bool]
) -> list[tuple[int, bool]]:
    """Cut every hole at its first end.

    Args:
        tokens: The tokens of a row.
        holes: Whether each one is a position to fill.
        ends: Whether a hole ends at each one.

    Returns:
        The remaining tokens, each with whether it is in a hole.
    """
    kept: list[tuple[int, bool]] = []
    ended = False
    for token, hole, end in zip(tokens, holes, ends, strict=True):
        ended = hole and (ended or end)
        if not ended:
            kept.append((token, hole))
    return kept
