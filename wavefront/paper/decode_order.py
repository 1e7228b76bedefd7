"""Decode order: what each strategy may choose from, and chooses, on one item."""

from __future__ import annotations

from typing import NamedTuple

import torch

from wavefront.analysis import figures
from wavefront.analysis.figures import kind
from wavefront.analysis.measures import eos, order
from wavefront.core.spec import resolve
from wavefront.evaluation.page import ResultsPage
from wavefront.evaluation.trials import Runner, Scale, model_name
from wavefront.paper.claims import Claim, exact_claim
from wavefront.paper.decoder import DecodedItems, ItemDecoder
from wavefront.paper.experiment import LLADA, Measurement, measure_models
from wavefront.paper.tables import STRATEGIES
from wavefront.results.table import Table, finite_or_none
from wavefront.traces.trace import Trace

NEEDS = "nothing; --paper: LLaDA-8B-Instruct, gsm8k"
SMALL = Scale(items=1)
PAPER = Scale(models=(LLADA,), tasks=("gsm8k",), items=1, length=1024, style="paper")
COMPARED = STRATEGIES
TEXT = (
    "One held-out item under each strategy. A row of a panel is a step: the position it decided, "
    "the candidates, and what was decided before. Kendall's tau is 1 for decisions from left to "
    "right, -1 from right to left, and near 0 in no order."
)
COLUMNS = ["strategy", "forwards", "Kendall's tau", "mean jump (positions)",
           "next to a known position", "first end token at step", "right"]  # fmt: skip


class Order(NamedTuple):
    """The order in which a strategy decided positions, as one row of the table."""

    strategy: str
    forwards: int
    tau: float | None
    jump: float | None
    adjacent: float | None
    first_end: int | None
    correct: bool | None


def run(runner: Runner) -> ResultsPage:
    """Run the experiment on every model."""
    return measure_models(runner, measure)


def measure(decoder: ItemDecoder) -> Measurement:
    """Decode one item under every strategy and draw it."""
    name = decoder.tasks[0]
    samples = decoder.draw(name, 1)
    decoder.expect_parts(len(decoder.strategies), count=1)
    decoded = {spec: decoder.decode(name, samples, spec) for spec in decoder.strategies}
    traces = {spec: one.traces[0] for spec, one in decoded.items()}
    orders = [_order(spec, one) for spec, one in decoded.items()]
    numbers = {
        one.strategy: {
            "forwards": one.forwards,
            "text": decoded[one.strategy].answers[0].text,
            "tau": one.tau,
            "jump": one.jump,
            "adjacent": one.adjacent,
            "first end token at step": one.first_end,
            "right": one.correct,
        }
        for one in orders
    }
    return Measurement(
        title=f"Decode order: one item of {name} under each strategy",
        text=TEXT,
        items=1,
        claims=[
            c
            for spec, trace in traces.items()
            for c in _claims(model_name(decoder.lm.name), spec, trace)
        ],
        tables=[Table("In which order", COLUMNS, orders)],
        numbers={"strategies": numbers},
        figures={"decode-order": (figures.strategies(traces), "Positions decided at each step")},
        traces={f"trace-{kind(s)}-{n}": (t, s) for n, (s, t) in enumerate(traces.items(), 1)},
        configuration={"item": samples[0].id, "items of each task": 1},
    )


def _order(spec: str, decoded: DecodedItems) -> Order:
    trace = decoded.traces[0]
    found = order.measure(trace)
    return Order(
        spec,
        decoded.answers[0].forwards,
        *(finite_or_none(float(one[0])) for one in (found.tau, found.jump, found.adjacent)),
        first_end=int(eos.measure(trace).first[0]) or None,
        correct=decoded.correct[0] if decoded.correct else None,
    )


def _claims(model: str, spec: str, trace: Trace) -> list[Claim]:
    """Check the figure's captions against every step of a trace."""
    offered, where = trace.candidates[:, 0], f"{model}, {len(trace)} steps"
    if kind(spec) == "standard":
        masked = torch.stack([canvas.masked[0] for canvas in trace.before()])
        text = "Standard always selects from all masked positions"
        holds = bool((offered == masked).all())
        return [exact_claim(text, where, holds=holds, items=1, construction=True)]
    if kind(spec) not in ("block", "wavefront"):
        return []
    size = resolve(spec, "strategies").size  # pyright: ignore[reportAttributeAccessIssue]
    if kind(spec) == "block":
        blocks = [trace.first.slot[0][row] // size for row in offered if row.any()]
        holds = all(len(one.unique()) == 1 for one in blocks)
        text = "Block limits the choice to one fixed block"
        return [exact_claim(text, where, holds=holds, items=1, construction=True)]
    fits = bool((offered.sum(-1) <= size).all())
    fixed = all((row == offered[0]).all() for row in offered)
    text = f"The wave limits the choice to at most F = {size} positions"
    moves = "The wave's scope changes while decoding"
    return [
        exact_claim(text, where, holds=fits, items=1, construction=True),
        exact_claim(moves, model, holds=not fixed, items=1, construction=True),
    ]
