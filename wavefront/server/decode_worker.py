"""The decode process: it owns the model and talks to the HTTP process through a pipe."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

import wavefront
from wavefront.core import spec
from wavefront.core.errors import OptionError, PromptError, WavefrontError
from wavefront.engine.batcher import ActiveRequest, Batcher, Request, StepUpdate
from wavefront.engine.cuda_graphs import Call, Graphs, run_eagerly
from wavefront.lm import LM, load
from wavefront.server.batch_pools import BatchPools
from wavefront.server.fair_queue import FairQueue
from wavefront.server.request_builder import FORK_FIELDS, LENGTH_OPTIONS, build_request
from wavefront.server.settings import Limits, Settings
from wavefront.server.step_events import StepEvents
from wavefront.server.worker_messages import (
    Accepted,
    CancelJob,
    CheckJob,
    Finished,
    Heartbeat,
    Job,
    LoadFailed,
    ModelInfo,
    RequestFailed,
    Shutdown,
    Started,
)
from wavefront.storage.fingerprint import of_tensors, of_value

IDLE_INTERVAL = 0.5  # seconds between two heartbeats when there is nothing to decode
WARM_UP_TOKENS = 16
MAX_LENGTH = 4096  # positions of a canvas, unless the settings say otherwise
MAX_FAILURES = 3  # consecutive failed steps after which the process ends


class ActiveDecode(NamedTuple):
    """A request that has a row."""

    batcher: Batcher
    request: ActiveRequest
    events: StepEvents


class DecodeWorker:
    """Handles messages, makes steps and yields messages. `run` connects it to a pipe."""

    def __init__(
        self,
        lm: LM,
        limits: Limits,
        *,
        fit: bool,
        cache: str | None = None,
        make_call: Callable[[], Call] = lambda: run_eagerly,
    ) -> None:
        self.lm, self.limits = lm, limits
        self.length = min(limits.length or MAX_LENGTH, lm.model.max_length)
        self.pools = BatchPools(
            lm.model,
            rows=limits.rows,
            length=self.length,
            steps=limits.steps,
            fit=fit,
            cache=None if cache is None else spec.resolve(cache, "caches"),
            make_call=make_call,
        )
        self.queue = FairQueue[StepEvents]()
        self.active: dict[str, ActiveDecode] = {}
        self.failures = 0  # consecutive failed steps

    def warm_up(self) -> None:
        """Decode a short text, so that no request waits for compilation or graph capture."""
        limits = self.limits
        tokens = min(WARM_UP_TOKENS, limits.new_tokens, limits.steps, self.length // 2)
        batcher, _ = self.pools.admit(self.lm.request("Hello", max_new_tokens=tokens))
        while batcher.busy:
            batcher.step()
        self.pools.close_idle()

    def handle(self, message: Job | CheckJob | CancelJob) -> Iterator[Any]:
        """Handle a message of the HTTP process and yield the answers."""
        if isinstance(message, CancelJob):
            self._cancel(message.id)
            return
        job = message.job if isinstance(message, CheckJob) else message
        try:
            prepared = build_request(self.lm, job, self.limits, length=self.length)
            self._check(prepared.request, job)
        except WavefrontError as error:
            param = _param(error, job)
            yield RequestFailed(job.id, 400, str(error), "invalid_value", param)
            return
        except Exception as error:  # an unexpected option value must not end the process
            text = f"This request cannot be decoded: {error}."
            yield RequestFailed(job.id, 400, text, "invalid_value")
            return
        events = StepEvents(self.lm, job, prepared)
        if message is job:
            self.queue.push(events)
        answer = prepared.answer
        canvas, start_event = (
            (prepared.canvas, events.start_event()) if job.events else (None, None)
        )
        yield Accepted(job.id, len(answer) - sum(answer), canvas, start_event)

    def _check(self, request: Request, job: Job) -> None:
        limits, plan = self.limits, request.plan
        if plan.length > limits.new_tokens:
            name = next((name for name in LENGTH_OPTIONS if name in job.options), LENGTH_OPTIONS[0])
            raise OptionError(
                f"{name} must be at most {limits.new_tokens} here, not {plan.length}.",
                option=name,
                value=plan.length,
            )
        if plan.steps > limits.steps:
            raise OptionError(
                f"steps must be at most {limits.steps} here, not {plan.steps}.",
                option="steps",
                value=plan.steps,
            )
        self.pools.check(request)

    def _cancel(self, id: str) -> None:
        self.queue.remove(id)
        if id in self.active:
            batcher, request, _ = self.active.pop(id)
            batcher.release(request)

    @property
    def busy(self) -> bool:
        """Whether there is anything to decode."""
        if self.active or self.queue:
            return True
        return any(batcher.busy for batcher in self.pools.batchers)

    def step(self) -> Iterator[Any]:
        """Admit waiting requests, make one step of every batcher, and yield what happened."""
        yield from self._admit_waiting()
        begun, forwards, commits = time.monotonic(), 0, 0
        for batcher in list(self.pools.batchers):
            if not batcher.busy:
                continue
            try:
                updates = batcher.step().updates
                self.failures = 0
            except Exception as error:
                yield from self._fail(batcher, error)
                continue
            forwards += 1
            for update in updates:
                commits += len(update.commits)
                yield from self._report(update)
        self.pools.close_idle()
        yield Heartbeat(self.pools.busy, forwards, commits, time.monotonic() - begun)

    def _admit_waiting(self) -> Iterator[Any]:
        while self.pools.free and (events := self.queue.pop()):
            id = events.job.id
            try:
                batcher, request = self.pools.admit(events.prepared.request)
            except Exception as error:
                yield _failure(id, error)
                continue
            events.mark_started()
            self.active[id] = ActiveDecode(batcher, request, events)
            yield Started(id)

    def _report(self, update: StepUpdate) -> Iterator[Any]:
        found = next((one for one in self.active.values() if one.request is update.request), None)
        if found is None:
            return  # it was cancelled during the step
        batcher, request, events = found
        id = events.job.id
        if request.error is not None:
            del self.active[id]
            yield RequestFailed(id, 500, request.error, "numerical_error")
            return
        message = events.update(update)
        if isinstance(message, Finished):
            del self.active[id]
            batcher.release(request)  # a stop string may end it before its canvas is full
        if message is not None:
            yield message

    def _fail(self, batcher: Batcher, error: Exception) -> Iterator[Any]:
        """Fail the requests of a batcher whose step raised an error. Other batchers go on."""
        self.failures += 1
        self.pools.discard(batcher, reduce_rows=_is_out_of_memory(error))
        for id, decode in list(self.active.items()):
            if decode.batcher is batcher:
                del self.active[id]
                yield _failure(id, error)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        if self.failures >= MAX_FAILURES:
            raise error  # end the process: a new one may work


def run(settings: Settings, pipe: Any) -> None:
    """Load the model and decode until `Shutdown` arrives or the HTTP process has ended."""
    # Ctrl+C reaches the whole process group, but the HTTP process decides when to stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if settings.threads:
        torch.set_num_threads(settings.threads)
    source = settings.source
    try:
        lm = load(
            source.model,
            device=source.device,
            dtype=source.dtype,
            revision=source.revision,
            offline=source.offline,
            cuda_graphs=source.cuda_graphs,
            compile=source.compile,
        )
        on_cpu = lm.model.device.type == "cpu"
        fit = on_cpu if settings.batch_shape == "auto" else settings.batch_shape == "fit"
        worker = DecodeWorker(
            lm,
            settings.limits,
            fit=fit,
            cache=settings.cache,
            make_call=Graphs if source.cuda_graphs else lambda: run_eagerly,
        )
        if source.cuda_graphs or source.compile:
            worker.warm_up()
    except Exception as error:
        pipe.send([LoadFailed(str(error))])
        return
    pipe.send([model_info(worker, settings)])
    try:
        _serve(worker, pipe)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        os._exit(0)  # the HTTP process has ended


def _serve(worker: DecodeWorker, pipe: Any) -> None:
    while True:
        messages: list[Any] = []
        while pipe.poll(0 if worker.busy or messages else IDLE_INTERVAL):
            message = pipe.recv()
            if isinstance(message, Shutdown):
                return
            messages += worker.handle(message)
        messages += worker.step()
        pipe.send(messages)


def model_info(worker: DecodeWorker, settings: Settings) -> ModelInfo:
    """Describe the loaded model to the HTTP process."""
    lm = worker.lm
    strategies = {name: repr(spec.resolve(name, "strategies")) for name in spec.names("strategies")}
    return ModelInfo(
        name=settings.name or os.path.basename(os.path.normpath(lm.name)) or "model",
        chat=lm.tokenizer.template is not None,
        fingerprint=fingerprint(lm),
        length=worker.length,
        family=lm.model.family,
        strategies=strategies,
    )


def fingerprint(lm: LM) -> str:
    """Return a fingerprint of the weights under this version of wavefront."""
    tensors = lm.model.state_dict() if isinstance(lm.model, torch.nn.Module) else {}
    parts = [wavefront.__version__, lm.model.family, of_tensors(tensors)]
    return f"fp_{of_value(parts)[:12]}"


def _param(error: WavefrontError, job: Job) -> str | None:
    """Return the field of the request that an error is about, or None if it is unknown."""
    if isinstance(error, PromptError):
        return "messages" if job.messages is not None else "prompt"
    # The option of a strategy or a selector, such as size, is no field of the request.
    return error.option if error.option in (*job.options, *FORK_FIELDS, "measure") else None


def _failure(id: str, error: Exception) -> RequestFailed:
    if _is_out_of_memory(error):
        message = "There is not enough memory to decode this: ask for less, or try again later."
        return RequestFailed(id, 503, message, "out_of_memory")
    if isinstance(error, WavefrontError):
        return RequestFailed(id, 400, str(error), "invalid_value", error.option)
    return RequestFailed(id, 500, "The decode failed; the server is still up.", "decode_failed")


def _is_out_of_memory(error: Exception) -> bool:
    # The CPU allocator raises a bare RuntimeError.
    known = isinstance(error, torch.OutOfMemoryError | MemoryError)
    return known or (isinstance(error, RuntimeError) and "allocate memory" in str(error))
