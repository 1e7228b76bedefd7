"""What happened in a trace, one event a line: for spreadsheets, scripts, and comparisons."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from wavefront.viewer import TraceTexts, printable

if TYPE_CHECKING:
    from wavefront.traces.trace import Trace

# Of two events at one step and place, the first that happens.
KINDS = ("by hand", "commit", "take back")
COLUMNS = (
    *("step", "forward", "row", "place", "position", "event", "token", "text"),
    "probability",
)


class Change(NamedTuple):
    """A place where two answers differ; None where one has nothing to show."""

    place: int  # counted over the places to fill
    before: str | None
    after: str | None


def events(trace: Trace) -> Iterator[dict[str, Any]]:
    """Everything that was written or taken back, in order."""
    texts, slot = TraceTexts(trace.about), trace.first.slot
    found: list[tuple[int, int, int, int, int | None]] = []
    for step, row, place, token in trace.overrides.tolist():
        found.append((step, row, 0, place, token))
    for number, board in enumerate((trace.commit, trace.remask), 1):
        tokens = trace.tokens[board].tolist() if number == 1 else [None] * int(board.sum())
        for (step, row, place), token in zip(board.nonzero().tolist(), tokens, strict=True):
            found.append((step, row, number, place, token))
    for step, row, kind, position, token in sorted(found, key=lambda one: one[:4]):
        # A draft makes several steps of one forward; so the forward is not the step.
        yield {
            "step": step,
            "forward": int(trace.launched[step]),
            "row": row,
            "place": int(slot[row, position]),
            "position": position,
            "event": KINDS[kind],
            "token": token,
            "text": None if token is None else texts.pieces([token])[0],
            "probability": _probability(trace, step, row, position) if kind == 1 else None,
        }


def _probability(trace: Trace, step: int, row: int, position: int) -> float | None:
    chance = math.exp(min(0.0, float(trace.logp[step, row, position])))
    return round(chance, 6) if math.isfinite(chance) else None


def print_csv(trace: Trace, out: IO[str]) -> None:
    """A line per event under a line of names."""
    lines = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    lines.writeheader()
    for event in events(trace):
        # On a terminal nothing that a model wrote may act.
        if out.isatty() and event["text"] is not None:
            event["text"] = printable(event["text"])
        lines.writerow(event)


def print_json(trace: Trace, out: IO[str]) -> None:
    """One object: what the trace says of itself, and the events."""
    about = {n: v for n, v in trace.about.items() if n not in ("texts", "special_ids")}
    rows, length = trace.first.tokens.shape
    header = {"steps": len(trace), "rows": rows, "length": length, "forwards": trace.forwards}
    json.dump({**header, "about": about, "events": list(events(trace))}, out)
    out.write("\n")


def differences(before: Trace, after: Trace) -> list[Change]:
    """Where what is to be seen of the first row differs between two decodes of one canvas."""
    one, two = _visible(before), _visible(after)
    places = before.first.slot[0].tolist()
    pairs = ((place, one.get(at), two.get(at)) for at, place in enumerate(places) if place >= 0)
    return [Change(*found) for found in pairs if found[1] != found[2]]


def _visible(trace: Trace) -> dict[int, str]:
    """Position -> text, of what stands before the end of each hole."""
    texts, shown, ended = TraceTexts(trace.about), {}, False
    *_, last = [trace.first, *trace.replay()]
    stops = trace.about["options"]["stop_ids"]
    row = (part[0].tolist() for part in (last.tokens, last.masked, last.slot))
    for position, (token, masked, place) in enumerate(zip(*row, strict=True)):
        ended = place >= 0 and (ended or masked or token in stops)
        if not ended:
            shown[position] = texts.pieces([token])[0]
    return shown
