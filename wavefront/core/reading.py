"""Read logits: the proposal at each position and its statistics, in float32 and in chunks.

Logits dominate the memory of a diffusion decoder: 1,024 positions over LLaDA's vocabulary are half
a gigabyte in float32, several times over. Here only one chunk of positions exists at a time.
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
ENDING = ("stop", "defer")  # a row is done when nothing before its first end token is masked
LAST = ("suppress-confidence", "defer")  # end tokens are committed after everything else
SAMPLING = ("llada", "dream")

_CHUNK = 1 << 24  # logits in one chunk: 64 MiB in float32
# A compiled reduction runs one program per position, and a step reads fewer positions than a GPU
# has processors. So a vocabulary of WIDE tokens or more is reduced in parts of PART tokens first.
WIDE, PART = 1 << 15, 1024


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How a proposal is drawn, and from which distribution its confidence comes.

    The rule `llada` draws from softmax(logits / temperature) and takes the confidence from the
    unchanged logits. The rule `dream` takes both from the tempered and filtered distribution.
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
                f"eos={self.eos!r} needs a stop id, and the model has none; pass stop_ids.",
                option="stop_ids",
            )


class Reading(NamedTuple):
    """What a forward pass predicts at some positions: (n,) for a chunk, (B, Q) for all of them."""

    proposal: Tensor  # long
    bad: Tensor  # bool: a logit is NaN, or none is finite
    prefers_mask: Tensor  # bool: the mask token, which is never proposed, is the most probable
    logp: Tensor  # float32, like the fields below; see Stats
    margin: Tensor | None
    entropy: Tensor | None
    current_logp: Tensor | None
    alternatives: Tensor | None = None  # long, (n, K) or (B, Q, K): the likeliest tokens
    alternatives_logp: Tensor | None = None  # float32, in the same shape


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
    """Return the proposals and statistics of (B, Q) positions.

    The mask token is never proposed, but it keeps its share of the probability. So a position
    where the model prefers the mask has low confidence, as in the published samplers.

    Args:
        logits_of: Returns logits (n, V) for a slice of the flattened positions.
        keys: (B, Q) int32, the seeds of the draws; None at temperature 0.
        current: (B, Q) long, the tokens that are at the positions now.
        vocab_size: V.
        mask_id: The token that is never proposed.
        sampling: How to draw.
        needs: The optional statistics to compute, such as "margin".
        alternatives: How many of the likeliest tokens to return; 0 for none.
    """
    size = max(1, _CHUNK // vocab_size)
    chunks = [slice(at, at + size) for at in range(0, current.numel(), size)]
    seeds = [None if keys is None else keys.flatten()[c] for c in chunks]
    parts = [
        _read(logits_of(c), seed, current.flatten()[c], mask_id, sampling, needs, alternatives)
        for c, seed in zip(chunks, seeds, strict=True)
    ]
    columns = zip(*parts, strict=True)
    fields = (None if c[0] is None else torch.cat(c).unflatten(0, current.shape) for c in columns)
    return Reading(*fields)  # pyright: ignore[reportArgumentType]


def _read(
    logits: Tensor,
    keys: Tensor | None,
    current: Tensor,
    mask_id: int,
    sampling: Sampling,
    needs: tuple[str, ...],
    alternatives: int,
) -> Reading:
    """Return the reading of one chunk."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    drawn = _without(logits, (mask_id,))
    bad = ~torch.maximum(_most(drawn), logits[..., mask_id]).isfinite()  # NaN wins every maximum
    if sampling.eos == "suppress-logit":
        logits, drawn = (_without(each, sampling.stop_ids[:1]) for each in (logits, drawn))
    drawn = _add_noise(_filter(drawn, sampling), keys, sampling.temperature)
    scored = _filter(logits, sampling) if sampling.rule == "dream" else logits
    if sampling.eos == "llada-confidence":
        scored = _without(scored, sampling.stop_ids)
    proposal, logp = _propose(drawn, scored)
    likeliest = scored.log_softmax(-1).topk(alternatives) if alternatives else (None, None)
    return Reading(
        proposal,
        bad,
        prefers_mask=scored[..., mask_id] >= _most(scored),
        logp=logp.float(),
        margin=_margin(scored, mask_id) if "margin" in needs else None,
        entropy=_entropy(scored) if "entropy" in needs else None,
        current_logp=log_probability(scored, current).float() if "current_logp" in needs else None,
        alternatives=likeliest[1],
        alternatives_logp=likeliest[0],
    )


def _margin(logits: Tensor, mask_id: int) -> Tensor:
    """Return p1 - p2, negated where the mask token, which is never proposed, has p1."""
    probability = logits.softmax(-1)
    best, runner_up = probability.topk(2, dim=-1).values.unbind(-1)
    gap = best - runner_up
    return torch.where(probability[..., mask_id] >= best, -gap, gap).float()


def _entropy(logits: Tensor) -> Tensor:
    """Return the entropy in nats, float32."""
    return torch.special.entr(logits.softmax(-1)).sum(-1).float()


def _without(logits: Tensor, ids: tuple[int, ...]) -> Tensor:
    """Return the logits with the tokens `ids` at -inf."""
    kept = logits.clone()
    for id in ids:
        kept[..., id] = float("-inf")
    return kept


