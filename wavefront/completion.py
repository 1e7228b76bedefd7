"""Completion: what became of a prompt, read off the board of its row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from wavefront.text.tokenizer import Tokenizer
from wavefront.traces.trace import Trace


@dataclass(frozen=True)
class Completion:
    """What became of one prompt."""

    text: str  # up to the first stop token; of an infilling, the whole text
    tokens: list[int]  # the answer up to the first stop token
    finish_reason: str | None  # "stop": the model ended it; "length": full; None: unfinished
    forwards: int  # passes through the model, of the batch it was in
    token_forwards: int  # places computed in them; guidance computes each twice
    prompt_tokens: int
    steps: int  # those of its own that committed something, one after another
    trace: Trace | None = None  # of the whole batch, on request

    @property
    def steps_per_forward(self) -> float:
        """At most 1, unless a draft was right; then how long it was right on average."""
        return self.steps / self.forwards if self.forwards else 0.0


class Spent(NamedTuple):
    """What a row has cost."""

    forwards: int
    token_forwards: int
    steps: int = 0


class Reader:
    """Reads boards: cuts each hole at its first stop token, and says why it ended."""

    def __init__(
        self, tokenizer: Tokenizer, stop_ids: Sequence[int], *, infilling: bool = False
    ) -> None:
        self.tokenizer, self.stop_ids, self.infilling = tokenizer, stop_ids, infilling

    def __call__(
        self,
        tokens: Sequence[int],
        holes: Sequence[bool],
        open_: Sequence[bool],
        spent: Spent,
        trace: Trace | None = None,
    ) -> Completion:
        """Of an unfinished row, what is settled from the left of every hole."""
        ends = [t in self.stop_ids or o for t, o in zip(tokens, open_, strict=True)]
        shown = cut_holes(tokens, holes, ends)
        text = [token for token, hole in shown if hole or self.infilling]
        ended = "stop" if len(shown) < len(tokens) else "length"
        return Completion(
            text=self.tokenizer.decode(text),
            tokens=[token for token, hole in shown if hole],
            finish_reason=None if any(open_) else ended,
            forwards=spent.forwards,
            token_forwards=spent.token_forwards,
            prompt_tokens=len(holes) - sum(holes),
            steps=spent.steps,
            trace=trace,
        )


def cut_holes(
    tokens: Sequence[int], holes: Sequence[bool], ends: Sequence[bool]
) -> list[tuple[int, bool]]:
    """(token, hole?) with every hole cut at its own first end."""
    kept: list[tuple[int, bool]] = []
    ended = False
    for token, hole, end in zip(tokens, holes, ends, strict=True):
        ended = hole and (ended or end)
        if not ended:
            kept.append((token, hole))
    return kept
