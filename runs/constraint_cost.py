"""Measure what a constraint costs: its share of a step's time.

    python runs/constraint_cost.py                   # computing time on the CPU, two small models
    python runs/constraint_cost.py --device cuda     # time on a GPU, LLaDA-8B's shape, cached steps

Each line decodes the same canvas twice, without and with a schema, with the same number of forward
passes, and compares the time of a step. The second model is random and has a vocabulary of 150,000
tokens, as current models do. On a GPU, the model has random weights too. Its steps are measured
with the cache `wave(refresh=32, size=32, near=4)` and without one. Steps are captured as CUDA
graphs, of steps with a schema only the forward pass; then all run directly for comparison.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

import wavefront
from wavefront.bench.model_shapes import random_model
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
TOKENS, REPEATS = 96, 5
STRATEGIES = ("wavefront", "standard", "wavefront(selector=threshold(tau=0.9))")


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


def seconds_per_step(lm: LM, *cases: dict[str, Any]) -> list[float]:
    """Return the time of a step for each case, the smallest of some decodes: CPU time on a CPU.

    The cases take turns, so that a busy machine slows all of them down.
    """
    cuda = lm.model.device.type == "cuda"
    clock = time.perf_counter if cuda else time.process_time
    found: list[list[float]] = [[] for _ in cases]
    for _ in range(2 if not cuda and lm.model.vocab_size >= 1 << 16 else REPEATS):
        for options, times in zip(cases, found, strict=True):
            stream = lm.stream("Describe Bob.", **options)
            began = clock()
            stream.decoding.drain()
            if cuda:
                torch.cuda.synchronize()
            times.append((clock() - began) / stream.decoding.forwards)
    return [min(times) for times in found]


def report(name: str, lm: LM, *, steps: int, cache: str | None = None) -> None:
    """Print the cost of compiling, and the share of a step by strategy."""
    constraint = check_constraint(schema=SCHEMA)
    assert constraint is not None
    began = time.process_time()
    automaton = lm.automaton_of(constraint)
    spent = time.process_time() - began
    sizes = f"{automaton.states} states, {automaton.classes} classes, {len(automaton.edges)} edges"
    print(f"{name}: compiled in {spent:.2f} s: {sizes}")
    for strategy in STRATEGIES:
        options = {"max_new_tokens": TOKENS, "steps": steps, "strategy": strategy, "eos": "keep"}
        options |= {} if cache is None else {"cache": cache}
        plain, with_schema = seconds_per_step(lm, options, {**options, "schema": SCHEMA})
        share = 1 - plain / with_schema
        print(f"  {strategy:40} {1e3 * plain:8.1f} ms {1e3 * with_schema:8.1f} ms  {share:6.1%}")


def measure_shape(name: str, device: str, **changes: Any) -> None:
    """Measure steps of a model of a named shape, with random weights and words as tokens."""
    model = random_model(name, device=device, **changes)
    tokenizer = large_vocabulary(min(120_000, model.vocab_size))
    for graphs in (True, False) if device == "cuda" else (False,):
        lm = LM(model, tokenizer, cuda_graphs=graphs)
        about = f"{name}, {'CUDA graphs' if graphs else 'direct'}"
        report(f"{about}, cached", lm, steps=TOKENS, cache="wave(refresh=32, size=32, near=4)")
        report(f"{about}, exact", lm, steps=TOKENS // 4)


def main() -> None:
    """Measure both small models on the CPU, or LLaDA-8B's shape on a GPU."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    if parser.parse_args().device == "cuda":
        measure_shape("llada-8b-shape", "cuda")
        return
    torch.set_num_threads(1)
    report("ripple", wavefront.load("ripple", device="cpu"), steps=24)
    tokenizer = large_vocabulary(150_000)
    size = tokenizer.vocab_size
    model = toy(0, vocab_size=size, width=512, layers=2)
    report("150,000 tokens", LM(model, tokenizer), steps=8)


if __name__ == "__main__":
    main()
