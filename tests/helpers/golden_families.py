"""The golden cases of the newer families: published options as ours, and what was published."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

import wavefront
from wavefront.engine.layout import padding_before
from wavefront.models.families.dream import Net as Shifted

GOLDEN = Path(__file__).parents[1] / "golden"


class Published(NamedTuple):
    """What the published sampler did with one row, by position after its padding."""

    order: list[list[int]]  # per denoising pass, the positions that stopped being masks
    edits: list[list[int]]  # per denoising pass, the positions that were rewritten
    tokens: dict[int, int]  # the last token that was written at each position


@cache
def cases(folder: str) -> dict[str, Any]:
    return json.loads((GOLDEN / folder / "cases.json").read_text())


@cache
def model(
    folder: str, name: str, mask_id: int, *, shifted: bool, suppressed: tuple[int, ...]
) -> Any:
    path = GOLDEN / folder / name
    found: Any = wavefront.load_model(path, dtype="float32", device="cpu", mask_id=mask_id)
    parent = type(found)
    # Two options of Tiny-A2D's samplers. No position of its blocks is decided alone.
    if shifted:
        parts = {"sources": Shifted.sources, "shifted": False}
        found.__class__ = type("ShiftedNet", (parent,), parts)
    if suppressed:

        def head(self: Any, hidden: torch.Tensor) -> torch.Tensor:
            ids = torch.tensor(suppressed)
            return parent.head(self, hidden).index_fill(-1, ids, float("-inf"))

        found.__class__ = type("SuppressedNet", (parent,), {"head": head})
    return found


def checkpoint(folder: str, case: dict[str, Any]) -> Any:
    """Return the model of a case, with the mask id and the block size that the case names."""
    described = cases(folder)["models"][case["model"]]
    params = case["params"]
    name = described.get("checkpoint", case["model"])
    mask_id = params.get("mask_id", described["mask_id"])
    shifted = bool(params.get("right_shift_logits"))
    suppressed = tuple(params.get("suppress_tokens", ()))
    return model(folder, name, mask_id, shifted=shifted, suppressed=suppressed)


def prompts(case: dict[str, Any]) -> list[list[int]]:
    """Return the prompts without the padding of the fixtures; our code pads them itself."""
    rows = case.get("prompts") or case["prompt"]
    rows = rows if isinstance(rows[0], list) else [rows]
    marks = case.get("attention_mask") or [[1] * len(row) for row in rows]
    return [
        [token for token, real in zip(row, mark, strict=True) if real]
        for row, mark in zip(rows, marks, strict=True)
    ]


def published(trace: list[dict[str, Any]], row: int = 0, padding: int = 0) -> Published:
    """Read a trace. Entries of one row may leave out the list of rows."""
    entries = [entry["rows"][row] if "rows" in entry else entry for entry in trace]
    tokens: dict[int, int] = {}
    for entry in entries:
        written = zip(entry["positions"], entry["tokens"], strict=True)
        rewritten = zip(entry.get("edited_positions", []), entry.get("edited_to", []), strict=True)
        tokens |= {place - padding: token for place, token in (*written, *rewritten)}
    return Published(
        [[place - padding for place in entry["positions"]] for entry in entries],
        [[place - padding for place in entry.get("edited_positions", [])] for entry in entries],
        tokens,
    )


def boards(found: wavefront.GeneratedIds) -> list[list[int]]:
    """Return the whole canvas of every row, with the positions that `max_new_tokens` cut off."""
    assert found.trace is not None
    *_, last = found.trace.replay()
    rows = zip(last.tokens, last.real, strict=True)
    return [tokens[real].tolist() for tokens, real in rows]


def edits(found: wavefront.GeneratedIds) -> list[list[int]]:
    """Return the edited positions of every step of the first row."""
    trace = found.trace
    assert trace is not None
    first = int(trace.first.real[0].long().argmax())
    made = torch.zeros_like(trace.commit) if trace.edit is None else trace.edit
    return [(step.nonzero()[:, 0] - first).tolist() for step in made[:, 0]]


def padding_of(model: Any, case: dict[str, Any], row: int) -> int:
    """Return the padding that the published code puts before a row."""
    lengths = [len(prompt) for prompt in prompts(case)]
    longest = max(lengths)
    return longest + padding_before(model, longest) - lengths[row] if model.padded_blocks else 0


def passes(case: dict[str, Any]) -> int:
    """Return the denoising passes of the slowest row.

    The published code makes all rows wait at the end of every block; our rows go on.
    """
    rows = range(len(prompts(case)))
    orders = [published(case["expected"]["trace"], row).order for row in rows]
    return max(sum(map(bool, order)) for order in orders)


def blocks_of(params: dict[str, Any]) -> int:
    length = params.get("gen_length") or params["max_new_tokens"]
    return -(-length // (params.get("block_length") or params["block_size"]))


def ends(stop_ids: list[int], eos: str = "stop-block") -> dict[str, Any]:
    """Return the options that end an answer after its stop token, if there is one."""
    return {"eos": eos if stop_ids else "keep", "stop_ids": stop_ids}


def floor(tau: float, count: int | None = None) -> str:
    return f"threshold(tau={tau}, floor={count})"


def sdar_options(params: dict[str, Any]) -> dict[str, Any]:
    strategy = {
        "low_confidence_static": "standard",
        "low_confidence_dynamic": f"standard(selector={floor(params['confidence_threshold'])})",
        "sequential": "left_to_right",
    }[params["remasking_strategy"]]
    return {
        "strategy": strategy,
        "max_new_tokens": params["gen_length"],
        "steps": params["denoising_steps"] * blocks_of(params),
        **ends(params["stopping_criteria_idx"] or []),
    }


def llada2_options(params: dict[str, Any]) -> dict[str, Any]:
    steps = params["steps_per_block"] if "steps_per_block" in params else params["steps"]
    length = params.get("gen_length") or params["max_new_tokens"]
    # The stand-alone sampler never stops, and the other one always does.
    stop_ids = [params["eos_id"]] if "gen_length" in params else []
    return {
        "strategy": f"standard(selector={floor(params['threshold'])})",
        "max_new_tokens": length,
        "steps": min(steps, length) * blocks_of(params),
        **ends(stop_ids, "stop" if params.get("eos_early_stop") else "stop-block"),
    }


def llada21_options(params: dict[str, Any]) -> dict[str, Any]:
    selector = floor(params["threshold"], params["num_to_transfer"])
    tau, extra = params["editing_threshold"], params["max_post_steps"]
    return {
        "strategy": f"edit(tau={tau}, extra_steps={extra}, selector={selector})",
        "max_new_tokens": params.get("gen_length") or params["max_new_tokens"],
        **ends([params["eos_id"]] if params.get("eos_early_stop") else []),
    }


def diffcoder_options(params: dict[str, Any]) -> dict[str, Any]:
    tau, stop = params["threshold"], params["eos_id"]
    selector = "share()" if tau is None else f"threshold(tau={tau})"
    return {
        "strategy": f"standard(selector={selector})",
        "max_new_tokens": params["gen_length"],
        "steps": params["steps"],
        **ends([] if stop is None else [stop]),
    }


def bd3lm_options(params: dict[str, Any], stop_id: int | None) -> dict[str, Any]:
    blocks = blocks_of(params)
    steps = params.get("steps_per_block") or -(-params["steps"] // blocks)
    return {
        "strategy": "standard(selector=share(rounding='nearest'))",
        "max_new_tokens": params["max_new_tokens"],
        "steps": steps * blocks,
        "cfg_scale": params.get("cfg_scale", 0.0),
        **ends([] if stop_id is None else [stop_id]),
    }


def mdlm_options(params: dict[str, Any]) -> dict[str, Any]:
    blocks = blocks_of(params)
    return {
        "strategy": f"block(size={params['block_size']}, selector=share(rounding='nearest'))",
        "max_new_tokens": params["max_new_tokens"],
        "steps": -(-params["steps"] // blocks) * blocks,
        "cfg_scale": params.get("cfg_scale", 0.0),
        "eos": "keep",
    }


def fast_dllm_options(params: dict[str, Any], *, eos: str) -> dict[str, Any]:
    inner = f"standard(selector=threshold(tau={params['threshold']}))"
    size, stop = params["small_block_size"], params["stop_token"]
    return {
        "strategy": f"blockwise(size={size}, strategy={inner}, origin='row', hide=False)",
        **ends([] if stop is None else [stop], eos),
    }


def var_options(params: dict[str, Any]) -> dict[str, Any]:
    """Return the options of iLLaDA's sampler of variable length."""
    size, steps, stop = params["block_length"], params["steps_per_block"], params["stop_id"]
    return {
        "strategy": f"blockwise(size={size}, steps={steps})",
        "max_new_tokens": params["gen_length"],
        **ends([] if stop is None else [stop]),
    }
