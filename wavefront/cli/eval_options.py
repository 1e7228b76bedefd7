"""The options of an evaluation: which items, where the run goes, and where it is decoded."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from wavefront.cli import completion
from wavefront.cli.options import CheckpointOptions, Data, ItemsSeed, option
from wavefront.core.errors import OptionError, check_choice, check_int

if TYPE_CHECKING:
    from wavefront.evaluation.ray_cluster import Resources
    from wavefront.evaluation.worker import Loader
    from wavefront.tasks.base import Ask

_item = partial(option, "Items")
_run = partial(option, "Run")
_engine = partial(option, "Engine")
ENGINES = ("local", "ray")
OwnTask = Annotated[
    list[str] | None,
    _item(
        "NAME",
        "Your own task, module.Class or FILE.jsonl, if the run uses one: a run never imports code. "
        "Repeat for several.",
        "--task",
    ),
]


@dataclass(frozen=True, kw_only=True)
class ItemOptions:
    """Which items to use, and how to write their prompts."""

    task: Annotated[
        list[str] | None,
        _item(
            "NAME",
            "Task, such as gsm, with any options in parentheses; module.Class or FILE.jsonl for "
            "your own; repeat to run several tasks. See `wavefront list tasks`. Default: gsm.",
            "--task",
            complete=completion.tasks,
        ),
    ] = None
    items: Annotated[
        int | None,
        _item(
            "N",
            "Items per task. Default: every item in a file, 100 for a generated task.",
            "--items",
            "-i",
        ),
    ] = None
    items_seed: ItemsSeed = 0
    split: Annotated[
        str, _item("NAME", "Split of the task. Default: the test split.", "--split")
    ] = ""
    style: Annotated[
        str,
        _item(
            "WORD",
            "paper: the paper's prompts. bare: only the question. Default: paper.",
            "--style",
            complete=completion.words("bare", "paper"),
        ),
    ] = "paper"
    shots: Annotated[
        int, _item("N", "Worked examples before each question. Default: 0.", "--shots")
    ] = 0
    data: Data = ""

    def ask(self, **preset: Any) -> Ask:
        """Return what to ask. Options that the user set take precedence over the preset."""
        from wavefront.tasks.base import STYLES, Ask

        check_choice("style", self.style, STYLES)
        if self.items is not None:
            check_int("items", self.items, 1)
        values: dict[str, Any] = {
            "count": self.items,
            "seed": self.items_seed,
            "split": self.split,
            "style": self.style,
            "shots": self.shots,
            "data": self.data,
        }
        for name, value in preset.items():
            if values.get(name) == getattr(Ask(), name):
                values[name] = value
        return Ask(**values)


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Where a run goes, and how it is divided."""

    out: Annotated[
        Path | None,
        _run("DIR", "Run directory. An existing run is continued. Required.", "--out", "-o"),
    ] = None
    preset: Annotated[
        str | None,
        _run(
            "NAME",
            "Published settings of the task: paper, paper-block, llada, dream, ... Options that "
            "you set take precedence. Default: none.",
            "--preset",
            complete=completion.presets,
        ),
    ] = None
    batch_size: Annotated[
        int, _run("N", "Items to decode at once. Default: 8.", "--batch-size", "-b")
    ] = 8
    raw: Annotated[bool, _run("", "Continue prompts without the chat template.", "--raw")] = False
    trace: Annotated[
        str,
        _run(
            "WORD",
            "Record a trace of every decode in traces/: basic or full. Default: none.",
            "--trace",
            complete=completion.words("basic", "full"),
        ),
    ] = ""
    constrain: Annotated[
        str,
        _run(
            "WORD",
            "final: every answer ends with a marked final answer. choice: every answer is "
            "just the marked final answer, one of the options listed in the question. Default: "
            "no constraint.",
            "--constrain",
            complete=completion.words("final", "choice"),
        ),
    ] = ""
    shard: Annotated[
        str,
        _run(
            "I/N",
            "Decode part I of N, counted from 0; `wavefront eval merge` joins them. Default: 0/1.",
            "--shard",
        ),
    ] = "0/1"


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """Where to decode: in this process, or on a Ray cluster."""

    engine: Annotated[
        str,
        _engine(
            "WORD",
            "local: this process. ray: workers on a Ray cluster. Default: local.",
            "--engine",
            complete=completion.words(*ENGINES),
        ),
    ] = "local"
    address: Annotated[
        str | None,
        _engine("ADDR", "Address of a Ray cluster, or auto. Default: start one here.", "--address"),
    ] = None
    workers: Annotated[
        int, _engine("N", "Ray workers, each with its own model. Default: 1.", "--workers")
    ] = 1
    cpus_per_worker: Annotated[
        float, _engine("X", "CPUs per worker. Default: 1.", "--cpus-per-worker")
    ] = 1.0
    gpus_per_worker: Annotated[
        float,
        _engine(
            "X",
            "GPUs per worker. With 0.5, two workers share a GPU. Default: 0.",
            "--gpus-per-worker",
        ),
    ] = 0.0
    max_losses: Annotated[
        int, _engine("N", "Give up after losing this many workers. Default: 3.", "--max-losses")
    ] = 3
    threads: Annotated[
        int | None,
        _engine("N", "torch threads per process on a CPU. Default: chosen by torch.", "--threads"),
    ] = None

    def resources(self) -> Resources:
        """Return what to request from Ray."""
        from wavefront.evaluation.ray_cluster import Resources

        return Resources(
            address=self.address,
            workers=self.workers,
            cpus=self.cpus_per_worker,
            gpus=self.gpus_per_worker,
            losses=self.max_losses,
        )

    def check(self) -> None:
        """Raise OptionError for values that no engine accepts, before anything is loaded."""
        check_choice("engine", self.engine, ENGINES)
        if self.threads is not None:
            check_int("threads", self.threads, 1)
        if self.engine == "local" and (self.workers != 1 or self.address is not None):
            raise OptionError("--workers and --address need Ray: give --engine ray as well.")
        if self.engine == "ray":
            from wavefront.storage.ray_start import load_ray

            self.resources()
            load_ray(self.address)


