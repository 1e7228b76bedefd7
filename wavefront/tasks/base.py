"""What a task is: samples that can be drawn, and a grade for what a model wrote.

`Procedural` is the part every generated task shares: which split an item belongs to, how it is
asked, and what it is graded by. A task file adds only how one item is made.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from hashlib import blake2b
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, TypeVar

from wavefront.core.errors import OptionError
from wavefront.core.spec import Spec
from wavefront.tasks.grading import Grade
from wavefront.tasks.grading.final_answer import grade_final

Split = Literal["train", "held-out", "held-out-template"]
Style = Literal["bare", "paper"]
Choice = TypeVar("Choice")

SPLITS: tuple[Split, ...] = ("train", "held-out", "held-out-template")
STYLES: tuple[Style, ...] = ("bare", "paper")
HELD_OUT_SHARE = 16  # one skeleton in sixteen never enters training
GENERATED = 100  # items of a generated task, when no number is given
DRAWS = 50  # for every item wanted, so that a small task ends with a sentence
DRAFTS = 20_000  # for one item, so that a task without held-out skeletons does too
PROCEDURAL = Path(__file__).parent / "procedural"
NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Sample:
    """One item: what is asked, a full worked answer ("" where there is none), the final answer."""

    id: str
    prompt: str
    answer: str
    target: str
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Ask:
    """Which items of a task, and how they are put to a model."""

    count: int | None = None  # None: every item of a file; of a generated task, 100
    seed: int = 0  # of the draw
    split: str = ""  # the task's own default when empty
    style: Style = "paper"
    shots: int = 0  # worked examples before the question
    data: str = ""  # the folder of the files, or "hub"; WAVEFRONT_DATA when empty


class Task(Protocol):
    """What evaluation needs of a task: items to ask, and a grade for what was answered."""

    version: ClassVar[str]
    executes: ClassVar[bool]  # grading runs what the model wrote

    @property
    def name(self) -> str: ...
    def items(self, ask: Ask) -> list[Sample]: ...
    def grade(self, sample: Sample, text: str) -> Grade: ...


class Generated(Task, Protocol):
    """A task whose items are drawn at will; what training needs."""

    def sample(self, rng: Random, *, split: Split = "train", style: Style = "bare") -> Sample: ...


class Draft(NamedTuple):
    """One generated item before it is put into a split.

    The skeleton is what makes two items the same exercise (template and numbers, not names).
    The original is the question in the benchmark's wording, where it is worded otherwise: a real
    item in other words is still a real item.
    """

    question: str
    worked: str
    target: str
    skeleton: str
    extra: Mapping[str, Any] = NOTHING
    original: str = ""


class Wordings(NamedTuple):
    """Ways to say the same thing: the original, others for training, others never trained on."""

    real: str
    other: tuple[str, ...]
    reserved: tuple[str, ...]

    def ask(self, rng: Random, reserved: bool, *parts: str, after: str = "") -> tuple[str, str]:
        """The question and its original: the same in five of six draws, so that paraphrases widen
        the benchmark's wording without replacing it."""
        original = self.real.format(*parts) + after
        if reserved:
            return choose(rng, self.reserved).format(*parts) + after, original
        if not self.other or rng.random() < 5 / 6:
            return original, original
        return choose(rng, self.other).format(*parts) + after, original


class Procedural(Spec):
    """A task whose items are generated; a subclass names itself and writes `draft`."""

    version: ClassVar[str] = "1"
    executes: ClassVar[bool] = False
    kind: ClassVar[str] = "number"

    @property
    def name(self) -> str:
        """The file name, in which case and underscores are as in the benchmark."""
        return type(self).__module__.rpartition(".")[2]

    def draft(self, rng: Random, reserved: bool) -> Draft:
        """One item; `reserved` asks for a wording or structure that training never sees."""
        raise NotImplementedError

    def sample(self, rng: Random, *, split: Split = "train", style: Style = "bare") -> Sample:
        """An item of `split`: drawn again until its skeleton falls there and it is no real item."""
        if split not in SPLITS or style not in STYLES:
            raise OptionError(
                f"split {split!r} and style {style!r}: choose split from {SPLITS}"
                f" and style from {STYLES}"
            )
        reserved = split == "held-out-template"
        for _ in range(DRAFTS):
            draft = self.draft(rng, reserved)
            kept_out = is_held_out(f"{self.name}|{draft.skeleton}")
            if kept_out == (split != "train") and not is_real(draft.original or draft.question):
                break
        else:
            raise OptionError(
                f"{self.name}: none of {DRAFTS} drafts was {split}; give it more skeletons."
            )
        prompt = draft.question if style == "bare" else paper_prompt(self.name, draft.question)
        key = digest(draft.question).hex()
        return Sample(f"{self.name}/{split}/{key}", prompt, draft.worked, draft.target, draft.extra)

    def items(self, ask: Ask) -> list[Sample]:
        return drawn(self, ask)

    def grade(self, sample: Sample, text: str) -> Grade:
        """Compare the final answer of `text` with the target."""
        return grade_final(self.kind, sample.target, text)


