"""Latency: left to right, self-speculation and the wave, right answers against time a token."""

from __future__ import annotations

from typing import Any

from wavefront.analysis import figures
from wavefront.analysis.figures import Figure, TradeoffPoint
from wavefront.paper._claims import Claim, directed, measured, within
from wavefront.paper._grid import BLOCK, BOTH, WAVES, grid
from wavefront.paper._groups import Group, accuracy_table, as_numbers, booted, grouped, pool
from wavefront.paper._lab import LLADA, Lab, Measured, Scale, short
from wavefront.paper._page import page
from wavefront.paper._printed import cell, dataset, strategy
from wavefront.paper.studies import Findings
from wavefront.results.table import Interval, Table

NEEDS = "nothing; --paper: LLaDA-8B-Instruct, gsm8k"
SMALL = Scale(items=12, rows=1, length=48)
PAPER = Scale(models=(LLADA,), tasks=("gsm8k",), items=None, length=1024, rows=1, style="paper")
AUTOREGRESSIVE, DRAFT = "left_to_right", 4
MATCHED = 10.0  # %: how near two latencies are that count as matched
COLUMNS = ["model", "task", "strategy", "ms a visible token", "against left to right, %",
           "paper: ms/token", "paper: accuracy"]  # fmt: skip


def run(lab: Lab) -> Findings:
    """One item at a time, until its answer ends."""
    cells = grid(lab, (AUTOREGRESSIVE, *WAVES))
    cells += grid(lab, (BLOCK,), case=f"draft={DRAFT}", options={"draft": DRAFT})
    groups = grouped(lab.measure(cells), named)
    rows: list[list[Any]] = []
    for key, group in groups.items():
        base = groups[(*key[:2], AUTOREGRESSIVE)]
        ratio = None if key[2] == AUTOREGRESSIVE else _ratio(base, group)
        paper = dataset(key[1]) == "GSM8K"
        told = [
            cell("latency", name, strategy=strategy(key[2])) if paper else None
            for name in ("ms/token", "accuracy")
        ]
        rows.append([*key, booted(list(_each(group).values())), ratio, *told])
    table = Table("Time a token", COLUMNS, rows, NOTE)
    right = accuracy_table("Right answers", groups, ["model", "task", "strategy"], base=_base)
    return page(
        lab,
        title="Latency: time a token, and right answers",
        text=f"Items are decoded one at a time. SSD is block with a draft of {DRAFT}. {BOTH}",
        claims=_claims(groups),
        tables=[table, right],
        figures={"latency": (_picture(groups), "Right answers against time a token")},
        numbers={"measured": as_numbers(table), "right": as_numbers(right)},
    )


NOTE = (
    "Seconds of an item for each token that a reader sees, the mean over items with its 95 % "
    "interval; answers of no token are left out. On a busy machine times say little."
)


def named(one: Measured):
    """Model, task, strategy; a draft is part of the strategy."""
    found = one.cell
    spec = f"{found.strategy[:-1]}, {found.case})" if found.case else found.strategy
    return short(found.model), found.task, spec


def _each(group: Group) -> dict[tuple[str, str], float]:
    """Milliseconds a visible token, by task and first item of the batch."""
    found = {}
    for one in group.cells:
        first: dict[int, str] = {}
        for line in one.run.answers.values():
            if "batch" in line:
                first[line["batch"]] = min(line["id"], first.get(line["batch"], line["id"]))
        for line in one.run.timings:
            if line["tokens"]:
                name = (one.cell.task, first[line["batch"]])
                found[name] = 1000 * line["seconds"] / line["tokens"]
    return found


def _ratio(base: Group, other: Group) -> Interval | None:
    """Of the same items, in %."""
    one, two = _each(base), _each(other)
    return booted([100 * (two[name] / one[name] - 1) for name in one if name in two])


def _base(groups: Any, key: Any) -> Any:
    return None if key[2] == AUTOREGRESSIVE else (*key[:2], AUTOREGRESSIVE)


def _claims(groups: Any) -> list[Claim]:
    base = pool(groups, AUTOREGRESSIVE)
    claims = []
    for spec in WAVES:
        wave = pool(groups, spec)
        ratio, items = _ratio(base, wave), len(_each(wave))
        text = f"The wave's latency is that of left to right, within ±{MATCHED:g} %"
        claims.append(Claim(text, spec, ratio, items, None, within(ratio, items, MATCHED)))
        text = "The wave has more right answers than left to right"
        claims.append(directed(text, spec, base, wave))
    drafted = pool(groups, f"{BLOCK[:-1]}, draft={DRAFT})")
    text, ratio = "SSD is quicker than left to right", _ratio(base, drafted)
    where = f"{BLOCK}, draft={DRAFT}"
    claims.append(measured(f"{text} (%)", where, ratio, len(_each(drafted)), "lower"))
    claims.append(
        directed("SSD has fewer right answers than left to right", where, base, drafted, "lower")
    )
    return claims


def _picture(groups: Any) -> Figure:
    spots = []
    for spec in dict.fromkeys(key[-1] for key in groups):
        one = pool(groups, spec)
        cost = booted(list(_each(one).values()))
        parts = [part / 100 for part in (one.accuracy.value, one.accuracy.low, one.accuracy.high)]
        if cost is not None:
            spots.append(TradeoffPoint(spec, cost.value, *parts))
    return figures.tradeoff(spots, xlabel="ms a visible token (mean over items)")
