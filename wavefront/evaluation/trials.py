"""Trials: models, tasks and strategies to compare, each answered and graded as a run on disk.

A `Runner` makes the trials of an experiment or of `tune`. Runs are kept in its folder, so a
stopped experiment continues where it stopped. `results.jsonl` in that folder has every finished
result in a few numbers per item: the page can be made from it on another machine, without the
model.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from wavefront.analysis.quality import TextQuality
from wavefront.core.bounds import MAX_POSITIONS
from wavefront.core.errors import (
    CheckpointError,
    OptionError,
    RunError,
    WavefrontError,
    check_choice,
    check_int,
)
from wavefront.core.spec import resolve
from wavefront.evaluation import (
    Loader,
    LocalExecutor,
    Run,
    RunConfig,
    Worker,
    fingerprint,
    generate_answers,
    grade,
    grades,
    open_run,
    summary,
)
from wavefront.evaluation.judging import is_judged, qualities
from wavefront.evaluation.protocol import settings_of
from wavefront.evaluation.run import HEADER, check_same_settings
from wavefront.evaluation.task_spec import is_own, open_task, samples_of
from wavefront.evaluation.task_spec import label as task_label
from wavefront.lm import LM
from wavefront.results.bootstrap import bootstrap_clusters
from wavefront.results.interval import Interval, wilson_share
from wavefront.results.paired import Comparison, compare, gap_of
from wavefront.results.table import to_json
from wavefront.storage import jsonl
from wavefront.storage.fingerprint import of_value
from wavefront.storage.provenance import commit
from wavefront.storage.read_file import reason
from wavefront.tasks.base import STYLES, Ask, Style

RUNS, RESULTS = "runs", "results.jsonl"
SETTINGS = "settings"  # the key of its first line
PART = "--"  # between the parts of a run's name
SHOWN = 10  # texts of a trial that its result has
COUNTS = ("forwards", "positions", "steps", "tokens")
DIGITS = 12  # of the hash of a text
LOADED = ("quantize", "mask_id", "attention", "block_size")  # options of the loader that count


@dataclass(frozen=True, kw_only=True)
class Scale:
    """The size of an experiment."""

    tasks: tuple[str, ...] = ("boolean_expressions",)
    models: tuple[str, ...] = ()  # empty: the loader's model
    strategies: tuple[str, ...] = ()  # empty: the experiment's own; `{tau}` stands for a grid
    items: int | None = 12  # of each task; None: all
    length: int = 64  # N
    steps: int | None = None  # T; None: N
    seeds: tuple[int, ...] = (0,)  # added to --seed, where an experiment repeats
    rows: int = 8  # decoded at once
    canvases: tuple[int, ...] = (1,)  # in multiples of N, where an experiment varies them
    style: Style = "bare"
    half: str = ""  # "tune" or "report": only this half of the items
    options: Mapping[str, Any] = field(default_factory=dict)  # of every decode, such as temperature

    def __post_init__(self) -> None:
        for name, least in (("items", 1), ("length", 1), ("steps", 1), ("rows", 1)):
            if getattr(self, name) is not None:
                check_int("batch_size" if name == "rows" else name, getattr(self, name), least)
        check_choice("style", self.style, STYLES)
        for one in self.seeds:
            check_int("seed", one, 0)
        for one in self.canvases:
            check_int("canvas", one, 1)
        for family in self.strategies:
            for spec in settings_of(family):
                resolve(spec, "strategies")


class Trial(NamedTuple):
    """One model, task and strategy, with all other settings that vary."""

    model: str
    task: str
    strategy: str
    case: str = ""  # what else varies, in words
    seed: int = 0  # of sampling, added to the runner's
    options: Mapping[str, Any] = {}  # of the decode; they override the runner's
    constrain: str = ""  # see `RunConfig`

    @property
    def folder(self) -> Path:
        """Return the run's directory, relative to the runner's."""
        parts = (self.task, self.strategy, self.case, f"seed={self.seed}" if self.seed else "")
        model = re.sub(r"[^A-Za-z0-9._=]+", "-", model_name(self.model))
        return Path(model) / PART.join(_slug(part) for part in parts if part)


def _slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._=]+", "-", text).strip("-")


@dataclass(frozen=True, kw_only=True)
class TrialResult:
    """A trial, graded: a few numbers for every item, by its id, and the cost of all."""

    trial: Trial
    correct: Mapping[str, bool]  # empty for a task with a judge
    quality: Mapping[str, TextQuality]  # empty for a task with right answers
    originals: Mapping[str, TextQuality]  # of the original's own texts, on the same canvas
    texts: Mapping[str, str]  # a short hash of every text
    shown: Mapping[str, str]  # the first texts themselves
    counts: Mapping[str, Mapping[str, int]]  # by name, see COUNTS: of every text that was written
    timings: Sequence[Mapping[str, Any]]  # of every batch, with its first item
    cost: Mapping[str, Any]
    folder: Path  # of the run; it may be on another machine

    @property
    def run(self) -> Run:
        """The run, for what is not kept here. Raises `RunError` if it is on another machine."""
        return open_run(self.folder)

    @property
    def length(self) -> int:
        """N, the positions of the canvas."""
        return self.cost["length"]


@dataclass(frozen=True)
class TrialGroup:
    """Trials that count as one: a strategy over several tasks, models or seeds."""

    results: tuple[TrialResult, ...]

    @property
    def correct(self) -> dict[tuple[Any, ...], bool]:
        """Return whether each item is correct. Keys omit the strategy, so groups can be paired."""
        return {
            (one.trial.model, one.trial.task, one.trial.seed, item): verdict
            for one in self.results
            for item, verdict in one.correct.items()
        }

    @property
    def judged(self) -> bool:
        """Whether a judge scores the answers, which are then not right or wrong."""
        return any(one.quality for one in self.results)

    @property
    def quality(self) -> dict[tuple[Any, ...], TextQuality]:
        """Return the quality of each item's text, with the keys of `correct`."""
        return {
            (one.trial.model, one.trial.task, one.trial.seed, item): found
            for one in self.results
            for item, found in one.quality.items()
        }

    @property
    def originals(self) -> dict[tuple[Any, ...], TextQuality]:
        """Return the quality of the original's own texts, by item."""
        return {
            (one.trial.task, item): found
            for one in self.results
            for item, found in one.originals.items()
        }

    @property
    def items(self) -> int:
        """Return the number of items. Several seeds or models of one item are one item."""
        return len({item_of(key) for key in (*self.correct, *self.quality)})

    @property
    def accuracy(self) -> Interval:
        """Return correct answers in %, with Wilson's interval.

        If items were answered several times, the interval comes from the cluster bootstrap.
        """
        correct = self.correct
        if self.items < len(correct):
            values, clusters = [float(one) for one in correct.values()], [*map(item_of, correct)]
            return bootstrap_clusters(values, clusters, scale=100)
        return wilson_share(sum(correct.values()), len(correct)).percent

    @property
    def scores(self) -> dict[tuple[Any, ...], float]:
        """Return the score of each answer: 100 or 0 for right or wrong, or its nats per token."""
        if self.judged:
            return {key: found.nats for key, found in self.quality.items()}
        return {key: 100.0 * right for key, right in self.correct.items()}

    @property
    def score(self) -> Interval:
        """Return correct answers in %; for a task with a judge, nats per token."""
        if not self.judged:
            return self.accuracy
        scores = self.scores
        return bootstrap_clusters([*scores.values()], [*map(item_of, scores)])

    @property
    def forwards(self) -> float | None:
        """Return the mean number of forward passes per item, including repeated ones."""
        counts = [(one.cost["forwards"], _answers_of(one)) for one in self.results]
        known = [(forwards, items) for forwards, items in counts if forwards is not None]
        return sum(f * n for f, n in known) / sum(n for _, n in known) if known else None

    @property
    def tokens_per_forward(self) -> float | None:
        """Return visible tokens per forward pass."""
        tokens = sum(one.cost["tokens"] for one in self.results)
        forwards = self.forwards
        return tokens / (forwards * sum(map(_answers_of, self.results))) if forwards else None

    @property
    def seconds(self) -> float:
        """Return the time of all trials together."""
        return round(sum(one.cost["seconds"] for one in self.results), 1)


