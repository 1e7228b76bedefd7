"""Worker: a model that decodes batches, in this process (`LocalExecutor`) or on a Ray cluster."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch.nn.functional import pad

from wavefront import lm
from wavefront.core.canvas import Canvas, infill
from wavefront.engine.layout import most_around, padding_before, prompt_canvas
from wavefront.engine.session import DecodeSession, check_infilling
from wavefront.evaluation import fingerprint
from wavefront.models import builtin
from wavefront.models.loader import find_family
from wavefront.models.protocol import Model
from wavefront.models.quantize import quantization_of
from wavefront.storage.hub import locate
from wavefront.tasks.base import Sample
from wavefront.text.tokenizer import Tokenizer, hole_segments, prompt_ids
from wavefront.traces.trace import Trace


@dataclass(frozen=True, kw_only=True)
class Loader:
    """How to load a model. It can be sent to another machine."""

    path: str = builtin.DEFAULT
    device: str | None = None
    dtype: str | None = None
    quantize: str | None = None
    revision: str | None = None
    offline: bool = False
    mask_id: int | None = None
    attention: str | None = None
    block_size: int | None = None
    speed: str = "exact"
    threads: int | None = None  # torch threads on a CPU; None keeps the current number

    def load(self) -> lm.LM:
        if self.threads is not None:
            torch.set_num_threads(self.threads)
        return lm.load(
            self.path,
            device=self.device,
            dtype=self.dtype,
            quantize=self.quantize,
            revision=self.revision,
            offline=self.offline,
            mask_id=self.mask_id,
            attention=self.attention,
            block_size=self.block_size,
            speed=self.speed,
        )

    def directory(self) -> Path | None:
        """Return the directory of the model's files; None for a model without files."""
        if self.path == "toy" or lm.is_factory(self.path):
            return None
        return locate(
            self.path,
            revision=self.revision,
            offline=self.offline,
            factory=True,
            check=find_family,
        )

    def with_absolute_path(self) -> Loader:
        """Return the same loader with a path that is valid in every working directory."""
        local = Path(self.path).expanduser()
        is_local = self.path not in builtin.names() and local.is_dir()
        return replace(self, path=str(local.resolve())) if is_local else self


class WorkerInfo(NamedTuple):
    """What a worker reports about its model and some options."""

    model: dict[str, Any]  # fingerprints of everything in the model that determines an answer
    options: dict[str, Any]  # the decoding options with every default filled in
    strategy: str | None  # fingerprint of a user's strategy; None for a built-in one
    max_length: int  # the most positions of a prompt and its answer
    environment: dict[str, Any]


class Prompt(NamedTuple):
    """The input of a model: a prompt, or a text with a hole."""

    text: str
    suffix: str = ""

    @classmethod
    def of(cls, sample: Sample) -> Prompt:
        """Return the prompt of a task's item; `extra["suffix"]` is the text after a hole."""
        return cls(sample.prompt, str(sample.extra.get("suffix", "")))

    def ids(self, tokenizer: Tokenizer, raw: bool) -> tuple[list[int], list[int]]:
        """Return the ids before and after the masked positions; a text with a hole is raw."""
        if not self.suffix:
            return prompt_ids(tokenizer, self.text, raw=raw), []
        spaced = self.suffix if self.suffix[:1].isspace() else f" {self.suffix}"
        before, _, after = hole_segments(tokenizer, [self.text, 1, spaced])
        assert isinstance(before, list)
        assert isinstance(after, list)
        return [*tokenizer.opening, *before], after


class BatchJob(NamedTuple):
    """A batch to decode."""

    number: int
    prompts: Sequence[Prompt]
    width: int
    options: Mapping[str, Any]
    raw: bool = False
    trace: str = ""


class Reply(NamedTuple):
    """The answer to one prompt."""

    text: str
    tokens: list[int]
    finish_reason: str | None
    forwards: int  # made for this answer until it ended, void ones included
    positions: int  # computed in them
    steps: int
    prompt_tokens: int


class BatchResult(NamedTuple):
    """The answers to a batch."""

    number: int
    replies: list[Reply]
    forwards: int  # of the whole batch
    trace: Trace | None
    seconds: float
    worker: str
    environment: dict[str, Any]


JobProgress = Callable[
    [BatchJob, float], None
]  # a running job and the share of its steps that is done


def ignore_progress(job: BatchJob, share: float) -> None:
    """Do nothing; this is the default progress callback."""


class Executor(Protocol):
    """One or many workers with the same model."""

    def about(self, options: Mapping[str, Any]) -> WorkerInfo: ...
    def lengths(self, prompts: Sequence[Prompt], raw: bool) -> list[int]: ...
    def decode(
        self, jobs: Sequence[BatchJob], on_progress: JobProgress = ...
    ) -> Iterator[BatchResult]:
        """Yield the result of every job once, in the order in which they finish."""
        ...


