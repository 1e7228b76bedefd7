"""DecodeSession, a decode in progress, and `generate_ids`, which runs one to its end.

Use this module if you have token ids, or a checkpoint without a tokenizer.
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

ALTERNATIVES = 5  # tokens per position in a full trace


class GeneratedIds(NamedTuple):
    """The result of `generate_ids`, with one list per row."""

    tokens: list[list[int]]  # the answer only, not cut at the stop token
    order: list[
        list[list[int]]
    ]  # per step, the committed positions, counted from the first real token
    forwards: int
    token_forwards: int  # positions computed; guidance computes each one twice
    trace: Trace | None  # if you asked for it


class DecodeSession:
    """An iterator over the steps of one decode. Read the answers so far at any time.

    Attributes:
        canvas: The canvas after the latest step.
        plan: The resolved options.
        forwards: Forward passes so far.
        token_forwards: Positions computed so far. Guidance computes each one twice.
        first_step: The number of the first step; above 0 if the session continues a trace.
    """

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
        """Prepare the decode. The first `next` runs the first step.

        Args:
            model: The model to decode with.
            canvas: The rows to decode.
            plan: The resolved options.
            record: The kind of trace to record: "", "basic" or "full".
            state: The state to continue from; its canvas has the shape of `canvas`.
            hook: Edits the state around each step.
            captured: Lends batchers whose steps are captured as CUDA graphs.
        """
        self.model: Model = model
        self.canvas: Canvas = canvas
        self.plan: Plan = plan
        self.forwards: int = 0
        self.token_forwards: int = 0
        self.first_step: int = 0
        count = canvas.tokens.shape[0]
        config = config_for_trace(plan.config, record)
        self._recorder = Recorder(canvas, config, model.mask_id) if record else None
        if state is None:
            # All rows share one seed, so a prompt gets the same answer alone and in a batch.
            state = start(canvas, config, [plan.steps] * count, [plan.seed] * count)
        batcher = None if captured is None else captured.lend(plan, canvas, self)
        if batcher is None:
            length = canvas.tokens.shape[1]
            batcher = Batcher(model, rows=count, length=length, updates=False, hook=hook)
        batcher.load(config, state, Kind.of(plan))
        steps = run(batcher)
        self._steps = steps if self._recorder is None else self._recorder.watch(steps)
        self._last: Step | None = None
        self._active_steps = torch.zeros_like(canvas.tokens[:, 0])

    def __iter__(self) -> Iterator[Step]:
        return self

    def __next__(self) -> Step:
        step = next(self._steps)
        self.canvas, self._last = step.canvas, step
        self.forwards, self.token_forwards = step.forwards, step.token_forwards
        self._active_steps = self._active_steps + step.decision.commit.any(-1)
        return step

    def drain(self) -> DecodeSession:
        """Run all remaining steps, and return the session."""
        for _ in self:
            pass
        return self

    def steps(self) -> list[int]:
        """Return how many steps of each row committed a token.

        With speculation, one forward pass can make several steps.
        """
        return self._active_steps.tolist()

    def tokens(self) -> list[list[int]]:
        """Return the tokens of each row without padding.

        Positions that are still masked read as EOS. `eos="stop"` leaves some of them masked.
        """
        stop_ids = self.plan.config.sampling.stop_ids
        end = stop_ids[0] if stop_ids else self.model.mask_id
        board = self.canvas.tokens.masked_fill(self.canvas.masked, end)
        return self._unpadded(board)

    def undecided(self) -> list[list[bool]]:
        """Return for each of `tokens` whether it can still change. In a finished row none can."""
        if self._last is None:
            return self._unpadded(self.canvas.masked)
        return self._unpadded(~self._last.final & ~self._last.done[:, None])

    def _unpadded(self, board: Tensor) -> list[list[Any]]:
        pairs = zip(board.cpu(), self.canvas.real.cpu(), strict=True)
        return [row[real].tolist() for row, real in pairs]

    def holes(self) -> list[list[bool]]:
        """Return for each of `tokens` whether it is a position to fill."""
        return self._unpadded(self.canvas.slot >= 0)

    def answers(self) -> list[list[int]]:
        """Return the filled positions of each row, not cut at the stop token."""
        pairs = zip(self.tokens(), self.holes(), strict=True)
        return [[t for t, hole in zip(*row, strict=True) if hole] for row in pairs]

    def trace(self) -> Trace | None:
        """Return the trace so far, or None if nothing is recorded."""
        if self._recorder is None:
            return None
        return self._recorder.trace(describe(self.model, self.plan))


def config_for_trace(config: Config, record: str) -> Config:
    """Return the config that computes everything a trace of the kind `record` needs."""
    if record != "full":
        return config
    return replace(config, read_all_masked=True, alternatives=ALTERNATIVES)


def describe(model: Model, plan: Plan) -> dict[str, Any]:
    """Return the description that a trace carries: versions, model and options."""
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
    """Return the properties that the options depend on.

    Args:
        model: The model to decode with.
        stop_ids: The stop tokens, if they differ from the model's.
        id_of: Returns the token id of a text. It needs a tokenizer.
    """
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
    """Start a decode of prompts, each followed by the same number of masked positions.

    Args:
        model: The model to decode with.
        prompts: One list of token ids per row.
        options: The options by name; see `wavefront.Options`.
        stop_ids: The default stop tokens, if they differ from the model's.
        id_of: Returns the token id of a text, for options that name a token by its text.
        record: The trace to record: False, True or "basic", or "full".
        captured: Lends batchers whose steps are captured as CUDA graphs.

    Returns:
        The session, before its first step.

    Raises:
        OptionError: An option is wrong.
        PromptError: A prompt is empty, too long, or not a list of token ids.
    """
    resolved = plan(options, source(model, stop_ids, id_of))
    rows = [check_ids(model, prompt) for prompt in _to_list(prompts)]
    if not rows:
        raise PromptError("There is no prompt: give at least one.", option="prompts")
    for row in rows:
        check_length(model, len(row), resolved.length)
    canvas = blank(
        rows, resolved.length, mask_id=model.mask_id, pad_id=model.pad_id, device=model.device
    )
    kind = wants_trace(options, record)
    return DecodeSession(model, canvas, resolved, record=kind, captured=captured)


def _to_list(prompts: Any) -> list[Any]:
    listed = prompts.tolist() if hasattr(prompts, "tolist") else prompts
    if not isinstance(listed, Sequence) or isinstance(listed, str):
        raise PromptError(
            f"Prompts must be a list of lists of token ids, not {prompts!r}.",
            option="prompts",
            value=prompts,
        )
    return list(listed)


def check_ids(model: Model, prompt: Any) -> list[int]:
    """Return a prompt as a list of token ids.

    Raises:
        PromptError: The prompt is empty, or holds something that is not a token of the model.
    """
    listed = prompt.tolist() if hasattr(prompt, "tolist") else prompt
    if not isinstance(listed, Sequence) or isinstance(listed, str):
        raise PromptError(
            f"Each prompt must be a list of token ids, not {prompt!r}.",
            option="prompt",
            value=prompt,
        )
    if len(listed) == 0:
        raise PromptError("The prompt is empty: give at least one token.", option="prompt")
    ids = []
    for token in listed:
        if isinstance(token, bool) or not hasattr(token, "__index__"):
            raise PromptError(
                f"A prompt must be a list of token ids, and {token!r} is not a token id.",
                option="prompt",
                value=token,
            )
        ids.append(operator.index(token))
        if not 0 <= ids[-1] < model.vocab_size:
            raise PromptError(
                f"The token id {ids[-1]} is outside the model's vocabulary, 0 to "
                f"{model.vocab_size - 1}.",
                option="prompt",
                value=ids[-1],
            )
    return ids


def check_length(model: Model, prompt: int, positions: int) -> None:
    """Check that a prompt and the positions to fill fit into the model's context.

    Args:
        model: The model to decode with.
        prompt: The number of tokens of the prompt.
        positions: The number of positions to fill.

    Raises:
        PromptError: Together they are longer than the model's maximum length.
    """
    total = prompt + positions
    if total > model.max_length:
        raise PromptError(
            f"The prompt has {prompt} tokens and there are {positions} positions to fill, "
            f"{total} in total, but the model takes {model.max_length}: shorten the prompt or "
            "reduce max_new_tokens.",
            option="prompt",
        )


def generate_ids(
    model: Model,
    prompts: Sequence[Sequence[int]],
    *,
    trace: bool | str = False,
    **options: Unpack[Options],
) -> GeneratedIds:
    """Fill the positions after each prompt.

    Args:
        model: The model to decode with.
        prompts: One list of token ids per row.
        trace: The trace to record: False, True or "basic", or "full".
        **options: The decoding options; see `wavefront.Options`.

    Returns:
        The answers, the order of the commits, and the costs.

    Raises:
        OptionError: An option is wrong.
        PromptError: A prompt is empty, too long, or not a list of token ids.
    """
    session = begin(model, prompts, options, record=trace)
    offset = session.canvas.real.long().argmax(-1).tolist()
    commits = [step.decision.commit for step in session]
    # Copy to the host once at the end: a copy per step would wait for the device each time.
    boards = torch.stack(commits, 1).cpu() if commits else session.canvas.masked[:, :0].cpu()
    order = [
        [(step.nonzero()[:, 0] - first).tolist() for step in row]
        for row, first in zip(boards, offset, strict=True)
    ]
    return GeneratedIds(
        tokens=session.answers(),
        order=order,
        forwards=session.forwards,
        token_forwards=session.token_forwards,
        trace=session.trace(),
    )