def _answers_of(result: TrialResult) -> int:
    """Return the number of texts that were written; a prompt that was too long has none."""
    return len(result.texts)


def item_of(key: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the item that a key of `TrialGroup.correct` names: its task and id."""
    return key[1], key[3]


def compare_groups(base: TrialGroup, other: TrialGroup) -> Comparison:
    """Compare the other group with the base, paired; answers to one item form a cluster."""
    return compare(base.correct, other.correct, cluster=item_of)


def percent_gap(comparison: Comparison) -> Interval:
    """Return the difference of a comparison in percentage points.

    The interval is exact if few items differ, because that of a bootstrap is then too narrow.
    """
    gap = gap_of(comparison)
    return Interval.spanning(gap.value, gap.low, gap.high, scale=100)


def model_name(model: str) -> str:
    """Return a model's name without its directory or owner; training writes to NAME/model."""
    path = Path(model)
    if path.name == "model" and path.parent.name:
        return path.parent.name
    return path.name


@dataclass(kw_only=True)
class Runner:
    """Models, items and a folder; answers and grades trials, and keeps their runs."""

    name: str
    scale: Scale
    folder: Path
    loader: Loader = field(default_factory=Loader)
    seed: int = 0  # of sampling
    items_seed: int = 0  # of drawing the items
    data: str = ""
    radius: int = 2  # of the measures that need one
    encoder: str = "minilm"  # of BERTScore
    layer: int | None = None  # of the encoder
    allow_unsandboxed: bool = False
    command: str = ""
    progress: Callable[[str, float], None] = lambda what, share: None
    _worker: Worker | None = field(default=None, init=False)
    _lines: jsonl.JsonLines | None = field(default=None, init=False)
    _kept: dict[str, dict[str, Any]] = field(default_factory=dict, init=False)
    _weights: dict[str, str] = field(default_factory=dict, init=False)  # fingerprints, by model
    _used: dict[str, None] = field(default_factory=dict, init=False)  # keys of the page's results
    _graders: set[str] = field(default_factory=set, init=False)  # tasks whose grader was compared

    def __post_init__(self) -> None:
        check_int("seed", self.seed, 0)
        check_int("items_seed", self.items_seed, 0)
        check_int("radius", self.radius, 0, high=MAX_POSITIONS)

    @property
    def models(self) -> tuple[str, ...]:
        """Return the paths or ids of the models."""
        return self.scale.models or (self.loader.path,)

    @property
    def steps(self) -> int:
        """Return the number of steps, T."""
        return self.scale.length if self.scale.steps is None else self.scale.steps

    def ask(self) -> Ask:
        """Return which items to draw."""
        scale = self.scale
        return Ask(
            count=scale.items,
            seed=self.items_seed,
            style=scale.style,
            data=self.data,
            half=scale.half,
        )

    def worker(self, model: str) -> Worker:
        """Return a worker with the model. Only the last one is kept."""
        if self._worker is None or self._worker.loader.path != model:
            self._worker = Worker(replace(self.loader, path=model))
        return self._worker

    def lm(self, model: str) -> LM:
        """Return the loaded model."""
        return self.worker(model).lm

    def with_half(self, half: str) -> Runner:
        """Return a runner on the tune or the report half, in its own folder, with this model."""
        part = replace(self, scale=replace(self.scale, half=half), folder=self.folder / half)
        part._worker = self.worker(self.models[0])
        return part

    def check(self) -> None:
        """Check that checkpoints and data sets exist, before loading anything.

        Raises:
            OptionError: The message names everything that is missing.
        """
        missing = []
        for model in self.models:
            try:
                loader = replace(self.loader, path=model)
                if self.scale.models:
                    replace(loader, offline=True).directory()
            except CheckpointError:
                missing.append(f"the checkpoint {model} (fetch it, or give --model DIR)")
            except WavefrontError as error:
                missing.append(f"the checkpoint {model} ({str(error).rstrip('.')})")
        lacking: dict[str, list[str]] = {}  # the 27 subsets of BBH count as one
        for task in self.scale.tasks:
            opened = open_task(task)  # raises on an unknown name
            try:
                opened.items(replace(self.ask(), count=1))
            except OptionError as error:
                if is_own(task):  # no file is missing: the error says what is wrong with it
                    raise
                reason = f"items of {task} ({str(error).rstrip('.')})"
                lacking.setdefault("bbh" if task.startswith("bbh_") else task, []).append(reason)
        for first, *more in lacking.values():
            missing.append(f"{first} and of {len(more)} more subsets" if more else first)
        if missing:
            what = "The paper's scale" if self.scale.models else "This experiment"
            raise OptionError(f"{what} needs files that are missing: {'; '.join(missing)}.")

    def keep(self, key: str, make: Callable[[], Any], *, run: Path | None = None) -> Any:
        """Return a result that results.jsonl has under this key; otherwise make it, and add it.

        Args:
            key: What was measured. The settings of the runner are checked once, for all keys.
            make: Returns plain data: numbers, texts, tensors, lists and dictionaries.
            run: The run that it was made from. It may have been answered on another machine.

        Raises:
            RunError: The file belongs to other settings, or is damaged.
        """
        if self._lines is None:
            self._open_results()
        if key not in self._kept:
            began = time.monotonic()
            value = to_json(make())
            commits, machines = commit(), []
            if run is not None:
                origin = open_run(run)
                commits, machines = origin.header.get("commit"), origin.environments
            if not machines:
                worker = self._worker or self.worker(self.models[-1])
                machines = [fingerprint.environment(worker.lm)]
            record = {
                "key": key,
                "value": value,
                "seconds": round(time.monotonic() - began, 3),
                "commit": commits,
                "environments": machines,
            }
            assert self._lines is not None
            self._lines.append(record)
            self._kept[key] = json.loads(jsonl.dump(record))  # as the next run will read it
        self._used[key] = None
        return self._kept[key]["value"]

    def _open_results(self) -> None:
        file = self.folder / RESULTS
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"{self.folder} cannot be written to: {reason(error)}.") from None
        lines = jsonl.JsonLines(file)
        settings = self._settings()
        if not lines.found:
            lines.append({"key": SETTINGS, "value": to_json(settings)})
            kept = {}
        else:
            kept = jsonl.by_key(lines.found, file)
            stored = kept.pop(SETTINGS, {}).get("value")
            if not isinstance(stored, dict) or any("value" not in one for one in kept.values()):
                raise RunError(f"{file} does not hold results: remove it, and run again.")
            unknown = [name for name, value in settings["weights"].items() if value is None]
            known = {n: v for n, v in stored.get("weights", {}).items() if n not in unknown}
            mine = {n: v for n, v in settings["weights"].items() if n in known}
            mine, theirs = settings | {"weights": mine}, stored | {"weights": known}
            check_same_settings(self.folder, to_json(mine), theirs)
            settings["weights"] |= {n: v for n, v in stored.get("weights", {}).items() if v}
        self._weights = {name: one for name, one in settings["weights"].items() if one}
        self._lines, self._kept = lines, kept

    def _settings(self) -> dict[str, Any]:
        """Return what determines all results, except for the machine and its precision.

        The weights of a model that is not on this machine are unknown, and are not compared.
        """
        scale, loader = self.scale, self.loader
        weights: dict[str, str | None] = {}
        for model in self.models:
            try:
                folder = replace(loader, path=model).directory()
            except WavefrontError:
                folder = None
            name = model_name(model)
            weights[name] = None if folder is None else fingerprint.of_weight_files(folder)
        return {
            "weights": weights,
            **{name: getattr(loader, name) for name in LOADED},
            "items": scale.items,
            "half": scale.half,
            "style": scale.style,
            "length": scale.length,
            "steps": scale.steps,
            "options": dict(scale.options),
            "seed": self.seed,
            "items_seed": self.items_seed,
            "radius": self.radius,
            "decoding_version": fingerprint.DECODING_VERSION,
        }

    @property
    def seconds(self) -> float:
        """The time that the results of the page took."""
        return sum(self._kept[key]["seconds"] for key in self._used)

    def measure(self, trials: Sequence[Trial], *, trace: str = "") -> list[TrialResult]:
        """Answer and grade every trial. Existing results and answers are kept.

        Raises:
            OptionError: There is no sandbox for the code that the model wrote. All trials were
                answered, so the same command can grade them on another machine.
        """
        for trial in trials:
            resolve(trial.strategy, "strategies")
        for task in dict.fromkeys(trial.task for trial in trials):
            self._check_grader(task, [one for one in trials if one.task == task])
        self._answer_programs(trials, trace)
        found: list[TrialResult] = []
        refused: OptionError | None = None
        for number, trial in enumerate(trials):
            what = f"{task_label(trial.task)}, {trial.strategy} {trial.case}".strip()

            def show(done: float, total: int, *, what: str = what, number: int = number) -> None:
                self.progress(what, (number + done / max(1, total)) / len(trials))

            folder = self.folder / RUNS / trial.folder
            try:
                record = self.keep(
                    str(trial.folder),
                    lambda trial=trial, show=show: self._record(trial, trace, show),
                    run=folder,
                )
            except OptionError as error:
                if error.option != "allow_unsandboxed":
                    raise
                refused = error  # the answers are kept, and the other trials need this machine
                continue
            originals = None
            if "quality" in record:
                name = f"originals of {trial.task}, N={record['cost']['length']}"
                originals = self.keep(name, lambda trial=trial: self._originals(trial), run=folder)
            found.append(_result(trial, folder, record, originals=originals))
        if refused is not None:
            raise OptionError(
                f"{refused} All answers are in {self.folder}: the same command grades them on a "
                "machine with a sandbox.",
                option="allow_unsandboxed",
            ) from refused
        return found

    def _answer_programs(self, trials: Sequence[Trial], trace: str) -> None:
        """Answer the trials whose answers are programs; each is graded beside the next ones.

        So the model need not wait for the programs. An error of the grader comes again when the
        result is made.
        """
        left = [one for one in trials if str(one.folder) not in self._kept]
        left = [one for one in left if open_task(one.task).executes]
        grader = ThreadPoolExecutor(1)
        try:
            for trial in left:
                run = self._answer_one(trial, trace, lambda *_: None)
                grader.submit(self._grade_one, trial, run)
        except BaseException:
            grader.shutdown(cancel_futures=True)
            raise
        grader.shutdown()

    def _check_grader(self, name: str, trials: Sequence[Trial]) -> None:
        """Raise `RunError` if results.jsonl has grades of this task from another grader.

        The fingerprint of a task's grader is kept before the first result of the task. A task
        with a judge has no grader. If no result is missing, only a page is made, and the versions
        of Python and of libraries may differ from those of the machine that graded.
        """
        if name in self._graders:
            return
        task = open_task(name)
        self._graders.add(name)
        if is_judged(task):
            return
        if self._lines is None:
            self._open_results()
        grader, key = self._grader_of(name), f"grader of {name}"
        missing = any(str(trial.folder) not in self._kept for trial in trials)
        of_task = f"{_slug(name)}{PART}"
        if not any(Path(other).name.startswith(of_task) for other in self._kept):
            return
        known = self._kept.get(key, {}).get("value")
        known = known if isinstance(known, dict) else {"all": known}
        same = "all" if missing or "code" not in known else "code"
        if known[same] != grader[same]:
            self._graders.discard(name)
            raise RunError(
                f"{self.folder / RESULTS} has grades of {name} from another version of its "
                "grader: remove the file, and run again. Answers are kept."
            )

    def _grader_of(self, name: str) -> dict[str, str]:
        task = open_task(name)
        code = fingerprint.of_grader(task, versions=False)
        return {"all": fingerprint.of_grader(task), "code": code}

    def _keep_grader(self, name: str) -> None:
        """Keep the fingerprint of a task's grader, before its first result."""
        key = f"grader of {name}"
        if key not in self._kept and not is_judged(open_task(name)):
            assert self._lines is not None
            self._kept[key] = {"key": key, "value": self._grader_of(name)}
            self._lines.append(self._kept[key])

    def _record(
        self, trial: Trial, trace: str, show: Callable[[float, int], None]
    ) -> dict[str, Any]:
        """Answer and grade a trial, and return what the pages need, in columns."""
        run = self._grade_one(trial, self._answer_one(trial, trace, show))
        self._keep_grader(trial.task)
        lines = [*run.answers.values()]
        written = [line for line in lines if not line.get("problem")]  # else it is too long
        first: dict[int, str] = {}
        for line in written:
            first.setdefault(line["batch"], line["id"])
        ids = {line["id"] for line in lines}
        texts = {line["id"]: line["text"] for line in lines}
        shown = [one.id for one in samples_of(trial.task, self.ask())[1][:SHOWN] if one.id in ids]
        record: dict[str, Any] = {
            "items": [line["id"] for line in written],
            **{name: [_count(line, name) for line in written] for name in COUNTS},
            "texts": [of_value(line["text"])[:DIGITS] for line in written],
            "shown": {item: texts[item] for item in shown},
            "timings": [line | {"first": first.get(line["batch"])} for line in run.timings],
            "cost": summary.cost(run) | {"length": run.decides["options"]["max_new_tokens"]},
        }
        if run.judged:
            found = qualities(run)
            record["quality"] = _columns(found[item] for item in record["items"])
        else:
            verdicts = grades.verdicts(run)
            record["correct"] = [item for item, right in verdicts.items() if right]
            record["wrong"] = [item for item, right in verdicts.items() if not right]
        return record

    def _originals(self, trial: Trial) -> dict[str, Any]:
        found = qualities(open_run(self.folder / RUNS / trial.folder), "original")
        return {"items": [*found], "quality": _columns(found.values())}

    def _answer_one(self, trial: Trial, trace: str, show: Callable[[float, int], None]) -> Run:
        scale, folder = self.scale, self.folder / RUNS / trial.folder
        elsewhere = not self._has_model(trial.model) and (folder / HEADER).is_file()
        if elsewhere and (run := open_run(folder)).finished:
            return run  # another machine, which had the model, answered this trial
        options: dict[str, Any] = {
            "strategy": trial.strategy,
            "max_new_tokens": scale.length,
            "steps": self.steps,
            "seed": self.seed + trial.seed,
            **scale.options,
        }
        worker = self.worker(trial.model)
        setup = RunConfig(
            task=trial.task,
            ask=self.ask(),
            options=options | dict(trial.options),
            rows=scale.rows,
            trace=trace,
            constrain=trial.constrain,
            loader=worker.loader,
            command=self.command,
        )
        generate_answers(LocalExecutor(worker), setup, folder, progress=show)
        return open_run(folder)

    def _has_model(self, model: str) -> bool:
        try:
            replace(self.loader, path=model).directory()
        except WavefrontError:
            return False
        return True

    def _grade_one(self, trial: Trial, run: Run) -> Run:
        """Grade a run, and return it with its grades."""
        grade(
            run,
            tasks=[trial.task],
            data=self.data,
            allow_unsandboxed=self.allow_unsandboxed,
        )
        return open_run(run.folder)

    def configuration(self) -> dict[str, Any]:
        """Return the settings and the machine, for the page."""
        scale, last = self.scale, self.models[-1]
        found: dict[str, Any] = {
            "experiment": self.name,
            "command": self.command,
            "commit": self._commits(),
            "decoding version": fingerprint.DECODING_VERSION,
            "models": [model_name(model) for model in self.models],
            **({"weights": dict(self._weights)} if self._weights else {}),
            "tasks": list(scale.tasks),
            "items of each task": scale.items or "all",
            "style of the prompts": scale.style,
            "positions (N)": scale.length,
            "steps (T)": self.steps,
            "seed": self.seed,
            "seed of the items": self.items_seed,
            "batch size": scale.rows,
            **({"options": dict(scale.options)} if scale.options else {}),
        }
        # Results may come from another machine; then the page names that one.
        machines = [one for key in self._used for one in self._kept[key]["environments"]]
        return found | merge_records(machines or [fingerprint.environment(self.lm(last))])

    def _commits(self) -> Any:
        found = [{"commit": self._kept[key]["commit"]} for key in self._used]
        return merge_records(found or [{"commit": commit()}])["commit"]


