"""All measures on traces of real decodes, recorded, saved and loaded."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from helpers.decodes import STRATEGIES, sample

from wavefront import generate_ids
from wavefront.analysis.measures import cost, dynamics, eos, gradient, mhco, order, regret
from wavefront.models.toy import toy
from wavefront.traces import trace_file


def same(one, other):
    """Compare two results of one measure, field by field."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one.nan_to_num(-7), other.nan_to_num(-7))
    if dataclasses.is_dataclass(one):
        names = [field.name for field in dataclasses.fields(one)]
        return all(same(getattr(one, name), getattr(other, name)) for name in names)
    if isinstance(one, tuple):
        return all(same(a, b) for a, b in zip(one, other, strict=True))
    return one == other


def measured(trace, model):
    return (
        mhco.measure(trace),
        eos.measure(trace, reference=[4, 5]),
        dynamics.frontier(trace),
        dynamics.heat_map(trace, 1),
        gradient.measure(trace),
        order.measure(trace, visible=True),
        cost.measure(trace, model),
        regret.measure(trace, model, every=4),
    )


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.filterwarnings("ignore::wavefront.core.errors.WavefrontWarning")
def test_loaded_trace_gives_the_same_measures(strategy, tmp_path):
    model = toy(seed=3)
    done = generate_ids(
        model,
        [[1, 2, 3], [4, 5]],
        strategy=strategy,
        max_new_tokens=9,
        steps=9,
        eos="keep",
        trace="full",
    )
    found = measured(done.trace, model)
    loaded = trace_file.load(trace_file.save(done.trace, tmp_path / "one"))
    assert same(found, measured(loaded, model))
    readings, ends, *_ = found
    assert int(ends.commits.sum()) == int(readings.candidates.commits.sum()) >= 18
    assert readings.candidates.rows().isfinite().all()


def test_random_sample_covers_the_edge_cases():
    found = dict.fromkeys(("back", "at once", "open", "still", "idle", "reserve", "holes"), 0)
    for trace in sample():
        counts = trace.commit.any(-1) | trace.remask.any(-1)
        end = list(trace.replay())[-1]
        found["back"] += bool(trace.remask.any())
        found["at once"] += bool((trace.commit & trace.remask).any())
        found["open"] += bool(end.masked.any())
        found["still"] += bool((~counts[:-1] & counts[1:]).any())
        found["idle"] += bool((~counts[-1]).any())
        found["reserve"] += bool((trace.commit & ~trace.candidates).any())
        found["holes"] += bool((trace.first.slot.diff() < 0).any())
    assert found.pop("at once") == 0  # no strategy does; the rules would let it
    assert all(count >= 8 for count in found.values()), found


def test_single_row_gives_the_same_measures_as_in_a_batch():
    model = toy(seed=3)
    done = generate_ids(
        model, [[1, 2, 3], [4, 5]], strategy="wavefront(size=3)", max_new_tokens=9, trace="full"
    )
    assert done.trace is not None
    for row in range(2):
        alone = done.trace.row(row)
        one, both = mhco.measure(alone), mhco.measure(done.trace)
        assert torch.equal(one.extent.violations[:, 0], both.extent.violations[:, row])
        assert torch.equal(order.measure(alone).tau[0], order.measure(done.trace).tau[row])
