"""Reel: one row of a trace as the player wants it, small enough to travel in a page.

Events are lists; what is there for every place at every step (scope, front, beliefs) is packed into
bytes. Steps count from 0 here, and the player's moment t is what stands after t of them.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from wavefront.player.token_text import Reader
from wavefront.traces.trace import Trace

BELIEFS = 3 << 19  # bytes for the beliefs of a decode, at most: 1.5 MiB


def options(trace: Trace) -> Mapping[str, Any]:
    """What the header says of the options; nothing when it says it in another way."""
    found = trace.about.get("options")
    return found if isinstance(found, dict) else {}


def strategy(trace: Trace) -> str:
    """The strategy's spec string."""
    return str(options(trace).get("strategy", ""))


def reel(trace: Trace, reader: Reader, *, title: str, place: str, cut: bool) -> dict[str, Any]:
    """Everything that the player knows of a trace of one row; `cut` drops idle steps at its end."""
    slot, given = trace.first.slot[0], trace.first.tokens[0]
    where = (slot >= 0).nonzero()[:, 0]  # the places to fill, from the left
    boards = [board[:, 0, where] for board in (trace.commit, trace.remask)]
    steps = _length(boards[0] | boards[1]) if cut else len(trace)
    commit, remask = (board[:steps] for board in boards)
    tokens, chance = trace.tokens[:steps, 0, where], _chance(trace.logp[:steps, 0, where])
    last, stops = final_tokens(trace), _stops(trace)
    real = trace.first.real[0].nonzero()[:, 0].tolist()
    start = int(where[0]) if len(where) else len(given)
    if any(slot[at] < 0 for at in real if at > start):
        start = 0  # a text with holes is one text: what comes before the first is no prompt
    return {
        "title": title,
        "place": place,
        "ids": not reader.reads,
        "lead": reader.turns([int(given[at]) for at in real if at < start]),
        # A number is a given text between holes; -1 is the next place to fill.
        "board": [
            -1 if slot[at] >= 0 else reader.number(int(given[at])) for at in real if at >= start
        ],
        "final": [-1 if token is None else reader.number(token) for token in last],
        "fill": [int(one) for one in _fill(where.tolist(), last, stops)],
        "stops": [reader.number(token) for token in stops if token in tokens[commit]],
        "joins": reader.joins([-1 if token is None else token for token in last]),
        "launched": trace.launched[:steps].tolist(),
        "commits": [
            [step, at, reader.number(int(tokens[step, at])), round(float(chance[step, at]), 4)]
            for step, at in commit.nonzero().tolist()
        ],
        "remasks": remask.nonzero().tolist(),
        "by_hand": [
            [step, int(slot[at]), reader.number(token)]
            for step, _, at, token in trace.overrides.tolist()
            if step < steps and slot[at] >= 0
        ],
        "scope": _bits(trace.scope[:steps, 0, where]),
        "front": _bits(trace.front[:steps, 0, where]),
        **_others(trace, where, commit, reader),
    }


def final_tokens(trace: Trace) -> list[int | None]:
    """What stands at the places to fill in the end; None where nothing was decided."""
    *_, canvas = [trace.first, *trace.replay()]
    inside = trace.first.slot[0] >= 0
    pairs = zip(canvas.tokens[0, inside].tolist(), canvas.masked[0, inside], strict=True)
    return [None if masked else token for token, masked in pairs]


def numbers(found: dict[str, Any]) -> dict[str, float]:
    """What a reel comes to, for the table over all of them."""
    seen = [at for at, token in enumerate(found["final"]) if token >= 0 and not found["fill"][at]]
    forwards = found["launched"][-1] if found["launched"] else 0
    chances = [commit[3] for commit in found["commits"] if not found["fill"][commit[1]]]
    return {
        "places": len(found["final"]),
        "steps": len(found["launched"]),
        "forwards": forwards,
        "tokens": len(seen),
        "per_forward": len(seen) / forwards if forwards else 0.0,
        "chance": sum(chances) / len(chances) if chances else 0.0,
        "taken_back": len(found["remasks"]),
    }


def _length(events: Tensor) -> int:
    """Steps up to the last that changed anything: in a batch, the others go on without it."""
    happened = events.any(-1).nonzero()
    return int(happened[-1]) + 1 if len(happened) else 0


def _stops(trace: Trace) -> list[int]:
    found = options(trace).get("stop_ids")
    return [one for one in found if isinstance(one, int)] if isinstance(found, list) else []


def _fill(where: list[int], last: list[int | None], stops: list[int]) -> list[bool]:
    """From the first stop token of a hole on, nobody reads it."""
    fill: list[bool] = []
    ended = False
    for number, (at, token) in enumerate(zip(where, last, strict=True)):
        if number and at != where[number - 1] + 1:
            ended = False
        ended = ended or token in stops
        fill.append(ended)
    return fill


def _chance(logp: Tensor) -> Tensor:
    return logp.float().exp().nan_to_num(0.0).clamp(0, 1)


def _others(trace: Trace, where: Tensor, commit: Tensor, reader: Reader) -> dict[str, Any]:
    """The likeliest tokens at every commit and, where there is room, at every step."""
    if trace.alternatives is None:
        return {}
    steps = len(commit)
    tokens = trace.alternatives.tokens[:steps, 0, where]
    chance = _chance(trace.alternatives.logp[:steps, 0, where])
    at_commits = [
        [[reader.number(token), round(p, 4)] for token, p in zip(*pair, strict=True)]
        for pair in zip(tokens[commit].tolist(), chance[commit].tolist(), strict=True)
    ]
    found: dict[str, Any] = {"others": at_commits}
    kept = [k for k in range(1, tokens.shape[-1] + 1) if 5 * k * commit.numel() <= BELIEFS]
    if kept and commit.numel():
        # What was read of a place that is known is of no use, and its tokens would want texts.
        open_ = torch.stack([canvas.masked[0, where] for canvas in trace.before()])[:steps]
        tokens = tokens.where(open_[..., None], tokens[commit][0, 0] if at_commits else 0)
        known, which = tokens[..., : kept[-1]].unique(return_inverse=True)
        texts = torch.tensor([reader.number(token) for token in known.tolist()])
        found["beliefs"] = {
            "count": kept[-1],
            "tokens": _bytes(texts[which].numpy().astype("<u4")),
            "chance": _bytes((chance[..., : kept[-1]] * 255).round().numpy().astype(np.uint8)),
        }
    return found


def _bits(board: Tensor) -> str:
    return _bytes(np.packbits(board.numpy(), axis=-1))


def _bytes(array: np.ndarray) -> str:
    return base64.b64encode(array.tobytes()).decode()
