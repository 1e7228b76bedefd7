"""Tune: choose a strategy on the tune half of the items, and evaluate it on the report half."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from wavefront.analysis import figures
from wavefront.core import spec
from wavefront.core.bounds import DEFAULT_STRATEGY
from wavefront.core.errors import OptionError, check_float
from wavefront.evaluation.judging import is_judged
from wavefront.evaluation.page import Figures, ResultsPage
from wavefront.evaluation.protocol import (
    HALVES,
    half_of,
    knob_of,
    parse_options,
    settings_of,
)
from wavefront.evaluation.task_spec import label as task_label
from wavefront.evaluation.task_spec import open_task, samples_of
from wavefront.evaluation.trials import (
    Runner,
    Trial,
    TrialGroup,
    compare_groups,
    percent_gap,
)
from wavefront.results.bootstrap import bootstrap_mean
from wavefront.results.interval import (
    FEWEST_DIFFERING,
    Interval,
    TradeoffPoint,
    bounds,
    pareto_front,
    wilson_share,
)
from wavefront.results.table import Table
from wavefront.strategies.selectors.origin import Origin

BASES = (DEFAULT_STRATEGY, "block(size=8)", "wavefront(size=8, radius=2)")
TRIES = (
    *BASES[1:],
    "wavefront(size=4, radius=2)",
    "wavefront(size=16, radius=4)",
    "wavefront(size=8, radius=2, grow='accumulate')",
    # The same end-token policies for all three.
    "standard | eos=defer",
    "block(size=8) | eos=defer",
    "wavefront(size=8, radius=2) | eos=defer",
    "block(size=16)",
    "block(size=32)",
    # Every adaptive strategy gets the whole grid of its knob.
    "standard(selector=threshold(tau={tau}))",
    "block(size=16, selector=threshold(tau={tau}))",
    "wavefront(size=16, radius=4, selector=threshold(tau={tau}))",
    "tide(cascade_rounds=8, horizon=32, selector=threshold(tau={tau}))",
)
FEWEST = 2  # items of each half
MAX_LOSS = 5.0  # percentage points; the page has a note if a larger loss is not excluded
TEXT = (
    "Every setting answers the tune half of the items, and one setting is chosen on that half. The "
    "id of an item decides its half. The chosen setting and the baselines then answer the report "
    "half. Only the table of the report half is evidence. Shares have Wilson's 95 % intervals. "
    "Differences are paired, with the exact McNemar test. Their intervals come from a bootstrap; "
    f"if fewer than {FEWEST_DIFFERING} items differ, they are exact and wide."
)
TRIED = ["setting", "right, %", "minus baseline, %", "forwards", "tokens per forward",
         "Pareto-optimal", "may be chosen"]  # fmt: skip
HELD = ["setting", "right, %", "chosen minus this, %", "p (McNemar)", "forwards", "forwards saved",
        "items"]  # fmt: skip


class Attempt(NamedTuple):
    """A strategy with options of the decode, written `SPEC | eos=defer, steps=32`."""

    text: str
    strategy: str
    options: dict[str, Any]

    @classmethod
    def parse(cls, text: str) -> Attempt:
        """Parse a setting; raise OptionError if it is malformed."""
        strategy, _, rest = text.partition("|")
        options = parse_options(rest.split(","))
        spec.resolve(strategy.strip(), "strategies")
        return cls(text.strip(), strategy.strip(), options)

    @property
    def label(self) -> str:
        """The setting as tables show it, with `default` for the default strategy."""
        if spec.label(self.strategy) != "default":
            return self.text
        _, bar, rest = self.text.partition("|")
        return f"default {bar}{rest}".strip()

    @property
    def meaning(self) -> str:
        """The strategy with all its options, and the options of the decode in a fixed order."""
        return f"{spec.resolve(self.strategy, 'strategies')!r} {sorted(self.options.items())!r}"

    def trial(self, runner: Runner) -> Trial:
        """Return the trial of this setting on the runner's model and task."""
        case = ", ".join(f"{name}={value}" for name, value in self.options.items())
        task = runner.scale.tasks[0]
        return Trial(runner.models[0], task, self.strategy, case, options=self.options)


