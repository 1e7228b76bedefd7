"""Answers: run a task on a model with one strategy, and save the answers as they are decoded."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import wavefront
from wavefront.core.errors import RunError, WavefrontWarning, check_choice, check_int
from wavefront.evaluation import fingerprint, judging, run
from wavefront.evaluation.batches import ALL, RULE, Batch, Division, Shard, divide
from wavefront.evaluation.task_spec import CONSTRAIN, constraint_of, samples_of
from wavefront.evaluation.worker import BatchJob, BatchResult, Executor, Loader, Prompt, WorkerInfo
from wavefront.storage import jsonl
from wavefront.storage.provenance import commit
from wavefront.tasks.base import Ask, Sample
from wavefront.traces import trace_file

# Called with the number of answers so far (with fractions for running batches) and the total.
Progress = Callable[[float, int], None]


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """The items of a run and the options to decode them with."""

    task: str  # name, or name(option=value)
    ask: Ask = field(default_factory=Ask)
    options: Mapping[str, Any] = field(default_factory=dict)  # those of wavefront.Options
    rows: int = 8  # prompts decoded at once
    raw: bool = False  # prompts are continued without the chat template
    trace: str = ""  # "basic" or "full": traces are written into traces/
    constrain: str = ""  # "final" or "choice": every answer can be graded; see `constraint_of`
    shard: Shard = ALL
    loader: Loader = field(default_factory=Loader)
    command: str = ""

    def __post_init__(self) -> None:
        check_int("batch_size", self.rows, 1)
        check_choice("trace", self.trace or "basic", ("basic", "full"))
        check_choice("constrain", self.constrain or "final", CONSTRAIN)


class RunProgress(NamedTuple):
    """The progress of a run."""

    added: int  # answers that this call added
    stored: int
    expected: int


def settings_of(
    config: RunConfig, info: WorkerInfo, *, task: Any, samples: Sequence[Sample]
) -> dict[str, Any]:
    """Return everything that determines the answers, for the header of the run."""
    ask = asdict(config.ask)
    del ask["data"]  # a path on this machine; the prompts say what is in the files
    judged = {"judged": True} if judging.is_judged(task) else {}
    # Named only if given, so that runs without it can be resumed.
    constrain = {"constrain": config.constrain} if config.constrain else {}
    return {
        **constrain,
        "model": info.model,
        "options": info.options,
        "raw": config.raw,
        "batch": {"rows": config.rows, "rule": RULE},
        "strategy": info.strategy,
        "wavefront": wavefront.__version__,
        "code": fingerprint.of_code(),
        "task": {
            "name": task.name,
            "spec": config.task,
            "version": str(task.version),
            "count": len(samples),
            "items": run.items_digest(samples),
            **judged,
        },
        "ask": ask,
    }


def divide_items(
    lengths: Sequence[int],
    info: WorkerInfo,
    constraints: Sequence[Mapping[str, Any]],
    *,
    rows: int,
) -> Division:
    """Divide the items of a run into batches, as every repetition of the run must divide them.

    Args:
        lengths: The length of every prompt in tokens.
        info: What the worker reports about the options of the run.
        constraints: The constraint of every item; the items of a batch share one.
        rows: The number of items in a batch.
    """
    return divide(
        lengths,
        rows=rows,
        new_tokens=info.options["max_new_tokens"],
        max_length=info.max_length,
        kinds=[json.dumps(one) for one in constraints],
    )


def generate_answers(
    executor: Executor,
    config: RunConfig,
    folder: str | Path,
    *,
    progress: Progress = lambda *_: None,
) -> RunProgress:
    """Write the answers of a run into `folder`, or resume a run that was interrupted.

    Raises `RunError` if the folder holds something else, or a run with different settings.
    """
    home = Path(folder)
    task, samples = samples_of(config.task, config.ask)
    info = executor.about(config.options)
    judging.check_tokenizer(task, info.model["tokenizer"])
    settings = settings_of(config, info, task=task, samples=samples)
    constraints = [constraint_of(task, sample, config.constrain) for sample in samples]
    lengths = executor.lengths([Prompt.of(sample) for sample in samples], config.raw)
    division = divide_items(lengths, info, constraints, rows=config.rows)
    with jsonl.lock_directory(home):
        items = _items_of(division, config.shard)
        _open(home, config, settings, answers=len(items), environment=info.environment)
        keys = {item: run.key_of(settings, samples[item]) for item in items}
        with (
            jsonl.JsonLines(home / run.ANSWERS) as out,
            jsonl.JsonLines(home / run.TIMINGS) as timings,
        ):
            known = {*jsonl.by_key(out.found, out.file)}
            if foreign := known - {*keys.values()}:
                raise RunError(
                    f"{out.file} contains {len(foreign)} answers from another run: choose "
                    "another --out."
                )
            writer = _Writer(home, samples, keys, known, out, timings, progress)
            writer.note_too_long([item for item in division.too_long if item in keys], info)
            jobs = _jobs(config, division, writer, constraints=constraints)
            for result in executor.decode(jobs, partial(writer.report_share, division)):
                writer.write(division.batches[result.number], result)
            return RunProgress(writer.added, len(known), len(keys))


def _items_of(division: Division, shard: Shard) -> list[int]:
    """Return the items of a shard; the first shard records the prompts that are too long."""
    items = [item for batch in division.batches if shard.has(batch) for item in batch.items]
    return items + (division.too_long if shard.number == 0 else [])


def _open(
    home: Path,
    config: RunConfig,
    settings: dict[str, Any],
    *,
    answers: int,
    environment: dict[str, Any],
) -> None:
    """Write the header of a new run, or check that an existing run has the same settings."""
    if run.is_new(home):
        header = {
            "format": run.FORMAT,
            "version": run.VERSION,
            "decides": settings,
            "shard": list(config.shard),
            "answers": answers,
            "model": asdict(config.loader.with_absolute_path()),
            "trace": config.trace,
            "command": config.command,
            "commit": commit(),
        }
        jsonl.write_json(home / run.HEADER, header)
    else:
        existing = run.open_run(home)
        own = {"shard": list(config.shard), "trace": config.trace}
        stored = {name: existing.header.get(name) for name in own}
        run.check_same_settings(home, {**settings, **own}, {**existing.decides, **stored})
        if existing.finished:
            return  # this machine has nothing to add
        if warning := run.environment_warning(existing, environment):
            warnings.warn(warning, WavefrontWarning, stacklevel=3)
    run.write_environment(home, environment)


def _jobs(
    config: RunConfig,
    division: Division,
    writer: _Writer,
    *,
    constraints: Sequence[Mapping[str, Any]],
) -> list[BatchJob]:
    """Return every batch with a missing answer.

    A batch is decoded completely, because its shape can affect answers. Its items have one
    constraint.
    """
    return [
        BatchJob(
            batch.number,
            [Prompt.of(writer.samples[item]) for item in batch.items],
            batch.width,
            {**config.options, **constraints[batch.items[0]]},
            config.raw,
            config.trace,
        )
        for batch in division.batches
        if config.shard.has(batch) and writer.missing(batch.items)
    ]


@dataclass
class _Writer:
    """Writes the answers of a run. Only one process does this."""

    home: Path
    samples: Sequence[Sample]
    keys: Mapping[int, str]
    known: set[str]
    out: jsonl.JsonLines
    timings: jsonl.JsonLines
    progress: Progress
    added: int = 0

    def __post_init__(self) -> None:
        self.progress(len(self.known), len(self.keys))

    def missing(self, items: Sequence[int]) -> list[int]:
        return [item for item in items if self.keys[item] not in self.known]

    def report_share(self, division: Division, job: BatchJob, share: float) -> None:
        """Report progress within a batch, which may take minutes."""
        missing = self.missing(division.batches[job.number].items)
        self.progress(len(self.known) + share * len(missing), len(self.keys))

    def note_too_long(self, items: Sequence[int], info: WorkerInfo) -> None:
        """Record an empty answer and the reason for every prompt longer than the model allows."""
        missing = self.missing(items)
        if not missing:
            return
        count = info.options["max_new_tokens"]
        problem = (
            f"The prompt and {count} new tokens exceed the {info.max_length} positions that the "
            "model has for them."
        )
        empty = {"text": "", "tokens": [], "finish_reason": "too long", "forwards": 0}
        self._append({item: {**empty, "steps": 0, "problem": problem} for item in missing})
        self.progress(len(self.known), len(self.keys))

    def write(self, batch: Batch, result: BatchResult) -> None:
        """Write the answers of a batch that are not stored yet."""
        run.write_environment(self.home, result.environment)  # a cluster has several
        missing = self.missing(batch.items)
        timing = {"batch": result.number, "items": len(batch.items), "worker": result.worker}
        timing |= {"seconds": round(result.seconds, 4), "forwards": result.forwards}
        timing["tokens"] = sum(len(reply.tokens) for reply in result.replies)
        answers: dict[int, dict[str, Any]] = {}
        for row, (item, reply) in enumerate(zip(batch.items, result.replies, strict=True)):
            if item not in missing:
                continue
            if result.trace is not None:
                file = self.home / run.TRACES / f"{self.keys[item]}.npz"
                trace_file.save(result.trace.row(row), file)
            answers[item] = {**reply._asdict(), "width": batch.width, "batch": batch.number}
        self._append(answers)
        self.timings.append(timing)
        self.progress(len(self.known), len(self.keys))

    def _append(self, answers: Mapping[int, Mapping[str, Any]]) -> None:
        """Write the answers to some items, which were decoded together."""
        records = []
        for item, answer in answers.items():
            sample, key = self.samples[item], self.keys[item]
            record = {"key": key, "id": sample.id, "prompt": sample.prompt}
            record["prompt_hash"] = run.prompt_hash(sample)
            if suffix := Prompt.of(sample).suffix:
                record["suffix"] = suffix
            records.append({**record, **answer})
        self.out.append(*records)
        self.known |= {self.keys[item] for item in answers}
        self.added += len(answers)
