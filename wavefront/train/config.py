"""The configuration of a training run, validated on creation."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from wavefront.core.errors import OptionError, check_choice, check_float, check_int
from wavefront.tasks import DEFAULT_MIXTURE
from wavefront.train.row_layout import MIN_CANVAS

# 304 rather than 320, so that answers near MAX_CANVAS fit after prompts of 48 tokens or more.
BUCKETS = (96, 128, 192, 256, 304, 448)
OPTIMIZERS = ("adamw", "muon")
EXPORTS = ("best", "ema", "raw")


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """The settings that decide which rows each step has. They fix every row of a run."""

    tokenizer: Path  # a directory with tokenizer.json
    mixture: Mapping[str, float] | None = (
        None  # weights such as gsm=18,code=16; by default all tasks
    )
    seed: int = 0  # random seed of the data, the masks and the initial weights
    tokens_per_step: int = 131_072  # tokens per step: prompt, answer and fill together
    buckets: tuple[int, ...] = BUCKETS  # row lengths; all rows of a step have the same length
    small_bias: float = 1.0  # a row gets a bucket of length L with weight L ** -small_bias
    group: int = 16  # number of steps whose data is made together
    text: Path | None = None  # plain text for pre-training: a file, or "english" (WikiText-2)
    text_share: float = 0.0  # share of rows that are plain text

    def __post_init__(self) -> None:
        check_int("seed", self.seed, 0, (1 << 31) - 1)
        check_int("group", self.group, 1, 1024)
        check_float("small_bias", self.small_bias, 0.0, 16.0)
        check_float("text_share", self.text_share, 0.0, 1.0)
        if not self.buckets or list(self.buckets) != sorted(set(self.buckets)):
            raise OptionError(f"buckets must be distinct and ascending, not {self.buckets}.")
        for length in self.buckets:
            check_int("a bucket", length, MIN_CANVAS, 4096)
        check_int("tokens_per_step", self.tokens_per_step, self.buckets[-1])
        if (self.text is None) != (self.text_share == 0.0):
            raise OptionError("text and text_share go together; give a file and a share above 0.")
        if self.mixture is not None and not any(weight > 0 for weight in self.mixture.values()):
            raise OptionError("mixture must give at least one task a weight above 0.")

    def rows(self, length: int) -> int:
        """Return the rows of a step in this bucket: a multiple of 8 if there are at least 8."""
        count = self.tokens_per_step // length
        return count - count % 8 if count >= 8 else count


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """A training run. Give `steps` (exact, resumes bit for bit) or `minutes` of this command."""

    out: Path  # the run's directory: state.pt, log.jsonl, model/
    data: DataConfig
    steps: int | None = None  # total number of steps, including those before a resume
    minutes: float | None = None  # how long this command runs, including compilation
    init: Path | None = None  # checkpoint with the initial weights; by default random
    resume: bool = False  # continue from state.pt if it exists

    width: int = 384  # size of the hidden states
    layers: int = 10  # number of transformer blocks
    heads: int = 6  # number of attention heads
    mlp_width: int = 1024  # size of each block's inner layer
    max_length: int = 1024  # maximum length in the checkpoint's config

    optimizer: str = "adamw"  # adamw, or muon for the matrices
    lr: float = 2e-3  # learning rate between warm-up and decay
    matrix_lr: float | None = None  # learning rate of Muon's matrices; by default lr
    weight_decay: float = 0.05  # weight decay of the matrices
    clip: float = 1.0  # maximum norm of the gradient
    ema: float = 0.999  # decay of the averaged weights; 0 turns averaging off
    warmup: int = 200  # number of warm-up steps
    decay_fraction: float = 0.3  # final share of the run in which the rate decays; 0: none
    eps: float = 1e-3  # minimum masking probability
    front_share: float = 0.0  # share of rows masked as in left-to-right decoding
    normalise: str = "tokens"  # average the loss over tokens or over rows

    device: str = "auto"  # cuda, mps, cpu or auto
    compile: bool | None = None  # compile the model; by default on CUDA only
    workers: int | None = None  # data processes; by default cores - 2; 0: none
    save_every: int = 2000  # steps between saved states
    log_every: int = 20  # steps between records in log.jsonl
    export: str = "best"  # weights to export: ema, raw, or the best of both
    quiet: bool = False  # print no progress

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.minutes is None):
            raise OptionError("Give either steps or minutes, not both.")
        if self.steps is not None:
            check_int("steps", self.steps, 1)
        if self.minutes is not None:
            check_float("minutes", self.minutes, 0.01)
        if self.init is not None and self.resume:
            raise OptionError("init starts a new run and resume continues one; give one of them.")
        for name in ("width", "layers", "heads", "mlp_width", "save_every", "log_every"):
            check_int(name, getattr(self, name), 1)
        check_int("max_length", self.max_length, self.data.buckets[-1])
        if self.width % (2 * self.heads):
            raise OptionError(
                f"width {self.width} must be a multiple of twice the heads, {2 * self.heads}."
            )
        self._check_rates()
        check_choice("normalise", self.normalise, ("tokens", "rows"))
        check_choice("export", self.export, EXPORTS)
        if self.export == "ema" and not self.ema:
            raise OptionError("export='ema' needs an ema above 0.")
        if self.workers is not None:
            check_int("workers", self.workers, 0, 256)

    def _check_rates(self) -> None:
        check_choice("optimizer", self.optimizer, OPTIMIZERS)
        check_float("lr", self.lr, 1e-8, 1.0)
        if self.matrix_lr is not None:
            check_float("matrix_lr", self.matrix_lr, 1e-8, 1.0)
        check_float("weight_decay", self.weight_decay, 0.0, 10.0)
        check_float("clip", self.clip, 1e-8)
        check_float("ema", self.ema, 0.0, 0.999999)
        check_int("warmup", self.warmup, 0)
        check_float("decay_fraction", self.decay_fraction, 0.0, 1.0)
        check_float("eps", self.eps, 1e-6, 0.5)
        check_float("front_share", self.front_share, 0.0, 1.0)

    @property
    def data_workers(self) -> int:
        """The number of data processes."""
        if self.workers is not None:
            return self.workers
        return max(1, (os.cpu_count() or 1) - 2)

    def resume_settings(self) -> dict[str, Any]:
        """Return the settings that a resumed run must share with the run it continues."""
        shape = ("width", "layers", "heads", "mlp_width", "optimizer")
        fixed = {name: getattr(self, name) for name in shape} | {"average": self.ema > 0}
        if self.steps is not None:
            # A run of fixed steps must give the result of an uninterrupted run. A timed run cannot.
            fixed |= {"eps": self.eps, "front_share": self.front_share}
            fixed |= {"normalise": self.normalise, "ema": self.ema}
            fixed |= asdict(self.data)
            mixture = DEFAULT_MIXTURE if self.data.mixture is None else self.data.mixture
            fixed |= {"mixture": dict(mixture), "buckets": list(self.data.buckets)}
            # The files may have moved.
            del fixed["tokenizer"], fixed["text"]
        return fixed
