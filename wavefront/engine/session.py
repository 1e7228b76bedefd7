"""DecodeSession, a decode in progress, and `generate_ids`, which runs one to its end.

Use this module if you have token ids, or a checkpoint without a tokenizer.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Unpack

import torch
from torch import Tensor

import wavefront
from wavefront.core.canvas import Canvas
from wavefront.core.errors import OptionError, PromptError
from wavefront.core.state import Config, DecodeState, Step, TopAlternatives, start
from wavefront.core.tree import plural
from wavefront.engine.batcher import (
    Batcher,
    CapturedBatchers,
    Commit,
    Kind,
    StepHook,
    run,
    with_alternatives,
)
from wavefront.engine.layout import masks_after, padding_before, prompt_canvas
from wavefront.engine.options import (
    AutomatonOf,
    BlockRules,
    ModelProperties,
    Options,
    Plan,
    plan,
    wants_trace,
)
from wavefront.models.protocol import Model
from wavefront.models.quantize import quantization_of
from wavefront.traces.trace import Recorder, Trace

ALTERNATIVES = 5  # tokens per position in a full trace


class GeneratedIds(NamedTuple):
    """The result of `generate_ids`, with one list per row."""

    tokens: list[list[int]]  # the answer only, not cut at the stop token
    order: list[
        list[list[int]]
    ]  # per step, the committed positions, counted from the first real token
    forwards: int  # of the whole batch
    token_forwards: int  # positions computed in the whole batch; guidance computes each one twice
    trace: Trace | None  # if you asked for it
    row_forwards: list[int]  # forward passes that each row took part in before it was done

    def __repr__(self) -> str:
        length = max(map(len, self.tokens), default=0)
        passes = plural(self.forwards, "forward pass")
        traced = "" if self.trace is None else f", {self.trace!r}"
        answers = f"{plural(len(self.tokens), 'answer')} of {plural(length, 'token')}"
        return f"GeneratedIds({answers}, {passes}{traced})"


class DecodeSession:
    """An iterator over the steps of one decode. You can read the answers so far at any time.

    Attributes:
        canvas: The canvas after the latest step.
        plan: The resolved options.
        forwards: Forward passes of the whole batch so far.
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
            steps, seeds = [plan.budget] * count, [plan.seed] * count
            given = {"answer": plan.answer_of(canvas.slot), "logit_bias": plan.logit_bias}
            state = start(canvas, config, steps, seeds=seeds, **given)
        batcher = None
        if captured is not None and hook is None:
            batcher = captured.lend(plan, canvas, self)
        if batcher is None:
            length = canvas.tokens.shape[1]
            # A trace counts every row in every step, and a compiled model knows one shape.
            compact = not record and hook is None and not model.compiled
            batcher = Batcher(
                model, rows=count, length=length, updates=False, hook=hook, compact=compact
            )
        self._requests = batcher.load(config, state, Kind.of(plan))
        made = run(batcher)
        self._steps = made if self._recorder is None else self._recorder.watch(made)
        self._last: Step | None = None
        self._logp: Tensor | None = None  # (B, L) float32 when written; NaN before
        self._alternatives: TopAlternatives | None = None  # when written
        if plan.logprobs is not None:
            self._logp = torch.full(canvas.tokens.shape, float("nan"), device=canvas.tokens.device)
        self._active_steps = torch.zeros_like(canvas.tokens[:, 0])

    def __repr__(self) -> str:
        return f"DecodeSession({self.canvas!r}, {plural(self.forwards, 'forward pass')})"

    def __iter__(self) -> Iterator[Step]:
        return self

    def __next__(self) -> Step:
        step = next(self._steps)
        self.canvas, self._last = step.canvas, step
        self.forwards, self.token_forwards = step.forwards, step.token_forwards
        self._active_steps = self._active_steps + step.decision.commit.any(-1)
        if self._logp is not None:
            self._logp = torch.where(step.decision.written, step.view.stats.logp, self._logp)
            self._keep_alternatives(step)
        return step

    def _keep_alternatives(self, step: Step) -> None:
        """Keep the likeliest tokens of the positions that the step wrote, on the device."""
        kept = self._alternatives
        if step.others is not None:
            where = step.decision.written[..., None]
            pairs = zip(step.others, step.others if kept is None else kept, strict=True)
            self._alternatives = TopAlternatives(*(torch.where(where, *pair) for pair in pairs))

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

    def row_forwards(self) -> list[int]:
        """Return how many forward passes were made for each row until it ended.

        Passes that were repeated count, and so do those whose commits were dropped. Unlike
        `forwards`, this number does not depend on the other rows of the batch.
        """
        return [request.forwards for request in self._requests]

    def row_token_forwards(self) -> list[int]:
        """Return how many positions were computed for each row until it ended."""
        return [request.token_forwards for request in self._requests]

    def tokens(self) -> list[list[int]]:
        """Return the tokens of each row without padding, up to `max_new_tokens`.

        Positions that are still masked read as EOS. `eos="stop"` leaves some of them masked.
        """
        stop_ids = self.plan.config.sampling.stop_ids
        end = stop_ids[0] if stop_ids else self.model.mask_id
        board = self.canvas.tokens.masked_fill(self.canvas.masked, end)
        return self._unpadded(board)

    def undecided(self) -> list[list[bool]]:
        """Return whether each of `tokens` can still change. In a finished row none can."""
        if self._last is None:
            return self._unpadded(self.canvas.masked)
        return self._unpadded(~self._last.final & ~self._last.done[:, None])

    def _unpadded(self, board: Tensor) -> list[list[Any]]:
        # The last block of a block-causal model may hold more positions than were asked for.
        kept = self.canvas.real & (self.canvas.slot < self.plan.length)
        pairs = zip(board.cpu(), kept.cpu(), strict=True)
        return [row[real].tolist() for row, real in pairs]

    def commits(self) -> list[list[Commit | None]]:
        """Return the last commit or edit of each of `tokens`, with its log-probability.

        It is None at positions that this session did not fill. The option `logprobs` must be set.
        """
        assert self._logp is not None
        assert self.plan.logprobs is not None
        boards: list[Any] = [self._unpadded(self.canvas.tokens), self._unpadded(self._logp)]
        if self._alternatives is None:
            boards += [[[()] * len(row) for row in boards[0]]] * 2
        else:
            boards += map(self._unpadded, self._alternatives)
        given: dict[str, Any] = {"plan": self.plan, "mask_id": self.model.mask_id}
        found: list[list[Commit | None]] = []
        for rows in zip(*boards, strict=True):
            made: list[Commit | None] = []
            for position, (token, logp, *others) in enumerate(zip(*rows, strict=True)):
                commit = Commit(position, token, logp)
                made.append(
                    None if math.isnan(logp) else with_alternatives(commit, others, **given)
                )
            found.append(made)
        return found

    def holes(self) -> list[list[bool]]:
        """Return whether each of `tokens` is a position to fill."""
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
    kept = max(ALTERNATIVES, config.alternatives)
    return replace(config, read_all_masked=True, alternatives=kept)


