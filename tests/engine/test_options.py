from __future__ import annotations

import pytest

from wavefront.core.errors import OptionError
from wavefront.engine.options import Source, plan
from wavefront.strategies.block import Block
from wavefront.strategies.selectors.dream import Dream
from wavefront.strategies.selectors.origin import Origin
from wavefront.strategies.standard import Standard
from wavefront.strategies.wavefront import Wavefront

LLADA = Source(mask_id=9, stop_ids=(2, 3), family="llada", vocab_size=10)
DREAM = LLADA._replace(family="dream")


def test_defaults_are_those_of_the_paper():
    made = plan({}, LLADA)
    assert made.config.strategy == Wavefront(size=8, radius=2, grow="rebuild")
    assert (made.length, made.steps, made.seed) == (128, 128, 0)
    assert made.config.priority == "confidence"
    assert made.config.sampling.eos == "keep"
    assert made.config.order_noise == 0


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
        ({"logits_eos_inf": False}, {"eos": "keep"}),
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
        ({"cfg_scale": -1}, "cfg_scale must be at least 0"),
        ({"order_noise": float("inf")}, "order_noise must be at least 0"),
        ({"fixed_budget": 1}, "fixed_budget must be True or False"),
        ({"stop_ids": [10]}, "stop_ids must be between 0 and 9"),
        ({"stop_ids": 5}, "stop_ids must be a list"),
        ({"priority": ""}, "priority must be one of"),
        ({"block_length": 0}, "block_length must be at least 1"),
        ({"radius": 0}, "radius must be at least 1"),
        ({"alg": "entropy", "alg_temp": -1}, "alg_temp must be at least 0"),
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
