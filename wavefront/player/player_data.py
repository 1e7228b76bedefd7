"""The data format of the player: a decode as a list of events.

The server sends these events while it decodes, and `decode_record` builds them from a trace. The
player in `assets/decode.js` reads both in the same way. Positions count from 0 over the answer.

The first event describes the canvas:

| key | meaning |
|---|---|
| `type` | `"start"` |
| `places` | number of positions to fill |
| `given` | `[position, token, text, null]` of positions that were filled before the first step |
| `around` | for infilling: the given texts and, between them, the number of positions; else null |
| `stop_ids` | the tokens that end an answer |
| `prompt` | `[role, text]` of each part of the prompt (traces only) |
| `show_ids` | true if no tokenizer was found and texts are token ids (traces only) |
| `joins` | `[first, count, text]` where several tokens make one character (traces only) |
| `texts` | text by token id, for the alternatives (traces only) |
| `alternatives` | number of tokens in each step's `beliefs` (traces only) |

Every further event is one step:

| key | meaning |
|---|---|
| `type` | `"step"` |
| `forwards` | forward passes launched up to this step |
| `seconds` | time since the start (server only) |
| `written` | `[position, token, text]` of tokens that a fork wrote before the step |
| `commits` | `[position, token, text, probability]`, and the alternatives if known |
| `back` | positions that were masked again |
| `front`, `scope` | positions as a list, or the same as base64 bits, first position first |
| `sure` | `[position, probability]` of the best token at masked positions (server only) |
| `beliefs` | base64 of the alternatives at every position: `tokens` (uint32), `chance` (uint8) |
| `end` | on the last step: the answer's `text` and its number of `tokens`, and with a constraint |
| | `pinned`, the positions whose text it leaves no choice about |
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from wavefront.player.token_text import TokenReader
from wavefront.traces.trace import Trace

MAX_BELIEF_BYTES = 3 << 19  # 1.5 MiB for the beliefs of one decode


class Summary(NamedTuple):
    """The totals of one decode. Tokens after the end of the answer do not count."""

    steps: int
    forwards: int
    tokens: int
    probability: float  # mean at the commits of the tokens that count
    taken_back: int
    text: str

    @property
    def tokens_per_forward(self) -> float:
        return self.tokens / self.forwards if self.forwards else 0.0


class DecodeRecord(NamedTuple):
    """One row of a trace for the player."""

    title: str
    file: str
    events: list[dict[str, Any]]
    summary: Summary

    def to_json(self) -> dict[str, Any]:
        """Return the part that the page embeds."""
        return {"title": self.title, "file": self.file, "events": self.events}


def header_options(trace: Trace) -> Mapping[str, Any]:
    """Return the options in a trace's header, or nothing if they are malformed."""
    found = trace.about.get("options")
    return found if isinstance(found, dict) else {}


def strategy(trace: Trace) -> str:
    """Return the spec string of a trace's strategy."""
    return str(header_options(trace).get("strategy", ""))


def decode_record(
    trace: Trace, reader: TokenReader, *, title: str, file: str, trim: bool
) -> DecodeRecord:
    """Build the events of a trace of one row; `trim` drops idle steps at its end."""
    events = trace.written[:, 0] | trace.remask[:, 0]
    steps = _trimmed_length(events) if trim else len(trace)
    made = [_start_event(trace, reader), *_step_events(trace, steps, reader)]
    _add_alternatives(made, trace, reader)
    summary = _summary(made[1:], trace, reader)
    if steps:
        made[-1]["end"] = {"text": summary.text, "tokens": summary.tokens}
        if trace.pinned is not None:
            pinned = trace.pinned[0, _positions(trace)]
            made[-1]["end"]["pinned"] = pinned.nonzero()[:, 0].tolist()
    return DecodeRecord(title, file, made, summary)


def final_tokens(trace: Trace) -> list[int | None]:
    """Return the last token at each position to fill; None where it is still masked."""
    *_, canvas = [trace.first, *trace.replay()]
    inside = _positions(trace)
    pairs = zip(canvas.tokens[0, inside].tolist(), canvas.masked[0, inside], strict=True)
    return [None if masked else token for token, masked in pairs]


def _positions(trace: Trace) -> Tensor:
    """Return the positions of the answer, counted on the whole canvas."""
    return trace.answer[0].nonzero()[:, 0]


def _start_event(trace: Trace, reader: TokenReader) -> dict[str, Any]:
    where, final = _positions(trace), final_tokens(trace)
    slot, tokens = trace.first.slot[0].tolist(), trace.first.tokens[0].tolist()
    real = trace.first.real[0].nonzero()[:, 0].tolist()
    masked = trace.first.masked[0, where].tolist()
    first = int(where[0]) if len(where) else len(tokens)
    infilling = any(slot[at] < 0 for at in real if at > first)
    around: list[str | int] = []
    run: list[int] = []
    for at in real if infilling else []:
        if slot[at] < 0:
            run.append(tokens[at])
            continue
        if run:
            around.append(reader.join(run))
            run = []
        if around and isinstance(around[-1], int):
            around[-1] += 1
        else:
            around.append(1)
    if run:
        around.append(reader.join(run))
    given = [(at, tokens[int(where[at])]) for at, open_ in enumerate(masked) if not open_]
    prompt = [] if infilling else [tokens[at] for at in real if at < first]
    return {
        "type": "start",
        "places": len(where),
        "given": [[at, token, reader.text(token), None] for at, token in given],
        "around": around if infilling else None,
        "stop_ids": _stop_ids(trace),
        "prompt": reader.turns(prompt),
        "show_ids": not reader.has_text,
        "joins": reader.joins([-1 if token is None else token for token in final]),
    }


