"""Draw docs/strategies/NAME.svg: how each strategy fills the same answer, one row per step.

python runs/draw_strategies.py [NAME ...]       (all of them: a minute or two on two cores)
"""

from __future__ import annotations

import random
import sys
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import torch

import wavefront
from wavefront import tasks
from wavefront.player.visible_text import visible
from wavefront.viewer.terminal_layout import END

OUT = Path(__file__).parent.parent / "docs" / "strategies"
N = 48  # places
PROBLEM = 179  # the model has to invent a name in it, so some places stay unsure for long
PLANS: dict[str, tuple[str, dict[str, Any]]] = {  # the strategy and other options
    "standard": ("standard()", {}),
    "block": ("block(size=8)", {}),
    "wavefront": ("wavefront(size=8, radius=2)", {}),
    "left_to_right": ("left_to_right()", {}),
    "adablock": ("adablock(size=12, share=0.5)", {}),
    "dsb": ("dsb(size=8)", {}),
    "dcd": ("dcd(masks=8, span=12)", {}),
    "rcr": ("rcr(size=48)", {"steps": 12}),
    "tbd": ("tbd(size=16, drop=4)", {}),
    "blockwise": ("blockwise(size=12, strategy=wavefront(size=4, radius=2))", {}),
    "edit": ("edit(tau=0.5, selector=threshold(tau=0.6))", {}),
    "wino": ("wino(size=24, keep=0.9, selector=threshold(tau=0.6))", {}),
    "tide": ("tide(cascade_rounds=4, horizon=12, selector=threshold(tau=0.9))", {}),
    "quota": ("block(size=16, selector=quota())", {"steps": 12}),
    "threshold": ("block(size=16, selector=threshold(tau=0.9))", {}),
    "factor": ("block(size=16, selector=factor(factor=1.0))", {}),
    "entropy_bound": ("block(size=16, selector=entropy_bound(gamma=0.01))", {}),
    "local_leap": ("block(size=16, selector=local_leap(tau=0.9, relaxed=0.75, radius=4))", {}),
    "hierarchy": ("block(size=16, selector=hierarchy(tau=0.9, low=0.4))", {}),
    "share": ("block(size=16, selector=share(rounding='nearest'))", {"steps": 12}),
    "dream": ("standard(selector=dream(eps=0.001))", {"steps": 12}),
    "origin": ("standard(selector=origin(eps=0.001))", {"steps": 12}),
    "speculate": ("wavefront(size=8, radius=2)", {"speculate": 4}),
}
KINDS = {  # dark and light, blue and orange: told apart by eyes that see few colours, too
    "now": ("fill='#0b5cad'", "committed at this step"),
    "before": ("fill='#c3d5ea'", "decided before"),
    "scope": ("fill='#ffe9a8'", "looked at"),
    "back": ("fill='#d55e00'", "remasked"),
    "hidden": ("fill='#d9d9d9'", "hidden from the model"),
    "front": ("fill='none' stroke='#8a5200'", "the front"),
    "forward": ("stroke='#222' stroke-width='.8'", "a new forward"),
}
LEFT, TOP, CELL = 36, 42, 12
CARD = """<svg xmlns='http://www.w3.org/2000/svg' width='640' height='{height}'
 font-family='ui-monospace,Menlo,Consolas,monospace' font-size='8' fill='#333'>
<style>.w{{font:10px sans-serif}}.s{{font-size:12px;font-weight:bold}}</style>
<rect width='640' height='{height}' rx='6' fill='#fff'/>
<text x='36' y='20' class='s'>{title}</text>
<text x='612' y='35' class='w' text-anchor='end'>{counts}</text>
<text x='4' y='35' class='w'>step ↓</text><text x='46' y='35' class='w'>place in the answer →</text>
{body}
</svg>
"""


class Decode(NamedTuple):
    """Return the positions of each kind at every step, its forward pass, and the answer."""

    steps: list[dict[str, list[bool]]]
    forwards: list[int]
    tokens: list[str]


