"""What the benchmarks share: items from a file, how they are asked, and worked examples before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, ClassVar

from wavefront.core.errors import OptionError, check_choice, check_int
from wavefront.core.spec import Spec
from wavefront.tasks import sandbox
from wavefront.tasks.base import STYLES, Ask, Sample, Split, Style, paper_prompt
from wavefront.tasks.benchmarks import _hub
from wavefront.tasks.benchmarks._data import read_bytes, read_rows
from wavefront.tasks.grading import Grade
from wavefront.tasks.grading.final_answer import grade_final

MOST_SHOTS = 32


@dataclass(frozen=True, kw_only=True)
class Benchmark(Spec):
    """A fixed set of items; a subclass names its files and makes samples of their rows.

    `any_data` takes files that are not the published ones, byte for byte.
    """

    version: ClassVar[str] = "1"
    kind: ClassVar[str] = "number"
    splits: ClassVar[tuple[str, ...]] = ("test",)
    executes: ClassVar[bool] = False
    any_data: bool = False

    @property
    def name(self) -> str:
        return type(self).__module__.rpartition(".")[2]

    @property
    def template(self) -> str:
        """The task's name in templates.toml."""
        return self.name

    def samples(self, ask: Ask) -> list[Sample]:
        """Every item of `ask.split`, asked bare."""
        raise NotImplementedError

    def examples(self, ask: Ask) -> Sequence[tuple[str, str]]:
        """Worked examples, question and answer, in the order they are shown."""
        return ()

    def items(self, ask: Ask) -> list[Sample]:
        """The items asked for: all in file order, or as many as wanted in an order by the seed."""
        ask = replace(ask, split=ask.split or self.splits[0])
        check_choice("split", ask.split, self.splits)
        check_choice("style", ask.style, STYLES)
        check_int("shots", ask.shots, 0, MOST_SHOTS)
        samples = self.samples(ask)
        if ask.count is not None:
            check_int("count", ask.count, 1)
            Random(f"{ask.seed} {self.name} {ask.split}").shuffle(samples)
            samples = samples[: ask.count]
        shown = self._shown(ask)
        return [replace(item, prompt=self.ask(item.prompt, ask.style, shown)) for item in samples]

    def _shown(self, ask: Ask) -> Sequence[tuple[str, str]]:
        if not ask.shots:
            return ()
        known = self.examples(ask)
        if len(known) < ask.shots:
            has = f"at most {len(known)}" if known else "no"
            raise OptionError(f"{self.name} has {has} worked examples: shots={ask.shots} is more.")
        return known[: ask.shots]

    def ask(self, question: str, style: Style, shown: Sequence[tuple[str, str]]) -> str:
        """The prompt: examples first, and in the paper's style its instruction before them."""
        if shown:
            before = "".join(f"{asked}\nA: {answer}\n\nQ: " for asked, answer in shown)
            question = f"{before}{question}\nA:"
        if style == "paper":
            return paper_prompt(self.template, question)
        return f"Q: {question}" if shown else question

    def read(self, name: str, ask: Ask) -> list[dict[str, Any]]:
        """The rows of one of our files."""
        if ask.data == "hub":
            return _hub.rows(name, any_data=self.any_data)
        return read_rows(name, data=ask.data, any_data=self.any_data)

    def read_text(self, name: str, ask: Ask) -> str:
        """A text file of ours; the hub has none of them."""
        if ask.data == "hub":
            _hub.place(name)
        return read_bytes(name, data=ask.data, any_data=self.any_data).decode("utf-8")

    def grade(self, sample: Sample, text: str) -> Grade:
        return grade_final(self.kind, sample.target, text, spoken=True)

    def sample(self, rng: Random, *, split: Split = "train", style: Style = "bare") -> Sample:
        """A benchmark is not drawn from: training on it would make its results worthless."""
        raise OptionError(f"{self.name} is a benchmark: its items are for evaluation alone.")


@dataclass(frozen=True, kw_only=True)
class CodeBenchmark(Benchmark):
    """A benchmark whose answers are run. Without a sandbox they are not, unless that is allowed."""

    executes: ClassVar[bool] = True
    kind: ClassVar[str] = "code"
    allow_unsandboxed: bool = False
    timeout: float = 10.0  # seconds on the processor for one answer

    def run(self, sample: Sample, code: str) -> sandbox.Verdict:
        """The verdict of the item's tests on a program."""
        extra = sample.extra
        return sandbox.check(
            code,
            extra["tests"],
            names=extra["names"],
            setup=extra["setup"],
            timeout=self.timeout,
            allow_unsandboxed=self.allow_unsandboxed,
        )

    def grade_code(self, sample: Sample, strict: str, flexible: str) -> Grade:
        """Strict is the text as it stands; flexible is run only where that fails."""
        verdict = self.run(sample, strict)
        if verdict.passed:
            return Grade(True, verdict.reason, "executed", True, True, verdict.layers)
        if flexible != strict:
            verdict = self.run(sample, flexible)
        reason, layers = verdict.reason, verdict.layers
        return Grade(verdict.passed, reason, "executed", False, verdict.passed, layers)
