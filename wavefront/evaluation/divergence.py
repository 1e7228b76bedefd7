"""Partings: where two decodes of the same item go different ways, and what each saw there.

Two strategies fill places in different orders from the start, so the order says little. What is
told is the first commit that matters: of all places that hold other tokens in the end, the one that
either decode decided first.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from wavefront.evaluation.paired import Changed, Pair, difference
from wavefront.evaluation.retell import Retelling
from wavefront.evaluation.run import Run
from wavefront.traces.trace import Trace

OPEN = "□"
BEFORE, AFTER = 12, 6  # places that are shown around a commit


class Event(NamedTuple):
    """A commit that lasted."""

    at: int  # step of the trace
    step: int  # the row's own, from 1
    place: int  # on the board
    token: int


class Sight(NamedTuple):
    """What one decode saw where it decided the place."""

    token: str | None  # None: it never decided it
    step: int | None
    probability: float | None
    known: int  # places of the answer that were decided
    around: str  # the text about the place as it stood, open places as boxes
    others: list[tuple[str, float]]  # the likeliest tokens there, from a full trace
    rival: float | None  # probability of what the other decode wrote; None: not among the others


class Parting(NamedTuple):
    """Where the decodes of an item part."""

    item: Changed
    order: int | None  # the first step at which they did not do the same
    slot: int  # place of the answer, from 0
    first: Sight
    second: Sight
    gap: float  # how differently the two saw the place: the larger, the more telling
    repeated: bool  # whether decoding again gave the texts that were recorded


def explain(
    first: Run,
    second: Run,
    *,
    verdict: str = "correct",
    common: bool = False,
    trust: bool = False,
    data: str = "",
    progress: Callable[[int, int], None] = lambda *_: None,
) -> tuple[Pair, list[Parting]]:
    """Every changed item, the most telling first."""
    pair = difference(first, second, verdict=verdict, common=common)
    teller = Retelling(trust=trust, data=data)
    wanted = [one for one in pair.changed if _asked(first, one) and _asked(second, one)]
    wanted = sorted(wanted, key=lambda one: teller.order(first, one.id))
    found = []
    for number, item in enumerate(wanted):
        progress(number, len(wanted))
        traces = [teller.trace(run, item.id) for run in (first, second)]
        repeated = all(teller.same(run, item.id) for run in (first, second))
        parting = part(item, *traces, repeated=repeated)
        found += [] if parting is None else [parting]
    progress(len(wanted), len(wanted))
    return pair, sorted(found, key=lambda one: (-one.gap, one.item.id))


def _asked(run: Run, item: Changed) -> bool:
    answer = next(one for one in run.answers.values() if one["id"] == item.id)
    return not answer.get("problem")


def part(item: Changed, first: Trace, second: Trace, *, repeated: bool = True) -> Parting | None:
    """Where two traces of one row each part; None when they come to the same."""
    one, two = lasting(first), lasting(second)
    end = max(_visible(first, one), _visible(second, two))
    slots = [
        slot
        for slot in one.keys() | two.keys()
        if slot <= end and _token(one, slot) != _token(two, slot)
    ]
    if not slots:
        return None
    slot = min(slots, key=lambda slot: (_when(one, two, slot), slot))
    mine = _sight(first, one.get(slot), _token(two, slot))
    other = _sight(second, two.get(slot), _token(one, slot))
    return Parting(item, _order(first, second), slot, mine, other, _gap(mine, other), repeated)


def lasting(trace: Trace) -> dict[int, Event]:
    """The commits of a row that were not taken back, by slot."""
    slot, found = trace.first.slot[0].tolist(), {}
    commits, remasks = trace.commit[:, 0], trace.remask[:, 0]
    for at in range(len(trace)):
        for place in commits[at].nonzero()[:, 0].tolist():
            token = int(trace.tokens[at, 0, place])
            found[slot[place]] = Event(at, int(trace.step[at, 0]) + 1, place, token)
        for place in remasks[at].nonzero()[:, 0].tolist():
            found.pop(slot[place], None)
    return found


def _token(events: dict[int, Event], slot: int) -> int | None:
    return events[slot].token if slot in events else None


def _when(one: dict[int, Event], two: dict[int, Event], slot: int) -> int:
    return min(events[slot].step for events in (one, two) if slot in events)


def _visible(trace: Trace, events: dict[int, Event]) -> int:
    """The slot of the first end token; what follows it is not read."""
    stops = trace.about.get("options", {}).get("stop_ids", [])
    return min(
        (slot for slot, event in events.items() if event.token in stops),
        default=max(events, default=-1),
    )


def _order(first: Trace, second: Trace) -> int | None:
    one, two = _story(first), _story(second)
    steps = [step for step in one.keys() | two.keys() if one.get(step) != two.get(step)]
    return min(steps, default=None)


def _story(trace: Trace) -> dict[int, set[tuple[int, int]]]:
    slot, story = trace.first.slot[0].tolist(), {}
    for at, place in trace.commit[:, 0].nonzero().tolist():
        entry = (slot[place], int(trace.tokens[at, 0, place]))
        story.setdefault(int(trace.step[at, 0]) + 1, set()).add(entry)
    return story


def _sight(trace: Trace, event: Event | None, rival: int | None) -> Sight:
    text: Callable[[int], str] = lambda token: _text(trace, token)  # noqa: E731
    if event is None:
        return Sight(None, None, None, 0, "", [], None)
    canvas = next(one for at, one in enumerate(trace.before()) if at == event.at)
    real, slot = canvas.real[0], canvas.slot[0]
    known = int((canvas.known[0] & (slot >= 0)).sum())
    around = []
    for place in range(max(0, event.place - BEFORE), min(len(slot), event.place + AFTER + 1)):
        if place == event.place:
            around.append(f"[{text(event.token)}]")
        elif bool(real[place]):
            open_ = bool(canvas.masked[0, place])
            around.append(OPEN if open_ else text(int(canvas.tokens[0, place])))
    others: list[tuple[int, float]] = []
    if trace.alternatives is not None:
        ids = trace.alternatives.tokens[event.at, 0, event.place].tolist()
        logp = trace.alternatives.logp[event.at, 0, event.place].tolist()
        others = [(token, math.exp(p)) for token, p in zip(ids, logp, strict=True)]
    probability = math.exp(float(trace.logp[event.at, 0, event.place]))
    named = [(text(token), p) for token, p in others]
    seen = dict(others).get(-1 if rival is None else rival)
    return Sight(text(event.token), event.step, probability, known, "".join(around), named, seen)


def _text(trace: Trace, token: int) -> str:
    texts: dict[str, Any] = trace.about.get("texts", {})
    return str(texts.get(str(token), f"<{token}>"))


def _gap(one: Sight, two: Sight) -> float:
    """How sure each was of its own token beyond what the other gave that token; the larger."""
    return max(_beyond(one, two), _beyond(two, one))


def _beyond(one: Sight, two: Sight) -> float:
    if one.probability is None:
        return 0.0
    if two.others:
        return one.probability - (two.rival or 0.0)
    # A basic trace keeps what was committed only.
    return abs(one.probability - (two.probability or 0.0))
