"""Standard: the best of all masked places (the paper, section 2.2; LLaDA with one block)."""

from __future__ import annotations

from dataclasses import dataclass, field

from wavefront.core.strategy import Decision, Schedule, State, Take, View
from wavefront.strategies.selectors.quota import Quota


@dataclass(frozen=True)
class Standard(Schedule):
    """Look everywhere."""

    take: Take = field(default=Quota(), repr=False)

    def step(self, view: View, state: State) -> Decision:
        return Decision(self.take(view, view.masked, view.masked), scope=view.masked)
