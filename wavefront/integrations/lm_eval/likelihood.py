"""Log-likelihood of an answer under a masked diffusion model, as LLaDA and as Dream estimate it.

A diffusion model has no left-to-right product of probabilities. Both projects draw noised copies of
the answer and score the true tokens at the masked positions. They weight each copy by one over its
share of masked positions. The mean over copies estimates a bound on the log-likelihood, in nats.

**llada**: every copy masks a fixed number of answer tokens at random positions. In a batch of b
copies these numbers are spread evenly over 1 … A from a random start: round(k + jA/b), wrapped. The
share is that number over A.
**dream**: an end token is appended. Copy j has t = (u + j/b) mod 1 with one uniform u. Every
position is masked with probability p = 0.999 t + 0.001, except the first and the last of the whole
sequence. The share is p.
**left_to_right**: Dream's exact alternative (its `ar_ftb`). Copy j masks answer tokens j … A and
scores only token j; the sum is the log-likelihood of writing the answer from left to right. An end
token is appended here too.

As in both projects, the mask token remains a class. Guidance works as in decoding.

A block-causal model writes block by block, and never sees a masked position before the block that
it writes. So each rule scores one block of the answer at a time, after the clean text before it, on
the canvas of a decode. The log-likelihood is the sum over blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from hashlib import blake2b
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from wavefront.core.bounds import check_option
from wavefront.core.errors import OptionError, check_choice, check_int
from wavefront.core.reading import log_probability
from wavefront.engine.layout import (
    masks_after,
    padding_before,
    prompt_canvas,
    room_after,
    room_before,
)
from wavefront.engine.options import plan
from wavefront.engine.session import DecodeSession, model_properties
from wavefront.models.protocol import Model

RULES = ("llada", "dream", "left_to_right")
COPIES, AT_ONCE = 128, 32  # mc_num of both published evaluations, and a common batch size
_FLOOR = 1e-3  # Dream's smallest masking probability
_CHUNK = 1 << 24  # logits in a chunk: 64 MiB in float32


class NoisedBatch(NamedTuple):
    """A batch of noised copies of prompt and answer."""

    tokens: Tensor  # (b, L) long
    scored: Tensor  # (b, L) bool: the positions whose true token is scored
    weight: Tensor  # (b,) float64; the estimate is the sum of weight times log p over all copies


class Segment(NamedTuple):
    """A part of an answer that is scored at once: one block, or all of it."""

    before: list[int]  # the clean text before it
    part: list[int]
    padding: int = 0  # positions before the text
    masks: int = 0  # masked positions after the part, which complete its block
    last: bool = True


class LikelihoodSettings(NamedTuple):
    """How log-likelihoods are estimated."""

    rule: str = "llada"
    copies: int = COPIES
    at_once: int = AT_ONCE
    cfg_scale: float = 0.0
    seed: int = 0

    def validate(self) -> LikelihoodSettings:
        """Return the settings, or raise `OptionError`."""
        check_choice("likelihood", self.rule, RULES)
        check_int("mc_num", self.copies, 1, high=1 << 20)
        check_int("mc_batch", self.at_once, 1, high=1 << 20)
        check_option("cfg_scale", self.cfg_scale)
        check_int("seed", self.seed, 0, high=(1 << 63) - 1)
        if self.rule != "left_to_right" and self.copies % min(self.at_once, self.copies):
            raise OptionError(
                f"mc_num={self.copies} must be a multiple of mc_batch={self.at_once}, because "
                "the copies of a batch are spread evenly."
            )
        return self


def log_likelihood(
    model: Model, prompt: Sequence[int], answer: Sequence[int], *, settings: LikelihoodSettings
) -> float:
    """Estimate log p(answer | prompt) in nats; 0 for an empty answer.

    The draws depend only on the seed and the ids, not on other requests.
    """
    settings = settings.validate()
    if not answer:
        return 0.0
    ids = fit_to_model(model, prompt, answer, rule=settings.rule)
    generator = torch.Generator().manual_seed(_item_seed(settings.seed, *ids))
    total = 0.0
    for segment in segments(model, *ids):
        copies = noised_batches(
            segment.before, segment.part, settings=settings, mask_id=model.mask_id,
            generator=generator, last=segment.last,
        )  # fmt: skip
        total += estimate(
            model, segment.before, segment.part, copies=copies, cfg_scale=settings.cfg_scale,
            padding=segment.padding, masks=segment.masks, prompt_length=len(ids[0]),
        )  # fmt: skip
    return total


def segments(model: Model, prompt: Sequence[int], answer: Sequence[int]) -> Iterator[Segment]:
    """Yield the parts of an answer that the model writes one after another."""
    if model.block_size is None:
        yield Segment([*prompt], [*answer])
        return
    ids, size, padding = [*prompt, *answer], model.block_size, padding_before(model, len(prompt))
    start = len(prompt)
    while start < len(ids):
        end = start + size - (padding + start) % size
        masks = masks_after(model, len(ids)) if end >= len(ids) else 0
        yield Segment(ids[:start], ids[start:end], padding, masks, end >= len(ids))
        start = end


def fit_to_model(
    model: Model, prompt: Sequence[int], answer: Sequence[int], *, rule: str
) -> tuple[list[int], list[int]]:
    """Append Dream's end token to the answer, and truncate long inputs on the left."""
    if rule != "llada":
        if not model.stop_ids:
            raise OptionError(f"likelihood={rule!r} appends an end token, but the model has none.")
        answer = [*answer, model.stop_ids[0]]
    answer = list(answer)[-room_after(model, 0, model.max_length) :]
    room = room_before(model, len(answer))
    return list(prompt)[-room:] if room else [], answer


