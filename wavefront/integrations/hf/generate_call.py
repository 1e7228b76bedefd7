"""Turn a prepared `generate` call into a decode, and the decode into the output tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers.utils import ModelOutput  # pyright: ignore[reportPrivateImportUsage]

from wavefront.core.canvas import Canvas, infill, is_any
from wavefront.core.errors import OptionError, PromptError
from wavefront.core.state import start
from wavefront.engine.layout import prompt_canvas
from wavefront.engine.options import Plan, plan
from wavefront.engine.session import (
    DecodeSession,
    check_canvas_length,
    check_ids,
    check_infilling,
    config_for_trace,
    model_properties,
)
from wavefront.integrations.hf.from_generation_config import options_from_config, stop_ids
from wavefront.integrations.hf.tokenizer import read_tokenizer
from wavefront.traces.trace import Trace


@dataclass
class DiffusionOutput(ModelOutput):
    """The result with `return_dict_in_generate=True`."""

    sequences: Tensor | None = None  # (B, L) long: prompts, answers, padding
    forwards: int | None = None  # forward passes of the batch
    row_forwards: Tensor | None = None  # (B,) long: forward passes until each answer was finished
    # (B,) float: answer tokens, including the stop token, for each of `row_forwards`
    tokens_per_forward: Tensor | None = None
    history: tuple[Tensor, ...] | None = None  # (B, L) after every step, on request
    trace: Trace | None = None  # on request


class GenerateInput(NamedTuple):
    """The rows of a prepared call, and which of their positions are not padding."""

    ids: Tensor  # (B, P) long
    real: Tensor  # (B, P) bool
    infill: bool  # fill the mask tokens in the ids instead of adding positions

    def rows(self) -> list[list[int]]:
        """Return the tokens of every row without padding."""
        return [row[real].tolist() for row, real in zip(self.ids, self.real, strict=True)]


def resolve_plan(
    model: Any, inputs: GenerateInput, config: Any, *, options: dict[str, Any], tokenizer: Any
) -> Plan:
    """Resolve options, generation config and model."""
    holes = new_tokens = None
    if inputs.infill:
        check_infilling(model)
        holes = max(row.count(model.mask_id) for row in inputs.rows())
        if holes == 0:
            raise PromptError(
                f"There is nothing to fill: put the mask token, {model.mask_id}, into the ids."
            )
    else:
        new_tokens = int(config.max_length) - inputs.ids.shape[1]
    merged = options_from_config(config, options, new_tokens=new_tokens)
    merged.setdefault("stop_ids", stop_ids(config, model.stop_ids))
    known = tokenizer if tokenizer is not None else getattr(model, "tokenizer", None)
    return plan(merged, model_properties(model, id_of=_id_of(known)), length=holes)


def _id_of(tokenizer: Any) -> Callable[[str], int] | None:
    """Return a function that maps a text to its single token id, for strategies that name one."""

    def find(text: str) -> int:
        ids = read_tokenizer(tokenizer).encode(text, inside=True)
        if len(ids) != 1:
            raise OptionError(f"{text!r} is {len(ids)} tokens in this model: name a single token.")
        return ids[0]

    return None if tokenizer is None else find


def start_session(
    model: Any, inputs: GenerateInput, plan: Plan, *, record: str = "", copies: int = 1
) -> DecodeSession:
    """Start decoding the rows. Each copy of a prompt gets its own seed."""
    rows = [check_ids(model, row) for row in inputs.rows()]
    for row in rows:
        check_canvas_length(model, len(row), 0 if inputs.infill else plan.length)
    given = {"mask_id": model.mask_id, "pad_id": model.pad_id, "device": model.device}
    if inputs.infill:
        canvas = infill(rows, [[id == model.mask_id for id in row] for row in rows], **given)
    else:
        canvas = prompt_canvas(model, rows, plan.length)
    seeds = [(plan.seed + number % copies) % (1 << 63) for number in range(len(rows))]
    config, steps = config_for_trace(plan.config, record), [plan.budget] * len(rows)
    first = start(canvas, config, steps, seeds=seeds, logit_bias=plan.logit_bias)
    return DecodeSession(model, canvas, plan, record=record, state=first)


def with_input_padding(inputs: GenerateInput, canvas: Canvas, new_tokens: int) -> Tensor:
    """Return the (B, P + new_tokens) ids of a canvas with the padding of the input."""
    ids = torch.nn.functional.pad(inputs.ids, (0, new_tokens))
    real = torch.nn.functional.pad(inputs.real, (0, new_tokens), value=True)
    ids[real] = canvas.tokens[_kept(canvas, new_tokens)].to(ids.device)
    return ids


def _kept(canvas: Canvas, new_tokens: int) -> Tensor:
    """Return (B, L) bool: the prompt and its new tokens, or a text whose holes were filled.

    The last block of a block-causal model may hold more positions than were requested.
    """
    return canvas.real & (canvas.slot < new_tokens) if new_tokens else canvas.real


def build_output(
    inputs: GenerateInput,
    session: DecodeSession,
    history: Sequence[Canvas] | None,
    *,
    pad_id: int,
) -> DiffusionOutput:
    """Return the output of a finished decode: rows cut after their stop token, and padded."""
    settings = session.plan.config.sampling
    count = 0 if inputs.infill else session.plan.length
    ids, canvas = with_input_padding(inputs, session.canvas, count), session.canvas
    width = inputs.ids.shape[1]
    tokens, answer = ids[:, width:], (canvas.slot >= 0) & (canvas.slot < count)
    masked = canvas.masked[answer].view(tokens.shape).to(ids.device)
    stop = is_any(tokens, settings.stop_ids) & ~masked & (settings.eos != "keep")
    after_stop = masked | (stop.long().cumsum(-1) - stop.long() > 0)
    kept = (~after_stop).sum(-1)
    ids[:, width:] = tokens.masked_fill(after_stop, pad_id)
    filled = (canvas.slot >= 0).sum(-1) if inputs.infill else kept
    steps = None
    if history is not None:
        steps = tuple(with_input_padding(inputs, step, count) for step in history)
    passes = torch.tensor(session.row_forwards(), device=ids.device)
    return DiffusionOutput(
        sequences=ids[:, : width + int(kept.max())],
        forwards=session.forwards,
        row_forwards=passes,
        tokens_per_forward=filled.to(ids.device) / passes.clamp(min=1),
        history=steps,
        trace=session.trace(),
    )
