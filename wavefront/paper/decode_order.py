"""Decode order: what each strategy may choose from, and chooses, on one item."""

from __future__ import annotations

import torch
from torch import Tensor

from wavefront.analysis.figures import kind
from wavefront.core.spec import resolve
from wavefront.paper._claims import Claim, exact
from wavefront.paper._lab import LLADA, Lab, Scale
from wavefront.paper._wrapped import wrapped
from wavefront.paper.studies import Findings
from wavefront.traces.trace import Trace

NEEDS = "nothing; --paper: LLaDA-8B-Instruct, gsm8k"
SMALL = Scale(items=1)
PAPER = Scale(models=(LLADA,), tasks=("gsm8k",), items=1, length=1024, style="paper")


def run(lab: Lab) -> Findings:
    """One item under each strategy, and what its trace says of the figure's captions."""
    return wrapped(lab, "decode_order", _judge)


def _judge(found: Findings, model: str) -> list[Claim]:
    claims = []
    for trace, spec in found.traces.values():
        scope, masked = trace.scope[:, 0], _masked(trace)
        steps = len(trace)
        if kind(spec) == "standard":
            holds = bool((scope == masked).all())
            text = "Standard always selects from all masked places"
            claims.append(exact(text, f"{model}, {steps} steps", holds, 1))
        elif kind(spec) == "block":
            size = resolve(spec, "strategies").size  # pyright: ignore[reportAttributeAccessIssue]
            slots = [trace.first.slot[0][row] // size for row in scope if row.any()]
            holds = all(len(one.unique()) == 1 for one in slots)
            text = "Block limits the choice to one fixed block"
            claims.append(exact(text, f"{model}, {steps} steps", holds, 1))
        else:
            size = resolve(spec, "strategies").size  # pyright: ignore[reportAttributeAccessIssue]
            holds = bool((scope.sum(-1) <= size).all())
            text = f"The wave limits the choice to at most F = {size} places"
            claims.append(exact(text, f"{model}, {steps} steps", holds, 1))
            fixed = all((one == scope[0]).all() for one in scope)
            claims.append(exact("The wave's scope changes while decoding", model, not fixed, 1))
    return claims


def _masked(trace: Trace) -> Tensor:
    """(S, L): masked before every step."""
    return torch.stack([canvas.masked[0] for canvas in trace.before()])