def noised_batches(
    prompt: Sequence[int],
    answer: Sequence[int],
    *,
    settings: LikelihoodSettings,
    mask_id: int,
    generator: torch.Generator,
    last: bool = True,
) -> Iterator[NoisedBatch]:
    """Yield batches of noised copies, drawn on the host so that all devices get the same ones.

    Without `last`, the answer goes on after this part, so Dream's end token is not in it.
    """
    if settings.rule == "left_to_right":
        yield from _from_the_left(prompt, answer, settings.at_once, mask_id=mask_id)
        return
    # LLaDA masks a single token in every copy, so one copy is exact.
    exact = settings.rule == "llada" and len(answer) == 1
    copies = 1 if exact else settings.copies
    rows = min(settings.at_once, copies)
    draw: Callable[..., tuple[Tensor, Tensor]] = _llada
    if settings.rule == "dream":
        draw = partial(_dream, last=last)
    for _ in range(copies // rows):
        masked, share = draw(len(prompt), len(answer), rows, generator=generator)
        tokens = torch.tensor([*prompt, *answer]).expand(rows, -1)
        weight = 1.0 / (share.double() * copies)
        yield NoisedBatch(tokens.masked_fill(masked, mask_id), masked, weight)


def _llada(
    before: int, length: int, rows: int, *, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    first = int(torch.randint(1, length + 1, (), generator=generator))
    last = first + (rows - 1) * (length / rows)
    count = (torch.linspace(first, last, rows).round().long() - 1) % length + 1
    masked = torch.zeros(rows, before + length, dtype=torch.bool)
    for row in range(rows):
        order = torch.randperm(length, generator=generator)
        masked[row, before:] = order < count[row]
    return masked, count / length


def _dream(
    before: int, length: int, rows: int, *, generator: torch.Generator, last: bool
) -> tuple[Tensor, Tensor]:
    shared = torch.rand(1, generator=generator)
    level = (shared + torch.arange(rows) / rows) % 1.0
    share = (1.0 - _FLOOR) * level + _FLOOR
    masked = torch.rand(rows, before + length, generator=generator) < share[:, None]
    masked[:, : max(before, 1)] = False
    if last:
        masked[:, -1] = False
    return masked, share


def _from_the_left(
    prompt: Sequence[int], answer: Sequence[int], rows: int, *, mask_id: int
) -> Iterator[NoisedBatch]:
    tokens = torch.tensor([*prompt, *answer])
    position = torch.arange(len(tokens))
    for start in range(len(prompt), len(tokens), rows):
        own = torch.arange(start, min(start + rows, len(tokens)))[:, None]
        copies = tokens.expand(len(own), -1).masked_fill(position >= own, mask_id)
        yield NoisedBatch(copies, position == own, torch.ones(len(own), dtype=torch.float64))


@torch.no_grad()
def estimate(
    model: Model,
    prompt: Sequence[int],
    answer: Sequence[int],
    *,
    copies: Iterable[NoisedBatch],
    cfg_scale: float = 0.0,
    padding: int = 0,
    masks: int = 0,
    prompt_length: int | None = None,
) -> float:
    """Return the weighted sum of the log-probabilities of the masked true tokens.

    Args:
        model: The model.
        prompt: The clean text before the scored part.
        answer: The scored part.
        copies: Its noised copies.
        cfg_scale: The scale of guidance.
        padding: Positions of padding before the text.
        masks: Masked positions after the scored part.
        prompt_length: The tokens that guidance hides; by default the whole clean text.
    """
    truth = torch.tensor([*prompt, *answer], device=model.device)
    at = padding + torch.arange(len(prompt), len(truth), device=model.device)
    hidden_part = slice(
        padding, padding + (len(prompt) if prompt_length is None else prompt_length)
    )
    total = 0.0
    for batch in copies:
        tokens, scored = batch.tokens.to(model.device), batch.scored.to(model.device)
        board = pad(pad(tokens, (padding, 0), value=model.pad_id), (0, masks), value=model.mask_id)
        hidden = _hidden(model, board, at, padding=padding, prompt=hidden_part, cfg_scale=cfg_scale)
        here = hidden[:, scored[:, len(prompt) :]]
        logp = _log_probabilities(model, here, truth.expand_as(tokens)[scored], cfg_scale=cfg_scale)
        weight = batch.weight[:, None].expand(batch.scored.shape)[batch.scored]
        # Summed on the host: not every device supports float64.
        total += float((logp.cpu().double() * weight).sum())
    return total


def _hidden(
    model: Model,
    tokens: Tensor,
    positions: Tensor,
    *,
    padding: int,
    prompt: slice,
    cfg_scale: float,
) -> Tensor:
    """Return (G, b, A, D) states of the answer; G = 2 with guidance: with and without prompt."""
    at, attend = positions.expand(len(tokens), -1), None
    if padding:
        attend = (torch.arange(tokens.shape[1], device=tokens.device) >= padding).expand_as(tokens)
    if cfg_scale == 0:
        return model.hidden(tokens, attend, at)[None]
    blind = tokens.clone()
    blind[:, prompt] = model.mask_id
    attend = None if attend is None else torch.cat([attend, attend])
    both = model.hidden(torch.cat([tokens, blind]), attend, torch.cat([at, at]))
    return both.unflatten(0, (2, -1))


def _log_probabilities(model: Model, hidden: Tensor, truth: Tensor, *, cfg_scale: float) -> Tensor:
    """Return (n,) float32 from (G, n, D); only one chunk of logits exists at a time."""
    size = max(1, _CHUNK // model.vocab_size)
    found = [truth.new_zeros(0, dtype=torch.float32)]
    for start in range(0, len(truth), size):
        chunk = slice(start, start + size)
        seen, *rest = (model.head(states[chunk]).float() for states in hidden)
        for blind in rest:
            seen = blind + (cfg_scale + 1) * (seen - blind)
        found.append(log_probability(seen, truth[chunk]))
    return torch.cat(found)


def is_greedy(
    model: Model, prompt: Sequence[int], answer: Sequence[int], *, cfg_scale: float = 0.0
) -> bool:
    """Return whether greedy decoding, one token per forward pass, would write this answer.

    This is LLaDA's own check. It stops at the first token that differs.
    """
    if not answer:
        return True
    prompt, answer = fit_to_model(model, prompt, answer, rule="llada")
    masked = prompt_canvas(model, [prompt], len(answer))
    options = {
        "strategy": "standard",
        "cfg_scale": cfg_scale,
        "sampling": "llada",
        "eos": "keep",
        "max_new_tokens": len(answer),
    }
    decoding = DecodeSession(model, masked, plan(options, model_properties(model)))
    # The last block of a block-causal model may hold more positions than the answer.
    place = (masked.slot >= 0) & (masked.slot < len(answer))
    truth = torch.tensor(answer, device=model.device)
    return not any(
        bool(((step.canvas.tokens[place] != truth) & ~step.canvas.masked[place]).any())
        for step in decoding
    )


def _item_seed(seed: int, prompt: Sequence[int], answer: Sequence[int]) -> int:
    named = f"{seed} {list(prompt)} {list(answer)}".encode()
    return int.from_bytes(blake2b(named, digest_size=8).digest(), "big") >> 1
