"""Trials: models, tasks and strategies to compare, each answered and graded as a run on disk.

A `Runner` makes the trials of an experiment or of `tune`. Runs are kept in its folder, so a
stopped experiment continues where it was.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from wavefront.core.errors import CheckpointError, OptionError, WavefrontError, check_int
from wavefront.core.spec import resolve
from wavefront.evaluation import (
    Loader,
    LocalExecutor,
    Run,
    RunConfig,
    Worker,
    fingerprint,
    generate_answers,
    grade,
    grades,
    open_run,
    summary,
)
from wavefront.evaluation.task_spec import open_task
from wavefront.lm import LM
from wavefront.results.interval import Interval, wilson_share
from wavefront.results.paired import Comparison, compare
from wavefront.storage.provenance import commit
from wavefront.tasks.base import Ask, Style

RUNS = "runs"


@dataclass(frozen=True, kw_only=True)
class Scale:
    """The size of an experiment."""

    tasks: tuple[str, ...] = ("boolean_expressions",)
    models: tuple[str, ...] = ()  # empty: the loader's model
    strategies: tuple[str, ...] = ()  # empty: the experiment's own
    items: int | None = 12  # of each task; None: all
    length: int = 64  # N
    steps: int | None = None  # T; None: N
    seeds: tuple[int, ...] = (0,)  # added to --seed, where an experiment repeats
    rows: int = 8  # decoded at once
    style: Style = "bare"

    def __post_init__(self) -> None:
        for name, least in (("items", 1), ("length", 1), ("steps", 1), ("rows", 1)):
            if getattr(self, name) is not None:
                check_int("batch_size" if name == "rows" else name, getattr(self, name), least)
        for one in self.seeds:
            check_int("seed", one, 0)
        for spec in self.strategies:
            resolve(spec, "strategies")


class Trial(NamedTuple):
    """One model, task and strategy, with whatever else varies."""

    model: str
    task: str
    strategy: str
    case: str = ""  # what else varies, in words
    seed: int = 0  # of sampling, added to the runner's
    options: Mapping[str, Any] = {}  # of the decode; they override the runner's

    @property
    def folder(self) -> Path:
        """Return the run's directory, relative to the runner's."""
        parts = (self.task, self.strategy, self.case, f"seed={self.seed}" if self.seed else "")
        words = [re.sub(r"[^A-Za-z0-9._=]+", "-", part).strip("-") for part in parts if part]
        model = re.sub(r"[^A-Za-z0-9._=]+", "-", model_name(self.model))
        return Path(model) / "--".join(words)


class TrialResult(NamedTuple):
    """A trial with its run, graded."""

    trial: Trial
    run: Run
    correct: Mapping[str, bool]
    cost: Mapping[str, Any]


@dataclass(frozen=True)
class TrialGroup:
    """Trials that count as one: a strategy over several tasks, models or seeds."""

    results: tuple[TrialResult, ...]

    @property
    def correct(self) -> dict[tuple[Any, ...], bool]:
        """Return correct or wrong by item. Keys omit the strategy, so that groups can be paired."""
        return {
            (one.trial.model, one.trial.task, one.trial.seed, item): verdict
            for one in self.results
            for item, verdict in one.correct.items()
        }

    @property
    def accuracy(self) -> Interval:
        """Return correct answers in %, with Wilson's interval."""
        correct = self.correct
        return wilson_share(sum(correct.values()), len(correct)).percent

    @property
    def forwards(self) -> float | None:
        """Return the mean number of forward passes per item."""
        counts = [(one.cost["forwards"], len(one.correct)) for one in self.results]
        known = [(forwards, items) for forwards, items in counts if forwards is not None]
        return sum(f * n for f, n in known) / sum(n for _, n in known) if known else None

    @property
    def tokens_per_forward(self) -> float | None:
        """Return visible tokens per forward pass."""
        tokens = sum(one.cost["tokens"] for one in self.results)
        forwards = self.forwards
        return tokens / (forwards * len(self.correct)) if forwards else None

    @property
    def seconds(self) -> float:
        """Return the time of all trials together."""
        return round(sum(one.cost["seconds"] for one in self.results), 1)


def compare_groups(base: TrialGroup, other: TrialGroup) -> Comparison:
    """Compare the other group with the base, in pairs."""
    return compare(base.correct, other.correct)


def percent_gap(comparison: Comparison) -> Interval:
    """Return the difference of a comparison in points of percent."""
    gap = comparison.gap
    return Interval.spanning(gap.value, gap.low, gap.high, scale=100)


def model_name(model: str) -> str:
    """Return a model's name without its directory or owner."""
    return Path(model).name


