"""CapturedStepPool: who makes the steps of a decode; plain, drafted, cached, and on CUDA captured.

A captured step owns its memory, so it serves one decode at a time and is kept for the next one of
the same shape. A second decode of that shape, begun before the first has ended, steps plainly.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from weakref import WeakValueDictionary

from torch import Tensor

from wavefront.core.canvas import Canvas
from wavefront.core.state import Config, DecodeState, Step
from wavefront.engine.cached_step import CachedStep
from wavefront.engine.cuda_graphs import Call, Graphs, eagerly, graphed
from wavefront.engine.narrow import Narrow
from wavefront.engine.options import Plan
from wavefront.engine.speculation import speculate
from wavefront.engine.step import StepFn, advance
from wavefront.engine.window import hides
from wavefront.models.loader import Model

KEPT = 4  # shapes whose captured steps are kept; each holds its own keys and values
FEWEST = 16  # steps: a shorter decode is over before a capture has paid


def stepper(plan: Plan, model: Model, canvas: Canvas, call: Call = eagerly) -> StepFn:
    """What makes the steps of a plan on a canvas."""
    rows, length = canvas.tokens.shape
    if plan.draft > 1:
        return speculate(plan.draft, plan.length)
    if plan.cache is not None:
        copies = 2 if plan.config.cfg_scale > 0 else 1
        hidden = hides(plan.config, canvas, model)
        return CachedStep(plan.cache, model, copies * rows, length, plan.length, call, hidden)
    if hides(plan.config, canvas, model):
        return Narrow(length, call)
    return advance if call is eagerly else graphed(call)


class CapturedStepPool:
    """Captured steps of one model, the most recently used shapes of them."""

    def __init__(self, model: Model, *, graphs: Callable[[], Call] = Graphs) -> None:
        self.model, self._graphs = model, graphs
        self._kept: OrderedDict[Hashable, StepFn] = OrderedDict()
        self._lent: WeakValueDictionary[Hashable, _Lent] = WeakValueDictionary()

    def __call__(self, plan: Plan, canvas: Canvas) -> StepFn:
        """A stepper for one decode, captured where that pays and none other has it."""
        copies = 2 if plan.config.cfg_scale > 0 else 1
        hidden = hides(plan.config, canvas, self.model)
        key = (tuple(canvas.tokens.shape), copies, plan.cache, plan.cache and plan.length, hidden)
        if plan.draft > 1 or plan.steps < FEWEST or key in self._lent:
            return stepper(plan, self.model, canvas)
        run = self._kept.pop(key, None)
        if run is None:
            run = stepper(plan, self.model, canvas, self._graphs())
        self._kept[key] = run
        if len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        if isinstance(run, CachedStep | Narrow):
            run.restart()
        self._lent[key] = lent = _Lent(run)
        return lent


class _Lent:
    """A stepper on loan: the decode that holds it is the one that may use it."""

    def __init__(self, run: StepFn) -> None:
        self._run, self.frugal = run, getattr(run, "frugal", False)

    def __call__(
        self, model: Model, config: Config, rows: DecodeState, width: int, padded: bool
    ) -> tuple[DecodeState, Sequence[Step], Tensor]:
        return self._run(model, config, rows, width, padded)