@dataclass(frozen=True, kw_only=True)
class Objective:
    """What to optimise.

    By default this is the fewest forward passes with an accuracy not significantly below the
    baseline.
    """

    max_forwards: float | None = None  # the most correct answers within this number
    forward_cost: float | None = None  # points of accuracy traded per forward pass

    def __post_init__(self) -> None:
        if self.max_forwards is not None and self.forward_cost is not None:
            raise OptionError("Give --max-forwards or --forward-cost, not both.")
        for name in ("max_forwards", "forward_cost"):
            if getattr(self, name) is not None:
                check_float(name, getattr(self, name), 0)

    def __str__(self) -> str:
        if self.max_forwards is not None:
            return f"most correct answers with at most {self.max_forwards:g} forward passes"
        if self.forward_cost is not None:
            return f"correct answers in %, minus {self.forward_cost:g} per forward pass"
        return "fewest forward passes among settings not significantly below the baseline"

    def allows(self, base: TrialGroup, one: TrialGroup) -> bool:
        """Return whether a setting may be chosen."""
        if self.max_forwards is not None:
            return (one.forwards or 0) <= self.max_forwards
        return self.forward_cost is not None or compare_groups(base, one).gap.high >= 0

    def rank(self, one: TrialGroup) -> tuple[float, float]:
        """Return a sort key; a better setting has a larger key."""
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
    """Choose a setting on one half of the items, and compare it with the baselines on the other.

    Raises:
        OptionError: There is no baseline, a half has fewer than two items, or no setting is
            allowed.
    """
    if not bases:
        raise OptionError("Tuning needs a baseline to compare with: give --baseline SPEC.")
    wanted = objective or Objective()
    listed = [one for text in (*bases, *tries) for one in settings_of(text)]
    distinct: dict[str, Attempt] = {}  # two spellings of one setting are measured once
    for one in map(Attempt.parse, listed):
        distinct.setdefault(one.meaning, one)
    attempts = {one.text: one for one in distinct.values()}
    _, samples = samples_of(runner.scale.tasks[0], runner.ask())
    halves = Counter(half_of(sample.id) for sample in samples)
    for half in HALVES:
        if halves[half] < FEWEST:
            raise OptionError(
                f"Tuning needs at least {FEWEST} items in each half, but the {half} half has "
                f"{halves[half]} of {len(samples)}: give more --items, or a file with more lines."
            )
    found = _measure(runner.with_half("tune"), attempts.values())
    base = next(iter(found.values()))
    allowed = {text: group for text, group in found.items() if wanted.allows(base, group)}
    if not allowed:
        fewest = min(group.forwards or 0.0 for group in found.values())
        raise OptionError(
            f"No setting needs at most {wanted.max_forwards:g} forward passes; the fewest is "
            f"{fewest:.1f}. Allow more, or try faster strategies with --candidate."
        )
    chosen = attempts[max(allowed, key=lambda text: wanted.rank(allowed[text]))]
    named = {one.text: one for one in (chosen, *map(Attempt.parse, bases))}
    held_out = _measure(runner.with_half("report"), named.values())
    unequal = [text for text in tries if knob_of(text) is None and _is_adaptive(text)]
    points = [
        TradeoffPoint(text, group.forwards or 0.0, *bounds(group.accuracy.scaled(0.01)))
        for text, group in found.items()
    ]
    notes = [_loss_note(held_out, chosen.text), _unequal_note(unequal)]
    held = _held_out_table(held_out, chosen.text, notes=notes)
    tried = _tuning_table(found, points, allowed)
    task = task_label(runner.scale.tasks[0])
    flags = "".join(_flag(name, value) for name, value in chosen.options.items())
    command = f'-s "{chosen.strategy}"{flags}'
    return ResultsPage(
        title=f"Strategies tuned on {task}",
        text=f"{TEXT}\n\nWanted: {wanted}. Chosen: `{command}`.",
        configuration=runner.configuration()
        | {"items of each task": len(samples), "tuned on": halves["tune"]}
        | {"reported on": halves["report"], "unequal terms": unequal}
        | {"wanted": str(wanted), "tried": list(found)},
        tables=[held, tried],
        numbers={
            "chosen": {"spec": chosen.strategy, "options": chosen.options, "command": command},
            "tune": tried.records(),
            "report": held.records(),
        },
        figures=_figures(points, chosen.text, f"{task}, {halves['tune']} items of the tune half"),
    )


def _figures(points: Sequence[TradeoffPoint], chosen: str, items: str) -> Figures:
    """Return the figure; `items` names the task and the number of items."""
    title = f"Correct answers and forward passes: {items}"
    return {"tune": (replace(figures.tradeoff(points, chosen=chosen), title=title), title)}