def drawn(task: Generated, ask: Ask) -> list[Sample]:
    """Different items, the same for the same seed; a longer list begins with the shorter."""
    if ask.shots:
        raise OptionError(f"{task.name} is asked without examples: leave out shots.")
    split: Any = ask.split or "held-out"
    wanted, rng = ask.count or GENERATED, Random(f"{ask.seed} {task.name} {split}")
    found: dict[str, Sample] = {}
    for _ in range(DRAWS * wanted):
        sample = task.sample(rng, split=split, style=ask.style)
        found.setdefault(sample.id, sample)
        if len(found) == wanted:
            return list(found.values())
    raise OptionError(f"{task.name} has only {len(found)} {split} items: ask for fewer.")


def choose(rng: Random, options: Sequence[Choice]) -> Choice:
    """`rng.choice` at a third of its cost; the bias of 2**-53 is of no account here."""
    return options[int(rng.random() * len(options))]


def between(rng: Random, low: int, high: int) -> int:
    """A whole number from `low` to `high`, both included."""
    return low + int(rng.random() * (high - low + 1))


def terms(text: str, separator: str | None = None) -> tuple[str, ...]:
    """A list written as one string, which is easier on the eye than a hundred quotation marks."""
    return tuple(text.split(separator))


def listed(items: Sequence[str]) -> str:
    """`a, b, and c`, as the benchmark writes lists; two items are joined by `and` alone."""
    if len(items) < 3:
        return " and ".join(items)
    return ", ".join(items[:-1]) + ", and " + items[-1]


def lettered(options: Sequence[str]) -> str:
    """The option block of a multiple-choice question."""
    lines = [f"({chr(65 + index)}) {option}" for index, option in enumerate(options)]
    return "\nOptions:\n" + "\n".join(lines)


def worked(steps: str, target: str) -> str:
    """A worked answer: its steps, then the marked final answer."""
    return f"{steps}\n#### {target}"


def digest(text: str) -> bytes:
    """Eight bytes that stand for a text: the same on every machine and in every process."""
    return blake2b(text.encode(), digest_size=8).digest()


def is_held_out(skeleton: str) -> bool:
    """Whether a skeleton is kept out of training; decided by the skeleton alone."""
    return digest(skeleton)[0] % HELD_OUT_SHARE == 0


def is_real(question: str) -> bool:
    """Whether the real benchmark asks this, word for word; such items are never trained on."""
    return digest(essence(question)) in _real_digests()


def essence(question: str) -> str:
    """A question without its options: the same question beside other options is the same.

    Where a colon ends it, the options are the question.
    """
    asked = question.partition("\nOptions:")[0].strip()
    return question.strip() if asked.endswith(":") else asked


@cache
def _real_digests() -> frozenset[bytes]:
    packed = (PROCEDURAL / "real.bin").read_bytes()
    return frozenset(packed[start : start + 8] for start in range(0, len(packed), 8))


def paper_prompt(name: str, question: str) -> str:
    """The question inside the paper's template for this task."""
    template = _paper_templates().get(name)
    if template is None:
        raise OptionError(f"no paper template for task {name!r}: add it to templates.toml")
    return template.replace("{question}", question)


@cache
def _paper_templates() -> dict[str, str]:
    groups = tomllib.loads((PROCEDURAL / "templates.toml").read_text("utf-8"))["template"]
    return {name: group["text"].strip() for group in groups for name in group["tasks"]}
