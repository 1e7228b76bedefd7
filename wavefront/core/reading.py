"""Read logits: the proposal at each position and its statistics, in float32 and in chunks.

Logits dominate the memory of a diffusion decoder. For 1,024 positions and LLaDA's vocabulary, one
float32 copy takes half a gigabyte, and a plain decoder needs several copies. Here the logits of
only one chunk of positions exist at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from wavefront.core import noise
from wavefront.core.bounds import check_option
from wavefront.core.constraint import AllowedTokens, ClassScores, TokenClasses, pick_columns
from wavefront.core.errors import OptionError, check_choice
from wavefront.core.strategy import Stats

PRIORITIES = ("confidence", "probability", "margin", "entropy", "random")
EOS_POLICIES = (
    "keep", "suppress-logit", "suppress-confidence", "llada-confidence", "stop", "stop-block",
    "defer",
)  # fmt: skip
ENDING = ("stop", "defer")  # a row is done when nothing before its first end token is masked
LAST = ("suppress-confidence", "defer")  # end tokens are committed after everything else
SAMPLING = ("llada", "dream")

_CHUNK = 1 << 24  # logits in one chunk: 64 MiB in float32
# A CPU reads a chunk in blocks of rows that stay in its cache: 4 MiB in float32. Each of the passes
# over a block is then several times faster than a pass over the chunk.
_BLOCK = 1 << 20
# On CPUs, torch 2.11 compiles the index of the best part wrongly; 2.13 does not.
_COMPILES_PARTS_ON_CPU = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13)
# A compiled reduction runs one program per position, and a step reads fewer positions than a GPU
# has processors. To use them all, a vocabulary of WIDE tokens or more is first reduced in parts of
# PART tokens.
WIDE, PART = 1 << 15, 1024
_REMOVED = 1e6  # subtracted from the logit of a token that top_p or top_k removes
# Next to a term of 1, a sum of exp(-80) for every token of a vocabulary is lost in rounding.
_NEGLIGIBLE = -80.0


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How to draw a proposal, and which distribution gives its confidence.

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
        check_option("temperature", self.temperature)
        check_choice("eos", self.eos, EOS_POLICIES)
        if self.top_p is not None:
            check_option("top_p", self.top_p)
        if self.top_k is not None:
            check_option("top_k", self.top_k)
        if self.eos != "keep" and not self.stop_ids:
            raise OptionError(
                f"eos={self.eos!r} needs a stop id, but the model has none; pass stop_ids.",
                option="stop_ids",
            )

    @property
    def is_plain(self) -> bool:
        """Whether the proposal is the best token of the logits that give its confidence."""
        filters = self.temperature > 0 or self.top_p is not None or self.top_k is not None
        return not filters and self.eos not in ("suppress-logit", "llada-confidence")


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


class ConstrainedReading(NamedTuple):
    """A reading of allowed tokens only, and the best token of each class of the constraint."""

    reading: Reading
    classes: ClassScores | None


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
        current: (B, Q) long, the current tokens at the positions.
        vocab_size: V.
        mask_id: The token that is never proposed.
        sampling: How to draw.
        needs: The optional statistics to compute, such as "margin".
        alternatives: How many of the likeliest tokens to return; 0 for none.
    """
    found = read_allowed(
        logits_of,
        keys,
        current,
        vocab_size=vocab_size,
        mask_id=mask_id,
        sampling=sampling,
        needs=needs,
        alternatives=alternatives,
        allowed=None,
    )
    return found.reading


