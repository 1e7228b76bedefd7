"""Log-likelihoods: published values and draws, the exact expectation, and edge cases."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import wavefront
from wavefront.core.errors import OptionError
from wavefront.engine.layout import prompt_canvas
from wavefront.integrations.lm_eval.likelihood import (
    LikelihoodSettings,
    NoisedBatch,
    estimate,
    fit_to_model,
    is_greedy,
    log_likelihood,
    noised_batches,
    segments,
)
from wavefront.models.loader import families, family_module
from wavefront.models.toy import toy

GOLDEN = Path(__file__).parents[1] / "golden"
CASES = json.loads((GOLDEN / "cases.json").read_text())["loglikelihood"]


@cache
def model(name: str):
    return wavefront.load_model(GOLDEN / name, dtype="float32", device="cpu")


def rule_of(case) -> str:
    if case.get("mask_ratio_per_row") is not None:
        return "dream"
    return "llada" if "llada" in case["model"] else "left_to_right"


def setting_of(case) -> LikelihoodSettings:
    return LikelihoodSettings(rule_of(case), case["mc_num"], case["batch_size"], case["cfg_scale"])


def recorded(case) -> list[NoisedBatch]:
    """Return the fixture's copies with weights computed without our code."""
    found, count = [], sum(len(rows) for rows in case["noised_batches"])
    truth = torch.tensor([*case["prompt"], *case["answer"]])
    for number, rows in enumerate(case["noised_batches"]):
        tokens = torch.tensor(rows)
        masked = tokens != truth
        if rule_of(case) == "left_to_right":
            first = masked & (masked.cumsum(1) == 1)
            found.append(NoisedBatch(tokens, first, torch.ones(len(rows)).double()))
            continue
        share = masked.sum(1) / len(case["answer"])
        if rule_of(case) == "dream":
            share = torch.tensor(case["mask_ratio_per_row"][number])
        found.append(NoisedBatch(tokens, masked, 1 / (share.double() * count)))
    return found


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_recorded_copies_give_the_published_value(case):
    given = {"copies": recorded(case), "cfg_scale": case["cfg_scale"]}
    value = estimate(model(case["model"]), case["prompt"], case["answer"], **given)
    assert value == pytest.approx(case["expected_log_likelihood"], rel=1e-5)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_copies_are_drawn_as_published(case):
    generator = torch.Generator().manual_seed(case["seed"])
    given = {"settings": setting_of(case), "mask_id": model(case["model"]).mask_id}
    drawn = list(noised_batches(case["prompt"], case["answer"], generator=generator, **given))
    assert [one.tokens.tolist() for one in drawn] == case["noised_batches"]
    for ours, theirs in zip(drawn, recorded(case), strict=True):
        assert torch.equal(ours.scored, theirs.scored)
        assert torch.allclose(ours.weight, theirs.weight, rtol=1e-6)


def exact(net, prompt: list[int], answer: list[int]) -> float:
    """Return the expectation of LLaDA's estimate over all sets of masked positions."""
    size, total = len(answer), 0.0
    for count in range(1, size + 1):
        sets = list(itertools.combinations(range(size), count))
        for chosen in sets:
            tokens = torch.tensor([[*prompt, *answer]])
            at = torch.tensor([[len(prompt) + index for index in chosen]])
            truth = tokens.gather(1, at)
            logits = net.head(net.hidden(tokens.scatter(1, at, net.mask_id), None, at))
            logp = logits.log_softmax(-1).gather(-1, truth[..., None]).sum()
            total += float(logp) * size / count / len(sets) / size
    return total


@torch.no_grad()
def test_estimate_converges_to_its_expectation():
    net, prompt, answer = toy(3, vocab_size=16), [1, 2, 3], [4, 5, 6]
    expected = exact(net, prompt, answer)
    errors = [
        log_likelihood(net, prompt, answer, settings=LikelihoodSettings(copies=256, seed=seed))
        - expected
        for seed in range(8)
    ]
    spread = math.sqrt(sum(e * e for e in errors) / len(errors))
    assert 0 < spread < 0.15 * abs(expected)
    assert abs(sum(errors) / len(errors)) < 3 * spread / math.sqrt(len(errors))
    few = log_likelihood(net, prompt, answer, settings=LikelihoodSettings(copies=1, at_once=1))
    assert few != pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("rule", ["llada", "dream", "left_to_right"])
