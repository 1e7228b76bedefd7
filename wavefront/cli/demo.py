"""`wavefront demo`: the wave on one problem, then four strategies side by side on a dozen."""

from __future__ import annotations

import contextlib
import shlex
import shutil
import sys
import time
from pathlib import Path
from random import Random
from textwrap import fill
from typing import TYPE_CHECKING, Annotated

from rich.console import Console
from rich.text import Text

from wavefront.cli.demo_compare import (
    STRATEGIES,
    WIDEST,
    compare,
    cut,
    draw,
    end_policy,
    mark,
    moves,
)
from wavefront.cli.options import option
from wavefront.cli.output import stderr
from wavefront.core.errors import check_int
from wavefront.viewer import watch

if TYPE_CHECKING:
    from wavefront.lm import LM, Completion

EXAMPLES = """\
Examples
wavefront demo
wavefront demo --seed 7
wavefront demo --problems 36 --places 96 > demo.txt
"""
LIVE_SEED = 8  # of the first problem, chosen because the model solves it; the rest are as drawn
PAUSE = 0.03  # seconds after each step: a small model is too quick to be watched
TOY_PROMPT = "Tell me a story about the sea."
NOTE = f"""\
tide, our own wave, takes all that it is sure of, in rounds within a step; here
{STRATEGIES["tide"]}.
A few problems make a picture, not a measurement; docs/results.md has those."""
YOUR_TURN = """\
  Q="Ada has 3 boxes with 8 coins each. She loses 4 of them. How many are left?"
  wavefront generate "$Q" -n 64 --watch
  wavefront compare "$Q" -n 64 -s block -s wavefront
  wavefront strategies          # the strategies and their options
  wavefront demo --seed 1      # other problems"""


def demo(
    *,
    problems: Annotated[
        int, option(None, "N", "How many to compare the strategies on; by default 12.")
    ] = 12,
    places: Annotated[
        int, option(None, "N", "Of the canvas that an answer is written on; by default 48.")
    ] = 48,
    seed: Annotated[int, option(None, "N", "Of the problems to compare on; by default 0.")] = 0,
) -> None:
    """Watch the built-in model solve a problem, then see four strategies side by side.

    The problems are of kinds that the model was trained on, but none of these was in its training.
    Takes less than a minute on two cores, no file and no network.
    """
    check_int("problems", problems, 1, 1000)
    check_int("places", places, 16, 512)
    check_int("seed", seed, 0)
    console = _console()
    with _loading():
        from wavefront import lm
        from wavefront.models import builtin

        model = lm.load(builtin.DEFAULT)
    if builtin.directory(model.name) is None:
        _show_untrained(model, console, places)
        return
    _solve(model, console, places + places // 3)  # its answer is longer than those that follow
    compare(model, console, draw(model, problems, places, seed), places)
    console.print(Text(f"\n{NOTE}"))
    _say(console, "Your turn", "\n".join([*_activation(), YOUR_TURN]))


def _activation() -> list[str]:
    """What makes `wavefront` a command in a shell that does not know this environment."""
    home = Path(sys.prefix)
    script, activate = home / "bin" / "wavefront", home / "bin" / "activate"
    if not activate.is_file() or shutil.which("wavefront") == str(script):
        return []
    here = Path.cwd()
    named = activate.relative_to(here) if activate.is_relative_to(here) else activate
    return [f"  source {shlex.quote(str(named))}"]


def _console() -> Console:
    """Where results go; where colour is not wanted, without a single escape code."""
    console = Console(highlight=False, markup=False, emoji=False)
    if console.no_color:
        console = Console(highlight=False, markup=False, emoji=False, color_system=None)
    return console


def _loading() -> contextlib.AbstractContextManager[object]:
    console = stderr()
    return console.status("loading the model") if moves(console) else contextlib.nullcontext()


def _say(console: Console, title: str, text: str) -> None:
    console.print(Text(f"\n{title}", "bold"))
    console.print(text, soft_wrap=True)


def _solve(model: LM, console: Console, places: int) -> None:
    """One problem, live."""
    from wavefront import tasks

    task = tasks.load("gsm")
    sample = task.sample(Random(LIVE_SEED), split="held-out")
    console.print(Text(f"\nA problem that {model.name}, the built-in model, never saw\n", "bold"))
    width = min(console.width, WIDEST)
    question = fill(sample.prompt, width, initial_indent="  ", subsequent_indent="  ")
    console.print(Text(f"{question}\n"))
    completion = _watch(model, console, sample.prompt, places)
    grade = task.grade(sample, completion.text)
    says = f"\nIt answers {grade.answer or 'nothing'}"
    verdict = f"{says}, which is right " if grade.correct else f"{says}; {sample.target} is right "
    console.print(Text(verdict).append(mark(console, grade.correct)))


def _watch(model: LM, console: Console, prompt: str, places: int) -> Completion:
    moving = moves(console)
    eos = end_policy(model)
    stream = model.stream(prompt, strategy="wavefront", max_new_tokens=places, eos=eos)
    delay = PAUSE if moving else 0.0
    for _ in watch(stream, console=console, live=moving, delay=delay, prompt=False):
        pass
    return stream.completions[0]


def _show_untrained(model: LM, console: Console, places: int) -> None:
    """What there is to see of a model whose answers cannot be right."""
    _say(console, f"{model.name}, a model that was never trained, is asked", f"  {TOY_PROMPT}\n")
    _watch(model, console, TOY_PROMPT, places)
    line = "{:<9}  {:>8}  {:>7}  "
    titles = line.format("strategy", "forwards", "seconds")
    console.print(Text(f"\n{titles}answer", "bold"))
    for name in STRATEGIES:
        began = time.monotonic()
        eos = end_policy(model)
        made = model.generate(TOY_PROMPT, strategy=name, max_new_tokens=places, eos=eos)
        seconds = f"{time.monotonic() - began:.2f}"
        answer = cut(made.text, max(1, console.width - len(titles))).rstrip()
        console.print(Text(line.format(name, made.forwards, seconds) + answer))
    _say(console, "Your turn", '  wavefront generate "Hello" --watch')
