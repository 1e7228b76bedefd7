"""Constraints on a GPU: answers are valid, with captured and compiled models too.

It also runs as a script.
"""

from __future__ import annotations

import re
import sys
from typing import Any
from unittest.mock import patch

import torch

import wavefront
from wavefront.engine import step
from wavefront.engine.batcher import CapturedBatchers
from wavefront.engine.cuda_graphs import Graphs
from wavefront.kernels.compile import compile_model
from wavefront.lm import LM
from wavefront.models.toy import toy
from wavefront.text.byte_tokenizer import byte_tokenizer

PATTERN = "[0-9]{2,8} (figs|pears)"
PROMPTS = ["How many?", "Count the fruits that I have."]
STRATEGIES = (
    *("standard", "block(size=8)", "left_to_right", "wavefront", "dsb", "dcd", "rcr", "tbd"),
    *("tide(horizon=0)", "edit", "blockwise(size=8)", "wino"),
    *("standard(selector=threshold(tau=0.02))", "wavefront(selector=threshold(tau=0.02))"),
)


def check_answers(lm: LM, **options: object) -> list[str]:
    answers = lm.generate(PROMPTS, regex=PATTERN, max_new_tokens=24, **options)
    texts = [answer.text for answer in answers]
    assert all(re.fullmatch(PATTERN, text) for text in texts), texts
    return texts


def test_answers_are_valid_on_the_device():
    lm = wavefront.load("toy", device="cuda")
    for strategy in ("standard", "wavefront", "rcr", "block(size=8)"):
        for steps in (24, 6):
            check_answers(lm, strategy=strategy, steps=steps)
    check_answers(lm, cache="wave(refresh=8)", steps=12)
    check_answers(lm, temperature=1.0, cfg_scale=1.0, steps=12)


def test_captured_batchers_decode_constrained_requests():
    plain = wavefront.load("toy", device="cuda", cuda_graphs=False)
    captured = wavefront.load("toy", device="cuda", cuda_graphs=True)
    for options in ({}, {"cache": "wave(refresh=8)"}, {"strategy": "wino"}, {"cfg_scale": 1.0}):
        for _ in range(2):  # the second decode replays what the first one has captured
            assert check_answers(captured, **options) == check_answers(plain, **options)
        # A captured decode of the same shape in between.
        captured.generate(PROMPTS, max_new_tokens=24, **options)
        assert check_answers(captured, **options) == check_answers(plain, **options)


def test_the_parts_of_a_constrained_step_are_captured():
    """With every strategy, also where the strategy decides again because commits contradict."""
    plain = wavefront.load("toy", device="cuda", cuda_graphs=False)
    captured = wavefront.load("toy", device="cuda", cuda_graphs=False)
    made: list[Graphs] = []
    captured.captured = CapturedBatchers(
        captured.model, graphs=lambda: made.append(Graphs()) or made[-1]
    )
    for strategy in STRATEGIES:
        options: dict[str, Any] = {"strategy": strategy, "steps": 24, "eos": "keep"}
        for cache in ({}, {"cache": "wave(refresh=8)"}):
            expected = check_answers(plain, **options, **cache)
            for _ in range(2):
                assert check_answers(captured, **options, **cache) == expected, strategy
    keys: list[Any] = [key for graphs in made for key in graphs._graphs]
    assert {key[0][0][0] for key in keys} == {"plan", "forward", "commit"}


def test_graphs_that_are_captured_again_do_not_share_memory():
    """A graph that was dropped and captured later must not write where another one reads."""
    plain = wavefront.load("toy", device="cuda", cuda_graphs=False)
    captured = wavefront.load("toy", device="cuda", cuda_graphs=False)
    captured.captured = CapturedBatchers(captured.model, graphs=Graphs)
    with patch.object(Graphs, "KEPT", 2):
        for options in ({"strategy": "standard"}, {"strategy": "wavefront"}) * 2:
            given: dict[str, Any] = {**options, "steps": 24, "eos": "keep"}
            assert check_answers(captured, **given) == check_answers(plain, **given)


def test_a_step_waits_for_the_device_only_at_its_two_copies():
    """The host waits for events of its copies. CUDA's sync-debug mode reports any other wait."""
    lm = wavefront.load("toy", device="cuda", cuda_graphs=True)
    given: dict[str, Any] = {"strategy": "standard", "steps": 24, "eos": "keep"}
    expected = [check_answers(lm, **given) for _ in range(2)][1]
    stream = lm.stream(PROMPTS, regex=PATTERN, max_new_tokens=24, **given)
    next(stream)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(12):  # the last steps complete the answer, and wait once more
            next(stream)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    stream.decoding.drain()
    assert [one.text for one in stream.completions] == expected


def test_the_automaton_works_while_the_device_computes():
    """When the host has the tokens, the forward pass of the step has not ended yet."""
    lm = wavefront.load("toy", device="cuda", cuda_graphs=False)
    check_answers(lm, steps=12)  # torch chooses kernels
    running: list[bool] = []
    forward, read = step.forward, step.HostCopy.read
    ends: list[torch.cuda.Event] = []

    def run(*given: Any, **named: Any) -> torch.Tensor:
        hidden = forward(*given, **named)
        torch.cuda._sleep(50_000_000)  # tens of milliseconds
        ends.append(torch.cuda.Event())
        ends[-1].record()
        return hidden

    def wait(self: Any) -> Any:
        found = read(self)
        if isinstance(found, tuple) and isinstance(found[0], step.ConstraintInputs):
            running.append(not ends[-1].query())
        return found

    with patch.object(step, "forward", run), patch.object(step.HostCopy, "read", wait):
        check_answers(lm, strategy="standard", steps=12)
    assert running
    assert all(running)


def test_answers_are_the_same_as_on_the_cpu():
    options: dict[str, Any] = {"dtype": "float64"}
    gpu = LM(toy(vocab_size=258, **options).to("cuda"), byte_tokenizer())
    cpu = LM(toy(vocab_size=258, **options), byte_tokenizer())
    for strategy in ("standard", "wavefront(selector=threshold(tau=0.05))"):
        for steps in (24, 6, 1):
            if strategy != "standard" and steps == 1:
                continue
            same = {"strategy": strategy, "steps": steps}
            assert check_answers(gpu, **same) == check_answers(cpu, **same)


def test_compiled_models_decode_constrained_requests():
    lm = wavefront.load("toy", device="cuda")
    compile_model(lm.model)
    check_answers(lm, strategy="standard", steps=8)


if __name__ == "__main__":
    import script

    sys.exit(script.run(globals()))
