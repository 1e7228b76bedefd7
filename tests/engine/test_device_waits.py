"""A step never waits for the device, and the logits of a whole canvas never exist."""

from __future__ import annotations

import pytest
from helpers.dispatch import Operations, count_lists

import wavefront
from wavefront.core import reading
from wavefront.core.state import start
from wavefront.engine.batcher import Batcher, Kind
from wavefront.engine.session import begin
from wavefront.models.toy import toy

ROWS, PLACES, VOCABULARY = 8, 32, 256
PROMPTS = [[5, 6, 7, 8]] * ROWS
ADAPTIVE = (
    "standard(selector=threshold(tau=0.3))",
    "block(size=8, selector=factor())",
    "wavefront(selector=entropy_bound(gamma=0.1))",
    "blockwise(size=8)",
    "standard(selector=share())",
    "dsb(size=6)",
    "rcr(size=8)",
    "tide(cascade_rounds=8, horizon=0, selector=threshold(tau=0.3))",
    "tide(cascade_rounds=3, horizon=8, selector=threshold(tau=0.3))",
    "tide(cascade_rounds=0, horizon=0, revisable_band=4, remask_below=0.5, "
    "selector=threshold(tau=0.3))",
)
CACHE = "wave(refresh=4, size=12, near=2)"


def loaded(strategy, **options):
    """Return a batcher in the middle of a decode, after its first step."""
    model = toy(vocab_size=VOCABULARY)
    given = {"max_new_tokens": PLACES, "strategy": strategy, "eos": "keep", **options}
    session = begin(model, PROMPTS, given)
    config = session.plan.config
    length = session.canvas.tokens.shape[1]
    batcher = Batcher(model, rows=ROWS, length=length, updates=False)
    state = start(session.canvas, config, [PLACES] * ROWS, seeds=range(ROWS))
    batcher.load(config, state, Kind.of(session.plan))
    batcher.step()
    return batcher


@pytest.mark.parametrize("strategy", ["standard", "wavefront", *ADAPTIVE])
def test_step_reads_only_its_flags_whatever_the_strategy(strategy, monkeypatch):
    batcher = loaded(strategy)
    with count_lists(monkeypatch) as lists, Operations() as seen:
        batcher.step()
    assert seen.waits == {}
    assert lists == [(2, ROWS)]  # the flags of all rows, at once


def test_cached_step_reads_only_its_flags(monkeypatch):
    batcher = loaded("wavefront", cache=CACHE)
    with count_lists(monkeypatch) as lists, Operations() as seen:
        batcher.step()
    assert seen.waits == {}
    assert lists == [(2, ROWS)]


def test_rounds_of_a_cascade_sort_the_positions_once():
    sorts = []
    for rounds in (1, 8):
        batcher = loaded(f"tide(cascade_rounds={rounds}, horizon=0, selector=threshold(tau=0.3))")
        with Operations() as seen:
            batcher.step()
        sorts.append(seen.counts["aten.sort"])
    assert sorts[0] == sorts[1]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"strategy": "standard"},
        {"strategy": ADAPTIVE[-3]},
        {"strategy": ADAPTIVE[-1]},
        {"cache": CACHE},
        {"temperature": 0.8, "top_p": 0.9, "top_k": 20},
        {"priority": "entropy"},
        {"cfg_scale": 1.0},
        {"speculate": 3},
        {"trace": "full"},
        {"logit_bias": {5: 1.5, 7: -2.0}},
        {"logprobs": 3},
    ],
)
def test_logits_of_a_whole_canvas_never_exist(options, monkeypatch):
    chunk = 16 * VOCABULARY
    monkeypatch.setattr(reading, "_CHUNK", chunk)
    model = toy(vocab_size=VOCABULARY, width=48)
    with Operations() as seen:
        wavefront.generate_ids(model, PROMPTS, max_new_tokens=PLACES, steps=4, **options)
    assert 0 < seen.largest[VOCABULARY] <= chunk < ROWS * PLACES * VOCABULARY
