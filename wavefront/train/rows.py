"""Stored rows of token ids, and batches made of them.

A row is a whole text. Its first tokens stay visible: its prompt, or a random prefix if it has no
prompt. In a bucket that is longer than the text, end tokens fill the rest. A text without an end,
which was cut at the original's context, is used only in buckets that it fills. A prompt with a
finished answer is used only in buckets that hold both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from wavefront.core.errors import OptionError, RunError
from wavefront.storage.write_file import replacing
from wavefront.tasks.base import Split
from wavefront.train.config import BatchConfig, DataConfig, RowConfig
from wavefront.train.data import BatchSource, TrainingBatch, TrainingSource, allocate_batches

NAMES = ("tokens", "offsets", "prompts")


class Rows:
    """Texts as ids: one array of tokens, where each row begins, and how long its prompt is."""

    def __init__(self, tokens: np.ndarray, offsets: np.ndarray, prompts: np.ndarray) -> None:
        """Wrap arrays: tokens (T,), offsets (n + 1,), prompts (n,); 0 stands for no prompt."""
        self.tokens, self.offsets, self.prompts = tokens, offsets, prompts

    @classmethod
    def pack(
        cls, rows: Sequence[Sequence[int] | np.ndarray], prompts: Sequence[int] | None = None
    ) -> Rows:
        """Pack rows of ids, each with its end token if it has one."""
        sizes = np.array([len(row) for row in rows], np.int64)
        offsets = np.concatenate([np.zeros(1, np.int64), sizes.cumsum()])
        empty = np.zeros(0, np.uint32)
        flat = np.concatenate([empty, *(np.asarray(row, np.uint32) for row in rows)])
        starts = np.zeros(len(rows), np.int32) if prompts is None else np.array(prompts, np.int32)
        small = flat.max(initial=0) < 1 << 16
        return cls(flat.astype(np.uint16) if small else flat, offsets, starts)

    @classmethod
    def load(cls, directory: Path) -> Rows:
        """Map stored rows into memory."""
        try:
            arrays = [np.load(directory / f"{name}.npy", mmap_mode="r") for name in NAMES]
        except (OSError, ValueError) as error:
            raise OptionError(f"{directory} does not hold rows for training: {error}.") from None
        return cls(arrays[0], np.array(arrays[1]), np.array(arrays[2]))

    @classmethod
    def join(cls, parts: Sequence[Rows]) -> Rows:
        """Return all rows of the parts in order."""
        sizes = np.concatenate([np.diff(part.offsets) for part in parts])
        offsets = np.concatenate([np.zeros(1, np.int64), sizes.cumsum()])
        tokens = np.concatenate([part.tokens for part in parts])
        return cls(tokens, offsets, np.concatenate([part.prompts for part in parts]))

    def save(self, directory: Path) -> None:
        """Write the rows. The last file appears only when the others are complete.

        Raises:
            RunError: A file cannot be written, for example because the disk is full.
        """
        directory.mkdir(parents=True, exist_ok=True)
        for name in NAMES:
            file = directory / f"{name}.npy"
            with replacing(file, error=RunError) as part, part.open("wb") as out:
                np.save(out, getattr(self, name))

    @staticmethod
    def exist(directory: Path) -> bool:
        """Return whether the directory holds complete rows."""
        return (directory / f"{NAMES[-1]}.npy").is_file()

    def __len__(self) -> int:
        return len(self.prompts)

    def __getitem__(self, index: int) -> np.ndarray:
        return self.tokens[self.offsets[index] : self.offsets[index + 1]]

    def __iter__(self) -> Iterator[np.ndarray]:
        return (self[index] for index in range(len(self)))

    def take(self, keep: np.ndarray) -> Rows:
        """Return the rows at these indices."""
        rows = [self[index] for index in keep.tolist()]
        sizes = np.array([len(row) for row in rows], np.int64)
        offsets = np.concatenate([np.zeros(1, np.int64), sizes.cumsum()])
        tokens = np.concatenate([np.zeros(0, self.tokens.dtype), *rows])
        return Rows(tokens, offsets, self.prompts[keep])


class RowSource:
    """Make groups of batches of stored rows. The same config gives the same groups everywhere."""

    tasks = ["rows"]  # noqa: RUF012

    def __init__(self, config: RowConfig, split: Split = "train") -> None:
        self.config = config
        self.rows = Rows.load(config.rows_path / split)
        if not len(self.rows):
            raise OptionError(f"{config.rows_path / split} has no rows to train on.")
        self.end_id = int(np.load(config.rows_path / "end.npy"))
        offsets = self.rows.offsets
        self._ended = np.asarray(self.rows.tokens[offsets[1:] - 1]) == self.end_id
        self._sizes = np.diff(offsets)
        weights = config.bucket_weights or (1.0,) * len(config.buckets)
        self._fitting = [self._fit(length) for length in config.buckets]
        shares = [
            weight / config.rows(length) if len(fitting) else 0.0
            for weight, length, fitting in zip(weights, config.buckets, self._fitting, strict=True)
        ]
        if not sum(shares):
            raise OptionError(f"No text fits the buckets {config.buckets}; add other ones.")
        self._shares = shares

    def _fit(self, length: int) -> np.ndarray:
        """Return the rows that fit a bucket: those with an end, and those that fill it.

        A prompt must leave room for an answer, and an answer that has an end is not cut.
        """
        whole = (self.rows.prompts == 0) | (self._sizes <= length)
        fits = np.where(self._ended, whole, self._sizes >= length)
        return np.flatnonzero(fits & (self.rows.prompts < length))

    def make_group(self, group: int) -> list[TrainingBatch]:
        """Make the batches of steps group * n … group * n + n - 1, where n is `config.group`."""
        config = self.config
        rng = np.random.default_rng([config.seed, group])
        counts = allocate_batches(self._shares, config.group, rng.random())
        batches = [
            self._batch(length, fitting, rng)
            for length, fitting, count in zip(config.buckets, self._fitting, counts, strict=True)
            for _ in range(count)
        ]
        order = rng.permutation(len(batches))
        return [batches[index] for index in order]

    def _batch(self, length: int, fitting: np.ndarray, rng: np.random.Generator) -> TrainingBatch:
        count = self.config.rows(length)
        chosen = fitting[rng.integers(len(fitting), size=count)]
        tokens = np.full((count, length), self.end_id, self.rows.tokens.dtype)
        for row, index in enumerate(chosen.tolist()):
            text = self.rows[index][:length]
            tokens[row, : len(text)] = text
        low, high = self.config.prefix
        prefix = rng.integers(low, high + 1, size=count)
        # At least the last token of a text is masked.
        prefix = np.minimum(prefix, np.minimum(self._sizes[chosen], length) - 1).clip(0)
        prompts = self.rows.prompts[chosen]
        start = np.where(prompts > 0, prompts, prefix).astype(np.int32)
        return TrainingBatch(tokens, start, np.zeros(count, np.int64))


def open_source(config: BatchConfig, split: Split = "train") -> TrainingSource:
    """Return the source of batches that a config describes."""
    if isinstance(config, RowConfig):
        return RowSource(config, split)
    if isinstance(config, DataConfig):
        return BatchSource(config, split)
    raise TypeError(f"{type(config).__name__} describes no source of batches.")
