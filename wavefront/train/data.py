"""Training data: groups of batches, each a pure function of the seed and the group's number.

**Groups.** All rows of a step have one length, but examples come in all lengths. So `make_group`
draws examples until they fill `group` batches, and sorts them into batches by length. Step s uses
batch s % group of group s // group.

**Fairness.** The number of batches per bucket is rounded at random with the right mean (systematic
sampling). A bucket with an uneven number of rows repeats or drops a few. So rare lengths are
trained on exactly as often as they occur. Dropping unfinished batches would not achieve this.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, islice
from pathlib import Path
from random import Random
from typing import NamedTuple, Protocol

import numpy as np

from wavefront.core.errors import OptionError
from wavefront.tasks import DEFAULT_MIXTURE, load, stream
from wavefront.tasks.base import Split
from wavefront.train.config import DataConfig
from wavefront.train.row_layout import Pair, RowEncoder, choose_bucket, write_row

GROUP_SPAN = 1 << 20  # examples reserved for a group in the task stream, more than it uses
ENCODE_BATCH = 256  # examples encoded at once
MAX_EMPTY_DRAWS = 16  # draws without a fitting example before an error


class TrainingBatch(NamedTuple):
    """One step's rows, all of one length."""

    tokens: np.ndarray  # (B, L) uint16 or uint32
    start: np.ndarray  # (B,) int32: where each row's maskable positions begin
    task: np.ndarray  # (B,) int64: index into `BatchSource.tasks`


@dataclass
class Bucket:
    """The examples of a group that have one row length."""

    length: int
    rows: int
    pairs: list[Pair]

    @property
    def batches(self) -> float:
        """How many batches the examples fill."""
        return len(self.pairs) / self.rows


class TrainingSource(Protocol):
    """Makes groups of batches. The same config gives the same groups in every process."""

    tasks: list[str]  # the names that `TrainingBatch.task` counts
    end_id: int  # the token that fills a row after its text

    def make_group(self, group: int) -> list[TrainingBatch]:
        """Make the batches of steps group * n … group * n + n - 1, where n is `config.group`."""
        ...


class BatchSource:
    """Make groups of batches of task examples."""

    def __init__(self, config: DataConfig, split: Split = "train") -> None:
        self.config = config
        self.split: Split = split
        self.mixture = dict(DEFAULT_MIXTURE if config.mixture is None else config.mixture)
        # Keyed by the task name in sample ids. An unknown task raises here.
        self._number = {load(task).name: index for index, task in enumerate(self.mixture)}
        self.encoder = RowEncoder(config.tokenizer)
        if self.encoder.vocab_size > 1 << 16:
            raise OptionError("Training supports vocabularies of at most 65536 entries.")
        self.tasks = [*self.mixture, "text"]
        self.end_id = self.encoder.special.eos
        self.text = self._read_text(config.text)

    def _read_text(self, path: Path | None) -> np.ndarray:
        if path is None:
            return np.zeros(0, np.uint16)
        text = np.load(path, mmap_mode="r")
        if len(text) <= self.config.buckets[-1]:
            raise OptionError(f"{path} has too little text to fill one row.")
        return text

    def pairs(self, group: int) -> Iterator[list[Pair]]:
        """Yield a group's examples in order, a few at a time, endlessly."""
        config = self.config
        samples = stream(self.mixture, seed=config.seed, split=self.split, start=group * GROUP_SPAN)
        rng = Random(f"text {config.seed} {group}")
        while True:
            plain = sum(rng.random() < config.text_share for _ in range(ENCODE_BATCH))
            chunk = list(islice(samples, ENCODE_BATCH - plain))
            tasks = [self._number[sample.id.partition("/")[0]] for sample in chunk]
            pairs = self.encoder.pairs([(item.prompt, item.answer) for item in chunk], tasks)
            yield pairs + [Pair([], [], len(self.mixture))] * plain

    def make_group(self, group: int) -> list[TrainingBatch]:
        """Make the batches of steps group * n … group * n + n - 1, where n is `config.group`."""
        rng = Random(f"group {self.config.seed} {group}")
        buckets = self._fill_buckets(group, rng)
        counts = allocate_batches(
            [item.batches for item in buckets], self.config.group, rng.random()
        )
        batches: list[TrainingBatch] = []
        for item, count in zip(buckets, counts, strict=True):
            rng.shuffle(item.pairs)
            rows = [item.pairs[row % len(item.pairs)] for row in range(count * item.rows)]
            for first in range(0, len(rows), item.rows):
                batches.append(self._batch(rows[first : first + item.rows], item.length, rng))
        rng.shuffle(batches)
        return batches

    def _fill_buckets(self, group: int, rng: Random) -> list[Bucket]:
        """Draw examples for a group of batches, sorted by row length."""
        config = self.config
        buckets = {length: Bucket(length, config.rows(length), []) for length in config.buckets}
        for turn, pairs in enumerate(self.pairs(group)):
            for pair in pairs:
                length = choose_bucket(pair, config.buckets, bias=config.small_bias, rng=rng)
                if length is not None:
                    buckets[length].pairs.append(pair)
            filled = sum(item.batches for item in buckets.values())
            if filled >= config.group:
                break
            if turn >= MAX_EMPTY_DRAWS and not filled:
                raise OptionError(f"No example fits the buckets {config.buckets}; add longer ones.")
        return list(buckets.values())

    def _batch(self, pairs: list[Pair], length: int, rng: Random) -> TrainingBatch:
        tokens = np.empty((len(pairs), length), np.uint16)
        start = np.zeros(len(pairs), np.int32)
        for row, pair in enumerate(pairs):
            if pair.answer:
                start[row] = write_row(tokens[row], pair, self.encoder.special.eos)
            else:
                begin = int(rng.random() * (len(self.text) - length))
                tokens[row] = self.text[begin : begin + length]
        return TrainingBatch(tokens, start, np.array([pair.task for pair in pairs], np.int64))


def allocate_batches(weights: list[float], total: int, point: float) -> list[int]:
    """Divide `total` batches in proportion to the weights, rounded up or down at random.

    `point` is one uniform draw. The mean over it is exactly proportional to the weights.
    """
    bounds = list(accumulate(weights))
    counts = [0] * len(weights)
    for index in range(total):
        value = (index + point) / total * bounds[-1]
        counts[min(bisect_right(bounds, value), len(weights) - 1)] += 1
    return counts
