from __future__ import annotations

import inspect
import re

import pytest

from wavefront.core import spec
from wavefront.core.bounds import DEFAULT_STRATEGY
from wavefront.core.errors import OptionError
from wavefront.engine.options import SPEEDS, ModelProperties, Options, plan, resolve_cache
from wavefront.lm import LM
from wavefront.strategies.block import Block
from wavefront.strategies.selectors.dream import Dream
from wavefront.strategies.selectors.origin import Origin
from wavefront.strategies.selectors.threshold import Threshold
from wavefront.strategies.standard import Standard
from wavefront.strategies.wavefront import Wavefront

LLADA = ModelProperties(mask_id=9, stop_ids=(2, 3), family="llada", vocab_size=10)
DREAM = LLADA._replace(family="dream")


def test_defaults_stop_at_the_end_of_the_answer():
    made = plan({}, LLADA)
    assert made.config.strategy == spec.resolve(DEFAULT_STRATEGY, "strategies")
    assert made.config.strategy == Block(size=32, selector=Threshold(tau=0.99, floor=None))
    assert (made.length, made.steps, made.seed) == (128, 128, 0)
    assert made.config.priority == "confidence"
    assert made.config.sampling.eos == "stop"
    assert made.config.order_noise == 0


def test_option_of_one_strategy_selects_it():
    assert plan({"radius": 3}, LLADA).config.strategy == Wavefront(radius=3)
    assert plan({"max_wave_size": 4}, LLADA).config.strategy == Wavefront(size=4)
    assert plan({"block_length": 8}, LLADA).config.strategy == Block(size=8)


def test_decode_that_fills_its_canvas_keeps_the_end_token_by_default():
    assert plan({"fixed_budget": True}, LLADA).config.sampling.eos == "keep"
    assert plan({}, LLADA, length=4).config.sampling.eos == "keep"  # the holes of a text
    assert plan({}, LLADA._replace(stop_ids=())).config.sampling.eos == "keep"
    assert plan({"stop_ids": []}, LLADA).config.sampling.eos == "keep"


@pytest.mark.parametrize(
    ("given", "same"),
    [
        ({"gen_length": 32}, {"max_new_tokens": 32}),
        ({"max_tokens": 32}, {"max_new_tokens": 32}),
        ({"strategy": "block"}, {"strategy": "block"}),
        ({"block_length": 4}, {"strategy": "block(size=4)"}),
        ({"block_size": 4}, {"strategy": "block(size=4)"}),
        ({"strategy": "block", "block_length": 4}, {"strategy": "block(size=4)"}),
        ({"max_wave_size": 4, "radius": 3}, {"strategy": "wavefront(size=4, radius=3)"}),
        ({"remasking": "low_confidence"}, {"priority": "confidence"}),
        ({"remasking": "random"}, {"priority": "random"}),
        ({"logits_eos_inf": True}, {"eos": "suppress-logit"}),
        ({"confidence_eos_eot_inf": True}, {"eos": "llada-confidence"}),
        ({"logits_eos_inf": False}, {"eos": "stop"}),
        ({"eos_policy": "stop"}, {"eos": "stop"}),
        ({"mask_id": 9}, {}),
        ({"cache": "none"}, {}),
        ({"steps": None, "top_p": None, "eos": None, "seed": None, "max_new_tokens": None}, {}),
        ({"output_history": True}, {}),
    ],
)
def test_published_option_names_are_accepted(given, same):
    assert plan(given, LLADA) == plan(same, LLADA)


def test_dream_sampler_accepts_its_own_option_names():
    made = plan({"alg": "maskgit_plus", "eps": 0.1, "alg_temp": 0.4}, DREAM).config
    assert made.strategy == Standard(selector=Dream(0.1))
    assert made.priority == "probability"
    assert made.order_noise == 0.4
    assert made.sampling.rule == "dream"
    assert plan({"alg": "origin"}, DREAM).config.strategy == Standard(selector=Origin())
    assert plan({"alg": "topk_margin"}, DREAM).config.priority == "margin"
    assert plan({"alg": "entropy"}, LLADA).config.sampling.rule == "dream"


