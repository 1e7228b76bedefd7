"""Random traces for the tests of measures, and the same traces as sets and dictionaries."""

from __future__ import annotations

import functools
import warnings
from dataclasses import dataclass, replace

import torch

from wavefront.core import spec
from wavefront.core.canvas import Canvas, infill
from wavefront.core.reading import Sampling
from wavefront.core.state import Config, Step, decide_and_write, start
from wavefront.core.strategy import Stats
from wavefront.testing.simulation import MASK, PAD, random_canvas
from wavefront.traces.trace import Recorder, Trace

STOP = 9
# One of every kind: whole canvas, blocks, fronts, windows, adaptive selectors, and remasking.
STRATEGIES = (
    "standard()",
    "block(size=3)",
    "block(size=4, selector=threshold(0.6))",
    "left_to_right()",
    "wavefront(size=3, radius=1)",
    "wavefront(size=4, radius=2, grow='accumulate')",
    "dsb(size=4)",
    "dcd(masks=4, span=6)",
    "adablock(size=4, delimiters=(3,))",
    "rcr(size=4)",
    "tbd(size=5, drop=2, min_kept=1)",
    "tide(size=4, cascade_rounds=0, horizon=0, revisable_band=3, "
    "remask_below=0.6, selector=quota())",
    "tide(size=3, cascade_rounds=2, horizon=0, selector=threshold(0.6))",
)


def random_trace(
    strategy: str,
    canvas: Canvas,
    *,
    steps: int,
    seed: int = 0,
    eos: str = "keep",
    fixed: bool = False,
    levels: int = 4,
) -> Trace:
    """Return a full trace with random readings from a few levels, so that ties are common.

    Score, probability and entropy are drawn independently. Some steps of a row are void, as they
    are when the width is too small. Finished rows are still read.
    """
    source = torch.Generator().manual_seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = spec.resolve(strategy, "strategies")
        made.validate(int((canvas.slot >= 0).sum(-1).max()), steps)
    config = Config(
        strategy=made,
        read_all_masked=True,
        fixed_budget=fixed,
        sampling=Sampling(eos=eos, stop_ids=(STOP,)),
    )
    count = canvas.tokens.shape[0]
    rows = start(canvas, config, [steps] * count, seeds=range(count))

    def level() -> torch.Tensor:
        drawn = torch.rand(canvas.tokens.shape, generator=source)
        return (drawn * levels).ceil() / levels

    def forwards():
        nonlocal rows
        no = torch.zeros(count, dtype=torch.bool)
        for number in range(3 * steps + 3):
            stats = Stats(level().log(), level(), level(), level().log())
            kept = (
                None if old is None else new for new, old in zip(stats, rows.stats, strict=True)
            )
            proposal = torch.randint(2, STOP + 1, canvas.tokens.shape, generator=source)
            before = rows._replace(stats=Stats(*kept), score=level(), proposal=proposal)
            void = torch.rand(count, generator=source) < 0.1
            rows, view, decision = decide_and_write(config, before, MASK, bad=no, void=void)
            yield Step(
                number, number + 1, 0, view, decision, rows.canvas, rows.final, rows.done, None
            )
            if rows.done.all() and not (fixed and (rows.step < steps).any()):
                return

    recorder = Recorder(canvas, config, MASK)
    for _ in recorder.watch(forwards()):
        pass
    options = {"strategy": strategy, "steps": steps, "stop_ids": [STOP]}
    return recorder.trace({"options": options})


@functools.cache
def sample() -> tuple[Trace, ...]:
    """Return traces of every strategy: prompts, holes, nothing known, one or two positions."""
    found = []
    for number, strategy in enumerate(STRATEGIES):
        settings = [
            (random_canvas(number, rows=3), 12, {}),
            (random_canvas(number + 50, rows=3), 5, {"eos": "stop"}),
            (random_canvas(number, rows=3, holes=True), 9, {"eos": "stop"}),
            (random_canvas(number, rows=2, holes=True), 17, {"fixed": True}),
            (random_canvas(number, rows=2, length=2), 2, {}),
            (infill([[2] * 7], [[True] * 7], mask_id=MASK, pad_id=PAD), 4, {}),
        ]
        for index, (canvas, steps, more) in enumerate(settings):
            found.append(
                random_trace(strategy, canvas, steps=steps, seed=10 * number + index, **more)
            )
    return tuple(found)


def basic(trace: Trace) -> Trace:
    """Return the trace as it is recorded without reading all masked positions."""
    return replace(trace, score=None, entropy=None)


def bare(trace: Trace) -> Trace:
    """Return the trace without a header."""
    return replace(trace, about={})


