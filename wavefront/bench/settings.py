"""Settings of a bench, checked before anything is timed."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from wavefront.bench.machine import device_name
from wavefront.bench.model_shapes import SHAPES, random_model
from wavefront.bench.timing import Now, Tick
from wavefront.core.errors import OptionError, check_choice, check_int
from wavefront.lm import LM, load
from wavefront.models.transformer import Transformer

CUDA_ROWS = ("default", "quantized", "strategies")  # elsewhere only on request
ON_REQUEST = ("start",)  # takes minutes
FULL_ROWS = (
    *("exact", "cached", "batch", *CUDA_ROWS),
    *("end-to-end", "memory", "lengths", "batches", "text", *ON_REQUEST),
)
BLOCK_ROWS = ("blocks", "prefix")  # of block-causal models
ROWS = (*FULL_ROWS, *BLOCK_ROWS)
BLOCK = 32  # of the reference loops
LENGTHS = {"cuda": (256, 512, 1024, 2048, 4096), "cpu": (128, 256, 512, 1024)}
BATCHES = {"cuda": (1, 2, 4, 8, 16, 32), "cpu": (1, 2, 4, 8)}
BLOCK_BATCHES = (1, 8)  # of the row `blocks`
PROMPT_TOKENS = {"cuda": 128, "cpu": 64}
MAX_NEW_TOKENS = {"cuda": 1024, "cpu": 256}
# A quick run of a built-in model takes less than a minute on two cores.
QUICK_CPU: dict[str, Any] = {
    "prompt_tokens": 32,
    "max_new_tokens": 64,
    "lengths": (64, 128, 256),
    "batches": (1, 2, 4),
    "repeats": 3,
}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What one run measures.

    The canvas is a prompt of random tokens and `max_new_tokens` masked positions, with one step for
    each.
    """

    model: Transformer
    name: str = ""
    lm: LM | None = None  # with its tokenizer; the text rows need it
    prompt_tokens: int = 64
    max_new_tokens: int = 256
    lengths: tuple[int, ...] = LENGTHS["cpu"]  # of whole canvases
    batches: tuple[int, ...] = BATCHES["cpu"]
    only: tuple[str, ...] = ()  # empty: all groups of rows that the model has
    rows: tuple[str, ...] = ()  # regular expressions; only steps whose description has a match
    repeats: int = 15
    items: int = 4  # problems of the text rows
    compile: bool = False  # also measure compiled models; takes minutes on a CPU
    profile: Path | None = None
    cpu_time: bool = False  # measure the CPU time of this process, for busy machines
    quick: bool = False
    tick: Tick = field(default=lambda what: None, compare=False)

    def __post_init__(self) -> None:
        for name in self.only:
            check_choice("only", name, ROWS)
            if name not in rows_of(self.model):
                kind = "bidirectional" if self.model.block_size is None else "block-causal"
                raise OptionError(
                    f"The row {name} does not exist for a {kind} model: choose from "
                    f"{', '.join(rows_of(self.model))}.",
                    option="only",
                    value=name,
                )
        if not self.only:
            left_out = ON_REQUEST if self.cuda else (*CUDA_ROWS, *ON_REQUEST)
            rows = tuple(name for name in rows_of(self.model) if name not in left_out)
            object.__setattr__(self, "only", rows)
        block = self.model.block_size or 1
        for name in ("prompt_tokens", "max_new_tokens"):
            if getattr(self, name) % block:
                raise OptionError(
                    f"{name} must be a multiple of {block}, the block of the model, not "
                    f"{getattr(self, name)}.",
                    option=name,
                    value=getattr(self, name),
                )
        check_int("prompt_tokens", self.prompt_tokens, 1)
        check_int("max_new_tokens", self.max_new_tokens, BLOCK)
        if self.max_new_tokens % BLOCK:
            raise OptionError(
                f"max_new_tokens must be a multiple of {BLOCK}, the block of the reference loops, "
                f"not {self.max_new_tokens}.",
                option="max_new_tokens",
                value=self.max_new_tokens,
            )
        for pattern in self.rows:
            try:
                re.compile(pattern)
            except re.error as error:
                raise OptionError(
                    f"{pattern!r} is not a regular expression: {error}.",
                    option="row",
                    value=pattern,
                ) from None
        check_int("repeats", self.repeats, 1)
        check_int("items", self.items, 1)
        if self.cpu_time and self.cuda:
            raise OptionError(
                "cpu_time does not measure work on a GPU: leave it out.",
                option="cpu_time",
                value=True,
            )
        longest = self.model.max_length
        check_int("prompt_tokens + max_new_tokens", self.length, 1, high=longest)
        for length in self.lengths:
            check_int("lengths", length, 64, high=longest)
        for batch in self.batches:
            check_int("batches", batch, 1)

    @property
    def now(self) -> Now:
        return time.process_time if self.cpu_time else time.perf_counter

    @property
    def length(self) -> int:
        return self.prompt_tokens + self.max_new_tokens

    @property
    def cuda(self) -> bool:
        return self.model.device.type == "cuda"

    @property
    def as_published(self) -> bool:
        """Whether machine, model and sizes are the same as for the published times."""
        model = self.model
        return (
            "H200" in device_name(model.device)
            and self.name == "llada-8b-shape"
            and str(model.dtype) == "torch.bfloat16"
            and (self.prompt_tokens, self.max_new_tokens) == (128, 1024)
        )

    def wants(self, what: str) -> bool:
        """Return whether to measure a row of the steps with this description."""
        return not self.rows or any(re.search(pattern, what) for pattern in self.rows)

    def as_json(self) -> dict[str, Any]:
        """Return the settings for the results file."""
        return {
            "model": self.name,
            "prompt_tokens": self.prompt_tokens,
            "max_new_tokens": self.max_new_tokens,
            "lengths": list(self.lengths),
            "batches": list(self.batches),
            "only": list(self.only),
            "rows": list(self.rows),
            "repeats": self.repeats,
            "items": self.items,
            "compile": self.compile,
            "quick": self.quick,
            "cpu_time": self.cpu_time,
        }


