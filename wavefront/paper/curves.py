"""Curves: which strategy has the best quality for its forward passes, on equal terms?

Every adaptive strategy gets the whole grid of its knob, and every fixed one the budgets N, N/2, N/4
and N/8. The settings of a table are chosen on the tune half of the items. The curves, the tables
and AUP are those of the report half. A task with right answers is measured by accuracy, and one
with a judge by the judge's nats per token, under the rule that quality cannot be bought by length
or repetition.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from wavefront.analysis import figures, quality
from wavefront.analysis.quality import TextQuality
from wavefront.core.errors import OptionError
from wavefront.evaluation.page import Figures, ResultsPage
from wavefront.evaluation.protocol import (
    ADAPTIVE,
    FIXED,
    GRIDS,
    RATIOS,
    accuracy_under_parallelism,
    choose,
    half_of,
    knob_of,
    settings_of,
)
from wavefront.evaluation.trials import Runner, Scale, Trial, TrialResult, model_name
from wavefront.paper.claims import (
    FEWEST,
    NATS_MARGIN,
    NOT_MEASURABLE,
    SATURATED,
    SIGNIFICANCE,
    TRAINED_FOR_SCHEDULES,
    compare_texts,
    gap_of_few,
    no_difference,
)
from wavefront.results.bootstrap import bootstrap, bootstrap_mean
from wavefront.results.interval import Estimate, Interval, bounds, wilson_share
from wavefront.results.paired import compare
from wavefront.results.table import Cell, Table

NEEDS = "nothing; --paper: the story model, 1,024 prompts, 160, 320 and 640 positions: a GPU"
SMALL = Scale(items=16, length=32)
PAPER = Scale(
    models=("tale",),
    tasks=("stories",),
    strategies=(*FIXED, *ADAPTIVE),
    items=None,
    length=160,
    rows=256,
    canvases=(1, 2, 4),
)
REFERENCES = ("standard", "standard(selector=threshold(tau={tau}))")  # fixed, adaptive
COMPARED = (
    REFERENCES[0],
    "block(size=8)",
    "wavefront(size=8, radius=2)",
    REFERENCES[1],
    "block(size=32, selector=threshold(tau={tau}))",
    "wavefront(size=16, radius=4, selector=threshold(tau={tau}))",
    "tide(cascade_rounds=8, horizon=64, selector=threshold(tau={tau}))",
)
DRAWS = 1000  # resamples of AUP, whose statistic is slow
BUDGETS = (4, 8)  # equal cost: at most N over this many forward passes
LOSS = {False: 1.0, True: NATS_MARGIN}  # equal quality: points of accuracy, or nats, below the best
TEXT = (
    "Every adaptive strategy gets the same grid for its knob: {grids}. Every fixed strategy gets "
    "T = N, N/2, N/4 and N/8. All have the same end-token policy and the same stopping. An item's "
    "id decides its half. The tune half chooses the settings of the tables; the curves, tables and "
    "AUP are those of the report half. Forward passes are those made for an item, void ones and "
    "those whose commits were dropped included. Differences are in pairs over items, with 95 % "
    "bootstrap intervals; where none was found, the verdict says how large a difference is "
    "excluded. Fixed budgets are compared with fixed budgets, and adaptive strategies with "
    "adaptive ones."
)
AUP_TEXT = (
    "AUP is the area under accuracy against tokens per forward pass, weighted as by d3LLM (alpha = "
    "3, settings more than 5 points below the least parallel one left out)."
)
JUDGED_TEXT = (
    "Nats per token are under the judge; lower is likelier. Lower nats than the original's own "
    "texts are not better. A strategy counts as better only if neither length, distinct trigrams, "
    "the first 64 tokens nor early ends are worse."
)


@dataclass(frozen=True)
class SettingResult:
    """What one setting wrote, item by item."""

    family: str
    spec: str
    steps: int | None  # T, for a fixed budget
    forwards: Mapping[str, int]
    positions: Mapping[str, int]
    tokens: Mapping[str, int]
    correct: Mapping[str, bool]  # empty for a task with a judge
    texts: Mapping[str, TextQuality]  # empty for a task with right answers
    seconds: float

    @property
    def name(self) -> str:
        """Return the spec with its budget."""
        return self.spec if self.steps is None else f"{self.spec}, T = {self.steps}"

    def quality(self, items: Sequence[str]) -> float:
        """Return the mean quality of some items, more is better: accuracy in %, or minus nats."""
        if self.texts:
            return -sum(self.texts[item].nats for item in items) / len(items)
        return 100 * sum(self.correct[item] for item in items) / len(items)

    def cost(self, items: Sequence[str]) -> float:
        """Return the mean forward passes of some items."""
        return sum(self.forwards[item] for item in items) / len(items)

    def interval(self, items: Sequence[str]) -> Interval:
        """Return the mean quality of some items as it is shown: accuracy in %, or nats."""
        if self.texts:
            return bootstrap_mean([self.texts[item].nats for item in items])
        return wilson_share(sum(self.correct[item] for item in items), len(items)).percent


@dataclass(frozen=True)
class Bench:
    """All settings on one task and canvas, and the halves of its items."""

    model: str
    task: str
    length: int
    results: Sequence[SettingResult]
    originals: Mapping[str, TextQuality]  # by item, for a task with a judge

    @property
    def judged(self) -> bool:
        return bool(self.results[0].texts)

    @cached_property
    def halves(self) -> dict[str, list[str]]:
        """Return the items that every setting answered, by half."""
        first, *rest = (one.forwards for one in self.results)
        shared = [item for item in first if all(item in other for other in rest)]
        found: dict[str, list[str]] = {"tune": [], "report": []}
        for item in shared:
            found[half_of(item)].append(item)
        return found

    @property
    def report(self) -> list[str]:
        return self.halves["report"]

    def families(self, *, adaptive: bool) -> dict[str, list[SettingResult]]:
        """Return the settings of every strategy of one kind."""
        found: dict[str, list[SettingResult]] = {}
        for one in self.results:
            if (one.steps is None) == adaptive:
                found.setdefault(one.family, []).append(one)
        return found

    @property
    def own(self) -> list[TextQuality]:
        """Return the quality of the original's own texts on the report half."""
        return [self.originals[item] for item in self.report if self.originals]

    def aim(self, one: SettingResult) -> float:
        """Return the quality by which a setting is chosen, on the tune half.

        Texts that are likelier than the original's own count as equally good as those: lower nats
        than the original's are not better.
        """
        tune = self.halves["tune"]
        found = one.quality(tune)
        if not self.originals:
            return found
        return min(found, -sum(self.originals[item].nats for item in tune) / len(tune))

    @property
    def seconds(self) -> float:
        return sum(one.seconds for one in self.results)


