"""Trace: how a decode unfolded, step by step, and its replay.

A consumer of `decode`. Recording keeps the step's own tensors where they are and moves them to the
host once, at the end, so it costs the decode nothing but memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from wavefront.canvas import Canvas
from wavefront.rows import Step


@dataclass(frozen=True)
class Trace:
    """S steps of B rows on a board of L places, on the CPU."""

    first: Canvas  # before the first step
    step: Tensor  # (S, B) long: each row's own step; those passed over are missing
    commit: Tensor  # (S, B, L) bool
    remask: Tensor  # (S, B, L) bool
    scope: Tensor  # (S, B, L) bool
    tokens: Tensor  # (S, B, L) long: what was proposed, meaningful where committed
    logp: Tensor  # (S, B, L) float32: log p of it
    forwards: int
    mask_id: int

    def __len__(self) -> int:
        return len(self.step)

    def replay(self) -> Iterator[Canvas]:
        """The canvas after every step, from the record alone."""
        canvas = self.first
        for commit, remask, tokens in zip(self.commit, self.remask, self.tokens, strict=True):
            canvas = canvas.commit(commit, tokens).take_back(remask, self.mask_id)
            yield canvas


class Recorder:
    """Passes steps through and keeps what a trace needs of them."""

    def __init__(self, first: Canvas, mask_id: int) -> None:
        self.first, self.mask_id = first, mask_id
        self._kept: list[tuple[Tensor, ...]] = []
        self._forwards = 0

    def watch(self, steps: Iterable[Step]) -> Iterator[Step]:
        for step in steps:
            decision, view = step.decision, step.view
            none = torch.zeros_like(decision.commit)
            remask = none if decision.remask is None else decision.remask
            self._kept.append(
                (
                    view.clock.step,
                    decision.commit,
                    remask,
                    decision.scope,
                    view.proposal,
                    view.stats.logp,
                )
            )
            self._forwards = step.forwards
            yield step

    def trace(self) -> Trace:
        """What was recorded so far."""
        first = Canvas(*(t.cpu() for t in self.first))
        if self._kept:
            parts = [torch.stack(column).cpu() for column in zip(*self._kept, strict=True)]
        else:
            empty = first.masked[None][:0]
            parts = [empty[..., 0].long(), empty, empty, empty, empty.long(), empty.float()]
        return Trace(first, *parts, forwards=self._forwards, mask_id=self.mask_id)
