"""Default rows: steps of the default strategy as a user decodes first, without options."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace

import torch

from wavefront.bench.results import Row, Workload, make_row
from wavefront.bench.step_rows import REFRESH, Entry, Stage
from wavefront.bench.timing import summarise, synchronize
from wavefront.bench.workloads import Case, Cycle, Steps, new_batcher
from wavefront.core.bounds import DEFAULT_STRATEGY
from wavefront.engine.options import SPEEDS, resolve_cache
from wavefront.lm import LM, Stream
from wavefront.strategies.caches.wave import Wave
from wavefront.text.byte_tokenizer import byte_tokenizer

KIND = "default"
CAPTURED = "captured"  # the same steps, captured at their first use


@dataclass
class StreamSteps:
    """A piece of `count` steps of `lm.stream`. It restarts, untimed, before it would end."""

    lm: LM
    prompt: str
    max_new_tokens: int
    count: int
    _stream: Stream | None = field(default=None, repr=False)
    _left: int = 0

    def ready(self) -> None:
        if self._left >= self.count and not self._has_ended():
            return
        self._stream = None  # first: captured steps serve one decode at a time
        self._stream = self.lm.stream(self.prompt, raw=True, max_new_tokens=self.max_new_tokens)
        self._left = self.max_new_tokens

    def _has_ended(self) -> bool:
        stream = self._stream
        return stream is None or all(request.done for request in stream.decoding._requests)

    def __call__(self) -> int:
        self.ready()
        made = 0
        while made < self.count and self.step():
            made += 1
        return made

    def step(self) -> bool:
        """Take a step, and return whether there was one; an adaptive strategy may end early."""
        assert self._stream is not None
        self._left -= 1
        return next(self._stream, None) is not None

    @property
    def canvas_length(self) -> int:
        """The number of positions of the canvas."""
        self.ready()
        assert self._stream is not None
        return self._stream.decoding.canvas.tokens.shape[1]


def default_rows(stage: Stage) -> list[Row]:
    """Measure `lm.stream` without options, beside the same steps captured explicitly.

    On CUDA, the warm-up is measured too: the time until all captured steps have run.
    """
    settings, rows, entries = stage.settings, [], []
    prompt = "x" * settings.prompt_tokens
    case = stage.case(strategy=DEFAULT_STRATEGY)
    for speed in SPEEDS:
        tokenizer = byte_tokenizer() if settings.lm is None else settings.lm.tokenizer
        lm = LM(stage.model, tokenizer, name=settings.name, speed=speed)
        policy = _policy(speed)
        count = stage.count if policy is None else REFRESH
        public = StreamSteps(lm, prompt, case.max_new_tokens, count)
        case = replace(case, prompt_tokens=public.canvas_length - case.max_new_tokens)
        if lm.captured is not None:
            rows.append(_warm_up_row(lm, public, speed, shapes=1 if policy is None else 2))
        work, window = ("step", None) if policy is None else ("cycle", policy.size)
        make = Steps if policy is None else Cycle
        floor, text = _floor(stage, case, policy), _text(speed, policy)
        for variant, what, piece in (
            (speed, f"{text}, no options", public),
            (
                f"{speed}-{CAPTURED}",
                f"{text}, captured",
                make(case, new_batcher(case, policy), count),
            ),
        ):
            workload = Workload(kind=KIND, work=work, window=window, variant=variant)
            entries.append(Entry(workload, what, piece, floor, cache=policy))
    return rows + stage.measure(entries, case)


def _policy(speed: str) -> Wave | None:
    policy = resolve_cache(SPEEDS[speed].cache)
    assert policy is None or isinstance(policy, Wave)
    return policy


def _text(speed: str, policy: Wave | None) -> str:
    cycle = "" if policy is None else f", with a full step in {policy.refresh}"
    return f"default strategy, speed={speed}{cycle}"


def _floor(stage: Stage, case: Case, policy: Wave | None) -> float:
    full = stage.full_floor(case)
    if policy is None:
        return full
    windows = (policy.refresh - 1) * stage.window_floor(case, policy.size)
    return (full + windows) / policy.refresh


@torch.no_grad()
def _warm_up_row(lm: LM, piece: StreamSteps, speed: str, *, shapes: int) -> Row:
    """Measure the time from the first step until steps of every shape have been captured."""
    device, began = lm.model.device, time.perf_counter()
    piece.ready()
    steps = 0
    while graph_count(lm) < shapes and steps < 3 * REFRESH and piece.step():
        steps += 1
    piece.step()
    synchronize(device)
    seconds = time.perf_counter() - began
    note = f"{steps} steps" if graph_count(lm) >= shapes else "not all steps were captured"
    workload = Workload(kind=KIND, work="warm-up", variant=speed)
    text = f"default strategy, speed={speed}, until its captured steps run"
    return make_row(workload, text, summarise([seconds]), note=note)


def graph_count(lm: LM) -> int:
    """Return how many steps a model has captured."""
    kept = () if lm.captured is None else lm.captured._kept.values()
    return sum(len(getattr(batcher._call, "_graphs", ())) for batcher in kept)
