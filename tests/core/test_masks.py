"""Test every function of the mask algebra against brute force."""

from __future__ import annotations

import math
import random

import pytest
import torch

from wavefront.core.masks import FAR, distance, first, rank, to_mask, top, write_at

ODD = (float("nan"), float("-inf"), float("inf"), 0.0, -0.0, 1.0)


def random_masks(seed: int):
    rng = random.Random(seed)
    for _ in range(200):
        rows, length = rng.randint(1, 4), rng.randint(1, 20)
        mask = torch.tensor([[rng.random() < 0.4 for _ in range(length)] for _ in range(rows)])
        score = [[rng.choice((*ODD, 0.5, 0.25)) for _ in range(length)] for _ in range(rows)]
        yield rng, mask, torch.tensor(score)


def best_first(scores, candidates):
    """Return the candidates: higher score, then smaller position; NaN and -inf last."""
    value = [-math.inf if math.isnan(s) else s for s in scores]
    return sorted((p for p, here in enumerate(candidates) if here), key=lambda p: (-value[p], p))


def test_distance_is_the_distance_to_the_nearest_true():
    for _, mask, _ in random_masks(1):
        for row, found in zip(mask.tolist(), distance(mask).tolist(), strict=True):
            true = [p for p, here in enumerate(row) if here]
            for position, value in enumerate(found):
                if true:
                    assert value == min(abs(position - p) for p in true)
                else:
                    assert value >= FAR - len(row)


def test_distance_within_radius_equals_max_pooling():
    for rng, mask, _ in random_masks(2):
        radius = rng.randint(1, 6)
        pooled = torch.nn.functional.max_pool1d(
            mask.float(), 2 * radius + 1, stride=1, padding=radius
        )
        assert torch.equal(distance(mask) <= radius, pooled > 0)


def test_rank_and_top_follow_score_then_position():
    for rng, candidates, scores in random_masks(3):
        found = rank(scores, candidates)
        k = torch.tensor([rng.randint(-1, 9) for _ in range(len(candidates))])
        chosen = top(scores, candidates, k)
        for row in range(len(candidates)):
            order = best_first(scores[row].tolist(), candidates[row].tolist())
            assert [found[row, p].item() for p in order] == list(range(len(order)))
            others = (~candidates[row]).nonzero()[:, 0].tolist()
            assert all(found[row, p] == FAR for p in others)
            expected = sorted(order[: max(0, int(k[row]))])
            assert chosen[row].nonzero()[:, 0].tolist() == expected


def test_position_outside_the_candidates_never_displaces_a_candidate():
    """This is why candidates are a mask and not a score of -inf."""
    scores = torch.tensor([[float("-inf"), float("nan"), 3.0]])
    assert top(scores, torch.tensor([[False, True, False]]), 1).tolist() == [[False, True, False]]


@pytest.mark.parametrize("n", [0, 1, 3, 50])
def test_first_keeps_the_n_leftmost(n):
    for _, mask, _ in random_masks(4):
        for row, found in zip(mask.tolist(), first(mask, n).tolist(), strict=True):
            expected = [p for p, here in enumerate(row) if here][:n]
            assert [p for p, here in enumerate(found) if here] == expected


def test_to_mask_and_write_at_use_the_given_positions():
    for rng, mask, _ in random_masks(7):
        rows, length = mask.shape
        chosen = [rng.sample(range(length), rng.randint(1, length)) for _ in range(rows)]
        count = min(map(len, chosen))
        at = torch.tensor([row[:count] for row in chosen])
        found, written = to_mask(at, length), write_at(mask.long(), at, at + 5)
        for row in range(rows):
            here = set(at[row].tolist())
            assert [p for p in range(length) if found[row, p]] == sorted(here)
            expected = [p + 5 if p in here else int(mask[row, p]) for p in range(length)]
            assert written[row].tolist() == expected
