"""Each primitive of the mask algebra against brute force."""

from __future__ import annotations

import math
import random

import pytest
import torch

from wavefront.core.masks import FAR, distance, first, marked, placed, rank, top

ODD = (float("nan"), float("-inf"), float("inf"), 0.0, -0.0, 1.0)


def boards(seed: int):
    rng = random.Random(seed)
    for _ in range(200):
        rows, length = rng.randint(1, 4), rng.randint(1, 20)
        mask = torch.tensor([[rng.random() < 0.4 for _ in range(length)] for _ in range(rows)])
        score = [[rng.choice((*ODD, 0.5, 0.25)) for _ in range(length)] for _ in range(rows)]
        yield rng, mask, torch.tensor(score)


def best_first(scores, among):
    """Positions of `among`: higher score, then smaller position; NaN and -inf last."""
    value = [-math.inf if math.isnan(s) else s for s in scores]
    return sorted((p for p, here in enumerate(among) if here), key=lambda p: (-value[p], p))


def test_distance():
    for _, mask, _ in boards(1):
        for row, found in zip(mask.tolist(), distance(mask).tolist(), strict=True):
            marked = [p for p, here in enumerate(row) if here]
            for place, value in enumerate(found):
                if marked:
                    assert value == min(abs(place - p) for p in marked)
                else:
                    assert value >= FAR - len(row)


def test_distance_equals_dilation():
    """A second, independent formula: a place is within R exactly when max-pooling marks it."""
    for rng, mask, _ in boards(2):
        radius = rng.randint(1, 6)
        pooled = torch.nn.functional.max_pool1d(
            mask.float(), 2 * radius + 1, stride=1, padding=radius
        )
        assert torch.equal(distance(mask) <= radius, pooled > 0)


def test_rank_and_top():
    for rng, among, scores in boards(3):
        found = rank(scores, among)
        k = torch.tensor([rng.randint(-1, 9) for _ in range(len(among))])
        chosen = top(scores, among, k)
        for row in range(len(among)):
            order = best_first(scores[row].tolist(), among[row].tolist())
            assert [found[row, p].item() for p in order] == list(range(len(order)))
            assert all(found[row, p] == FAR for p in range(among.shape[1]) if not among[row, p])
            expected = sorted(order[: max(0, int(k[row]))])
            assert chosen[row].nonzero()[:, 0].tolist() == expected


def test_an_ineligible_place_never_starves_an_eligible_one():
    """The reason why eligibility is a mask and not a score of -inf."""
    scores = torch.tensor([[float("-inf"), float("nan"), 3.0]])
    assert top(scores, torch.tensor([[False, True, False]]), 1).tolist() == [[False, True, False]]


@pytest.mark.parametrize("n", [0, 1, 3, 50])
def test_first(n):
    for _, mask, _ in boards(4):
        for row, found in zip(mask.tolist(), first(mask, n).tolist(), strict=True):
            marked = [p for p, here in enumerate(row) if here][:n]
            assert [p for p, here in enumerate(found) if here] == marked


def test_marked_and_placed():
    for rng, mask, _ in boards(7):
        rows, length = mask.shape
        places = [rng.sample(range(length), rng.randint(1, length)) for _ in range(rows)]
        count = min(map(len, places))
        at = torch.tensor([row[:count] for row in places])
        found, board = marked(at, length), placed(mask.long(), at, at + 5)
        for row in range(rows):
            here = set(at[row].tolist())
            assert [p for p in range(length) if found[row, p]] == sorted(here)
            expected = [p + 5 if p in here else int(mask[row, p]) for p in range(length)]
            assert board[row].tolist() == expected
