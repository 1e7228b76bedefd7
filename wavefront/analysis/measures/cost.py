"""Cost: forward passes, computed positions, FLOPs, and tokens per forward pass.

FLOPs are counted from the architecture: two for every multiply-add of matrix products and of
attention. Norms, rotary embeddings, softmax and the sampler are left out, as in profilers. The
paper's bound on the number of weighed candidates is F x T.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from wavefront.analysis.measures._shared import (
    active_steps,
    budget,
    final_canvas,
    option,
    stop_ids_of,
    visible_positions,
)
from wavefront.core import spec
from wavefront.core.bounds import check_option
from wavefront.core.errors import OptionError, SpecError, check_float, check_int
from wavefront.core.state import Config, candidates, start
from wavefront.models.architecture import Architecture
from wavefront.traces.trace import Trace


class Flops(NamedTuple):
    """Floating-point operations, by where they are spent."""

    layers: int  # the matrices of all blocks
    attention: int  # scores and mixing
    head: int  # logits

    @property
    def total(self) -> int:
        return self.layers + self.attention + self.head

    def times(self, count: int) -> Flops:
        return Flops(*(count * part for part in self))


@dataclass(frozen=True)
class DecodeCost:
    """The cost of a batch. `visible` counts visible tokens, `places` all decided positions."""

    rows: int
    forwards: int  # forward passes of the batch, including surplus ones
    token_forwards: int  # computed positions with padding; guidance computes each twice
    visible: int
    places: int
    candidates: Tensor  # (B,) long: the number of candidates, summed over all steps
    bound: Tensor  # (B,) long: F x T, the paper's bound on it
    flops: Flops | None = None
    seconds: float | None = None

    @property
    def visible_per_forward(self) -> float:
        """Visible tokens per forward pass and row."""
        return _ratio(self.visible, self.forwards * self.rows)

    @property
    def places_per_forward(self) -> float:
        """Decided positions per forward pass and row."""
        return _ratio(self.places, self.forwards * self.rows)

    @property
    def visible_per_second(self) -> float | None:
        return None if self.seconds is None else _ratio(self.visible, self.seconds)

    @property
    def places_per_second(self) -> float | None:
        return None if self.seconds is None else _ratio(self.places, self.seconds)


def _ratio(count: float, of: float) -> float:
    return count / of if of else float("nan")


def measure(
    trace: Trace,
    model: Any = None,
    *,
    stop_ids: Sequence[int] | None = None,
    size: int = 8,
    seconds: float | None = None,
    read: int | None = None,
) -> DecodeCost:
    """Measure the cost of a decode: FLOPs if you pass its model, rates if you pass `seconds`.

    Args:
        trace: Any trace.
        model: The model or its architecture, to count FLOPs.
        stop_ids: The stop tokens; by default the stop tokens in the header.
        size: The F of the bound F x T, the same for every strategy that you compare.
        seconds: The wall time of the decode.
        read: How many positions of a row each forward pass read. By default what the header's
            strategy needs, or all positions to fill.
    """
    check_int("size", size, 1)
    if seconds is not None:
        check_float("seconds", seconds, 0)
    rows, length = trace.first.tokens.shape
    canvas = final_canvas(trace)
    boards = rows * (2 if option(trace, "cfg_scale") else 1) * _number(trace, "speculate")
    flops = None
    if model is not None:
        width = positions_read(trace) if read is None else read
        flops = forward_flops(model, length, read=width, rows=boards).times(trace.forwards)
    weighed = torch.where(active_steps(trace), trace.candidates.sum(-1), 0)
    return DecodeCost(
        rows=rows,
        forwards=trace.forwards,
        token_forwards=trace.forwards * boards * length,
        visible=int(visible_positions(trace, stop_ids_of(trace, stop_ids)).sum()),
        places=int((canvas.known & (canvas.slot >= 0)).sum()),
        candidates=weighed.sum(0),
        bound=size * budget(trace),
        flops=flops,
        seconds=seconds,
    )


def positions_read(trace: Trace) -> int:
    """Return how many positions of a row each forward pass read, from the options in the trace."""
    places = max(1, int((trace.first.slot >= 0).sum(-1).max()))
    text, steps = option(trace, "strategy"), _number(trace, "steps")
    if trace.full or option(trace, "fixed_budget") or _number(trace, "speculate") > 1:
        return places
    try:
        strategy = spec.resolve_builtin(text, "strategies") if option(trace, "steps") else None
    except SpecError:
        strategy = None
    if strategy is None:
        return places
    # As the engine plans it: the strategy's width, or the first candidates if they are more.
    count = trace.first.tokens.shape[0]
    config = Config(strategy=strategy)
    rows = start(trace.first, config, [steps] * count, seeds=[0] * count)
    guess = max(strategy.width(n, steps) for n in rows.length.tolist())
    return min(places, max(guess, int(candidates(config, rows).sum(-1).max())))


def _number(trace: Trace, name: str) -> int:
    """Return a count from the header, at least 1; 1 if it is missing or out of bounds."""
    try:
        check_option(name, option(trace, name))
    except OptionError:
        return 1
    return max(1, option(trace, name))


def forward_flops(model: Any, length: int, *, read: int | None = None, rows: int = 1) -> Flops:
    """Count the FLOPs of one forward pass over `rows` rows of `length` positions.

    `read` is how many positions per row are read (None: all). The last block computes keys and
    values everywhere, and the rest only at the positions that are read.
    """
    arch = getattr(model, "config", model)
    if not isinstance(arch, Architecture):
        raise OptionError(
            f"{type(model).__name__} has no architecture, so its FLOPs cannot be counted."
        )
    wanted = length if read is None else read
    check_int("read", wanted, 0)
    width, full = arch.width, arch.layers - 1
    project = 2 * width * (arch.heads + 2 * arch.kv_heads) * arch.head_dim  # of one position
    inner = arch.heads * arch.head_dim
    mix = [2 * (width * inner + arch.mlp_weights(layer)) for layer in range(arch.layers)]
    look = 4 * length * inner  # of one position: scores and weighted values
    return Flops(
        layers=arch.layers * length * project + length * sum(mix[:full]) + wanted * mix[full],
        attention=(full * length + wanted) * look,
        head=2 * wanted * width * arch.vocab_size,
    ).times(rows)
