"""The definition of a task: items to ask, and a grade for each answer.

`Procedural` is the base class of generated tasks. It assigns items to splits, writes prompts and
grades answers. A subclass only writes `draft`, which makes one item.
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

from wavefront.core.errors import OptionError, quote
from wavefront.core.spec import Spec
from wavefront.tasks.grading import Grade
from wavefront.tasks.grading.final_answer import grade_final

Split = Literal["train", "held-out", "held-out-template"]
Style = Literal["bare", "paper"]
Choice = TypeVar("Choice")

SPLITS: tuple[Split, ...] = ("train", "held-out", "held-out-template")
STYLES: tuple[Style, ...] = ("bare", "paper")
HELD_OUT_SHARE = 16  # one skeleton in sixteen is never used for training
DEFAULT_COUNT = 100  # items of a generated task
DRAWS_PER_ITEM = 50  # attempts for each requested item, so that a small task raises an error
MAX_DRAFTS = 20_000  # attempts for one item, so that a task without held-out skeletons does too
PROCEDURAL = Path(__file__).parent / "procedural"
EMPTY: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Sample:
    """One item: the prompt, a worked answer ("" if there is none), and the final answer."""

    id: str
    prompt: str
    answer: str
    target: str
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Ask:
    """Which items of a task to use, and how to write their prompts."""

    count: int | None = None  # None: every item of a benchmark; 100 items of a generated task
    seed: int = 0  # selects the items
    split: str = ""  # empty: the task's default
    style: Style = "paper"
    shots: int = 0  # worked examples before the question
    data: str = ""  # the folder of the data files, or "hub"; empty: WAVEFRONT_DATA
    half: str = ""  # "tune" or "report": only this half of the items; empty: all


class Task(Protocol):
    """The interface that evaluation uses: items to ask, and a grade for each answer."""

    version: ClassVar[str]
    executes: ClassVar[bool]  # whether grading runs model-written code

    @property
    def name(self) -> str: ...
    def items(self, ask: Ask) -> list[Sample]: ...
    def grade(self, sample: Sample, text: str) -> Grade: ...


class GeneratedTask(Task, Protocol):
    """A task that can generate any number of items. Training needs this interface."""

    def sample(self, rng: Random, *, split: Split = "train", style: Style = "bare") -> Sample: ...


class Draft(NamedTuple):
    """One generated item before it is assigned to a split.

    Two items with the same `skeleton` (template and numbers, not names) are the same exercise.
    `original` is the question in the benchmark's wording, if `question` uses another wording. A
    rephrased benchmark item still counts as a benchmark item.
    """

    question: str
    answer: str
    target: str
    skeleton: str
    extra: Mapping[str, Any] = EMPTY
    original: str = ""


class Wordings(NamedTuple):
    """Wordings of one question: the original, paraphrases for training, and reserved ones."""

    real: str
    other: tuple[str, ...]
    reserved: tuple[str, ...]

    def ask(self, rng: Random, reserved: bool, *parts: str, after: str = "") -> tuple[str, str]:
        """Return the question and its original wording.

        Five of six training items use the original, so that paraphrases add to the benchmark's
        wording without replacing it.
        """
        original = self.real.format(*parts) + after
        if reserved:
            return choose(rng, self.reserved).format(*parts) + after, original
        if not self.other or rng.random() < 5 / 6:
            return original, original
        return choose(rng, self.other).format(*parts) + after, original


class Procedural(Spec):
    """The base class of generated tasks. A subclass writes `draft`."""

    version: ClassVar[str] = "1"
    executes: ClassVar[bool] = False
    kind: ClassVar[str] = "number"

    @property
    def name(self) -> str:
        """The name of the task's file, spelled as in the benchmark."""
        return type(self).__module__.rpartition(".")[2]

    def draft(self, rng: Random, reserved: bool) -> Draft:
        """Make one item. With `reserved`, use a wording or structure that training never sees."""
        raise NotImplementedError

    def sample(self, rng: Random, *, split: Split = "train", style: Style = "bare") -> Sample:
        """Draw items until one belongs to `split` and is not a real benchmark item."""
        if split not in SPLITS or style not in STYLES:
            raise OptionError(
                f"split must be one of {SPLITS} and style one of {STYLES},"
                f" not {split!r} and {style!r}."
            )
        reserved = split == "held-out-template"
        for _ in range(MAX_DRAFTS):
            draft = self.draft(rng, reserved)
            kept_out = is_held_out(f"{self.name}|{draft.skeleton}")
            if kept_out == (split != "train") and not is_real(draft.original or draft.question):
                break
        else:
            raise OptionError(
                f"{self.name}: none of {MAX_DRAFTS} drafts belongs to {split}; add more skeletons."
            )
        prompt = draft.question if style == "bare" else paper_prompt(self.name, draft.question)
        key = digest(draft.question).hex()
        return Sample(f"{self.name}/{split}/{key}", prompt, draft.answer, draft.target, draft.extra)

    def items(self, ask: Ask) -> list[Sample]:
        return draw_items(self, ask)

    def final_kind(self, sample: Sample) -> str:
        """Return what the final answer of an item is; see `grade_final`."""
        return self.kind

    def grade(self, sample: Sample, text: str) -> Grade:
        """Compare the final answer in `text` with the target."""
        return grade_final(self.final_kind(sample), sample.target, text)


