"""Completion: the result of a prompt, read from the tokens of its row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from wavefront.engine.batcher import Commit
from wavefront.text.tokenizer import Tokenizer
from wavefront.traces.trace import Trace


class TokenLogprob(NamedTuple):
    """A token with its log-probability at the step that committed it.

    The distribution is the one that gives the token's confidence: the model's distribution after
    `logit_bias`, and for Dream's rule also after temperature, `top_p` and `top_k`.
    """

    token: int
    text: str
    logprob: float | None  # None if the token was given, such as before a fork
    top: tuple[TokenLogprob, ...] = ()  # the likeliest tokens at that step, best first


@dataclass(frozen=True)
class Completion:
    """The result of one prompt."""

    text: str  # the answer up to its first stop token; after infilling, the whole text
    tokens: list[int]  # the answer up to its first stop token
    # "stop" at a stop token or if a constraint makes the answer complete, "length" otherwise,
    # "filled" after infilling, None if unfinished
    finish_reason: str | None
    forwards: int  # forward passes that this answer took part in before it was finished
    token_forwards: int  # positions of its row computed in them; guidance computes each one twice
    prompt_tokens: int
    steps: int  # steps of this row that committed a token
    trace: Trace | None = None  # of the whole batch, if you asked for it
    logprobs: list[TokenLogprob] | None = None  # one per token, if you asked for them

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
        self,
        tokenizer: Tokenizer,
        stop_ids: Sequence[int],
        *,
        infilling: bool = False,
        constrained: bool = False,
    ) -> None:
        """Read rows of token ids with this tokenizer.

        With `infilling`, the text includes the given tokens. With `constrained`, a finished answer
        is complete, even if it fills all positions.
        """
        self.tokenizer, self.stop_ids = tokenizer, stop_ids
        self.infilling, self.constrained = infilling, constrained

    def __call__(
        self,
        tokens: Sequence[int],
        holes: Sequence[bool],
        open_: Sequence[bool],
        *,
        cost: Cost,
        trace: Trace | None = None,
        commits: Sequence[Commit | None] | None = None,
    ) -> Completion:
        """Return the completion of a row.

        Args:
            tokens: The tokens of the row, without padding.
            holes: Whether each one is a position to fill.
            open_: Whether each one can still change. A hole is cut at the first one that can.
            cost: The cost of the row.
            trace: The trace of the batch.
            commits: The last commit of each token, if log-probabilities were requested.
        """
        ends = [t in self.stop_ids or o for t, o in zip(tokens, open_, strict=True)]
        shown = cut_holes(range(len(tokens)), holes, ends)
        text = [tokens[at] for at, hole in shown if hole or self.infilling]
        logprobs = None
        if commits is not None:
            logprobs = [self._logprob(tokens[at], commits[at]) for at, hole in shown if hole]
        ended = "stop" if self.constrained or len(shown) < len(tokens) else "length"
        if self.infilling:
            ended = "filled"
        return Completion(
            text=self.tokenizer.decode(text, start=self.infilling),
            tokens=[tokens[at] for at, hole in shown if hole],
            finish_reason=None if any(open_) else ended,
            forwards=cost.forwards,
            token_forwards=cost.token_forwards,
            prompt_tokens=len(holes) - sum(holes),
            steps=cost.steps,
            trace=trace,
            logprobs=logprobs,
        )

    def _logprob(self, token: int, commit: Commit | None) -> TokenLogprob:
        pairs = [] if commit is None else commit.alternatives
        first, *texts = self.tokenizer.pieces([token, *(id for id, _ in pairs)])
        top = [TokenLogprob(id, text, logp) for (id, logp), text in zip(pairs, texts, strict=True)]
        return TokenLogprob(token, first, None if commit is None else commit.logp, tuple(top))


def cut_holes(
    tokens: Sequence[int], holes: Sequence[bool], ends: Sequence[bool]
) -> list[tuple[int, bool]]:
    """Cut every hole at the first position where it ends.

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