def _add_noise(logits: Tensor, keys: Tensor | None, temperature: float) -> Tensor:
    """Return (n, V): logits with Gumbel noise, so that their maximum is a draw from the softmax."""
    if keys is None or temperature == 0:
        return logits
    return logits + noise.gumbel(noise.over_tokens(keys, logits.shape[-1]))


def _wide(logits: Tensor) -> bool:
    """Return whether compiled code should reduce these logits in parts."""
    return torch.compiler.is_compiling() and logits.shape[-1] >= WIDE


def _parts(logits: Tensor) -> Tensor:
    """Reshape (n, V) to (n, parts, PART), padded with -inf."""
    gap = -logits.shape[-1] % PART
    return F.pad(logits, (0, gap), value=float("-inf")).unflatten(-1, (-1, PART))


def _best(parts: Tensor) -> tuple[Tensor, Tensor]:
    """Return (n, parts) long, the best token of every part, and its logit."""
    best = parts.argmax(-1)
    return best, parts.gather(-1, best[..., None])[..., 0]


def _most(logits: Tensor) -> Tensor:
    """Return (n,), the maximum. In parts, it shares one pass over the logits with `_propose`."""
    return _best(_parts(logits))[1].amax(-1) if _wide(logits) else logits.amax(-1)


def _propose(drawn: Tensor, scored: Tensor) -> tuple[Tensor, Tensor]:
    """Return (n,) long, the index of the maximum of `drawn`, and its log p under `scored`.

    The smallest id wins among equal logits: argmax returns the first maximum.
    """
    if not _wide(drawn):
        proposal = drawn.argmax(-1)
        return proposal, log_probability(scored, proposal)
    # Each part keeps its best token and the sum of the others, so the logits are read once. The
    # best token of the winning part is the proposal; that of any other part joins its sum.
    drawn, scored = _parts(drawn), _parts(scored)
    best, peak = _best(drawn)
    chosen = scored.gather(-1, best[..., None])[..., 0]
    beside = _mask_token(scored, best).logsumexp(-1)
    part = peak.argmax(-1)
    others = torch.logaddexp(beside, _mask_token(chosen, part)).logsumexp(-1)
    first = part[..., None]
    proposal = PART * part + best.gather(-1, first)[..., 0]
    return proposal, _log_share(chosen.gather(-1, first)[..., 0], others)


def _mask_token(logits: Tensor, token: Tensor) -> Tensor:
    """Return the logits with one token per position at -inf."""
    if torch.compiler.is_compiling():  # a comparison fuses; scatter would copy all logits
        ids = torch.arange(logits.shape[-1], device=logits.device)
        return logits.masked_fill(ids == token[..., None], float("-inf"))
    return logits.scatter(-1, token[..., None], float("-inf"))


def _filter(logits: Tensor, sampling: Sampling) -> Tensor:
    """Return logits after temperature, top-p and top-k, in Dream's order; removed ones are -inf."""
    if sampling.temperature > 0:
        # Subtract the maximum, so that a tiny temperature gives -inf and not infinity.
        logits = (logits - _most(logits)[..., None]) / sampling.temperature
    if sampling.top_p is not None and sampling.top_p < 1:
        descending, where = logits.sort(dim=-1, descending=True, stable=True)
        before = F.pad(descending.softmax(-1).cumsum(-1)[..., :-1], (1, 0))
        # Keep the token that first takes the sum beyond top_p; remove those after it.
        removed = torch.zeros_like(logits, dtype=torch.bool).scatter(
            -1, where, before > sampling.top_p
        )
        logits = logits.masked_fill(removed, float("-inf"))
    if sampling.top_k is not None and sampling.top_k < logits.shape[-1]:
        floor = logits.topk(sampling.top_k, dim=-1).values[..., -1:]
        logits = logits.masked_fill(logits < floor, float("-inf"))
    return logits


def log_probability(logits: Tensor, token: Tensor) -> Tensor:
    """Return (n,), log p of `token`, without cancellation near p = 1.

    log p = -log(1 + sum over the other tokens of exp(l - l_token)). The sum leaves out the token
    itself, so positions that all round to p = 1 keep their true order.
    """
    others = _mask_token(logits, token)
    chosen = logits.gather(-1, token[..., None])[..., 0]
    if _wide(logits):
        others = _parts(others).logsumexp(-1)
    return _log_share(chosen, others.logsumexp(-1))


def _log_share(chosen: Tensor, others: Tensor) -> Tensor:
    """Return log(c / (c + o)), given log c and log o."""
    # A token that was removed has probability 0, even when no other token is left.
    logp = -F.softplus(others - chosen)
    return torch.where(chosen.isneginf(), float("-inf"), logp)


def priority_score(name: str, stats: Stats) -> Tensor:
    """Return (B, Q) float32, higher = sooner, for a priority based on the statistics."""
    if name == "probability":
        return stats.logp.exp()
    if name == "margin" and stats.margin is not None:
        return stats.margin
    if name == "entropy" and stats.entropy is not None:
        return -stats.entropy
    return stats.logp


PRIORITY_NEEDS = {"margin": ("margin",), "entropy": ("entropy",)}
