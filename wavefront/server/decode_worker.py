"""The decode process: it owns the model and talks to the HTTP process through a pipe."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch

import wavefront
from wavefront.core import spec
from wavefront.core.bounds import DEFAULT_STRATEGY
from wavefront.core.cache_policy import Cache
from wavefront.core.errors import NumericalError, OptionError, WavefrontError
from wavefront.engine.batcher import ActiveRequest, Batcher, Request, StepUpdate, columns_of
from wavefront.engine.cuda_graphs import LOG, Call, graphs_for, run_eagerly, use_cuda_graphs
from wavefront.lm import LM, load
from wavefront.models import builtin
from wavefront.server.batch_pools import BatchPools
from wavefront.server.child_process import set_process_name
from wavefront.server.fair_queue import ClientShare, FairQueue
from wavefront.server.request_builder import (
    build_request,
    default_length,
    lacks_automaton,
    rejection,
    resolve_defaults,
    shorten,
)
from wavefront.server.settings import Limits, Settings
from wavefront.server.step_events import StepEvents
from wavefront.server.worker_messages import (
    LENGTH_OPTIONS,
    AutomatonMissing,
    CancelJob,
    CheckJob,
    Heartbeat,
    Job,
    LoadFailed,
    ModelInfo,
    RequestAccepted,
    RequestFailed,
    RequestFinished,
    RequestStarted,
    Shutdown,
)
from wavefront.storage.fingerprint import of_tensors, of_value

IDLE_INTERVAL = 0.5  # seconds between two heartbeats when there is nothing to decode
HANDLING_TIME = 0.05  # seconds of handling messages between two steps
WARM_UP_TOKENS = 64  # a shorter canvas would have other shapes
WARM_UP_ROUNDS = 2  # a step is captured at its second use
MAX_LENGTH = 4096  # positions of a canvas, unless the settings say otherwise
BYTES_PER_TOKEN = 32  # bytes of prompt text allowed per position of the longest canvas
PREFIX_SHARE = 0.05  # of a GPU's memory, for the keys and values of prompts
PREFIX_BYTES = 256 << 20  # the same without a GPU
MAX_FAILURES = 3  # consecutive failed steps and checks of the model after which the process ends


class ActiveDecode(NamedTuple):
    """A request that has a row."""

    batcher: Batcher
    request: ActiveRequest
    events: StepEvents


class DecodeWorker:
    """Handles incoming messages, runs steps, and yields replies. `run` connects it to a pipe."""

    def __init__(
        self,
        lm: LM,
        limits: Limits,
        *,
        fit: bool,
        defaults: Mapping[str, Any] | None = None,
        make_call: Callable[[], Call] = lambda: run_eagerly,
    ) -> None:
        """Decode with a model. `defaults` are the options for requests that do not set them.

        Raises:
            OptionError: A default is wrong, or the defaults do not fit together.
        """
        self.lm, self.limits = lm, limits
        self.length = min(limits.length or MAX_LENGTH, lm.model.max_length)
        self.defaults = resolve_defaults(lm, defaults or {}, limits, length=self.length)
        self.pools = BatchPools(
            lm.model,
            rows=limits.rows,
            length=self.length,
            steps=limits.steps,
            fit=fit,
            cache=self._default_cache(),
            make_call=make_call,
            prefix_bytes=_prefix_bytes(limits, lm.model.device),
        )
        self.queue = FairQueue[StepEvents]()
        self.active: dict[str, ActiveDecode] = {}
        self.failures = 0  # consecutive failed steps after which the model failed its check too
        # Seconds that slow batchers have computed in excess of the others.
        self.slow_lead = 0.0

    def warm_up(self) -> None:
        """Take the usual steps, so that few requests wait for compilation or graph capture.

        These are steps of all rows and, with a cache, steps in which 1, 2, 4, ... requests begin
        while another one continues.
        """
        began, limits = time.monotonic(), self.limits
        tokens = min(WARM_UP_TOKENS, default_length(self.lm, limits, room=self.length // 2))
        names = ("strategy", "eos", "cache")
        usual = {name: self.defaults[name] for name in names if name in self.defaults}
        request = self.lm.request("Hello", max_new_tokens=tokens, **usual)
        for _ in range(WARM_UP_ROUNDS):
            self._warm_up_rows(request, self.pools.rows, steps=2)
        if request.plan.cache is not None and self.pools.rows > 1:
            batcher, running = self.pools.admit(request)
            batcher.step()
            for count in _powers_of_two(self.pools.rows - 1):
                for _ in range(WARM_UP_ROUNDS):
                    self._warm_up_rows(request, count, steps=1)
            batcher.release(running)
        self.pools.close_idle()
        LOG.info("The model is warm after %.1f s.", time.monotonic() - began)

    def _warm_up_rows(self, request: Request, count: int, *, steps: int) -> None:
        """Admit a request several times, take a few steps, and release all of them."""
        admitted = [self.pools.admit(request) for _ in range(count)]
        for _ in range(steps):
            for batcher in self.pools.batchers:
                if batcher.busy:
                    batcher.step()
        for batcher, active in admitted:
            batcher.release(active)

    def _default_cache(self) -> Cache | None:
        """Return the cache policy for requests that set neither `cache` nor `speed`."""
        given = {"cache": self.defaults["cache"]} if "cache" in self.defaults else {}
        return self.lm.plan(given).cache

    def handle(self, message: Job | CheckJob | CancelJob) -> Iterator[Any]:
        """Handle a message from the HTTP process and yield the answers."""
        if isinstance(message, CancelJob):
            self._cancel(message.id)
            return
        job = message.job if isinstance(message, CheckJob) else message
        try:
            if lacks_automaton(self.lm, job):
                yield AutomatonMissing(message)
                return
            prepared = build_request(
                self.lm, job, self.limits, length=self.length, defaults=self.defaults
            )
            self._check(prepared.request, job)
            # The plan has the automaton: do not keep its bytes while the request waits.
            events = StepEvents(self.lm, replace(job, automaton=None), prepared)
            canvas, start_event = (
                (prepared.canvas, events.start_event()) if job.events else (None, None)
            )
        except Exception as error:  # an unexpected option value must not end the process
            yield rejection(error, job)
            return
        if isinstance(message, Job):
            self.queue.push(events)
        answer = prepared.answer
        yield RequestAccepted(job.id, len(answer) - sum(answer), canvas, start_event)

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
            self._release(batcher, request)

    @property
    def busy(self) -> bool:
        """Whether there is anything to decode."""
        if self.active or self.queue:
            return True
        return any(batcher.busy for batcher in self.pools.batchers)

    def step(self) -> Iterator[Any]:
        """Admit waiting requests, run a step of the batchers, and yield the messages."""
        yield from self._admit_waiting()
        begun, forwards, commits = time.monotonic(), 0, 0
        for batcher in self._next_batchers():
            started = time.monotonic()
            try:
                updates = batcher.step().updates
            except Exception as error:
                yield from self._isolate_failure(batcher, error)
                continue
            spent = time.monotonic() - started
            self.slow_lead += spent if self.pools.is_slow(batcher) else -spent
            self.failures = 0
            forwards += 1
            for update in updates:
                commits += len(update.commits)
                yield from self._report(update)
        self.pools.close_idle()
        yield Heartbeat(self.pools.busy, forwards, commits, time.monotonic() - begun)

    def _next_batchers(self) -> list[Batcher]:
        """Return the batchers to step. Slow ones get at most half of the time."""
        busy = [batcher for batcher in self.pools.batchers if batcher.busy]
        quick = [batcher for batcher in busy if not self.pools.is_slow(batcher)]
        if not quick or len(quick) == len(busy):
            self.slow_lead = 0.0  # there is nothing to share
            return busy
        self.slow_lead = max(0.0, self.slow_lead)
        return quick if self.slow_lead > 0 else busy

    def _admit_waiting(self) -> Iterator[Any]:
        share = ClientShare(
            (decode.events.job.address for decode in self.active.values()),
            limit=self.limits.rows_per_client(self.pools.rows),
        )

        def fits(waiting: StepEvents) -> bool:
            return self.pools.may_start(waiting.prepared.request)

        while self.pools.free and (events := self.queue.pop(share.may_start, fits)):
            id = events.job.id
            try:
                batcher, request = self.pools.admit(events.prepared.request)
            except Exception as error:
                _raise_if_fatal(error)
                yield _failure(id, error)
                continue
            events.mark_started()
            share.add(events.job.address)
            self.active[id] = ActiveDecode(batcher, request, events)
            yield RequestStarted(id)

    def _report(self, update: StepUpdate) -> Iterator[Any]:
        found = next(
            (decode for decode in self.active.values() if decode.request is update.request), None
        )
        if found is None:
            return  # it was cancelled during the step
        batcher, request, events = found
        id = events.job.id
        if request.error is not None:
            del self.active[id]
            numerical = issubclass(request.error_type, NumericalError)
            code = "numerical_error" if numerical else "strategy_error"
            yield RequestFailed(id, 500, request.error, code)
            return
        try:
            message = events.update(update)
        except Exception as error:
            del self.active[id]
            self._release(batcher, request)
            yield _failure(id, error)
            return
        if isinstance(message, RequestFinished):
            del self.active[id]
            self._release(batcher, request)  # a stop string may end it before its canvas is full
        if message is not None:
            yield message

    def _isolate_failure(self, batcher: Batcher, error: Exception) -> Iterator[Any]:
        """Fail the request that made a step raise an error. The others repeat the step."""
        _raise_if_fatal(error)
        if _is_out_of_memory(error):
            self.pools.prefixes.clear()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
        found = batcher.find_failing()
        if found is not None:
            _raise_if_fatal(found[1])
        if found is None or len(batcher.active) == 1:
            self._check_model(error)
        if found is None:
            yield from self._fail_batch(batcher, error)
            return
        request, reason = found
        self._release(batcher, request)
        for id, decode in list(self.active.items()):
            if decode.request is request:
                del self.active[id]
                yield _failure(id, reason)

    def _check_model(self, error: Exception) -> None:
        """Decode one token. If this fails repeatedly, raise `error` to end the process.

        A failing request therefore does not end the process, but a broken model or device does.
        """
        try:
            request = self.lm.request("Hello", max_new_tokens=1)
            length = max(2, columns_of(self.lm.model, request))
            batcher = Batcher(self.lm.model, rows=1, length=length)
            batcher.admit(request)
            while batcher.busy:
                batcher.step()
            self.failures = 0
        except Exception:
            self.failures += 1
            if self.failures >= MAX_FAILURES:
                raise error from None

    def _release(self, batcher: Batcher, request: ActiveRequest) -> None:
        """Free the row of a request. If this fails, the row is busy until its decode has ended."""
        try:
            batcher.release(request)
        except Exception as error:
            _raise_if_fatal(error)

    def _fail_batch(self, batcher: Batcher, error: Exception) -> Iterator[Any]:
        """Fail all requests of a batcher, for example because it needs too much memory."""
        self.pools.discard(batcher, reduce_rows=_is_out_of_memory(error))
        for id, decode in list(self.active.items()):
            if decode.batcher is batcher:
                del self.active[id]
                yield _failure(id, error)


def _powers_of_two(most: int) -> list[int]:
    """Return 1, 2, 4, ... up to `most`."""
    return [1 << bit for bit in range(most.bit_length())]


def _prefix_bytes(limits: Limits, device: torch.device) -> int:
    """Return how much memory to use for the keys and values of prompts."""
    if limits.prefix_bytes is not None:
        return limits.prefix_bytes
    if device.type != "cuda":
        return PREFIX_BYTES
    return int(PREFIX_SHARE * torch.cuda.get_device_properties(device).total_memory)


def run(settings: Settings, pipe: Any) -> None:
    """Load the model and decode until `Shutdown` arrives or the HTTP process has ended."""
    # Ctrl+C reaches the whole process group, but the HTTP process decides when to stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    set_process_name("wavefront-dec")
    _show_log()
    if settings.threads:
        torch.set_num_threads(settings.threads)
    source = settings.source
    try:
        lm = load(
            source.model,
            device=source.device,
            dtype=source.dtype,
            quantize=source.quantize,
            revision=source.revision,
            offline=source.offline,
            mask_id=source.mask_id,
            attention=source.attention,
            block_size=source.block_size,
            cuda_graphs=source.cuda_graphs,
            compile=source.compile,
            speed=source.speed,
        )
        on_cpu = lm.model.device.type == "cpu"
        fit = on_cpu if settings.batch_shape == "auto" else settings.batch_shape == "fit"
        worker = DecodeWorker(
            lm,
            settings.limits,
            fit=fit,
            defaults=settings.defaults,
            make_call=graphs_for(source.cuda_graphs, lm.model.device),
        )
        if source.compile or use_cuda_graphs(source.cuda_graphs, lm.model.device):
            worker.warm_up()
    except Exception as error:
        pipe.send([LoadFailed(str(error))])
        return
    pipe.send([model_info(worker, settings)])
    try:
        _serve(worker, pipe)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        os._exit(0)  # the HTTP process has ended


def _show_log() -> None:
    """Print the log of the library on standard error."""
    if not LOG.handlers:
        LOG.addHandler(logging.StreamHandler())
    LOG.setLevel(logging.INFO)


def _serve(worker: DecodeWorker, pipe: Any) -> None:
    while True:
        messages: list[Any] = []
        until = None  # new messages must not delay running requests
        while pipe.poll(0 if worker.busy or messages else IDLE_INTERVAL):
            message = pipe.recv()
            if isinstance(message, Shutdown):
                return
            messages += worker.handle(message)
            until = until or time.monotonic() + HANDLING_TIME
            if time.monotonic() > until:
                break
        messages += worker.step()
        pipe.send(messages)


def model_info(worker: DecodeWorker, settings: Settings) -> ModelInfo:
    """Describe the loaded model to the HTTP process."""
    lm = worker.lm
    classes = {name: spec.find(name, "strategies") for name in spec.names("strategies")}
    return ModelInfo(
        name=settings.name or os.path.basename(os.path.normpath(lm.name)) or "model",
        chat=lm.tokenizer.template is not None,
        fingerprint=fingerprint(lm),
        length=worker.length,
        prompt_bytes=settings.limits.prompt_bytes or BYTES_PER_TOKEN * worker.length,
        family=lm.model.family,
        strategies={name: repr(found()) for name, found in classes.items()},
        recommended={name: found.recommended_spec() for name, found in classes.items()},
        defaults={"strategy": DEFAULT_STRATEGY} | settings.defaults,
        summary=builtin.SUMMARIES.get(lm.name, ""),
    )


def fingerprint(lm: LM) -> str:
    """Return a fingerprint of the weights under this version of wavefront."""
    tensors = lm.model.state_dict() if isinstance(lm.model, torch.nn.Module) else {}
    model = lm.model
    parts = [wavefront.__version__, model.family, model.mask_id, model.block_size]
    parts.append(of_tensors(tensors))
    return f"fp_{of_value(parts)[:12]}"


def _failure(id: str, error: Exception) -> RequestFailed:
    if _is_out_of_memory(error):
        message = (
            "There is not enough memory for this request: use fewer tokens, or try again later."
        )
        return RequestFailed(id, 503, message, "out_of_memory")
    if isinstance(error, WavefrontError):
        return RequestFailed(id, 400, shorten(str(error)), "invalid_value", error.option)
    message = "The decode failed; the server is still running."
    return RequestFailed(id, 500, message, "decode_failed")


def _raise_if_fatal(error: Exception) -> None:
    """Raise an error after which the device cannot be used in this process."""
    if isinstance(error, RuntimeError) and "CUDA error" in str(error):
        raise error


def _is_out_of_memory(error: Exception) -> bool:
    # The CPU allocator raises a bare RuntimeError.
    known = isinstance(error, torch.OutOfMemoryError | MemoryError)
    return known or (isinstance(error, RuntimeError) and "allocate memory" in str(error))
