"""Draw docs/strategies/NAME.svg: how each strategy fills one and the same answer, a row a step.

    python runs/draw_strategies.py            (all of them: two or three minutes on two cores)
    python runs/draw_strategies.py dsb tide   (some)

In float64, so that places which are all but tied keep their turn on any machine.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

import wavefront
from wavefront import tasks
from wavefront.watch.picture import BREAK, END, visible

OUT = Path(__file__).parent.parent / "docs" / "strategies"
PLACES = 48
PROBLEM = 179  # one where the model must invent a name, so that some places stay unsure for long


class Plan(NamedTuple):
    """What is decoded for a picture."""

    schedule: str
    steps: int = PLACES
    draft: int = 0


PLANS = {
    "standard": Plan("standard()"),
    "block": Plan("block(size=8)"),
    "wavefront": Plan("wavefront(size=8, radius=2)"),
    "left_to_right": Plan("left_to_right()"),
    "adablock": Plan("adablock(size=12, share=0.5)"),
    "dsb": Plan("dsb(size=8)"),
    "dcd": Plan("dcd(masks=8, span=12)"),
    "rcr": Plan("rcr(size=48)", steps=12),
    "tbd": Plan("tbd(size=16, drop=4)"),
    "tide": Plan("tide(size=8, radius=2, rounds=4, take=threshold(tau=0.9))"),
    "quota": Plan("block(size=16, take=quota())", steps=12),
    "threshold": Plan("block(size=16, take=threshold(tau=0.9))"),
    "factor": Plan("block(size=16, take=factor(factor=1.0))"),
    "entropy_bound": Plan("block(size=16, take=entropy_bound(gamma=0.01))"),
    "local_leap": Plan("block(size=16, take=local_leap(tau=0.9, relaxed=0.75, radius=4))"),
    "dream": Plan("standard(take=dream(eps=0.001))", steps=12),
    "origin": Plan("standard(take=origin(eps=0.001))", steps=12),
    "draft": Plan("wavefront(size=8, radius=2)", draft=4),
}

# Told apart by eyes that see few colours, too: dark and light, and blue against orange.
KINDS = {
    "now": ("#0b5cad", "committed at this step"),
    "before": ("#c3d5ea", "decided before"),
    "back": ("#d55e00", "taken back"),
    "scope": ("#ffe08a", "looked at"),
    "hidden": ("#dddddd", "hidden from the model"),
}
FRONT = "#7a4a00"
WIDTH, LEFT, TOP, CELL = 640, 40, 44, 12
MONO = "font-family='ui-monospace, Menlo, Consolas, monospace'"


class Row(NamedTuple):
    """One step: what became of each place, which were on the front, and whose forward it was."""

    kinds: list[str]
    front: list[bool]
    forward: int


def rows(lm: wavefront.LM, prompt: str, plan: Plan) -> Iterator[tuple[Row, Tensor]]:
    """Every step of the decode, and the answer's tokens after it."""
    stream = lm.stream(
        prompt,
        schedule=plan.schedule,
        max_new_tokens=PLACES,
        steps=plan.steps,
        draft=plan.draft,
    )
    schedule, canvas = stream.decoding.plan.config.schedule, stream.decoding.canvas
    state = schedule.init(canvas)
    answer = canvas.slot[0] >= 0
    none = torch.zeros_like(canvas.masked)
    for step in stream:
        decision = step.decision
        remask = none if decision.remask is None else decision.remask
        seen = schedule.visible(canvas, state)
        front = schedule.front(state)
        boards = {  # the later ones are drawn over the earlier ones
            "hidden": none if seen is None else canvas.masked & ~seen,
            "scope": decision.scope & canvas.masked,
            "before": canvas.known,
            "now": decision.commit,
            "back": remask,
        }
        kinds = [""] * PLACES
        for kind, board in boards.items():
            marks = board[0, answer].tolist()
            kinds = [kind if mark else old for mark, old in zip(marks, kinds, strict=True)]
        marked = (none if front is None else front)[0, answer].tolist()
        yield Row(kinds, marked, step.forwards), step.canvas.tokens[0, answer]
        if (decision.commit | remask).any():  # a step that changed nothing has no say in the state
            canvas, state = step.canvas, decision.state


def runs(marks: list[bool]) -> Iterator[tuple[int, int]]:
    """(start, length) of every stretch of marks."""
    start = None
    for place, mark in enumerate([*marks, False]):
        if mark and start is None:
            start = place
        elif not mark and start is not None:
            yield start, place - start
            start = None


def draw(plan: Plan, steps: list[Row], tokens: list[str]) -> str:
    """The picture as SVG: the steps from top to bottom, the answer below them."""
    height = min(14.0, max(6.0, 168 / len(steps)))
    gap = 1 if height > 7 else 0.6
    below = TOP + height * len(steps)
    foot = below + 10 + 5.2 * max(map(len, tokens))
    paths = {kind: "" for kind in KINDS}
    outline, lines, counts = "", "", []
    for number, row in enumerate(steps):
        y = TOP + height * number
        for kind in KINDS:
            marks = [one == kind for one in row.kinds]
            # What is new is drawn place by place; the rest in stretches.
            found = runs(marks) if kind not in ("now", "back") else ((p, 1) for p in range(PLACES) if marks[p])
            for start, length in found:
                wide = CELL * length - 1
                paths[kind] += f"M{LEFT + CELL * start} {y:g}h{wide}v{height - gap:g}h-{wide}z"
        for start, length in runs(row.front):
            wide = CELL * length - 1
            outline += f"M{LEFT + CELL * start} {y:g}h{wide}v{height - gap:g}h-{wide}z"
    return ""
