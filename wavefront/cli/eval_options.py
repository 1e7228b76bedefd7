"""The options of an evaluation: what is asked, where it is written, and what answers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from wavefront.cli.options import DATA, DecodingOptions, ModelOptions, option
from wavefront.core.errors import OptionError, check_choice

if TYPE_CHECKING:
    from wavefront.evaluation.ray_cluster import Resources
    from wavefront.evaluation.worker import Loader
    from wavefront.tasks.base import Ask

_task = partial(option, "Items")
_run = partial(option, "Run")
_engine = partial(option, "Engine")
ENGINES = ("local", "ray")


@dataclass(frozen=True, kw_only=True)
class AskOptions:
    """Which items, and how they are asked."""

    task: Annotated[
        list[str] | None,
        _task(
            "NAME",
            "A task, such as gsm, or with options in brackets; may be given again, for a run each.",
            "--task",
        ),
    ] = None
    items: Annotated[
        int | None,
        _task("N", "Items of each task; by default all of a file, 100 of a generated task.",
              "--items", "-i"),
    ] = None  # fmt: skip
    items_seed: Annotated[
        int, _task("N", "Of the draw of generated items; by default 0.", "--items-seed")
    ] = 0
    split: Annotated[
        str, _task("NAME", "Part of the task; by default its test items.", "--split")
    ] = ""
    style: Annotated[
        str, _task("WORD", "paper (the default): the paper's prompts. bare: the question alone.",
                   "--style")
    ] = "paper"  # fmt: skip
    shots: Annotated[
        int, _task("N", "Worked examples before the question; by default 0.", "--shots")
    ] = 0
    data: Annotated[str, _task("DIR", DATA, "--data")] = ""

    def ask(self, **changes: Any) -> Ask:
        from wavefront.tasks.base import STYLES, Ask

        check_choice("style", self.style, STYLES)
        asked: dict[str, Any] = {
            "count": self.items,
            "seed": self.items_seed,
            "split": self.split,
            "style": self.style,
            "shots": self.shots,
            "data": self.data,
        }
        for name, value in changes.items():
            # What is written on the command line wins over a preset.
            if asked.get(name) == getattr(Ask(), name):
                asked[name] = value
        if self.items is not None and self.items < 1:
            raise OptionError(f"items must be at least 1, not {self.items}.")
        return Ask(**asked)


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Where a run goes, and how it is cut."""

    out: Annotated[
        Path | None, _run("DIR", "The run's directory; one that is there is continued.",
                          "--out", "-o")
    ] = None  # fmt: skip
    preset: Annotated[
        str | None,
        _run("NAME", "paper, paper-block, llada, dream, ...: published settings of the task; "
             "options given besides win.", "--preset"),
    ] = None  # fmt: skip
    batch_size: Annotated[
        int, _run("N", "Items to decode at once; by default 8.", "--batch-size", "-b")
    ] = 8
    raw: Annotated[
        bool, _run("", "Continue prompts as they are, past the chat template.", "--raw")
    ] = False
    trace: Annotated[
        str, _run("WORD", "basic or full: keep how every answer came about, in traces/.", "--trace")
    ] = ""
    shard: Annotated[
        str, _run("I/N", "Make part I of N, counted from 0; `wavefront merge` joins them.",
                  "--shard")
    ] = "0/1"  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """What answers: this process, or a cluster."""

    engine: Annotated[
        str, _engine("WORD", "local (the default), or ray: workers on a cluster.", "--engine")
    ] = "local"
    address: Annotated[
        str | None,
        _engine("ADDR", "Of a running Ray cluster, or auto; by default one is started here.",
                "--address"),
    ] = None  # fmt: skip
    workers: Annotated[
        int, _engine("N", "Ray workers, each with a model; by default 1.", "--workers")
    ] = 1
    cpus_per_worker: Annotated[
        float, _engine("X", "CPUs of each; by default 1.", "--cpus-per-worker")
    ] = 1.0
    gpus_per_worker: Annotated[
        float,
        _engine("X", "GPUs of each; by default 0. 0.5 lets two share one.", "--gpus-per-worker"),
    ] = 0.0
    max_losses: Annotated[
        int, _engine("N", "Workers that may be lost before it gives up; by default 3.",
                     "--max-losses")
    ] = 3  # fmt: skip
    threads: Annotated[
        int | None, _engine("N", "Of torch on a CPU, in each process.", "--threads")
    ] = None

    def resources(self) -> Resources:
        from wavefront.evaluation.ray_cluster import Resources

        return Resources(
            address=self.address,
            workers=self.workers,
            cpus=self.cpus_per_worker,
            gpus=self.gpus_per_worker,
            losses=self.max_losses,
        )

    def check(self) -> None:
        """Refuse what no engine takes, before anything is loaded."""
        check_choice("engine", self.engine, ENGINES)
        if self.threads is not None and self.threads < 1:
            raise OptionError(f"threads must be at least 1, not {self.threads}.")
        if self.engine == "local" and (self.workers != 1 or self.address is not None):
            raise OptionError("Workers and an address belong to Ray: give --engine ray as well.")
        if self.engine == "ray":
            from wavefront.storage.ray_start import load_ray

            self.resources()
            load_ray(self.address)


@dataclass(frozen=True, kw_only=True)
class SeveralOptions(DecodingOptions):
    """Decoding with one strategy or several."""

    strategy: Annotated[  # pyright: ignore[reportIncompatibleVariableOverride]
        list[str] | None,
        option(
            "Decoding",
            "SPEC",
            'A strategy: block, "wavefront(size=8, radius=2)", ...; may be given again, for a run '
            "each.",
            "--strategy",
            "-s",
        ),
    ] = None


def loader_of(model: ModelOptions, engine: EngineOptions) -> Loader:
    """How to come by the model that was asked for."""
    from wavefront.evaluation.worker import Loader
    from wavefront.models import builtin

    return Loader(
        path=builtin.DEFAULT if model.model is None else model.model,
        device=model.device,
        dtype=model.dtype,
        revision=model.revision,
        offline=model.offline,
        threads=engine.threads,
    )


# Options that say one thing between them: whoever gives one of a group overrides the whole group.
TOGETHER = (
    {"strategy", "block_length", "max_wave_size", "radius", "alg", "eps", "alg_temp"},
    {"eos", "logits_eos_inf", "confidence_eos_eot_inf"},
    {"priority", "remasking", "alg"},
    {"order_noise", "alg_temp"},
)


def preset_of(name: str | None, task: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Options of decoding, and of asking, that a preset has for a task."""
    if name is None:
        return {}, {}
    from dataclasses import fields

    from wavefront import tasks
    from wavefront.tasks.base import Ask

    found = dict(tasks.preset(name, task))
    asks = {field.name for field in fields(Ask)} - {"seed"}  # a seed is that of the decode
    return found, {one: found.pop(one) for one in asks & found.keys()}


def over(preset: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """The options of a preset, less what was given in place of them, and what was given."""
    from wavefront.engine.options import ALIASES

    named = {ALIASES.get(name, name): value for name, value in given.items()}
    gone = {*named}
    for group in TOGETHER:
        gone |= group if group & named.keys() else set()
    if "max_new_tokens" in named and preset.get("steps") == preset.get("max_new_tokens"):
        gone.add("steps")  # a token each, of however many
    return {n: v for n, v in preset.items() if n not in gone} | given