def test_each_family_samples_by_its_own_rule_by_default():
    assert plan({}, LLADA).config.sampling.rule == "llada"
    assert plan({}, DREAM).config.sampling.rule == "dream"
    assert plan({"sampling": "llada"}, DREAM).config.sampling.rule == "llada"


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"gen_lenght": 3}, "did you mean 'gen_length'"),
        ({"max_new_tokens": 0}, "max_new_tokens must be between 1"),
        ({"max_new_tokens": 2.0}, "max_new_tokens must be a whole number"),
        ({"max_new_tokens": 1 << 40}, "max_new_tokens must be between"),
        ({"steps": 0}, "steps must be between"),
        ({"steps": "many"}, "steps must be a whole number"),
        ({"seed": -1}, "seed must be between"),
        ({"priority": "confidance"}, "did you mean 'confidence'"),
        ({"eos": "halt"}, "eos must be one of"),
        ({"cfg_scale": -1}, "cfg_scale must be between 0 and 100"),
        ({"order_noise": float("inf")}, "order_noise must be between 0 and 1000000"),
        ({"fixed_budget": 1}, "fixed_budget must be True or False"),
        ({"stop_ids": [10]}, "stop_ids must be between 0 and 9"),
        ({"stop_ids": 5}, "stop_ids must be a list"),
        ({"stop_ids": [2, 9]}, "stop_ids must not contain the mask id, 9"),
        ({"priority": ""}, "priority must be one of"),
        ({"block_length": 0}, "block_length must be between 1"),
        ({"radius": 0}, "radius must be between 1"),
        ({"alg": "entropy", "alg_temp": -1}, "alg_temp must be between 0"),
        ({"alg": "entropy", "alg_temp": 1, "order_noise": 1}, "set the same thing"),
        ({"strategy": "block(size=2, selector=dream())", "steps": 8}, "fewer than the 64 blocks"),
        ({"cache": "duel"}, "no cache 'duel'"),
        ({"mask_id": 4}, "not this model's"),
        ({"gen_length": 3, "max_new_tokens": 3}, "given twice"),
        ({"priority": "margin", "remasking": "random"}, "set the same thing"),
        ({"eos": "stop", "logits_eos_inf": True}, "one EOS policy"),
        ({"alg": "maskgit"}, "did you mean 'maskgit_plus'"),
        ({"alg": "entropy", "strategy": "block"}, "whole sampler"),
        ({"eps": 0.1}, "give alg="),
        ({"alg_temp": 0.1}, "give alg="),
        ({"alg": "entropy", "eps": 2}, "eps must be between"),
        ({"strategy": "block", "radius": 3}, "belongs to wavefront"),
        ({"strategy": "wavefront", "block_length": 3}, "belongs to block"),
        ({"strategy": 3}, "must be a spec string"),
        ({"strategy": "block(size=2)", "steps": 8}, "fewer than the 64 blocks"),
    ],
)
def test_invalid_options_are_rejected(given, sentence):
    with pytest.raises(OptionError, match=sentence) as caught:
        plan(given, LLADA)
    assert caught.value.option in given


def test_strategy_object_is_used_unchanged():
    assert plan({"strategy": Block(4)}, LLADA).config.strategy == Block(4)


def test_exact_is_the_default_speed_and_uses_no_cache():
    assert plan({}, LLADA).cache is None
    assert plan({"speed": "exact"}, LLADA) == plan({"speed": None}, LLADA) == plan({}, LLADA)
    assert SPEEDS["exact"] == (None, None)


@pytest.mark.parametrize("word", ["balanced", "fast"])
def test_speed_sets_the_cache_and_nothing_else_of_a_decode(word):
    made = plan({"speed": word}, LLADA)
    assert made.cache == resolve_cache(SPEEDS[word].cache)
    assert made.cache is not None
    assert made.config == plan({}, LLADA).config  # the strategy too
    assert plan({"speed": word, "strategy": "block"}, LLADA).config.strategy == Block()


def test_explicit_options_win_over_speed():
    assert plan({"speed": "fast", "cache": "none"}, LLADA).cache is None
    assert plan({"speed": "fast", "cache": "dual"}, LLADA).cache == resolve_cache("dual")
    drafted = plan({"speed": "fast", "speculate": 3}, LLADA)  # which no cache can be combined with
    assert (drafted.cache, drafted.speculate) == (None, 3)


def test_speed_does_not_give_a_cache_to_a_model_that_cannot_use_one():
    assert plan({"speed": "fast"}, LLADA._replace(windows=False)).cache is None


@pytest.mark.parametrize(
    ("word", "hint"), [("quick", ""), ("fats", "did you mean 'fast'"), (3, "")]
)
def test_unknown_speed_is_an_error_that_names_the_words(word, hint):
    with pytest.raises(OptionError, match="exact, balanced, fast") as error:
        plan({"speed": word}, LLADA)
    assert hint in str(error.value)
    assert error.value.option == "speed"


def test_options_of_a_plan_repeat_it_whatever_the_speed():
    for given in ({}, {"speed": "fast"}, {"speed": "fast", "cache": "none"}):
        made = plan(given, LLADA)
        assert plan(made.options(), LLADA) == made


def test_every_option_is_described_once():
    listed = (Options.__doc__ or "").partition("Attributes:\n")[2]
    assert re.findall(r"^ {8}(\w+): ", listed, re.MULTILINE) == [*Options.__annotations__]


@pytest.mark.parametrize("method", [LM.generate, LM.stream, LM.infill])
def test_help_shows_every_option(method):
    parameters = inspect.signature(method).parameters
    assert Options.__annotations__.keys() <= parameters.keys()
    assert "**options" not in method.__doc__
    assert f"Default: `{DEFAULT_STRATEGY}`" in method.__doc__
    assert all(f"\n    {name}: " in method.__doc__ for name in Options.__annotations__)
