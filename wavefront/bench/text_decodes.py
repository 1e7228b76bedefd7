"""Texts: whole answers to held-out problems, ours beside the LLaDA-style loop on the same weights.

Here an early end counts, and so does what came out: every way is compared with the loop it is to
equal, or with the same strategy without a cache.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from wavefront import tasks
from wavefront.bench import reference_loops
from wavefront.bench.results import Row, row
from wavefront.bench.settings import BLOCK
from wavefront.bench.step_rows import Stage
from wavefront.bench.timing import summary
from wavefront.engine.session import begin
from wavefront.lm import LM
from wavefront.text.tokenizer import prompt_ids, visible

WAVE = "wavefront(size=8, radius=2)"
CASCADE = "tide(cascade_rounds=8, horizon=64, selector=threshold(tau=0.9))"


class Way(NamedTuple):
    """One way to decode; `like` names the way whose text it is compared with."""

    strategy: str
    eos: str = "keep"
    cache: str | None = None
    like: str | None = None


# In this order: what a way is compared with comes before it.
WAYS = {
    "text-standard-stop": Way("standard", "stop", like="text-llada"),
    "text-block-stop": Way(f"block(size={BLOCK})", "stop", like="text-llada-block"),
    "text-wave-stop": Way(WAVE, "stop"),
    "text-wave-defer": Way(WAVE, "defer"),
    "text-cached-stop": Way(WAVE, "stop", "wave(refresh=32)", like="text-wave-stop"),
    "text-cached-defer": Way(WAVE, "defer", "wave(refresh=32)", like="text-wave-defer"),
    "text-narrow-defer": Way(
        WAVE, "defer", "wave(refresh=32, size=32, near=4)", like="text-wave-defer"
    ),
    "text-cascade": Way(CASCADE, "defer", like="text-wave-defer"),
    "text-cascade-cached": Way(CASCADE, "defer", "wave(refresh=8)", like="text-cascade"),
}


class Answer(NamedTuple):
    """What one decode came to."""

    seconds: float
    forwards: int
    share: float  # places computed, in forwards over the whole canvas
    tokens: list[int]
    right: bool


def text_rows(stage: Stage) -> tuple[list[Row], list[str]]:
    """A row a way, times of a whole answer; and the problems as notes."""
    settings = stage.settings
    lm = settings.lm
    if lm is None or stage.llada is None:
        return [], [f"{settings.name}: no texts, which need a LLaDA checkpoint with a tokenizer."]
    task = tasks.load("gsm")
    draw = random.Random("bench")
    found: dict[str, list[Answer]] = {}
    for _ in range(1 if settings.quick else settings.items):
        item = task.sample(draw, split="held-out")
        ids = prompt_ids(lm.tokenizer, item.prompt)
        for name, decode in _ways(stage, lm, ids).items():
            settings.tick(name)
            began = settings.now()
            tokens, forwards, share = decode()
            seconds = settings.now() - began
            right = task.grade(item, lm.tokenizer.decode(tokens)).correct
            found.setdefault(name, []).append(Answer(seconds, forwards, share, tokens, right))
    return [_row(name, made, found, settings.places) for name, made in found.items()], []


Decode = Callable[[], tuple[list[int], int, float]]


def _ways(stage: Stage, lm: LM, ids: list[int]) -> dict[str, Decode]:
    made: dict[str, Decode] = {
        "text-llada": lambda: _loop(stage, lm, ids, None),
        "text-llada-block": lambda: _loop(stage, lm, ids, BLOCK),
    }
    for name, way in WAYS.items():
        made[name] = lambda way=way: _ours(stage, lm, ids, way)
    return made


def _loop(stage: Stage, lm: LM, ids: list[int], block: int | None) -> tuple[list[int], int, float]:
    places, model = stage.settings.places, stage.llada
    assert model is not None
    canvas = torch.full((1, len(ids) + places), model.mask_id, device=stage.model.device)
    canvas[0, : len(ids)] = torch.tensor(ids)
    for _ in reference_loops.llada(model, canvas, len(ids), steps=places, block=block):
        pass
    return visible(canvas[0, len(ids) :].tolist(), lm.stop_ids), places, float(places)


def _ours(stage: Stage, lm: LM, ids: list[int], way: Way) -> tuple[list[int], int, float]:
    options: dict[str, Any] = {
        "strategy": way.strategy,
        "eos": way.eos,
        "cache": way.cache,
        "max_new_tokens": stage.settings.places,
    }
    made = begin(lm.model, [ids], options, stop_ids=lm.stop_ids, id_of=lm._id_of).drain()
    tokens = visible(made.answers()[0], lm.stop_ids)
    return tokens, made.forwards, made.token_forwards / made.canvas.tokens.numel()


def _row(name: str, made: list[Answer], found: dict[str, list[Answer]], places: int) -> Row:
    way = WAYS.get(name)
    base = found["text-llada"]
    spent = sum(one.seconds for one in made)
    shown = sum(len(one.tokens) + 1 for one in made)  # and the token that ends it
    forwards = sum(one.forwards for one in made)
    said = [f"{forwards / len(made):.0f} forwards", f"{shown / forwards:.2f} tokens a forward"]
    said.append(f"{sum(one.right for one in made)}/{len(made)} right")
    if way and way.like:
        pairs = list(zip(made, found[way.like], strict=True))
        same = sum(one.tokens == two.tokens for one, two in pairs)
        said.append(f"{same}/{len(pairs)} texts as {way.like.removeprefix('text-')}")
    what = f"{way.strategy}, {way.eos}" if way else f"LLaDA-style loop, {name[5:]}"
    cache = f", {way.cache}" if way and way.cache else ""
    return row(
        name,
        f"whole answer: {what}{cache}",
        summary([one.seconds for one in made]),
        length=places,
        tokens_per_s=len(made) * places / spent if not way or way.eos == "keep" else None,
        visible_per_s=shown / spent,
        reference="text-llada" if way else None,
        ratio=sum(one.seconds for one in base) / spent if way else None,
        strategy=way.strategy if way else None,
        cache=way.cache if way else None,
        note="; ".join(said),
    )