def _measure(runner: Runner, attempts: Iterable[Attempt]) -> dict[str, TrialGroup]:
    """Answer and grade every setting."""
    listed = list(attempts)
    for task in runner.scale.tasks:
        if is_judged(open_task(task)):
            raise OptionError(
                f"{task} has no right answers to count: use `wavefront paper run curves`, or "
                "`wavefront eval run`."
            )
    results = runner.measure([one.trial(runner) for one in listed])
    return {one.text: TrialGroup((r,)) for one, r in zip(listed, results, strict=True)}


def _tuning_table(
    found: dict[str, TrialGroup], points: Sequence[TradeoffPoint], allowed: Collection[str]
) -> Table:
    """Return a row for every setting on the tune half; the first is the baseline."""
    first, base = next(iter(found.items()))
    best = {point.name for point in pareto_front(points)}
    rows: list[list[Any]] = []
    for text, group in found.items():
        gap = None if group is base else percent_gap(compare_groups(base, group))
        cost = (group.forwards, group.tokens_per_forward)
        row = [Attempt.parse(text).label, group.accuracy, gap, *cost]
        rows.append([*row, text in best, text in allowed])
    notes = [f"The baseline is {Attempt.parse(first).label}.", _default_note(found)]
    return Table("Tune half", TRIED, rows, " ".join(filter(None, notes)))


def _default_note(settings: Iterable[str]) -> str:
    """Return what `default` stands for, if one of the settings is the default."""
    names = [spec.label(Attempt.parse(text).strategy) for text in settings]
    return f"default is {DEFAULT_STRATEGY}." if "default" in names else ""


def _flag(name: str, value: Any) -> str:
    """Return an option as it is typed after a command; a switch has no value."""
    option = f" --{name.replace('_', '-')}"
    if isinstance(value, bool):
        return option if value else ""
    return "" if value is None else f"{option} {shlex.quote(str(value))}"


def _is_adaptive(text: str) -> bool:
    """Return whether the confidence of the model decides how many tokens a setting commits."""
    selector = spec.resolve(Attempt.parse(text).strategy, "strategies").selector
    return not (selector.planned or isinstance(selector, Origin))  # origin draws the number


def _loss_note(held_out: dict[str, TrialGroup], chosen: str) -> str:
    """Return a note on the largest loss that the report half cannot exclude.

    The note is empty if that loss is small. The loss is at most the share of items that only the
    baseline answers correctly. Its upper bound is that of Wilson's interval, because a bootstrap
    interval has zero width if all answers are equal.
    """
    base = next(text for text in held_out if text != chosen) if len(held_out) > 1 else chosen
    if base == chosen:
        return ""
    before, after = held_out[base].correct, held_out[chosen].correct
    lost = sum(right and not after[item] for item, right in before.items())
    limit = wilson_share(lost, len(before)).percent.high
    if limit <= MAX_LOSS:
        return ""
    return (
        f"The report half has {len(before)} items. It does not exclude that the chosen setting "
        f"answers up to {limit:.0f} % fewer items correctly than {Attempt.parse(base).label}: use "
        "more --items."
    )


def _unequal_note(unequal: Sequence[str]) -> str:
    if not unequal:
        return ""
    listed = ", ".join(f"`{one}`" for one in unequal)
    return (
        f"This comparison is not fair: {listed} had only one value of its option. Write the "
        "option in braces, such as `threshold(tau={tau})`, to try the whole grid."
    )


def _held_out_table(
    held_out: dict[str, TrialGroup], chosen: str, *, notes: Sequence[str] = ()
) -> Table:
    rows: list[list[Any]] = []
    best = held_out[chosen]
    for text, group in held_out.items():
        other = text != chosen
        compared = compare_groups(group, best) if other else None
        p = compared.p if compared else None
        gained = percent_gap(compared) if compared else None
        saved = _forwards_saved(group, best) if other else None
        row = [Attempt.parse(text).label, group.accuracy, gained, p, group.forwards]
        rows.append([*row, saved, len(group.correct)])
    said = ["The first line is the chosen setting.", *notes, _default_note(held_out)]
    return Table("Report half", HELD, rows, " ".join(filter(None, said)))


def _forwards_saved(base: TrialGroup, best: TrialGroup) -> Interval | None:
    """Return the forward passes of the base minus those of the chosen setting, item by item."""
    before, after = (
        {item: count for one in group.results for item, count in one.counts["forwards"].items()}
        for group in (base, best)
    )  # fmt: skip
    saved = [before[item] - after[item] for item in before if item in after]
    return bootstrap_mean(saved) if saved else None