@dataclass(kw_only=True)
class Runner:
    """Models, items and a folder; answers and grades trials, and keeps their runs."""

    name: str
    scale: Scale
    folder: Path
    loader: Loader = field(default_factory=Loader)
    seed: int = 0  # of sampling
    items_seed: int = 0  # of drawing the items
    data: str = ""
    radius: int = 2  # of the measures that need one
    encoder: str = "minilm"  # of BERTScore
    layer: int | None = None  # of the encoder
    allow_unsandboxed: bool = False
    command: str = ""
    progress: Callable[[str, float], None] = lambda what, share: None
    _worker: Worker | None = field(default=None, init=False)
    _runs: list[Run] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        check_int("seed", self.seed, 0)
        check_int("items_seed", self.items_seed, 0)
        check_int("radius", self.radius, 0)

    @property
    def models(self) -> tuple[str, ...]:
        """Return the paths or ids of the models."""
        return self.scale.models or (self.loader.path,)

    @property
    def steps(self) -> int:
        """Return T."""
        return self.scale.length if self.scale.steps is None else self.scale.steps

    def ask(self) -> Ask:
        """Return which items to draw."""
        scale = self.scale
        return Ask(count=scale.items, seed=self.items_seed, style=scale.style, data=self.data)

    def worker(self, model: str) -> Worker:
        """Return a worker with the model. Only the last one is kept."""
        if self._worker is None or self._worker.loader.path != model:
            self._worker = Worker(replace(self.loader, path=model))
        return self._worker

    def lm(self, model: str) -> LM:
        """Return the model, loaded."""
        return self.worker(model).lm

    def with_items(self, count: int, name: str) -> Runner:
        """Return a runner on the first `count` items, in a folder of its own, with this model."""
        part = replace(self, scale=replace(self.scale, items=count), folder=self.folder / name)
        part._worker = self.worker(self.models[0])
        return part

    def check(self) -> None:
        """Refuse before loading anything if checkpoints or data sets are missing.

        Raises:
            OptionError: The message names everything that is missing.
        """
        missing = []
        for model in self.models:
            try:
                loader = replace(self.loader, path=model)
                if self.scale.models:
                    replace(loader, offline=True).directory()
            except CheckpointError:
                missing.append(f"the checkpoint {model} (fetch it, or give --model DIR)")
            except WavefrontError as error:
                missing.append(f"the checkpoint {model} ({str(error).rstrip('.')})")
        lacking: dict[str, list[str]] = {}  # the 27 subsets of BBH count as one
        for task in self.scale.tasks:
            opened = open_task(task)  # raises on an unknown name
            try:
                opened.items(replace(self.ask(), count=1))
            except OptionError as error:
                reason = f"items of {task} ({str(error).rstrip('.')})"
                lacking.setdefault("bbh" if task.startswith("bbh_") else task, []).append(reason)
        for first, *more in lacking.values():
            missing.append(f"{first} and of {len(more)} more subsets" if more else first)
        if missing:
            what = "The paper's scale" if self.scale.models else "This experiment"
            raise OptionError(f"{what} needs what is not here: {'; '.join(missing)}.")

    def measure(self, trials: Sequence[Trial], *, trace: str = "") -> list[TrialResult]:
        """Answer and grade every trial. Existing answers are kept."""
        for trial in trials:
            resolve(trial.strategy, "strategies")
        results = []
        for number, trial in enumerate(trials):
            what = f"{trial.task}, {trial.strategy} {trial.case}".strip()

            def show(done: float, total: int, what: str = what, number: int = number) -> None:
                self.progress(what, (number + done / max(1, total)) / len(trials))

            results.append(self._measure_one(trial, trace, show))
        return results

    def _measure_one(
        self, trial: Trial, trace: str, show: Callable[[float, int], None]
    ) -> TrialResult:
        scale, folder = self.scale, self.folder / RUNS / trial.folder
        options: dict[str, Any] = {
            "strategy": trial.strategy,
            "max_new_tokens": scale.length,
            "steps": self.steps,
            "seed": self.seed + trial.seed,
            "eos": "stop",  # the same text as "keep", sooner
        }
        worker = self.worker(trial.model)
        setup = RunConfig(
            task=trial.task,
            ask=self.ask(),
            options=options | dict(trial.options),
            rows=scale.rows,
            trace=trace,
            loader=worker.loader,
            command=self.command,
        )
        generate_answers(LocalExecutor(worker), setup, folder, progress=show)
        grade(open_run(folder), data=self.data, allow_unsandboxed=self.allow_unsandboxed)
        run = open_run(folder)
        self._runs.append(run)
        return TrialResult(trial, run, grades.verdicts(run), summary.cost(run))

    def configuration(self) -> dict[str, Any]:
        """Return the settings and the machine, for the page."""
        scale, last = self.scale, self.models[-1]
        found: dict[str, Any] = {
            "experiment": self.name,
            "command": self.command,
            "commit": self._commits(),
            "models": [model_name(model) for model in self.models],
            "tasks": list(scale.tasks),
            "items of each task": scale.items or "all",
            "style of the prompts": scale.style,
            "places (N)": scale.length,
            "steps (T)": self.steps,
            "seed": self.seed,
            "seed of the items": self.items_seed,
            "rows at once": scale.rows,
        }
        # Answers may come from another machine; then the page names that one.
        machines = [machine for run in self._runs for machine in run.environments]
        return found | merge_records(machines or [fingerprint.environment(self.lm(last))])

    def _commits(self) -> Any:
        found = [{"commit": run.header.get("commit")} for run in self._runs]
        return merge_records(found or [{"commit": commit()}])["commit"]


def merge_records(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge records by name; where they differ, the value is the list of distinct values."""
    found: dict[str, list[Any]] = {}
    for record in records:
        for name, value in record.items():
            values = found.setdefault(name, [])
            values += [] if value in values else [value]
    return {name: values[0] if len(values) == 1 else values for name, values in found.items()}
