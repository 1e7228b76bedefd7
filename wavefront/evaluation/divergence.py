"""Divergence: where two decodes of the same item first disagree, and what each saw there.

Two strategies fill positions in different orders from the start, so the order says little. The
divergence is the first commit that matters: of all positions whose final tokens differ, the one
that either decode committed first.

Traces come from the run's files if it recorded them. Otherwise the items are decoded again.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from wavefront.core.errors import OptionError, RunError, SpecError, WavefrontWarning, quote
from wavefront.core.spec import Spec
from wavefront.engine.options import resolve_builtin_specs
from wavefront.evaluation import fingerprint, run
from wavefront.evaluation.answers import divide_items
from wavefront.evaluation.batches import Division
from wavefront.evaluation.paired import ChangedItem, RunComparison, compare_runs
from wavefront.evaluation.run import Run
from wavefront.evaluation.task_spec import constraint_of, items_of, open_run_task, trusted_tasks
from wavefront.evaluation.worker import BatchJob, BatchResult, Loader, Prompt, Worker
from wavefront.lm import is_factory, refuse_factory
from wavefront.traces import trace_file
from wavefront.traces.trace import Trace

MASKED = "□"
UNTRUSTED = (
    "It uses the {option} {spec}, which is not built in; importing it runs its code. If you trust "
    "it, name it with --{option}."
)
BEFORE, AFTER = 12, 6  # positions that are shown around a commit


class LastingCommit(NamedTuple):
    """A commit that was not undone."""

    at: int  # step of the trace
    step: int  # step of the row, from 1
    position: int  # on the canvas
    token: int


class CommitView(NamedTuple):
    """What one decode saw when it committed the position."""

    token: str | None  # None if it never committed the position
    step: int | None
    probability: float | None
    known: int  # positions of the answer that were committed
    around: str  # the text around the position at that step; boxes are masked positions
    others: list[tuple[str, float]]  # the most likely tokens there, from a full trace
    rival: float | None  # probability of the other decode's token; None if not among the others


class Divergence(NamedTuple):
    """Where the two decodes of an item diverge."""

    item: ChangedItem
    order: int | None  # the first step at which they did different things
    slot: int  # position in the answer, from 0
    first: CommitView
    second: CommitView
    gap: float  # how differently the two saw the position; larger explains more
    repeated: bool  # whether decoding again gave the recorded texts


def explain(
    first: Run,
    second: Run,
    *,
    verdict: str = "correct",
    intersect: bool = False,
    trusted: Sequence[Spec] = (),
    tasks: Sequence[str] = (),
    models: Sequence[str] = (),
    data: str = "",
    progress: Callable[[int, int], None] = lambda *_: None,
) -> tuple[RunComparison, list[Divergence]]:
    """Return the comparison of two runs and the divergence of every changed item.

    The divergences with the largest gap come first. A run never imports your code by itself, so
    name what it uses: `trusted` lists your own strategies and caches, `tasks` the specs of your own
    tasks, and `models` your own models (`module:factory`). `data` is the folder of the task files.
    """
    comparison = compare_runs(first, second, verdict=verdict, intersect=intersect)
    source = TraceSource(trusted=trusted, tasks=tasks, models=models, data=data)
    items = [
        item for item in comparison.changed if _answered(first, item) and _answered(second, item)
    ]
    items = sorted(items, key=lambda item: source.batch_of(first, item.id))
    found = []
    for number, item in enumerate(items):
        progress(number, len(items))
        traces = [source.trace(run, item.id) for run in (first, second)]
        repeated = all(source.matches(run, item.id) for run in (first, second))
        divergence = find_divergence(item, *traces, repeated=repeated)
        found += [] if divergence is None else [divergence]
    progress(len(items), len(items))
    return comparison, sorted(found, key=lambda one: (-one.gap, one.item.id))


def _answered(run: Run, item: ChangedItem) -> bool:
    answer = next(one for one in run.answers.values() if one["id"] == item.id)
    return not answer.get("problem")


def find_divergence(
    item: ChangedItem, first: Trace, second: Trace, *, repeated: bool = True
) -> Divergence | None:
    """Return where two traces of one row each diverge; None if their texts are the same."""
    one, two = final_commits(first), final_commits(second)
    end = max(_last_slot(first, one), _last_slot(second, two))
    slots = [
        slot
        for slot in one.keys() | two.keys()
        if slot <= end and _token(one, slot) != _token(two, slot)
    ]
    if not slots:
        return None
    slot = min(slots, key=lambda slot: (_first_step(one, two, slot), slot))
    mine = _view(first, one.get(slot), _token(two, slot))
    other = _view(second, two.get(slot), _token(one, slot))
    order = _first_different_step(first, second)
    return Divergence(item, order, slot, mine, other, _gap(mine, other), repeated)


def final_commits(trace: Trace) -> dict[int, LastingCommit]:
    """Return the commits of a row that were not remasked later, by slot."""
    slot, found = trace.first.slot[0].tolist(), {}
    commits, remasks = trace.written[:, 0], trace.remask[:, 0]
    for at in range(len(trace)):
        for position in commits[at].nonzero()[:, 0].tolist():
            token = int(trace.tokens[at, 0, position])
            found[slot[position]] = LastingCommit(at, int(trace.step[at, 0]) + 1, position, token)
        for position in remasks[at].nonzero()[:, 0].tolist():
            found.pop(slot[position], None)
    return found


def _token(commits: dict[int, LastingCommit], slot: int) -> int | None:
    return commits[slot].token if slot in commits else None


def _first_step(one: dict[int, LastingCommit], two: dict[int, LastingCommit], slot: int) -> int:
    return min(commits[slot].step for commits in (one, two) if slot in commits)


def _last_slot(trace: Trace, commits: dict[int, LastingCommit]) -> int:
    """Return the slot of the first stop token; nothing after it is read."""
    stops = trace.about.get("options", {}).get("stop_ids", [])
    return min(
        (slot for slot, commit in commits.items() if commit.token in stops),
        default=max(commits, default=-1),
    )


def _first_different_step(first: Trace, second: Trace) -> int | None:
    one, two = _commits_by_step(first), _commits_by_step(second)
    steps = [step for step in one.keys() | two.keys() if one.get(step) != two.get(step)]
    return min(steps, default=None)


def _commits_by_step(trace: Trace) -> dict[int, set[tuple[int, int]]]:
    slot, found = trace.first.slot[0].tolist(), {}
    for at, position in trace.written[:, 0].nonzero().tolist():
        entry = (slot[position], int(trace.tokens[at, 0, position]))
        found.setdefault(int(trace.step[at, 0]) + 1, set()).add(entry)
    return found


def _view(trace: Trace, commit: LastingCommit | None, rival: int | None) -> CommitView:
    text: Callable[[int], str] = lambda token: _text(trace, token)  # noqa: E731
    if commit is None:
        return CommitView(None, None, None, 0, "", [], None)
    canvas = next(one for at, one in enumerate(trace.before()) if at == commit.at)
    real, slot = canvas.real[0], canvas.slot[0]
    known = int((canvas.known[0] & (slot >= 0)).sum())
    around = []
    start, end = max(0, commit.position - BEFORE), min(len(slot), commit.position + AFTER + 1)
    for position in range(start, end):
        if position == commit.position:
            around.append(f"[{text(commit.token)}]")
        elif bool(real[position]):
            masked = bool(canvas.masked[0, position])
            around.append(MASKED if masked else text(int(canvas.tokens[0, position])))
    others: list[tuple[int, float]] = []
    if trace.alternatives is not None:
        ids = trace.alternatives.tokens[commit.at, 0, commit.position].tolist()
        logp = trace.alternatives.logp[commit.at, 0, commit.position].tolist()
        others = [(token, math.exp(p)) for token, p in zip(ids, logp, strict=True)]
    return CommitView(
        token=text(commit.token),
        step=commit.step,
        probability=math.exp(float(trace.logp[commit.at, 0, commit.position])),
        known=known,
        around="".join(around),
        others=[(text(token), p) for token, p in others],
        rival=dict(others).get(-1 if rival is None else rival),
    )


def _text(trace: Trace, token: int) -> str:
    texts: dict[str, Any] = trace.about.get("texts", {})
    return str(texts.get(str(token), f"<{token}>"))


def _gap(one: CommitView, two: CommitView) -> float:
    """Return the larger of the two decodes' preferences for their own token over the other's."""
    return max(_preference(one, two), _preference(two, one))


def _preference(one: CommitView, two: CommitView) -> float:
    if one.probability is None:
        return 0.0
    if two.others:
        return one.probability - (two.rival or 0.0)
    # A basic trace holds only the probability of the committed token.
    return abs(one.probability - (two.probability or 0.0))


class _TracedItem(NamedTuple):
    """The trace of an item, and the text that it ends with."""

    trace: Trace
    text: str


@dataclass
class _RepeatableRun:
    """A run with everything that decoding one of its batches again needs."""

    run: Run
    options: Mapping[str, Any]  # of the decode, with specs as objects
    worker: Worker
    division: Division
    prompts: list[Prompt]  # of all items, in their order
    rows: Mapping[str, tuple[int, int]]  # item -> its batch and its row
    constraints: Sequence[Mapping[str, Any]]  # of all items
    last: BatchResult | None = None  # items of one batch are asked for one after another

    def decode(self, number: int) -> BatchResult:
        if self.last is None or self.last.number != number:
            batch, decides = self.division.batches[number], self.run.decides
            prompts = [self.prompts[item] for item in batch.items]
            options = {**self.options, **self.constraints[batch.items[0]]}
            job = BatchJob(number, prompts, batch.width, options, decides["raw"], "full")
            with warnings.catch_warnings():
                # The user saw these warnings when the run was made.
                warnings.simplefilter("ignore", WavefrontWarning)
                self.last = self.worker.decode(job)
        return self.last


class TraceSource:
    """The traces of items of several runs. Models are loaded once, and only if needed."""

    def __init__(
        self,
        *,
        trusted: Sequence[Spec] = (),
        tasks: Sequence[str] = (),
        models: Sequence[str] = (),
        data: str = "",
    ) -> None:
        """`trusted`, `tasks` and `models` list what runs may name in addition to built-in names."""
        self.trusted, self.tasks, self.models = trusted, trusted_tasks(tasks), models
        self.data = data
        self._workers: dict[Loader, Worker] = {}
        self._runs: dict[str, _RepeatableRun] = {}
        self._items: dict[tuple[str, str], _TracedItem] = {}

    def batch_of(self, of: Run, item: str) -> int:
        """Return the batch of an item. Process items in this order, to decode each batch once."""
        return next(one.get("batch", 0) for one in of.answers.values() if one["id"] == item)

    def trace(self, of: Run, item: str) -> Trace:
        """Return a trace of one row: the recorded one, or a full one from decoding again."""
        return self._item(of, item).trace

    def matches(self, of: Run, item: str) -> bool:
        """Return whether the trace ends with the recorded text."""
        recorded = next(one["text"] for one in of.answers.values() if one["id"] == item)
        return self._item(of, item).text == recorded

    def _item(self, of: Run, item: str) -> _TracedItem:
        key = (str(of.folder), item)
        if key not in self._items:  # of every run, only the last item is kept
            self._items = {other: one for other, one in self._items.items() if other[0] != key[0]}
            self._items[key] = self._recorded(of, item) or self._decoded_again(of, item)
        return self._items[key]

    def _recorded(self, of: Run, item: str) -> _TracedItem | None:
        key, answer = next((k, one) for k, one in of.answers.items() if one["id"] == item)
        file = of.folder / run.TRACES / f"{key}.npz"
        return _TracedItem(trace_file.load(file), answer["text"]) if file.is_file() else None

    def _decoded_again(self, of: Run, item: str) -> _TracedItem:
        name = str(of.folder)
        if name not in self._runs:
            self._runs[name] = self._repeatable(of)
        if item not in self._runs[name].rows:
            raise RunError(
                f"{of.folder} cannot be decoded again. The prompt of {item} and its answer exceed "
                "the positions that the model has for them."
            )
        number, row = self._runs[name].rows[item]
        result = self._runs[name].decode(number)
        assert result.trace is not None
        return _TracedItem(result.trace.row(row), result.replies[row].text)

    def _repeatable(self, of: Run) -> _RepeatableRun:
        decides = of.decides
        options = self._options(of)
        loader = self._loader(of)
        worker = self._workers.setdefault(loader, Worker(loader))
        try:
            info = worker.about(options)
        except OptionError as error:  # the header's word, not the user's
            raise RunError(f"{of.folder} cannot be decoded again. {error}") from None
        run.check_same_settings(of.folder, {"model": info.model}, {"model": decides["model"]})
        if decides["code"] != fingerprint.of_code():
            warnings.warn(
                f"Another version of the code made {of.folder}: decoding again may differ.",
                WavefrontWarning,
                stacklevel=2,
            )
        task = open_run_task(of.task_spec, self.tasks, name=of.task)
        samples = items_of(task, of.ask(self.data), name=of.task_spec)
        if run.items_digest(samples) != decides["task"]["items"]:
            raise RunError(
                f"{of.folder} does not have the items of {of.task} on this machine: give --data."
            )
        prompts = [Prompt.of(sample) for sample in samples]
        constrain = decides.get("constrain", "")
        try:
            constraints = [constraint_of(task, sample, constrain) for sample in samples]
        except OptionError as error:  # of the header too
            raise RunError(f"{of.folder} cannot be decoded again. {error}") from None
        lengths = worker.lengths(prompts, decides["raw"])
        division = divide_items(lengths, info, constraints, rows=decides["batch"]["rows"])
        rows = {
            samples[item].id: (batch.number, row)
            for batch in division.batches
            for row, item in enumerate(batch.items)
        }
        return _RepeatableRun(of, options, worker, division, prompts, rows, constraints)

    def _loader(self, of: Run) -> Loader:
        try:
            loader = loader_of(of.header)
        except RunError as error:
            raise RunError(f"{of.folder} cannot be decoded again. {error}") from None
        if loader.path not in self.models:
            try:
                refuse_factory(loader.path, where="The run")
            except OptionError as error:
                raise RunError(f"{of.folder} cannot be decoded again. {error}") from None
        return loader

    def _options(self, of: Run) -> dict[str, Any]:
        """Return the options of a run. Import nothing, because a run can come from anyone."""
        try:
            return resolve_builtin_specs(of.decides["options"], self.trusted, where=UNTRUSTED)
        except SpecError as error:
            raise RunError(f"{of.folder} cannot be decoded again. {error}") from None


def loader_of(header: Mapping[str, Any]) -> Loader:
    """Return the loader of a run's model. It fetches nothing, because a run can come from anyone.

    Raises:
        RunError: A field has the wrong type.
    """
    given: dict[str, Any] = {}
    for name, value in header["model"].items():
        if name not in _KINDS:
            continue
        kinds = _KINDS[name]
        if type(value) not in kinds:
            words = " or ".join(_KIND_NAMES[kind] for kind in kinds)
            raise RunError(f"Its header has {quote(value)} as {name} of the model, not {words}.")
        given[name] = value
    # A factory that the user allowed fetches what it likes, and has no such option.
    return Loader(**given, offline=not is_factory(given.get("path")))


_KIND_NAMES = {str: "a text", int: "a number", type(None): "null"}
# What a header may say about a model, with its types. The number of threads is not the run's to
# set, and a run never reaches the Hub.
_KINDS = {
    "path": (str,),
    "speed": (str,),
    **dict.fromkeys(("device", "dtype", "quantize", "revision", "attention"), (str, type(None))),
    **dict.fromkeys(("mask_id", "block_size"), (int, type(None))),
}