@dataclass
class RecordedStep:
    """One step of one row, as the step saw it."""

    index: int
    t: int
    masked: set[int]
    known: set[int]
    scope: set[int]
    commit: set[int]
    remask: set[int]
    token: dict[int, int]
    confidence: dict[int, float]
    score: dict[int, float]
    entropy: dict[int, float]

    @property
    def counts(self) -> bool:
        return bool(self.commit or self.remask)


@dataclass
class Row:
    """One row of a trace, in plain Python."""

    slots: dict[int, int]  # position -> slot
    moments: list[RecordedStep]
    tokens: dict[int, int]  # position -> final token, if decided

    def visible(self) -> set[int]:
        """Return the positions of each hole before its first stop token or undecided position."""
        seen = set()
        for place in self.slots:
            here = place
            while here in self.slots:
                if self.tokens.get(here, STOP) == STOP:
                    break
                here -= 1
            else:
                seen.add(place)
        return seen

    def lasts(self, moment: RecordedStep, place: int) -> bool:
        return not any(
            place in later.remask for later in self.moments if later.index >= moment.index
        )


def plain(trace: Trace) -> list[Row]:
    """Return every row as sets and dictionaries, from a replay in plain Python."""
    return [_row(trace, row) for row in range(trace.first.tokens.shape[0])]


def _row(trace: Trace, row: int) -> Row:
    def places(board: torch.Tensor) -> set[int]:
        return {i for i, true in enumerate(board.tolist()) if true}

    def numbers(board: torch.Tensor | None, index: int) -> dict[int, float]:
        return {} if board is None else dict(enumerate(board[index, row].tolist()))

    probability = trace.logp.exp()
    masked, known = places(trace.first.masked[row]), places(trace.first.known[row])
    slots = {i: s for i, s in enumerate(trace.first.slot[row].tolist()) if s >= 0}
    tokens: dict[int, int] = {}
    moments = []
    for index in range(len(trace)):
        for step, which, place, token in trace.overrides.tolist():
            if (step, which) == (index, row):
                masked, known = masked - {place}, known | {place}
                tokens[place] = token
        moment = RecordedStep(
            index,
            int(trace.step[index, row]) + 1,
            set(masked),
            set(known),
            places(trace.candidates[index, row]),
            places(trace.commit[index, row]),
            places(trace.remask[index, row]),
            dict(enumerate(trace.tokens[index, row].tolist())),
            numbers(probability, index),
            numbers(trace.score, index),
            numbers(trace.entropy, index),
        )
        moments.append(moment)
        tokens |= {place: moment.token[place] for place in moment.commit}
        masked, known = masked - moment.commit, known | moment.commit
        masked, known = masked | moment.remask, known - moment.remask
    return Row(slots, moments, {i: t for i, t in tokens.items() if i in known})


def hand_trace(
    commits: list[list[int]],
    *,
    places: int,
    given: int = 1,
    scope: list[list[int]] | None = None,
    probability: list[dict[int, float]] | None = None,
    entropy: list[dict[int, float]] | None = None,
    tokens: dict[int, int] | None = None,
    remask: list[list[int]] | None = None,
    strategy: str = "standard()",
) -> Trace:
    """Return a full trace of one row: a prompt of `given` positions, then `places` to fill.

    Positions count from the start of the row, so the first one to fill is `given`.
    """
    holes = [False] * given + [True] * places
    first = infill([[5] * len(holes)], [holes], mask_id=MASK, pad_id=PAD)
    shape = (len(commits), 1, given + places)

    def marks(where: list[list[int]] | None) -> torch.Tensor:
        out = torch.zeros(shape, dtype=torch.bool)
        for index, some in enumerate(where or []):
            out[index, 0, some] = True
        return out

    def values(where: list[dict[int, float]] | None, default: float) -> torch.Tensor:
        out = torch.full(shape, default)
        for index, some in enumerate(where or []):
            for place, value in some.items():
                out[index, 0, place] = value
        return out

    written = torch.full(shape, 7, dtype=torch.int32)
    for place, token in (tokens or {}).items():
        written[:, 0, place] = token
    return Trace(
        first,
        step=torch.arange(len(commits))[:, None],
        commit=marks(commits),
        remask=marks(remask),
        candidates=marks(scope),
        front=torch.zeros(shape, dtype=torch.bool),
        tokens=written,
        logp=values(probability, 0.5).log(),
        launched=torch.arange(1, len(commits) + 1),
        mask_id=MASK,
        score=values(probability, 0.5),
        entropy=values(entropy, 1.0),
        about={
            "options": {"strategy": strategy, "steps": len(commits), "stop_ids": [STOP]},
        },
    )
