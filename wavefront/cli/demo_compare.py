"""Compare strategies on problems with known answers. The demo prints each row as it is decoded."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from rich.console import Console
from rich.text import Text

from wavefront.cli.decode import with_default_eos
from wavefront.cli.output import ProgressBar, stderr
from wavefront.viewer import can_animate, visible

if TYPE_CHECKING:
    from wavefront.lm import LM, Completion
    from wavefront.tasks.base import Grade, Sample, Task

PAPER = ("standard", "block", "wavefront")
# The paper's three, and our own.
STRATEGIES = {name: name for name in PAPER} | {
    "tide": "tide(cascade_rounds=8, horizon=64, selector=threshold(tau=0.98))"
}
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
DRAWS = 100  # tries to find a problem whose worked answer fits into the length
TOKENS_PER_STEP = 4  # fast, and few enough steps for strategies to differ
WIDEST = 110  # columns: longer lines are hard to read
ANSWER = 7  # columns of an answer
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


def draw(model: LM, count: int, *, length: int, seed: int) -> list[Problem]:
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


def compare(model: LM, console: Console, problems: Sequence[Problem], *, length: int) -> None:
    """Print one line per problem, then one per strategy."""
    steps = max(1, length // TOKENS_PER_STEP)
    options = with_default_eos({"max_new_tokens": length, "steps": steps}, model.stop_ids)
    many = "One more" if len(problems) == 1 else f"{len(problems)} more"
    title = f"\n{many}, each with {length} tokens in at most {steps} forward passes\n"
    console.print(Text(title, "bold"))
    console.print(_heading(console), soft_wrap=True)
    scores = {name: Score() for name in STRATEGIES}
    total = len(problems) * len(STRATEGIES)
    with ProgressBar("    decoding", total=total, shown=moves(stderr())) as bar:
        # On one terminal, lines go through the bar's console, or the bar would overwrite them.
        lines = bar.console if console.is_terminal and moves(bar.console) else console
        for number, problem in enumerate(problems, 1):
            # The strategies take turns, so that other load on the machine affects them equally.
            # They decode one problem at a time, because a batch waits for its longest answer.
            for name, score in scores.items():
                began = time.monotonic()
                made: Completion = model.generate(
                    problem.sample.prompt, strategy=STRATEGIES[name], **options
                )
                score.add(problem, made, time.monotonic() - began)
                bar.advance()
            grades = [score.grades[-1] for score in scores.values()]
            lines.print(_row(console, number, problem, grades), soft_wrap=True)
    _summarise(console, scores)


def moves(console: Console) -> bool:
    """Can this console animate? NO_COLOR turns animation off too."""
    return can_animate(console) and not console.no_color


def mark(console: Console, correct: bool) -> Text:
    """Return a mark for right or wrong that the console can encode."""
    right, wrong = "✓✗" if console.encoding.lower().startswith("utf") else "+-"
    return Text(right, RIGHT) if correct else Text(wrong, WRONG)


def cut(text: str, width: int) -> str:
    """Return the text on one line of exactly `width` columns, with an ellipsis if it is cut."""
    line = Text(" ".join(visible(text).replace("⏎", " ").split()))
    line.truncate(width, overflow="ellipsis", pad=True)
    return line.plain


def _heading(console: Console) -> Text:
    names = "".join(f"  {name:<{ANSWER + 2}}" for name in STRATEGIES)
    line = f" #  {'kind':<11}  {_question(console, 'question')}{'answer':<{ANSWER}}{names}"
    return Text(line.rstrip(), "bold")


def _row(console: Console, number: int, problem: Problem, grades: Sequence[Grade]) -> Text:
    row = Text(f"{number:>2}  {problem.kind:<11}  ")
    row.append(_question(console, problem.sample.prompt), "dim")
    row.append(cut(problem.sample.target, ANSWER))
    for grade in grades:
        row.append(f"  {cut(grade.answer or 'none', ANSWER)} ")
        row.append(mark(console, grade.correct))
    return row


def _question(console: Console, text: str) -> str:
    """Return as much of a question as fits, or nothing if that is under ten characters."""
    others = 4 + 13 + ANSWER + len(STRATEGIES) * (ANSWER + 4)
    room = min(console.width, WIDEST) - others - 2
    return f"{cut(text, room)}  " if room >= 10 else ""


def _summarise(console: Console, scores: Mapping[str, Score]) -> None:
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
