"""Batch pools: the shapes of batchers."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.workers import make_job

from wavefront.server.batch_pools import BatchPools
from wavefront.server.request_builder import build_request
from wavefront.server.settings import Limits
from wavefront.strategies.wavefront import Wavefront


def test_batchers_are_sized_to_the_requests(lm: Any) -> None:
    pools = BatchPools(lm.model, rows=4, length=128, steps=64, fit=True)
    request = build_request(lm, make_job("a"), Limits(), length=128).request
    admitted = [pools.admit(request) for _ in range(4)]
    assert [batcher.rows for batcher in pools.batchers] == [1, 1, 2]
    assert {batcher.length for batcher in pools.batchers} == {32}
    assert (pools.busy, pools.free) == (4, 0)
    for batcher, active in admitted:
        batcher.release(active)
    pools.close_idle()
    assert pools.batchers == []
    fixed = BatchPools(lm.model, rows=4, length=128, steps=64, fit=False)
    fixed.admit(request)
    fixed.admit(request)
    assert [(batcher.rows, batcher.length) for batcher in fixed.batchers] == [(4, 128)]


def test_admission_calls_init_of_a_known_strategy_once(
    lm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pools = BatchPools(lm.model, rows=4, length=128, steps=64, fit=False)
    job = make_job("a", options={"strategy": "wavefront(size=3)"})
    request = build_request(lm, job, Limits(), length=128).request
    pools.admit(request)
    calls: list[int] = []
    init = Wavefront.init

    def counted(self: Wavefront, canvas: Any) -> Any:
        calls.append(len(canvas.tokens))
        return init(self, canvas)

    monkeypatch.setattr(Wavefront, "init", counted)
    pools.admit(request)
    assert calls == [1]
