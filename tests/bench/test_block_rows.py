"""Rows of block-causal models: the published loops, the block step, and shared prompts."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from helpers.commands import run
from torch._dynamo.utils import counters

import wavefront
from wavefront import bench
from wavefront.bench import advice, roofline
from wavefront.bench.block_reference import FAMILIES, BlockReference, by_block, published_loop
from wavefront.bench.block_rows import FirstResult, count_experts
from wavefront.bench.workloads import Case, Loop, Steps, new_batcher
from wavefront.core import spec
from wavefront.core.canvas import blank
from wavefront.core.errors import OptionError
from wavefront.engine.options import SPEEDS
from wavefront.kernels import compile
from wavefront.models.experts import Router
from wavefront.models.toy import toy
from wavefront.strategies.caches.blocks import Blocks

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


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("family", ["llada2", "sdar_moe"])
def test_experts_of_a_step_are_counted(family, lag, monkeypatch):
    """The count is that of a plain loop over the steps, not that of independent routing."""
    monkeypatch.setattr("wavefront.engine.batcher.flag_lag", lambda model: lag)
    model = model_of(family, dtype="float32")
    case = Case(model, 8, 16, batch=2)
    layout = model.config.experts
    assert layout is not None
    found = count_experts(case, 8)
    assert found is not None
    assert layout.per_token <= found <= layout.count
    assert not any(part._forward_hooks for part in model.modules())
    # A router that sends all positions to the same experts.
    with torch.no_grad():
        for part in model.modules():
            if isinstance(part, Router):
                part.weight.zero_()
    assert count_experts(case, 8) == layout.per_token
    assert count_experts(Case(model_of("sdar"), 8, 16)) is None


@pytest.mark.parametrize("family", ["llada2", "sdar_moe"])
@pytest.mark.parametrize("batch", [1, 2])
def test_count_of_experts_does_not_depend_on_late_flags(family, batch, monkeypatch):
    """On CUDA a window has two blocks, but its other half repeats a position of the block."""
    case = Case(model_of(family, layers=3), 8, 16, batch=batch)
    found = []
    for lag in (0, 1):
        monkeypatch.setattr("wavefront.engine.batcher.flag_lag", lambda model, lag=lag: lag)
        found.append([count_experts(case, steps) for steps in (2, 8, 64)])
    assert found[0] == found[1]


def test_count_of_experts_is_that_of_the_block():
    """Every layer of every step counts, except of steps that also store an earlier block."""
    model = model_of("llada2", layers=3)
    case, expected = Case(model, 8, 12, strategy="left_to_right"), []
    routers = [part for part in model.modules() if isinstance(part, Router)]
    tokens = wavefront.generate_ids(
        model, case.canvas().tokens[:, :8].tolist(), max_new_tokens=12, eos="keep",
        strategy="left_to_right",
    ).tokens[0]  # fmt: skip
    prompt = case.canvas().tokens[0, :8].tolist()
    for step in range(12):
        if step % 4 == 0:  # the first step of a block also stores the block before it
            continue
        end = 8 + step // 4 * 4 + 4
        ids = [*prompt, *tokens[:step], *[model.mask_id] * (end - 8 - step)]
        for router in routers:
            seen = list[int]()
            hook = router.register_forward_hook(
                lambda _, __, found, seen=seen: seen.append(found[1][-4:].unique().numel())
            )
            model.raw_logits([ids])
            hook.remove()
            expected += seen
    assert count_experts(case, 12) == pytest.approx(sum(expected) / len(expected))


def test_floor_follows_the_counted_experts():
    """Fewer experts mean a lower floor, so a target cannot be met by counting too many."""
    arch = model_of("llada2").config
    given: dict[str, Any] = {"size": 32, "read": 32, "dtype": torch.bfloat16}
    few, many = (
        roofline.window_step(arch, 64, experts=count, **given).bytes for count in (2.0, 8.0)
    )
    assert few < roofline.window_step(arch, 64, **given).bytes <= many
    layers = arch.layers - arch.experts.dense_layers
    assert many - few == 6 * 3 * arch.width * arch.experts.width * layers * 2


def test_row_shows_the_experts():
    model = toy(family="llada2", vocab_size=96, max_length=128)
    sizes: dict[str, Any] = {"prompt_tokens": 16, "max_new_tokens": 32, "repeats": 1}
    report = bench.run(
        bench.Settings(
            model=model, name="toy", quick=True, only=("blocks",), lengths=(), batches=(1,), **sizes
        )
    )
    row = report.find("blocks-1")
    assert row is not None
    assert row.experts is not None
    assert row.what == f"block step, batch 1, {row.experts:.0f} experts of a layer"
    assert report.find("blocks-published-1") is not None
    mixed = report.find("blocks-1-random")
    assert mixed is not None
    assert mixed.experts is not None
    assert (
        mixed.what == f"block step, batch 1, random tokens, {mixed.experts:.0f} experts of a layer"
    )
    theirs = report.find("blocks-published-1-random")
    assert theirs is not None
    assert theirs.experts is None
    assert mixed.ratio == pytest.approx(theirs.ms / mixed.ms)


@pytest.mark.parametrize("family", ["llada2", "sdar_moe"])
def test_model_sees_the_random_tokens(family):
    model = model_of(family, dtype="float32")
    case = Case(model, 8, 12, random_tokens=True)
    steps = Steps(case, new_batcher(case, Blocks()), 12)
    seen = list[torch.Tensor]()
    hook = model.embedding.register_forward_hook(lambda _, given, __: seen.append(given[0]))
    assert steps() == 11  # one more fills the cache
    hook.remove()
    usual = {model.mask_id, *case.answer[0].tolist(), *case.canvas().tokens[0].tolist()}
    assert {*torch.cat([one.flatten() for one in seen]).tolist()} <= usual
    last = seen[-1].flatten().tolist()  # the last block, one position before its end
    assert last.count(model.mask_id) >= 1
    assert len({*last}) > 2


def test_loop_gets_the_random_tokens():
    model = model_of("llada2")
    case = Case(model, 8, 8, random_tokens=True)
    canvases = list[torch.Tensor]()

    def loop(canvas):
        canvases.append(canvas)
        return published_loop(
            BlockReference(model), canvas, 8, family="llada2", block=model.block_size or 0
        )

    assert Loop(case, loop, 8)() == 8
    assert torch.equal(canvases[0][:, 8:], case.answer[:, 8:])
    assert torch.equal(canvases[0][:, :8], case.canvas().tokens[:, :8])


@pytest.mark.parametrize("shared", [False, True])
def test_first_block_of_a_stored_prompt_computes_less(shared):
    case = Case(toy(family="sdar"), 128, 4, strategy="standard")
    for steps, more in ((None, 12), (1, 0)):
        piece = FirstResult(case, shared, steps)
        for _ in range(2):  # a request that was not decoded to its end is dropped
            piece.ready()
            before = piece.batcher.token_forwards
            assert piece() == 1
            assert piece.made == (steps or 4)
            computed = piece.batcher.token_forwards - before
            assert computed == (4 if shared else 132) + more


@pytest.mark.slow
def test_every_row_is_there():
    model = toy(family="sdar", vocab_size=96, max_length=256)
    sizes: dict[str, Any] = {"prompt_tokens": 16, "max_new_tokens": 64, "repeats": 2}
    report = bench.run(
        bench.Settings(model=model, name="toy", quick=True, lengths=(), batches=(1, 8), **sizes)
    )
    names = [one.name for one in report.rows]
    prefix = ["prefix-first-step", "prefix-step", "prefix-first", "prefix"]
    assert names == ["blocks-1", "blocks-published-1", "blocks-8", *prefix]
    for one in report.rows:
        assert 0 < one.least <= one.low <= one.ms <= one.high < math.inf
    ours, theirs = report.find("blocks-1"), report.find("blocks-published-1")
    assert ours is not None
    assert theirs is not None
    assert ours.ratio == pytest.approx(theirs.ms / ours.ms)
    assert ours.floor_ms is not None
    for name in ("prefix-step", "prefix"):
        stored, first = report.find(name), report.find(name.replace("prefix", "prefix-first"))
        assert stored is not None
        assert first is not None
        assert stored.ratio == pytest.approx(first.ms / stored.ms)
        assert "selector=threshold(tau=0.85, floor=None)" in (stored.strategy or "")


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


def test_advice_for_a_block_causal_model_keeps_its_cache_at_every_speed(monkeypatch):
    monkeypatch.setattr(advice, "computes_bfloat16", lambda device: True)
    seen: list[str] = []
    settings = bench.Settings(
        model=toy(family="sdar"), name="m", max_new_tokens=32, repeats=1, tick=seen.append
    )
    found = {one.speed: one for one in bench.advise(settings).advice}
    assert list(found) == list(SPEEDS)
    assert len(seen) == advice.ticks(settings)
    for one in found.values():
        assert one.cache == "blocks()"
        assert one.ms_per_step > 0
        assert "cache" not in one.python + one.command
    assert found["exact"].python == "wavefront.load('m').generate(prompt)"
    assert found["balanced"].dtype is found["exact"].dtype is None


def test_help_lists_the_rows():
    page = run("bench", "--help").stdout
    assert all(name in page for name in bench.ROWS)


@pytest.mark.slow
@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize(
    ("family", "cache"),
    [
        pytest.param("sdar", "blocks()", marks=pytest.mark.slow),
        ("llada", "wave(refresh=64)"),
    ],
)
def test_only_the_timed_step_is_compiled(family, cache, lag, monkeypatch):
    """The pass that fills the cache runs as written, and the step after it is compiled."""
    monkeypatch.setattr(compile, "BACKEND", "eager")
    monkeypatch.setattr("wavefront.engine.batcher.flag_lag", lambda model: lag)
    torch._dynamo.reset()
    counters.clear()
    model = toy(family=family)
    compile.compile_model(model, dynamic=False)
    policy: Any = spec.resolve(cache, "caches")
    seen: list[tuple[bool, int]] = []

    def call(key: Any, step: Any, tree: Any) -> Any:
        before = counters["stats"]["unique_graphs"]
        result = step(tree)
        seen.append((key[1].reuse, counters["stats"]["unique_graphs"] - before))
        return result

    case = Case(model, 128, 64)
    piece = Steps(case, new_batcher(case, policy, call=call, only_windows=True), 4)
    piece()
    assert seen[0] == (False, 0)
    assert seen[1][0]
    assert seen[1][1] > 0
    again = [graphs for _, graphs in seen[2:]]
    assert sum(again) == 0 or lag == 0  # without late flags, a window has the size that is needed
    torch._dynamo.reset()
