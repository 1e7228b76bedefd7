"""Entropy bound: as many candidates as an entropy budget allows (EB-Sampler, 2505.24857)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from torch import Tensor
from torch.nn import functional as F

from wavefront.core.bounds import MAX_POSITIONS, FloatRange
from wavefront.core.strategy import View
from wavefront.strategies.selectors._adaptive import Adaptive, ascending_rank


@dataclass(frozen=True)
class EntropyBound(Adaptive):
    """Commit the k candidates with the lowest entropy, for the largest k that `gamma` allows.

    k is the largest number for which the entropies, without the largest, add up to at most `gamma`.
    That sum, in nats, bounds the information that the k positions hold about each other, which
    committing them together ignores. k is at least 1, and each row has its own. A position that
    prefers the mask token has low entropy too; priority='entropy' puts it last.
    """

    needs: ClassVar[tuple[str, ...]] = ("entropy",)
    gamma: Annotated[float, FloatRange(0, MAX_POSITIONS)] = 0.01

    def accept(self, view: View, candidates: Tensor) -> Tensor:
        entropy = view.stats.entropy
        assert entropy is not None  # it is in `needs`
        ranks = ascending_rank(view, candidates, entropy)
        # In ascending order the maximum is the last term, so the sum without the maximum is the sum
        # of the candidates before it. Other positions, which may be NaN, come after all candidates.
        ascending = entropy.gather(-1, ranks.argsort(-1))
        before = F.pad(ascending.cumsum(-1)[..., :-1], (1, 0))
        return before.gather(-1, ranks) <= self.gamma
