"""Settings: what a bench is to measure, checked before anything is timed."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wavefront.bench.machine import device_name
from wavefront.bench.model_shapes import SHAPES, random_model
from wavefront.bench.timing import Now, Tick
from wavefront.core.errors import OptionError, check_choice, check_int
from wavefront.lm import LM, load
from wavefront.models.transformer import Transformer

ROWS = ("exact", "cached", "batch", "end-to-end", "memory", "lengths", "batches", "text")
BLOCK = 32  # of the reference loops
LENGTHS = {"cuda": (256, 512, 1024, 2048, 4096), "cpu": (128, 256, 512, 1024)}
BATCHES = {"cuda": (1, 2, 4, 8, 16, 32), "cpu": (1, 2, 4, 8)}
GIVEN = {"cuda": 128, "cpu": 64}
PLACES = {"cuda": 1024, "cpu": 256}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One run. The canvas is `given` random tokens and `places` to fill, a step each."""

    model: Transformer
    name: str = ""
    lm: LM | None = None  # with its tokenizer, where there is one: texts need it
    given: int = 64
    places: int = 256
    lengths: tuple[int, ...] = LENGTHS["cpu"]  # canvases, in all
    batches: tuple[int, ...] = BATCHES["cpu"]
    only: tuple[str, ...] = ROWS
    repeats: int = 15
    items: int = 4  # problems decoded as texts
    compile: bool = False  # also the headline shapes compiled; minutes on a CPU
    profile: Path | None = None
    cpu_time: bool = False  # the process's own time, which others on a busy machine do not add to
    quick: bool = False
    tick: Tick = field(default=lambda what: None, compare=False)

    def __post_init__(self) -> None:
        for name in self.only:
            check_choice("only", name, ROWS)
        check_int("prompt", self.given, 1)
        check_int("places", self.places, BLOCK)
        if self.places % BLOCK:
            raise OptionError(
                f"places must be a multiple of {BLOCK}, the reference loops' block, not "
                f"{self.places}."
            )
        check_int("repeats", self.repeats, 1)
        check_int("items", self.items, 1)
        if self.cpu_time and self.cuda:
            raise OptionError("cpu_time says nothing of work on a GPU: leave it out.")
        longest = self.model.max_length
        check_int("prompt + places", self.given + self.places, 1, longest)
        for length in self.lengths:
            check_int("lengths", length, 64, longest)
        for batch in self.batches:
            check_int("batches", batch, 1)

    @property
    def now(self) -> Now:
        return time.process_time if self.cpu_time else time.perf_counter

    @property
    def length(self) -> int:
        return self.given + self.places

    @property
    def cuda(self) -> bool:
        return self.model.device.type == "cuda"

    @property
    def as_published(self) -> bool:
        """Is this what the published programs were measured on?"""
        model = self.model
        return (
            "H200" in device_name(model.device)
            and self.name == "llada-8b-shape"
            and str(model.dtype) == "torch.bfloat16"
            and (self.given, self.places) == (128, 1024)
        )

    def said(self) -> dict[str, Any]:
        """For the file."""
        return {
            "model": self.name,
            "prompt": self.given,
            "places": self.places,
            "lengths": list(self.lengths),
            "batches": list(self.batches),
            "only": list(self.only),
            "repeats": self.repeats,
            "items": self.items,
            "compile": self.compile,
            "quick": self.quick,
            "cpu_time": self.cpu_time,
        }


def subject(
    name: str | None, *, device: str | None = None, dtype: str | None = None
) -> tuple[str, Transformer, LM | None]:
    """The model to measure: a named shape with random weights, or a checkpoint with its tokenizer.

    By default the published shape on CUDA, and the built-in model elsewhere.
    """
    from wavefront.models.builtin import DEFAULT
    from wavefront.models.loader import resolve_device

    target = resolve_device(device)
    chosen = name or ("llada-8b-shape" if target.type == "cuda" else DEFAULT)
    if chosen in SHAPES:
        return chosen, random_model(chosen, device=target, dtype=dtype), None
    if chosen.endswith("-shape"):
        check_choice("model", chosen, SHAPES)
    lm = load(chosen, device=target, dtype=dtype)
    if not isinstance(lm.model, Transformer):
        raise OptionError(f"{chosen} is no model that the bench knows how to take apart.")
    return chosen, lm.model, lm


def defaults(model: Transformer, *, quick: bool = False) -> dict[str, Any]:
    """What suits the model and where it is."""
    kind = "cuda" if model.device.type == "cuda" else "cpu"
    lengths = tuple(size for size in LENGTHS[kind] if size <= model.max_length)
    return {
        "given": GIVEN[kind],
        "places": PLACES[kind],
        "lengths": lengths[:: max(1, len(lengths) - 1)] if quick else lengths,
        "batches": BATCHES[kind][::3] if quick else BATCHES[kind],
        "repeats": 5 if quick else 15,
        "compile": kind == "cuda" and not quick,
    }
