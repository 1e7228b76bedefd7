"""`speed` on a loaded model: one word for the cache and the precision."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from helpers.commands import run

import wavefront
from wavefront.core.bounds import DEFAULT_STRATEGY
from wavefront.core.errors import OptionError
from wavefront.engine.options import SPEEDS, resolve_cache, resolve_strategy
from wavefront.models.toy import toy
from wavefront.strategies.caches.blocks import Blocks
from wavefront.text.byte_tokenizer import byte_tokenizer
from wavefront.traces import trace_file

CACHES = {word: resolve_cache(options.cache) for word, options in SPEEDS.items()}


@pytest.fixture
def no_bfloat16(monkeypatch):
    """A CPU without instructions for bfloat16."""
    monkeypatch.setattr("wavefront.lm.computes_bfloat16", lambda device: False)


@pytest.mark.parametrize("word", SPEEDS)
def test_loaded_speed_is_the_default_of_every_decode(word, no_bfloat16):
    lm = wavefront.load("toy", speed=word)
    assert lm.plan({}).cache == CACHES[word]
    assert lm.request("abc", max_new_tokens=4).plan.cache == CACHES[word]
    assert lm.stream("abc", max_new_tokens=4).decoding.plan.cache == CACHES[word]
    assert lm.stream_infill("abc<mask:4>").decoding.plan.cache == CACHES[word]


def test_option_of_a_decode_wins_over_the_loaded_speed(no_bfloat16):
    lm = wavefront.load("toy", speed="fast")
    assert lm.plan({"speed": "exact"}).cache is None
    assert lm.plan({"speed": "balanced"}).cache == CACHES["balanced"]
    assert lm.plan({"cache": "none"}).cache is None
    assert lm.plan({"speculate": 2}).cache is None


@pytest.mark.parametrize("word", SPEEDS)
def test_speed_changes_the_cache_and_nothing_else(word, no_bfloat16):
    """Not the strategy, and no other option, whether it is given or not."""
    lm = wavefront.load("toy")
    for given in ({}, {"strategy": "dsb(size=8)", "steps": 9, "temperature": 0.5}):
        found, usual = lm.plan({"speed": word, **given}), lm.plan(given)
        assert replace(found, cache=None) == replace(usual, cache=None)
        assert lm.plan({"speed": word, "cache": "dual", **given}).cache == resolve_cache("dual")


@pytest.mark.parametrize("word", SPEEDS)
def test_block_causal_model_keeps_its_exact_cache_at_every_speed(word):
    lm = wavefront.LM(toy(family="sdar", vocab_size=258), byte_tokenizer(), speed=word)
    assert lm.plan({}).cache == lm.plan({"speed": word}).cache == Blocks()
    assert lm.plan({"cache": "none"}).cache is None


def test_command_line_option_wins_over_speed(tmp_path):
    """The recorded options say which cache was used."""
    caches = {}
    for name, more in {"word": (), "own": ("--cache", "dual"), "none": ("--cache", "none")}.items():
        file = str(tmp_path / f"{name}.npz")
        run("trace", "record", "abc", "-m", "toy", "-n", "32", "--speed", "fast", *more,
            "--out", file)  # fmt: skip
        options = trace_file.load(file).about["options"]
        caches[name] = resolve_cache(options["cache"])
        assert options["strategy"] == repr(resolve_strategy(DEFAULT_STRATEGY))
    assert caches == {"word": CACHES["fast"], "own": resolve_cache("dual"), "none": None}


def test_decode_is_repeated_from_its_options_on_a_model_of_another_speed(no_bfloat16):
    fast, exact = (wavefront.load("toy", speed=word) for word in ("fast", "exact"))
    for made in (fast.plan({}), exact.plan({})):
        assert fast.plan(made.options()) == exact.plan(made.options()) == made


def test_trace_of_a_fast_decode_replays_on_an_exact_model(no_bfloat16):
    fast, exact = (wavefront.load("toy", speed=word) for word in ("fast", "exact"))
    options = {"max_new_tokens": 48, "eos": "keep"}
    trace = fast.generate("abc", trace=True, **options).trace
    assert exact.replay(trace) is None
    plain = exact.generate("abc", trace=True, **options).trace
    assert fast.replay(plain) is None


def test_fast_computes_fewer_positions_than_balanced_and_both_fewer_than_exact():
    lm = wavefront.load("toy")
    costs = [
        lm.generate("abc", speed=word, max_new_tokens=64, eos="keep").token_forwards
        for word in ("exact", "balanced", "fast")
    ]
    assert costs[0] > 1.5 * costs[1] > 1.5 * costs[2]


def test_fast_loads_in_bfloat16_on_a_cpu_that_computes_in_it(monkeypatch):
    monkeypatch.setattr("wavefront.lm.computes_bfloat16", lambda device: True)
    given = {"device": "cpu"}
    assert wavefront.load("toy", speed="fast", **given).model.dtype == torch.bfloat16
    assert wavefront.load("toy", speed="balanced", **given).model.dtype == torch.float32
    assert wavefront.load("toy", **given).model.dtype == torch.float32
    chosen = wavefront.load("toy", speed="fast", dtype="float64", **given)
    assert chosen.model.dtype == torch.float64  # an explicit option wins


def test_unknown_speed_is_rejected_before_a_model_is_loaded():
    with pytest.raises(OptionError, match="speed must be one of exact, balanced, fast") as error:
        wavefront.load("no/such-model", speed="quick")
    assert error.value.option == "speed"