def describe(model: Model, plan: Plan) -> dict[str, Any]:
    """Return the description that a trace carries: versions, model and options."""
    return {
        "wavefront": wavefront.__version__,
        "torch": torch.__version__,
        "family": model.family,
        "dtype": str(model.dtype).removeprefix("torch."),
        "quantize": quantization_of(model),
        "device": model.device.type,
        "options": plan.options(),
    }


def model_properties(
    model: Model,
    stop_ids: Sequence[int] | None = None,
    id_of: Callable[[str], int] | None = None,
    *,
    automaton_of: AutomatonOf | None = None,
) -> ModelProperties:
    """Return the properties that the options depend on.

    Args:
        model: The model to decode with.
        stop_ids: The stop tokens, if they differ from the model's.
        id_of: Returns the token id of a text. It needs a tokenizer.
        automaton_of: Compiles a constraint. It needs a tokenizer.
    """
    ids = tuple(model.stop_ids if stop_ids is None else stop_ids)
    return ModelProperties(
        model.mask_id,
        ids,
        model.family,
        model.vocab_size,
        id_of=id_of,
        windows=model.windows,
        automaton_of=automaton_of,
        blocks=block_rules(model),
        # A model that was written outside may lack the attribute.
        masked_copies=getattr(model, "masked_copies", False) and not model.shifted,
    )


def block_rules(model: Model) -> BlockRules | None:
    """Return how a block-causal model divides a canvas; None for other models."""
    if model.block_size is None:
        return None
    return BlockRules(model.block_size, model.padded_blocks, model.shifted)


def begin(
    model: Model,
    prompts: Sequence[Sequence[int]],
    options: Mapping[str, Any],
    *,
    stop_ids: Sequence[int] | None = None,
    id_of: Callable[[str], int] | None = None,
    automaton_of: AutomatonOf | None = None,
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
        automaton_of: Compiles a constraint, for options such as `schema`.
        record: The trace to record: False, True or "basic", or "full".
        captured: Lends batchers whose steps are captured as CUDA graphs.

    Returns:
        The session, before its first step.

    Raises:
        OptionError: An option is wrong.
        PromptError: A prompt is empty, too long, or not a list of token ids.
    """
    resolved = plan(options, model_properties(model, stop_ids, id_of, automaton_of=automaton_of))
    rows = [check_ids(model, prompt) for prompt in _to_list(prompts)]
    if not rows:
        raise PromptError("There is no prompt: give at least one.", option="prompts")
    for row in rows:
        check_canvas_length(model, len(row), resolved.length)
    canvas = prompt_canvas(model, rows, resolved.length)
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
        PromptError: The prompt is empty, or contains something that is not a token of the model.
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


def check_infilling(model: Model) -> None:
    """Check that a model can fill holes inside a text.

    Raises:
        OptionError: The model is block-causal, so it does not see the text after a hole.
    """
    if model.block_size is not None:
        raise OptionError(
            f"This model reads text in blocks of {model.block_size} tokens and does not see the "
            "text after a hole: use a bidirectional model for infilling.",
            option="text",
        )


def check_canvas_length(model: Model, prompt: int, positions: int) -> None:
    """Check that a prompt and the positions to fill fit into the model's context.

    Args:
        model: The model to decode with.
        prompt: The number of tokens of the prompt.
        positions: The number of positions to fill.

    Raises:
        PromptError: Together they are longer than the model's maximum length.
    """
    total = padding_before(model, prompt) + prompt + positions
    total += masks_after(model, prompt + positions) if positions else 0
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
        row_forwards=session.row_forwards(),
    )
