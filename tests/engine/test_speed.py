"""`speed` on a loaded model: one word for the cache and the precision."""

from __future__ import annotations

import pytest
import torch

import wavefront
from wavefront.core.errors import OptionError
from wavefront.engine.options import SPEEDS, resolve_cache

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
