"""Laws that need a model: real decodes with a toy model, or with a model that you pass."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator, Sequence

import torch

from wavefront.core.canvas import Canvas, blank
from wavefront.core.constraint import TokenAutomaton
from wavefront.core.errors import OptionError, WavefrontWarning
from wavefront.core.reading import Sampling
from wavefront.core.state import Config, Step
from wavefront.core.strategy import Strategy
from wavefront.engine.batcher import decode
from wavefront.engine.layout import padding_before
from wavefront.engine.options import by_block
from wavefront.engine.session import block_rules
from wavefront.models.protocol import Model
from wavefront.models.toy import toy
from wavefront.strategies.caches.blocks import Blocks
from wavefront.testing.laws import LawBroken, require
from wavefront.testing.simulation import LENGTH, budgets
from wavefront.text.tokenizer import visible_tokens
from wavefront.traces.trace import Recorder

GREEDY = Sampling()
PROMPTS = [[5, 6, 7], [8, 9, 10, 11, 12]]
Models = Sequence[Model]  # the models to decode with; if empty, toys of `FAMILIES`
# One family for each kind of model that a step treats differently: outputs that predict the next
# position, plain ones, and attention by block.
FAMILIES = ("dream", "llada", "sdar")
# Attention by block: with that shift, with experts, with a padded prompt, and plain.
BLOCK_FAMILIES = ("fast_dllm_v2", "llada2", "a2d", "sdar")
BLOCK = 4  # of a toy whose family has no default, because it is also published as bidirectional


def _canvas(model: Model) -> Canvas:
    """Return two prompts of unequal length, each followed by masked positions."""
    return _prompts(model, [LENGTH] * len(PROMPTS))


def _prompts(model: Model, lengths: Sequence[int]) -> Canvas:
    """Return the prompts, each followed by its number of masked positions."""
    padding = padding_before(model, max(map(len, PROMPTS)))
    ids = {"mask_id": model.mask_id, "pad_id": model.pad_id}
    return blank(PROMPTS, lengths, **ids, device=model.device, padding=padding)


def _cases(strategy: Strategy, models: Models) -> Iterator[tuple[Model, int]]:
    """Yield every model with every step budget."""
    toys = [toy(seed=3, family=family) for family in FAMILIES]
    yield from itertools.product(models or toys, budgets(strategy))


def _decode(
    strategy: Strategy,
    model: Model,
    steps: int,
    *,
    sampling: Sampling = GREEDY,
    wide: bool = False,
    constraint: TokenAutomaton | None = None,
) -> tuple[list[Step], Recorder]:
    """Decode two rows and record them; `wide` scores every position, not only candidates."""
    canvas = _canvas(model)
    config = Config(strategy=strategy, sampling=sampling, constraint=constraint)
    width = LENGTH if wide else 0
    found = decode(model, canvas, config, steps=[steps] * 2, seeds=[0, 1], min_width=width)
    recorder = Recorder(canvas, config, model.mask_id)
    return list(recorder.watch(found)), recorder


def ends_complete_and_final(strategy: Strategy, *models: Model) -> None:
    """With any number of steps, every position is decided and final at the end."""
    for model, steps in _cases(strategy, models):
        found, _ = _decode(strategy, model, steps)
        last = found[-1]
        answer = last.canvas.slot >= 0
        require(not bool(last.canvas.masked.any()), f"{strategy!r} leaves positions undecided.")
        require(bool(last.final[answer].all()), f"{strategy!r} ends with a non-final token.")
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
            f"{strategy!r} commits different tokens when only its candidates are scored.",
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
                visible_tokens(run[-1].canvas.tokens[row][slot[row] >= 0].tolist(), stop_ids)
                for run in (kept, stopped)
            ]
            require(texts[0] == texts[1], f"{strategy!r}: stopping early changes the text.")


def stays_in_the_language(strategy: Strategy, *models: Model) -> None:
    """With a constraint, the finished answer is in the language, whatever the model says."""
    outside = (
        f"{strategy!r} writes tokens together that a constraint does not allow together; "
        "`without` must leave out everything that was dropped."
    )
    for model, steps in _cases(strategy, models):
        try:
            found, _ = _decode(strategy, model, steps, constraint=_alternation(model))
        except OptionError as error:  # what was written cannot be completed any more
            raise LawBroken(outside) from error
        last = found[-1].canvas
        require(
            not bool(last.masked.any()),
            f"{strategy!r} leaves positions undecided if the answer has a constraint.",
        )
        for row, slot in zip(last.tokens, last.slot, strict=True):
            answer = row[slot >= 0].tolist()
            alternates = all(one % 2 != two % 2 for one, two in itertools.pairwise(answer))
            require(alternates and model.mask_id not in answer, outside)


def _alternation(model: Model) -> TokenAutomaton:
    """Return the language in which even and odd token ids alternate.

    Any token may stand anywhere, but two positions allow each other or not, however far apart.
    """
    kind = 1 + torch.arange(model.vocab_size) % 2
    kind[model.mask_id] = 0
    edges = [[0, 1, 1], [0, 2, 2], [1, 2, 2], [2, 1, 1]]
    return TokenAutomaton(torch.tensor(edges), kind, states=3, accepting=[0, 1, 2])


def blocks_are_exact(strategy: Strategy, *models: Model) -> None:
    """In a block-causal model, neither the cache nor the blocks to come change a token.

    A strategy that hides positions of a block is refused there, and a warning says so.
    """
    chosen = [model for model in models if model.block_size is not None]
    for model in chosen or [_block_toy(family) for family in BLOCK_FAMILIES]:
        rules = block_rules(model)
        assert rules is not None
        if strategy.hides(rules.size):
            warnings.warn(
                f"blocks_are_exact is not checked for {strategy!r} with {model.family}: it hides "
                f"positions of a block of {rules.size}, so block-causal models refuse it.",
                WavefrontWarning,
                stacklevel=2,
            )
            continue
        ends = [0 if rules.padded else len(prompt) for prompt in PROMPTS]
        lengths = [LENGTH - (end + LENGTH) % rules.size for end in ends]
        inside = by_block(strategy, rules, LENGTH, steps=budgets(strategy)[0])
        plain = _answers(inside, model, lengths, cache=None)
        require(
            plain == _answers(inside, model, lengths, cache=Blocks()),
            f"{strategy!r} decodes different tokens with the exact cache of a block-causal model.",
        )
        cut = [length - rules.size for length in lengths]
        require(
            [row[:length] for row, length in zip(plain, cut, strict=True)]
            == _answers(inside, model, cut, cache=None),
            f"{strategy!r} decodes different tokens when the canvas ends after the current block.",
        )


def _block_toy(family: str) -> Model:
    """Return a toy in float64, where nearly tied positions keep their order in every shape."""
    model = toy(seed=3, family=family, dtype="float64")
    model.block_size = model.block_size or BLOCK
    return model


def _answers(
    strategy: Strategy, model: Model, lengths: Sequence[int], *, cache: Blocks | None
) -> list[list[int]]:
    """Decode answers of these lengths, and return their tokens."""
    canvas, config = _prompts(model, lengths), Config(strategy=strategy)
    budget = [strategy.budget(LENGTH, LENGTH)] * len(lengths)
    *_, last = decode(model, canvas, config, steps=budget, seeds=[0, 1], cache=cache)
    return [row[slot >= 0].tolist() for row, slot in zip(*last.canvas[::3], strict=True)]
