"""Laws that need a model: real decodes with a toy model, or with a model that you pass."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import torch

from wavefront.core.canvas import Canvas, blank
from wavefront.core.reading import Sampling
from wavefront.core.state import Config, Step
from wavefront.core.strategy import Strategy
from wavefront.engine.batcher import decode
from wavefront.models.loader import families
from wavefront.models.protocol import Model
from wavefront.models.toy import toy
from wavefront.testing.laws import require
from wavefront.testing.simulation import LENGTH, budgets
from wavefront.text.tokenizer import visible
from wavefront.traces.trace import Recorder

GREEDY = Sampling()
Models = Sequence[Model]  # the models to decode with; if empty, a toy of every family


def _canvas(model: Model) -> Canvas:
    """Return two prompts of unequal length, each before masked positions."""
    prompts = [[5, 6, 7], [8, 9, 10, 11, 12]]
    ids = {"mask_id": model.mask_id, "pad_id": model.pad_id}
    return blank(prompts, LENGTH, **ids, device=model.device)


def _cases(strategy: Strategy, models: Models) -> Iterator[tuple[Model, int]]:
    """Yield every model with every step budget."""
    toys = [toy(seed=3, family=family) for family in families()]
    yield from itertools.product(models or toys, budgets(strategy))


def _decode(
    strategy: Strategy, model: Model, steps: int, *, sampling: Sampling = GREEDY, wide: bool = False
) -> tuple[list[Step], Recorder]:
    """Decode two rows and record them; `wide` scores every position, not only candidates."""
    canvas = _canvas(model)
    config = Config(strategy=strategy, sampling=sampling)
    width = LENGTH if wide else 0
    found = decode(model, canvas, config, steps=[steps] * 2, seeds=[0, 1], min_width=width)
    recorder = Recorder(canvas, config, model.mask_id)
    return list(recorder.watch(found)), recorder


def ends_complete_and_final(strategy: Strategy, *models: Model) -> None:
    """Whatever the number of steps, every position is decided and final at the end."""
    for model, steps in _cases(strategy, models):
        found, _ = _decode(strategy, model, steps)
        last = found[-1]
        answer = last.canvas.slot >= 0
        require(not bool(last.canvas.masked.any()), f"{strategy!r} leaves positions undecided.")
        require(bool(last.final[answer].all()), f"{strategy!r} ends with a token not final.")
        require(bool(last.done.all()), f"{strategy!r} ends without being done.")


def scoring_candidates_is_enough(strategy: Strategy, *models: Model) -> None:
    """Scoring only the candidates commits the same tokens as scoring every position."""
    for model, steps in _cases(strategy, models):
        narrow, _ = _decode(strategy, model, steps)
        full, _ = _decode(strategy, model, steps, wide=True)
        # A step that was repeated committed nothing the first time.
        narrow_steps = [step for step in narrow if step.decision.commit.any()]
        full_steps = [step for step in full if step.decision.commit.any()]
        require(
            len(narrow_steps) == len(full_steps)
            and all(
                torch.equal(a.canvas.tokens, b.canvas.tokens)
                for a, b in zip(narrow_steps, full_steps, strict=True)
            ),
            f"{strategy!r} commits other tokens when only its candidates are scored.",
        )


def a_trace_replays(strategy: Strategy, *models: Model) -> None:
    """A recorded decode replays to the same canvas after every step."""
    for model, steps in _cases(strategy, models):
        found, recorder = _decode(strategy, model, steps)
        for step, canvas in zip(found, recorder.trace().replay(), strict=True):
            require(
                all(torch.equal(a, b) for a, b in zip(step.canvas, canvas, strict=True)),
                f"{strategy!r}: the replay of step {step.number} differs from the decode.",
            )


def stop_keeps_the_text(strategy: Strategy, *models: Model) -> None:
    """`eos="stop"` gives the same visible text as `keep`, in fewer steps."""
    for model, steps in _cases(strategy, models):
        slot = _canvas(model).slot
        kept, _ = _decode(strategy, model, steps)
        answer = kept[-1].canvas.tokens
        # Use a token that this decode produces, so that it stops early.
        stop_ids = (int(answer[slot >= 0].mode().values),)
        sampling = Sampling(eos="stop", stop_ids=stop_ids)
        stopped, _ = _decode(strategy, model, steps, sampling=sampling)
        for row in range(2):
            texts = [
                visible(run[-1].canvas.tokens[row][slot[row] >= 0].tolist(), stop_ids)
                for run in (kept, stopped)
            ]
            require(texts[0] == texts[1], f"{strategy!r}: stopping early changes the text.")
