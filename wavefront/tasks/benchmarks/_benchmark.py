"""The base class of benchmarks: reads items from files, writes prompts, adds worked examples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Annotated, Any, ClassVar

from wavefront.core.bounds import FloatRange
from wavefront.core.errors import OptionError, check_choice, check_int
from wavefront.core.spec import Spec
from wavefront.tasks import sandbox
from wavefront.tasks.base import STYLES, Ask, Sample, Split, Style, paper_prompt
from wavefront.tasks.benchmarks import _hub
from wavefront.tasks.benchmarks._data import read_bytes, read_rows
from wavefront.tasks.grading import Grade
from wavefront.tasks.grading.final_answer import grade_final

MAX_SHOTS = 32


@dataclass(frozen=True, kw_only=True)
class Benchmark(Spec):
    """A fixed set of items. A subclass names its files and converts their rows to samples.

    `any_data` accepts files that differ from the published ones.
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
        """Return every item of `ask.split` with the bare question as its prompt."""
        raise NotImplementedError

    def examples(self, ask: Ask) -> Sequence[tuple[str, str]]:
        """Return worked examples as (question, answer) pairs, in the order of the prompt."""
        return ()

    def items(self, ask: Ask) -> list[Sample]:
        """Return all items in file order, or `ask.count` items in an order given by the seed."""
        ask = replace(ask, split=ask.split or self.splits[0])
        check_choice("split", ask.split, self.splits)
        check_choice("style", ask.style, STYLES)
        check_int("shots", ask.shots, 0, high=MAX_SHOTS)
        samples = self.samples(ask)
        if ask.count is not None:
            check_int("count", ask.count, 1)
            Random(f"{ask.seed} {self.name} {ask.split}").shuffle(samples)
            samples = samples[: ask.count]
        shots = self._worked_examples(ask)
        return [replace(item, prompt=self.ask(item.prompt, ask.style, shots)) for item in samples]

    def _worked_examples(self, ask: Ask) -> Sequence[tuple[str, str]]:
        if not ask.shots:
            return ()
        known = self.examples(ask)
        if len(known) < ask.shots:
            has = f"at most {len(known)}" if known else "no"
            raise OptionError(
                f"{self.name} has {has} worked examples; shots={ask.shots} is too many."
            )
        return known[: ask.shots]

    def ask(self, question: str, style: Style, shots: Sequence[tuple[str, str]]) -> str:
        """Write the prompt: the paper's instruction if requested, the examples, the question."""
        if shots:
            before = "".join(f"{asked}\nA: {answer}\n\nQ: " for asked, answer in shots)
            question = f"{before}{question}\nA:"
        if style == "paper":
            return paper_prompt(self.template, question)
        return f"Q: {question}" if shots else question

    def read(self, name: str, ask: Ask) -> list[dict[str, Any]]:
        """Read the rows of a data file."""
        if ask.data == "hub":
            return _hub.rows(name, any_data=self.any_data)
        return read_rows(name, data=ask.data, any_data=self.any_data)

    def read_text(self, name: str, ask: Ask) -> str:
        """Read a plain-text data file. `data="hub"` raises, because the Hub has no such files."""
        if ask.data == "hub":
            _hub.locate(name)
        return read_bytes(name, data=ask.data, any_data=self.any_data).decode("utf-8")

    def final_kind(self, sample: Sample) -> str:
        """Return what the final answer of an item is; see `grade_final`."""
        return self.kind

    def grade(self, sample: Sample, text: str) -> Grade:
        return grade_final(self.kind, sample.target, text, spoken=True)

    def sample(self, rng: Random, *, split: Split = "train", style: Style = "bare") -> Sample:
        """Raise OptionError: training on a benchmark would make its results worthless."""
        raise OptionError(f"{self.name} is a benchmark: its items are for evaluation only.")


@dataclass(frozen=True, kw_only=True)
class CodeBenchmark(Benchmark):
    """A benchmark whose grading runs the answers, in a sandbox unless `allow_unsandboxed`."""

    executes: ClassVar[bool] = True
    kind: ClassVar[str] = "code"
    allow_unsandboxed: bool = False
    timeout: Annotated[float, FloatRange(0.1, sandbox.MAX_TIMEOUT)] = 10.0  # CPU s for one answer

    def run(self, sample: Sample, code: str) -> sandbox.Verdict:
        """Run the item's tests on a program."""
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
        """Run the strictly extracted code; if it fails, run the flexibly extracted code."""
        verdict = self.run(sample, strict)
        if verdict.passed:
            return Grade(True, verdict.reason, "executed", True, True, verdict.layers)
        if flexible != strict:
            verdict = self.run(sample, flexible)
        reason, layers = verdict.reason, verdict.layers
        return Grade(verdict.passed, reason, "executed", False, verdict.passed, layers)
