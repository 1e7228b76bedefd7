"""Entropy bound: as many places as an entropy budget allows (EB-Sampler, 2505.24857)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from torch.nn import functional as F

from wavefront.core.errors import check_float
from wavefront.core.strategy import View
from wavefront.strategies.selectors._adaptive import Adaptive, turn


@dataclass(frozen=True)
class EntropyBound(Adaptive):
    """The k places of lowest entropy: the largest k for which sum less maximum is within `gamma`.

    That difference, in nats, bounds what the k places can tell of one another, which is what
    writing them together ignores. k is at least 1, and each row has its own. A place that is sure
    of the mask token has a low entropy too; priority='entropy' puts it off.
    """

    needs: ClassVar[tuple[str, ...]] = ("entropy",)
    gamma: float = 0.01

    def __post_init__(self) -> None:
        check_float("gamma", self.gamma, 0)

    def accept(self, view: View, asked: Tensor) -> Tensor:
        entropy = view.stats.entropy
        assert entropy is not None  # it is in `needs`
        when = turn(view, asked, entropy)
        # In ascending order the maximum is the newest term, so what counts against a place is the
        # sum of those before it. Places that are not asked, perhaps NaN, come after all that are.
        ordered = entropy.gather(-1, when.argsort(-1))
        before = F.pad(ordered.cumsum(-1)[..., :-1], (1, 0))
        return before.gather(-1, when) <= self.gamma
