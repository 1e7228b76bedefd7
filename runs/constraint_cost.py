"""Measure what a constraint costs: its share of a step's time.

    python runs/constraint_cost.py                   # computing time on the CPU, two small models
    python runs/constraint_cost.py --device cuda     # time on a GPU, LLaDA-8B's shape

Each line decodes the same canvas in turns, without and with a schema, and compares the time of a
step. The second model is random and has a vocabulary of 150,000 tokens, as current models do. On a
GPU, the model has random weights too, and its steps are captured as CUDA graphs. They are measured
with the cache `wave(refresh=32, size=32, near=4)`, without one, and in a batch of 16 rows; then
once without graphs. The first decode of each case captures the graphs and is reported apart. More
lines say where the time of a step goes: on the device, and on the host.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

import wavefront
from wavefront.bench.model_shapes import random_model
from wavefront.engine import step
from wavefront.engine.batcher import CapturedBatchers
from wavefront.engine.cuda_graphs import Graphs, HostCopy
from wavefront.lm import LM
from wavefront.models.toy import toy
from wavefront.text.constraint import check_constraint
from wavefront.text.tokenizer import Tokenizer

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "email": {"type": "string", "format": "email"},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}},
    },
    "required": ["name", "age", "email", "tags"],
}
TOKENS, REPEATS, GPU_REPEATS = 96, 5, 2
STRATEGIES = ("wavefront", "standard", "wavefront(selector=threshold(tau=0.9))")
CACHE = "wave(refresh=32, size=32, near=4)"
PROMPT = "Describe Bob."


def large_vocabulary(size: int) -> Tokenizer:
    """Return a byte-level tokenizer with `size` tokens: the bytes, and words of random letters."""
    source = torch.Generator().manual_seed(0)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = dict.fromkeys(alphabet)
    while len(words) < size - 2:
        length = int(torch.randint(2, 9, (1,), generator=source))
        letters = torch.randint(0, 26, (length,), generator=source).tolist()
        space = "Ġ" if int(torch.randint(2, (1,), generator=source)) else ""
        words[space + "".join(chr(97 + letter) for letter in letters)] = None
    vocabulary = {word: id for id, word in enumerate(words)}
    backend = Backend(models.BPE(vocab=vocabulary, merges=[]))
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<|end|>"), AddedToken("<|mask|>")])
    return Tokenizer(backend, settings={"eos_token": "<|end|>"}, config={})


def say(line: str) -> None:
    """Print a line at once: a measurement may be stopped before its end."""
    print(line, flush=True)


def decode(lm: LM, options: dict[str, Any], *, rows: int = 1) -> tuple[float, int]:
    """Decode once, and return the seconds and the forward passes: CPU seconds on a CPU."""
    cuda = lm.model.device.type == "cuda"
    clock = time.perf_counter if cuda else time.process_time
    stream = lm.stream([PROMPT] * rows, **options)
    if cuda:
        torch.cuda.synchronize()
    began = clock()
    stream.decoding.drain()
    if cuda:
        torch.cuda.synchronize()
    return clock() - began, stream.decoding.forwards


def seconds_per_step(lm: LM, *cases: dict[str, Any], repeats: int, rows: int = 1) -> list[float]:
    """Return the time of a step for each case, the smallest of some decodes.

    The cases take turns, so that a busy machine slows all of them down.
    """
    found: list[list[float]] = [[] for _ in cases]
    for _ in range(repeats):
        for options, times in zip(cases, found, strict=True):
            seconds, forwards = decode(lm, options, rows=rows)
            times.append(seconds / forwards)
    return [min(times) for times in found]


def compile_schema(name: str, lm: LM) -> None:
    """Compile the schema, and print what that costs."""
    constraint = check_constraint(schema=SCHEMA)
    assert constraint is not None
    began = time.process_time()
    automaton = lm.automaton_of(constraint)
    spent = time.process_time() - began
    sizes = f"{automaton.states} states, {automaton.classes} classes, {len(automaton.edges)} edges"
    say(f"{name}: compiled in {spent:.2f} s: {sizes}")


def report(
    lm: LM,
    *,
    steps: int,
    cache: str | None = None,
    rows: int = 1,
    repeats: int = REPEATS,
    strategies: tuple[str, ...] = STRATEGIES,
    profiled: bool = False,
) -> None:
    """Print the time of a step without and with the schema, and the share of the schema."""
    for strategy in strategies:
        options = {"max_new_tokens": TOKENS, "steps": steps, "strategy": strategy, "eos": "keep"}
        options |= {} if cache is None else {"cache": cache}
        cases, first = (options, {**options, "schema": SCHEMA}), ""
        if profiled:  # the graphs are captured in the first decodes
            spent = [decode(lm, case, rows=rows)[0] for case in cases]
            first = "  first decodes " + " and ".join(f"{seconds:.1f} s" for seconds in spent)
        plain, limited = seconds_per_step(lm, *cases, repeats=repeats, rows=rows)
        times = f"{1e3 * plain:8.2f} ms {1e3 * limited:8.2f} ms"
        say(f"  {strategy:40} {times}  {1 - plain / limited:6.1%}{first}")
        if profiled:
            for case in cases:
                profile(lm, case, rows=rows)


class TimedGraphs(Graphs):
    """Graphs that can time every part of a step on the device."""

    events: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] | None = None  # None: do not
    launched = 0.0  # seconds that the host spent on launches

    def __call__(self, key: Any, step: Any, tree: Any) -> tuple[Any, Any]:
        events = TimedGraphs.events
        if events is None:
            return super().__call__(key, step, tree)
        first, part = torch.cuda.Event(enable_timing=True), key[0][0]
        last, began = torch.cuda.Event(enable_timing=True), time.perf_counter()
        first.record()
        found = super().__call__(key, step, tree)
        last.record()
        TimedGraphs.launched += time.perf_counter() - began
        events.append((part if isinstance(part, str) else "step", first, last))
        return found


@contextmanager
def timed(spent: dict[str, float], *named: tuple[Any, str, str]) -> Iterator[None]:
    """Add the seconds of some functions to `spent`: an owner, an attribute, and a name of each."""
    if not named:
        yield
        return
    (owner, attribute, name), *rest = named
    function: Callable[..., Any] = getattr(owner, attribute)

    def run(*given: Any, **options: Any) -> Any:
        began = time.perf_counter()
        try:
            return function(*given, **options)
        finally:
            spent[name] += time.perf_counter() - began
            spent[f"{name}, calls"] += 1

    with patch.object(owner, attribute, run), timed(spent, *rest):
        yield


def profile(lm: LM, options: dict[str, Any], *, rows: int) -> None:
    """Print where the time of a step goes, in milliseconds: on the device, and on the host."""
    events: list[Any] = []
    TimedGraphs.events, TimedGraphs.launched = events, 0.0
    spent: dict[str, float] = defaultdict(float)
    functions = (
        (HostCopy, "read", "wait"),
        (step, "group_rules", "sets"),
        (step, "_all_fit", "check"),
        (step, "_decide_again", "decide again"),
    )
    with timed(spent, *functions):
        seconds, forwards = decode(lm, options, rows=rows)
    TimedGraphs.events = None
    device: dict[str, float] = defaultdict(float)
    for part, first, last in events:
        device[part] += first.elapsed_time(last) / forwards
    busy = sum(device.values())
    host = {name: 1e3 * value / forwards for name, value in spent.items() if "calls" not in name}
    host["launch"] = 1e3 * TimedGraphs.launched / forwards
    again = spent["decide again, calls"] / forwards
    which = "with" if "schema" in options else "without"
    shown = ", ".join(f"{part} {value:.2f}" for part, value in device.items())
    say(f"    {which}: {1e3 * seconds / forwards:.2f} a step; device {busy:.2f}: {shown}")
    shown = ", ".join(f"{name} {value:.2f}" for name, value in sorted(host.items()))
    say(f"      host: {shown}; {again:.0%} of the steps decided again")


def measure_shape(name: str, device: str, **changes: Any) -> None:
    """Measure steps of a model of a named shape, with random weights and words as tokens."""
    began = time.perf_counter()
    model = random_model(name, device=device, **changes)
    tokenizer = large_vocabulary(min(120_000, model.vocab_size))
    say(f"{name}: made in {time.perf_counter() - began:.1f} s")
    cuda = device == "cuda"
    lm = LM(model, tokenizer)
    if cuda:
        lm.captured = CapturedBatchers(model, graphs=TimedGraphs)
    compile_schema(name, lm)
    given: dict[str, Any] = {"repeats": GPU_REPEATS, "profiled": cuda}
    say("cached, milliseconds of a step without and with the schema, and its share")
    report(lm, steps=TOKENS, cache=CACHE, **given)
    say("without a cache")
    report(lm, steps=TOKENS // 4, **given)
    say("cached, 16 rows")
    report(lm, steps=TOKENS, cache=CACHE, rows=16, strategies=STRATEGIES[:1], **given)
    if cuda:
        say("cached, without CUDA graphs")
        direct = LM(model, tokenizer, cuda_graphs=False)
        report(direct, steps=TOKENS, cache=CACHE, repeats=1, strategies=STRATEGIES[:1])


def main() -> None:
    """Measure both small models on the CPU, or LLaDA-8B's shape on a GPU."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    if parser.parse_args().device == "cuda":
        measure_shape("llada-8b-shape", "cuda")
        return
    torch.set_num_threads(1)
    lm = wavefront.load("ripple", device="cpu")
    compile_schema("ripple", lm)
    report(lm, steps=24)
    tokenizer = large_vocabulary(150_000)
    size = tokenizer.vocab_size
    lm = LM(toy(0, vocab_size=size, width=512, layers=2), tokenizer)
    compile_schema("150,000 tokens", lm)
    report(lm, steps=8, repeats=2)


if __name__ == "__main__":
    main()
