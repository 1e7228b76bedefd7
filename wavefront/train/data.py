"""Training data: groups of batches, each a pure function of the seed and the group's number.

**Groups.** Rows of one step share a length, and examples come in all lengths, so batches are sorted
out of many examples at once: `make_group` draws examples until they are worth `group` batches and
deals them to that many. Step s is batch s % group of group s // group; nothing else decides it.

**Fairness.** How many batches each bucket gets is rounded at random with the right mean (systematic
sampling), and a bucket whose rows do not come out even repeats or drops a few. So rare lengths are
trained on exactly as often as they occur, which dropping unfinished batches would not do.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, islice
from pathlib import Path
from random import Random
from typing import NamedTuple

import numpy as np

from wavefront.core.errors import OptionError
from wavefront.tasks import DEFAULT_MIXTURE, load, stream
from wavefront.tasks.base import Split
from wavefront.train.config import DataConfig
from wavefront.train.row_layout import Encoder, Pair, choose_bucket, write_row

SPAN = 1 << 20  # examples reserved for a group in the task stream; a group uses far fewer
DRAW = 256  # examples encoded at once
PATIENCE = 16  # fruitless draws before we say that nothing fits


class Batch(NamedTuple):
    """One step's rows, all of one length."""

    tokens: np.ndarray  # (B, L) uint16
    start: np.ndarray  # (B,) int32: where each row's maskable places begin
    task: np.ndarray  # (B,) int64: index into `Source.tasks`


@dataclass
class Bin:
    """The rows of a group that chose one bucket."""

    length: int
    rows: int
    pairs: list[Pair]

    @property
    def worth(self) -> float:
        """In batches."""
        return len(self.pairs) / self.rows


class Source:
    """Makes groups; the same config gives the same groups in every process."""

    def __init__(self, config: DataConfig, split: Split = "train") -> None:
        self.config = config
        self.split: Split = split
        self.mixture = dict(DEFAULT_MIXTURE if config.mixture is None else config.mixture)
        # By the name that samples carry in their ids; an unknown task is refused here.
        self._number = {load(task).name: index for index, task in enumerate(self.mixture)}
        self.encoder = Encoder(config.tokenizer)
        if self.encoder.vocab_size > 1 << 16:
            raise OptionError("training takes vocabularies of at most 65536 entries.")
        self.tasks = [*self.mixture, "text"]
        self.text = self._read_text(config.text)

    def _read_text(self, path: Path | None) -> np.ndarray:
        if path is None:
            return np.zeros(0, np.uint16)
        text = np.load(path, mmap_mode="r")
        if len(text) <= self.config.buckets[-1]:
            raise OptionError(f"{path} holds too little text to fill one row: give more.")
        return text

    def pairs(self, group: int) -> Iterator[list[Pair]]:
        """A group's examples in their order, some at a time, without end."""
        config = self.config
        samples = stream(self.mixture, seed=config.seed, split=self.split, start=group * SPAN)
        rng = Random(f"text {config.seed} {group}")
        while True:
            plain = sum(rng.random() < config.text_share for _ in range(DRAW))
            drawn = list(islice(samples, DRAW - plain))
            tasks = [self._number[sample.id.partition("/")[0]] for sample in drawn]
            pairs = self.encoder.pairs([(item.prompt, item.answer) for item in drawn], tasks)
            yield pairs + [Pair([], [], len(self.mixture))] * plain

    def make_group(self, group: int) -> list[Batch]:
        """The batches of steps group * n … group * n + n - 1, where n is `config.group`."""
        rng = Random(f"group {self.config.seed} {group}")
        bins = self._sort(group, rng)
        counts = share_out([item.worth for item in bins], self.config.group, rng.random())
        batches: list[Batch] = []
        for item, count in zip(bins, counts, strict=True):
            rng.shuffle(item.pairs)
            rows = [item.pairs[row % len(item.pairs)] for row in range(count * item.rows)]
            for first in range(0, len(rows), item.rows):
                batches.append(self._batch(rows[first : first + item.rows], item.length, rng))
        rng.shuffle(batches)
        return batches

    def _sort(self, group: int, rng: Random) -> list[Bin]:
        """Examples worth a group of batches, by bucket."""
        config = self.config
        bins = {length: Bin(length, config.rows(length), []) for length in config.buckets}
        for turn, pairs in enumerate(self.pairs(group)):
            for pair in pairs:
                length = choose_bucket(pair, config.buckets, config.small_bias, rng)
                if length is not None:
                    bins[length].pairs.append(pair)
            worth = sum(item.worth for item in bins.values())
            if worth >= config.group:
                break
            if turn >= PATIENCE and not worth:
                raise OptionError(f"No example fits the buckets {config.buckets}: add longer ones.")
        return list(bins.values())

    def _batch(self, pairs: list[Pair], length: int, rng: Random) -> Batch:
        tokens = np.empty((len(pairs), length), np.uint16)
        start = np.zeros(len(pairs), np.int32)
        for row, pair in enumerate(pairs):
            if pair.answer:
                start[row] = write_row(tokens[row], pair, self.encoder.special.eos)
            else:
                begin = int(rng.random() * (len(self.text) - length))
                tokens[row] = self.text[begin : begin + length]
        return Batch(tokens, start, np.array([pair.task for pair in pairs], np.int64))


def share_out(worth: list[float], total: int, point: float) -> list[int]:
    """How many of `total` batches each bin gets: its share, rounded up or down at random.

    `point` is one uniform draw. The mean over it is exactly each bin's share.
    """
    bounds = list(accumulate(worth))
    counts = [0] * len(worth)
    for index in range(total):
        place = (index + point) / total * bounds[-1]
        counts[min(bisect_right(bounds, place), len(worth) - 1)] += 1
    return counts
