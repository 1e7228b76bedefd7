"""Cost: counts against loops, operations against torch's counter, the header against the decode."""

from __future__ import annotations

import math

import pytest
import torch
from helpers.decodes import STOP, bare, basic, hand_trace, plain, sample
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from wavefront import generate_ids
from wavefront.analysis.measures import cost
from wavefront.core.errors import OptionError, TraceError
from wavefront.kernels import cpu_product
from wavefront.models.toy import toy

PROMPTS = [[1, 2, 3], [4, 5, 6, 7, 8]]


def test_counts_equal_brute_force_on_random_traces():
    for trace in sample():
        found = cost.measure(basic(trace), size=3)
        rows = plain(trace)
        assert found.rows == len(rows)
        assert found.visible == sum(len(row.visible()) for row in rows)
        assert found.places == sum(len(row.tokens) for row in rows)
        for index, row in enumerate(rows):
            weighed = sum(len(m.scope) for m in row.moments if m.counts)
            assert int(found.candidates[index]) == weighed
            assert int(found.bound[index]) == 3 * trace.about["options"]["steps"]


def test_cost_matches_hand_arithmetic():
    trace = hand_trace([[1], [2, 3]], places=3, scope=[[1, 2], [2, 3]], tokens={3: STOP})
    found = cost.measure(trace, seconds=0.5)
    assert (found.forwards, found.token_forwards) == (2, 8)
    assert (found.visible, found.visible_per_forward, found.visible_per_second) == (2, 1.0, 4.0)
    assert (found.places, found.places_per_forward, found.places_per_second) == (3, 1.5, 6.0)
    assert (found.candidates.tolist(), found.bound.tolist()) == ([4], [16])
    assert cost.measure(trace).places_per_second is None
    assert math.isnan(cost.measure(hand_trace([], places=2)).places_per_forward)


@pytest.mark.parametrize("family", ["llada", "dream"])
@pytest.mark.parametrize(("layers", "length", "read"), [(1, 9, 9), (3, 11, 5)])
def test_flops_equal_torchs_count(monkeypatch, family, layers, length, read):
    monkeypatch.setattr(cpu_product, "ONEDNN_IS_FASTER", False)  # the counter does not know oneDNN
    model = toy(family=family, layers=layers)
    tokens = torch.randint(0, 60, (2, length))
    at = torch.arange(read).expand(2, -1)
    # The fused kernels of the CPU are unknown to the counter; this one is made of products.
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model.head(model.hidden(tokens, None, at))
    found = cost.forward_flops(model, length, read=read, rows=2)
    assert found.total == counter.get_total_flops()
    assert cost.forward_flops(model.config, length, read=read).times(2) == found
    by_kind = counter.get_flop_counts()["Global"]
    assert found.attention == by_kind[torch.ops.aten.bmm]


def test_flops_match_hand_arithmetic():
    """One block of width 8, 4 heads, MLP 16, vocabulary 10: two positions, one of them read."""
    model = toy(width=8, layers=1, vocab_size=10)
    found = cost.forward_flops(model, 2, read=1)
    qkv, out, mlp = 2 * 8 * 24, 2 * 8 * 8, 2 * 8 * 32 + 2 * 16 * 8
    assert found == (2 * qkv + out + mlp, 2 * 2 * 2 * 8, 2 * 8 * 10)
    assert found.total == sum(found)
    assert cost.forward_flops(model, 2) == cost.forward_flops(model, 2, read=2)


@pytest.mark.parametrize(
    "options",
    [
        {"strategy": "wavefront(size=3, radius=1)"},
        {"strategy": "wavefront(size=3, radius=1)", "steps": 6},
        {"strategy": "block(size=4)", "cfg_scale": 1.0},
        {"strategy": "standard", "speculate": 3},
        {"strategy": "left_to_right", "steps": 5},
        {"strategy": "block(size=4)", "fixed_budget": True, "steps": 30},
        {"strategy": "wavefront", "full": True},
    ],
)
@pytest.mark.filterwarnings("ignore::wavefront.core.errors.WavefrontWarning")
def test_header_gives_the_positions_read(options, monkeypatch):
    model = toy(seed=3)
    seen = []
    hidden = model.hidden

    def spy(tokens, attend, at, **more):
        seen.append((tokens.numel(), at.shape[1]))
        return hidden(tokens, attend, at, **more)

    monkeypatch.setattr(model, "hidden", spy)
    record = "full" if options.pop("full", False) else True
    done = generate_ids(model, PROMPTS, max_new_tokens=20, trace=record, **options)
    found = cost.measure(done.trace, model)
    assert found.forwards == done.forwards == len(seen)
    assert found.token_forwards == done.token_forwards == sum(size for size, _ in seen)
    assert {cost.positions_read(done.trace)} == {width for _, width in seen}
    length = done.trace.first.tokens.shape[1]
    by_forward = [
        cost.forward_flops(model, length, read=width, rows=size // length) for size, width in seen
    ]
    assert found.flops.total == sum(one.total for one in by_forward)


def test_missing_information_raises():
    trace = hand_trace([[1]], places=1)
    with pytest.raises(OptionError, match="architecture"):
        cost.measure(trace, object())
    with pytest.raises(OptionError, match="seconds"):
        cost.measure(trace, seconds=-1.0)
    trace = bare(trace)
    with pytest.raises(TraceError, match="stop_ids"):
        cost.measure(trace)
    found = cost.measure(trace, toy(), stop_ids=(STOP,))
    assert found.flops == cost.forward_flops(toy(), 2, read=1)
    assert found.bound.tolist() == [8]
