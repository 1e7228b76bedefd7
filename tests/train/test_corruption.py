"""The forward process follows its definition, and the loss matches arithmetic by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from wavefront.train.corruption import (
    corrupt,
    draw_levels,
    front_levels,
    likelihood_bound,
    normalise_loss,
    token_nll,
    uniform_draws,
)

MASK = 2


def sample(level: float, *, rows: int = 4000, length: int = 12, start: int = 4) -> Tensor:
    """Return which positions were masked, (rows, length) bool."""
    tokens = torch.arange(10, 10 + length).expand(rows, length)
    maskable = torch.arange(length).expand(rows, length) >= start
    probability = torch.full((rows,), level)
    draw = uniform_draws(3, 7, tokens)
    noisy = corrupt(tokens, maskable, probability, draw=draw, mask_id=MASK)
    assert torch.equal(noisy.tokens == MASK, noisy.masked)
    assert torch.equal(noisy.tokens[~noisy.masked], tokens[~noisy.masked])
    return noisy.masked


@pytest.mark.parametrize("level", [0.1, 0.5, 0.9])
def test_every_answer_position_is_masked_with_probability_t(level: float) -> None:
    masked = sample(level)
    assert not masked[:, :4].any(), "the prompt is never touched"
    shares = masked[:, 4:].float().mean(0)
    error = math.sqrt(level * (1 - level) / len(masked))
    assert (shares - level).abs().max() < 4.5 * error


@pytest.mark.parametrize("level", [0.3, 0.7])
def test_positions_and_rows_are_masked_independently(level: float) -> None:
    centred = sample(level)[:, 4:].float() - level
    scale = level * (1 - level)
    pairs = (centred.T @ centred) / len(centred) / scale
    neighbours = (centred[1:] * centred[:-1]).mean() / scale
    assert (pairs - torch.eye(8)).abs().max() < 0.1
    assert abs(float(neighbours)) < 0.03
    # The count of masked positions is binomial, variance included.
    counts = centred.sum(1)
    assert float(counts.var()) == pytest.approx(8 * scale, rel=0.1)


def test_level_one_masks_all_and_level_zero_none() -> None:
    assert sample(1.0)[:, 4:].all()
    assert not sample(0.0).any()


def test_noise_is_a_function_of_seed_and_step() -> None:
    like = torch.zeros(8, 16)
    assert torch.equal(uniform_draws(1, 2, like), uniform_draws(1, 2, like))
    assert not torch.equal(uniform_draws(1, 2, like), uniform_draws(1, 3, like))
    assert not torch.equal(uniform_draws(1, 2, like), uniform_draws(2, 2, like))
    # A row's noise does not depend on how many rows or positions there are.
    assert torch.equal(uniform_draws(1, 2, like)[:3, :5], uniform_draws(1, 2, torch.zeros(3, 5)))


@pytest.mark.parametrize("rows", [1, 2, 7, 512])
def test_levels_are_stratified(rows: int) -> None:
    eps = 1e-3
    for step in range(20):
        level = draw_levels(5, step, rows, eps=eps, device="cpu")
        assert float(level.min()) > eps * 0.999
        assert float(level.max()) <= 1
        # Exactly one level in each of `rows` equal parts of a circle: gaps are all the same.
        ordered = level.double().sort().values
        gaps = torch.diff(ordered)
        assert torch.allclose(gaps, torch.full_like(gaps, (1 - eps) / rows), atol=1e-5)


def test_levels_are_uniform_and_shuffled() -> None:
    drawn = torch.stack([draw_levels(0, step, 64, eps=0.0, device="cpu") for step in range(400)])
    by_row = drawn.mean(0)
    assert (by_row - 0.5).abs().max() < 4.5 * math.sqrt(1 / 12 / 400)
    neighbours = ((drawn[:, 1:] - 0.5) * (drawn[:, :-1] - 0.5)).mean()
    assert abs(float(neighbours)) < 0.01


def test_loss_matches_hand_arithmetic() -> None:
    logits = torch.tensor(
        [[[1.0, 0.0, 50.0], [0.0, 2.0, 50.0]], [[3.0, 0.0, -9.0], [0.5, 0.5, 0.0]]]
    )
    tokens = torch.tensor([[0, 1], [1, 0]])
    masked = torch.tensor([[True, False], [True, True]])
    level = torch.tensor([0.5, 1.0])
    nats = token_nll(logits, tokens, MASK)  # the mask token, id 2, takes no probability
    first = math.log1p(math.exp(-1.0))
    second = math.log1p(math.exp(3.0)) + math.log(2.0)
    bounds = likelihood_bound(nats, masked, level)
    assert bounds.tolist() == pytest.approx([first / 0.5, second])
    lengths = torch.tensor([2, 6])
    assert float(normalise_loss(bounds, lengths)) == pytest.approx((2 * first + second) / 8)
    by_rows = (2 * first / 2 + second / 6) / 2
    assert float(normalise_loss(bounds, lengths, by="rows")) == pytest.approx(by_rows)


def test_mask_logit_gets_no_gradient() -> None:
    logits = torch.randn(2, 3, 5, requires_grad=True)
    token_nll(logits, torch.tensor([[0, 1, 3], [4, 1, 0]]), MASK).sum().backward()
    assert logits.grad is not None
    assert not logits.grad[..., MASK].any()
    assert logits.grad.isfinite().all()


def test_weighted_loss_is_unbiased() -> None:
    """With nats that do not depend on the masks, the mean bound is the sum over the answer."""
    rows, length = 6000, 10
    nats = torch.rand(length).expand(rows, length)
    level = draw_levels(0, 0, rows, eps=0.02, device="cpu")
    maskable = torch.ones(rows, length, dtype=torch.bool)
    tokens = torch.full((rows, length), 9)
    noisy = corrupt(tokens, maskable, level, draw=uniform_draws(0, 0, tokens), mask_id=MASK)
    mean = float(likelihood_bound(nats, noisy.masked, level).mean())
    assert mean == pytest.approx(float(nats[0].sum()), rel=0.05)


def test_front_is_known_before_the_cut_and_masked_beyond_the_window() -> None:
    maskable = torch.arange(200) >= torch.tensor([[20]] * 4000)
    level = torch.full((4000,), 0.5)
    spread = front_levels(level, maskable, 1.0, seed=3, step=7)[:, 20:]
    for row in spread[:500].tolist():
        kinds = [value for index, value in enumerate(row) if index == 0 or row[index - 1] != value]
        assert kinds == sorted(kinds)  # 0, then t, then 1, each at most once
    known, window = (spread == 0).sum(1), (spread == 0.5).sum(1)
    assert set(window[known < 180 - 32].tolist()) == {4, 8, 16, 32}
    assert abs(known.double().mean() - 179 / 2) < 4
    assert int(known.max()) < 180  # something is left to learn in every row


def test_share_of_fronts_is_kept_and_zero_changes_nothing() -> None:
    maskable = torch.ones(4000, 64, dtype=torch.bool)
    level = torch.full((4000,), 0.5)
    assert (front_levels(level, maskable, 0.0, seed=0, step=1) == 0.5).all()
    mixed = front_levels(level, maskable, 0.25, seed=0, step=1)
    assert abs((mixed != 0.5).any(1).double().mean() - 0.25) < 0.03


def test_front_loss_matches_hand_arithmetic() -> None:
    nats = torch.tensor([[1.0, 2.0, 4.0]], requires_grad=True)
    level = torch.tensor([[0.0, 0.5, 1.0]])
    loss = likelihood_bound(nats, torch.tensor([[False, True, True]]), level)
    assert loss.tolist() == [8.0]
    loss.sum().backward()
    assert nats.grad is not None
    assert nats.grad.tolist() == [[0.0, 2.0, 1.0]]
