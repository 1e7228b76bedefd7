"""Answers: a task asked of a model under one strategy, each answer on the disk before the next."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import wavefront
from wavefront.core.errors import RunError, WavefrontWarning, check_choice, check_int
from wavefront.evaluation import fingerprint, run
from wavefront.evaluation.batches import RULE, WHOLE, Division, Shard, divide
from wavefront.evaluation.executor import Engine
from wavefront.evaluation.task_spec import samples_of
from wavefront.evaluation.worker import About, Done, Job, Loader, Prompt
from wavefront.storage import jsonl
from wavefront.storage.provenance import commit
from wavefront.tasks.base import Ask, Sample
from wavefront.traces import trace_file

# Answers there are, with the part that is done of those under way; answers there will be.
Progress = Callable[[float, int], None]


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What is asked, and how it is decoded."""

    task: str  # name, or name(option=value)
    ask: Ask = field(default_factory=Ask)
    options: Mapping[str, Any] = field(default_factory=dict)  # those of wavefront.Options
    rows: int = 8  # decoded at once
    raw: bool = False  # prompts are continued as they are, past the chat template
    trace: str = ""  # "basic" or "full": written into traces/
    shard: Shard = WHOLE
    loader: Loader = field(default_factory=Loader)
    command: str = ""

    def __post_init__(self) -> None:
        check_int("batch_size", self.rows, 1)
        check_choice("trace", self.trace or "basic", ("basic", "full"))


class Tally(NamedTuple):
    """How far a run is."""

    made: int  # answers that were added now
    there: int
    expected: int


def decides_of(setup: Setup, about: About, task: Any, samples: Sequence[Sample]) -> dict[str, Any]:
    """Everything that decides the answers."""
    ask = asdict(setup.ask)
    del ask["data"]  # where files lie on this machine; what is in them shows in the prompts
    return {
        "model": about.model,
        "options": about.options,
        "raw": setup.raw,
        "batch": {"rows": setup.rows, "rule": RULE},
        "strategy": about.strategy,
        "wavefront": wavefront.__version__,
        "code": fingerprint.of_code(),
        "task": {
            "name": task.name,
            "spec": setup.task,
            "version": str(task.version),
            "count": len(samples),
            "items": run.items_digest(samples),
        },
        "ask": ask,
    }


def division_of(setup: Setup, engine: Engine, about: About, samples: Sequence[Sample]) -> Division:
    """The batches of a run; a function of its header and its items."""
    lengths = engine.lengths([Prompt.of(sample) for sample in samples], setup.raw)
    places = about.options["max_new_tokens"]
    return divide(lengths, rows=setup.rows, places=places, room=about.room)


def produce(
    engine: Engine, setup: Setup, folder: str | Path, *, progress: Progress = lambda *_: None
) -> Tally:
    """Write the answers of a run, or go on with one that was stopped."""
    home = Path(folder)
    task, samples = samples_of(setup.task, setup.ask)
    about = engine.about(setup.options)
    decides = decides_of(setup, about, task, samples)
    division = division_of(setup, engine, about, samples)
    with jsonl.lock_directory(home):
        mine = _mine(division, setup.shard)
        _open(home, setup, decides, len(mine), about.environment)
        keys = {item: run.key_of(decides, samples[item]) for item in mine}
        with (
            jsonl.JsonLines(home / run.ANSWERS) as out,
            jsonl.JsonLines(home / run.TIMINGS) as timings,
        ):
            known = {*jsonl.by_key(out.found, out.file)}
            if strange := known - {*keys.values()}:
                raise RunError(
                    f"{out.file} holds {len(strange)} answers that are not of this run: choose "
                    "another --out."
                )
            work = _Work(home, samples, keys, known, out, timings, progress)
            work.note_too_long([item for item in division.too_long if item in keys], about)
            jobs = _jobs(setup, division, work)
            for done in engine.decode(jobs, partial(work.under_way, division)):
                work.write(division.batches[done.number], done)
            return Tally(work.made, len(known), len(keys))


def _mine(division: Division, shard: Shard) -> list[int]:
    """The items of a shard; the first one sees to those that are never asked."""
    listed = [item for batch in division.batches if shard.has(batch) for item in batch.items]
    return listed + (division.too_long if shard.number == 0 else [])


