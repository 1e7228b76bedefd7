"""Caches: with a refresh at every step they change nothing, and they never store old tokens."""

from __future__ import annotations

import copy
from collections import Counter
from typing import NamedTuple

import pytest
import torch
from helpers.captured import Static
from torch.utils._python_dispatch import TorchDispatchMode

import wavefront
from wavefront.core.errors import OptionError
from wavefront.core.state import start
from wavefront.core.tree import leaves
from wavefront.engine.batcher import (
    KEPT_BATCHERS,
    MIN_CAPTURED_STEPS,
    Batcher,
    CapturedBatchers,
    Kind,
    run,
)
from wavefront.engine.cuda_graphs import PackedLayout, StaticBuffers
from wavefront.engine.session import begin
from wavefront.engine.window import choose_window
from wavefront.models.toy import toy

PROMPTS = [[5, 6, 7], [8, 9, 10, 11, 12], [20]]
STRATEGIES = (
    "standard",
    "block(size=8)",
    "wavefront",
    "left_to_right",
    "dsb(size=8)",
    "tide(cascade_rounds=0, horizon=0, revisable_band=4, "
    "remask_below=0.5, selector=threshold(tau=0.3))",
    "tide(cascade_rounds=3, horizon=6, selector=threshold(tau=0.3))",
    "rcr(size=16)",
)
CACHES = ("prefix", "dual", "wave")


@pytest.fixture(params=["llada", "dream"])
def family(request):
    return request.param


def ids(model, **options):
    return wavefront.generate_ids(model, PROMPTS, max_new_tokens=32, **options)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_cache_refreshed_at_every_step_equals_no_cache(family, strategy):
    model = toy(family=family, dtype="float64")
    base = ids(model, strategy=strategy)
    for cache in CACHES:
        made = ids(model, strategy=strategy, cache=f"{cache}(refresh=1)")
        assert (made.tokens, made.order) == (base.tokens, base.order), cache
        assert made.token_forwards == base.token_forwards


@pytest.mark.slow
def test_window_over_the_whole_canvas_equals_no_cache(family):
    model = toy(family=family, dtype="float64")
    for strategy in ("wavefront", "block(size=8)"):
        base = ids(model, strategy=strategy)
        made = ids(model, strategy=strategy, cache="wave(refresh=64, size=36)")
        # 36 of 37 positions: nothing reads or changes the position that is left out.
        assert made.forwards >= base.forwards
        whole = ids(model, strategy=strategy, cache="wave(refresh=64, size=64)")
        assert (whole.tokens, whole.order) == (base.tokens, base.order)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(
    "cache", ["prefix(refresh=6)", "dual(refresh=6)", "wave(refresh=6, size=20, near=4)"]
)
def test_stored_keys_always_match_the_current_tokens(strategy, cache):
    """After every step, the positions that were read were computed from the current tokens."""
    model = toy(dtype="float64")
    batcher = loaded(model, {"max_new_tokens": 32, "strategy": strategy, "cache": cache})
    (after,) = batcher._groups.values()
    while batcher.busy:
        before = after
        batcher.step()
        (after,) = batcher._groups.values()
        assert batcher._stored is not None
        stale = (batcher._stored.tokens != before.canvas.tokens) & before.canvas.real
        moved = (after.step != before.step) & ~before.done
        assert not bool(stale[moved].any())
    assert not bool(after.canvas.masked.any())


def loaded(model, options, prompts=PROMPTS, seed=0, **more):
    """Return a batcher with one decode of every prompt."""
    session = begin(model, prompts, {"eos": "keep", **options})
    rows, length = session.canvas.tokens.shape
    batcher = Batcher(model, rows=rows, length=length, updates=False, **more)
    plan = session.plan
    state = start(session.canvas, plan.config, [plan.steps] * rows, seeds=[seed] * rows)
    batcher.load(plan.config, state, Kind.of(plan))
    return batcher


def test_cache_computes_fewer_positions(family):
    model = toy(family=family)
    long = [[5] * 200]
    base = wavefront.generate_ids(model, long, max_new_tokens=32, strategy="block(size=8)")
    for cache, share in (("prefix(refresh=8)", 0.4), ("dual(refresh=8)", 0.25)):
        made = wavefront.generate_ids(
            model, long, max_new_tokens=32, strategy="block(size=8)", cache=cache
        )
        assert made.token_forwards < share * base.token_forwards