class Worker:
    """A model that answers batches. The model is loaded when it is first needed."""

    def __init__(self, loader: Loader, model: lm.LM | None = None) -> None:
        self.loader = loader
        if model is not None:
            self.lm = model

    @cached_property
    def lm(self) -> lm.LM:
        return self.loader.load()

    @cached_property
    def _model(self) -> dict[str, Any]:
        directory, loader = self.loader.directory(), self.loader
        found = {
            "weights": fingerprint.of_weights(self.lm, directory),
            "tokenizer": fingerprint.of_tokenizer(self.lm, directory),
            "template": fingerprint.of_template(self.lm),
            "dtype": str(self.lm.model.dtype).removeprefix("torch."),
            "quantize": quantization_of(self.lm.model),
        }
        if lm.is_factory(loader.path):
            found["factory"] = fingerprint.of_factory(loader.path)
        # Named only if given, so that runs without them can be resumed.
        if loader.mask_id is not None:
            found["mask_id"] = loader.mask_id
        if loader.attention is not None or loader.block_size is not None:
            found["attention_block_size"] = self.lm.model.block_size
        return found

    @cached_property
    def _environment(self) -> dict[str, Any]:
        return fingerprint.environment(self.lm)

    def about(self, options: Mapping[str, Any]) -> WorkerInfo:
        plan = self.lm.plan(options)
        return WorkerInfo(
            dict(self._model),
            plan.options(),
            fingerprint.of_strategy(plan.config.strategy),
            self.lm.model.max_length - sum(most_around(self.lm.model)),
            self._environment,
        )

    def lengths(self, prompts: Sequence[Prompt], raw: bool) -> list[int]:
        """Return the number of tokens in each prompt, as the model sees it.

        Raises:
            OptionError: A text has a hole, and the model cannot fill it.
        """
        if any(prompt.suffix for prompt in prompts):
            check_infilling(self.lm.model)
        return [sum(map(len, prompt.ids(self.lm.tokenizer, raw))) for prompt in prompts]

    def decode(
        self, job: BatchJob, on_progress: Callable[[float], None] = lambda share: None
    ) -> BatchResult:
        """Decode a batch, padded to the width of the job.

        `on_progress` receives the share of the steps that are done."""
        started = time.monotonic()
        model, plan = self.lm.model, self.lm.plan(job.options)
        ids = [prompt.ids(self.lm.tokenizer, job.raw) for prompt in job.prompts]
        canvas = batch_canvas(model, ids, width=job.width, length=plan.length)
        session = DecodeSession(model, canvas, plan, record=job.trace, captured=self.lm.captured)
        stream = lm.Stream(self.lm, session)
        for step in stream:
            on_progress((step.number + 1) / plan.steps)
        answers = stream.completions
        replies = [
            Reply(
                text=answer.text,
                tokens=answer.tokens,
                finish_reason=answer.finish_reason,
                forwards=answer.forwards,
                positions=answer.token_forwards,
                steps=answer.steps,
                prompt_tokens=len(row),
            )
            for answer, (row, _) in zip(answers, ids, strict=True)
        ]
        return BatchResult(
            job.number,
            replies,
            session.forwards,
            answers[0].trace,
            time.monotonic() - started,
            fingerprint.process_name(),
            self._environment,
        )


class LocalExecutor:
    """A worker in this process."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker

    def about(self, options: Mapping[str, Any]) -> WorkerInfo:
        return self.worker.about(options)

    def lengths(self, prompts: Sequence[Prompt], raw: bool) -> list[int]:
        return self.worker.lengths(prompts, raw)

    def decode(
        self, jobs: Sequence[BatchJob], on_progress: JobProgress = ignore_progress
    ) -> Iterator[BatchResult]:
        for job in jobs:
            yield self.worker.decode(job, partial(on_progress, job))


def batch_canvas(
    model: Model, ids: Sequence[tuple[list[int], list[int]]], *, width: int, length: int
) -> Canvas:
    """Return the canvas of a batch, whose shape depends only on `width` and `length`.

    Args:
        model: The model. If it is block-causal, the rows lie in its blocks as in `LM.generate`.
        ids: The ids before and after the masked positions of each row.
        width: The number of positions for the longest prompt.
        length: The number of positions to fill.
    """
    if model.block_size is not None:
        assert not any(after for _, after in ids)
        prompts = [before for before, _ in ids]
        canvas, longest = prompt_canvas(model, prompts, length), max(map(len, prompts))
        before = padding_before(model, width) + width
        left = before - padding_before(model, longest) - longest
        _, masks = most_around(model)
        total = before + length + masks
        return padded(canvas, left=left, total=total, pad_id=model.pad_id)
    hole = [model.mask_id] * length
    rows = [[*before, *hole, *after] for before, after in ids]
    holes = [
        [False] * len(before) + [True] * length + [False] * len(after) for before, after in ids
    ]
    special = {"mask_id": model.mask_id, "pad_id": model.pad_id, "device": model.device}
    canvas = infill(rows, holes, **special)
    total = width + length
    left = total - canvas.tokens.shape[1]
    return padded(canvas, left=left, total=total, pad_id=model.pad_id)


def padded(canvas: Canvas, *, left: int, total: int, pad_id: int) -> Canvas:
    """Return the canvas with `left` positions of padding before it, and `total` in all."""
    sides = (left, total - left - canvas.tokens.shape[1])
    fills = (pad_id, False, False, -1)
    return Canvas(*(pad(part, sides, value=v) for part, v in zip(canvas, fills, strict=True)))