def run(runner: Runner) -> ResultsPage:
    """Decode every setting on every task and canvas, or read the runs, and make the page."""
    if runner.scale.steps is not None:
        raise OptionError(f"{runner.name} uses T = N, N/2, N/4 and N/8: leave out --steps.")
    benches = [
        _bench(runner, model, task, length=runner.scale.length * factor)
        for model in runner.models
        for task in runner.scale.tasks
        for factor in runner.scale.canvases
    ]
    tables: list[Table] = []
    numbers: dict[str, Any] = {}
    for bench in benches:
        made = _tables(bench)
        tables += made
        key = f"{model_name(bench.model)}, {bench.task}, N={bench.length}"
        numbers[key] = {
            **{table.title: table.records() for table in made},
            "items": {half: len(some) for half, some in bench.halves.items()},
            "seconds": bench.seconds,
        }
    notes = [TEXT.format(grids=_grids(runner.scale.strategies))]
    notes += [JUDGED_TEXT] if any(bench.judged for bench in benches) else []
    notes += [AUP_TEXT] if not all(bench.judged for bench in benches) else []
    biased = sorted({model_name(m) for m in runner.models} & {*TRAINED_FOR_SCHEDULES})
    notes += [
        f"{one} does not decide between schedules: {TRAINED_FOR_SCHEDULES[one]}." for one in biased
    ]
    seconds = sum(bench.seconds for bench in benches)
    device = runner.configuration().get("device")
    notes.append(f"Decoding took {seconds / 60:.1f} minutes in all on {device}.")
    return ResultsPage(
        title="Curves: quality against forward passes",
        text="\n\n".join(notes),
        configuration=runner.configuration()
        | {"positions (N)": [bench.length for bench in benches], "steps (T)": "N over 1, 2, 4, 8"}
        | {"strategies": list(runner.scale.strategies), "eos": "stop"},
        tables=tables,
        numbers=numbers,
        figures=_figures(benches),
    )


def _bench(runner: Runner, model: str, task: str, *, length: int) -> Bench:
    """Answer and grade every setting. Results that are on record are not made again."""
    planned: list[tuple[str, int | None, Trial]] = []
    for family in runner.scale.strategies:
        adaptive = knob_of(family) is not None
        for spec in settings_of(family):
            for steps in [None] if adaptive else _budgets(length):
                case = f"N={length}" if steps is None else f"N={length} T={steps}"
                options = {"max_new_tokens": length, "steps": steps or length}
                planned.append((family, steps, Trial(model, task, spec, case, options=options)))
    found = runner.measure([trial for _, _, trial in planned])
    results = [
        _result(family, one, steps=steps)
        for (family, steps, _), one in zip(planned, found, strict=True)
    ]
    bench = Bench(model, task, length, results, found[0].originals)
    for half, items in bench.halves.items():
        if not items:
            raise OptionError(f"The {half} half of {task} has no items: give more --items.")
    return bench


