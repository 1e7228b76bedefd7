"""`wavefront demo`: decode one problem live, then compare four strategies on a dozen."""

from __future__ import annotations

import shlex
import shutil
import sys
import time
from pathlib import Path
from random import Random
from textwrap import fill
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from wavefront.cli.command import Command
from wavefront.cli.decode import with_default_eos
from wavefront.cli.demo_compare import STRATEGIES, WIDEST, compare, cut, draw, mark, moves
from wavefront.cli.options import ItemsSeed, option
from wavefront.cli.output import loading_status, stderr
from wavefront.core.errors import check_int
from wavefront.viewer import watch

if TYPE_CHECKING:
    from wavefront.lm import LM, Completion

EXAMPLES = """\
Examples
wavefront demo
wavefront demo --items-seed 7
wavefront demo --items 36 -n 96 > demo.txt
"""
LIVE_SEED = 8  # of the first problem, chosen because the model solves it; the rest are as drawn
PAUSE = 0.03  # seconds after each step: a small model is too fast to watch
TOY_PROMPT = "Tell me a story about the sea."
NOTE = f"""\
tide, our own strategy, commits every token that it is sure of, in rounds; here
{STRATEGIES["tide"]}.
These few problems are an illustration. docs/results.md has measurements."""
YOUR_TURN = """\
  Q="Ada has 3 boxes with 8 coins each. She loses 4 of them. How many are left?"
  wavefront generate "$Q" -n 64 --watch
  wavefront compare "$Q" -n 64 -s block -s wavefront
  wavefront list strategies        # the strategies and their options
  wavefront demo --items-seed 1    # other problems"""
app = typer.Typer(add_completion=False)


@app.command(cls=Command, epilog=EXAMPLES)
def demo(
    *,
    items: Annotated[
        int,
        option(None, "N", "Problems to compare the strategies on. Default: 12.", "--items", "-i"),
    ] = 12,
    max_new_tokens: Annotated[
        int, option(None, "N", "Tokens per answer. Default: 48.", "--max-new-tokens", "-n")
    ] = 48,
    items_seed: ItemsSeed = 0,
) -> None:
    """Watch the built-in model decode, then compare four strategies.

    The model was trained on problems of these kinds, but not on these problems. The demo takes less
    than a minute on two cores. It needs no file and no network.
    """
    check_int("items", items, 1, 1000)
    check_int("max_new_tokens", max_new_tokens, 16, 512)
    check_int("items_seed", items_seed, 0)
    console = _console()
    with loading_status(shown=moves(stderr())):
        from wavefront import lm
        from wavefront.models import builtin

        model = lm.load(builtin.DEFAULT)
    if builtin.directory(model.name) is None:
        _show_untrained(model, console, max_new_tokens)
        return
    _solve(model, console, max_new_tokens * 4 // 3)  # its answer is longer than the others
    problems = draw(model, items, length=max_new_tokens, seed=items_seed)
    compare(model, console, problems, length=max_new_tokens)
    console.print(Text(f"\n{NOTE}"))
    _say(console, "Your turn", "\n".join([*_activation(), YOUR_TURN]))


def _activation() -> list[str]:
    """Return the command that activates this environment, if the shell needs it."""
    home = Path(sys.prefix)
    script, activate = home / "bin" / "wavefront", home / "bin" / "activate"
    if not activate.is_file() or shutil.which("wavefront") == str(script):
        return []
    here = Path.cwd()
    named = activate.relative_to(here) if activate.is_relative_to(here) else activate
    return [f"  source {shlex.quote(str(named))}"]


def _console() -> Console:
    """Return the console for results. It writes no escape code if NO_COLOR is set."""
    console = Console(highlight=False, markup=False, emoji=False)
    if console.no_color:
        console = Console(highlight=False, markup=False, emoji=False, color_system=None)
    return console


def _say(console: Console, title: str, text: str) -> None:
    console.print(Text(f"\n{title}", "bold"))
    console.print(text, soft_wrap=True)


def _solve(model: LM, console: Console, length: int) -> None:
    """Decode one problem live and say whether the answer is right."""
    from wavefront import tasks

    task = tasks.load("gsm")
    sample = task.sample(Random(LIVE_SEED), split="held-out")
    console.print(
        Text(f"\nA problem that {model.name}, the built-in model, has never seen\n", "bold")
    )
    width = min(console.width, WIDEST)
    question = fill(sample.prompt, width, initial_indent="  ", subsequent_indent="  ")
    console.print(Text(f"{question}\n"))
    completion = _watch(model, console, sample.prompt, length)
    grade = task.grade(sample, completion.text)
    says = f"\nIt answers {grade.answer or 'nothing'}"
    verdict = f"{says}, which is right " if grade.correct else f"{says}; {sample.target} is right "
    console.print(Text(verdict).append(mark(console, grade.correct)))


def _watch(model: LM, console: Console, prompt: str, length: int) -> Completion:
    moving = moves(console)
    options = with_default_eos({"strategy": "wavefront"}, model.stop_ids)
    stream = model.stream(prompt, max_new_tokens=length, **options)
    delay = PAUSE if moving else 0.0
    for _ in watch(stream, console=console, live=moving, delay=delay, prompt=False):
        pass
    return stream.completions[0]


def _show_untrained(model: LM, console: Console, length: int) -> None:
    """Show the decodes of a model whose answers cannot be right."""
    _say(console, f"{model.name}, a model that was never trained, answers", f"  {TOY_PROMPT}\n")
    _watch(model, console, TOY_PROMPT, length)
    line = "{:<9}  {:>8}  {:>7}  "
    titles = line.format("strategy", "forwards", "seconds")
    console.print(Text(f"\n{titles}answer", "bold"))
    for name in STRATEGIES:
        began = time.monotonic()
        options = with_default_eos({"strategy": name}, model.stop_ids)
        made = model.generate(TOY_PROMPT, max_new_tokens=length, **options)
        seconds = f"{time.monotonic() - began:.2f}"
        answer = cut(made.text, max(1, console.width - len(titles))).rstrip()
        console.print(Text(line.format(name, made.forwards, seconds) + answer))
    _say(console, "Your turn", '  wavefront generate "Hello" --watch')