def loader_of(
    model: CheckpointOptions, engine: EngineOptions | None = None, *, speed: str | None = None
) -> Loader:
    """Return the loader for the chosen model; `speed` also sets its precision."""
    from wavefront.evaluation.worker import Loader
    from wavefront.models import builtin

    return Loader(
        path=builtin.DEFAULT if model.model is None else model.model,
        device=model.device,
        dtype=model.dtype,
        quantize=model.quantize,
        revision=model.revision,
        offline=model.offline,
        **model.load_options(),
        speed=speed or "exact",
        threads=None if engine is None else engine.threads,
    )


# Groups of options with the same effect. If the user sets one of a group, it replaces the preset's
# whole group.
EXCLUSIVE = (
    {"strategy", "block_length", "max_wave_size", "radius", "alg", "eps", "alg_temp"},
    {"eos", "logits_eos_inf", "confidence_eos_eot_inf"},
    {"priority", "remasking", "alg"},
    {"order_noise", "alg_temp"},
)


def preset_options(name: str | None, task: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a preset's decoding options and item options for a task."""
    if name is None:
        return {}, {}
    from dataclasses import fields

    from wavefront import tasks
    from wavefront.tasks.base import Ask

    found = dict(tasks.preset(name, task))
    item_options = {field.name for field in fields(Ask)} - {"seed"}  # its seed is for sampling
    return found, {one: found.pop(one) for one in item_options & found.keys()}


def override_preset(preset: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """Return the options, plus the preset's options that they do not replace."""
    from wavefront.core.bounds import ALIASES

    named = {ALIASES.get(name, name): value for name, value in options.items()}
    replaced = {*named}
    for group in EXCLUSIVE:
        replaced |= group if group & named.keys() else set()
    if "max_new_tokens" in named and preset.get("steps") == preset.get("max_new_tokens"):
        replaced.add("steps")  # the preset takes one step per token
    return {n: v for n, v in preset.items() if n not in replaced} | options
