"""Decoding: one decode on its way, from ids to ids; and `generate_ids` on top of it.

This is the engine for people who have token ids, or a checkpoint without a tokenizer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Unpack

from wavefront.canvas import Canvas, blank
from wavefront.engine import decode
from wavefront.errors import PromptError
from wavefront.model import Model
from wavefront.options import Options, Plan, Source, plan
from wavefront.rows import Step
from wavefront.trace import Recorder, Trace


class Ids(NamedTuple):
    """The result of `generate_ids`, a list per row."""

    tokens: list[list[int]]  # the answer only, uncut
    order: list[list[list[int]]]  # per forward, the positions committed, from the first real token
    forwards: int
    trace: Trace


class Decoding:
    """Iterate it for its steps, once; then read the answers."""

    def __init__(self, model: Model, canvas: Canvas, plan: Plan, *, record: bool = False) -> None:
        self.model, self.canvas, self.plan = model, canvas, plan
        self.forwards = 0
        self._recorder = Recorder(canvas, model.mask_id) if record else None

    def __iter__(self) -> Iterator[Step]:
        rows = self.canvas.tokens.shape[0]
        steps = decode(
            self.model,
            self.canvas,
            self.plan.config,
            steps=[self.plan.steps] * rows,
            # One seed for all rows: a prompt draws the same answer alone and in a batch.
            seeds=[self.plan.seed] * rows,
        )
        for step in steps if self._recorder is None else self._recorder.watch(steps):
            self.canvas, self.forwards = step.canvas, step.forwards
            yield step

    def drain(self) -> Decoding:
        """Run to the end."""
        for _ in self:
            pass
        return self

    def tokens(self) -> list[list[int]]:
        """The board of every row without padding; what `stop` left undecided reads as EOS."""
        stop_ids = self.plan.config.sampling.stop_ids
        end = stop_ids[0] if stop_ids else self.model.mask_id
        board = self.canvas.tokens.masked_fill(self.canvas.masked, end)
        pairs = zip(board.cpu(), self.canvas.real.cpu(), strict=True)
        return [row[real].tolist() for row, real in pairs]

    def holes(self) -> list[list[bool]]:
        """For each of `tokens`: was it a place to fill?"""
        pairs = zip(self.canvas.slot.cpu(), self.canvas.real.cpu(), strict=True)
        return [(slot[real] >= 0).tolist() for slot, real in pairs]

    def answers(self) -> list[list[int]]:
        """The filled places of every row, uncut."""
        pairs = zip(self.tokens(), self.holes(), strict=True)
        return [[t for t, hole in zip(*row, strict=True) if hole] for row in pairs]

    def trace(self) -> Trace | None:
        """What was recorded, if recording was asked for."""
        return None if self._recorder is None else self._recorder.trace()


def source(model: Model, stop_ids: Sequence[int] | None = None) -> Source:
    """What a model contributes to its options."""
    ids = tuple(model.stop_ids if stop_ids is None else stop_ids)
    return Source(model.mask_id, ids, model.family, model.vocab_size)


def begin(
    model: Model,
    prompts: Sequence[Sequence[int]],
    options: Mapping[str, Any],
    *,
    stop_ids: Sequence[int] | None = None,
    record: bool = False,
) -> Decoding:
    """A decode of prompts, each followed by the same number of masked places."""
    settled = plan(options, source(model, stop_ids))
    if not prompts:
        raise PromptError("There is no prompt: give at least one.")
    for prompt in prompts:
        check_ids(model, prompt)
        check_length(model, len(prompt), settled.length)
    canvas = blank(
        prompts,
        settled.length,
        mask_id=model.mask_id,
        pad_id=model.pad_id,
        device=model.device,
    )
    return Decoding(model, canvas, settled, record=record)


def check_ids(model: Model, prompt: Sequence[int]) -> None:
    """Refuse a prompt that is empty or holds what is not a token of the model."""
    if len(prompt) == 0:
        raise PromptError("The prompt is empty: give at least one token.")
    for token in prompt:
        if isinstance(token, bool) or not isinstance(token, int):
            raise PromptError(f"A prompt is a list of token ids; {token!r} is not one.")
        if not 0 <= token < model.vocab_size:
            raise PromptError(
                f"The token id {token} is outside the model's vocabulary, 0 to "
                f"{model.vocab_size - 1}."
            )


def check_length(model: Model, given: int, places: int) -> None:
    """Refuse a canvas longer than the model was made for."""
    if given + places > model.max_length:
        raise PromptError(
            f"The prompt has {given} tokens and {places} places are to be filled, "
            f"{given + places} in all: the model takes {model.max_length}; shorten the prompt "
            "or max_new_tokens."
        )


def generate_ids(model: Model, prompts: Sequence[Sequence[int]], **options: Unpack[Options]) -> Ids:
    """Fill the places after each prompt. The options are those of `wavefront.Options`."""
    decoding = begin(model, prompts, options, record=True).drain()
    trace = decoding.trace()
    assert trace is not None
    return Ids(decoding.answers(), trace.order(), decoding.forwards, trace)