def _open(
    home: Path, setup: Setup, decides: dict[str, Any], count: int, environment: dict[str, Any]
) -> None:
    """Write the header of a new run; of one that is there, see that it is the same."""
    if run.is_fresh(home):
        model = asdict(setup.loader.at_home())
        header = {
            "format": run.FORMAT,
            "version": run.VERSION,
            "decides": decides,
            "shard": list(setup.shard),
            "answers": count,
            "model": model,
            "trace": setup.trace,
            "command": setup.command,
            "commit": commit(),
        }
        jsonl.write_json(home / run.HEADER, header)
    else:
        there = run.open_run(home)
        own = {"shard": list(setup.shard), "trace": setup.trace}
        theirs = {name: there.header.get(name) for name in own}
        run.refuse_other(home, {**decides, **own}, {**there.decides, **theirs})
        if there.finished:
            return  # this machine will add nothing to it
        if sentence := run.same_or_warned(there, environment):
            warnings.warn(sentence, WavefrontWarning, stacklevel=3)
    run.write_environment(home, environment)


def _jobs(setup: Setup, division: Division, work: _Work) -> list[Job]:
    """The batches of which something is missing, whole: an answer may depend on its board."""
    return [
        Job(
            batch.number,
            [Prompt.of(work.samples[item]) for item in batch.items],
            batch.width,
            setup.rows,
            dict(setup.options),
            setup.raw,
            setup.trace,
        )
        for batch in division.batches
        if setup.shard.has(batch) and work.missing(batch.items)
    ]


@dataclass
class _Work:
    """The writing of a run: one process does it."""

    home: Path
    samples: Sequence[Sample]
    keys: Mapping[int, str]
    known: set[str]
    out: jsonl.JsonLines
    timings: jsonl.JsonLines
    progress: Progress
    made: int = 0

    def __post_init__(self) -> None:
        self.progress(len(self.known), len(self.keys))

    def missing(self, items: Sequence[int]) -> list[int]:
        return [item for item in items if self.keys[item] not in self.known]

    def under_way(self, division: Division, job: Job, share: float) -> None:
        """Say how far it is in the middle of a batch, which may take minutes."""
        wanted = self.missing(division.batches[job.number].items)
        self.progress(len(self.known) + share * len(wanted), len(self.keys))

    def note_too_long(self, items: Sequence[int], about: About) -> None:
        """Prompts that the model has no room for are answered with nothing, and it is said why."""
        places = about.options["max_new_tokens"]
        why = f"The prompt and {places} places are more than the {about.room} that the model takes."
        for item in self.missing(items):
            nothing = {"text": "", "tokens": [], "finish_reason": "too long", "forwards": 0}
            self._put(item, {**nothing, "steps": 0, "problem": why})
        self.progress(len(self.known), len(self.keys))

    def write(self, batch: Any, done: Done) -> None:
        """Put down what came of a batch, less what was there before."""
        run.write_environment(self.home, done.environment)  # a cluster has several
        wanted = self.missing(batch.items)
        timing = {"batch": done.number, "items": len(batch.items), "worker": done.worker}
        timing |= {"seconds": round(done.seconds, 4), "forwards": done.replies[0].forwards}
        timing["tokens"] = sum(len(reply.tokens) for reply in done.replies)
        for row, (item, reply) in enumerate(zip(batch.items, done.replies, strict=True)):
            if item not in wanted:
                continue
            if done.trace is not None:
                file = self.home / run.TRACES / f"{self.keys[item]}.npz"
                trace_file.save(done.trace.row(row), file)
            self._put(item, {**reply._asdict(), "width": batch.width, "batch": batch.number})
        self.timings.append(timing)
        self.progress(len(self.known), len(self.keys))

    def _put(self, item: int, record: Mapping[str, Any]) -> None:
        sample, key = self.samples[item], self.keys[item]
        named = {"key": key, "id": sample.id, "prompt": sample.prompt}
        named["prompt_hash"] = run.prompt_hash(sample)
        if suffix := Prompt.of(sample).suffix:
            named["suffix"] = suffix
        self.out.append({**named, **record})
        self.known.add(key)
        self.made += 1