@pytest.mark.parametrize("family", ["llada", "dream"])
def test_value_depends_only_on_the_item(rule, family):
    net, settings = toy(1, family=family), LikelihoodSettings(rule, 8, 4)
    items = [([5, 6, 7], [8, 9]), ([], [8, 9, 10]), ([5], [11])]
    first = [log_likelihood(net, *item, settings=settings) for item in items]
    assert [log_likelihood(net, *item, settings=settings) for item in reversed(items)] == first[
        ::-1
    ]
    assert all(-1000 < value < 0 for value in first)
    if rule != "left_to_right":
        other = log_likelihood(net, *items[0], settings=settings._replace(seed=1))
        assert other != first[0]


def test_one_token_is_exact_with_one_copy():
    net = toy(1)
    many = log_likelihood(net, [1, 2], [3], settings=LikelihoodSettings(copies=64))
    assert log_likelihood(net, [1, 2], [3], settings=LikelihoodSettings(copies=1)) == many


def test_left_to_right_is_the_same_in_any_batch():
    net = toy(2, family="dream")
    values = [
        log_likelihood(net, [1], [2, 3, 4], settings=LikelihoodSettings("left_to_right", 1, n))
        for n in (1, 3, 9)
    ]
    assert values == pytest.approx([values[0]] * 3, rel=1e-6)


def test_guidance_changes_the_value_and_empty_answers_score_zero():
    net = toy(1)
    plain, guided = (
        log_likelihood(net, [1, 2], [3, 4], settings=LikelihoodSettings(copies=4, cfg_scale=s))
        for s in (0.0, 1.0)
    )
    assert plain != guided
    assert log_likelihood(net, [1, 2], [], settings=LikelihoodSettings()) == 0.0
    assert is_greedy(net, [1, 2], [])


def test_long_prompt_is_cut_on_its_left():
    net = toy(1, max_length=8)
    short = log_likelihood(net, [3, 4, 5, 6, 7], [8, 9, 10], settings=LikelihoodSettings(copies=4))
    assert (
        log_likelihood(
            net, [1, 2, 3, 4, 5, 6, 7], [8, 9, 10], settings=LikelihoodSettings(copies=4)
        )
        == short
    )
    assert fit_to_model(net, [1, 2], list(range(12)), rule="llada") == ([], list(range(4, 12)))
    prompt, answer = fit_to_model(net, list(range(9)), [1, 2], rule="dream")
    assert answer == [1, 2, net.stop_ids[0]]
    assert len(prompt) + len(answer) == 8


# Every family, and a bd3lm of Tiny-A2D.
KINDS = [*families(), "bd3lm"]
BY_BLOCK = [kind for kind in KINDS if kind == "bd3lm" or "block_size" in family_module(kind).TOY]


def toy_of(kind: str, seed: int = 4, **sizes: int) -> Any:
    net = toy(seed, family="a2d" if kind == "bd3lm" else kind, **sizes)
    if kind == "bd3lm":
        net = type(net)(replace(net.config, block_size=4)).to_empty(device="cpu").eval()
        net.init_weights(seed, std=0.3)
    return net


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("prompt", [[1, 2, 3], [1, 2, 3, 4], [5]], ids=len)
@pytest.mark.parametrize("scale", [0.0, 1.0])
def test_greedy_answer_is_the_decoded_one(kind, prompt, scale):
    for seed, length in ((4, 6), (5, 8), (6, 5)):
        net = toy_of(kind, seed)
        options = {"strategy": "standard", "sampling": "llada", "cfg_scale": scale, "eos": "keep"}
        found = wavefront.generate_ids(net, [prompt], max_new_tokens=length, **options)
        (written,) = found.tokens
        assert is_greedy(net, prompt, written, cfg_scale=scale)
        for position in (0, length - 1):
            other = list(written)
            other[position] = (other[position] + 1) % 60
            assert not is_greedy(net, prompt, other, cfg_scale=scale)


# Block-causal models


def canvas_logp(net: Any, prompt: list[int], tokens: list[int], at: int) -> Tensor:
    """Return the log-probabilities of one position of a canvas, computed from the whole canvas."""
    board = prompt_canvas(net, [prompt], len(tokens))
    place = board.slot >= 0
    row = board.tokens.clone()
    row[0, place[0].nonzero()[: len(tokens), 0]] = torch.tensor(tokens)
    where = (board.slot == at).nonzero()[:, 1][None]
    attend = None if bool(board.real.all()) else board.real
    return net.head(net.hidden(row, attend, where))[0, 0].log_softmax(-1)


