"""Standard: the best of all masked positions (the paper, section 2.2; LLaDA with one block)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from wavefront.core.strategy import Decision, Selector, State, Strategy, View
from wavefront.strategies.selectors.quota import Quota


@dataclass(frozen=True)
class Standard(Strategy):
    """Choose from all masked positions."""

    recommended: ClassVar[str] = "standard(selector=threshold(tau=0.98))"

    selector: Selector = field(default=Quota(), repr=False)

    def step(self, view: View, state: State) -> Decision:
        return Decision(
            self.selector.select(view, view.masked, view.masked), candidates=view.masked
        )
