"""From a prepared call to a decode, and from the decode to the ids that a caller expects."""

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
from wavefront.engine.session import DecodeSession, check_ids, check_length, recorded, source
from wavefront.integrations.hf.from_generation_config import stop_ids, wished
from wavefront.integrations.hf.tokenizer import read_tokenizer
from wavefront.traces.trace import Trace

EOS = ("eos", "eos_policy", "logits_eos_inf", "confidence_eos_eot_inf")


@dataclass
class DiffusionOutput(ModelOutput):
    """What `return_dict_in_generate=True` returns."""

    sequences: Tensor | None = None  # (B, L) long: prompts, answers, padding
    forwards: int | None = None  # passes through the model
    tokens_per_forward: Tensor | None = None  # (B,) float: tokens of the answer, its end included
    history: tuple[Tensor, ...] | None = None  # (B, L) after every step, on request
    trace: Trace | None = None  # on request


class Ask(NamedTuple):
    """The rows of a prepared call, and which of their places are real."""

    ids: Tensor  # (B, P) long
    real: Tensor  # (B, P) bool
    infill: bool  # fill the mask tokens among the ids, and add no places

    def rows(self) -> list[list[int]]:
        """The real tokens of every row."""
        return [row[real].tolist() for row, real in zip(self.ids, self.real, strict=True)]


def settle(model: Any, ask: Ask, config: Any, given: dict[str, Any], tokenizer: Any) -> Plan:
    """Options, generation config and model, resolved; by default a decode stops at its end."""
    holes = places = None
    if ask.infill:
        holes = max(row.count(model.mask_id) for row in ask.rows())
        if holes == 0:
            raise PromptError(f"There is nothing to fill: write the mask token, {model.mask_id}.")
    else:
        places = int(config.max_length) - ask.ids.shape[1]
    wish = wished(config, given, places=places)
    wish.setdefault("stop_ids", stop_ids(config, model.stop_ids))
    if not any(name in wish for name in EOS) and wish["stop_ids"] and not ask.infill:
        wish["eos"] = "stop"
    known = tokenizer if tokenizer is not None else getattr(model, "tokenizer", None)
    return plan(wish, source(model, id_of=_id_of(known)), length=holes)


def _id_of(tokenizer: Any) -> Callable[[str], int] | None:
    """The token that a text is, for strategies that name one; needs a tokenizer."""

    def find(text: str) -> int:
        ids = read_tokenizer(tokenizer).encode(text)
        if len(ids) != 1:
            raise OptionError(f"{text!r} is {len(ids)} tokens of this model: name a single one.")
        return ids[0]

    return None if tokenizer is None else find


def begin(model: Any, ask: Ask, plan: Plan, *, record: str = "", copies: int = 1) -> DecodeSession:
    """The decode of the rows, the copies of a prompt each drawing its own answer."""
    rows = [check_ids(model, row) for row in ask.rows()]
    for row in rows:
        check_length(model, len(row), 0 if ask.infill else plan.length)
    given = {"mask_id": model.mask_id, "pad_id": model.pad_id, "device": model.device}
    if ask.infill:
        board = infill(rows, [[id == model.mask_id for id in row] for row in rows], **given)
    else:
        board = blank(rows, plan.length, **given)
    seeds = [(plan.seed + number % copies) % (1 << 63) for number in range(len(rows))]
    first = start(board, recorded(plan.config, record), [plan.steps] * len(rows), seeds)
    return DecodeSession(model, board, plan, record=record, state=first)


def placed(ask: Ask, canvas: Canvas, places: int) -> Tensor:
    """(B, P + places): a canvas, whose padding is its own, put back where the rows stood."""
    ids = torch.nn.functional.pad(ask.ids, (0, places))
    real = torch.nn.functional.pad(ask.real, (0, places), value=True)
    ids[real] = canvas.tokens[canvas.real].to(ids.device)
    return ids


def answered(
    ask: Ask, decoding: DecodeSession, history: Sequence[Canvas] | None, *, pad_id: int
) -> DiffusionOutput:
    """The result of a finished decode: rows cut behind their end, and padded to the longest."""
    settings = decoding.plan.config.sampling
    places = 0 if ask.infill else decoding.plan.length
    board, canvas = placed(ask, decoding.canvas, places), decoding.canvas
    width = ask.ids.shape[1]
    tokens, masked = board[:, width:], canvas.masked[:, canvas.masked.shape[1] - places :]
    masked = masked.to(board.device)
    stop = is_any(tokens, settings.stop_ids) & ~masked & (settings.eos != "keep")
    over = masked | (stop.long().cumsum(-1) - stop.long() > 0)
    kept = (~over).sum(-1)
    board[:, width:] = tokens.masked_fill(over, pad_id)
    filled = (canvas.slot >= 0).sum(-1) if ask.infill else kept
    steps = None if history is None else tuple(placed(ask, one, places) for one in history)
    return DiffusionOutput(
        sequences=board[:, : width + int(kept.max())],
        forwards=decoding.forwards,
        tokens_per_forward=filled.to(board.device) / max(1, decoding.forwards),
        history=steps,
        trace=decoding.trace(),
    )
