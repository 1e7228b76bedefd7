"""When steps are captured: by default on CUDA, at their second use, within limits."""

from __future__ import annotations

import logging

import pytest
import torch
from helpers.captured import AutomaticStatic, Static

import wavefront
from wavefront.core.errors import NumericalError, OptionError
from wavefront.engine import cuda_graphs
from wavefront.engine.batcher import CapturedBatchers
from wavefront.engine.cuda_graphs import (
    AutomaticGraphs,
    Graphs,
    graphs_for,
    may_capture,
    run_eagerly,
    use_cuda_graphs,
)
from wavefront.engine.session import begin
from wavefront.models.toy import toy
from wavefront.models.transformer import Transformer
from wavefront.text.byte_tokenizer import byte_tokenizer

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 1)
PROMPTS = [[5, 6, 7], [8, 9, 10, 11, 12], [20]]
CACHE = "wave(refresh=4, size=20, near=2)"


def test_steps_are_captured_by_default_on_cuda_only():
    assert use_cuda_graphs(None, CUDA)
    assert not use_cuda_graphs(None, CPU)
    assert not use_cuda_graphs(False, CUDA)
    assert use_cuda_graphs(True, CUDA)
    assert graphs_for(None, CUDA) is AutomaticGraphs
    assert graphs_for(True, CUDA) is Graphs  # raises an error instead of falling back
    assert graphs_for(False, CUDA)() is run_eagerly
    assert graphs_for(None, CPU)() is run_eagerly


@pytest.mark.parametrize(
    ("asked", "message"), [(True, "cuda_graphs needs a CUDA device"), ("yes", "True, False or")]
)
def test_capture_that_is_impossible_is_an_option_error(asked, message):
    with pytest.raises(OptionError, match=message) as error:
        wavefront.LM(toy(vocab_size=258), byte_tokenizer(), cuda_graphs=asked)
    assert error.value.option == "cuda_graphs"


def test_model_on_the_cpu_captures_nothing_by_default():
    assert wavefront.load("toy").captured is None


def count_captures(calls, tree, keys):
    """Run steps by their keys, and return how many graphs there are after each."""
    counts = []
    for key in keys:
        calls(key, lambda one: ((one[0] + 1,), one[0] * 2), tree)
        counts.append(len(calls._graphs))
    return counts


def test_step_is_captured_at_its_second_use():
    calls, tree = AutomaticStatic(), (torch.arange(4.0),)
    assert count_captures(calls, tree, ["full", "window", "window", "retry", "full"]) == [
        0, 0, 1, 1, 2,
    ]  # fmt: skip
    other = (torch.arange(5.0),)  # another shape is another step
    assert count_captures(calls, other, ["full", "full"]) == [2, 3]


@pytest.mark.parametrize("options", [{}, {"cache": CACHE}, {"strategy": "standard"}])
def test_steps_that_run_directly_between_replays_keep_their_results(options):
    model = toy(dtype="float64")
    given = {"max_new_tokens": 24, "eos": "keep", **options}
    base = [
        (s.canvas.tokens, s.view.masked, s.decision.commit) for s in begin(model, PROMPTS, given)
    ]
    captured = CapturedBatchers(model, graphs=AutomaticStatic)
    for _ in range(2):
        # The steps are kept until the end: no later step may write into the earlier ones.
        made = list(begin(model, PROMPTS, given, captured=captured))
        assert len(made) == len(base)
        for step, (tokens, masked, commit) in zip(made, base, strict=True):
            assert torch.equal(step.canvas.tokens, tokens)
            assert torch.equal(step.view.masked, masked)
            assert torch.equal(step.decision.commit, commit)


class CannotCapture(AutomaticStatic):
    """Graphs whose captures fail, as on a device that a step waits for."""

    def _capture(self, step, tree):
        raise RuntimeError("operation not permitted\nwhen stream is capturing")


def test_failed_capture_is_logged_once_and_the_decode_continues(caplog):
    cuda_graphs._log_once.cache_clear()
    model = toy(dtype="float64")
    given = {"max_new_tokens": 24, "eos": "keep"}
    base = begin(model, PROMPTS, given).drain().answers()
    captured = CapturedBatchers(model, graphs=CannotCapture)
    with caplog.at_level(logging.WARNING, "wavefront"):
        for _ in range(2):
            assert begin(model, PROMPTS, given, captured=captured).drain().answers() == base
        assert begin(model, [[3]], given, captured=captured).drain().answers()
    (record,) = caplog.records
    assert "CUDA graphs are off" in record.message
    assert "operation not permitted when stream is capturing" in record.message


