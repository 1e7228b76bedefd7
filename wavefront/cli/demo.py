"""`wavefront demo`: write a story live, compare strategies on it, and solve small problems."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from wavefront.cli.command import Command
from wavefront.cli.demo_problems import compare_problems, draw_problems
from wavefront.cli.demo_stories import (
    FAST,
    PAPER,
    WIDEST,
    Story,
    continue_story,
    draw_opening,
    moves,
    print_qualities,
    print_stories,
)
from wavefront.cli.options import ItemsSeed, option
from wavefront.cli.output import loading_status, stderr
from wavefront.core.errors import check_int
from wavefront.viewer import watch

if TYPE_CHECKING:
    from wavefront.lm import LM
    from wavefront.tasks.base import Sample

EXAMPLES = """\
Examples
wavefront demo
wavefront demo --items-seed 7
wavefront demo --items 36 -n 192 > demo.txt
"""
PAUSE = 0.02  # seconds after each step: a small model is too fast to watch
ABOUT_QUALITY = """\
"original" is the autoregressive model that tale was made from. Its own text is
the reference, and it judges the others: nats per token are their mean negative
log-likelihood. Lower is more likely, not better: short or repetitive text is
likely too. So read it with the length and the share of different trigrams.
One story is an anecdote. docs/results.md reports what was measured over many."""
ABOUT_PROBLEMS = "These few problems are an illustration. docs/results.md has measurements."
YOUR_TURN = """\
  wavefront generate -m tale "Once upon a time there was a fox who" --watch
  wavefront infill "Once upon a time there was a <mask:6>. She <mask:12>."
  wavefront generate "I have two figs and a pear. How many fruits?" -n 24
  wavefront list strategies        # the strategies and their options
  wavefront demo --items-seed 1    # another opening and other problems"""
app = typer.Typer(add_completion=False)


@app.command(cls=Command, epilog=EXAMPLES)
def demo(
    *,
    items: Annotated[
        int,
        option(None, "N", "Problems to compare the strategies on. Default: 12.", "--items", "-i"),
    ] = 12,
    max_new_tokens: Annotated[
        int, option(None, "N", "Tokens per story. Default: 160.", "--max-new-tokens", "-n")
    ] = 160,
    items_seed: ItemsSeed = 0,
) -> None:
    """Watch a built-in model write a story, and compare strategies.

    The openings and the problems were not used to train the models. The demo takes about a minute
    on two cores. It needs no files and no network.
    """
    check_int("items", items, 1, high=1000)
    check_int("max_new_tokens", max_new_tokens, 16, high=512)
    check_int("items_seed", items_seed, 0)
    console = _console()
    with loading_status(shown=moves(stderr())):
        from wavefront import lm
        from wavefront.models import builtin

        tale = lm.load(builtin.STORIES)
    opening = draw_opening(items_seed)
    live = _write_story(tale, console, opening.prompt, length=max_new_tokens)
    _compare_stories(tale, console, opening, live=live, length=max_new_tokens)
    with loading_status(shown=moves(stderr())):
        ripple = lm.load(builtin.DEFAULT)
    compare_problems(ripple, console, draw_problems(ripple, items, seed=items_seed))
    console.print(ABOUT_PROBLEMS, soft_wrap=True)
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


def _write_story(tale: LM, console: Console, opening: str, *, length: int) -> Story:
    """Say what the model is, and continue the opening live with the wave."""
    from wavefront.models import builtin

    width = min(console.width, WIDEST)
    console.print(fill(f"{tale.name}: {builtin.SUMMARIES[tale.name]}.", width))
    console.print(Text("\nIt continues an opening that it has never seen\n", "bold"))
    console.print(fill(opening, width, initial_indent="  ", subsequent_indent="  "))
    console.print()
    moving = moves(console)
    stream = tale.stream(opening, max_new_tokens=length, strategy="wavefront")
    delay = PAUSE if moving else 0.0
    for _ in watch(stream, console=console, live=moving, delay=delay, prompt=False):
        pass
    return Story("wavefront", 1, stream.completions[0])


def _compare_stories(
    tale: LM, console: Console, opening: Sample, *, live: Story, length: int
) -> None:
    """Continue the same opening with the other strategies and with fewer steps."""
    shown: list[Story] = []
    gap = "\n" if moves(console) else ""  # a snapshot ends with a blank line
    for rate, title in ((1, "one token"), (FAST, "four tokens")):
        names = [name for name in PAPER if rate > 1 or name != live.name]
        stories = continue_story(tale, opening.prompt, names, length=length, tokens_per_step=rate)
        if rate == 1:
            stories = [*stories, live]
        console.print(Text(f"{gap}The same opening, {title} per step\n", "bold"))
        gap = "\n"
        print_stories(console, stories)
        shown += stories
    console.print()
    print_qualities(tale, console, opening, stories=shown, length=length)
    console.print(f"\n{ABOUT_QUALITY}", soft_wrap=True)
