"""From logits to a proposal and its statistics, in chunks, float32 whatever the model's dtype.

Logits are the memory of a diffusion decoder: 1,024 places over LLaDA's vocabulary are half a
gigabyte in float32, several times over. Here they live one chunk of places at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from wavefront.core import noise
from wavefront.core.errors import OptionError, check_choice, check_float, check_int
from wavefront.core.strategy import Stats

PRIORITIES = ("confidence", "probability", "margin", "entropy", "random")
EOS_POLICIES = (
    "keep", "suppress-logit", "suppress-confidence", "llada-confidence", "stop", "defer",
)  # fmt: skip
ENDING = ("stop", "defer")  # a row is done when no open place precedes its first end token
LAST = ("suppress-confidence", "defer")  # end tokens are chosen when nothing else is left
SAMPLING = ("llada", "dream")

_CHUNK = 1 << 24  # logits of one chunk: 64 MiB in float32
# A compiled reduction has one program a place, and the places a step reads are fewer than a GPU's
# processors: over a vocabulary of WIDE or more it goes by parts, then over the parts.
WIDE, PART = 1 << 15, 1024


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How a proposal is drawn and what its confidence is taken from.

    `llada`: draw from softmax(logits / temperature), confidence from the logits as they are.
    `dream`: both from the tempered and filtered distribution.
    """

    rule: str = "llada"
    temperature: float = 0.0
    top_p: float | None = None
    top_k: int | None = None
    eos: str = "keep"
    stop_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        check_choice("sampling", self.rule, SAMPLING)
        check_float("temperature", self.temperature, 0)
        check_choice("eos", self.eos, EOS_POLICIES)
        if self.top_p is not None:
            check_float("top_p", self.top_p, 0, 1)
        if self.top_k is not None:
            check_int("top_k", self.top_k, 1)
        if self.eos != "keep" and not self.stop_ids:
            raise OptionError(
                f"eos={self.eos!r} needs a stop id, and the model names none: give stop_ids."
            )


class Reading(NamedTuple):
    """What a forward says of some places: (n,) for a chunk, (B, Q) for all of them."""

    proposal: Tensor  # long
    bad: Tensor  # bool: NaN, or no finite logit at all
    prefers_mask: Tensor  # bool: the mask token, which cannot be proposed, is the most probable
    logp: Tensor  # float32, as the rest; see Stats
    margin: Tensor | None
    entropy: Tensor | None
    current_logp: Tensor | None
    others: Tensor | None = None  # long, (n, K) or (B, Q, K): the likeliest tokens, best first
    others_logp: Tensor | None = None


