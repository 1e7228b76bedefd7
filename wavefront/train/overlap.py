"""Find training texts that share a run of 13 tokens with texts to keep out of training."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from wavefront.train.rows import Rows

NGRAM = 13
CHUNK = 1 << 20  # tokens hashed at once
# A run in more than this share of the distinct texts, and in more than so many, is a template.
TEMPLATE_SHARE, TEMPLATE_TEXTS = 0.01, 4


def ngram_hashes(rows: Rows, n: int = NGRAM) -> tuple[np.ndarray, np.ndarray]:
    """Return the hash of every run of `n` tokens inside a row, and the number of its row."""
    return _runs(rows, n)[1:]


def _runs(rows: Rows, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the first token, the hash and the row of every run of `n` tokens inside a row."""
    empty = (np.zeros(0, np.int64), np.zeros(0, np.uint64), np.zeros(0, np.int64))
    parts = [empty, *_hashes(rows, range(len(rows.tokens)), n)]
    starts, hashes, numbers = (np.concatenate(column) for column in zip(*parts, strict=True))
    return starts, hashes, numbers


def overlapping_rows(
    rows: Rows, unseen: Rows, n: int = NGRAM, *, templates: np.ndarray | None = None
) -> np.ndarray:
    """Return (len(rows),) bool: which rows share a run of `n` tokens with any unseen text.

    Tokens of a template, such as the instructions of a prompt, do not count. They belong to a run
    that occurs in more than 1 % of the distinct unseen texts, and in more than four of them, or to
    one of `templates`.
    """
    common = template_runs(unseen, n)
    if templates is not None:
        common = np.union1d(common, templates)
    wanted = np.unique(_telling_runs(unseen, common, n)[0])
    found = np.zeros(len(rows), bool)
    for _, numbers in _matches(rows, wanted, n):
        found[numbers] = True
    return found


def template_runs(texts: Rows, n: int = NGRAM, *, share: float = TEMPLATE_SHARE) -> np.ndarray:
    """Return the hashes of the runs in more than this share of the distinct texts, and over four.

    Copies of one text are one text, so what they share is no template.
    """
    seen: dict[bytes, int] = {}
    distinct = np.array([seen.setdefault(row.tobytes(), len(seen)) for row in texts], np.uint64)
    hashes, numbers = ngram_hashes(texts, n)
    # Each run once per text.
    pairs = np.unique(np.stack((hashes, distinct[numbers])), axis=1)
    runs, counts = np.unique(pairs[0], return_counts=True)
    return runs[counts > max(TEMPLATE_TEXTS, share * len(seen))]


def _telling_runs(texts: Rows, templates: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return hash and row of the runs that have no token of a template."""
    starts, hashes, numbers = _runs(texts, n)
    first = starts[np.isin(hashes, templates)]
    template = np.zeros(len(texts.tokens) + 1, np.int64)
    for offset in range(n):
        template[first + offset] = 1
    before = np.concatenate([[0], template.cumsum()])  # template tokens before each token
    telling = before[starts + n] == before[starts]
    return hashes[telling], numbers[telling]


class Shared(NamedTuple):
    """What candidates for held-out texts share with other texts, one number for each candidate."""

    rows: np.ndarray  # other rows that share a run with it
    runs: np.ndarray  # its runs without a token of a template; without any, nothing is comparable


def shared_rows(candidates: Rows, rows: Rows, n: int = NGRAM, *, templates: np.ndarray) -> Shared:
    """Return with how many other rows each candidate overlaps, for candidates out of `rows`.

    A candidate is one of the rows, or the beginning of one.
    """
    hashes, numbers = _telling_runs(candidates, templates, n)
    empty = (np.zeros(0, np.uint64), np.zeros(0, np.int64))
    parts = [empty, *_matches(rows, np.unique(hashes), n)]
    known, places = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.argsort(known, kind="stable")
    known, places = known[order], places[order]
    first, last = (np.searchsorted(known, hashes, side) for side in ("left", "right"))
    limits = np.searchsorted(numbers, np.arange(len(candidates) + 1))
    counts = np.zeros(len(candidates), np.int64)
    for candidate, (begin, end) in enumerate(pairwise(limits.tolist())):
        spans = zip(first[begin:end].tolist(), last[begin:end].tolist(), strict=True)
        found = {place for low, high in spans for place in places[low:high].tolist()}
        counts[candidate] = max(0, len(found) - 1)  # without its own row
    return Shared(counts, np.diff(limits))


def clean_rows(candidates: Rows, rows: Rows, n: int = NGRAM) -> np.ndarray:
    """Return (len(candidates),) bool: which candidates share no run of `n` tokens with `rows`."""
    hashes, numbers = ngram_hashes(candidates, n)
    seen = [matched for matched, _ in _matches(rows, np.unique(hashes), n)]
    common = np.isin(hashes, np.unique(np.concatenate([np.zeros(0, np.uint64), *seen])))
    clean = np.ones(len(candidates), bool)
    clean[numbers[common]] = False
    return clean


def _matches(rows: Rows, wanted: np.ndarray, n: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the hashes in `wanted` (sorted) that occur in `rows`, and the rows they occur in."""
    if not len(wanted):
        return

    def search(first: int) -> list[tuple[np.ndarray, np.ndarray]]:
        found = []
        for _, hashes, numbers in _hashes(rows, range(first, first + CHUNK), n):
            place = np.searchsorted(wanted, hashes).clip(max=len(wanted) - 1)
            hit = wanted[place] == hashes
            found.append((hashes[hit], numbers[hit]))
        return found

    with ThreadPoolExecutor() as pool:
        for found in pool.map(search, range(0, len(rows.tokens), CHUNK)):
            yield from found


def _hashes(
    rows: Rows, starts: range, n: int
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield the runs that begin at these tokens: their first tokens, hashes and rows."""
    multipliers = _mix(np.arange(1, n + 1, dtype=np.uint64)) | np.uint64(1)
    for begin in range(starts.start, min(starts.stop, len(rows.tokens)), CHUNK):
        count = min(begin + CHUNK, starts.stop, len(rows.tokens) - n + 1) - begin
        if count <= 0:
            return
        mixed = _mix(rows.tokens[begin : begin + count + n - 1].astype(np.uint64))
        total = np.zeros(count, np.uint64)
        for index in range(n):
            total += mixed[index : index + count] * multipliers[index]
        start = np.arange(begin, begin + count)
        number = np.searchsorted(rows.offsets, start, side="right") - 1
        inside = start + n <= rows.offsets[number + 1]
        yield start[inside], total[inside], number[inside]


def _mix(values: np.ndarray) -> np.ndarray:
    """Map uint64 to uint64, a bijection that mixes every bit (splitmix64)."""
    mixed = values + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
