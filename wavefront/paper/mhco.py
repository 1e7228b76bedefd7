"""MHCO: does a surer place near by have to wait less often under the wave than under block?"""

from __future__ import annotations

from wavefront.analysis.figures import kind
from wavefront.paper._claims import Claim, measured
from wavefront.paper._lab import LLADA, LLADA15, Lab, Scale
from wavefront.paper._wrapped import correlated, rows_of, told, wrapped
from wavefront.paper.studies import Findings

NEEDS = "nothing; --paper: LLaDA-8B-Instruct, LLaDA-1.5, gsm8k, math, humaneval"
SMALL = Scale(items=8, length=48)
PAPER = Scale(
    models=(LLADA, LLADA15),
    tasks=("gsm8k", "math", "humaneval"),
    items=64,
    length=1024,
    rows=1,
    style="paper",
)


def run(lab: Lab) -> Findings:
    """The study, and what the paper says of its figure."""
    return wrapped(lab, "mhco", _judge)


def _judge(found: Findings, model: str) -> list[Claim]:
    items, claims = found.numbers["n"], []
    for row in rows_of(found, "Against block, in pairs"):
        if kind(row["strategy"]) == "wavefront":
            claims.append(
                told(
                    row,
                    "The wave has a lower MHCO than block",
                    parts=("task", "strategy", "reading"),
                    gap="less block: all steps",
                    verdict="paper: lower",
                    items=items,
                )
            )
    for row in rows_of(found, "MHCO, % of committed tokens"):
        if kind(row["strategy"]) == "block":
            claims.append(
                measured(
                    "Lower MHCO goes with right answers (rank correlation below 0)",
                    f"{row['task']}, {row['strategy']}, {row['reading']}",
                    correlated(row["correlation with right"], items),
                    items,
                    "lower",
                )
            )
    return claims
