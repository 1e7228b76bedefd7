"""A recorded trace as a stream, to watch it without the model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from wavefront.player.visible_text import UNKNOWN, visible

if TYPE_CHECKING:
    from wavefront.core.state import Step
    from wavefront.traces.trace import Trace


class TraceStream:
    """One row of a trace, replayed step by step. Its header is untrusted input."""

    def __init__(self, trace: Trace, row: int = 0) -> None:
        self._trace = trace.row(row)
        options = _mapping(trace.about.get("options"))
        steps, stops = options.get("steps"), options.get("stop_ids")
        sampling = SimpleNamespace(stop_ids=_integers(stops))
        self._titles = titles(trace)
        config = SimpleNamespace(
            sampling=sampling, strategy=_Title(self._titles[0]), constraint=None
        )
        usable = isinstance(steps, int) and len(trace) <= steps < 1 << 31
        budget = steps if usable else len(trace)
        length = int(self._trace.answer[0].sum())
        # The part of a stream that a board reads.
        self.decoding: Any = SimpleNamespace(
            canvas=self._trace.first,
            plan=SimpleNamespace(config=config, steps=budget, length=length),
            forwards=0,
            first_step=0,
        )
        self.lm: Any = SimpleNamespace(tokenizer=TraceTexts(trace.about))
        pinned = self._trace.pinned
        self.pinned = frozenset(() if pinned is None else pinned[0].nonzero()[:, 0].tolist())

    def __iter__(self) -> Iterator[Step]:
        from wavefront.core.state import Step
        from wavefront.core.strategy import Decision, RowProgress, Stats, View

        trace, decoding = self._trace, self.decoding
        slot = trace.first.slot
        length = (slot >= 0).sum(-1)
        seen = zip(trace.before(), trace.replay(), strict=True)
        for number, (before, after) in enumerate(seen):
            tokens, logp = trace.tokens[number].long(), trace.logp[number]
            score = logp if trace.score is None else trace.score[number]
            steps = length * 0 + decoding.plan.steps
            clock = RowProgress(
                length, steps, trace.step[number], before.masked.sum(-1), length * 0
            )
            view = View(
                score, Stats(logp), tokens, before.masked, before.known, slot, clock, before.tokens
            )
            written, remask = trace.written[number], trace.remask[number]
            decision = Decision(written, trace.candidates[number], (), remask)
            decoding.canvas = after
            decoding.plan.config.strategy = _Title(self._titles[number])
            decoding.forwards = forwards = int(trace.launched[number])
            done = ~after.masked.any(-1) | (number == len(trace) - 1)
            yield Step(number, forwards, 0, view, decision, after, after.known, done)


class TraceTexts:
    """The token texts in a trace header, with the part of a tokenizer that a board reads."""

    def __init__(self, about: Mapping[str, Any]) -> None:
        self._texts = _mapping(about.get("texts"))
        self.special_ids = frozenset(_integers(about.get("special_ids")))

    def pieces(self, ids: Iterable[int]) -> list[str]:
        return [str(self._texts.get(str(id), UNKNOWN)) for id in ids]

    def decode(self, ids: Iterable[int]) -> str:
        return "".join(self.pieces(ids))


def titles(trace: Trace) -> list[str]:
    """Return the strategy of each step, at least one; the steps before a fork have their own."""
    names = [""] * (len(trace) + 1)
    about: Mapping[str, Any] = trace.about
    upto = len(names)
    while upto > 0:
        fork = _mapping(about.get("fork"))
        begun = fork.get("at") if fork else 0
        begun = begun if isinstance(begun, int) and 0 < begun < upto else 0
        name = str(_mapping(about.get("options")).get("strategy", "unknown strategy"))
        name = " ".join(visible(name).split())
        names[begun:upto] = [name] * (upto - begun)
        about, upto = _mapping(fork.get("of")), begun
    return names


class _Title(str):
    """A text whose repr is itself, like the repr of a strategy."""

    __repr__ = str.__str__


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _integers(values: Any) -> tuple[int, ...]:
    """Return the integers of a list; any other value gives an empty result."""
    return tuple(v for v in values if type(v) is int) if isinstance(values, list | tuple) else ()
