"""What a half-written word may become: names and words, by the parameter that takes them.

A shell asks after every key, so nothing here imports torch. Names come from the shelves' file
names; where the library's own list would bring torch along, the words are written here, and a test
holds them to the library's. Paths are left to the shell, which completes them when we say nothing.
"""

from __future__ import annotations

import copy
import inspect
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, get_origin

import wavefront

Suggestions = list[tuple[str, str]]
Complete = Callable[[str], Suggestions]
LONGEST = 60  # characters; typer breaks a longer line, and fish takes the rest for a suggestion


def brief(line: str) -> str:
    """The line, cut between words where it is long."""
    return textwrap.shorten(line, LONGEST, placeholder=" …")


def words(*known: str) -> Complete:
    """One of a few."""

    def complete(incomplete: str) -> Suggestions:
        return [(word, "") for word in known if word.startswith(incomplete)]

    return complete


def shelf(*folders: str) -> Complete:
    """The name of a file on one of the shelves, and what its first line says."""

    def complete(incomplete: str) -> Suggestions:
        found = (one for folder in folders for one in _files(folder))
        return [(name, line) for name, line in found if name.startswith(incomplete)]

    return complete


def _files(folder: str) -> Iterator[tuple[str, str]]:
    home = Path(wavefront.__file__).parent / folder
    for file in sorted(home.glob("[!_]*.py")):
        with file.open(encoding="utf-8") as lines:
            first = lines.readline().strip().strip('"')
        own, _, rest = first.partition(": ")
        line = rest if own.lower().replace(" ", "_") == file.stem else first
        yield file.stem, brief(line)


def experiments(incomplete: str) -> Suggestions:
    """Complete the name of an experiment of the paper."""
    from wavefront.paper import NAMES

    lines = dict(_files("paper"))
    return [(n, lines[n.replace("-", "_")]) for n in NAMES if n.startswith(incomplete)]


def models(incomplete: str) -> Suggestions:
    """What is built in, and published checkpoints; a directory is completed by the shell."""
    from wavefront.cli.list_models import PUBLISHED
    from wavefront.storage.hub import builtin_checkpoints

    known = [(name, "built in") for name in (*builtin_checkpoints(), "toy")]
    known += [
        (hub_id, f"{family}, on the hub") for family in PUBLISHED for hub_id in PUBLISHED[family]
    ]
    return [one for one in known if one[0].startswith(incomplete)]


def shapes(incomplete: str) -> Suggestions:
    """What the bench takes besides."""
    return words("llada-8b-shape", "dream-7b-shape")(incomplete) + models(incomplete)


def tasks(incomplete: str) -> Suggestions:
    from wavefront import tasks as known

    return words(*known.names(), *known.benchmarks())(incomplete)


def presets(incomplete: str) -> Suggestions:
    from wavefront import tasks as known

    return words(*known.presets())(incomplete)


def verbs(incomplete: str) -> Suggestions:
    """Of the trainer."""
    from wavefront.cli.train import VERBS

    told = ((verb, brief(meaning)) for verb, meaning in VERBS.items())
    return [one for one in told if one[0].startswith(incomplete)]


STRATEGIES = shelf("strategies")
STYLES = words("bare", "paper")
# By the name of the parameter; where a command means something of its own, by `command.parameter`.
BY_NAME: dict[str, Complete] = {
    "model": models,
    "bench.model": shapes,
    "device": words("cpu", "cuda", "mps"),
    "dtype": words("float32", "bfloat16", "float16"),
    "strategy": STRATEGIES,
    "candidate": STRATEGIES,
    "baseline": STRATEGIES,
    "strategies.name": shelf("strategies", "strategies/selectors"),
    "cache": shelf("strategies/caches"),
    "priority": words("confidence", "probability", "margin", "entropy", "random"),
    "eos": words(
        "stop", "keep", "defer", "suppress-logit", "suppress-confidence", "llada-confidence"
    ),
    "sampling": words("llada", "dream"),
    "alg": words("origin", "maskgit_plus", "topk_margin", "entropy"),
    "remasking": words("low_confidence", "random"),
    "task": tasks,
    "tune.what": tasks,
    "lm_eval_tasks.names": tasks,
    "style": STYLES,
    "preset": presets,
    "run_experiment.name": experiments,
    "encoder": words("minilm", "roberta-large"),
    "engine": words("local", "ray"),
    "lanes": words("auto", "fit", "one"),
    "trace": words("basic", "full"),
    "by": words("correct", "strict", "flexible"),
    "form": words("csv", "json"),
    "train.arguments": verbs,
}


def completed(command: str, parameter: inspect.Parameter) -> inspect.Parameter:
    """The parameter, knowing what it may be if we know that."""
    name, hint = parameter.name, parameter.annotation
    complete = BY_NAME.get(f"{command}.{name}") or BY_NAME.get(name)
    if complete is None or get_origin(hint) is not Annotated:
        return parameter
    marks: list[Any] = [copy.copy(mark) for mark in hint.__metadata__]
    for mark in marks:
        mark.autocompletion = complete
    return parameter.replace(annotation=Annotated[hint.__origin__, *marks])
