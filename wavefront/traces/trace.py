"""The record of a decode, step by step, and its replay.

`Recorder` watches the steps of a decode. It keeps the step's tensors on the device and copies them
to the host once, at the end, so recording costs only memory. A *full* trace comes from a decode
with `Config.read_all_masked`, which reads every masked position at every step. Most measures need a
full trace. `wavefront.traces.trace_file` writes traces to disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from wavefront.core.canvas import Canvas
from wavefront.core.state import Config, Step, TopAlternatives
from wavefront.core.tree import plural

# The function that shows a trace in a notebook. It is in a folder that this one may not import, so
# it is found by name at its first use. tests/project/test_layers.py lists this exception.
NOTEBOOK_HTML = "wavefront.player.notebook:trace_html"


@dataclass(frozen=True)
class Trace:
    """S steps of B rows on a board of L positions, on the CPU."""

    first: Canvas  # before the first step
    step: Tensor  # (S, B) long: each row's own step number; skipped steps are missing
    commit: Tensor  # (S, B, L) bool
    remask: Tensor  # (S, B, L) bool
    candidates: Tensor  # (S, B, L) bool: the positions that the strategy offered
    front: Tensor  # (S, B, L) bool: the strategy's front after the step; all false without one
    tokens: Tensor  # (S, B, L) int32: the proposals, meaningful where committed
    logp: Tensor  # (S, B, L) float32: the log-probability of each proposal
    launched: Tensor  # (S,) long: forward passes started when the step was yielded
    mask_id: int
    score: Tensor | None = None  # (S, B, L) float32, full traces only: for every masked position
    entropy: Tensor | None = None  # (S, B, L) float32, full traces only: for every masked position
    alternatives: TopAlternatives | None = None  # (S, B, L, K), if recorded
    edit: Tensor | None = None  # (S, B, L) bool: committed tokens that were replaced; None: none
    # (E, 4) long: step, row, position, token. A fork wrote these tokens before the step.
    overrides: Tensor = field(default_factory=lambda: torch.zeros(0, 4, dtype=torch.long))
    # (B, L) bool: final tokens whose text a constraint left no choice about; None: no constraint
    pinned: Tensor | None = None
    about: Mapping[str, Any] = field(default_factory=dict)  # model, options and versions

    def __len__(self) -> int:
        return len(self.step)

    def __repr__(self) -> str:
        rows, length = self.first.masked.shape
        options = self.about.get("options")
        strategy = options.get("strategy") if isinstance(options, Mapping) else None
        parts = [
            plural(len(self), "step"),
            f"{plural(rows, 'row')} of {plural(length, 'position')}",
            plural(self.forwards, "forward pass"),
            *([str(strategy)] if strategy else []),
            *(["full"] if self.full else []),
        ]
        return f"Trace({', '.join(parts)})"

    def _repr_html_(self) -> str:
        """Return the player, which a notebook shows instead of the repr."""
        module, _, name = NOTEBOOK_HTML.partition(":")
        return getattr(import_module(module), name)(self)

    @property
    def forwards(self) -> int:
        """Forward passes of the whole batch, including surplus ones."""
        return int(self.launched[-1]) if len(self) else 0

    @property
    def full(self) -> bool:
        """Whether the trace has statistics for every masked position, not only for candidates."""
        return self.entropy is not None

    @property
    def answer(self) -> Tensor:
        """(B, L) bool: the positions to fill.

        A block-causal model also fills the rest of its last block, which is not part of the answer.
        """
        options = self.about.get("options")
        length = options.get("max_new_tokens") if isinstance(options, Mapping) else None
        inside = self.first.slot >= 0
        if isinstance(length, int) and 0 < length < inside.shape[1]:
            inside = inside & (self.first.slot < length)
        return inside

    @property
    def written(self) -> Tensor:
        """(S, B, L) bool: the positions at which a step wrote a token, by a commit or an edit."""
        return self.commit if self.edit is None else self.commit | self.edit

    def replay(self) -> Iterator[Canvas]:
        """Yield the canvas after every step, without the model."""
        return (after for _, after in self._walk())

    def before(self) -> Iterator[Canvas]:
        """Yield the canvas before every step."""
        return (before for before, _ in self._walk())

    def _walk(self) -> Iterator[tuple[Canvas, Canvas]]:
        canvas = self.first
        boards = zip(self.written, self.remask, self.tokens, strict=True)
        for number, (written, remask, tokens) in enumerate(boards):
            before = write(canvas, self.overrides[self.overrides[:, 0] == number, 1:])
            canvas = before.commit(written, tokens.long()).take_back(remask, self.mask_id)
            yield before, canvas

    def until(self, step: int) -> Trace:
        """Return a trace of the first `step` steps, without marks of pinned tokens."""
        return replace(
            self,
            **self._each(lambda part: part[:step]),
            pinned=None,  # they belong to the final tokens
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
            pinned=None if self.pinned is None else self.pinned[one],
            overrides=mine * torch.tensor([1, 0, 1, 1]),
        )

    def followed_by(self, rest: Trace) -> Trace:
        """Append the steps of `rest`, which must start from this trace's last canvas."""
        later = torch.tensor([len(self), 0, 0, 0])
        parts = {n: _concatenate(getattr(self, n), getattr(rest, n)) for n in STEP_FIELDS}
        if self.edit is not None or rest.edit is not None:
            parts["edit"] = torch.cat([trace.written & ~trace.commit for trace in (self, rest)])
        return replace(
            self,
            **parts,
            launched=torch.cat([self.launched, rest.launched + self.forwards]),
            overrides=torch.cat([self.overrides, rest.overrides + later]),
            pinned=rest.pinned,
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
    """Concatenate two parts. Return None if either is missing or they differ in width."""
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


BOARDS = ("step", "commit", "remask", "candidates", "front", "tokens", "logp")
STEP_FIELDS = (*BOARDS, "score", "entropy", "alternatives", "edit")


class Recorder:
    """Passes steps through unchanged and records them for a trace."""

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
            decision.edit,
        )

    def trace(self, about: Mapping[str, Any] | None = None) -> Trace:
        """Return the trace of the steps so far."""
        first = Canvas(*(t.cpu() for t in self.first))
        empty = first.masked[None][:0]
        parts: list[Any] = [empty[..., 0].long(), *[empty] * 4, empty.int(), empty.float()]
        parts += [None] * 5
        if self._kept:
            columns = zip(*self._kept, strict=True)
            parts = [None if c[0] is None else torch.stack(c).cpu() for c in columns]  # pyright: ignore[reportArgumentType, reportCallIssue]
        *boards, score, entropy, tokens, logp, edit = parts
        alternatives = None if tokens is None or logp is None else TopAlternatives(tokens, logp)
        return Trace(
            first,
            *boards,
            launched=torch.tensor(self._launched, dtype=torch.long),
            mask_id=self.mask_id,
            score=score,
            entropy=entropy,
            alternatives=alternatives,
            edit=edit,
            about=dict(about or {}),
        )
