"""Film: a trace as a stream, to be watched again without the model that made it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from wavefront.player.visible_text import UNKNOWN, visible

if TYPE_CHECKING:
    from wavefront.core.state import Step
    from wavefront.traces.trace import Trace


class Film:
    """One row of a trace. What it says of itself comes from a file, so nothing of it is trusted."""

    def __init__(self, trace: Trace, row: int = 0) -> None:
        self._trace = trace.row(row)
        options = _mapping(trace.about.get("options"))
        steps, stops = options.get("steps"), options.get("stop_ids")
        sampling = SimpleNamespace(stop_ids=_whole(stops))
        self._titles = titles(trace)
        config = SimpleNamespace(sampling=sampling, strategy=_Title(self._titles[0]))
        budget = steps if isinstance(steps, int) and steps >= len(trace) else len(trace)
        # As much of a stream as a board looks at.
        self.decoding: Any = SimpleNamespace(
            canvas=self._trace.first,
            plan=SimpleNamespace(config=config, steps=budget),
            forwards=0,
            begun=0,
        )
        self.lm: Any = SimpleNamespace(tokenizer=Texts(trace.about))

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
            view = View(score, Stats(logp), tokens, before.masked, before.known, slot, clock)
            decision = Decision(trace.commit[number], trace.scope[number], (), trace.remask[number])
            decoding.canvas = after
            decoding.plan.config.strategy = _Title(self._titles[number])
            decoding.forwards = forwards = int(trace.launched[number])
            done = ~after.masked.any(-1)
            yield Step(number, forwards, 0, view, decision, after, after.known, done)


class Texts:
    """The texts of tokens that a trace brings along: as much of a tokenizer as a board looks at."""

    def __init__(self, about: Mapping[str, Any]) -> None:
        self._texts = _mapping(about.get("texts"))
        self.special_ids = frozenset(_whole(about.get("special_ids")))

    def pieces(self, ids: Iterable[int]) -> list[str]:
        return [str(self._texts.get(str(id), UNKNOWN)) for id in ids]

    def decode(self, ids: Iterable[int]) -> str:
        return "".join(self.pieces(ids))


def titles(trace: Trace) -> list[str]:
    """What decided each step, in words; a fork says what it was before. At least one."""
    names = [""] * (len(trace) + 1)
    about: Mapping[str, Any] = trace.about
    upto = len(names)
    while upto > 0:
        told = _mapping(about.get("fork"))
        begun = told.get("at") if told else 0
        begun = begun if isinstance(begun, int) and 0 < begun < upto else 0
        name = str(_mapping(about.get("options")).get("strategy", "unknown strategy"))
        name = " ".join(visible(name).split())
        names[begun:upto] = [name] * (upto - begun)
        about, upto = _mapping(told.get("of")), begun
    return names


class _Title(str):
    """A text whose repr is itself, as a strategy's repr is its title."""

    __repr__ = str.__str__


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _whole(values: Any) -> tuple[int, ...]:
    """The whole numbers in a list, if it is one."""
    return tuple(v for v in values if type(v) is int) if isinstance(values, list | tuple) else ()
