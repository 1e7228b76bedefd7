"""The decode process: a model, its slots, and a pipe to the server."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

import wavefront
from wavefront.core import spec
from wavefront.core.errors import PromptError, SpecError, WavefrontError
from wavefront.engine.batcher import Batcher
from wavefront.engine.cuda_graphs import Call, Graphs, eagerly
from wavefront.engine.batcher import ActiveRequest, StepUpdate
from wavefront.lm import LM, load
from wavefront.server.batch_pools import Lanes
from wavefront.server.fair_queue import Queue
from wavefront.server.request_builder import prepare
from wavefront.server.settings import Limits, Settings
from wavefront.server.step_events import Teller
from wavefront.server.worker_messages import (
    About,
    Beat,
    Check,
    Drop,
    Ended,
    Failed,
    Job,
    Refused,
    Seated,
    Stop,
    Taken,
)
from wavefront.storage.fingerprint import of_tensors, of_value

IDLE = 0.5  # seconds between two signs of life when there is nothing to do
WARM = 16  # places of the answer that a decoder begins with
LONGEST = 4096  # places of a board, unless told otherwise


class Decoder:
    """Takes messages, makes steps, gives messages; `run` connects it to a pipe."""

    def __init__(
        self,
        lm: LM,
        limits: Limits,
        *,
        fit: bool,
        cache: str | None = None,
        calls: Callable[[], Call] = lambda: eagerly,
    ) -> None:
        self.lm, self.limits = lm, limits
        self.length = min(limits.length or LONGEST, lm.model.max_length)
        policy = None if cache is None else spec.resolve(cache, "caches")
        shape: dict[str, Any] = {"rows": limits.rows, "length": self.length, "cache": policy}
        self.lanes = Lanes(lm.model, steps=limits.steps, fit=fit, calls=calls, **shape)
        self.queue = Queue[Teller]()
        self.seated: dict[str, tuple[Batcher, ActiveRequest, Teller]] = {}
        self.failures = 0  # in a row, of steps

    def warm(self) -> None:
        """Decode something: what is compiled or captured at first use keeps no request waiting."""
        places = min(WARM, self.limits.new_tokens, self.limits.steps, self.length // 2)
        lane, _ = self.lanes.admit(self.lm.request("Hello", max_new_tokens=places))
        while lane.busy:
            lane.step().updates
        self.lanes.settle()

    def selector(self, message: Job | Check | Drop) -> Iterator[Any]:
        """Hear the server."""
        if isinstance(message, Drop):
            self._leave(message.id)
            return
        asked = isinstance(message, Check)
        if isinstance(message, Check):
            message = message.job
        try:
            made = prepare(self.lm, message, self.limits, length=self.length)
            self._check(made.request)
        except WavefrontError as error:
            yield Refused(message.id, 400, str(error), "invalid_value", _field(error, message))
            return
        except Exception as error:  # whatever a strange option makes of it, it is the request's
            yield Refused(message.id, 400, f"This cannot be decoded: {error}.", "invalid_value")
            return
        teller = Teller(self.lm, message, made)
        if not asked:
            self.queue.add(teller)
        told = (made.board, teller.first()) if message.events else (None, None)
        yield Taken(message.id, len(made.answer) - sum(made.answer), *told)

    def _check(self, request: Any) -> None:
        limits, plan = self.limits, request.plan
        if plan.length > limits.new_tokens:
            raise WavefrontError(
                f"max_new_tokens must be at most {limits.new_tokens} here, not {plan.length}."
            )
        self.lanes.check(request)

    def _leave(self, id: str) -> None:
        self.queue.remove(id)
        if id in self.seated:
            lane, seat, _ = self.seated.pop(id)
            lane.release(seat)

    @property
    def busy(self) -> bool:
        """Whether another `step` has anything to do."""
        return bool(self.seated or self.queue) or any(lane.busy for lane in self.lanes.lanes)

    def step(self) -> Iterator[Any]:
        """ActiveRequest who waits, and make one step of every lane."""
        yield from self._seat()
        begun, forwards, commits = time.monotonic(), 0, 0
        for lane in list(self.lanes.lanes):
            if not lane.busy:
                continue
            try:
                moments = lane.step().updates
                self.failures = 0
            except Exception as error:
                yield from self._fail(lane, error)
                continue
            forwards += 1
            for moment in moments:
                commits += len(moment.commits)
                yield from self._tell(moment)
        self.lanes.settle()
        yield Beat(self.lanes.busy, forwards, commits, time.monotonic() - begun)

    def _seat(self) -> Iterator[Any]:
        while self.lanes.free and (teller := self.queue.next()):
            id = teller.job.id
            try:
                lane, seat = self.lanes.admit(teller.prepared.request)
            except Exception as error:
                yield _refusal(id, error)
                continue
            teller.begin()
            self.seated[id] = lane, seat, teller
            yield Seated(id)

    def _tell(self, moment: StepUpdate) -> Iterator[Any]:
        found = [one for one in self.seated.values() if one[1] is moment.seat]
        if not found:
            return  # it left while the step was under way
        lane, seat, teller = found[0]
        if seat.error is not None:
            del self.seated[teller.job.id]
            yield Refused(teller.job.id, 500, seat.error, "numerical_error")
            return
        told = teller.tell(moment)
        if isinstance(told, Ended):
            del self.seated[teller.job.id]
            lane.release(seat)  # a stop string may end it before its canvas is full
        if told is not None:
            yield told

    def _fail(self, lane: Batcher, error: Exception) -> Iterator[Any]:
        """A step that cannot be made ends its requests, and nothing else."""
        self.failures += 1
        self.lanes.lose(lane, fewer=_no_memory(error))
        for id, (mine, _, _) in list(self.seated.items()):
            if mine is lane:
                del self.seated[id]
                yield _refusal(id, error)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        if self.failures >= 3:
            raise error  # a new process may do better


def run(settings: Settings, pipe: Any) -> None:
    """The decode process, until it is told to stop or its server is gone."""
    # Control-C goes to the whole group; when to stop is for the server to say.
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
            capture=source.capture,
            compile=source.compile,
        )
        on_cpu = lm.model.device.type == "cpu"
        fit = on_cpu if settings.lanes == "auto" else settings.lanes == "fit"
        calls = Graphs if source.capture else lambda: eagerly
        decoder = Decoder(lm, settings.limits, fit=fit, cache=settings.cache, calls=calls)
        if source.capture or source.compile:
            decoder.warm()
    except Exception as error:
        pipe.send([Failed(str(error))])
        return
    pipe.send([about(lm, decoder, settings)])
    try:
        _serve(decoder, pipe)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        os._exit(0)  # nobody is left to be told


def _serve(decoder: Decoder, pipe: Any) -> None:
    while True:
        said: list[Any] = []
        while pipe.poll(0 if decoder.busy or said else IDLE):
            message = pipe.recv()
            if isinstance(message, Stop):
                return
            said += decoder.selector(message)
        said += decoder.step()
        pipe.send(said)


def about(lm: LM, decoder: Decoder, settings: Settings) -> About:
    """What the server wants to know of the model."""
    name = settings.name or os.path.basename(os.path.normpath(lm.name)) or "model"
    shelf = {one: repr(spec.resolve(one, "strategies")) for one in spec.names("strategies")}
    chat = lm.tokenizer.template is not None
    return About(name, chat, fingerprint(lm), decoder.length, lm.model.family, shelf)


def fingerprint(lm: LM) -> str:
    """Return a fingerprint of the weights under this version of wavefront."""
    tensors = lm.model.state_dict() if isinstance(lm.model, torch.nn.Module) else {}
    parts = [wavefront.__version__, lm.model.family, of_tensors(tensors)]
    return f"fp_{of_value(parts)[:12]}"


def _field(error: WavefrontError, job: Job) -> str | None:
    """The field that a refusal is about, if it can be told."""
    if isinstance(error, PromptError):
        return "messages" if job.messages is not None else "prompt"
    if isinstance(error, SpecError):
        return "strategy"
    return next((name for name in job.options if name in str(error)), None)


def _refusal(id: str, error: Exception) -> Refused:
    if _no_memory(error):
        message = "There was not enough memory to decode this: ask for less, or try again later."
        return Refused(id, 503, message, "out_of_memory")
    if isinstance(error, WavefrontError):
        return Refused(id, 400, str(error), "invalid_value")
    return Refused(id, 500, "The decode failed; the server goes on.", "decode_failed")


def _no_memory(error: Exception) -> bool:
    # The CPU allocator raises a bare RuntimeError.
    known = isinstance(error, torch.OutOfMemoryError | MemoryError)
    return known or (isinstance(error, RuntimeError) and "allocate memory" in str(error))
