"""The configuration of a training run, validated on creation."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

from wavefront.core.errors import OptionError, check_choice, check_float, check_int
from wavefront.tasks import DEFAULT_MIXTURE
from wavefront.train.row_layout import MIN_CANVAS

# 304 rather than 320, so that answers near MAX_CANVAS fit after prompts of 48 tokens or more.
BUCKETS = (96, 128, 192, 256, 304, 448)
ROW_BUCKETS = (128, 192, 256, 320, 416, 512, 640, 768)
OPTIMIZERS = ("adamw", "muon")
EXPORTS = ("best", "ema", "raw")


@dataclass(frozen=True, kw_only=True)
class BatchConfig:
    """The settings of batches that do not depend on where the rows come from."""

    tokenizer: Path  # directory with tokenizer.json
    seed: int = 0  # random seed of the data, the masks and the initial weights
    tokens_per_step: int = 131_072  # tokens per step: prompts, answers and padding
    buckets: tuple[int, ...] = BUCKETS  # row lengths; all rows of a step have the same length
    group: int = 16  # number of steps whose data is prepared together

    def __post_init__(self) -> None:
        check_int("seed", self.seed, 0, high=(1 << 31) - 1)
        check_int("group", self.group, 1, high=1024)
        if not self.buckets or list(self.buckets) != sorted(set(self.buckets)):
            raise OptionError(f"buckets must be distinct and ascending, not {self.buckets}.")
        for length in self.buckets:
            check_int("a bucket", length, MIN_CANVAS, high=4096)
        check_int("tokens_per_step", self.tokens_per_step, self.buckets[-1])

    def rows(self, length: int) -> int:
        """Return the rows of a step in this bucket: a multiple of 8 if there are at least 8."""
        count = self.tokens_per_step // length
        return count - count % 8 if count >= 8 else count

    def resume_settings(self) -> dict[str, Any]:
        """Return what a resumed run of fixed steps must share; files may have moved."""
        kept = {name: value for name, value in asdict(self).items() if not isinstance(value, Path)}
        return kept | {"buckets": list(self.buckets)}

    def held_out(self, tokens: int, batches: int) -> Self:
        """Return the settings of held-out batches: fewer tokens and fewer batches."""
        return replace(self, tokens_per_step=max(self.buckets[-1], tokens), group=batches)


@dataclass(frozen=True, kw_only=True)
class DataConfig(BatchConfig):
    """The settings that decide which rows each step has. They fix every row of a run."""

    mixture: Mapping[str, float] | None = None  # weights such as gsm=18,code=16; default: all tasks
    small_bias: float = 1.0  # a row gets a bucket of length L with weight L ** -small_bias
    text: Path | None = None  # plain text for pre-training: a file, or "english" (WikiText-2)
    text_share: float = 0.0  # share of rows that are plain text

    def __post_init__(self) -> None:
        super().__post_init__()
        check_float("small_bias", self.small_bias, 0.0, high=16.0)
        check_float("text_share", self.text_share, 0.0, high=1.0)
        if (self.text is None) != (self.text_share == 0.0):
            raise OptionError("text and text_share go together; give a file and a share above 0.")
        if self.mixture is not None and not any(weight > 0 for weight in self.mixture.values()):
            raise OptionError("mixture must give at least one task a weight above 0.")

    def resume_settings(self) -> dict[str, Any]:
        """Return what a resumed run of fixed steps must share."""
        mixture = DEFAULT_MIXTURE if self.mixture is None else self.mixture
        kept = super().resume_settings() | {"mixture": dict(mixture)}
        kept.pop("text", None)
        return kept

    def held_out(self, tokens: int, batches: int) -> Self:
        """Return the settings of held-out batches, without plain text."""
        return replace(super().held_out(tokens, batches), text=None, text_share=0.0)


@dataclass(frozen=True, kw_only=True)
class RowConfig(BatchConfig):
    """Batches of stored rows, which `wavefront.train.rows` writes."""

    rows_path: Path  # directory of the rows
    buckets: tuple[int, ...] = ROW_BUCKETS  # row lengths; all rows of a step have the same length
    bucket_weights: tuple[float, ...] = ()  # share of the rows in each bucket; default: equal
    prefix: tuple[int, int] = (1, 64)  # range of the visible prefix, in tokens, without a prompt

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bucket_weights and len(self.bucket_weights) != len(self.buckets):
            raise OptionError("bucket_weights must have one weight for every bucket.")
        for weight in self.bucket_weights:
            check_float("a bucket weight", weight, 0.0)
        if not 1 <= self.prefix[0] <= self.prefix[-1] or len(self.prefix) != 2:
            raise OptionError(f"prefix must be a range such as 1,64, not {self.prefix}.")


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """A training run.

    Its length is `steps` (exact, resumes bit for bit), or as many steps as fit into
    `train_minutes`, or `minutes` of this command. `stop_after` cuts a run into several commands
    with one schedule.
    """

    out: Path  # directory of the run: state.pt, log.jsonl, model/
    data: BatchConfig
    steps: int | None = None  # total number of steps, including those before a resume
    minutes: float | None = None  # minutes that this command runs, including compilation
    train_minutes: float | None = None  # choose the number of steps so that training takes
    # this many minutes, estimated from the first steps
    stop_after: float | None = None  # minutes until this command saves the state and stops
    init: Path | None = None  # checkpoint with the initial weights; default: random
    resume: bool = False  # continue from state.pt if it exists

    width: int = 384  # size of the hidden states
    layers: int = 10  # number of transformer blocks
    heads: int = 6  # number of attention heads
    mlp_width: int = 1024  # size of each block's inner layer
    max_length: int = 1024  # maximum length in the checkpoint's config

    optimizer: str = "adamw"  # optimiser: adamw, or muon for the matrices
    lr: float = 2e-3  # learning rate between warm-up and decay
    matrix_lr: float | None = None  # learning rate of Muon's matrices; default: lr
    weight_decay: float = 0.05  # weight decay of the matrices
    clip: float = 1.0  # maximum norm of the gradient
    ema: float = 0.999  # decay of the averaged weights; 0 turns averaging off
    warmup: int = 200  # number of warm-up steps
    decay_fraction: float = 0.3  # final share of the run in which the rate decays; 0: none
    eps: float = 1e-3  # minimum masking probability
    front_share: float = 0.0  # share of rows masked as in left-to-right decoding
    normalise: str = "tokens"  # average the loss over tokens or over rows

    device: str = "auto"  # device: cuda, mps, cpu or auto
    compile: bool | None = None  # compile the model; default: on CUDA only
    workers: int | None = None  # number of processes that prepare data; default: cores - 2; 0: none
    save_every: int = 2000  # steps between saved states; 0: none, so the run cannot be resumed
    log_every: int = 20  # steps between records in log.jsonl
    eval_every: int = 0  # steps between measurements of the held-out loss; 0: only at the end
    embeddings: bool = True  # train the embedding and the output head; otherwise only the mask
    # token's row
    export: str = "best"  # weights to export: ema, raw, or best (the better of the two)
    quiet: bool = False  # print no progress

    def __post_init__(self) -> None:
        if self.steps is None and self.minutes is None and self.train_minutes is None:
            raise OptionError("Give the length of training: steps, train_minutes or minutes.")
        if self.steps is not None and self.minutes is not None:
            raise OptionError("Give either steps or minutes, not both.")
        if self.train_minutes is not None and (self.steps or self.minutes):
            raise OptionError("train_minutes plans the steps itself; leave out steps and minutes.")
        if self.steps is not None:
            check_int("steps", self.steps, 1)
        for name in ("minutes", "train_minutes", "stop_after"):
            if getattr(self, name) is not None:
                check_float(name, getattr(self, name), 0.01)
        check_int("eval_every", self.eval_every, 0)
        check_int("save_every", self.save_every, 0)
        if self.init is not None and self.resume:
            raise OptionError("init starts a new run and resume continues one; give one of them.")
        for name in ("width", "layers", "heads", "mlp_width", "log_every"):
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
            check_int("workers", self.workers, 0, high=256)

    def _check_rates(self) -> None:
        check_choice("optimizer", self.optimizer, OPTIMIZERS)
        check_float("lr", self.lr, 1e-8, high=1.0)
        if self.matrix_lr is not None:
            check_float("matrix_lr", self.matrix_lr, 1e-8, high=1.0)
        check_float("weight_decay", self.weight_decay, 0.0, high=10.0)
        check_float("clip", self.clip, 1e-8)
        check_float("ema", self.ema, 0.0, high=0.999999)
        check_int("warmup", self.warmup, 0)
        check_float("decay_fraction", self.decay_fraction, 0.0, high=1.0)
        check_float("eps", self.eps, 1e-6, high=0.5)
        check_float("front_share", self.front_share, 0.0, high=1.0)

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
        if self.steps is not None or self.train_minutes is not None:
            # A run of fixed steps must give the result of an uninterrupted run. A timed run cannot.
            fixed |= {"eps": self.eps, "front_share": self.front_share}
            fixed |= {"normalise": self.normalise, "ema": self.ema}
            fixed |= self.data.resume_settings()
        return fixed


@dataclass(frozen=True, kw_only=True)
class AdaptConfig:
    """What `adapt` does before it trains: the original, its vocabulary and the data."""

    original: Path  # autoregressive checkpoint: directory, Hub id, GGUF or llama2.c file
    out: Path  # directory of the run: original/, rows/, state.pt, log.jsonl, model/
    start_from: Path | None = None  # weights of an earlier adaptation; default: the original's
    name: str = "adapted"  # name of the result in its model card
    notice: str = ""  # licence of the original, written to LICENSE next to the model
    vocabulary: int | None = None  # prune to this many tokens; default: keep all
    vocabulary_texts: int = 512  # texts used to find the tokens that the original needs
    texts_from: Path | None = None  # train on a text or JSONL file; default: texts that the
    # original writes
    longest_answer: int | None = None  # leave out pairs with a longer answer, in tokens with the
    # end token; default: keep all
    exclude: str = ""  # benchmarks or files to keep out of training, such as gsm8k,mbpp
    texts: int = 100_000  # texts that the original writes
    text_length: int | None = None  # maximum tokens of a written text; default: up to 1024
    write_batch: int = 4096  # texts written at once
    write_dtype: str = "float32"  # precision in which the original writes
    temperature: float = 1.0  # temperature at which the original writes
    filters: str = "long_enough"  # filters that a text must pass: finished, long_enough, varied
    held_out: int = 1024  # number of held-out prompts
    held_out_texts: int = 8192  # texts to generate and choose the held-out prompts from
    judge: bool = True  # save an 8-bit copy of the original next to the model, to score texts
    prompt_tokens: int = 24  # tokens of a held-out prompt, without the BOS token
    minutes: float | None = None  # stop after this many minutes; rerun the command to continue
    stage: str = "all"  # last stage to run: original, rows, or all for every stage

    def __post_init__(self) -> None:
        for name in ("vocabulary_texts", "texts", "write_batch", "held_out", "held_out_texts"):
            check_int(name, getattr(self, name), 1)
        check_int("prompt_tokens", self.prompt_tokens, 1)
        for name in ("vocabulary", "text_length", "longest_answer"):
            if getattr(self, name) is not None:
                check_int(name, getattr(self, name), 2)
        check_float("temperature", self.temperature, 0.0, high=10.0)
        check_choice("stage", self.stage, ("all", "original", "rows"))
        if self.minutes is not None:
            check_float("minutes", self.minutes, 0.01)

    def fixed_settings(self) -> tuple[str, ...]:
        """Return the names of the settings that decide the texts, for a run that is continued."""
        free = {"original", "out", "name", "notice", "judge", "minutes", "stage", "texts_from"}
        free |= {"start_from"}
        return tuple(sorted(self.__dataclass_fields__.keys() - free))
