"""The server decodes block-causal models: batches, forks, measures, and what is refused."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from helpers.workers import answers, make_job, make_worker, run_to_end

import wavefront
from wavefront.models.toy import toy
from wavefront.server.batch_pools import BatchPools
from wavefront.server.request_builder import build_request
from wavefront.server.settings import Limits
from wavefront.server.worker_messages import (
    CanvasSnapshot,
    Fork,
    Job,
    RequestFailed,
    RequestFinished,
)
from wavefront.strategies.caches.blocks import Blocks
from wavefront.text.byte_tokenizer import byte_tokenizer

MIXED: tuple[dict[str, Any], ...] = (
    {"max_new_tokens": 13, "strategy": "standard(selector=threshold(tau=0.3, floor=None))"},
    {"max_new_tokens": 20, "temperature": 0.7, "seed": 4},
    {"max_new_tokens": 9, "strategy": "edit(tau=0.3, selector=threshold(tau=0.3))"},
    {"max_new_tokens": 11, "cache": "none", "steps": 6},
    {"max_new_tokens": 12, "speculate": 2},
    {"max_new_tokens": 12, "cfg_scale": 0.5, "eos": "stop-block"},
)


@pytest.fixture(scope="module", params=["row", "padded"])
def lm(request) -> Any:
    model = toy(seed=3, family="sdar", vocab_size=258, dtype="float64")
    model.padded_blocks = request.param == "padded"
    return wavefront.LM(model, byte_tokenizer())


@pytest.mark.slow
@pytest.mark.parametrize("fit", [True, False])
def test_batched_requests_equal_lone_decodes(lm, fit):
    worker = make_worker(lm, fit=fit)
    for number, options in enumerate(MIXED):
        job = make_job(str(number), options=options, prompt="Once " * (number + 1))
        assert not [m for m in worker.handle(job) if isinstance(m, RequestFailed)]
    texts = answers(run_to_end(worker))
    for number, options in enumerate(MIXED):
        alone = lm.generate("Once " * (number + 1), raw=True, **options)
        assert texts[str(number)] == alone.text
        assert len(alone.tokens) <= options["max_new_tokens"]


def test_fixed_shape_keeps_one_batcher_for_the_usual_requests(lm):
    pools = BatchPools(lm.model, rows=4, length=128, steps=64, fit=False)
    request = build_request(lm, make_job("a"), Limits(), length=128).request
    assert request.plan.cache == Blocks()
    pools.admit(request)
    pools.admit(request)
    assert [(batcher.rows, batcher.length) for batcher in pools.batchers] == [(4, 128)]


def test_default_answer_fills_the_room_of_whole_blocks(lm):
    job = make_job("a", prompt="x" * 100)
    del cast("dict[str, Any]", job.options)["max_new_tokens"]
    worker = make_worker(lm, length=111)
    list(worker.handle(job))
    assert "a" in answers(run_to_end(worker))
    request = build_request(lm, job, Limits(), length=111).request
    assert len(request.ids) in (108, 111)  # with padding the answer has the rest


def test_default_answer_fits_the_steps_of_whole_blocks(lm):
    steps = 2 * lm.model.block_size + 1
    worker = make_worker(lm, steps=steps)
    list(worker.handle(Job(id="a", prompt="Once")))
    (ended,) = (one for one in run_to_end(worker) if isinstance(one, RequestFinished))
    assert ended.steps <= steps
    worker.warm_up()


def test_fork_continues_in_the_blocks_of_the_first_decode(lm):
    options = {"max_new_tokens": 12, "eos": "keep", "strategy": "left_to_right"}
    prompt = "Once "
    whole = lm.generate(prompt, raw=True, **options)
    ids = [*lm.tokenizer.encode(prompt), *whole.tokens]
    answer = [False] * 5 + [True] * 12
    holes = [False] * 11 + [True] * 6  # six tokens are decided: they end inside a block
    canvas = CanvasSnapshot(ids, holes, answer, infilling=False)
    del options["max_new_tokens"]
    worker = make_worker(lm)
    job = make_job("f", fork=Fork(canvas, {}), options=options)
    del cast("dict[str, Any]", job.options)["max_new_tokens"]
    assert not [m for m in worker.handle(job) if isinstance(m, RequestFailed)]
    assert answers(run_to_end(worker))["f"] == whole.text


def test_measures_work(lm):
    worker = make_worker(lm)
    job = make_job("m", measure=True, options={"max_new_tokens": 10, "eos": "keep"})
    assert not [m for m in worker.handle(job) if isinstance(m, RequestFailed)]
    assert (
        answers(run_to_end(worker))["m"]
        == lm.generate("Once", raw=True, max_new_tokens=10, eos="keep").text
    )


REFUSED = {
    "infill": ({"infill": True, "prompt": "a <mask:4> b"}, "does not see the text after a hole"),
    "cache": ({"options": {"cache": "wave()"}}, "block-causal: use blocks"),
    "horizon": (
        {"options": {"strategy": "tide(cascade_rounds=0, horizon=3, selector=quota())"}},
        "hides positions",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_unsupported_options_of_a_block_causal_model_are_refused(lm, name):
    more, message = REFUSED[name]
    failed = list(make_worker(lm).handle(make_job("a", **more)))
    assert [type(m) for m in failed] == [RequestFailed]
    assert message in failed[0].message


def finished_in(messages: list[Any]) -> dict[str, RequestFinished]:
    return {one.id: one for one in messages if isinstance(one, RequestFinished)}


@pytest.mark.parametrize("fit", [True, False])
def test_requests_share_the_keys_of_a_common_prompt_and_get_the_same_answers(lm, fit):
    common = "Once upon a time there was a fox. " * 3
    prompts = [f"{common}{end}" for end in ("It", "It", "The fox was", "")]
    options = {"max_new_tokens": 8, "eos": "keep"}
    found, cached = {}, {}
    for memory in (1 << 20, 0):
        worker = make_worker(lm, fit=fit, prefix_bytes=memory, length=192)
        texts, counts = [], []
        for number, prompt in enumerate(prompts):
            job = make_job(str(number), prompt=prompt, options=options)
            messages = [*worker.handle(job), *run_to_end(worker)]
            texts.append(answers(messages)[str(number)])
            counts.append(finished_in(messages)[str(number)].cached_tokens)
        assert worker.pools.prefixes.nbytes <= memory
        found[memory], cached[memory] = texts, counts
    assert found[1 << 20] == found[0] == [lm.generate(p, raw=True, **options).text for p in prompts]
    assert cached[0] == [0, 0, 0, 0]
    assert cached[1 << 20][0] == 0
    assert cached[1 << 20][1] >= 61  # at least one chunk, less its padding
    if not lm.model.padded_blocks:
        assert cached[1 << 20][1:] == [64, 64, 64]


def test_memory_that_runs_out_removes_stored_prompts(lm, monkeypatch):
    worker = make_worker(lm, length=192)
    options = {"max_new_tokens": 8}
    run = [*worker.handle(make_job("a", prompt="x" * 100, options=options)), *run_to_end(worker)]
    assert finished_in(run)
    assert worker.pools.prefixes.nbytes > 0

    def fail(self: Any) -> Any:
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr("wavefront.engine.batcher.Batcher.step", fail)
    list(worker.handle(make_job("b", prompt="x" * 100, options=options)))
    failed = [one for one in worker.step() if isinstance(one, RequestFailed)]
    assert [one.code for one in failed] == ["out_of_memory"]
    assert worker.pools.prefixes.nbytes == 0
