"""Decode workers of the server, run in the process of the test."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from wavefront.core.strategy import Strategy
from wavefront.server.decode_worker import DecodeWorker
from wavefront.server.request_builder import build_request
from wavefront.server.request_state import RequestState
from wavefront.server.settings import Limits
from wavefront.server.step_events import StepEvents
from wavefront.server.worker_messages import (
    Heartbeat,
    Job,
    RequestFinished,
    RequestProgress,
)

MIXED: tuple[dict[str, Any], ...] = (
    {"max_new_tokens": 12, "strategy": "standard"},
    {"max_new_tokens": 20, "temperature": 0.7, "seed": 4},
    {"max_new_tokens": 16, "strategy": "block(size=4)", "steps": 8},
    {
        "max_new_tokens": 9,
        "strategy": "tide(cascade_rounds=0, horizon=0, revisable_band=4, "
        "remask_below=0.5, selector=threshold(tau=0.3))",
    },
    {"max_new_tokens": 24, "strategy": "rcr(size=16)"},
    {"max_new_tokens": 30, "eos": "stop"},
    {"max_new_tokens": 21, "priority": "entropy", "strategy": "wavefront(size=4)"},
)


def make_worker(lm: Any, *, fit: bool = True, **limits: Any) -> DecodeWorker:
    return DecodeWorker(lm, Limits(**{"rows": 4, "length": 128} | limits), fit=fit)


def make_job(id: str, **more: Any) -> Job:
    options = {"max_new_tokens": 16, **more.pop("options", {})}
    if more.get("infill"):
        del options["max_new_tokens"]
    return Job(id=id, options=options, **{"prompt": "Once", **more})


def push_failing(worker: DecodeWorker, job: Job, strategy: Strategy) -> None:
    """Queue a job with a strategy that no client can name."""
    prepared = build_request(worker.lm, job, worker.limits, length=worker.length)
    plan = prepared.request.plan
    plan = replace(plan, config=replace(plan.config, strategy=strategy))
    prepared = prepared._replace(request=prepared.request._replace(plan=plan))
    worker.queue.push(StepEvents(worker.lm, job, prepared))


def run_to_end(worker: DecodeWorker) -> list[Any]:
    """Step until nothing is left to do and return all messages."""
    messages: list[Any] = []
    for _ in range(2000):
        messages += worker.step()
        if not worker.busy:
            return messages
    raise AssertionError("the worker is still busy after 2000 steps")


def answers(messages: list[Any]) -> dict[str, str]:
    texts: dict[str, str] = {}
    for one in messages:
        if isinstance(one, RequestProgress | RequestFinished):
            texts[one.id] = texts.get(one.id, "") + one.text
    return texts


def run_job(lm: Any, job: Job) -> RequestState:
    """Decode a job and return its final state."""
    worker = make_worker(lm)

    async def run() -> RequestState:
        state = RequestState(job)
        for message in [*worker.handle(job), *run_to_end(worker)]:
            if not isinstance(message, Heartbeat):
                state.update(message)
        return state

    return asyncio.run(run())
