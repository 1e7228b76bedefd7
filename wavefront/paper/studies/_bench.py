"""Bench: held-out items, decoded in batches under several strategies; all studies stand on it."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from random import Random
from typing import Any, NamedTuple

import torch

import wavefront
from wavefront import tasks
from wavefront.analysis.figures import kind
from wavefront.core.errors import OptionError, check_int
from wavefront.core.spec import resolve
from wavefront.lm import LM, Completion
from wavefront.tasks.base import Ask, Sample, Style
from wavefront.traces.trace import Trace

STRATEGIES = ("standard", "block(size=8)", "wavefront(size=8, radius=2)")
# The paper describes two ways to grow the wave, so both are evaluated.
EVALUATED = (*STRATEGIES, "wavefront(size=8, radius=2, grow='accumulate')")
DRAWS = 200  # of a task for every item wanted, to find those whose answers fit
LEAST = {"items": 1, "length": 1, "steps": 1, "batch": 1, "seed": 0, "radius": 0}
UNGRADED = ("code",)  # grading it would run what the model wrote


class Decoded(NamedTuple):
    """Items under one strategy."""

    traces: list[Trace]  # one a batch, items in order; none unless asked for
    answers: list[Completion]
    correct: list[bool] | None  # None: the task is not graded here


def base_of(strategies: Iterable[str]) -> str | None:
    """What the paper compares with: the first block strategy, if there is one."""
    return next((spec for spec in strategies if kind(spec) == "block"), None)


def check(**settings: Any) -> None:
    """Refuse what no bench takes, by the names of its fields; no model is needed for that."""
    for name, least in LEAST.items():
        if settings.get(name) is not None:
            check_int(name, settings[name], least)
    for spec in settings.get("strategies", ()):
        resolve(spec, "strategies")
    for name in settings.get("tasks", ()):
        tasks.load(name)


@dataclass(kw_only=True)
class Bench:
    """A model, the strategies, and the items to try them on."""

    lm: LM
    strategies: Sequence[str] = STRATEGIES
    tasks: Sequence[str] = ("gsm",)
    items: int = 16  # of each task
    length: int = 64  # places of the canvas, N
    steps: int | None = None  # T; N when None
    seed: int = 0
    batch: int = 8
    radius: int = 2  # of the measures that need one, the same for every strategy
    style: Style = "bare"
    data: str = ""  # where the files of benchmarks lie
    command: str = ""
    progress: Callable[[str, float], None] = lambda what, share: None
    _parts: int = field(default=1, init=False)
    _done: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        check(**vars(self))

    @property
    def budget(self) -> int:
        """T."""
        return self.length if self.steps is None else self.steps

    def draw(self, name: str, count: int | None = None) -> list[Sample]:
        """Held-out items of a task, the same for the same seed, whose answers fit the canvas."""
        wanted = self.items if count is None else count
        found: dict[str, Sample] = {}
        for sample in self._offered(name, wanted):
            if len(self.lm.tokenizer.encode(sample.answer)) < self.length:  # one is for the end
                found.setdefault(sample.id, sample)
            if len(found) == wanted:
                return list(found.values())
        raise OptionError(
            f"Only {len(found)} of {wanted} items of {name} have answers that fit {self.length} "
            "places: give a larger -n, fewer --items or another --task."
        )

    def _offered(self, name: str, wanted: int) -> Iterator[Sample]:
        """Items in the order of the seed: as many draws as are reasonable, or a whole file."""
        task = tasks.load(name)
        if name in tasks.benchmarks():
            every = Ask(count=1 << 30, seed=self.seed, style=self.style, data=self.data)
            yield from task.items(every)
            return
        random = Random(f"{self.seed} {name} held-out")
        for _ in range(DRAWS * wanted):
            yield task.sample(random, split="held-out", style=self.style)

    def expect(self, parts: int, count: int | None = None) -> None:
        """Say how many parts, each about a batch under a strategy, the study has.

        Later tasks are drawn from once, so that what does not fit is said before hours are spent.
        """
        self._parts, self._done = max(1, parts), 0
        for name in self.tasks[1:]:
            self.draw(name, count)

    def batches(self, count: int | None = None) -> int:
        """How many batches the items of a task make."""
        return -(-(self.items if count is None else count) // self.batch)

    def part(self, what: str) -> None:
        """A part is done."""
        self._done += 1
        self.progress(what, min(1.0, self._done / self._parts))

    def decode(
        self,
        name: str,
        samples: Sequence[Sample],
        strategy: str,
        *,
        trace: str = "full",
        **more: Any,
    ) -> Decoded:
        """Answers of one strategy; options in `more` win over the bench's own."""
        options: dict[str, Any] = {
            "strategy": strategy,
            "max_new_tokens": self.length,
            "steps": self.budget,
            "seed": self.seed,
            "eos": "keep",
        }
        made = Decoded([], [], None)
        for start in range(0, len(samples), self.batch):
            prompts = [sample.prompt for sample in samples[start : start + self.batch]]
            stream = self.lm.stream(prompts, trace=trace or False, **(options | more))
            for step in stream:
                within = (step.number + 1) / stream.decoding.plan.steps
                self.progress(strategy, min(1.0, (self._done + within) / self._parts))
            answers = stream.completions
            made.answers.extend(answers)
            if answers[0].trace is not None:
                made.traces.append(answers[0].trace)
            self.part(strategy)
        return made._replace(correct=self._grades(name, samples, made.answers))

    def _grades(
        self, name: str, samples: Sequence[Sample], answers: Sequence[Completion]
    ) -> list[bool] | None:
        task = tasks.load(name)
        if name in UNGRADED or task.executes:
            return None
        pairs = zip(samples, answers, strict=True)
        return [task.grade(sample, answer.text).correct for sample, answer in pairs]

    def configuration(self) -> dict[str, Any]:
        """What a number needs beside it."""
        model = self.lm.model
        cuda = model.device.type == "cuda"
        return {
            "command": self.command,
            "model": self.lm.name,
            "strategies": list(self.strategies),
            "tasks": list(self.tasks),
            "items of each task": self.items,
            "split": f"held-out, answers that fit {self.length} places",
            "style of the prompts": self.style,
            "places (N)": self.length,
            "steps (T)": self.budget,
            "seed": self.seed,
            "rows at once": self.batch,
            "radius of the measures": self.radius,
            "dtype": str(model.dtype).removeprefix("torch."),
            "device": torch.cuda.get_device_name() if cuda else f"{platform.machine()} CPU",
            "threads": torch.get_num_threads(),
            "wavefront": wavefront.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "date": datetime.now(UTC).date().isoformat(),
        }
