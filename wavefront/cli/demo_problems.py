"""Compare strategies on problems with known answers."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from random import Random
from textwrap import fill
from typing import TYPE_CHECKING, NamedTuple

from rich.console import Console
from rich.text import Text

from wavefront.cli.demo_stories import PAPER, WIDEST, moves
from wavefront.cli.output import ProgressBar, stderr

if TYPE_CHECKING:
    from wavefront.lm import LM, Completion
    from wavefront.tasks.base import Grade, Sample, Task

# The name of a kind of problem, and its task. None of these tasks runs model-written code.
KINDS = (
    ("logic", "boolean_expressions"),
    ("brackets", "dyck_languages"),
    ("counting", "object_counting"),
    ("story", "gsm"),
    ("story", "gsm"),
    ("story", "gsm"),
    ("adjectives", "hyperbaton"),
    ("web of lies", "web_of_lies"),
    ("navigation", "navigate"),
    ("deduction", "logical_deduction_three_objects"),
    ("tracking", "tracking_shuffled_objects_three_objects"),
    ("colours", "reasoning_about_colored_objects"),
)
LENGTH = 48  # tokens of an answer
DRAWS = 100  # tries to find a problem whose worked answer fits into the length
TOKENS_PER_STEP = 4  # fast, and few enough steps for strategies to differ
RIGHT, WRONG = "bold #009e73", "bold #d55e00"  # distinguishable for colour-blind readers


class Problem(NamedTuple):
    """A problem with a known answer."""

    kind: str
    task: Task
    sample: Sample


@dataclass
class Score:
    """The results of one strategy so far."""

    grades: list[Grade] = field(default_factory=list)
    tokens: int = 0  # of the answers, up to their ends
    forwards: int = 0
    seconds: float = 0.0

    def add(self, problem: Problem, completion: Completion, seconds: float) -> None:
        """Count an answer."""
        self.grades.append(problem.task.grade(problem.sample, completion.text))
        self.tokens += len(completion.tokens)
        self.forwards += completion.forwards
        self.seconds += seconds


def draw_problems(model: LM, count: int, *, seed: int, length: int = LENGTH) -> list[Problem]:
    """Draw held-out problems, if possible with answers that fit into `length` tokens."""
    from wavefront import tasks

    found: list[Problem] = []
    for number, (kind, name) in enumerate(islice(cycle(KINDS), count)):
        task, random = tasks.load(name), Random(f"{seed} {number}")
        drawn: list[tuple[int, Sample]] = []
        while not drawn or (drawn[-1][0] >= length and len(drawn) < DRAWS):
            sample = task.sample(random, split="held-out")
            drawn.append((len(model.tokenizer.encode(sample.answer)), sample))
        _, sample = min(drawn, key=lambda one: one[0])
        found.append(Problem(kind, task, sample))
    return found


def compare_problems(
    model: LM, console: Console, problems: Sequence[Problem], *, length: int = LENGTH
) -> None:
    """Solve every problem with every strategy, and print one line per strategy."""
    from wavefront.models import builtin

    steps = max(1, length // TOKENS_PER_STEP)
    many = "One small problem" if len(problems) == 1 else f"{len(problems)} small problems"
    title = f"{many}, which {model.name} has never seen"
    console.print(Text(f"\n{title}\n", "bold"))
    kinds = ", ".join(dict.fromkeys(problem.kind for problem in problems))
    about = f"{model.name}: {builtin.SUMMARIES[model.name]}."
    settings = f"Kinds: {kinds}. Answers have {length} tokens, in at most {steps} forward passes."
    console.print(fill(f"{about} {settings}", min(console.width, WIDEST)))
    scores = {name: Score() for name in PAPER}
    total = len(problems) * len(scores)
    with ProgressBar("decoding", total=total, shown=moves(stderr())) as bar:
        for problem in problems:
            # The strategies take turns, so that other load on the machine affects them equally.
            # They decode one problem at a time, because a batch waits for its longest answer.
            for name, score in scores.items():
                began = time.monotonic()
                made: Completion = model.generate(
                    problem.sample.prompt, strategy=name, max_new_tokens=length, steps=steps
                )
                score.add(problem, made, time.monotonic() - began)
                bar.advance()
    _print_scores(console, scores)


def mark(console: Console, correct: bool) -> Text:
    """Return a mark for right or wrong that the console can encode."""
    right, wrong = "✓✗" if console.encoding.lower().startswith("utf") else "+-"
    return Text(right, RIGHT) if correct else Text(wrong, WRONG)


def _print_scores(console: Console, scores: Mapping[str, Score]) -> None:
    form = "{:<9}  {:>7}  {:>8}  {:>7}  {:>14}  "
    titles = form.format("strategy", "right", "forwards", "seconds", "tokens/forward")
    console.print(Text(f"\n{titles}by problem", "bold"), soft_wrap=True)
    for name, score in scores.items():
        right = sum(grade.correct for grade in score.grades)
        share, rate = f"{right}/{len(score.grades)}", score.tokens / score.forwards
        cells = (name, share, score.forwards, f"{score.seconds:.1f}", f"{rate:.2f}")
        row = Text(form.format(*cells))
        for grade in score.grades:
            row.append(mark(console, grade.correct))
        console.print(row, soft_wrap=True)
    console.print()
