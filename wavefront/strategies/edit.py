"""Edit: commit and rewrite committed tokens in the same step (LLaDA2.1's sampler)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import torch
from torch import Tensor

from wavefront.core.bounds import MAX_STEPS, FloatRange, IntRange
from wavefront.core.canvas import Canvas
from wavefront.core.strategy import Decision, RowProgress, Selector, Strategy, View
from wavefront.strategies.selectors.threshold import Threshold


@dataclass(frozen=True)
class Edit(Strategy):
    """Choose from all masked positions, and rewrite committed tokens that the model now rejects.

    A committed token is replaced if the model's proposal differs and has a probability above
    `tau`. When nothing is masked any more, up to `extra_steps` more steps only rewrite. The answer
    ends at the first of them that rewrites nothing. Tokens of the prompt never change. In a
    block-causal model, only tokens of the current block are rewritten.
    """

    # The state is how many extra steps were taken, (B,) long.

    revises = True
    tau: Annotated[float, FloatRange(0, 1)] = 0.9
    extra_steps: Annotated[int, IntRange(0, MAX_STEPS)] = 16
    selector: Selector = field(default=Threshold(0.95), repr=False)

    def init(self, canvas: Canvas) -> Tensor:
        return torch.zeros_like(canvas.slot[:, 0])

    def candidates(self, canvas: Canvas, state: Tensor, progress: RowProgress) -> Tensor:
        return canvas.slot >= 0

    def step(self, view: View, state: Tensor) -> Decision:
        progress = view.progress
        steps = (progress.steps - self.extra_steps).clamp(min=1)
        inner = view._replace(progress=progress._replace(steps=steps))
        commit = self.selector.select(inner, view.masked, view.masked)
        sure = view.stats.logp.exp() > self.tau
        edit = view.known & (view.slot >= 0) & sure & (view.proposal != view.tokens)
        return self._decide(view, state, commit=commit, edit=edit)

    def without(
        self, decision: Decision, dropped: Tensor, *, view: View, state: Tensor
    ) -> Decision:
        assert decision.edit is not None
        kept = {"commit": decision.commit & ~dropped, "edit": decision.edit & ~dropped}
        return self._decide(view, state, **kept)

    def _decide(self, view: View, state: Tensor, *, commit: Tensor, edit: Tensor) -> Decision:
        """Return the decision to write these positions; it says whether the answer ends."""
        filled = ~view.masked.any(-1)
        extra = state + filled
        ends = (filled & ~edit.any(-1)) | (extra >= self.extra_steps)
        ends = ends & ~(view.masked & ~commit).any(-1)
        return Decision(
            commit,
            candidates=view.masked,
            state=extra,
            final=ends[:, None] & (view.slot >= 0),
            edit=edit,
        )

    def budget(self, length: int, steps: int) -> int:
        return steps + self.extra_steps
