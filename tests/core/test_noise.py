"""The hash noise is stateless, uniform, and independent where it should be."""

from __future__ import annotations

import math

import torch

from wavefront.core import noise


def keys(seed, step, slots, stream=noise.TOKEN):
    one = torch.tensor
    return noise.key(one([seed]), one([step]), torch.as_tensor(slots)[None], stream=stream)


def test_draw_depends_only_on_seed_step_slot_and_token():
    alone = noise.over_tokens(keys(3, 5, [7]), 50)
    among = noise.over_tokens(keys(3, 5, [1, 7, 2]), 50)
    assert torch.equal(alone[:, 0], among[:, 1])
    wider = noise.over_tokens(keys(3, 5, [7]), 80)
    assert torch.equal(alone, wider[..., :50])
    for other in (keys(4, 5, [7]), keys(3, 6, [7]), keys(3, 5, [8]), keys(3, 5, [7], noise.ORDER)):
        assert (noise.over_tokens(other, 50) != alone).float().mean() > 0.9


def test_large_seeds_differ():
    assert not torch.equal(keys(1, 0, [0]), keys(1 + (1 << 32), 0, [0]))


def test_uniform_is_uniform_and_never_zero_or_one():
    draws = noise.uniform(noise.over_tokens(keys(0, 0, list(range(200))), 5000)).flatten()
    assert draws.min() > 0
    assert draws.max() < 1
    counts = torch.histc(draws, bins=100, min=0, max=1)
    expected = draws.numel() / 100
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert chi_square < 99 + 5 * math.sqrt(2 * 99)


def test_neighbouring_slots_steps_and_tokens_are_uncorrelated():
    board = noise.uniform(noise.over_tokens(keys(0, 0, list(range(300))), 1000))[0]
    later = noise.uniform(noise.over_tokens(keys(0, 1, list(range(300))), 1000))[0]
    for one, two in ((board[1:], board[:-1]), (board[:, 1:], board[:, :-1]), (board, later)):
        pair = torch.stack([one.flatten(), two.flatten()])
        assert abs(torch.corrcoef(pair)[0, 1]) < 0.01


def test_gumbel_argmax_samples_the_softmax():
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0, -3.0])
    draws = noise.gumbel(noise.over_tokens(keys(11, 0, list(range(40000))), 5))[0]
    found = torch.bincount((logits + draws).argmax(-1), minlength=5) / 40000
    assert torch.allclose(found, logits.softmax(-1), atol=0.012)
    assert draws.isfinite().all()


def test_runs_on_meta():
    one = torch.zeros(2, dtype=torch.long, device="meta")
    slots = torch.zeros(2, 3, dtype=torch.long, device="meta")
    keys = noise.over_tokens(noise.key(one, one, slots, stream=1), 7)
    assert noise.gumbel(keys).shape == (2, 3, 7)


def test_extreme_hashes_stay_strictly_inside_the_unit_interval():
    bits = torch.tensor([0, -1, 1 << 30, -(1 << 31), (1 << 31) - 1], dtype=torch.int32)
    assert ((noise.uniform(bits) > 0) & (noise.uniform(bits) < 1)).all()
    assert noise.gumbel(bits).isfinite().all()
