"""One row of a trace as numpy arrays over answer positions, for figures."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from torch import Tensor

from wavefront.traces.trace import Trace


class AnswerArrays(NamedTuple):
    """S steps of N answer positions. All arrays are (S, N) unless noted."""

    known: np.ndarray  # bool: decided before the step
    candidates: np.ndarray  # bool: the positions that the strategy offered
    commit: np.ndarray  # bool: decided by the step
    chance: np.ndarray  # float: probability of the proposal; NaN if none was read
    tokens: np.ndarray  # int: of the canvas before the step
    last: np.ndarray  # (N,) int: of the canvas after the last step


def read_answer(trace: Trace, row: int) -> AnswerArrays:
    """Read the answer of one row."""
    at = (trace.first.slot[row] >= 0).nonzero()[:, 0]
    seen = list(trace.before())
    last = [*trace.replay()][-1].tokens if len(trace) else trace.first.tokens

    def steps(boards: Tensor) -> np.ndarray:
        return boards[:, row][:, at].numpy()

    known = np.array([canvas.known[row, at].numpy() for canvas in seen], dtype=bool)
    chance = np.exp(steps(trace.logp).astype(float))
    read = ~known if trace.full else steps(trace.commit)
    return AnswerArrays(
        known=known,
        candidates=steps(trace.candidates),
        commit=steps(trace.commit),
        chance=np.where(read, chance, np.nan),
        tokens=np.array([canvas.tokens[row, at].numpy() for canvas in seen]),
        last=last[row, at].numpy(),
    )


def answer_length(trace: Trace, seen: AnswerArrays) -> int:
    """Return how many positions the answer has before its first stop token, or all."""
    stops = trace.about.get("options", {}).get("stop_ids", [])
    ends = np.isin(seen.last, stops).nonzero()[0]
    return int(ends[0]) if len(ends) else len(seen.last)