def test_window_orders_positions_by_need():
    wanted = torch.tensor([[False, False, False, True, True, False, False, False]])
    changed = torch.tensor([[False, False, False, False, False, False, False, True]])
    asked = torch.tensor([[True, False, False, False, False, False, False, False]])
    order = choose_window(wanted, changed, asked, real=torch.ones_like(wanted), size=8)[0].tolist()
    assert order == [3, 4, 7, 0, 2, 5, 1, 6]  # wanted, changed, asked for, then the nearest


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_step_may_overwrite_its_own_input(strategy):
    """A step changes nothing outside its tree, so a captured step equals an eager one."""
    model = toy(dtype="float64")
    options = {"max_new_tokens": 32, "strategy": strategy}
    for cache in (None, "wave(refresh=4, size=20)"):
        base = list(run(loaded(model, {**options, "cache": cache}, seed=1)))
        made = list(run(loaded(model, {**options, "cache": cache}, seed=1, call=Static())))
        assert len(base) == len(made)
        for one, two in zip(base, made, strict=True):
            assert torch.equal(one.decision.commit, two.decision.commit)
            assert torch.equal(one.canvas.tokens, two.canvas.tokens)
            assert torch.equal(one.view.masked, two.view.masked)


KEPT_CASES = (
    ("left_to_right", "dual(refresh=6)"),
    pytest.param("block(size=4)", "prefix(refresh=6)", marks=pytest.mark.slow),
    pytest.param("wavefront", "dual(refresh=6)", marks=pytest.mark.slow),
    pytest.param("wavefront", "wave(refresh=4, size=20, near=2)", marks=pytest.mark.slow),
)


@pytest.mark.parametrize(("strategy", "cache"), KEPT_CASES)
def test_captured_step_stores_the_tokens_of_the_full_forward_pass(
    family, strategy, cache, monkeypatch
):
    """A full step stores the tokens it began with, even if it overwrites its own tree.

    If it stored the tokens after it, its commits would count as computed and never be computed.
    """
    monkeypatch.setattr("wavefront.engine.batcher.flag_lag", lambda model: 1)  # as on CUDA
    model = toy(family=family, dtype="float64")
    captured = CapturedBatchers(model, graphs=Static)
    options = {"max_new_tokens": 24, "strategy": strategy, "cache": cache}
    eager = begin(model, PROMPTS, options).drain().answers()
    for _ in range(2):  # captured, then reused
        assert begin(model, PROMPTS, options, captured=captured).drain().answers() == eager


