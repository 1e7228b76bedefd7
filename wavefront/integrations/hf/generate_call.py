"""Turn a prepared `generate` call into a decode, and the decode into the output tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers.utils import ModelOutput  # pyright: ignore[reportPrivateImportUsage]

from wavefront.core.canvas import Canvas, blank, infill, is_any
from wavefront.core.errors import OptionError, PromptError
from wavefront.core.state import start
from wavefront.engine.options import Plan, plan
from wavefront.engine.session import (
    DecodeSession,
    check_ids,
    check_length,
    config_for_trace,
    source,
)
from wavefront.integrations.hf.from_generation_config import options_from_config, stop_ids
from wavefront.integrations.hf.tokenizer import read_tokenizer
from wavefront.traces.trace import Trace

EOS = ("eos", "eos_policy", "logits_eos_inf", "confidence_eos_eot_inf")


@dataclass
class DiffusionOutput(ModelOutput):
    """The result with `return_dict_in_generate=True`."""

    sequences: Tensor | None = None  # (B, L) long: prompts, answers, padding
    forwards: int | None = None  # forward passes
    tokens_per_forward: Tensor | None = (
        None  # (B,) float: tokens of the answer, with its stop token
    )
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
    """Resolve options, generation config and model. By default a decode stops at a stop token."""
    holes = new_tokens = None
    if inputs.infill:
        holes = max(row.count(model.mask_id) for row in inputs.rows())
        if holes == 0:
            raise PromptError(
                f"There is nothing to fill: put the mask token, {model.mask_id}, into the ids."
            )
    else:
        new_tokens = int(config.max_length) - inputs.ids.shape[1]
    merged = options_from_config(config, options, new_tokens=new_tokens)
    merged.setdefault("stop_ids", stop_ids(config, model.stop_ids))
    if not any(name in merged for name in EOS) and merged["stop_ids"] and not inputs.infill:
        merged["eos"] = "stop"
    known = tokenizer if tokenizer is not None else getattr(model, "tokenizer", None)
    return plan(merged, source(model, id_of=_id_of(known)), length=holes)


def _id_of(tokenizer: Any) -> Callable[[str], int] | None:
    """Return a function from a text to its single token, for strategies that name a token."""

    def find(text: str) -> int:
        ids = read_tokenizer(tokenizer).encode(text)
        if len(ids) != 1:
            raise OptionError(f"{text!r} is {len(ids)} tokens in this model: name a single token.")
        return ids[0]

    return None if tokenizer is None else find


def start_session(
    model: Any, inputs: GenerateInput, plan: Plan, *, record: str = "", copies: int = 1
) -> DecodeSession:
    """Start to decode the rows. Each of the copies of a prompt gets its own seed."""
    rows = [check_ids(model, row) for row in inputs.rows()]
    for row in rows:
        check_length(model, len(row), 0 if inputs.infill else plan.length)
    given = {"mask_id": model.mask_id, "pad_id": model.pad_id, "device": model.device}
    if inputs.infill:
        canvas = infill(rows, [[id == model.mask_id for id in row] for row in rows], **given)
    else:
        canvas = blank(rows, plan.length, **given)
    seeds = [(plan.seed + number % copies) % (1 << 63) for number in range(len(rows))]
    first = start(canvas, config_for_trace(plan.config, record), [plan.steps] * len(rows), seeds)
    return DecodeSession(model, canvas, plan, record=record, state=first)


def with_input_padding(inputs: GenerateInput, canvas: Canvas, new_tokens: int) -> Tensor:
    """Return the (B, P + new_tokens) ids of a canvas with the padding of the input."""
    ids = torch.nn.functional.pad(inputs.ids, (0, new_tokens))
    real = torch.nn.functional.pad(inputs.real, (0, new_tokens), value=True)
    ids[real] = canvas.tokens[canvas.real].to(ids.device)
    return ids


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
    tokens, masked = ids[:, width:], canvas.masked[:, canvas.masked.shape[1] - count :]
    masked = masked.to(ids.device)
    stop = is_any(tokens, settings.stop_ids) & ~masked & (settings.eos != "keep")
    after_stop = masked | (stop.long().cumsum(-1) - stop.long() > 0)
    kept = (~after_stop).sum(-1)
    ids[:, width:] = tokens.masked_fill(after_stop, pad_id)
    filled = (canvas.slot >= 0).sum(-1) if inputs.infill else kept
    steps = None
    if history is not None:
        steps = tuple(with_input_padding(inputs, one, count) for one in history)
    return DiffusionOutput(
        sequences=ids[:, : width + int(kept.max())],
        forwards=session.forwards,
        tokens_per_forward=filled.to(ids.device) / max(1, session.forwards),
        history=steps,
        trace=session.trace(),
    )
