"""Laws of a strategy that need a model: a seeded toy decodes for real, or a model of yours."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import torch

from wavefront.core.canvas import Canvas, blank
from wavefront.core.reading import Sampling
from wavefront.core.state import Config, Step
from wavefront.core.strategy import Strategy
from wavefront.engine.batcher import decode
from wavefront.models.loader import Model, families
from wavefront.models.toy import toy
from wavefront.testing.laws import require
from wavefront.testing.simulation import PLACES, budgets
from wavefront.text.tokenizer import visible
from wavefront.traces.trace import Recorder

GREEDY = Sampling()
Models = Sequence[Model]  # those to hold a strategy on; without any, a toy of every family


def _canvas(model: Model) -> Canvas:
    prompts = [[5, 6, 7], [8, 9, 10, 11, 12]]
    ids = {"mask_id": model.mask_id, "pad_id": model.pad_id}
    return blank(prompts, PLACES, **ids, device=model.device)


def _each(strategy: Strategy, models: Models) -> Iterator[tuple[Model, int]]:
    """Every model with every budget."""
    toys = [toy(seed=3, family=family) for family in families()]
    yield from itertools.product(models or toys, budgets(strategy))


def _decode(
    strategy: Strategy, model: Model, steps: int, *, sampling: Sampling = GREEDY, wide: bool = False
) -> tuple[list[Step], Recorder]:
    """A decode of two rows, recorded; `wide` scores every place whatever the strategy reaches."""
    canvas = _canvas(model)
    config = Config(strategy=strategy, sampling=sampling)
    width = PLACES if wide else 0
    found = decode(model, canvas, config, steps=[steps] * 2, seeds=[0, 1], min_width=width)
    recorder = Recorder(canvas, config, model.mask_id)
    return list(recorder.watch(found)), recorder


def ends_complete_and_final(strategy: Strategy, *models: Model) -> None:
    """However many steps there are, everything is decided at the end, for good."""
    for model, steps in _each(strategy, models):
        found, _ = _decode(strategy, model, steps)
        last = found[-1]
        answer = last.canvas.slot >= 0
        require(not bool(last.canvas.masked.any()), f"{strategy!r} leaves places undecided.")
        require(bool(last.final[answer].all()), f"{strategy!r} ends with what is not final.")
        require(bool(last.done.all()), f"{strategy!r} ends without being done.")


def scoring_reach_is_enough(strategy: Strategy, *models: Model) -> None:
    """Scoring only the places in reach commits what scoring every place commits."""
    for model, steps in _each(strategy, models):
        narrow, _ = _decode(strategy, model, steps)
        whole, _ = _decode(strategy, model, steps, wide=True)
        # A step that had to be repeated committed nothing the first time.
        tried = [step for step in narrow if step.decision.commit.any()]
        first = [step for step in whole if step.decision.commit.any()]
        require(
            len(tried) == len(first)
            and all(
                torch.equal(a.canvas.tokens, b.canvas.tokens)
                for a, b in zip(tried, first, strict=True)
            ),
            f"{strategy!r} commits other tokens when only its reach is scored.",
        )


def a_trace_replays(strategy: Strategy, *models: Model) -> None:
    """A recorded decode, replayed, gives the same canvas after every step."""
    for model, steps in _each(strategy, models):
        found, recorder = _decode(strategy, model, steps)
        for step, canvas in zip(found, recorder.trace().replay(), strict=True):
            require(
                all(torch.equal(a, b) for a, b in zip(step.canvas, canvas, strict=True)),
                f"{strategy!r}: the replay of step {step.number} differs from the decode.",
            )


def stop_keeps_the_text(strategy: Strategy, *models: Model) -> None:
    """`eos="stop"` gives the visible text of `keep`, sooner."""
    for model, steps in _each(strategy, models):
        slot = _canvas(model).slot
        kept, _ = _decode(strategy, model, steps)
        answer = kept[-1].canvas.tokens
        # A token that this decode does produce, so that stopping has something to act on.
        stop_ids = (int(answer[slot >= 0].mode().values),)
        sampling = Sampling(eos="stop", stop_ids=stop_ids)
        stopped, _ = _decode(strategy, model, steps, sampling=sampling)
        for row in range(2):
            texts = [
                visible(run[-1].canvas.tokens[row][slot[row] >= 0].tolist(), stop_ids)
                for run in (kept, stopped)
            ]
            require(texts[0] == texts[1], f"{strategy!r}: stopping early changes the text.")
