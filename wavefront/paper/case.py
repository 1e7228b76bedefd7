"""Case: one prompt under block and wave, moment by moment."""

from __future__ import annotations

from wavefront.analysis.measures import order
from wavefront.paper._claims import Claim
from wavefront.paper._lab import LLADA, Lab, Scale
from wavefront.paper._wrapped import wrapped
from wavefront.paper.studies import Findings
from wavefront.results.bootstrap import FEWEST

NEEDS = "nothing; --paper: LLaDA-8B-Instruct, humaneval"
SMALL = Scale(tasks=("code",), items=1)
PAPER = Scale(models=(LLADA,), tasks=("humaneval",), items=1, length=1024, style="paper")
ONE = f"undecided: fewer than {FEWEST} items"


def run(lab: Lab) -> Findings:
    """The study; one item bears out nothing, so what was seen is shown and not judged."""
    return wrapped(lab, "case", _judge)


def _judge(found: Findings, model: str) -> list[Claim]:
    taus = [float(order.measure(trace).tau[0]) for trace, _ in found.traces.values()]
    answers = list(found.numbers["answers"].values())
    text = "Block goes more strictly from left to right (Kendall's tau, wave less block)"
    gap = taus[1] - taus[0] if len(taus) > 1 else None
    alike = len({*answers}) == 1
    return [
        Claim(text, model, gap, 1, None, ONE),
        Claim("Both end with the same text", model, alike, 1, None, ONE),
    ]