@torch.no_grad()
@pytest.mark.parametrize("kind", BY_BLOCK)
@pytest.mark.parametrize("prompt", [[1, 2, 3], [1, 2, 3, 4], [5]], ids=len)
def test_left_to_right_of_a_block_model_is_the_value_of_its_decode(kind, prompt):
    """Each token is scored on the canvas that left-to-right decoding would show the model."""
    net, answer = toy_of(kind), [7, 8, 9, 10, 11, 12, 13]
    scored = [*answer, net.stop_ids[0]]
    expected = 0.0
    for place, token in enumerate(scored):
        shown = [*scored[:place], *[net.mask_id] * (len(scored) - place)]
        expected += float(canvas_logp(net, prompt, shown, place)[token])
    found = log_likelihood(net, prompt, answer, settings=LikelihoodSettings("left_to_right", 1, 3))
    assert found == pytest.approx(expected, rel=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("kind", BY_BLOCK)
def test_estimate_of_a_block_model_sums_exact_blocks(kind):
    """The estimate converges to the sum over blocks, each after the clean text before it."""
    net, prompt, answer = toy_of(kind), [1, 2, 3], [7, 8, 9, 10, 11]
    start = 0 if net.padded_blocks else -len(prompt)
    blocks: dict[int, list[int]] = {}
    for place in range(len(answer)):
        blocks.setdefault((place - start) // 4, []).append(place)
    expected = 0.0
    for places in blocks.values():
        for count in range(1, len(places) + 1):
            sets = list(itertools.combinations(places, count))
            for chosen in sets:
                shown = [
                    net.mask_id if place in chosen or place > places[-1] else token
                    for place, token in enumerate(answer)
                ]
                logp = sum(
                    float(canvas_logp(net, prompt, shown, place)[answer[place]]) for place in chosen
                )
                expected += logp / count / len(sets)
    found = [
        log_likelihood(net, prompt, answer, settings=LikelihoodSettings(copies=256, seed=seed))
        for seed in range(4)
    ]
    assert sum(found) / len(found) == pytest.approx(expected, rel=0.08)


@pytest.mark.parametrize("kind", BY_BLOCK)
@pytest.mark.parametrize("rule", ["llada", "dream", "left_to_right"])
def test_later_blocks_do_not_change_the_value_of_earlier_ones(kind, rule):
    """The value of an answer is the value of its first blocks and of the rest after them."""
    net, prompt, answer = toy_of(kind), [1, 2, 3, 4], [7, 8, 9, 10, 11, 12]
    parts = list(segments(net, prompt, answer))
    size = net.block_size
    assert [(len(one.before), len(one.part), one.last) for one in parts] == [
        (4, 4, False), (8, 2, True)
    ]  # fmt: skip
    assert size == 4
    settings = LikelihoodSettings(rule, 32, 8)
    value = log_likelihood(net, prompt, answer, settings=settings)
    assert -1000 < value < 0
    assert log_likelihood(net, prompt, answer, settings=settings) == value
    if rule == "left_to_right":
        rest = log_likelihood(net, [*prompt, *answer[:4]], answer[4:], settings=settings)
        changed = log_likelihood(net, prompt, [*answer[:4], 20, 21], settings=settings)
        other = log_likelihood(net, [*prompt, *answer[:4]], [20, 21], settings=settings)
        assert value - rest == pytest.approx(changed - other, rel=1e-5)


@pytest.mark.parametrize("kind", BY_BLOCK)
def test_long_items_of_a_block_model_are_cut_to_whole_blocks(kind):
    net = toy_of(kind, max_length=16)
    prompt, answer = fit_to_model(net, list(range(20)), [1, 2, 3], rule="llada")
    board = prompt_canvas(net, [prompt], len(answer))
    assert board.tokens.shape[1] <= 16
    assert len(prompt) >= 12
    assert prompt == list(range(20 - len(prompt), 20))
    assert log_likelihood(net, prompt, answer, settings=LikelihoodSettings(copies=4)) < 0


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"rule": "lada"}, "did you mean 'llada'"),
        ({"copies": 0}, "mc_num must be between 1"),
        ({"copies": 100, "at_once": 32}, "mc_num=100 must be a multiple of mc_batch=32"),
        ({"cfg_scale": -1.0}, "cfg_scale must be between 0 and 100"),
        ({"seed": -1}, "seed must be between 0"),
    ],
)
def test_bad_settings_are_refused(change, says):
    with pytest.raises(OptionError, match=says):
        log_likelihood(toy(), [1], [2], settings=LikelihoodSettings(**change))
