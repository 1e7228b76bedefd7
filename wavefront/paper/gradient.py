"""Gradient: does entropy grow with the distance to the known, as the theorem assumes?"""

from __future__ import annotations

from wavefront.paper._claims import Claim, measured
from wavefront.paper._lab import LLADA, Lab, Scale
from wavefront.paper._wrapped import rows_of, told, wrapped
from wavefront.paper.studies import Findings

NEEDS = "nothing; --paper: LLaDA-8B-Instruct, gsm8k"
SMALL = Scale(items=6, length=32)
PAPER = Scale(models=(LLADA,), tasks=("gsm8k",), items=64, length=1024, rows=1, style="paper")


def run(lab: Lab) -> Findings:
    """The study: the assumption, and the conclusion."""
    return wrapped(lab, "gradient", _judge)


def _judge(found: Findings, model: str) -> list[Claim]:
    items = found.numbers["n"]
    claims = [
        told(
            row,
            "Entropy grows with the distance to the known",
            parts=("task", "canvas", "made by"),
            gap="rank correlation",
            verdict="paper: above 0",
            items=items,
        )
        for row in rows_of(found, "Entropy against distance, rank correlation")
    ]
    for row in rows_of(found, "Where the surest places lie"):
        if row["scope"] == "near the known":
            text = "The surest places lie near the known, beyond chance (%)"
            where = f"{row['task']}, {row['canvas']}, {row['made by']}"
            claims.append(measured(text, where, row["gap, %"], items, "higher"))
    return claims
