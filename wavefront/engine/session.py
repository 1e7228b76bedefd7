"""DecodeSession: one decode on its way, from ids to ids; and `generate_ids` on top of it.

This is the engine for people who have token ids, or a checkpoint without a tokenizer.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Unpack

import torch
from torch import Tensor

import wavefront
from wavefront.core.canvas import Canvas, blank
from wavefront.core.errors import PromptError
from wavefront.core.state import Config, DecodeState, Step, start
from wavefront.engine.batcher import Batcher, CapturedBatchers, Kind, StepHook, run
from wavefront.engine.options import Options, Plan, Source, plan, wants_trace
from wavefront.models.protocol import Model
from wavefront.traces.trace import Recorder, Trace

ALTERNATIVES = 5  # tokens of a place that a full trace keeps


class GeneratedIds(NamedTuple):
    """The result of `generate_ids`, a list per row."""

    tokens: list[list[int]]  # the answer only, uncut
    order: list[list[list[int]]]  # per step, the positions committed, from the first real token
    forwards: int
    token_forwards: int  # places computed; guidance computes each twice
    trace: Trace | None  # on request


class DecodeSession:
    """An iterator over the steps of one decode; the answers so far can be read at any time."""

    def __init__(
        self,
        model: Model,
        canvas: Canvas,
        plan: Plan,
        *,
        record: str = "",
        state: DecodeState | None = None,
        hook: StepHook | None = None,
        captured: CapturedBatchers | None = None,
    ) -> None:
        """Start from `canvas`, or continue from `state`, whose canvas has the same shape.

        `hook` edits the state around each step; `captured` lends batchers with captured steps.
        """
        self.model: Model = model
        self.canvas: Canvas = canvas
        self.plan: Plan = plan
        self.forwards: int = 0
        self.token_forwards: int = 0
        self.begun: int = 0  # steps that were made before, of a decode that goes on
        count = canvas.tokens.shape[0]
        config = recorded(plan.config, record)
        self._recorder = Recorder(canvas, config, model.mask_id) if record else None
        if state is None:
            # One seed for all rows: a prompt draws the same answer alone and in a batch.
            state = start(canvas, config, [plan.steps] * count, [plan.seed] * count)
        batcher = None if captured is None else captured.lend(plan, canvas, self)
        if batcher is None:
            length = canvas.tokens.shape[1]
            batcher = Batcher(model, rows=count, length=length, updates=False, hook=hook)
        batcher.load(config, state, Kind.of(plan))
        steps = run(batcher)
        self._steps = steps if self._recorder is None else self._recorder.watch(steps)
        self._last: Step | None = None
        self._made = torch.zeros_like(canvas.tokens[:, 0])

    def __iter__(self) -> Iterator[Step]:
        return self

    def __next__(self) -> Step:
        step = next(self._steps)
        self.canvas, self._last = step.canvas, step
        self.forwards, self.token_forwards = step.forwards, step.token_forwards
        self._made = self._made + step.decision.commit.any(-1)
        return step

    def drain(self) -> DecodeSession:
        """Run to the end."""
        for _ in self:
            pass
        return self

    def steps(self) -> list[int]:
        """How many steps of every row committed something; speculation makes several per forward pass."""
        return self._made.tolist()

    def tokens(self) -> list[list[int]]:
        """The board of every row without padding; what `stop` left undecided reads as EOS."""
        stop_ids = self.plan.config.sampling.stop_ids
        end = stop_ids[0] if stop_ids else self.model.mask_id
        board = self.canvas.tokens.masked_fill(self.canvas.masked, end)
        return self._unpadded(board)

    def undecided(self) -> list[list[bool]]:
        """For each of `tokens`: may it still change? Nothing does once a row is done."""
        if self._last is None:
            return self._unpadded(self.canvas.masked)
        return self._unpadded(~self._last.final & ~self._last.done[:, None])

    def _unpadded(self, board: Tensor) -> list[list[Any]]:
        pairs = zip(board.cpu(), self.canvas.real.cpu(), strict=True)
        return [row[real].tolist() for row, real in pairs]

    def holes(self) -> list[list[bool]]:
        """For each of `tokens`: was it a place to fill?"""
        return self._unpadded(self.canvas.slot >= 0)

    def answers(self) -> list[list[int]]:
        """The filled places of every row, uncut."""
        pairs = zip(self.tokens(), self.holes(), strict=True)
        return [[t for t, hole in zip(*row, strict=True) if hole] for row in pairs]

    def trace(self) -> Trace | None:
        """What was recorded, if recording was asked for."""
        if self._recorder is None:
            return None
        return self._recorder.trace(describe(self.model, self.plan))


def recorded(config: Config, record: str) -> Config:
    """The config to decode with when a trace of this kind is wanted."""
    return (
        replace(config, read_all_masked=True, alternatives=ALTERNATIVES)
        if record == "full"
        else config
    )


def describe(model: Model, plan: Plan) -> dict[str, Any]:
    """What a trace says of where it comes from."""
    return {
        "wavefront": wavefront.__version__,
        "torch": torch.__version__,
        "family": model.family,
        "dtype": str(model.dtype).removeprefix("torch."),
        "device": model.device.type,
        "options": plan.options(),
    }


def source(
    model: Model,
    stop_ids: Sequence[int] | None = None,
    id_of: Callable[[str], int] | None = None,
) -> Source:
    """What a model, and its tokenizer where there is one, contribute to the options."""
    ids = tuple(model.stop_ids if stop_ids is None else stop_ids)
    return Source(model.mask_id, ids, model.family, model.vocab_size, id_of)


def begin(
    model: Model,
    prompts: Sequence[Sequence[int]],
    options: Mapping[str, Any],
    *,
    stop_ids: Sequence[int] | None = None,
    id_of: Callable[[str], int] | None = None,
    record: bool | str = False,
    captured: CapturedBatchers | None = None,
) -> DecodeSession:
    """A decode of prompts, each followed by the same number of masked places."""
    settled = plan(options, source(model, stop_ids, id_of))
    rows = [check_ids(model, prompt) for prompt in _each(prompts)]
    if not rows:
        raise PromptError("There is no prompt: give at least one.")
    for row in rows:
        check_length(model, len(row), settled.length)
    canvas = blank(
        rows, settled.length, mask_id=model.mask_id, pad_id=model.pad_id, device=model.device
    )
    kind = wants_trace(options, record)
    return DecodeSession(model, canvas, settled, record=kind, captured=captured)


def _each(prompts: Any) -> list[Any]:
    listed = prompts.tolist() if hasattr(prompts, "tolist") else prompts
    if not isinstance(listed, Sequence) or isinstance(listed, str):
        raise PromptError(f"Prompts are a list of lists of token ids, not {prompts!r}.")
    return list(listed)


def check_ids(model: Model, prompt: Any) -> list[int]:
    """A prompt as a list of ids; refused when empty, or holding what is no token of the model."""
    listed = prompt.tolist() if hasattr(prompt, "tolist") else prompt
    if not isinstance(listed, Sequence) or isinstance(listed, str):
        raise PromptError(f"Each prompt is a list of token ids; {prompt!r} is not one.")
    if len(listed) == 0:
        raise PromptError("The prompt is empty: give at least one token.")
    ids = []
    for token in listed:
        if isinstance(token, bool) or not hasattr(token, "__index__"):
            raise PromptError(f"A prompt is a list of token ids; {token!r} is not one.")
        ids.append(operator.index(token))
        if not 0 <= ids[-1] < model.vocab_size:
            raise PromptError(
                f"The token id {ids[-1]} is outside the model's vocabulary, 0 to "
                f"{model.vocab_size - 1}."
            )
    return ids


def check_length(model: Model, given: int, places: int) -> None:
    """Refuse a canvas longer than the model was made for."""
    if given + places > model.max_length:
        raise PromptError(
            f"The prompt has {given} tokens and {places} places are to be filled, "
            f"{given + places} in all: the model takes {model.max_length}; shorten the prompt "
            "or max_new_tokens."
        )


def generate_ids(
    model: Model,
    prompts: Sequence[Sequence[int]],
    *,
    trace: bool | str = False,
    **options: Unpack[Options],
) -> GeneratedIds:
    """Fill the places after each prompt. The options are those of `wavefront.Options`."""
    decoding = begin(model, prompts, options, record=trace)
    offset = decoding.canvas.real.long().argmax(-1).tolist()
    commits = [step.decision.commit for step in decoding]
    # On the device until the end: moving a board at every step would wait for it.
    boards = torch.stack(commits, 1).cpu() if commits else decoding.canvas.masked[:, :0].cpu()
    order = [
        [(step.nonzero()[:, 0] - first).tolist() for step in row]
        for row, first in zip(boards, offset, strict=True)
    ]
    return GeneratedIds(
        tokens=decoding.answers(),
        order=order,
        forwards=decoding.forwards,
        token_forwards=decoding.token_forwards,
        trace=decoding.trace(),
    )
