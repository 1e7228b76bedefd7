"""Causal and block-causal attention of the transformer."""

from __future__ import annotations

import pytest
import torch

from wavefront.models.toy import toy
from wavefront.models.transformer import Transformer


def causal(family: str, block: int) -> Transformer:
    """Return a toy model with causal attention in blocks."""
    model = toy(family=family, vocab_size=64, device="cpu", dtype="float64")
    model.block_size = block
    return model


def tokens(rows: int, length: int) -> torch.Tensor:
    return torch.randint(0, 60, (rows, length), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("family", ["llada", "dream"])
@pytest.mark.parametrize("block", [1, 4])
def test_later_tokens_change_only_their_own_block_and_later_ones(family: str, block: int) -> None:
    model, ids = causal(family, block), tokens(2, 12)
    changed = ids.clone()
    changed[:, 6] += 1
    same = (model(ids) == model(changed)).all(-1)
    first = 6 // block * block
    assert same[:, :first].all()
    assert not same[:, first:].any()


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_causal_output_does_not_depend_on_the_length(family: str) -> None:
    model, ids = causal(family, 1), tokens(2, 12)
    whole = model(ids)
    for length in (1, 5, 11):
        short = model(ids[:, :length])
        assert torch.allclose(short, whole[:, :length], rtol=0, atol=1e-12)


@pytest.mark.parametrize("family", ["llada", "dream"])
@pytest.mark.parametrize("block", [1, 3])
def test_stored_keys_give_the_same_output_token_by_token(family: str, block: int) -> None:
    model, ids = causal(family, block), tokens(2, 9)
    whole = model.encode(ids)
    kv = model.new_kv(2, 9)
    for first in range(0, 9, block):
        window = torch.arange(first, first + block).expand(2, -1)
        part = model.encode(ids, window=window, kv=kv)
        assert torch.allclose(part, whole[:, first : first + block], rtol=0, atol=1e-12)


@pytest.mark.parametrize("family", ["sdar", "fast_dllm_v2", "llada2", "stable_diffcoder"])
def test_finished_blocks_do_not_depend_on_what_follows(family: str) -> None:
    """Cutting the canvas after a block, and storing earlier blocks, change nothing."""
    model, ids = toy(family=family, vocab_size=64, dtype="float64"), tokens(2, 12)
    size = model.block_size
    assert size == 4
    at = torch.arange(4, 8).expand(2, -1)
    whole = model.hidden(ids, None, at)
    torch.testing.assert_close(model.hidden(ids[:, :8], None, at), whole)
    kv = model.new_kv(2, 8)
    model.encode(ids[:, :8], window=torch.arange(4).expand(2, -1), kv=kv)
    stored = model.hidden(ids[:, :8], None, at, window=at, kv=kv)
    torch.testing.assert_close(stored, whole)


def test_blocks_are_counted_from_the_first_token_or_from_the_first_column() -> None:
    ids = tokens(1, 12)
    attend = torch.arange(12)[None] >= 3
    for family, first in (("sdar", 3), ("a2d", 0)):
        model = toy(family=family, vocab_size=64, dtype="float64")
        model.block_size = 4
        changed = ids.clone()
        changed[0, 7] += 1
        same = (model(ids, attend) == model(changed, attend)).all(-1)[0]
        start = first + (7 - first) // 4 * 4
        assert same[3:start].all()
        assert not same[start:].any()


def test_rows_may_compute_different_positions() -> None:
    model, ids = causal("dream", 1), tokens(2, 9)
    whole, kv = model.encode(ids), model.new_kv(2, 9)
    model.encode(ids, kv=kv)
    window = torch.tensor([[3], [7]])
    part = model.encode(ids, window=window, kv=kv)
    wanted = torch.stack([whole[0, 3], whole[1, 7]])[:, None]
    assert torch.allclose(part, wanted, rtol=0, atol=1e-12)


def test_requested_positions_keep_their_own_mask() -> None:
    model, ids = causal("dream", 1), tokens(2, 9)
    at = torch.tensor([[4, 0, 8], [2, 2, 7]])
    part = model.encode(ids, at=at)
    wanted = model.encode(ids)[torch.arange(2)[:, None], at]
    assert torch.allclose(part, wanted, rtol=0, atol=1e-12)


def test_attended_positions_and_causality_hold_together() -> None:
    model, ids = causal("llada", 1), tokens(1, 8)
    attend = torch.ones(1, 8, dtype=torch.bool)
    attend[0, 3] = False
    changed = ids.clone()
    changed[0, 3] += 1
    same = (model(ids, attend) == model(changed, attend)).all(-1)[0]
    assert same.tolist() == [True, True, True, False, True, True, True, True]


@pytest.mark.parametrize(("family", "shift"), [("llada", 0), ("dream", 1)])
def test_predictors_are_aligned_with_the_tokens(family: str, shift: int) -> None:
    model = toy(family=family, vocab_size=64, device="cpu")
    ids = tokens(2, 6)
    plain, aligned = model.encode(ids), model.predictors(ids)
    assert torch.equal(aligned[:, 1:], plain[:, 1 - shift : 6 - shift])
    at = torch.arange(6).expand(2, -1)
    assert torch.allclose(aligned, model.hidden(ids, None, at), atol=1e-6)
