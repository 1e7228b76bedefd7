"""The record of a decode, step by step, and its replay.

`Recorder` watches the steps of a decode. It keeps the step's tensors on the device and copies them
to the host once, at the end, so recording costs only memory. A *full* trace comes from a decode
with `Config.read_all_masked`, which reads every masked position at every step. Most measures need a
full trace. `wavefront.traces.trace_file` writes traces to disk.
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
    """S steps of B rows on a board of L positions, on the CPU."""

    first: Canvas  # before the first step
    step: Tensor  # (S, B) long: each row's own step number; skipped steps are missing
    commit: Tensor  # (S, B, L) bool
    remask: Tensor  # (S, B, L) bool
    scope: Tensor  # (S, B, L) bool
    front: Tensor  # (S, B, L) bool: the strategy's front after the step; all false without one
    tokens: Tensor  # (S, B, L) int32: the proposals, meaningful where committed
    logp: Tensor  # (S, B, L) float32: the log-probability of each proposal
    launched: Tensor  # (S,) long: forward passes started when the step was yielded
    mask_id: int
    score: Tensor | None = None  # (S, B, L) float32, full traces only: for every masked position
    entropy: Tensor | None = None  # (S, B, L) float32, full traces only: for every masked position
    alternatives: TopAlternatives | None = None  # (S, B, L, K), if recorded
    # (E, 4) long: step, row, position, token. A fork wrote these tokens before the step.
    overrides: Tensor = field(default_factory=lambda: torch.zeros(0, 4, dtype=torch.long))
    about: Mapping[str, Any] = field(default_factory=dict)  # model, options and versions

    def __len__(self) -> int:
        return len(self.step)

    @property
    def forwards(self) -> int:
        """Forward passes of the whole batch, including surplus ones."""
        return int(self.launched[-1]) if len(self) else 0

    @property
    def full(self) -> bool:
        """Whether the trace has statistics for every masked position, not only for candidates."""
        return self.entropy is not None

    def replay(self) -> Iterator[Canvas]:
        """Yield the canvas after every step, without the model."""
        return (after for _, after in self._walk())

    def before(self) -> Iterator[Canvas]:
        """Yield the canvas before every step."""
        return (before for before, _ in self._walk())

    def _walk(self) -> Iterator[tuple[Canvas, Canvas]]:
        canvas = self.first
        boards = zip(self.commit, self.remask, self.tokens, strict=True)
        for number, (commit, remask, tokens) in enumerate(boards):
            before = write(canvas, self.overrides[self.overrides[:, 0] == number, 1:])
            canvas = before.commit(commit, tokens.long()).take_back(remask, self.mask_id)
            yield before, canvas

    def until(self, step: int) -> Trace:
        """Return a trace of the first `step` steps."""
        return replace(
            self,
            **self._each(lambda part: part[:step]),
            launched=self.launched[:step],
            overrides=self.overrides[self.overrides[:, 0] < step],
        )

    def row(self, index: int) -> Trace:
        """Return one row as a separate trace."""
        one = [range(self.step.shape[1])[index]]
        mine = self.overrides[self.overrides[:, 1] == one[0]]
        return replace(
            self,
            first=Canvas(*(part[one] for part in self.first)),
            **self._each(lambda part: part[:, one]),
            overrides=mine * torch.tensor([1, 0, 1, 1]),
        )

    def followed_by(self, rest: Trace) -> Trace:
        """Append the steps of `rest`, which must start from this trace's last canvas."""
        later = torch.tensor([len(self), 0, 0, 0])
        return replace(
            self,
            **{
                name: _concatenate(getattr(self, name), getattr(rest, name)) for name in STEP_FIELDS
            },
            launched=torch.cat([self.launched, rest.launched + self.forwards]),
            overrides=torch.cat([self.overrides, rest.overrides + later]),
            about=rest.about,
        )

    def _each(self, change: Callable[[Tensor], Tensor]) -> dict[str, Any]:
        """Apply `change` to the tensors of all steps, (S, B, ...)."""
        return {name: _apply(getattr(self, name), change) for name in STEP_FIELDS}


def _apply(part: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(part, TopAlternatives):
        return TopAlternatives(*map(change, part))
    return None if part is None else change(part)


def _concatenate(one: Any, two: Any) -> Any:
    """Concatenate two parts. None if either is missing or they differ in width."""
    if one is None or two is None:
        return None
    if not isinstance(one, TopAlternatives):
        return torch.cat([one, two])
    same = one.tokens.shape[-1] == two.tokens.shape[-1]
    return TopAlternatives(*map(torch.cat, zip(one, two, strict=True))) if same else None


def write(canvas: Canvas, entries: Tensor) -> Canvas:
    """Write entries of (row, position, token), (E, 3) long, on the canvas."""
    if not len(entries):
        return canvas
    row, position, token = entries.T
    where = torch.zeros_like(canvas.masked).index_put((row, position), token >= 0)
    return canvas.commit(where, canvas.tokens.index_put((row, position), token))


BOARDS = ("step", "commit", "remask", "scope", "front", "tokens", "logp")
STEP_FIELDS = (*BOARDS, "score", "entropy", "alternatives")


class Recorder:
    """Pass steps through, and keep what a trace needs."""

    def __init__(self, first: Canvas, config: Config, mask_id: int) -> None:
        self.first, self.config, self.mask_id = first, config, mask_id
        self._kept: list[tuple[Tensor | None, ...]] = []
        self._launched: list[int] = []

    def watch(self, steps: Iterable[Step]) -> Iterator[Step]:
        """Yield the steps unchanged, and record them."""
        for step in steps:
            self._kept.append(self._parts(step))
            self._launched.append(step.forwards)
            yield step

    def _parts(self, step: Step) -> tuple[Tensor | None, ...]:
        decision, view = step.decision, step.view
        none = torch.zeros_like(decision.commit)
        front = self.config.strategy.front(decision.state)
        full, alternatives = self.config.read_all_masked, step.others
        return (
            view.progress.step,
            decision.commit,
            none if decision.remask is None else decision.remask,
            decision.candidates,
            none if front is None else front,
            view.proposal.int(),
            view.stats.logp,
            view.score if full else None,
            view.stats.entropy if full else None,
            None if alternatives is None else alternatives.tokens.int(),
            None if alternatives is None else alternatives.logp,
        )

    def trace(self, about: Mapping[str, Any] | None = None) -> Trace:
        """Return the trace of the steps so far."""
        first = Canvas(*(t.cpu() for t in self.first))
        empty = first.masked[None][:0]
        parts: list[Any] = [empty[..., 0].long(), *[empty] * 4, empty.int(), empty.float()]
        parts += [None] * 4
        if self._kept:
            columns = zip(*self._kept, strict=True)
            parts = [None if c[0] is None else torch.stack(c).cpu() for c in columns]  # pyright: ignore[reportArgumentType, reportCallIssue]
        *boards, score, entropy, tokens, logp = parts
        alternatives = None if tokens is None or logp is None else TopAlternatives(tokens, logp)
        return Trace(
            first,
            *boards,
            launched=torch.tensor(self._launched, dtype=torch.long),
            mask_id=self.mask_id,
            score=score,
            entropy=entropy,
            alternatives=alternatives,
            about=dict(about or {}),
        )
