"""Retelling: the traces of a run's items, as they were recorded, or by decoding them again."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from wavefront.core import spec
from wavefront.core.errors import RunError, SpecError, WavefrontWarning
from wavefront.evaluation import fingerprint, run
from wavefront.evaluation.batches import Division, divide
from wavefront.evaluation.run import Run
from wavefront.evaluation.task_spec import samples_of
from wavefront.evaluation.worker import Done, Job, Loader, Prompt, Worker
from wavefront.traces import trace_file
from wavefront.traces.trace import Trace


class _Story(NamedTuple):
    """An item decoded again."""

    trace: Trace
    text: str


@dataclass
class _Source:
    """A run with all it takes to decode one of its batches again."""

    run: Run
    worker: Worker
    division: Division
    prompts: list[Prompt]  # of all items, in their order
    place: Mapping[str, tuple[int, int]]  # item -> its batch and its row
    last: Done | None = None  # neighbours are asked for one after another

    def decode(self, number: int) -> Done:
        if self.last is None or self.last.number != number:
            batch, decides = self.division.batches[number], self.run.decides
            prompts = [self.prompts[item] for item in batch.items]
            rows, options = decides["batch"]["rows"], decides["options"]
            job = Job(number, prompts, batch.width, rows, options, decides["raw"], "full")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", WavefrontWarning)  # said when it was made
                self.last = self.worker.decode(job)
        return self.last


class Retelling:
    """The traces of items of several runs; models are loaded once, and only if needed."""

    def __init__(self, *, trust: bool = False, data: str = "") -> None:
        """`trust` allows strategies from outside to be imported because a run names them."""
        self.trust, self.data = trust, data
        self._workers: dict[Loader, Worker] = {}
        self._sources: dict[str, _Source] = {}
        self._told: dict[tuple[str, str], _Story] = {}

    def order(self, of: Run, item: str) -> int:
        """Ask in this order, so that a batch is decoded once."""
        return next(one.get("batch", 0) for one in of.answers.values() if one["id"] == item)

    def trace(self, of: Run, item: str) -> Trace:
        """A trace of one row: what the run recorded, or a full one made anew."""
        return self._story(of, item).trace

    def same(self, of: Run, item: str) -> bool:
        """Whether the trace comes to the text that was recorded."""
        recorded = next(one["text"] for one in of.answers.values() if one["id"] == item)
        return self._story(of, item).text == recorded

    def _story(self, of: Run, item: str) -> _Story:
        here = (str(of.folder), item)
        if here not in self._told:
            self._told = {key: one for key, one in self._told.items() if key[0] != here[0]}
            self._told[here] = self._recorded(of, item) or self._again(of, item)
        return self._told[here]

    def _recorded(self, of: Run, item: str) -> _Story | None:
        key, answer = next((k, one) for k, one in of.answers.items() if one["id"] == item)
        file = of.folder / run.TRACES / f"{key}.npz"
        return _Story(trace_file.load(file), answer["text"]) if file.is_file() else None

    def _again(self, of: Run, item: str) -> _Story:
        name = str(of.folder)
        if name not in self._sources:
            self._sources[name] = self._source(of)
        source = self._sources[name]
        number, row = source.place[item]
        done = source.decode(number)
        assert done.trace is not None
        return _Story(done.trace.row(row), done.replies[row].text)

    def _source(self, of: Run) -> _Source:
        decides = of.decides
        self._check_strategy(of)
        loader = loader_of(of.header)
        worker = self._workers.setdefault(loader, Worker(loader))
        about = worker.about(decides["options"])
        run.refuse_other(of.folder, {"model": about.model}, {"model": decides["model"]})
        if decides["code"] != fingerprint.of_code():
            warnings.warn(
                f"{of.folder} was made by other sources than these: decoding it again may differ.",
                WavefrontWarning,
                stacklevel=2,
            )
        _, samples = samples_of(of.task_spec, of.ask(self.data))
        if run.items_digest(samples) != decides["task"]["items"]:
            raise RunError(f"{of.folder} asked other items than {of.task} has here: give --data.")
        prompts = [Prompt.of(sample) for sample in samples]
        division = divide(
            worker.lengths(prompts, decides["raw"]),
            rows=decides["batch"]["rows"],
            places=decides["options"]["max_new_tokens"],
            room=about.room,
        )
        place = {
            samples[item].id: (batch.number, row)
            for batch in division.batches
            for row, item in enumerate(batch.items)
        }
        return _Source(of, worker, division, prompts, place)

    def _check_strategy(self, of: Run) -> None:
        """A run may come from anywhere, and naming a strategy from outside imports it."""
        try:
            spec.resolve(of.strategy, "strategies", outside=self.trust)
        except SpecError as error:
            raise RunError(
                f"{of.folder} was made by {of.strategy[:80]}, and that is not run because a file "
                f"says so: --trust allows it. ({error})"
            ) from None


def loader_of(header: Mapping[str, Any]) -> Loader:
    """How the model of a run is loaded."""
    known = {one.name for one in fields(Loader)}
    return Loader(**{name: value for name, value in header["model"].items() if name in known})
