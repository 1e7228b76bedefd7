"""Rows of block-causal models: the published loops, the block step, and shared prompts."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from helpers.commands import run

import wavefront
from wavefront import bench
from wavefront.bench.block_reference import FAMILIES, BlockReference, by_block, published_loop
from wavefront.bench.block_rows import FirstBlock
from wavefront.bench.workloads import Case
from wavefront.core.canvas import blank
from wavefront.core.errors import OptionError
from wavefront.models.toy import toy

PROMPTS = [[5, 6, 7, 8, 9, 10, 11, 12], [20, 21, 22, 23, 24, 25, 26, 27]]


def model_of(family: str, **more: Any) -> Any:
    """Build a model that never predicts the mask token, which only the loops could propose."""
    model = toy(seed=3, family=family, **{"dtype": "float64", **more})
    with torch.no_grad():
        assert model.output is not None
        model.output.weight[model.mask_id] = 0
    return model


@pytest.mark.parametrize("family", FAMILIES)
def test_reference_computes_the_same_logits(family):
    model, ids = model_of(family), torch.tensor(PROMPTS)
    mask = by_block(8, model.block_size, model.final_norm.weight)
    with torch.no_grad():
        whole = BlockReference(model)(ids, mask=mask)[0]
        part = BlockReference(model)(ids[:, :4], mask=mask[..., :4, :4])
        later = BlockReference(model)(ids[:, 4:], part[1])[0]
    expected = model.raw_logits(PROMPTS)
    torch.testing.assert_close(whole, expected)
    torch.testing.assert_close(later, expected[:, 4:])


@pytest.mark.parametrize("family", FAMILIES)
def test_published_loop_gives_the_same_tokens(family):
    model, count = model_of(family), 12
    ids: dict[str, Any] = {"mask_id": model.mask_id, "pad_id": model.pad_id, "device": "cpu"}
    canvas = blank(PROMPTS, count, **ids).tokens
    loop = published_loop(BlockReference(model), canvas, 8, family=family, block=model.block_size)
    assert len(list(loop)) == count
    found = wavefront.generate_ids(
        model, PROMPTS, max_new_tokens=count, strategy="standard", eos="keep"
    )
    assert canvas[:, 8:].tolist() == found.tokens


@pytest.mark.parametrize("shared", [False, True])
def test_first_block_of_a_stored_prompt_computes_less(shared):
    case = Case(toy(family="sdar"), 128, 4, strategy="standard")
    piece = FirstBlock(case, shared=shared)
    piece.ready()
    before = piece.batcher.token_forwards
    assert piece() == 1
    computed = piece.batcher.token_forwards - before
    assert computed == (16 if shared else 144)


@pytest.mark.slow
def test_every_row_is_there():
    model = toy(family="sdar", vocab_size=96, max_length=256)
    sizes: dict[str, Any] = {"prompt_tokens": 16, "max_new_tokens": 64, "repeats": 2}
    report = bench.run(
        bench.Settings(model=model, name="toy", quick=True, lengths=(), batches=(), **sizes)
    )
    names = [one.name for one in report.rows]
    assert names == ["blocks-1", "blocks-published-1", "blocks-8", "prefix-first", "prefix"]
    for one in report.rows:
        assert 0 < one.least <= one.low <= one.ms <= one.high < math.inf
    ours, theirs = report.find("blocks-1"), report.find("blocks-published-1")
    assert ours is not None
    assert theirs is not None
    assert ours.ratio == pytest.approx(theirs.ms / ours.ms)
    assert ours.floor_ms is not None


@pytest.mark.parametrize(
    ("family", "change", "said"),
    [
        ("sdar", {"only": ("cached",)}, "row cached does not exist for a block-causal model"),
        ("llada", {"only": ("blocks",)}, "row blocks does not exist for a bidirectional model"),
        ("sdar", {"prompt_tokens": 30}, "prompt_tokens must be a multiple of 4"),
    ],
)
def test_wrong_settings_are_refused(family, change, said):
    with pytest.raises(OptionError, match=said):
        bench.Settings(model=toy(family=family), **change)


def test_advice_is_refused_for_a_block_causal_model():
    with pytest.raises(OptionError, match="exact cache at every speed"):
        bench.advise(bench.Settings(model=toy(family="sdar")))


def test_help_lists_the_rows():
    page = run("bench", "--help").stdout
    assert all(name in page for name in bench.ROWS)