def test_static_buffers_are_written_in_one_copy_without_duplicates():
    tree = (torch.arange(5), torch.rand(3, 2), torch.tensor([True]), torch.rand(0))
    alias = (
        tree[0],
        tree[1],
        tree[2],
        tree[3],
        tree[1],
    )  # an alias before the step, but not after it
    buffers, copies = StaticBuffers(alias), Counter()

    class Counted(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            copies[func.overloadpacket.__name__] += 1
            return func(*args, **(kwargs or {}))

    def step(tree):
        whole, share, sure, nothing, other = tree
        after = (whole + 1, share * 2, ~sure, nothing, other * 3)
        return after, (after[1], whole, [after[2], nothing], after[1].T, after[4])

    with Counted():
        buffers.run(step)
    assert (copies["_foreach_copy_"], copies["copy_"], copies["cat"]) == (1, 1, 0)
    share, whole, (sure, nothing), turned, other = buffers.copy_output()
    assert whole.tolist() == [0, 1, 2, 3, 4]
    assert torch.equal(share, 2 * tree[1])
    assert torch.equal(turned, 2 * tree[1].T)
    assert torch.equal(other, 3 * tree[1])
    assert (sure.tolist(), nothing.tolist()) == ([False], [])
    assert share.untyped_storage().nbytes() == 128 + 80  # the tree, and after it two new tensors
    buffers.load(alias)
    for mine, one in zip(buffers.tree, alias, strict=True):
        assert torch.equal(mine, one)


def test_static_buffers_accept_a_tree_with_views_of_their_memory():
    class Pair(NamedTuple):
        one: torch.Tensor
        two: torch.Tensor

    tree = (Pair(torch.tensor([1, 2]), torch.tensor([3, 4])), [torch.tensor([[5, 6], [7, 8]])], 9)
    sure = torch.tensor([True, False, True])
    buffers = StaticBuffers((*tree, sure))

    def step(tree):
        pair, (board,), count, sure = tree
        after = (Pair(board[:, 1], pair.one), [board.flip(0)], count, ~sure)
        return after, (pair.two, sure, None, board[0, 0], count)

    buffers.run(step)
    shown = buffers.copy_output()
    assert buffers.tree[0].one.tolist() == [6, 8]
    assert buffers.tree[0].two.tolist() == [1, 2]
    assert buffers.tree[1][0].tolist() == [[7, 8], [5, 6]]
    assert buffers.tree[2:3] == (9,)
    assert buffers.tree[3].tolist() == [False, True, False]
    said = [3, 4], [True, False, True], 5
    assert (shown[0].tolist(), shown[1].tolist(), shown[3].item()) == said
    assert (shown[2], shown[4]) == (None, 9)
    buffers.load(buffers.tree)
    buffers.run(step)  # continues; the earlier output stays unchanged
    assert buffers.tree[0].one.tolist() == [8, 6]
    assert (shown[0].tolist(), shown[1].tolist(), shown[3].item()) == said
    buffers.load((*tree, sure))
    assert buffers.tree[0].one.tolist() == [1, 2]
    starts = [leaf.storage_offset() * leaf.itemsize for leaf in leaves(buffers.tree)]
    assert all(start % PackedLayout.ALIGNMENT == 0 for start in starts)


def test_cache_option_is_reported_and_checked():
    model = toy()
    plan = begin(model, PROMPTS, {"max_new_tokens": 8, "cache": "wave(refresh=16)"}).plan
    assert plan.options()["cache"] == repr(plan.cache)
    for cache, said in (
        ("duel", "duel"),
        ("wave(refresh=0)", "refresh"),
        (7, "a spec such as"),
    ):
        with pytest.raises(OptionError, match=said):
            ids(model, cache=cache)
    with pytest.raises(OptionError, match="speculate and cache cannot be combined"):
        ids(model, cache="wave", speculate=4)


def test_loaded_rows_start_with_a_full_forward_pass():
    """A row that was replaced needs a full forward pass."""
    model = toy(dtype="float64")
    options = {"max_new_tokens": 8, "cache": "wave(refresh=64, size=10, near=0)"}
    batcher = loaded(model, options)
    costs = [batcher.step().steps[0].token_forwards for _ in range(2)]
    assert costs[0] == 3 * 13 > costs[1]
    (state,) = batcher._groups.values()
    plan = begin(model, PROMPTS, options).plan
    batcher.reset()
    batcher.load(plan.config, state, Kind.of(plan))
    assert batcher.step().steps[0].token_forwards == 3 * 13


def test_drop_in_confidence_triggers_a_full_forward_pass():
    model = toy(dtype="float64")
    canvas = sum(len(p) > 0 for p in PROMPTS) * (max(map(len, PROMPTS)) + 32)
    costs = []
    for drop in (0.0, 0.9, 1.0):
        policy = f"wave(refresh=64, size=20, near=2, drop={drop})"
        made = wavefront.generate_ids(model, PROMPTS, max_new_tokens=32, cache=policy)
        costs.append(made.token_forwards / canvas)
    assert costs[0] < costs[1] < costs[2]
    assert costs[0] < 32  # forward passes, one of them full


def test_refresh_trigger_is_read_one_step_late_without_waiting(monkeypatch):
    model = toy(dtype="float64")
    cache = "wave(refresh=64, size=20, near=2, drop=1.0)"
    full = []
    for late in (0, 1):
        monkeypatch.setattr("wavefront.engine.batcher.flag_lag", lambda model, late=late: late)
        batcher = loaded(model, {"max_new_tokens": 32, "cache": cache})
        costs = [batcher.step().steps[0].token_forwards for _ in range(12)]
        full.append([cost > min(costs) for cost in costs])  # some row computed every position
    assert full[0][0]
    assert full[1][0]
    first = full[0].index(True, 1)
    assert full[1].index(True, 1) == first + 1


@pytest.mark.slow
def test_captured_batchers_are_reused_and_lent_to_one_decode_at_a_time():
    model = toy(dtype="float64")
    made = []
    captured = CapturedBatchers(model, graphs=lambda: made.append(Static()) or made[-1])

    def decoding(prompts=PROMPTS, **options):
        return begin(model, prompts, {"max_new_tokens": 32, **options}, captured=captured)

    for extra in ({}, {"cache": "wave(refresh=4, size=20)"}, {"cfg_scale": 0.5}):
        base = begin(model, PROMPTS, {"max_new_tokens": 32, **extra}).drain().answers()
        before = len(made)
        assert decoding(**extra).drain().answers() == base
        assert decoding(**extra).drain().answers() == base
        assert len(made) == before + 1  # the second reuses what the first captured
        one, two = decoding(**extra), decoding(**extra)  # the batcher is lent to the first
        for _ in zip(one, two, strict=True):
            pass
        assert one.answers() == two.answers() == base
        assert len(made) == before + 1
    assert decoding(strategy="standard").drain().answers() == ids(model, strategy="standard").tokens
    count = len(made)
    for length in range(1, KEPT_BATCHERS + 1):
        decoding([[3] * length]).drain()
    assert len(made) == count + KEPT_BATCHERS
    decoding().drain()  # dropped: other shapes came after it
    assert len(made) == count + KEPT_BATCHERS + 1
    decoding(steps=MIN_CAPTURED_STEPS - 1).drain()
    decoding(speculate=3).drain()
    assert len(made) == count + KEPT_BATCHERS + 1


def without_windows(model, options):
    """Run the same decode with every position computed at every step."""
    plain = copy.copy(model)
    plain.windows = False
    return begin(plain, PROMPTS, options).drain()


HORIZON = "tide(cascade_rounds=3, horizon=16, selector=threshold(tau=0.3))"


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"cfg_scale": 0.7}, {"steps": 20}, {"eos": "stop"}])
def test_positions_beyond_the_horizon_are_not_computed_and_change_nothing(
    family, options, monkeypatch
):
    monkeypatch.setattr("wavefront.engine.window.BUCKET", 16)
    model = toy(family=family, dtype="float64")
    options = {"max_new_tokens": 64, "strategy": HORIZON, **options}
    begun = begin(model, PROMPTS, options)
    whole = without_windows(model, options)
    narrow = begun.drain()
    assert narrow.answers() == whole.answers()
    assert narrow.forwards == whole.forwards
    assert narrow.token_forwards < 0.92 * whole.token_forwards


