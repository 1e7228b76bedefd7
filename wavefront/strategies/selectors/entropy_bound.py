"""Entropy bound: as many candidates as an entropy budget allows (EB-Sampler, 2505.24857)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from torch.nn import functional as F

from wavefront.core.errors import check_float
from wavefront.core.strategy import View
from wavefront.strategies.selectors._adaptive import Adaptive, ascending_rank


@dataclass(frozen=True)
class EntropyBound(Adaptive):
    """Commit the k lowest entropies, with the largest k whose sum less maximum is within `gamma`.

    That difference, in nats, bounds the information that the k positions hold about each other,
    which committing them together ignores. k is at least 1, and each row has its own. A position
    that prefers the mask token has low entropy too; priority='entropy' puts it last.
    """

    needs: ClassVar[tuple[str, ...]] = ("entropy",)
    gamma: float = 0.01

    def __post_init__(self) -> None:
        check_float("gamma", self.gamma, 0)

    def accept(self, view: View, candidates: Tensor) -> Tensor:
        entropy = view.stats.entropy
        assert entropy is not None  # it is in `needs`
        ranks = ascending_rank(view, candidates, entropy)
        # In ascending order the maximum is the last term, so the sum less maximum of a candidate is
        # the sum of those before it. Other positions, which may be NaN, come after all candidates.
        ascending = entropy.gather(-1, ranks.argsort(-1))
        before = F.pad(ascending.cumsum(-1)[..., :-1], (1, 0))
        return before.gather(-1, ranks) <= self.gamma
