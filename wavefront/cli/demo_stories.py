"""Continue the opening of one story with several strategies, and measure the texts.

The openings are held out from the training of the story model. The judge is the autoregressive
model that the story model was made from.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest
from textwrap import wrap
from typing import TYPE_CHECKING, NamedTuple

from rich.cells import set_cell_size
from rich.console import Console
from rich.text import Text

from wavefront.cli.output import ProgressBar, stderr
from wavefront.viewer import can_animate, visible

if TYPE_CHECKING:
    from wavefront.analysis.quality import TextQuality
    from wavefront.lm import LM, Completion
    from wavefront.tasks.base import Sample

PAPER = ("standard", "block", "wavefront")
FAST = 4  # tokens per step of the faster decodes
FIRST = 64  # tokens of the beginning that is measured by itself
WIDEST, NARROWEST = 120, 22  # columns of all stories together, and of one
GAP = 2
ORIGINAL = "original"


class Story(NamedTuple):
    """A continuation of the opening by one strategy."""

    name: str
    tokens_per_step: int
    made: Completion


def draw_opening(seed: int) -> Sample:
    """Return the first held-out opening, or another one for a seed other than 0."""
    from wavefront.tasks.base import Ask
    from wavefront.tasks.stories import Stories

    return Stories().items(Ask(count=1, seed=seed))[0]


def continue_story(
    lm: LM, opening: str, names: Sequence[str], *, length: int, tokens_per_step: int
) -> list[Story]:
    """Continue an opening with several strategies in one batch."""
    from wavefront.engine.batcher import Batcher

    steps = max(1, length // tokens_per_step)
    requests = [
        lm.request(opening, strategy=name, max_new_tokens=length, steps=steps) for name in names
    ]
    width = len(requests[0].ids)
    batcher = Batcher(lm.model, rows=len(names), length=width, steps=steps)
    active = [batcher.admit(request) for request in requests]
    with ProgressBar("decoding", total=steps, shown=moves(stderr())) as bar:
        while not all(one.done for one in active):
            batcher.step()
            bar.advance()
    return [
        Story(name, tokens_per_step, lm.completion(one))
        for name, one in zip(names, active, strict=True)
    ]


def moves(console: Console) -> bool:
    """Return whether this console can animate; NO_COLOR also turns animation off."""
    return can_animate(console) and not console.no_color


def print_stories(console: Console, stories: Sequence[Story]) -> None:
    """Print stories side by side, or below each other on a narrow terminal."""
    width = min(console.width, WIDEST)
    column = (width - GAP * (len(stories) - 1)) // len(stories)
    if column < NARROWEST:
        for story in stories:
            console.print(Text(story.name, "bold"), soft_wrap=True)
            console.print(Text("\n".join([*_lines(console, story, width), ""])), soft_wrap=True)
        return
    console.print(Text(_join([story.name for story in stories], column), "bold"), soft_wrap=True)
    texts = [_lines(console, story, column) for story in stories]
    for line in zip_longest(*texts, fillvalue=""):
        console.print(Text(_join(line, column)), soft_wrap=True)


def _lines(console: Console, story: Story, width: int) -> list[str]:
    """Return a story in lines, with a sign that says whether it has ended."""
    utf = console.encoding.lower().startswith("utf")
    ended, cut = ("∎", "…") if utf else ("[end]", "...")
    sign = f" {ended}" if story.made.finish_reason == "stop" else cut
    text = story.made.text + sign
    return [
        line
        for paragraph in text.strip().split("\n")
        for line in wrap(visible(paragraph), width) or [""]
    ]


def _join(cells: Iterable[str], column: int) -> str:
    gap = " " * GAP
    return gap.join(set_cell_size(cell, column) for cell in cells).rstrip()


def print_qualities(
    lm: LM, console: Console, opening: Sample, *, stories: Sequence[Story], length: int
) -> None:
    """Measure the stories and the original's own text, and print one line for each.

    Args:
        lm: The story model, which has a judge.
        console: Where to print.
        opening: The opening, with the original's text.
        stories: The continuations.
        length: The positions of their canvas; the original's text is cut to it.
    """
    from wavefront.analysis.quality import QualityJudge

    judge = QualityJudge.load(lm.name, device=lm.model.device, first=FIRST)
    given = [opening.prompt] * len(stories)
    text, finished = opening.extra["text"], opening.extra["finished"]
    own = judge.original(opening.prompt, text, length=length, finished=finished)
    (original,) = judge.measure_texts([own])
    form = "{:<9}  {:>11}  {:>8}  {:>6}  {:>8}  {:>8}  {:>8}"
    first = ("", "tokens per", "forward", "", "nats per", "nats,", "distinct")
    second = ("strategy", "step", "passes", "length", "token", f"first {FIRST}", "trigrams")
    for titles in (first, second):
        console.print(Text(form.format(*titles).rstrip(), "bold"), soft_wrap=True)
    found = judge.measure(given, [story.made for story in stories])
    for story, quality in zip(stories, found, strict=True):
        cells = (story.name, story.tokens_per_step, story.made.forwards, *_cells(quality))
        console.print(Text(form.format(*cells).rstrip()), soft_wrap=True)
    console.print(Text(form.format(ORIGINAL, "", "", *_cells(original)).rstrip()), soft_wrap=True)


def _cells(quality: TextQuality) -> tuple[int, str, str, str]:
    distinct = "" if quality.distinct is None else f"{quality.distinct:.2f}"
    return quality.length, f"{quality.nats:.2f}", f"{quality.first_nats:.2f}", distinct