def test_error_of_the_step_itself_is_not_taken_for_a_failed_capture(caplog):
    cuda_graphs._log_once.cache_clear()
    calls = AutomaticStatic()

    def fails(tree):
        raise ValueError("a strategy's own error")

    for _ in range(3):
        with pytest.raises(ValueError, match="own error"):
            calls("key", fails, (torch.zeros(2),))
    assert not caplog.records
    before = len(calls._graphs)
    assert count_captures(calls, (torch.zeros(2),), ["other"] * 2) == [before, before + 1]


def test_captures_end_when_they_have_taken_too_long():
    assert may_capture(0.0, 0.0)
    assert may_capture(14.9, 20.0)
    assert not may_capture(15.0, 20.0)
    assert may_capture(15.0, 3600.0)  # a server that has run for an hour
    assert not may_capture(400.0, 3600.0)
    clock = iter(range(0, 10_000, 6))  # every reading is six seconds later
    calls, tree = AutomaticStatic(now=lambda: next(clock)), (torch.zeros(3),)
    keys = [key for key in range(6) for _ in range(2)]
    # Each capture takes 6 s, so the third one ends the budget of 15 s.
    assert count_captures(calls, tree, keys)[-1] == 3


def test_first_decode_of_a_shape_says_that_it_is_slower(caplog):
    model = toy(dtype="float64")
    captured = CapturedBatchers(model, graphs=AutomaticStatic)
    with caplog.at_level(logging.INFO, "wavefront"):
        for _ in range(2):
            begin(model, PROMPTS, {"max_new_tokens": 16}, captured=captured).drain()
    (record,) = caplog.records
    assert record.getMessage().startswith("Capturing the steps of 3 rows of 21 positions")


def test_kept_keys_and_values_are_bounded():
    model = toy(dtype="float64")
    one = model.new_kv(1, 1)
    position = sum(leaf.nbytes for part in one for leaf in part)
    given = {"max_new_tokens": 16, "cache": CACHE}
    captured = CapturedBatchers(model, graphs=Static, max_bytes=100 * position)

    def kept(rows, prompt):
        begin(model, [[3] * prompt] * rows, given, captured=captured).drain()
        return [(shape.rows, shape.length) for shape in captured._kept]

    assert kept(1, 4) == [(1, 20)]
    assert kept(2, 4) == [(1, 20), (2, 20)]  # 60 positions
    assert kept(3, 4) == [(2, 20), (3, 20)]  # 100 positions: the oldest went
    assert kept(6, 4) == []  # 120 positions are never kept
    exact = {"max_new_tokens": 16}
    begin(model, [[3] * 9] * 20, exact, captured=captured).drain()  # without a cache: no keys
    assert [(shape.rows, shape.length) for shape in captured._kept] == [(20, 25)]


def test_batchers_are_dropped_when_the_weights_move():
    model = toy(dtype="float64")
    made = []
    captured = CapturedBatchers(model, graphs=lambda: made.append(Static()) or made[-1])
    given = {"max_new_tokens": 16}
    for count in (1, 1):
        begin(model, PROMPTS, given, captured=captured).drain()
        assert len(made) == count
    with torch.no_grad():
        model.embedding.weight.add_(0.01)  # in place: a graph reads the new values
    begin(model, PROMPTS, given, captured=captured).drain()
    assert len(made) == 1
    model.float()
    begin(model, PROMPTS, given, captured=captured).drain()
    assert len(made) == 2


def test_batchers_are_dropped_when_quantised_weights_move():
    lm = wavefront.load("toy", quantize="int8")
    made = []
    lm.captured = CapturedBatchers(lm.model, graphs=lambda: made.append(Static()) or made[-1])
    assert isinstance(lm.model, Transformer)
    layer = next(one for one in lm.model.modules() if hasattr(one, "codes"))
    for _ in range(2):
        lm.generate("abc", max_new_tokens=16)
    assert len(made) == 1
    layer.codes = layer.codes.clone()
    lm.generate("abc", max_new_tokens=16)
    assert len(made) == 2


def test_infilling_uses_captured_steps():
    lm = wavefront.LM(toy(vocab_size=258), byte_tokenizer())
    text = "abc<mask:16>def<mask:4>"
    expected = lm.infill(text)
    made = []
    lm.captured = CapturedBatchers(lm.model, graphs=lambda: made.append(Static()) or made[-1])
    assert lm.infill(text).tokens == expected.tokens
    assert made[0]._graphs


def test_nan_is_reported_from_captured_steps():
    model = toy(dtype="float64")
    with torch.no_grad():
        model.embedding.weight[5] = float("nan")
    captured = CapturedBatchers(model, graphs=AutomaticStatic)
    with pytest.raises(NumericalError, match="at step 1 of row"):
        begin(model, PROMPTS, {"max_new_tokens": 16}, captured=captured).drain()
