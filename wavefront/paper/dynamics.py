"""Dynamics: does the wave's frontier move smoothly, and does it regret less?"""

from __future__ import annotations

from wavefront.paper._claims import Claim
from wavefront.paper._lab import LLADA, Lab, Scale
from wavefront.paper._wrapped import rows_of, told, wrapped
from wavefront.paper.studies import Findings

NEEDS = "nothing; --paper: LLaDA-8B-Instruct, gsm8k"
SMALL = Scale(items=6, length=32)
PAPER = Scale(models=(LLADA,), tasks=("gsm8k",), items=16, length=1024, rows=1, style="paper")


def run(lab: Lab) -> Findings:
    """The study's three panels."""
    return wrapped(lab, "dynamics", _judge)


def _judge(found: Findings, model: str) -> list[Claim]:
    return [
        told(
            row,
            str(row["claim"]),
            parts=("task", "strategy"),
            gap="wave less block",
            verdict="verdict",
            items=int(row["items"]),
        )
        for row in rows_of(found, "Against block, in pairs")
    ]
