"""Trace: how a decode unfolded, step by step, and its replay.

A consumer of `decode`. Recording keeps the step's own tensors where they are and moves them to the
host once, at the end, so it costs the decode nothing but memory. A *full* trace comes of a decode
with `Config.survey`, which reads every masked place at every step; measures need one.
`wavefront.traces.trace_file` writes traces to disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from wavefront.core.canvas import Canvas
from wavefront.core.state import Config, Step, TopAlternatives


@dataclass(frozen=True)
class Trace:
    """S steps of B rows on a board of L places, on the CPU."""

    first: Canvas  # before the first step
    step: Tensor  # (S, B) long: each row's own step; those passed over are missing
    commit: Tensor  # (S, B, L) bool
    remask: Tensor  # (S, B, L) bool
    scope: Tensor  # (S, B, L) bool
    front: (
        Tensor  # (S, B, L) bool: held ready for the next step; nowhere if the strategy keeps none
    )
    tokens: Tensor  # (S, B, L) int32: what was proposed, meaningful where committed
    logp: Tensor  # (S, B, L) float32: log p of it
    launched: Tensor  # (S,) long: forwards begun when the step was handed over
    mask_id: int
    score: Tensor | None = None  # (S, B, L) float32, of a full trace: of every masked place
    entropy: Tensor | None = None  # (S, B, L) float32, of a full trace: the same
    others: TopAlternatives | None = None  # (S, B, L, K), on request
    # (E, 4) long: step, row, place, token. Written from outside, before the step; see fork.
    by_hand: Tensor = field(default_factory=lambda: torch.zeros(0, 4, dtype=torch.long))
    about: Mapping[str, Any] = field(
        default_factory=dict
    )  # model, options, versions: see tracefile

    def __len__(self) -> int:
        return len(self.step)

    @property
    def forwards(self) -> int:
        """Of the whole batch, surplus ones included."""
        return int(self.launched[-1]) if len(self) else 0

    @property
    def full(self) -> bool:
        """Whether statistics are there for every masked place, not only for those in reach."""
        return self.entropy is not None

    def replay(self) -> Iterator[Canvas]:
        """The canvas after every step, from the record alone."""
        return (after for _, after in self._walk())

    def before(self) -> Iterator[Canvas]:
        """The canvas that every step saw."""
        return (before for before, _ in self._walk())

    def _walk(self) -> Iterator[tuple[Canvas, Canvas]]:
        canvas = self.first
        boards = zip(self.commit, self.remask, self.tokens, strict=True)
        for number, (commit, remask, tokens) in enumerate(boards):
            before = write(canvas, self.by_hand[self.by_hand[:, 0] == number, 1:])
            canvas = before.commit(commit, tokens.long()).take_back(remask, self.mask_id)
            yield before, canvas

    def until(self, step: int) -> Trace:
        """The first steps alone, so many of them."""
        return replace(
            self,
            **self._each(lambda part: part[:step]),
            launched=self.launched[:step],
            by_hand=self.by_hand[self.by_hand[:, 0] < step],
        )

    def row(self, index: int) -> Trace:
        """One row as a trace of its own."""
        one = [range(self.step.shape[1])[index]]
        mine = self.by_hand[self.by_hand[:, 1] == one[0]]
        return replace(
            self,
            first=Canvas(*(part[one] for part in self.first)),
            **self._each(lambda part: part[:, one]),
            by_hand=mine * torch.tensor([1, 0, 1, 1]),
        )

    def followed_by(self, rest: Trace) -> Trace:
        """These steps and then those, which go on from the canvas that these lead to."""
        later = torch.tensor([len(self), 0, 0, 0])
        return replace(
            self,
            **{name: _joined(getattr(self, name), getattr(rest, name)) for name in EVERY},
            launched=torch.cat([self.launched, rest.launched + self.forwards]),
            by_hand=torch.cat([self.by_hand, rest.by_hand + later]),
            about=rest.about,
        )

    def _each(self, change: Callable[[Tensor], Tensor]) -> dict[str, Any]:
        """The tensors of all steps, (S, B, ...), changed alike."""
        return {name: _changed(getattr(self, name), change) for name in EVERY}


def _changed(part: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(part, TopAlternatives):
        return TopAlternatives(*map(change, part))
    return None if part is None else change(part)


def _joined(one: Any, two: Any) -> Any:
    """One after the other; None when either is missing or of another width."""
    if one is None or two is None:
        return None
    if not isinstance(one, TopAlternatives):
        return torch.cat([one, two])
    same = one.tokens.shape[-1] == two.tokens.shape[-1]
    return TopAlternatives(*map(torch.cat, zip(one, two, strict=True))) if same else None


def write(canvas: Canvas, entries: Tensor) -> Canvas:
    """The canvas with (E, 3) long entries of row, place, token written on it."""
    if not len(entries):
        return canvas
    row, place, token = entries.T
    where = torch.zeros_like(canvas.masked).index_put((row, place), token >= 0)
    return canvas.commit(where, canvas.tokens.index_put((row, place), token))


BOARDS = ("step", "commit", "remask", "scope", "front", "tokens", "logp")
EVERY = (*BOARDS, "score", "entropy", "others")


class Recorder:
    """Passes steps through and keeps what a trace needs of them."""

    def __init__(self, first: Canvas, config: Config, mask_id: int) -> None:
        self.first, self.config, self.mask_id = first, config, mask_id
        self._kept: list[tuple[Tensor | None, ...]] = []
        self._launched: list[int] = []

    def watch(self, steps: Iterable[Step]) -> Iterator[Step]:
        for step in steps:
            self._kept.append(self._of(step))
            self._launched.append(step.forwards)
            yield step

    def _of(self, step: Step) -> tuple[Tensor | None, ...]:
        decision, view = step.decision, step.view
        none = torch.zeros_like(decision.commit)
        front = self.config.strategy.front(decision.state)
        survey, others = self.config.read_all_masked, step.others
        return (
            view.progress.step,
            decision.commit,
            none if decision.remask is None else decision.remask,
            decision.candidates,
            none if front is None else front,
            view.proposal.int(),
            view.stats.logp,
            view.score if survey else None,
            view.stats.entropy if survey else None,
            None if others is None else others.tokens.int(),
            None if others is None else others.logp,
        )

    def trace(self, about: Mapping[str, Any] | None = None) -> Trace:
        """What was recorded so far."""
        first = Canvas(*(t.cpu() for t in self.first))
        empty = first.masked[None][:0]
        parts: list[Any] = [empty[..., 0].long(), *[empty] * 4, empty.int(), empty.float()]
        parts += [None] * 4
        if self._kept:
            columns = zip(*self._kept, strict=True)
            parts = [None if c[0] is None else torch.stack(c).cpu() for c in columns]  # pyright: ignore[reportArgumentType, reportCallIssue]
        *boards, score, entropy, tokens, logp = parts
        others = None if tokens is None or logp is None else TopAlternatives(tokens, logp)
        return Trace(
            first,
            *boards,
            launched=torch.tensor(self._launched, dtype=torch.long),
            mask_id=self.mask_id,
            score=score,
            entropy=entropy,
            others=others,
            about=dict(about or {}),
        )
