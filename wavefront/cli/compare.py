"""`wavefront compare`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from wavefront.cli import completion
from wavefront.cli.command import Command
from wavefront.cli.decode import prepare, record, resolve_options
from wavefront.cli.demo_stories import PAPER
from wavefront.cli.generate import read_prompt
from wavefront.cli.options import (
    DecodingOptions,
    LengthOptions,
    ModelOptions,
    PlainOptions,
    Prompt,
    PromptFile,
    Raw,
    UsageError,
    flatten_options,
    option,
    options_set,
)
from wavefront.cli.output import say_json
from wavefront.core import spec
from wavefront.player.visible_text import BREAK
from wavefront.viewer import can_animate, side_by_side, visible

if TYPE_CHECKING:
    from wavefront.analysis.quality import TextQuality
    from wavefront.lm import LM, Completion

EXAMPLES = """\
Examples
wavefront compare "I have two figs and a pear. How many fruits?"
wavefront compare -f question.txt -n 64 -t 16 -s standard -s wavefront
wavefront compare "One day, Tom found a" -m tale -n 160 -t 40
wavefront compare "Why?" -s wavefront -s "wavefront(radius=4)" -s rcr
"""
FEWEST, MOST = 2, 4
NAME = 30  # columns of a strategy in the table
ANSWER = 24  # minimum columns for an answer next to the numbers; otherwise it goes below
QUALITY = "  {:>6}  {:>6}  {:>8}"  # further columns, for a model with a judge
app = typer.Typer(add_completion=False)


@dataclass(frozen=True, kw_only=True)
class ComparedStrategies(DecodingOptions):
    """The decoding options, with two to four strategies."""

    strategy: Annotated[  # pyright: ignore[reportIncompatibleVariableOverride]
        list[str] | None,
        option(
            "Decoding",
            "SPEC",
            "Strategy to compare; give it two to four times. Default: standard, block, wavefront.",
            "--strategy",
            "-s",
            complete=completion.strategies,
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class SideBySideOptions(PlainOptions):
    """What to print and whether to animate it."""

    watch: Annotated[
        bool, option("Output", "", "Show the decodes. Default: on.", "--watch/--no-watch", "-w")
    ] = True
    delay: Annotated[float, option("Output", "SECONDS", "Wait after each step. Default: 0.02.")] = (
        0.02  # a small model is too fast to watch
    )


@app.command(cls=Command, epilog=EXAMPLES)
@flatten_options
def compare(
    prompt: Prompt = None,
    *,
    file: PromptFile = None,
    raw: Raw = False,
    length: LengthOptions,
    decoding: ComparedStrategies,
    model: ModelOptions,
    output: SideBySideOptions,
) -> None:
    """Decode one prompt with several strategies side by side.

    The strategies take turns, one step each. On a terminal the steps are animated; elsewhere only
    the results are printed. A table then shows forward passes, seconds and the end of each answer.
    For a model with a judge, such as tale, it also shows the quality of each answer: nats per token
    under the judge, tokens, and the share of different trigrams.
    """
    specs = decoding.strategy or []
    if specs and not FEWEST <= len(specs) <= MOST:
        raise UsageError(f"Compare {FEWEST} to {MOST} strategies: repeat --strategy.")
    text, names = read_prompt(prompt, file), specs or [*PAPER]
    each: list[Any] = [replace(decoding, strategy=name) for name in names]
    # Check all of them before a model is loaded.
    several = [resolve_options(options_set(one) | options_set(length)) for one in each]
    lm, _ = prepare(model, each[0], output, length=options_set(length))
    streams = [lm.stream(text, raw=raw, **options) for options in several]
    next(lm.stream(text, raw=raw, **several[0]))  # the first forward pass of a process is slower
    console = Console(highlight=False, emoji=False, markup=False)
    shown = console if output.watch and not output.json else None
    strategies = [stream.decoding.plan.config.strategy for stream in streams]
    titles = [spec.label(repr(strategy)) for strategy in strategies]
    seconds = side_by_side(streams, console=shown, delay=output.delay, titles=titles)
    answers = [stream.completions[0] for stream in streams]
    found = _qualities(lm, text, answers, raw=raw)
    if output.json:
        for stream, answer, spent, one in zip(streams, answers, seconds, found, strict=True):
            facts = {"seconds": spent, "model": model, "prompt": text, "raw": raw}
            judged = {} if one is None else {"quality": one._asdict()}
            say_json(record(lm, stream, answer, **facts) | judged)
        return
    if shown is not None and can_animate(console):
        console.print()
    constraint = streams[0].decoding.plan.constraint
    if constraint is not None:
        line = " ".join(visible(str(constraint)).split())
        console.print(Text(cut(line, console.width)), soft_wrap=True)
    shown_names = [spec.label(name) for name in names]
    _print_table(console, shown_names, answers, seconds=seconds, qualities=found)


def _qualities(
    lm: LM, prompt: str, answers: Sequence[Completion], *, raw: bool
) -> list[TextQuality | None]:
    """Return the quality of every answer; None if the model has no judge."""
    from wavefront.analysis.quality import QualityJudge, judge_folder

    if judge_folder(lm.name) is None:
        return [None] * len(answers)
    judge = QualityJudge.load(lm.name, device=lm.model.device)
    return [*judge.measure([prompt] * len(answers), answers, raw=raw)]


def _print_table(
    console: Console,
    names: Sequence[str],
    answers: Sequence[Completion],
    *,
    seconds: Sequence[float],
    qualities: Sequence[TextQuality | None],
) -> None:
    """Print one line per strategy; its answer goes below if there is no room in the line."""
    width = min(NAME, max(cell_len(name) for name in (*names, "strategy")))
    form = "{}  {:>8}  {:>14}  {:>7}"
    titles = form.format(cut("strategy", width), "forwards", "tokens/forward", "seconds")
    if None not in qualities:
        titles += QUALITY.format("nats", "tokens", "distinct")
    room = console.width - len(titles) - 2
    beside = room >= ANSWER
    console.print(Text(titles + ("  answer" if beside else ""), "bold"), soft_wrap=True)
    for name, answer, spent, one in zip(names, answers, seconds, qualities, strict=True):
        rate = len(answer.tokens) / max(1, answer.forwards)
        cells = form.format(cut(name, width), answer.forwards, f"{rate:.2f}", f"{spent:.2f}")
        if one is not None:
            varied = "" if one.distinct is None else f"{one.distinct:.3f}"
            cells += QUALITY.format(f"{one.nats:.3f}", one.length, varied)
        end = _end(answer.text, room if beside else console.width - 2)
        line = f"{cells}  {end}" if beside else f"{cells}\n  {end}"
        console.print(Text(line.rstrip()), soft_wrap=True)


def cut(text: str, width: int) -> str:
    """Return the text on one line of exactly `width` columns, with an ellipsis if it is cut."""
    line = Text(" ".join(visible(text).replace(BREAK, " ").split()))
    line.truncate(width, overflow="ellipsis", pad=True)
    return line.plain


def _end(text: str, width: int) -> str:
    """Return the end of a text on one line. A worked answer ends with its result."""
    line = " ".join(visible(text).replace(BREAK, " ").split())
    if cell_len(line) <= width:
        return line
    while cell_len(line) >= width:
        line = line[1:]
    return f"…{line}"
