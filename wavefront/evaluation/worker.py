"""Worker: a model that answers batches; one in this process, or many on a cluster."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.nn.functional import pad

from wavefront import lm
from wavefront.core.canvas import Canvas, infill
from wavefront.engine.session import DecodeSession
from wavefront.evaluation import fingerprint
from wavefront.models import builtin
from wavefront.storage.hub import locate
from wavefront.tasks.base import Sample
from wavefront.text.tokenizer import Tokenizer, prompt_ids
from wavefront.traces.trace import Trace


@dataclass(frozen=True, kw_only=True)
class Loader:
    """How to come by a model; it can be sent to another machine."""

    path: str = builtin.DEFAULT
    device: str | None = None
    dtype: str | None = None
    revision: str | None = None
    offline: bool = False
    threads: int | None = None  # of torch on a CPU; None: as they are

    def load(self) -> lm.LM:
        if self.threads is not None:
            torch.set_num_threads(self.threads)
        return lm.load(
            self.path,
            device=self.device,
            dtype=self.dtype,
            revision=self.revision,
            offline=self.offline,
        )

    def directory(self) -> Path | None:
        """Where its files are; None of a model without files."""
        if self.path == "toy":
            return None
        return locate(self.path, revision=self.revision, offline=self.offline)

    def at_home(self) -> Loader:
        """The same by a path that holds wherever the process stands."""
        local = Path(self.path).expanduser()
        here = self.path not in builtin.names() and local.is_dir()
        return replace(self, path=str(local.resolve())) if here else self


class About(NamedTuple):
    """What a worker says of its model under some options."""

    model: dict[str, Any]  # what decides the answers
    options: dict[str, Any]  # the same: everything said
    strategy: str | None  # fingerprint of one from outside
    room: int  # places the model takes
    environment: dict[str, Any]


class Prompt(NamedTuple):
    """What is put to a model: a text to answer, or one with a hole that more text follows."""

    text: str
    suffix: str = ""

    @classmethod
    def of(cls, sample: Sample) -> Prompt:
        """As a task asks it; what follows a hole stands in `extra["suffix"]`."""
        return cls(sample.prompt, str(sample.extra.get("suffix", "")))

    def ids(self, tokenizer: Tokenizer, raw: bool) -> tuple[list[int], list[int]]:
        """What stands before the places to fill, and after them; a text with a hole is raw."""
        before = prompt_ids(tokenizer, self.text, raw=raw or bool(self.suffix))
        spaced = self.suffix if self.suffix[:1].isspace() else f" {self.suffix}"
        return before, tokenizer.encode(spaced) if self.suffix else []


class Job(NamedTuple):
    """A batch to be answered."""

    number: int
    prompts: Sequence[Prompt]
    width: int
    rows: int  # as many as there are, the rest being copies of the last prompt
    options: Mapping[str, Any]
    raw: bool = False
    trace: str = ""


class Reply(NamedTuple):
    """What became of one prompt."""

    text: str
    tokens: list[int]
    finish_reason: str | None
    forwards: int  # of its batch
    steps: int
    prompt_tokens: int


class Done(NamedTuple):
    """A batch that was answered."""

    number: int
    replies: list[Reply]
    trace: Trace | None
    seconds: float
    worker: str
    environment: dict[str, Any]


class Worker:
    """A model and its answers. It is loaded when first needed, so that a failure is a sentence."""

    def __init__(self, loader: Loader, model: lm.LM | None = None) -> None:
        self.loader = loader
        if model is not None:
            self.lm = model

    @cached_property
    def lm(self) -> lm.LM:
        return self.loader.load()

    @cached_property
    def _model(self) -> dict[str, Any]:
        directory = self.loader.directory()
        return {
            "weights": fingerprint.of_weights(self.lm, directory),
            "tokenizer": fingerprint.of_tokenizer(self.lm, directory),
            "template": fingerprint.of_template(self.lm),
            "dtype": str(self.lm.model.dtype).removeprefix("torch."),
        }

    @cached_property
    def _environment(self) -> dict[str, Any]:
        return fingerprint.environment(self.lm)

    def about(self, options: Mapping[str, Any]) -> About:
        made = self.lm.plan(options)
        return About(
            dict(self._model),
            made.options(),
            fingerprint.of_strategy(made.config.strategy),
            self.lm.model.max_length,
            self._environment,
        )

    def lengths(self, prompts: Sequence[Prompt], raw: bool) -> list[int]:
        """Of the prompts, in tokens, as they are put to the model."""
        return [sum(map(len, one.ids(self.lm.tokenizer, raw))) for one in prompts]

    def decode(self, job: Job, told: Callable[[float], None] = lambda share: None) -> Done:
        """Answer a batch, in the shape that the job asks for; `told` hears how far it is."""
        began = time.monotonic()
        model, made = self.lm.model, self.lm.plan(job.options)
        ids = [one.ids(self.lm.tokenizer, job.raw) for one in job.prompts]
        ids += [ids[-1]] * (job.rows - len(ids))
        hole = [model.mask_id] * made.length
        rows = [[*before, *hole, *after] for before, after in ids]
        holes = [
            [False] * len(before) + [True] * len(hole) + [False] * len(after)
            for before, after in ids
        ]
        given = {"mask_id": model.mask_id, "pad_id": model.pad_id, "device": model.device}
        board = widened(infill(rows, holes, **given), job.width + made.length, model.pad_id)
        stream = lm.Stream(self.lm, DecodeSession(model, board, made, record=job.trace))
        for step in stream:
            told((step.number + 1) / made.steps)
        answers = stream.completions[: len(job.prompts)]
        replies = [
            Reply(one.text, one.tokens, one.finish_reason, one.forwards, one.steps, len(row))
            for one, (row, _) in zip(answers, ids, strict=False)
        ]
        seconds = time.monotonic() - began
        here = (fingerprint.here(), self._environment)
        return Done(job.number, replies, answers[0].trace, seconds, *here)


def widened(canvas: Canvas, length: int, pad_id: int) -> Canvas:
    """The canvas with padding on its left, so that it is so many places long."""
    more = (length - canvas.tokens.shape[1], 0)
    return Canvas(
        pad(canvas.tokens, more, value=pad_id),
        pad(canvas.masked, more, value=False),
        pad(canvas.known, more, value=False),
        pad(canvas.slot, more, value=-1),
    )
