"""Tasks: the items a model is asked, and the graders for its answers.

`benchmarks/` holds published items read from files, `procedural/` holds tasks that generate items
from a seed, `stories` has the held-out openings of an adapted model, and `jsonl_file` reads your
own prompts. It imports `core` and `storage`.
Start reading at `base`, which defines a task. This module is the registry.

The registry has one task per file, named after the file. Files that start with an underscore are
helpers, not tasks. A task with several sizes (`tracking_shuffled_objects`) has one name per size. A
benchmark file with several benchmarks (`bbh_navigate`) lists them as VARIANTS.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator, Mapping
from dataclasses import fields
from functools import cache
from importlib import import_module
from itertools import accumulate, count
from random import Random
from typing import Any

from wavefront.core.bounds import check_fields
from wavefront.core.errors import OptionError, did_you_mean
from wavefront.tasks import benchmarks as benchmarks_package
from wavefront.tasks import procedural as procedural_package
from wavefront.tasks.base import GeneratedTask, Sample, Split, Style
from wavefront.tasks.benchmarks._benchmark import Benchmark
from wavefront.tasks.benchmarks._data import real_bbh
from wavefront.tasks.benchmarks._presets import preset, presets
from wavefront.tasks.grading import Grade
from wavefront.tasks.jsonl_file import Jsonl
from wavefront.tasks.stories import Stories

__all__ = [
    "DEFAULT_MIXTURE",
    "benchmarks",
    "construct",
    "draw",
    "grade",
    "judged_tasks",
    "load",
    "names",
    "preset",
    "presets",
    "real_bbh",
    "stream",
]

JUDGED = {"stories": Stories}
SIZES = {"three": 3, "five": 5, "seven": 7}
PAPER_SHARE = 0.35  # of a training stream in the paper's template; the rest are bare questions

# Weights follow difficulty: a task that needs many examples gets many.
DEFAULT_MIXTURE: Mapping[str, float] = {
    "gsm": 20,
    "code": 16,
    "boolean_expressions": 3,
    "multistep_arithmetic_two": 12,
    "object_counting": 5,
    "navigate": 5,
    "web_of_lies": 3,
    "dyck_languages": 5,
    "word_sorting": 8,
    "tracking_shuffled_objects_three_objects": 3,
    "tracking_shuffled_objects_five_objects": 4,
    "tracking_shuffled_objects_seven_objects": 4,
    "logical_deduction_three_objects": 3,
    "logical_deduction_five_objects": 4,
    "logical_deduction_seven_objects": 5,
    "date_understanding": 5,
    "temporal_sequences": 2,
    "reasoning_about_colored_objects": 6,
    "hyperbaton": 2,
}


@cache
def _files() -> Mapping[str, str]:
    """Map every task file's name to its module."""
    found: dict[str, str] = {}
    for package in (benchmarks_package, procedural_package):
        for module in pkgutil.iter_modules(package.__path__):
            if not module.name.startswith("_"):
                found[module.name] = f"{package.__name__}.{module.name}"
    return dict(sorted(found.items()))


@cache
def _variants() -> Mapping[str, tuple[str, Mapping[str, Any]]]:
    """Map every benchmark's name to its file and the options that select it there."""
    found: dict[str, tuple[str, Mapping[str, Any]]] = {}
    for file in _files():
        if issubclass(_task_class(file), Benchmark):
            module = import_module(_files()[file])
            for name, options in getattr(module, "VARIANTS", {file: {}}).items():
                found[name] = file, options
    return found


def names() -> list[str]:
    """List the generated tasks by the name that results use."""
    every: list[str] = []
    for name in _files():
        if not issubclass(kind := _task_class(name), Benchmark):
            sized = hasattr(kind, "objects")
            every += [f"{name}_{size}_objects" for size in SIZES] if sized else [name]
    return every


def benchmarks() -> list[str]:
    """List the benchmarks by the name that results use."""
    return sorted(_variants())


def judged_tasks() -> list[str]:
    """List the tasks whose answers are not right or wrong: a judge scores them."""
    return sorted(JUDGED)


def load(name: str, **options: Any) -> GeneratedTask:
    """Create the task of this name.

    Args:
        name: One of `names()`, `benchmarks()` or `judged_tasks()`, or "jsonl" for your own file.
        options: The task's fields, as in `load("code", allow_unsandboxed=True)`.

    Raises:
        OptionError: There is no such task or option.
    """
    variants = _variants()
    if name == "jsonl":
        return construct(Jsonl, options)
    if name in JUDGED:
        return construct(JUDGED[name], options)
    if name in variants:
        file, preset_options = variants[name]
        return construct(_task_class(file), {**preset_options, **options})
    files = [file for file in _files() if not issubclass(_task_class(file), Benchmark)]
    if name in files:
        return construct(_task_class(name), options)
    base, _, size = name.removesuffix("_objects").rpartition("_")
    if name.endswith("_objects") and base in files and size in SIZES:
        return construct(_task_class(base), {"objects": SIZES[size], **options})
    known = [*names(), *benchmarks(), *judged_tasks()]
    raise OptionError(
        f"There is no task {name!r}{did_you_mean(name, known)}. `wavefront list tasks` lists all; "
        "give FILE.jsonl or module.Class for your own."
    )


def grade(name: str, sample: Sample, text: str, **options: Any) -> Grade:
    """Grade a model's answer to one item of a task.

    This is the stable path for code outside wavefront, such as the task files for lm-eval.

    Args:
        name: The task's name, as for `load`.
        sample: The item. Its `target` and `extra` decide what is correct.
        text: The model's answer.
        options: The task's fields, such as `allow_unsandboxed=True`.

    Raises:
        OptionError: There is no such task or option, or no sandbox for a task that runs code.
    """
    return load(name, **options).grade(sample, text)


def construct(kind: type, options: Mapping[str, Any]) -> Any:
    """Create a task of this class.

    Raises:
        OptionError: It has no such option, or the value of one is out of bounds.
    """
    known = [field.name for field in fields(kind)]
    for name in options:
        if name not in known:
            raise OptionError(
                f"{kind.__name__} has no option {name!r}{did_you_mean(name, known)}."
                f" Its options are {known}."
            )
    task = kind(**options)
    check_fields(task)
    return task


def _task_class(name: str) -> type:
    module = import_module(_files()[name])
    return getattr(module, "".join(part.capitalize() for part in name.split("_")))


def draw(mixture: Mapping[str, float], *, seed: int, index: int, split: Split = "train") -> Sample:
    """Draw item `index` of a stream. It depends only on the arguments, so training can resume."""
    rng = Random((seed << 40) ^ index)
    tasks = [load(name) for name in mixture]
    return _draw(tasks, list(accumulate(mixture.values())), rng, split=split)


def _draw(tasks: list[GeneratedTask], bounds: list[float], rng: Random, *, split: Split) -> Sample:
    point = rng.random() * bounds[-1]
    task = next(task for task, bound in zip(tasks, bounds, strict=True) if point < bound)
    style: Style = "paper" if rng.random() < PAPER_SHARE else "bare"
    return task.sample(rng, split=split, style=style)


def stream(
    mixture: Mapping[str, float] = DEFAULT_MIXTURE,
    *,
    seed: int,
    split: Split = "train",
    start: int = 0,
    step: int = 1,
) -> Iterator[Sample]:
    """Yield items `start`, `start + step`, … without end.

    To share a stream among n workers, give worker w `start=w, step=n`.
    """
    tasks = [load(name) for name in mixture]
    bounds = list(accumulate(mixture.values()))
    for index in count(start, step):
        yield _draw(tasks, bounds, Random((seed << 40) ^ index), split=split)