@dataclass(frozen=True)
class ObjectsTask(Procedural):
    """The base class of tasks about three, five or seven objects, with a name for each number."""

    SIZES: ClassVar[Mapping[int, str]] = {3: "three", 5: "five", 7: "seven"}

    objects: int = 3
    kind = "choice"

    def __post_init__(self) -> None:
        if type(self.objects) is not int or self.objects not in self.SIZES:
            raise OptionError(
                f"objects must be 3, 5 or 7, not {quote(self.objects)}.",
                option="objects",
                value=self.objects,
            )

    @property
    def name(self) -> str:
        return f"{super().name}_{self.SIZES[self.objects]}_objects"


def draw_items(task: GeneratedTask, ask: Ask) -> list[Sample]:
    """Draw distinct items.

    The same seed gives the same items. A longer list starts with the items of a shorter one.
    """
    if ask.shots:
        raise OptionError(f"{task.name} does not support examples; leave out shots.")
    split: Any = ask.split or "held-out"
    wanted, rng = ask.count or DEFAULT_COUNT, Random(f"{ask.seed} {task.name} {split}")
    found: dict[str, Sample] = {}
    for _ in range(DRAWS_PER_ITEM * wanted):
        sample = task.sample(rng, split=split, style=ask.style)
        found.setdefault(sample.id, sample)
        if len(found) == wanted:
            return list(found.values())
    raise OptionError(f"{task.name} has only {len(found)} {split} items; request fewer.")


def choose(rng: Random, options: Sequence[Choice]) -> Choice:
    """Choose one option. Three times as fast as `rng.choice`, with a negligible bias of 2**-53."""
    return options[int(rng.random() * len(options))]


def draw_int(rng: Random, low: int, high: int) -> int:
    """Draw an integer from `low` to `high`, both included."""
    return low + int(rng.random() * (high - low + 1))


def split_words(text: str, separator: str | None = None) -> tuple[str, ...]:
    """Split a string into words. Easier to read than a long list of quoted strings."""
    return tuple(text.split(separator))


def join_list(items: Sequence[str]) -> str:
    """Join items as `a, b, and c`, as the benchmark does. Two items become `a and b`."""
    if len(items) < 3:
        return " and ".join(items)
    return ", ".join(items[:-1]) + ", and " + items[-1]


def option_block(options: Sequence[str]) -> str:
    """Format the options of a multiple-choice question."""
    lines = [f"({chr(65 + index)}) {option}" for index, option in enumerate(options)]
    return "\nOptions:\n" + "\n".join(lines)


def worked_answer(steps: str, target: str) -> str:
    """Format a worked answer: the steps, then the marked final answer."""
    return f"{steps}\n#### {target}"


def digest(text: str) -> bytes:
    """Hash a text to eight bytes. The result is the same on every machine and in every process."""
    return blake2b(text.encode(), digest_size=8).digest()


def is_held_out(skeleton: str) -> bool:
    """Return whether a skeleton is excluded from training. Depends only on the skeleton."""
    return digest(skeleton)[0] % HELD_OUT_SHARE == 0


def is_real(question: str) -> bool:
    """Return whether the real benchmark has this question. Such items are never generated."""
    return digest(question_key(question)) in _real_digests()


def question_key(question: str) -> str:
    """Return the question without its options, so that other options do not make it a new question.

    A question that ends with a colon keeps its options, because they are the question.
    """
    asked = question.partition("\nOptions:")[0].strip()
    return question.strip() if asked.endswith(":") else asked


@cache
def _real_digests() -> frozenset[bytes]:
    packed = (PROCEDURAL / "real.bin").read_bytes()
    return frozenset(packed[start : start + 8] for start in range(0, len(packed), 8))


def paper_prompt(name: str, question: str) -> str:
    """Put the question into the paper's template for this task; your own task has none."""
    template = _paper_templates().get(name)
    return question if template is None else template.replace("{question}", question)


@cache
def _paper_templates() -> dict[str, str]:
    groups = tomllib.loads((PROCEDURAL / "templates.toml").read_text("utf-8"))["template"]
    return {name: group["text"].strip() for group in groups for name in group["tasks"]}