def rows_of(model: Transformer) -> tuple[str, ...]:
    """Return the groups of rows that exist for a model."""
    return FULL_ROWS if model.block_size is None else BLOCK_ROWS


class BenchModel(NamedTuple):
    """The model to measure."""

    name: str
    model: Transformer
    lm: LM | None  # with its tokenizer; None for a shape with random weights


def load_model(
    name: str | None, *, device: str | None = None, dtype: str | None = None
) -> BenchModel:
    """Load a checkpoint, or build a named shape with random weights.

    The default is LLaDA-8B's shape on CUDA and the built-in model elsewhere.
    """
    from wavefront.models.builtin import DEFAULT
    from wavefront.models.loader import resolve_device
    from wavefront.models.quantize import quantization_of

    target = resolve_device(device)
    chosen = name or ("llada-8b-shape" if target.type == "cuda" else DEFAULT)
    if chosen in SHAPES:
        return BenchModel(chosen, random_model(chosen, device=target, dtype=dtype), None)
    if chosen.endswith("-shape"):
        check_choice("model", chosen, SHAPES)
    lm = load(chosen, device=target, dtype=dtype)
    if not isinstance(lm.model, Transformer):
        raise OptionError(
            f"The bench cannot measure {chosen}: it is not of a known family.",
            option="model",
            value=chosen,
        )
    if (kind := quantization_of(lm.model)) is not None:
        raise OptionError(
            f"The bench cannot measure {chosen}: its weights are in {kind}.",
            option="model",
            value=chosen,
        )
    return BenchModel(chosen, lm.model, lm)


def advice_defaults(model: Transformer) -> dict[str, Any]:
    """Return settings for `advise` that take less than a minute with a built-in model on a CPU.

    On CUDA, compilation is measured too, which takes minutes.
    """
    usual = defaults(model, quick=True)
    if model.device.type == "cuda":
        usual["compile"] = True
    else:
        usual |= {"prompt_tokens": PROMPT_TOKENS["cpu"], "max_new_tokens": 128, "repeats": 5}
    return usual


def defaults(model: Transformer, *, quick: bool = False) -> dict[str, Any]:
    """Return settings that suit the model and its device."""
    kind = "cuda" if model.device.type == "cuda" else "cpu"
    lengths = tuple(size for size in LENGTHS[kind] if size <= model.max_length)
    found = {
        "prompt_tokens": PROMPT_TOKENS[kind],
        "max_new_tokens": MAX_NEW_TOKENS[kind],
        "lengths": lengths[:: max(1, len(lengths) - 1)] if quick else lengths,
        "batches": BATCHES[kind][::3] if quick else BATCHES[kind],
        "repeats": 5 if quick else 15,
        "compile": kind == "cuda" and not quick,
    }
    found |= QUICK_CPU if quick and kind == "cpu" else {}
    return found if model.block_size is None else found | {"batches": BLOCK_BATCHES}