def decode(lm: wavefront.LM, prompt: str, name: str) -> Decode:
    spec, options = PLANS[name]
    stream = lm.stream(prompt, strategy=spec, max_new_tokens=N, **options)
    strategy, canvas = stream.decoding.plan.config.strategy, stream.decoding.canvas
    state, none, rows, forwards = strategy.init(canvas), torch.zeros_like(canvas.masked), [], []
    for step in stream:
        commit, scope, after, remask, _, edit = step.decision
        commit = commit if edit is None else commit | edit  # both write a token
        seen, front = strategy.attended(canvas, state), strategy.front(state)
        back = none if remask is None else remask
        blind = none if seen is None else canvas.masked & ~seen & ~scope & ~commit
        asked = scope & canvas.masked & ~commit
        held = none if front is None else front
        boards = (commit & ~back, canvas.known & ~back, asked, back, blind, held)  # as in KINDS
        rows.append({k: b[0, -N:].tolist() for k, b in zip(KINDS, boards, strict=False)})
        forwards.append(step.forwards)
        if (commit | back).any():  # a step that was void leaves the state as it was
            canvas, state = step.canvas, after
    ids = canvas.tokens[0, -N:].tolist()
    shown = [END if i in lm.stop_ids else visible(lm.tokenizer.decode([i])).strip() for i in ids]
    return Decode(rows, forwards, shown)


def boxes(marks: list[bool], y: float, height: float, apart: bool = False) -> str:
    """Return a path around each stretch of marked positions, or around each position."""
    path = ""
    for _, group in groupby(range(N), lambda place: (marks[place], place * apart)):
        first, *rest = group
        if marks[first]:
            wide = CELL * (1 + len(rest)) - 1
            path += f"M{LEFT + CELL * first} {y:g}h{wide}v{height:g}h-{wide}z"
    return path


def text(words: object, x: float, y: float, style: str = "class='w'") -> str:
    return f"<text x='{x:g}' y='{y:g}' {style}>{escape(str(words))}</text>"


def draw(name: str, made: Decode) -> str:
    """Return the SVG: the steps from top to bottom, then the answer."""
    high = round(min(14.0, max(6.0, 160 / len(made.steps))), 1)
    (spec, options), paths, body = PLANS[name], dict.fromkeys(KINDS, ""), []
    for number, (row, forward) in enumerate(zip(made.steps, made.forwards, strict=True), 1):
        y = round(TOP + high * (number - 1), 1)
        for kind, marks in row.items():
            paths[kind] += boxes(marks, y, round(high - 1, 1), apart=kind in ("now", "back"))
        if "speculate" in options and forward not in made.forwards[: number - 1]:
            paths["forward"] += f"M{LEFT} {y - 0.5:g}h{CELL * N - 1}"
        if high > 9 or number % 8 == 1:  # there is room for as many numbers
            body.append(text(number, LEFT - 5, y + high / 2 + 2, "text-anchor='end'"))
            body.append(text(f"+{sum(row['now'])}", LEFT + CELL * N + 4, y + high / 2 + 2, ""))
    x, foot = LEFT, TOP + high * len(made.steps) + 4
    for place, token in enumerate(made.tokens):
        turn = f"transform='translate({LEFT + CELL * place + 3} {foot:g})rotate(90)'"
        body.append(text(token, 0, 0, turn))
    foot = round(foot + 16 + 5 * max(map(len, made.tokens)))
    for kind in filter(paths.get, KINDS):
        paint, words = KINDS[kind]
        swatch = f"M{x} {foot - 4}h12" if kind == "forward" else f"M{x} {foot}h12v-9h-12z"
        body += [f"<path d='{paths[kind]}{swatch}' {paint}/>", text(words, x + 17, foot)]
        x += 32 + round(5.4 * len(words))
    title = ", ".join([spec, *(f"{key}={value}" for key, value in options.items())])
    counts = f"{N} places · {len(made.steps)} steps · {made.forwards[-1]} forwards"
    return CARD.format(height=foot + 10, title=title, counts=counts, body="\n".join(body))


def main(names: list[str]) -> None:
    lm = wavefront.load("ripple", dtype="float64")  # all but tied places keep their turn anywhere
    sample = tasks.load("gsm").sample(random.Random(PROBLEM), split="held-out")
    for name in names or PLANS:
        made = decode(lm, sample.prompt, name)
        (OUT / f"{name}.svg").write_text(draw(name, made), encoding="utf-8")
        print(f"{name}: {len(made.steps)} steps: {' '.join(made.tokens)}")


if __name__ == "__main__":
    main(sys.argv[1:])
