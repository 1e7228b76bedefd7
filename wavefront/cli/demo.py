"""`wavefront demo`: the wave, and what it is compared with."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from wavefront.watch import visible

if TYPE_CHECKING:
    from wavefront.lm import LM, Stream

PROMPT = "Tell me a story about the sea."
PLACES = 64
STRATEGIES = ("standard", "block", "wavefront")
PAUSE = 0.04  # seconds after each step: a small model is too quick to be watched


def demo() -> None:
    """Watch a built-in model decode, then see three strategies side by side.

    Takes some seconds, no file and no network.
    """
    from wavefront import builtin, lm
    from wavefront.watch import can_animate, watch

    model = lm.load(builtin.DEFAULT)
    results = Console(highlight=False, markup=False, emoji=False)  # all of it is the result
    live = can_animate(results) and not results.no_color
    results.print(f"The model {model.name!r} is asked: {PROMPT}\n")
    for _ in watch(_ask(model), console=results, live=live, delay=PAUSE if live else 0.0):
        pass
    results.print()
    _compare(model, results)
    results.print('\nYour turn: wavefront generate "Hello" --watch')


def _ask(model: LM, schedule: str = "wavefront") -> Stream:
    eos = "stop" if model.stop_ids else "keep"
    return model.stream(PROMPT, schedule=schedule, max_new_tokens=PLACES, eos=eos)


def _compare(model: LM, console: Console) -> None:
    line = f"{{:<{max(map(len, STRATEGIES))}}}  {{:>8}}  {{:>7}}  {{}}"
    _print(console, line.format("strategy", "forwards", "seconds", "answer"))
    for schedule in STRATEGIES:
        began = time.monotonic()
        stream = _ask(model, schedule)
        stream.decoding.drain()
        seconds = f"{time.monotonic() - began:.2f}"
        answer = visible(stream.completions[0].text).replace("\n", "")
        _print(console, line.format(schedule, stream.decoding.forwards, seconds, answer))


def _print(console: Console, line: str) -> None:
    text = Text(line)
    text.truncate(console.width, overflow="ellipsis")
    console.print(text)
