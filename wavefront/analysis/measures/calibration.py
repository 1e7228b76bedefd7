"""Calibration under teacher forcing: how often a proposal of probability p is right.

The strategy chooses positions as usual, but the reference token is written there, so that a wrong
token does not affect later steps. For each choice the measure keeps the proposal's probability and
whether it was right. The errors are the usual ECE = sum_b n_b / n |acc_b - conf_b| and
MCE = max_b |acc_b - conf_b|. (A trace of such a decode holds proposals, so it does not replay.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from wavefront.analysis.measures._shared import renumber_rows
from wavefront.core.canvas import Canvas, blank
from wavefront.core.errors import OptionError, check_int
from wavefront.core.masks import first, positions
from wavefront.core.state import Config, DecodeState, Step, decide_and_write
from wavefront.engine.batcher import decode
from wavefront.models.protocol import Model


class ForcedBatch(NamedTuple):
    """Canvases with known answers."""

    canvas: Canvas
    truth: Tensor  # (B, L) long: the reference token at every position to fill
    steps: list[int]  # T = N, per row


def forced_batch(
    prompts: Sequence[Sequence[int]],
    references: Sequence[Sequence[int]],
    *,
    eos: int,
    mask_id: int,
    pad_id: int,
    length: int | None = None,
    device: torch.device | str = "cpu",
) -> ForcedBatch:
    """Make a canvas per prompt, with room for its reference and EOS up to `length` positions.

    Without `length`, each canvas has room for one EOS.
    """
    if len(prompts) != len(references) or not prompts:
        raise OptionError(f"There are {len(prompts)} prompts for {len(references)} references.")
    longest = max(len(reference) for reference in references) + 1
    if length is not None and length < longest:
        raise OptionError(
            f"The longest reference needs {longest} positions, but length is {length}."
        )
    sizes = [len(reference) + 1 if length is None else length for reference in references]
    canvas = blank(prompts, sizes, mask_id=mask_id, pad_id=pad_id)
    truth = canvas.tokens.clone()
    for row, (one, size) in enumerate(zip(references, sizes, strict=True)):
        truth[row, canvas.slot[row] >= 0] = torch.tensor([*one, *[eos] * (size - len(one))])
    canvas = Canvas(*(part.to(device) for part in canvas))
    return ForcedBatch(canvas, truth.to(device), sizes)


class TeacherForcing:
    """A `StepHook` that writes the truth (B, L) wherever the strategy commits.

    `prefix` selects the other reading of a "ground-truth prefix". The strategy still decides how
    many positions to commit, but the truth is written from the left. The front then moves as if the
    strategy had chosen those positions.
    """

    def __init__(
        self, truth: Tensor, config: Config, *, mask_id: int, prefix: bool = False
    ) -> None:
        if config.sampling.eos == "stop":
            raise OptionError("Teacher forcing writes the whole reference; use eos='keep'.")
        if prefix and config.strategy.revises:
            raise OptionError(f"{config.strategy!r} remasks tokens, which a prefix does not allow.")
        self.truth, self.config, self.mask_id, self.prefix = truth, config, mask_id, prefix

    def before(self, state: DecodeState) -> DecodeState:
        """Return the state unchanged."""
        return state

    def after(
        self, before: DecodeState, state: DecodeState, steps: Sequence[Step]
    ) -> tuple[DecodeState, Sequence[Step]]:
        """Replace the committed tokens with the truth."""
        (step,) = steps
        if self.prefix:
            state = _from_the_left(self.config, before, state, step=step, mask_id=self.mask_id)
        filled = state.canvas.known & (state.canvas.slot >= 0)
        canvas = state.canvas._replace(tokens=torch.where(filled, self.truth, state.canvas.tokens))
        state = state._replace(canvas=canvas)
        return state, [step._replace(canvas=canvas, final=state.final, done=state.done)]


def _from_the_left(
    config: Config, rows: DecodeState, after: DecodeState, *, step: Step, mask_id: int
) -> DecodeState:
    """Return the state as if the strategy had scored the leftmost positions highest."""
    position = positions(rows.canvas.masked).expand_as(rows.canvas.tokens)
    leftmost_first = rows._replace(
        proposal=step.view.proposal, stats=step.view.stats, score=-position.float()
    )
    void = after.step == rows.step  # it needed positions that were not read, so the step was void
    no = torch.zeros_like(void)
    led, _, decision = decide_and_write(config, leftmost_first, mask_id, bad=no, void=void)
    # Commit the leftmost positions, even if the strategy ignores the score.
    leftmost = first(rows.canvas.masked, decision.commit.sum(-1))
    canvas = rows.canvas.commit(leftmost, step.view.proposal)
    return led._replace(canvas=canvas, final=canvas.known, bad_step=after.bad_step)


@dataclass(frozen=True)
class Outcomes:
    """Every chosen position: the probability of its proposal, and whether it was right."""

    confidence: Tensor  # (n,) float32: the probability of the proposal
    correct: Tensor  # (n,) bool
    row: Tensor  # (n,) long, as the rest
    place: Tensor
    t: Tensor
    rows: int = 0  # in the batch

    def reliability(self, bins: int = 10) -> Reliability:
        return reliability(self.confidence, self.correct, bins)

    @staticmethod
    def join(parts: Sequence[Outcomes]) -> Outcomes:
        """Join the outcomes of several batches."""
        confidence, correct, place, t = (
            torch.cat([getattr(part, name) for part in parts])
            for name in ("confidence", "correct", "place", "t")
        )
        counts = [part.rows for part in parts]
        row = renumber_rows([part.row for part in parts], counts)
        return Outcomes(confidence, correct, row, place, t, sum(counts))


def decode_forced(
    model: Model,
    lesson: ForcedBatch,
    config: Config,
    *,
    prefix: bool = False,
    seeds: Sequence[int] | None = None,
) -> Outcomes:
    """Decode with teacher forcing and return the outcome of every choice, even if remasked."""
    count = lesson.truth.shape[0]
    steps = decode(
        model,
        lesson.canvas,
        config,
        steps=lesson.steps,
        seeds=[0] * count if seeds is None else seeds,
        hook=TeacherForcing(lesson.truth, config, mask_id=model.mask_id, prefix=prefix),
    )
    kept: list[tuple[Tensor, ...]] = []
    for step in steps:  # on the device until the end
        view = step.view
        right = view.proposal == lesson.truth
        kept.append((step.decision.commit, view.stats.logp, right, view.progress.step))
    if not kept:
        raise OptionError("The batch is empty; there is no position to fill.")
    commit, logp, right, clock = (torch.stack(column).cpu() for column in zip(*kept, strict=True))
    index, row, place = commit.nonzero().T
    return Outcomes(
        confidence=logp[commit].exp(),
        correct=right[commit],
        row=row,
        place=place,
        t=clock[index, row] + 1,
        rows=count,
    )


@dataclass(frozen=True)
class Reliability:
    """Equal-width bins of confidence: [0, 1/n), …; the last one includes 1."""

    edges: Tensor  # (bins + 1,) float64
    count: Tensor  # (bins,) long
    confidence: Tensor  # (bins,) float64: mean confidence; NaN in an empty bin
    accuracy: Tensor  # (bins,) float64: the share that was right; NaN in an empty bin

    @property
    def total(self) -> int:
        return int(self.count.sum())

    @property
    def gap(self) -> Tensor:
        """Accuracy minus confidence, (bins,) float64. Negative means overconfident."""
        return self.accuracy - self.confidence

    @property
    def ece(self) -> float:
        """Expected calibration error: the mean gap, weighted by the size of the bins."""
        return float((self.gap.abs().nan_to_num() * self.count).sum() / self.count.sum())

    @property
    def mce(self) -> float:
        """Maximum calibration error: the largest gap over non-empty bins."""
        return float(self.gap.abs().nan_to_num().max()) if self.total else float("nan")


def reliability(confidence: Any, correct: Any, bins: int = 10) -> Reliability:
    """Bin proposals by their probability."""
    check_int("bins", bins, 1)
    sure = torch.as_tensor(confidence, dtype=torch.float64)
    right = torch.as_tensor(correct, dtype=torch.float64)
    if sure.shape != right.shape or sure.dim() != 1:
        raise OptionError(f"{[*sure.shape]} confidences do not match {[*right.shape]} results.")
    if not bool(((sure >= 0) & (sure <= 1)).all()):
        raise OptionError("A confidence is a probability, between 0 and 1.")
    index = (sure * bins).long().clamp(max=bins - 1)  # exact, because every float32 is a float64
    count = torch.bincount(index, minlength=bins)
    return Reliability(
        edges=torch.arange(bins + 1).double() / bins,
        count=count,
        confidence=torch.bincount(index, sure, bins) / count,
        accuracy=torch.bincount(index, right, bins) / count,
    )
