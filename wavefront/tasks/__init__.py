"""The shelf of tasks: one task a file, the file name is the task's name.

A leading underscore marks a file that serves the tasks and is none itself. Tasks that come in sizes
(`tracking_shuffled_objects`) are also known by the benchmark's name of each size. Benchmarks read
their items from files; a file may hold several (`bbh_navigate`), which it lists as VARIANTS.
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

from wavefront.core.errors import OptionError, did_you_mean
from wavefront.tasks import benchmarks as benchmarks_package
from wavefront.tasks import procedural as procedural_package
from wavefront.tasks.base import Generated, Sample, Split, Style
from wavefront.tasks.benchmarks._benchmark import Benchmark
from wavefront.tasks.benchmarks._data import real_bbh
from wavefront.tasks.benchmarks._presets import preset, presets
from wavefront.tasks.jsonl_file import Jsonl

__all__ = [
    "DEFAULT_MIXTURE",
    "benchmarks",
    "draw",
    "load",
    "names",
    "preset",
    "presets",
    "real_bbh",
    "stream",
]

SIZES = {"three": 3, "five": 5, "seven": 7}
PAPER_SHARE = 0.35  # of a training stream; the rest is asked bare

# Weights follow difficulty: what needs many examples gets many.
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
    """The name of every task's file, and the module that it is."""
    found: dict[str, str] = {}
    for package in (benchmarks_package, procedural_package):
        for module in pkgutil.iter_modules(package.__path__):
            if not module.name.startswith("_"):
                found[module.name] = f"{package.__name__}.{module.name}"
    return dict(sorted(found.items()))


@cache
def _variants() -> Mapping[str, tuple[str, Mapping[str, Any]]]:
    """The name of every benchmark -> its file, and the options that make it."""
    found: dict[str, tuple[str, Mapping[str, Any]]] = {}
    for file in _files():
        if issubclass(_kind(file), Benchmark):
            module = import_module(_files()[file])
            for name, options in getattr(module, "VARIANTS", {file: {}}).items():
                found[name] = file, options
    return found


def names() -> list[str]:
    """Every generated task by the name results carry."""
    every: list[str] = []
    for name in _files():
        if not issubclass(kind := _kind(name), Benchmark):
            sized = hasattr(kind, "objects")
            every += [f"{name}_{size}_objects" for size in SIZES] if sized else [name]
    return every


def benchmarks() -> list[str]:
    """Every task that is read from files, by the name results carry."""
    return sorted(_variants())


def load(name: str, **options: Any) -> Generated:
    """The task of this name. Options are its fields: `load("code", allow_unsandboxed=True)`."""
    variants = _variants()
    if name == "jsonl":  # a file of the user's own
        return _made(Jsonl, options)
    if name in variants:
        file, made = variants[name]
        return _made(_kind(file), {**made, **options})
    files = [file for file in _files() if not issubclass(_kind(file), Benchmark)]
    if name in files:
        return _made(_kind(name), options)
    base, _, size = name.removesuffix("_objects").rpartition("_")
    if name.endswith("_objects") and base in files and size in SIZES:
        return _made(_kind(base), {"objects": SIZES[size], **options})
    known = [*names(), *benchmarks()]
    listed = ", ".join(one for one in known if not one.startswith("bbh_"))
    raise OptionError(
        f"no task {name!r}{did_you_mean(name, known)}: there are {listed}, and a bbh_SUBSET for each of"
        " the 27 subsets of BBH"
    )


def _made(kind: type, options: Mapping[str, Any]) -> Any:
    known = [field.name for field in fields(kind)]
    for name in options:
        if name not in known:
            raise OptionError(
                f"{kind.__name__} has no option {name!r}{did_you_mean(name, known)}; it has {known}."
            )
    return kind(**options)


def _kind(name: str) -> type:
    module = import_module(_files()[name])
    return getattr(module, "".join(part.capitalize() for part in name.split("_")))


def draw(mixture: Mapping[str, float], *, seed: int, index: int, split: Split = "train") -> Sample:
    """Item `index` of the stream of `seed`: it depends on nothing else, so training can resume."""
    rng = Random((seed << 40) ^ index)
    tasks = [load(name) for name in mixture]
    return _draw(tasks, list(accumulate(mixture.values())), rng, split)


def _draw(tasks: list[Generated], bounds: list[float], rng: Random, split: Split) -> Sample:
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
    """Items `start`, `start + step`, … without end; worker w of n takes start=w, step=n."""
    tasks = [load(name) for name in mixture]
    bounds = list(accumulate(mixture.values()))
    for index in count(start, step):
        yield _draw(tasks, bounds, Random((seed << 40) ^ index), split)