def _grids(families: Sequence[str]) -> str:
    """Return the grids of the knobs that these strategies have."""
    knobs = dict.fromkeys(knob for family in families if (knob := knob_of(family)))
    listed = (f"{name} in {', '.join(f'{v:g}' for v in GRIDS[name])}" for name in knobs)
    return "; ".join(listed) or "there is none here"


def _budgets(length: int) -> list[int]:
    return [*dict.fromkeys(max(1, length // ratio) for ratio in RATIOS)]


def _result(family: str, found: TrialResult, *, steps: int | None) -> SettingResult:
    counts = found.counts
    return SettingResult(
        family,
        found.trial.strategy,
        steps,
        counts["forwards"],
        counts["positions"],
        counts["tokens"],
        {item: found.correct[item] for item in counts["forwards"]} if found.correct else {},
        found.quality,
        found.cost["seconds"],
    )


# ---------------------------------------------------------------- tables


def _tables(bench: Bench) -> list[Table]:
    where = f"{bench.task}, N = {bench.length}"
    note = f"{len(bench.report)} items of the report half; {bench.seconds / 60:.1f} minutes."
    unit = "nats" if bench.judged else "right, %"
    columns = ["setting", unit, "forwards", "positions", "tokens per forward", "seconds"]
    tables = [Table(f"{where}: every setting", columns, _setting_rows(bench), note)]
    for adaptive in (False, True):
        if bench.families(adaptive=adaptive):
            tables.append(_chosen_table(bench, where, adaptive=adaptive))
    if not bench.judged:
        tables.append(_aup_table(bench, where))
    else:
        tables.append(_quality_table(bench, where))
    return tables


def _setting_rows(bench: Bench) -> list[list[Cell]]:
    rows: list[list[Cell]] = []
    for one in bench.results:
        forwards = sum(one.forwards[item] for item in bench.report)
        tokens = sum(one.tokens[item] for item in bench.report)
        positions = sum(one.positions[item] for item in bench.report) / len(bench.report)
        rows.append([one.name, one.interval(bench.report), one.cost(bench.report), positions,
                     tokens / forwards if forwards else None, one.seconds])  # fmt: skip
    return rows


def _chosen_table(bench: Bench, where: str, *, adaptive: bool) -> Table:
    """Return the settings that the tune half chose, on the report half, with paired differences."""
    families, tune = bench.families(adaptive=adaptive), bench.halves["tune"]
    best = max(bench.aim(one) for some in families.values() for one in some)
    aims: dict[str, dict[str, float]] = {"equal quality": {"least": best - LOSS[bench.judged]}}
    for ratio in BUDGETS:
        budget = max(1, bench.length // ratio)
        aims[f"at most {budget} forwards"] = {"most": float(budget)}
    rows: list[list[Cell]] = []
    for aim, limit in aims.items():
        chosen: dict[str, SettingResult] = {}
        for family, some in families.items():
            known = {one.name: one for one in some}
            name = choose(
                [*known],
                quality=lambda one, known=known: bench.aim(known[one]),
                cost=lambda one, known=known: known[one].cost(tune),
                **limit,
            )
            if name is not None:
                chosen[family] = known[name]
            else:
                rows.append([aim, family, None, None, None, None, "no setting reaches it"])
        base = chosen.get(REFERENCES[adaptive]) or next(iter(chosen.values()), None)
        for family, one in chosen.items():
            gap, verdict = (None, "the reference") if one is base else _verdict(bench, base, one)
            shown = one.interval(bench.report)
            rows.append([aim, family, one.name, shown, one.cost(bench.report), gap, verdict])
    kind = "adaptive strategies" if adaptive else "fixed budgets"
    unit = "nats" if bench.judged else "right, %"
    columns = ["aim", "strategy", "chosen on the tune half", unit, "forwards", "minus reference",
               "verdict"]  # fmt: skip
    loss = f"{LOSS[True]} nats" if bench.judged else f"{LOSS[False]:g} point"
    note = (
        f"Equal quality: the fewest forward passes within {loss} of the best setting of the tune "
        f"half. All numbers are those of {len(bench.report)} items of the report half."
    )
    if bench.judged:
        note += " For the choice, lower nats than the original's own count as the original's."
    return Table(f"{where}: {kind}", columns, rows, note)


def _verdict(bench: Bench, base: SettingResult | None, one: SettingResult) -> tuple[Estimate, str]:
    """Compare a setting with the reference on the report half."""
    assert base is not None
    items = bench.report
    if bench.judged:
        pair = [[some.texts[item] for item in items] for some in (base, one)]
        gaps = quality.differences(*pair)
        if len(items) < FEWEST:
            return gaps["nats"], f"{NOT_MEASURABLE}: fewer than {FEWEST} items"
        means = quality.estimates(pair[0]), quality.estimates(pair[1])
        original = quality.estimates(bench.own)
        names = (base.family, one.family)
        return gaps["nats"], compare_texts(names, gaps, means=means, original=original)
    found = compare({i: base.correct[i] for i in items}, {i: one.correct[i] for i in items})
    gap = gap_of_few(found)
    return gap, _accuracy_verdict(bench, (base, one), gap, p=found.p)


def _accuracy_verdict(
    bench: Bench, pair: tuple[SettingResult, SettingResult], gap: Interval, *, p: float | None
) -> str:
    kinds = {one.spec.partition("(")[0] for one in pair}
    if len(bench.report) < FEWEST:
        return f"{NOT_MEASURABLE}: fewer than {FEWEST} items"
    shares = [one.quality(bench.report) for one in pair]
    if min(shares) > SATURATED[1] or max(shares) < SATURATED[0]:
        return f"{NOT_MEASURABLE}: both are above 95 % or below 5 %"
    if model_name(bench.model) in TRAINED_FOR_SCHEDULES and len(kinds) > 1:
        return f"{NOT_MEASURABLE}: {model_name(bench.model)} does not decide between schedules"
    if gap.low <= 0 <= gap.high or (p is not None and p >= SIGNIFICANCE):
        return no_difference(gap)
    return "above the reference" if gap.value > 0 else "below the reference"


def _aup_table(bench: Bench, where: str) -> Table:
    """Return AUP of every strategy, with intervals over the items of the report half."""
    items = bench.report
    best = max(one.quality(items) for one in bench.results)
    rows: list[list[Cell]] = []
    for adaptive in (False, True):
        for family, some in bench.families(adaptive=adaptive).items():
            kind = "adaptive" if adaptive else "fixed"
            rows.append([family, kind, _aup(some, items, best)])
    return Table(
        f"{where}: AUP",
        ["strategy", "kind", "AUP"],
        rows,
        f"The highest accuracy of all settings is {best:.1f} %. Compare fixed with fixed, and "
        "adaptive with adaptive.",
    )


def _aup(some: Sequence[SettingResult], items: Sequence[str], best: float) -> Estimate:
    columns = [
        torch.tensor([[float(values[item]) for item in items] for values in each])
        for each in zip(*((one.correct, one.tokens, one.forwards) for one in some), strict=True)
    ]  # three of (settings, items)

    def statistic(weights: Tensor) -> Tensor:
        correct, tokens, forwards = (weights.float() @ one.T for one in columns)
        accuracy = 100 * correct / weights.float().sum(1, keepdim=True)
        parallel = (tokens / forwards).clamp(min=1e-9)
        return torch.tensor(
            [
                accuracy_under_parallelism([*zip(rho, y, strict=True)], best)
                for rho, y in zip(parallel.tolist(), accuracy.tolist(), strict=True)
            ],
            dtype=torch.float64,
        )

    return bootstrap(statistic, len(items), draws=DRAWS)


def _quality_table(bench: Bench, where: str) -> Table:
    """Return every measure of every setting, next to the measure of the original's own texts."""
    rows: list[list[Cell]] = []
    for one in bench.results:
        means = quality.estimates([one.texts[item] for item in bench.report])
        rows.append([one.name, *(means[name] for name in quality.MEASURES)])
    own = quality.estimates(bench.own)
    rows.append(["the original's own texts", *(own[name] for name in quality.MEASURES)])
    return Table(f"{where}: every measure", ["setting", *quality.MEASURES], rows)


# ---------------------------------------------------------------- figure


def _figures(benches: Sequence[Bench]) -> Figures:
    """Return the figure."""
    panels = []
    for bench in benches:
        lines: dict[str, list[figures.CurvePoint]] = {}
        for one in bench.results:
            mean, low, high = bounds(one.interval(bench.report))
            positions = sum(one.positions[item] for item in bench.report) / len(bench.report)
            point = figures.CurvePoint(one.cost(bench.report), positions, mean, low, high)
            lines.setdefault(one.family, []).append(point)
        own = None
        if bench.judged:
            own = bounds(quality.estimates(bench.own)["nats"])[0]
        unit = "nats per token (lower: likelier)" if bench.judged else "correct answers (%)"
        title = (
            f"{bench.model} on {bench.task}, {bench.length} positions, "
            f"{len(bench.report)} items of the report half"
        )
        panels.append(figures.CurvePanel(title, unit, lines, own, log=bench.judged))
    return {"curves": (figures.curves(panels), "Quality against forward passes, report half")}
