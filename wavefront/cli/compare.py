"""`wavefront compare`: one prompt, several strategies, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from wavefront.cli.decode import prepare, record, settled
from wavefront.cli.demo_compare import PAPER, cut
from wavefront.cli.generate import read
from wavefront.cli.option_groups import given
from wavefront.cli.options import (
    DecodingOptions,
    LengthOptions,
    ModelOptions,
    PlainOptions,
    Prompt,
    PromptFile,
    UsageError,
    option,
)
from wavefront.cli.output import say_json
from wavefront.player.visible_text import BREAK
from wavefront.viewer import can_animate, side_by_side, visible

if TYPE_CHECKING:
    from wavefront.lm import Completion

EXAMPLES = """\
Examples
wavefront compare "I have two figs and a pear. How many fruits?"
wavefront compare -f question.txt -n 64 -t 16 -s standard -s wavefront
wavefront compare "Why?" -s wavefront -s "wavefront(radius=4)" -s rcr
"""
FEWEST, MOST = 2, 4
NAME = 30  # columns of a strategy in the table
ANSWER = (
    24  # columns, at least, of an answer beside the numbers; it goes below where there are less
)


@dataclass(frozen=True, kw_only=True)
class SeveralOptions(DecodingOptions):
    """The same with several strategies."""

    strategy: Annotated[  # pyright: ignore[reportIncompatibleVariableOverride]
        list[str] | None,
        option(
            "Decoding",
            "SPEC",
            "A strategy, given two to four times; by default standard, block and wavefront.",
            "--strategy",
            "-s",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class SideOptions(PlainOptions):
    """What is shown of all of them."""

    watch: Annotated[
        bool, option("Output", "", "Show the canvases; on by default.", "--watch/--no-watch", "-w")
    ] = True
    delay: Annotated[
        float, option("Output", "SECONDS", "Wait after each step of all; by default 0.02.")
    ] = 0.02  # a small model is too quick to be watched


def compare(
    prompt: Prompt = None,
    *,
    file: PromptFile = None,
    raw: Annotated[bool, option(None, "", "Continue the text as it is.", "--raw")] = False,
    length: LengthOptions,
    decoding: SeveralOptions,
    model: ModelOptions,
    output: SideOptions,
) -> None:
    """Watch strategies decode the same prompt side by side, and count what it took.

    They take turns, a step each. In a terminal the pictures move; elsewhere their ends are printed.
    Then a line for each: what it took, and the end of its answer.
    """
    asked = decoding.strategy or []
    if asked and not FEWEST <= len(asked) <= MOST:
        raise UsageError(f"Compare {FEWEST} to {MOST} strategies: give --strategy so many times.")
    text, names = read(prompt, file), asked or [*PAPER]
    each: list[Any] = [replace(decoding, strategy=name) for name in names]
    # All of them are checked before a model is loaded.
    wanted = [settled(given(one) | given(length)) for one in each]
    lm, first = prepare(model, each[0], output, length=given(length))
    eos = {"eos": first["eos"]} if "eos" in first else {}
    streams = [lm.stream(text, raw=raw, **(options | eos)) for options in wanted]
    next(lm.stream(text, raw=raw, **(wanted[0] | eos)))  # the first forward of a process is slower
    console = Console(highlight=False, emoji=False, markup=False)
    shown = console if output.watch and not output.json else None
    seconds = side_by_side(streams, console=shown, delay=output.delay)
    if output.json:
        for stream, spent in zip(streams, seconds, strict=True):
            facts = {"seconds": spent, "model": model, "prompt": text, "raw": raw}
            say_json(record(lm, stream, stream.completions[0], **facts))
        return
    if shown is not None and can_animate(console):
        console.print()
    _print_table(console, names, [stream.completions[0] for stream in streams], seconds)


def _print_table(
    console: Console,
    names: Sequence[str],
    answers: Sequence[Completion],
    seconds: Sequence[float],
) -> None:
    """A line for each strategy; where there is no room for its answer, one more for that."""
    width = min(NAME, max(cell_len(name) for name in (*names, "strategy")))
    form = "{}  {:>8}  {:>14}  {:>7}"
    titles = form.format(cut("strategy", width), "forwards", "tokens/forward", "seconds")
    room = console.width - len(titles) - 2
    beside = room >= ANSWER
    console.print(Text(titles + ("  answer" if beside else ""), "bold"), soft_wrap=True)
    for name, answer, spent in zip(names, answers, seconds, strict=True):
        rate = len(answer.tokens) / max(1, answer.forwards)
        cells = (cut(name, width), answer.forwards, f"{rate:.2f}", f"{spent:.2f}")
        end = _end(answer.text, room if beside else console.width - 2)
        line = f"{form.format(*cells)}  {end}" if beside else f"{form.format(*cells)}\n  {end}"
        console.print(Text(line.rstrip()), soft_wrap=True)


def _end(text: str, width: int) -> str:
    """The end of a text on one line: a worked answer comes to its point there."""
    line = " ".join(visible(text).replace(BREAK, " ").split())
    if cell_len(line) <= width:
        return line
    while cell_len(line) >= width:
        line = line[1:]
    return f"…{line}"
