"""Strategies side by side on problems with known answers: decoded in turns, shown as they come."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from wavefront.cli.output import stderr
from wavefront.viewer import can_animate, visible

if TYPE_CHECKING:
    from wavefront.lm import LM, Completion
    from wavefront.tasks.base import Grade, Sample, Task

PAPER = ("standard", "block", "wavefront")
# The paper's three, and our own wave, which takes whatever it is sure of.
STRATEGIES = {name: name for name in PAPER} | {
    "tide": "tide(cascade_rounds=8, horizon=64, selector=threshold(tau=0.98))",
}
# What a problem is called, and the task it comes from; none that runs what a model wrote.
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
DRAWS = 100  # of a problem, to find one whose worked answer has room on the canvas
PLACES_PER_STEP = 4  # a quarter of the usual forwards: quick, and where strategies differ
WIDEST = 110  # columns: the eye does not follow a longer line
ANSWER = 7  # columns of an answer
RIGHT, WRONG = "bold #009e73", "bold #d55e00"  # shades that colour-blind eyes can tell apart


class Problem(NamedTuple):
    """Something to solve."""

    kind: str
    task: Task
    sample: Sample


@dataclass
class Tally:
    """What a strategy made of the problems so far."""

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


def draw(model: LM, count: int, places: int, seed: int) -> list[Problem]:
    """Held-out problems, the same for the same seed, with answers that fit if there are any."""
    from wavefront import tasks

    found: list[Problem] = []
    for number, (kind, name) in enumerate(islice(cycle(KINDS), count)):
        task, random = tasks.load(name), Random(f"{seed} {number}")
        drawn: list[tuple[int, Sample]] = []
        while not drawn or (drawn[-1][0] >= places and len(drawn) < DRAWS):
            sample = task.sample(random, split="held-out")
            drawn.append((len(model.tokenizer.encode(sample.answer)), sample))
        _, sample = min(drawn, key=lambda one: one[0])
        found.append(Problem(kind, task, sample))
    return found


def compare(model: LM, console: Console, problems: Sequence[Problem], places: int) -> None:
    """Print a line per problem, then one per strategy."""
    steps = max(1, places // PLACES_PER_STEP)
    eos = end_policy(model)
    many = "One more" if len(problems) == 1 else f"{len(problems)} more"
    title = f"\n{many}, each on {places} places in at most {steps} forwards\n"
    console.print(Text(title, "bold"))
    console.print(_heading(console), soft_wrap=True)
    tallies = {name: Tally() for name in STRATEGIES}
    with _progress(len(problems) * len(STRATEGIES), console) as (lines, advance):
        for number, problem in enumerate(problems, 1):
            # The strategies take turns, so that a busy moment of the machine hits all of them. One
            # problem at a time, because a batch would wait for its longest answer.
            for name, tally in tallies.items():
                began = time.monotonic()
                made: Completion = model.generate(
                    problem.sample.prompt,
                    strategy=STRATEGIES[name],
                    max_new_tokens=places,
                    steps=steps,
                    eos=eos,
                )
                tally.add(problem, made, time.monotonic() - began)
                advance()
            grades = [tally.grades[-1] for tally in tallies.values()]
            lines.print(_row(console, number, problem, grades), soft_wrap=True)
    _summarise(console, tallies)


def end_policy(model: LM) -> str:
    """Stop at the end of an answer, where the model can write one."""
    return "stop" if model.stop_ids else "keep"


@contextlib.contextmanager
def _progress(total: int, console: Console) -> Iterator[tuple[Console, Callable[[], None]]]:
    """The console for lines, and what moves a bar on standard error."""
    shown = stderr()
    if not moves(shown):
        yield console, lambda: None
        return
    # On one terminal the bar has to know of every line, or it would be drawn across them.
    lines = shown if console.is_terminal else console
    columns = (TextColumn("    decoding"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=shown, transient=True, redirect_stdout=False) as bar:
        task = bar.add_task("", total=total)
        yield lines, lambda: bar.advance(task)


def moves(console: Console) -> bool:
    """May things be drawn over? Whoever wants no colour is taken to want no escape codes."""
    return can_animate(console) and not console.no_color


def mark(console: Console, correct: bool) -> Text:
    """A sign for right or wrong that the console can show."""
    right, wrong = "✓✗" if console.encoding.lower().startswith("utf") else "+-"
    return Text(right, RIGHT) if correct else Text(wrong, WRONG)


def cut(text: str, width: int) -> str:
    """The text on one line of exactly `width` columns, with a sign where something is left out."""
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
    """As much of a question as there is room for; a few letters of it would say nothing."""
    others = 4 + 13 + ANSWER + len(STRATEGIES) * (ANSWER + 4)
    room = min(console.width, WIDEST) - others - 2
    return f"{cut(text, room)}  " if room >= 10 else ""


def _summarise(console: Console, tallies: Mapping[str, Tally]) -> None:
    form = "{:<9}  {:>7}  {:>8}  {:>7}  {:>14}  "
    titles = form.format("strategy", "right", "forwards", "seconds", "tokens/forward")
    console.print(Text(f"\n{titles}by problem", "bold"), soft_wrap=True)
    for name, tally in tallies.items():
        right = sum(grade.correct for grade in tally.grades)
        share, rate = f"{right}/{len(tally.grades)}", tally.tokens / tally.forwards
        cells = (name, share, tally.forwards, f"{tally.seconds:.1f}", f"{rate:.2f}")
        row = Text(form.format(*cells))
        for grade in tally.grades:
            row.append(mark(console, grade.correct))
        console.print(row, soft_wrap=True)