def read_allowed(
    logits_of: Callable[[slice], Tensor],
    keys: Tensor | None,
    current: Tensor,
    *,
    vocab_size: int,
    mask_id: int,
    sampling: Sampling,
    needs: tuple[str, ...],
    alternatives: int = 0,
    allowed: AllowedTokens | None,
    score_classes: bool = False,
) -> ConstrainedReading:
    """Return what `read` returns, of allowed tokens only: probabilities are shares among them.

    With `score_classes`, also return the best token of each class of the constraint.
    """
    size = max(1, _CHUNK // vocab_size)
    total = current.numel()
    flat, seeds = current.flatten(), None if keys is None else keys.flatten()
    parts: list[Reading] = []
    scores: list[ClassScores] = []
    for first in range(0, total, size):
        chunk = slice(first, min(first + size, total))
        logits = logits_of(chunk)
        for rows in _blocks(logits):
            here = slice(first + rows.start, first + rows.stop)
            prepared = _prepare(
                logits[rows],
                None if seeds is None else seeds[here],
                mask_id=mask_id,
                sampling=sampling,
                limit=None if allowed is None else allowed.limit(here),
                in_place=sampling.is_plain and not score_classes,
            )
            parts.append(
                _read(prepared, flat[here], mask_id=mask_id, needs=needs, alternatives=alternatives)
            )
            if score_classes and allowed is not None:
                scores.append(_best_of_classes(prepared, allowed.classes))
    shape = current.shape
    return ConstrainedReading(_join(parts, shape), _join(scores, shape) if scores else None)


def _blocks(logits: Tensor) -> list[slice]:
    """Return slices of the rows (n, V) to be read one after the other: one slice, or CPU blocks."""
    count, size = len(logits), max(1, _BLOCK // logits.shape[-1])
    if logits.is_cuda or torch.compiler.is_compiling():
        size = count
    return [slice(at, min(at + size, count)) for at in range(0, count, size)]


Parts = TypeVar("Parts", bound=tuple[Any, ...])


def _join(parts: list[Parts], shape: torch.Size) -> Parts:
    """Return the readings of all blocks as one, its first dimension in the shape (B, Q)."""
    columns = zip(*parts, strict=True)
    fields: Any = (None if c[0] is None else torch.cat(c).unflatten(0, shape) for c in columns)
    return type(parts[0])(*fields)


def add_bias(logits: Tensor, tokens: Tensor, values: Tensor) -> Tensor:
    """Return (n, V) logits, in float32 or wider, with `values` (n, K) added at `tokens` (n, K)."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return logits.scatter_add(-1, tokens, values.to(logits.dtype))


class _Prepared(NamedTuple):
    """The logits of one block, ready to be read."""

    drawn: Tensor  # (n, V): the maximum is the proposal
    scored: Tensor  # (n, V): the softmax gives the confidence
    permitted: Tensor  # (n, V): the logits of the tokens that may be proposed; -inf elsewhere
    bad: Tensor  # (n,) bool


def _prepare(
    logits: Tensor,
    keys: Tensor | None,
    *,
    mask_id: int,
    sampling: Sampling,
    limit: Tensor | None,
    in_place: bool = False,
) -> _Prepared:
    """Return the logits of one block with masks, filters and noise applied.

    `limit` (n, V) is inf for the tokens that a constraint allows, and -inf for the others. With a
    limit and `in_place`, the mask token is left in `drawn`, which is then `scored`.
    """
    if limit is None:
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        drawn = _without(logits, (mask_id,))
        # NaN wins every maximum.
        bad = ~torch.maximum(_most(drawn), logits[..., mask_id]).isfinite()
    else:
        bad = ~_most(logits).isfinite()
        logits = drawn = _only(logits, limit)
        # The copy is left out where no position allows the mask token. A GPU would have to wait.
        if not in_place and (limit.is_cuda or bool((limit[..., mask_id] > 0).any())):
            drawn = _without(logits, (mask_id,))
    if sampling.eos == "suppress-logit":
        logits, drawn = (_without(scores, sampling.stop_ids[:1]) for scores in (logits, drawn))
    permitted = drawn
    drawn = _add_noise(_filter(drawn, sampling), keys, sampling.temperature)
    scored = _filter(logits, sampling) if sampling.rule == "dream" else logits
    if sampling.eos == "llada-confidence":
        scored = _without(scored, sampling.stop_ids)
    return _Prepared(drawn, scored, permitted, bad)


def _read(
    prepared: _Prepared,
    current: Tensor,
    *,
    mask_id: int,
    needs: tuple[str, ...],
    alternatives: int,
) -> Reading:
    """Return the reading of one block."""
    drawn, scored, _, bad = prepared
    logp_of = log_probability
    if drawn is scored:  # in memory of our own
        proposal, logp, prefers_mask = _propose_in_place(scored, mask_id)
        logp_of = _log_probability_in_place
    else:
        proposal, logp = _propose(drawn, scored)
        prefers_mask = scored[..., mask_id] >= _most(scored)
    likeliest = scored.log_softmax(-1).topk(alternatives) if alternatives else (None, None)
    return Reading(
        proposal,
        bad,
        prefers_mask=prefers_mask,
        logp=logp.float(),
        margin=_margin(scored, mask_id) if "margin" in needs else None,
        entropy=_entropy(scored) if "entropy" in needs else None,
        current_logp=logp_of(scored, current).float() if "current_logp" in needs else None,
        alternatives=likeliest[1],
        alternatives_logp=likeliest[0],
    )


def _only(logits: Tensor, limit: Tensor) -> Tensor:
    """Return the logits, in float32 or wider, with all tokens but the allowed ones at -inf.

    Where all of them have the logit -inf, they get a finite one, so that one of them is proposed.
    """
    kept = torch.minimum(logits, limit)  # on a CPU, faster than a choice for each token
    most = kept.amax(-1, keepdim=True)
    none = most.isneginf()
    if none.is_cuda or bool(none.any()):
        least = torch.finfo(torch.float32).min
        floor = torch.full_like(most, float("-inf")).masked_fill_(none, least)
        torch.clamp(floor, min=logits, max=limit, out=kept)  # the limit of the raised logits
    return kept


def _best_of_classes(prepared: _Prepared, classes: TokenClasses) -> ClassScores:
    """Return (n, C) each: the score of the best token of every class, the token, its log p."""
    drawn, scored, permitted, _ = prepared
    if drawn is not permitted:
        # A valid answer may need a token that top_p or top_k removes; such a token comes last.
        drawn = torch.where(drawn.isneginf(), permitted - _REMOVED, drawn)
    score, token = [], []
    pieces = pick_columns(drawn, classes.order).split(classes.sizes, -1)
    for part, ids in zip(pieces, classes.order.split(classes.sizes), strict=True):
        if len(ids) == 0:
            score.append(torch.full_like(drawn[:, :1], float("-inf")))
            token.append(torch.zeros_like(drawn[:, :1], dtype=torch.long))
            continue
        best = part.argmax(-1, keepdim=True)  # equal logits: the first, so the smallest id
        score.append(part.gather(-1, best))
        token.append(ids[best])
    tokens = torch.cat(token, -1)
    logp = scored.log_softmax(-1).gather(-1, tokens)
    return ClassScores(torch.cat(score, -1), tokens, logp.float())


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
    if not torch.compiler.is_compiling() or logits.shape[-1] < WIDE:
        return False
    return logits.device.type != "cpu" or _COMPILES_PARTS_ON_CPU


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


def _propose_in_place(logits: Tensor, mask_id: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return (n,) long, the best token but the mask token; its log p; whether the mask is better.

    Equal to `_propose`, with fewer passes over memory. `logits` (n, V) change only during the call.
    """
    mask = logits[..., mask_id].clone()
    logits[..., mask_id] = float("-inf")
    proposal = logits.argmax(-1)
    best = logits.gather(-1, proposal[..., None])[..., 0]
    logits[..., mask_id] = mask
    return proposal, _log_probability_in_place(logits, proposal), mask >= best


def _log_probability_in_place(logits: Tensor, token: Tensor) -> Tensor:
    """Return what `log_probability` returns. `logits` (n, V) change only during the call."""
    at = token[..., None]
    chosen = logits.gather(-1, at)
    others = _log_sum_exp(logits.scatter_(-1, at, float("-inf")))
    logits.scatter_(-1, at, chosen)
    return _log_share(chosen[..., 0], others)


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
    return _log_share(chosen, _log_sum_exp(others))


def _log_sum_exp(logits: Tensor) -> Tensor:
    """Return (n,), the same as torch.logsumexp, but fast on a CPU if many logits are -inf.

    On a CPU, exp takes a slow path for every -inf.
    """
    if logits.device.type != "cpu" or torch.compiler.is_compiling():
        return logits.logsumexp(-1)
    most = logits.amax(-1, keepdim=True)
    none = most.isneginf()
    most = most.masked_fill(most.isinf(), 0.0)
    total = (logits - most).clamp_(min=_NEGLIGIBLE).exp_().sum(-1).log() + most[..., 0]
    return total.masked_fill(none[..., 0], float("-inf"))


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
