"""Tune: choose a strategy on half of the items, and show on the other half what it is worth."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from wavefront.analysis import figures
from wavefront.analysis.figures import TradeoffPoint, pareto_front
from wavefront.core.errors import OptionError, check_float
from wavefront.core.spec import resolve
from wavefront.evaluation.page import ResultsPage
from wavefront.evaluation.task_spec import samples_of
from wavefront.evaluation.trials import (
    Runner,
    Trial,
    TrialGroup,
    TrialResult,
    compare_groups,
    percent_gap,
)
from wavefront.results.bootstrap import bootstrap_mean
from wavefront.results.interval import Interval, bounds
from wavefront.results.table import Table

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
        """Parse a setting; raises OptionError where it is not written as above."""
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

    def trial(self, runner: Runner) -> Trial:
        """Return the trial of this setting on the runner's model and task."""
        case = ", ".join(f"{name}={value}" for name, value in self.options.items())
        task = runner.scale.tasks[0]
        return Trial(runner.models[0], task, self.strategy, case, options=self.options)


@dataclass(frozen=True, kw_only=True)
class Objective:
    """What to optimise; by default the fewest forward passes without losing to the base."""

    max_forwards: float | None = None  # the most correct answers with at most so many
    forward_cost: float | None = None  # points of accuracy traded per forward pass

    def __post_init__(self) -> None:
        if self.max_forwards is not None and self.forward_cost is not None:
            raise OptionError("Give --max-forwards or --forward-cost, not both.")
        for name in ("max_forwards", "forward_cost"):
            if getattr(self, name) is not None:
                check_float(name, getattr(self, name), 0)

    def __str__(self) -> str:
        if self.max_forwards is not None:
            return f"most right answers with at most {self.max_forwards:g} forwards"
        if self.forward_cost is not None:
            return f"right answers in % less {self.forward_cost:g} for each forward"
        return "fewest forwards among those not shown to be below the base"

    def allows(self, base: TrialGroup, one: TrialGroup) -> bool:
        """Return whether a setting may be chosen."""
        if self.max_forwards is not None:
            return (one.forwards or 0) <= self.max_forwards
        return self.forward_cost is not None or compare_groups(base, one).gap.high >= 0

    def rank(self, one: TrialGroup) -> tuple[float, float]:
        """Return a key by which a larger setting is better."""
        accuracy, forwards = one.accuracy.value, one.forwards or 0.0
        if self.max_forwards is not None:
            return accuracy, -forwards
        if self.forward_cost is not None:
            return accuracy - self.forward_cost * forwards, -forwards
        return -forwards, accuracy


def tune(
    runner: Runner,
    tries: Sequence[str] = TRIES,
    *,
    bases: Sequence[str] = BASES,
    objective: Objective | None = None,
) -> ResultsPage:
    """Choose a setting on one half of the items, and compare it with the bases on the other.

    Raises:
        OptionError: There is no base, there are fewer than four items, or no setting is allowed.
    """
    if not bases:
        raise OptionError("Tuning needs a base to compare with: give --baseline SPEC.")
    wanted = objective or Objective()
    attempts = {one.text: one for one in map(Attempt.parse, (*bases, *tries))}
    _, samples = samples_of(runner.scale.tasks[0], runner.ask())
    if len(samples) < FEWEST:
        raise OptionError(f"Tuning needs at least {FEWEST} items, and there are {len(samples)}.")
    found = _measure(runner.with_items(len(samples) // 2, "tuning"), attempts.values())
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
    rest = _measure(runner.with_items(len(samples), "held-out"), named.values())
    seen = {item for one in base.results for item in one.correct}
    held_out = {
        text: TrialGroup(tuple(_without(one, seen) for one in group.results))
        for text, group in rest.items()
    }
    points = [
        TradeoffPoint(text, group.forwards or 0.0, *bounds(group.accuracy.scaled(0.01)))
        for text, group in found.items()
    ]
    held, tried = _held_out_table(held_out, chosen.text), _tuning_table(found, points, allowed)
    flags = "".join(f" --{n.replace('_', '-')} {v}" for n, v in chosen.options.items())
    command, total = f'-s "{chosen.strategy}"{flags}', len(samples)
    return ResultsPage(
        title=f"Tuned on {runner.scale.tasks[0]}: {chosen.text}",
        text=f"{TEXT}\n\nWanted: {wanted}. Chosen: {command}",
        configuration=runner.configuration()
        | {"items of each task": total, "tuned on": total // 2, "held out": total - total // 2}
        | {"wanted": str(wanted), "tried": list(found)},
        tables=[held, tried],
        numbers={
            "chosen": {"spec": chosen.strategy, "options": chosen.options, "command": command},
            "tuning": tried.records(),
            "held-out": held.records(),
        },
        figures={
            "tune": (figures.tradeoff(points, chosen=chosen.text), "Right answers and forwards")
        },
    )


def _measure(runner: Runner, attempts: Iterable[Attempt]) -> dict[str, TrialGroup]:
    """Answer and grade every setting."""
    listed = list(attempts)
    results = runner.measure([one.trial(runner) for one in listed])
    return {one.text: TrialGroup((r,)) for one, r in zip(listed, results, strict=True)}


def _tuning_table(
    found: dict[str, TrialGroup], points: Sequence[TradeoffPoint], allowed: Collection[str]
) -> Table:
    """Return every setting on the half that chooses; the first is the base."""
    first, base = next(iter(found.items()))
    best = {point.name for point in pareto_front(points)}
    rows: list[list[Any]] = []
    for text, group in found.items():
        gap = None if group is base else percent_gap(compare_groups(base, group))
        cost = (group.forwards, group.tokens_per_forward)
        rows.append([text, group.accuracy, gap, *cost, text in best, text in allowed])
    return Table("On the half that was tuned on", TRIED, rows, f"The base is {first}.")


def _without(one: TrialResult, seen: set[str]) -> TrialResult:
    """Return a result without the items that were tuned on."""
    correct = {item: verdict for item, verdict in one.correct.items() if item not in seen}
    answers = [line for line in one.run.answers.values() if line["id"] in correct]
    forwards = sum(line["forwards"] for line in answers) / max(1, len(answers))
    tokens = sum(len(line["tokens"]) for line in answers)
    return one._replace(correct=correct, cost={**one.cost, "forwards": forwards, "tokens": tokens})


def _held_out_table(held_out: dict[str, TrialGroup], chosen: str) -> Table:
    rows: list[list[Any]] = []
    best = held_out[chosen]
    for text, group in held_out.items():
        other = text != chosen
        compared = compare_groups(group, best) if other else None
        p = compared.mcnemar.p if compared and compared.mcnemar else None
        gained = percent_gap(compared) if compared else None
        saved = _forwards_saved(group, best) if other else None
        rows.append([text, group.accuracy, gained, p, group.forwards, saved, len(group.correct)])
    return Table("On the half that was not", HELD, rows, f"Chosen: {chosen}.")


def _forwards_saved(base: TrialGroup, best: TrialGroup) -> Interval | None:
    """Return forward passes of the base minus those of the chosen setting, item by item."""
    before, after = (
        {line["id"]: line["forwards"] for one in group.results for line in one.run.answers.values()
         if line["id"] in one.correct}
        for group in (base, best)
    )  # fmt: skip
    saved = [before[item] - after[item] for item in before if item in after]
    return bootstrap_mean(saved) if saved else None
