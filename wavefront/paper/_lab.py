"""Lab: the models, the items and the place on disk of an experiment, at one scale."""

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
from wavefront.paper.studies import Bench
from wavefront.storage.provenance import commit
from wavefront.tasks.base import Ask, Style

RUNS = "runs"
# The paper's three models, by their hub ids.
LLADA, LLADA15, DREAM = (
    "GSAI-ML/LLaDA-8B-Instruct", "GSAI-ML/LLaDA-1.5", "Dream-org/Dream-v0-Instruct-7B",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How large an experiment is."""

    tasks: tuple[str, ...] = ("boolean_expressions",)
    models: tuple[str, ...] = ()  # none: the default model
    items: int | None = 12  # of each task; None: all
    length: int = 64  # N
    steps: int | None = None  # T; N when None
    seeds: tuple[int, ...] = (0,)  # of what is drawn, where an experiment draws
    rows: int = 8  # decoded at once
    style: Style = "bare"

    def __post_init__(self) -> None:
        for name, least in (("items", 1), ("length", 1), ("steps", 1), ("rows", 1)):
            if getattr(self, name) is not None:
                check_int("batch_size" if name == "rows" else name, getattr(self, name), least)
        for one in self.seeds:
            check_int("seed", one, 0)


class Cell(NamedTuple):
    """One entry of a table: a model, a task, a strategy, and what else varies."""

    model: str
    task: str
    strategy: str
    case: str = ""  # what else varies, in words
    seed: int = 0
    options: Mapping[str, Any] = {}  # of the decode, beside the lab's own

    @property
    def folder(self) -> Path:
        """Where its run lies, below the lab's."""
        parts = (self.task, self.strategy, self.case, f"seed={self.seed}" if self.seed else "")
        words = [re.sub(r"[^A-Za-z0-9._=]+", "-", part).strip("-") for part in parts if part]
        return Path(re.sub(r"[^A-Za-z0-9._=]+", "-", short(self.model))) / "--".join(words)


class Measured(NamedTuple):
    """A cell with its answers."""

    cell: Cell
    run: Run
    right: Mapping[str, bool]
    cost: Mapping[str, Any]


def short(model: str) -> str:
    """A model's name without where it lies."""
    return Path(model).name


@dataclass(kw_only=True)
class Lab:
    """What an experiment works with. Its runs are kept under `home`, and gone on with."""

    name: str
    scale: Scale
    home: Path
    loader: Loader = field(default_factory=Loader)
    seed: int = 0  # of the items
    data: str = ""
    encoder: str = "minilm"  # of BERTScore
    layer: int | None = None
    allow_unsandboxed: bool = False
    command: str = ""
    progress: Callable[[str, float], None] = lambda what, share: None
    _worker: Worker | None = field(default=None, init=False)
    _measured: list[Run] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        check_int("seed", self.seed, 0)

    @property
    def models(self) -> tuple[str, ...]:
        return self.scale.models or (self.loader.path,)

    @property
    def steps(self) -> int:
        """T."""
        return self.scale.length if self.scale.steps is None else self.scale.steps

    def ask(self) -> Ask:
        """Which items."""
        scale = self.scale
        return Ask(count=scale.items, seed=self.seed, style=scale.style, data=self.data)

    def worker(self, model: str) -> Worker:
        """A worker with a model; the one before it is let go."""
        if self._worker is None or self._worker.loader.path != model:
            self._worker = Worker(replace(self.loader, path=model))
        return self._worker

    def lm(self, model: str) -> LM:
        return self.worker(model).lm

    def bench(self, model: str, **chosen: Any) -> Bench:
        """The same for a study."""
        scale = self.scale
        given: dict[str, Any] = {
            "tasks": scale.tasks,
            "items": scale.items,
            "length": scale.length,
            "steps": scale.steps,
            "seed": self.seed,
            "batch": scale.rows,
            "data": self.data,
            "style": scale.style,
            "command": self.command,
            "progress": self.progress,
        }
        return Bench(lm=self.lm(model), **(given | chosen))

    def check(self) -> None:
        """Refuse what is not there, all of it in one sentence, before anything is loaded."""
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
        lacking: dict[str, list[str]] = {}  # the subsets of BBH, of which there are 27, as one
        for task in self.scale.tasks:
            opened = open_task(task)  # a wrong name is told as it is
            try:
                opened.items(replace(self.ask(), count=1))
            except OptionError as error:
                told = f"items of {task} ({str(error).rstrip('.')})"
                lacking.setdefault("bbh" if task.startswith("bbh_") else task, []).append(told)
        for first, *more in lacking.values():
            missing.append(f"{first} and of {len(more)} more subsets" if more else first)
        if missing:
            what = "The paper's scale" if self.scale.models else "This"
            raise OptionError(f"{what} needs what is not here: {'; '.join(missing)}.")

    def measure(self, cells: Sequence[Cell], *, trace: str = "") -> list[Measured]:
        """Every cell answered and graded; what was there before is kept."""
        for cell in cells:
            resolve(cell.strategy, "strategies")
        made = []
        for number, cell in enumerate(cells):
            what = f"{cell.task}, {cell.strategy} {cell.case}".strip()

            def show(done: float, total: int, what: str = what, number: int = number) -> None:
                self.progress(what, (number + done / max(1, total)) / len(cells))

            made.append(self._cell(cell, trace, show))
        return made

    def _cell(self, cell: Cell, trace: str, show: Callable[[float, int], None]) -> Measured:
        scale, folder = self.scale, self.home / RUNS / cell.folder
        options: dict[str, Any] = {
            "strategy": cell.strategy,
            "max_new_tokens": scale.length,
            "steps": self.steps,
            "seed": cell.seed,
            "eos": "stop",  # the text is that of keep, sooner
        }
        worker = self.worker(cell.model)
        setup = RunConfig(
            task=cell.task,
            ask=self.ask(),
            options=options | dict(cell.options),
            rows=scale.rows,
            trace=trace,
            loader=worker.loader,
            command=self.command,
        )
        generate_answers(LocalExecutor(worker), setup, folder, progress=show)
        grade(open_run(folder), data=self.data, allow_unsandboxed=self.allow_unsandboxed)
        run = open_run(folder)
        self._measured.append(run)
        return Measured(cell, run, grades.verdicts(run), summary.cost(run))

    def configuration(self) -> dict[str, Any]:
        """What a number needs beside it."""
        scale, last = self.scale, self.models[-1]
        found: dict[str, Any] = {
            "experiment": self.name,
            "command": self.command,
            "commit": self._commits(),
            "models": [short(model) for model in self.models],
            "tasks": list(scale.tasks),
            "items of each task": scale.items or "all",
            "style of the prompts": scale.style,
            "places (N)": scale.length,
            "steps (T)": self.steps,
            "seed of the items": self.seed,
            "rows at once": scale.rows,
        }
        # Answers may have been made before, and elsewhere: then that machine is told, not this one.
        machines = [machine for run in self._measured for machine in run.environments]
        return found | joined(machines or [fingerprint.environment(self.lm(last))])

    def _commits(self) -> Any:
        made = [{"commit": run.header.get("commit")} for run in self._measured]
        return joined(made or [{"commit": commit()}])["commit"]


def joined(told: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What all of them say; a list where they differ."""
    found: dict[str, list[Any]] = {}
    for one in told:
        for name, value in one.items():
            values = found.setdefault(name, [])
            values += [] if value in values else [value]
    return {name: values[0] if len(values) == 1 else values for name, values in found.items()}