def read(
    logits_of: Callable[[slice], Tensor],
    keys: Tensor | None,
    current: Tensor,
    *,
    vocab_size: int,
    mask_id: int,
    sampling: Sampling,
    needs: tuple[str, ...],
    alternatives: int = 0,
) -> Reading:
    """Statistics of (B, Q) places. `logits_of(slice)` gives (n, V) of the places flattened;
    `keys` (B, Q) int32 seed the draws, and are None at temperature 0; `current` (B, Q) are the tokens
    that stand there.

    The mask token is never proposed, but it keeps its share of the probability: a place where the
    model would rather not decide is a place of low confidence (and the published samplers agree).
    """
    size = max(1, _CHUNK // vocab_size)
    chunks = [slice(at, at + size) for at in range(0, current.numel(), size)]
    seeds = [None if keys is None else keys.flatten()[c] for c in chunks]
    parts = [
        _read(logits_of(c), seed, current.flatten()[c], mask_id, sampling, needs, alternatives)
        for c, seed in zip(chunks, seeds, strict=True)
    ]
    columns = zip(*parts, strict=True)
    joined = (None if c[0] is None else torch.cat(c).unflatten(0, current.shape) for c in columns)
    return Reading(*joined)  # pyright: ignore[reportArgumentType]


def _read(
    logits: Tensor,
    keys: Tensor | None,
    current: Tensor,
    mask_id: int,
    sampling: Sampling,
    needs: tuple[str, ...],
    alternatives: int,
) -> Reading:
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    drawn = _without(logits, (mask_id,))
    bad = ~torch.maximum(_most(drawn), logits[..., mask_id]).isfinite()  # NaN wins every maximum
    if sampling.eos == "suppress-logit":
        logits, drawn = (_without(one, sampling.stop_ids[:1]) for one in (logits, drawn))
    drawn = _noisy(_filtered(drawn, sampling), keys, sampling.temperature)
    judged = _filtered(logits, sampling) if sampling.rule == "dream" else logits
    if sampling.eos == "llada-confidence":
        judged = _without(judged, sampling.stop_ids)
    proposal, logp = _proposed(drawn, judged)
    others = judged.log_softmax(-1).topk(alternatives) if alternatives else (None, None)
    return Reading(
        proposal,
        bad,
        prefers_mask=judged[..., mask_id] >= _most(judged),
        logp=logp.float(),
        margin=_margin(judged, mask_id) if "margin" in needs else None,
        entropy=_entropy(judged) if "entropy" in needs else None,
        current_logp=log_probability(judged, current).float() if "current_logp" in needs else None,
        others=others[1],
        others_logp=others[0],
    )


def _margin(logits: Tensor, mask_id: int) -> Tensor:
    """p1 - p2; below zero where the mask token, which cannot be proposed, is the first of them."""
    probability = logits.softmax(-1)
    best, runner_up = probability.topk(2, dim=-1).values.unbind(-1)
    gap = best - runner_up
    return torch.where(probability[..., mask_id] >= best, -gap, gap).float()


def _entropy(logits: Tensor) -> Tensor:
    return torch.special.entr(logits.softmax(-1)).sum(-1).float()


def _without(logits: Tensor, ids: tuple[int, ...]) -> Tensor:
    kept = logits.clone()
    for one in ids:
        kept[..., one] = float("-inf")
    return kept


def _noisy(logits: Tensor, keys: Tensor | None, temperature: float) -> Tensor:
    """(n, V): the logits, whose maximum is a draw from their softmax where there are keys."""
    if keys is None or temperature == 0:
        return logits
    return logits + noise.gumbel(noise.over_tokens(keys, logits.shape[-1]))


def _wide(logits: Tensor) -> bool:
    return torch.compiler.is_compiling() and logits.shape[-1] >= WIDE


def _parts(logits: Tensor) -> Tensor:
    """(n, V) -> (n, parts, PART), filled up with tokens that cannot be."""
    gap = -logits.shape[-1] % PART
    return F.pad(logits, (0, gap), value=float("-inf")).unflatten(-1, (-1, PART))


def _best(parts: Tensor) -> tuple[Tensor, Tensor]:
    """(n, parts) long, the best token of every part, and its logit."""
    best = parts.argmax(-1)
    return best, parts.gather(-1, best[..., None])[..., 0]


def _most(logits: Tensor) -> Tensor:
    """(n,): the maximum; by parts as `_proposed` takes it, which is one pass then for both."""
    return _best(_parts(logits))[1].amax(-1) if _wide(logits) else logits.amax(-1)


def _proposed(drawn: Tensor, judged: Tensor) -> tuple[Tensor, Tensor]:
    """(n,) long, the maximum of `drawn`, and its log p in `judged`.

    The smallest id wins among equal logits: argmax returns the first maximum.
    """
    if not _wide(drawn):
        proposal = drawn.argmax(-1)
        return proposal, log_probability(judged, proposal)
    # Every part has a best token and a sum without it, so the logits are read once: of the part
    # that wins, its best is the proposal; of each other, it is one more token beside it.
    drawn, judged = _parts(drawn), _parts(judged)
    best, peak = _best(drawn)
    chosen = judged.gather(-1, best[..., None])[..., 0]
    beside = _less(judged, best).logsumexp(-1)
    part = peak.argmax(-1)
    others = torch.logaddexp(beside, _less(chosen, part)).logsumexp(-1)
    first = part[..., None]
    proposal = PART * part + best.gather(-1, first)[..., 0]
    return proposal, _log_share(chosen.gather(-1, first)[..., 0], others)


def _less(logits: Tensor, token: Tensor) -> Tensor:
    """The logits without one token of each place."""
    if torch.compiler.is_compiling():  # a comparison fuses, where scatter copies all of them
        ids = torch.arange(logits.shape[-1], device=logits.device)
        return logits.masked_fill(ids == token[..., None], float("-inf"))
    return logits.scatter(-1, token[..., None], float("-inf"))


def _filtered(logits: Tensor, sampling: Sampling) -> Tensor:
    """Tempered logits with everything outside top-p and top-k at -inf, in Dream's order."""
    if sampling.temperature > 0:
        # From the maximum down, so that a tiny temperature gives -inf and not infinity.
        logits = (logits - _most(logits)[..., None]) / sampling.temperature
    if sampling.top_p is not None and sampling.top_p < 1:
        ordered, where = logits.sort(dim=-1, descending=True, stable=True)
        before = F.pad(ordered.softmax(-1).cumsum(-1)[..., :-1], (1, 0))
        # The token that first takes the sum beyond top_p stays; those after it go.
        gone = torch.zeros_like(logits, dtype=torch.bool).scatter(
            -1, where, before > sampling.top_p
        )
        logits = logits.masked_fill(gone, float("-inf"))
    if sampling.top_k is not None and sampling.top_k < logits.shape[-1]:
        floor = logits.topk(sampling.top_k, dim=-1).values[..., -1:]
        logits = logits.masked_fill(logits < floor, float("-inf"))
    return logits


def log_probability(logits: Tensor, token: Tensor) -> Tensor:
    """(n,): log p of `token`, without cancellation near p = 1.

    log p = -log(1 + sum over the others of exp(l - l_token)): with the token itself left out of the
    sum, places that all round to p = 1 keep their true order.
    """
    others = _less(logits, token)
    chosen = logits.gather(-1, token[..., None])[..., 0]
    if _wide(logits):
        others = _parts(others).logsumexp(-1)
    return _log_share(chosen, others.logsumexp(-1))


def _log_share(chosen: Tensor, others: Tensor) -> Tensor:
    """log(c / (c + o)) of the logarithms of both."""
    # A token that was removed has probability 0, also when nothing else is left.
    logp = -F.softplus(others - chosen)
    return torch.where(chosen.isneginf(), float("-inf"), logp)


def priority_score(name: str, stats: Stats) -> Tensor:
    """(B, Q) float32, higher = sooner, of a priority that comes from the statistics."""
    if name == "probability":
        return stats.logp.exp()
    if name == "margin" and stats.margin is not None:
        return stats.margin
    if name == "entropy" and stats.entropy is not None:
        return -stats.entropy
    return stats.logp


PRIORITY_NEEDS = {"margin": ("margin",), "entropy": ("entropy",)}
