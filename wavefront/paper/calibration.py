"""Calibration: is the model better calibrated at the places that the wave chooses?"""

from __future__ import annotations

from wavefront.analysis.figures import kind
from wavefront.paper._claims import Claim
from wavefront.paper._lab import LLADA, Lab, Scale
from wavefront.paper._wrapped import rows_of, told, wrapped
from wavefront.paper.studies import Findings

NEEDS = "nothing; --paper: LLaDA-8B-Instruct, gsm8k, math, humaneval"
SMALL = Scale(items=6, length=48)
PAPER = Scale(
    models=(LLADA,),
    tasks=("gsm8k", "math", "humaneval"),
    items=128,
    length=1024,
    rows=1,
    style="paper",
)


def run(lab: Lab) -> Findings:
    """The study in its three readings."""
    return wrapped(lab, "calibration", _judge)


def _judge(found: Findings, model: str) -> list[Claim]:
    items = found.numbers["n"]
    claims = [
        told(
            row,
            "The wave has a lower ECE than block",
            parts=("task", "strategy", "reading"),
            gap="ECE less block's",
            verdict="paper: lower",
            items=items,
        )
        for row in rows_of(found, "Against block, in pairs")
        if kind(row["strategy"]) == "wavefront"
    ]
    return claims + _largest(found, items)


def _largest(found: Findings, items: int) -> list[Claim]:
    """MCE is one bin's gap and has no interval here, so it is shown and not judged."""
    claims = []
    rows = rows_of(found, "Calibration under teacher forcing")
    base = {(r["task"], r["reading"]): r["MCE"] for r in rows if kind(r["strategy"]) == "block"}
    for row in rows:
        block = base.get((row["task"], row["reading"]))
        if kind(row["strategy"]) == "wavefront" and None not in (block, row["MCE"]):
            where = f"{row['task']}, {row['strategy']}, {row['reading']}"
            claims.append(
                Claim(
                    "The wave has a lower MCE than block on complex tasks",
                    where,
                    row["MCE"] - block,
                    items,
                    None,
                    "undecided: a largest gap has no interval here",
                )
            )
    return claims