def _step_events(trace: Trace, steps: int, reader: TokenReader) -> list[dict[str, Any]]:
    slot, where = trace.first.slot[0], _positions(trace)
    tokens, chance = trace.tokens[:, 0, where], _probability(trace.logp[:, 0, where])
    made: list[dict[str, Any]] = []
    for step in range(steps):
        committed = trace.written[step, 0, where].nonzero()[:, 0].tolist()
        made.append(
            {
                "type": "step",
                "forwards": int(trace.launched[step]),
                "commits": [
                    [at, token, reader.text(token), round(float(chance[step, at]), 4)]
                    for at, token in zip(committed, tokens[step, committed].tolist(), strict=True)
                ],
                "back": trace.remask[step, 0, where].nonzero()[:, 0].tolist(),
                "front": _bits(trace.front[step, 0, where]),
                "scope": _bits(trace.candidates[step, 0, where]),
            }
        )
    for step, _, at, token in trace.overrides.tolist():
        if step < steps and 0 <= slot[at] < len(where):
            written = made[step].setdefault("written", [])
            written.append([int(slot[at]), token, reader.text(token)])
    return made


def _add_alternatives(record: list[dict[str, Any]], trace: Trace, reader: TokenReader) -> None:
    """Add the likeliest tokens at every commit and, if they fit, at every masked position."""
    start, *events = record
    if trace.alternatives is None or not events:
        return
    where = _positions(trace)
    tokens = trace.alternatives.tokens[: len(events), 0, where]
    chance = _probability(trace.alternatives.logp[: len(events), 0, where])
    used: set[int] = set()
    for event, ids, probabilities in zip(events, tokens, chance, strict=True):
        for commit in event["commits"]:
            pairs = zip(ids[commit[0]].tolist(), probabilities[commit[0]].tolist(), strict=True)
            commit.append([[token, round(p, 4)] for token, p in pairs])
            used |= {token for token, _ in commit[4]}
    room = MAX_BELIEF_BYTES // (5 * len(events) * len(where)) if len(where) else 0
    count = min(room, tokens.shape[-1])
    if count:
        # Readings at known positions are not shown, so their tokens need no texts.
        masked = torch.stack([canvas.masked[0, where] for canvas in trace.before()])[: len(events)]
        filler = next((event["commits"][0][1] for event in events if event["commits"]), 0)
        kept = tokens[..., :count].where(masked[..., None], filler)
        used |= set(kept.unique().tolist())
        start["alternatives"] = count
        for event, ids, probabilities in zip(events, kept, chance[..., :count], strict=True):
            event["beliefs"] = {
                "tokens": _base64(ids.numpy().astype("<u4")),
                "chance": _base64((probabilities * 255).round().numpy().astype(np.uint8)),
            }
    start["texts"] = {str(token): reader.text(token) for token in sorted(used)}


def _summary(events: list[dict[str, Any]], trace: Trace, reader: TokenReader) -> Summary:
    final = final_tokens(trace)
    after_end = _after_end(_positions(trace).tolist(), final, _stop_ids(trace))
    read = [token for token, hidden in zip(final, after_end, strict=True) if not hidden]
    chances = [c[3] for event in events for c in event["commits"] if not after_end[c[0]]]
    return Summary(
        steps=len(events),
        forwards=events[-1]["forwards"] if events else 0,
        tokens=sum(token is not None for token in read),
        probability=sum(chances) / len(chances) if chances else 0.0,
        taken_back=sum(len(event["back"]) for event in events),
        text="".join("▒" if token is None else reader.text(token) for token in read),
    )


def _trimmed_length(events: Tensor) -> int:
    """Return the steps up to the last that changed the row; other rows may take longer."""
    changed = events.any(-1).nonzero()
    return int(changed[-1]) + 1 if len(changed) else 0


def _stop_ids(trace: Trace) -> list[int]:
    found = header_options(trace).get("stop_ids")
    return [token for token in found if isinstance(token, int)] if isinstance(found, list) else []


def _after_end(where: list[int], final: list[int | None], stops: list[int]) -> list[bool]:
    """Mark the positions of each hole from its first stop token on."""
    marks: list[bool] = []
    ended = False
    for number, (at, token) in enumerate(zip(where, final, strict=True)):
        if number and at != where[number - 1] + 1:
            ended = False
        ended = ended or token in stops
        marks.append(ended)
    return marks


def _probability(logp: Tensor) -> Tensor:
    return logp.float().exp().nan_to_num(0.0).clamp(0, 1)


def _bits(board: Tensor) -> str:
    return _base64(np.packbits(board.numpy()))


def _base64(array: np.ndarray) -> str:
    return base64.b64encode(array.tobytes()).decode()