def test_late_window_count_voids_steps_and_changes_nothing(monkeypatch):
    monkeypatch.setattr("wavefront.engine.batcher.flag_lag", lambda model: 1)
    monkeypatch.setattr("wavefront.engine.window.BUCKET", 8)  # too small at every other step
    model = toy(dtype="float64")
    options = {"max_new_tokens": 96, "strategy": HORIZON, "steps": 24}
    session = begin(model, PROMPTS, options).drain()
    whole = without_windows(model, options)
    assert session.answers() == whole.answers()
    # Every pass that was made counts, also those that were void.
    assert session.forwards > whole.forwards
    assert sum(session.row_forwards()) > sum(whole.row_forwards())


@pytest.mark.slow
def test_horizon_works_with_every_cache(family, monkeypatch):
    monkeypatch.setattr("wavefront.engine.window.BUCKET", 16)
    model = toy(family=family, dtype="float64")

    def filled(**options):
        return wavefront.generate_ids(
            model, PROMPTS, max_new_tokens=64, steps=32, strategy=HORIZON, eos="keep", **options
        )

    base = filled()
    for cache in CACHES:
        made = filled(cache=f"{cache}(refresh=1)")
        assert (made.tokens, made.order) == (base.tokens, base.order), cache
        assert made.token_forwards == base.token_forwards
    for cache in ("wave(refresh=8, size=24, near=2)", "dual(refresh=4)", "prefix(refresh=4)"):
        less = filled(cache=cache)
        # A cached decode may take more passes, so compare the positions that a pass computes.
        each, usual = (made.token_forwards / sum(made.row_forwards) for made in (less, base))
        assert each < usual or "prefix" in cache
        assert all(len(row) == 64 for row in less.tokens)


def test_static_buffers_accept_a_step_that_returns_no_tensors():
    buffers = StaticBuffers((torch.arange(3),))
    buffers.run(lambda tree: (tree, ()))
    assert buffers.copy_output() == ()
    assert buffers.tree[0].tolist() == [0, 1, 2]
