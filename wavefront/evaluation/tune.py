"""Tune: prompts with answers in, a strategy out, with evidence on the half it was not tuned on."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from wavefront.analysis import figures
from wavefront.analysis.figures import TradeoffPoint, pareto_front
from wavefront.core.errors import OptionError, check_float
from wavefront.core.spec import resolve
from wavefront.evaluation.task_spec import samples_of
from wavefront.paper._groups import Group, as_numbers, booted, gap, points
from wavefront.paper._lab import Cell, Lab, Measured
from wavefront.paper.studies import Findings
from wavefront.results.table import Interval, Table

BASES = ("block(size=8)", "wavefront(size=8, radius=2)")
TRIES = (
    *BASES,
    "wavefront(size=4, radius=2)",
    "wavefront(size=16, radius=4)",
    "wavefront(size=8, radius=2, grow='accumulate')",
    "wavefront(size=8, radius=2) | eos=defer",
    "block(size=16)",
    "block(size=32)",
    "block(size=16, selector=threshold(tau=0.9))",
    "wavefront(size=16, radius=4, selector=threshold(tau=0.9))",
    "tide(cascade_rounds=4, selector=threshold(tau=0.9))",
    "tide(cascade_rounds=4, selector=threshold(tau=0.8))",
    "tide(cascade_rounds=8, horizon=32, selector=threshold(tau=0.9))",
)
FEWEST = 4  # items: two to tune on, two to look at
TEXT = (
    "Every setting answered the first half of the items, drawn with the seed; one was chosen by "
    "that half alone. The other half, which had no part in the choice, was then answered with the "
    "chosen setting and the bases: only that table is evidence. Shares have Wilson's 95 % "
    "intervals; differences are in pairs, with the exact McNemar test."
)
TRIED = ["setting", "right, %", "less base, %", "forwards", "tokens per forward", "front",
         "may be chosen"]  # fmt: skip
HELD = ["setting", "right, %", "chosen less it, %", "p (McNemar)", "forwards", "forwards saved",
        "items"]  # fmt: skip


class Attempt(NamedTuple):
    """A strategy with options of the decode, written `SPEC | eos=defer, steps=32`."""

    text: str
    strategy: str
    options: dict[str, Any]

    @classmethod
    def parse(cls, text: str) -> Attempt:
        strategy, _, rest = text.partition("|")
        options: dict[str, Any] = {}
        for part in filter(None, (one.strip() for one in rest.split(","))):
            name, equal, value = part.partition("=")
            if not equal:
                raise OptionError(f"{part!r} of {text!r} is not written name=value.")
            try:
                options[name.strip()] = ast.literal_eval(value.strip())
            except (ValueError, SyntaxError):
                options[name.strip()] = value.strip()
        resolve(strategy.strip(), "strategies")
        return cls(text.strip(), strategy.strip(), options)

    def cell(self, lab: Lab) -> Cell:
        case = ", ".join(f"{name}={value}" for name, value in self.options.items())
        task = lab.scale.tasks[0]
        return Cell(lab.models[0], task, self.strategy, case, options=self.options)


@dataclass(frozen=True, kw_only=True)
class Objective:
    """What is wanted: at most so many forwards, or a price for each, or not less than the base."""

    max_forwards: float | None = None
    weight: float | None = None

    def __post_init__(self) -> None:
        if self.max_forwards is not None and self.weight is not None:
            raise OptionError("Give --max-forwards or --forward-cost, not both.")
        for name in ("max_forwards", "weight"):
            if getattr(self, name) is not None:
                check_float(name, getattr(self, name), 0)

    def __str__(self) -> str:
        if self.max_forwards is not None:
            return f"most right answers with at most {self.max_forwards:g} forwards"
        if self.weight is not None:
            return f"right answers in % less {self.weight:g} for each forward"
        return "fewest forwards among those not shown to be below the base"

    def allows(self, base: Group, one: Group) -> bool:
        if self.max_forwards is not None:
            return (one.forwards or 0) <= self.max_forwards
        return self.weight is not None or gap(base, one).gap.high >= 0

    def rank(self, one: Group) -> tuple[float, float]:
        """The larger the better; ties go to the other quantity."""
        right, forwards = one.accuracy.value, one.forwards or 0.0
        if self.max_forwards is not None:
            return right, -forwards
        if self.weight is not None:
            return right - self.weight * forwards, -forwards
        return -forwards, right


def tune(
    lab: Lab,
    tries: Sequence[str] = TRIES,
    *,
    bases: Sequence[str] = BASES,
    objective: Objective | None = None,
) -> Findings:
    """Choose on one half of the items, and show on the other what that is worth."""
    if not bases:
        raise OptionError("Tuning needs a base to compare with: give --baseline SPEC.")
    wanted = objective or Objective()
    attempts = {one.text: one for one in map(Attempt.parse, (*bases, *tries))}
    _, samples = samples_of(lab.scale.tasks[0], lab.ask())
    if len(samples) < FEWEST:
        raise OptionError(f"Tuning needs at least {FEWEST} items, and there are {len(samples)}.")
    tuning = _part(lab, "tuning", len(samples) // 2)
    found = _answered(tuning, attempts.values())
    base = next(iter(found.values()))
    allowed = {text: group for text, group in found.items() if wanted.allows(base, group)}
    if not allowed:
        fewest = min(group.forwards or 0.0 for group in found.values())
        raise OptionError(
            f"No setting takes at most {wanted.max_forwards:g} forwards, the fewest being "
            f"{fewest:.1f}: allow more, or try quicker strategies with --candidate."
        )
    chosen = attempts[max(allowed, key=lambda text: wanted.rank(allowed[text]))]
    named = {one.text: one for one in (chosen, *map(Attempt.parse, bases))}
    rest = _answered(_part(lab, "held-out", len(samples)), named.values())
    seen = {item for one in base.cells for item in one.right}
    apart = {text: Group(tuple(_without(m, seen) for m in g.cells)) for text, g in rest.items()}
    spots = [_spot(text, group) for text, group in found.items()]
    tables = [_held(apart, chosen.text), _tried(found, spots, allowed)]
    return _page(lab, wanted, chosen, tables=tables, spots=spots, total=len(samples))


def _answered(lab: Lab, attempts: Iterable[Attempt]) -> dict[str, Group]:
    """Every setting with its answers."""
    listed = list(attempts)
    made = lab.measure([one.cell(lab) for one in listed])
    return {one.text: Group((m,)) for one, m in zip(listed, made, strict=True)}


def _part(lab: Lab, name: str, count: int) -> Lab:
    """The same lab on the first items of the draw, in a folder of their own."""
    part = replace(lab, scale=replace(lab.scale, items=count), home=lab.home / name)
    part._worker = lab._worker or part.worker(lab.models[0])
    lab._worker = part._worker
    return part


def _page(
    lab: Lab,
    wanted: Objective,
    chosen: Attempt,
    *,
    tables: Sequence[Table],
    spots: Sequence[TradeoffPoint],
    total: int,
) -> Findings:
    held, tried = tables
    flags = "".join(f" --{n.replace('_', '-')} {v}" for n, v in chosen.options.items())
    paste, half = f'-s "{chosen.strategy}"{flags}', total // 2
    return Findings(
        title=f"Tuned on {lab.scale.tasks[0]}: {chosen.text}",
        text=f"{TEXT}\n\nWanted: {wanted}. Chosen: {paste}",
        configuration=lab.configuration()
        | {"items of each task": total, "tuned on": half, "held out": total - half}
        | {"wanted": str(wanted), "tried": [spot.name for spot in spots]},
        tables=tables,
        numbers={
            "chosen": {"spec": chosen.strategy, "options": chosen.options, "command": paste},
            "tuning": as_numbers(tried),
            "held-out": as_numbers(held),
        },
        figures={
            "tune": (figures.tradeoff(spots, chosen=chosen.text), "Right answers and forwards")
        },
    )


def _tried(found: dict[str, Group], spots: Sequence[TradeoffPoint], allowed: Collection[str]) -> Table:
    """Every setting on the half that chooses; the first is the base."""
    first, base = next(iter(found.items()))
    best = {spot.name for spot in pareto_front(spots)}
    rows: list[list[Any]] = []
    for text, group in found.items():
        less = None if group is base else points(gap(base, group))
        cost = (group.forwards, group.rate)
        rows.append([text, group.accuracy, less, *cost, text in best, text in allowed])
    return Table("On the half that was tuned on", TRIED, rows, f"The base is {first}.")


def _spot(text: str, group: Group) -> TradeoffPoint:
    share = group.accuracy
    return TradeoffPoint(
        text, group.forwards or 0.0, *(p / 100 for p in (share.value, share.low, share.high))
    )


def _without(one: Measured, seen: set[str]) -> Measured:
    """A cell without the items that were tuned on."""
    right = {item: verdict for item, verdict in one.right.items() if item not in seen}
    answers = [line for line in one.run.answers.values() if line["id"] in right]
    forwards = sum(line["forwards"] for line in answers) / max(1, len(answers))
    tokens = sum(len(line["tokens"]) for line in answers)
    return one._replace(right=right, cost={**one.cost, "forwards": forwards, "tokens": tokens})


def _held(apart: dict[str, Group], chosen: str) -> Table:
    rows: list[list[Any]] = []
    best = apart[chosen]
    for text, group in apart.items():
        other = text != chosen
        compared = gap(group, best) if other else None
        p = compared.mcnemar.p if compared and compared.mcnemar else None
        gained = points(compared) if compared else None
        saved = _saved(group, best) if other else None
        rows.append([text, group.accuracy, gained, p, group.forwards, saved, len(group.right)])
    return Table("On the half that was not", HELD, rows, f"Chosen: {chosen}.")


def _saved(base: Group, best: Group) -> Interval | None:
    """Forwards of the base less those of the chosen, item by item."""
    before, after = (
        {line["id"]: line["forwards"] for one in group.cells for line in one.run.answers.values()
         if line["id"] in one.right}
        for group in (base, best)
    )  # fmt: skip
    return booted([before[item] - after[item] for item in before if item in after])