def _count(line: Mapping[str, Any], name: str) -> int:
    return len(line["tokens"]) if name == "tokens" else line.get(name, 0)


def _columns(found: Iterable[TextQuality]) -> dict[str, list[Any]]:
    """Return one list for each measure, with six digits."""
    rows = [*found]
    return {name: [_short(getattr(row, name)) for row in rows] for name in TextQuality._fields}


def _short(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _rows(items: Sequence[str], columns: Mapping[str, Sequence[Any]]) -> dict[str, TextQuality]:
    rows = zip(*(columns[name] for name in TextQuality._fields), strict=True)
    return {item: TextQuality(*row) for item, row in zip(items, rows, strict=True)}


def _result(
    trial: Trial, folder: Path, record: Mapping[str, Any], *, originals: Mapping[str, Any] | None
) -> TrialResult:
    """Return the result that a record of results.jsonl holds.

    Raises:
        RunError: The record is damaged.
    """
    try:
        items = record["items"]
        return TrialResult(
            trial=trial,
            correct=dict.fromkeys(record.get("correct", ()), True)
            | dict.fromkeys(record.get("wrong", ()), False),
            quality=_rows(items, record["quality"]) if "quality" in record else {},
            originals=_rows(originals["items"], originals["quality"]) if originals else {},
            texts=dict(zip(items, record["texts"], strict=True)),
            shown=record["shown"],
            counts={name: dict(zip(items, record[name], strict=True)) for name in COUNTS},
            timings=record["timings"],
            cost=record["cost"],
            folder=folder,
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        raise RunError(
            f"{RESULTS} has a damaged record of {trial.folder}: remove its line, and run again."
        ) from None


def merge_records(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge records by name; where they differ, the value is the list of distinct values."""
    found: dict[str, list[Any]] = {}
    for record in records:
        for name, value in record.items():
            values = found.setdefault(name, [])
            values += [] if value in values else [value]
    return {name: values[0] if len(values) == 1 else values for name, values in found.items()}
