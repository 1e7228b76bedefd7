"""The engine: one pure step, `advance`, and the only loop, `decode` (which is `resume`).

One forward, a reading of the places in reach, the strategy's decision, the canvas written: that is
a step. It never waits for the device and has no shape that depends on data, so the same source
runs eagerly, compiled, or captured. Trace, stream, progress bar and benchmark are consumers of
what `decode` yields; there are no callbacks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from wavefront.core import noise
from wavefront.core.canvas import Canvas, is_any
from wavefront.core.errors import NumericalError
from wavefront.core.masks import ordered, placed
from wavefront.core.reading import LAST, Reading, priority_score, read
from wavefront.core.state import (
    Config,
    DecodeState,
    Step,
    TopAlternatives,
    candidates,
    decide_and_write,
    start,
)
from wavefront.core.strategy import Stats
from wavefront.core.tree import replace_fields
from wavefront.kernels.compile import compiled_with_model
from wavefront.models.loader import KV, Model


class Flags(NamedTuple):
    """What the host wants to know of a step; on the device it is one tensor, (5,) long."""

    done: int  # every row is
    overflow: int  # some row reached for more places than were scored: its step was void
    bad: int  # some row met NaN
    steps: int  # how many of the steps handed back some row did make, at least 1
    held: int  # some row did not fit into what was computed: its step was void too


# One forward and the steps that came of it, in order; each says only what its forward computed.
StepFn = Callable[
    [Model, Config, DecodeState, int, bool], tuple[DecodeState, Sequence[Step], Tensor]
]


def pack_flags(*values: Tensor) -> Tensor:
    """Scalars for the host, (n,) long: one tensor, so one copy."""
    return torch.stack([value.long() for value in values])


def advance(
    model: Model, config: Config, rows: DecodeState, width: int, padded: bool
) -> tuple[DecodeState, Sequence[Step], Tensor]:
    """One step of every row, reading at most `width` places of each. Pure."""
    aim = plan_step(model, config, rows, width)
    states = forward(model, config, rows, aim.at, padded)
    return commit_step(model, config, rows, aim, states, computed(config, rows.canvas))


class StepPlan(NamedTuple):
    """Which places a step is to read, and which to compute."""

    wanted: Tensor  # (B, L) bool
    at: Tensor  # (B, width) long: the places read, those wanted first
    overflow: Tensor  # (B,) bool: more is wanted than is read, so the step is void
    window: Tensor | None = None  # (B, S) long: the places computed; None: all
    held: Tensor | None = None  # (B,) bool: what must be computed is more than is: void too


@compiled_with_model
def plan_step(model: Model, config: Config, rows: DecodeState, width: int) -> StepPlan:
    """A step that computes every place."""
    wanted = candidates(config, rows)
    return StepPlan(wanted, read_first(wanted, width), wanted.sum(-1) > width)


def read_first(wanted: Tensor, width: int) -> Tensor:
    """(B, width) long: the places wanted, by position; what follows them only fills the width."""
    return ordered((~wanted).to(torch.uint8), width)


@compiled_with_model
def commit_step(
    model: Model, config: Config, rows: DecodeState, aim: StepPlan, states: Tensor, cost: int
) -> tuple[DecodeState, Sequence[Step], Tensor]:
    """What follows a forward that gave the `states` of the places read: read, decide, write."""
    at, overflow = aim.at, aim.overflow
    held = torch.zeros_like(overflow) if aim.held is None else aim.held
    reading = score_positions(model, config, rows, at, states)
    bad = (reading.bad & aim.wanted.gather(-1, at)).any(-1)
    rows = store_readings(config, rows, at, reading)
    rows, view, decision = decide_and_write(
        config, rows, model.mask_id, bad=bad, void=overflow | held
    )
    others = alternatives(at, reading, rows.canvas)
    step = Step(0, 1, cost, view, decision, rows.canvas, rows.final, rows.done, others)
    one, met_nan = torch.ones_like(rows.step[0]), (rows.bad_step >= 0).any()
    return rows, [step], pack_flags(rows.done.all(), overflow.any(), met_nan, one, held.any())


def forward(
    model: Model,
    config: Config,
    rows: DecodeState,
    at: Tensor,
    padded: bool,
    *,
    window: Tensor | None = None,
    kv: KV | None = None,
) -> Tensor:
    """(G, B, Q, D) hidden states of the places `at`; G = 2 under guidance, seeing and blind."""
    canvas = rows.canvas
    attend = canvas.real if padded else None
    attended = config.strategy.attended(canvas, rows.state)
    if attended is not None:
        attend = attended & canvas.real
    if config.cfg_scale == 0:
        return model.hidden(canvas.tokens, attend, at, window=window, kv=kv)[None]
    # One forward of two rows each: as it is, and with all that was given hidden.
    blind = torch.where(canvas.slot >= 0, canvas.tokens, model.mask_id)
    tokens, twice = torch.cat([canvas.tokens, blind]), torch.cat([at, at])
    attend = None if attend is None else torch.cat([attend, attend])
    window = None if window is None else torch.cat([window, window])
    return model.hidden(tokens, attend, twice, window=window, kv=kv).unflatten(0, (2, -1))


def computed(config: Config, canvas: Canvas) -> int:
    """How many places `forward` computes; guidance computes each twice."""
    return canvas.tokens.numel() * (2 if config.cfg_scale > 0 else 1)


def score_positions(
    model: Model, config: Config, rows: DecodeState, at: Tensor, states: Tensor
) -> Reading:
    """What the hidden states say of the places `at` (B, Q), logits living a chunk at a time."""
    flat = states.flatten(1, 2)

    def logits_of(chunk: slice) -> Tensor:
        seen = model.head(flat[0, chunk])
        if len(flat) == 1:
            return seen
        blind = model.head(flat[1, chunk])
        return blind + (config.cfg_scale + 1) * (seen - blind)

    keys = None
    if config.sampling.temperature > 0:
        slot = rows.canvas.slot.gather(-1, at)
        keys = noise.key(rows.seed, rows.step, slot, noise.TOKEN)
    return read(
        logits_of,
        keys,
        rows.canvas.tokens.gather(-1, at),
        vocab_size=model.vocab_size,
        mask_id=model.mask_id,
        sampling=config.sampling,
        needs=config.needs,
        alternatives=config.alternatives,
    )


def store_readings(config: Config, rows: DecodeState, at: Tensor, reading: Reading) -> DecodeState:
    """Rows with the reading written at `at`, and the scores that follow from it."""
    fresh = Stats(reading.logp, reading.margin, reading.entropy, reading.current_logp)
    score = scored(config, rows, rows.canvas.slot.gather(-1, at), fresh)
    if config.priority == "entropy":
        # Sure of the mask token is not sure of anything that could be written.
        score = score.masked_fill(reading.prefers_mask, float("-inf"))
    if config.sampling.eos in LAST:
        ends = is_any(reading.proposal, config.sampling.stop_ids)
        score = score.masked_fill(ends, float("-inf"))  # only when nothing else is left
    stats = Stats(
        *(
            None if new is None or old is None else placed(old, at, new)
            for old, new in zip(rows.stats, fresh, strict=True)
        )  # pyright: ignore[reportArgumentType]
    )
    return replace_fields(
        rows,
        proposal=placed(rows.proposal, at, reading.proposal),
        stats=stats,
        score=placed(rows.score, at, score),
    )


def alternatives(at: Tensor, reading: Reading, canvas: Canvas) -> TopAlternatives | None:
    """The likeliest tokens of the places `at`, put on the board; elsewhere zeros."""
    tokens, logp = reading.others, reading.others_logp
    if tokens is None or logp is None:
        return None
    where = at[..., None].expand_as(tokens)
    board = tokens.new_zeros((*canvas.tokens.shape, tokens.shape[-1]))
    return TopAlternatives(
        board.scatter(1, where, tokens), board.to(logp.dtype).scatter(1, where, logp)
    )


def scored(config: Config, rows: DecodeState, slot: Tensor, stats: Stats) -> Tensor:
    """(B, Q) float32: the priority of the places in `slot`, with the noise of the row's step."""
    if config.priority == "random":
        score = noise.uniform(noise.key(rows.seed, rows.step, slot, noise.PRIORITY))
    else:
        score = priority_score(config.priority, stats)
    if config.order_noise > 0:
        order = noise.key(rows.seed, rows.step, slot, noise.ORDER)
        score = score + config.order_noise * noise.gumbel(order)
    return score


def decode(
    model: Model,
    canvas: Canvas,
    config: Config,
    *,
    steps: Sequence[int],
    seeds: Sequence[int],
    run: StepFn = advance,
) -> Iterator[Step]:
    """Fill the canvas, yielding every step."""
    return resume(model, config, start(canvas, config, steps, seeds), run=run)


@torch.no_grad()  # torch enters it only while the generator runs, never in the consumer
def resume(
    model: Model, config: Config, rows: DecodeState, *, run: StepFn = advance
) -> Iterator[Step]:
    """Go on from any rows to their end, yielding every step. The only loop of the project.

    On CUDA the flags of a forward are read while the next one runs, so the loop never waits; the
    price is at most one surplus forward, which is counted.
    """
    canvas = rows.canvas
    padded, widest, width = not bool(canvas.real.all()), *_widths(config, rows)
    lag = flag_lag(canvas)
    remaining = _busy(rows)  # forwards: each settles a step or more of every row
    waiting: deque[tuple[Sequence[Step], AsyncHostCopy, int]] = deque()
    forwards = places = number = 0
    usual, frugal = width, getattr(run, "frugal", False)
    while remaining > 0:
        launch = len(waiting) < remaining
        if launch:
            rows, made, flags = run(model, config, rows, width, padded)
            waiting.append((made, AsyncHostCopy(flags), width))
            forwards, places = forwards + 1, places + made[0].token_forwards
        if launch and len(waiting) <= lag:
            continue
        made, glance, had = waiting.popleft()
        done, overflow, bad, count, held = Flags(*glance.read())
        if bad:
            raise NumericalError(_nan_message(rows))
        if overflow:  # tried again with every place, and so is one that was already in flight
            if had >= usual:
                usual = min(widest, 2 * usual) if frugal else widest
            width = widest
        elif not held:
            remaining -= 1
            width = usual if had == widest else width
        for step in made[:count]:
            yield step._replace(number=number, forwards=forwards, token_forwards=places)
            number += 1
        if done and not config.fixed_budget:
            return


def flag_lag(canvas: Canvas) -> int:
    """How many steps late flags are read: on the CPU there is nothing to wait for."""
    return 1 if canvas.tokens.is_cuda else 0


def _widths(config: Config, rows: DecodeState) -> tuple[int, int]:
    """How many places a step may have to read at most, and how many it probably will."""
    lengths, steps = rows.length.tolist(), rows.steps.tolist()
    widest = max(1, *lengths)
    if config.fixed_budget:
        return widest, widest  # a void step would exceed the budget
    guess = max(config.strategy.width(n, t) for n, t in zip(lengths, steps, strict=True))
    first = int(candidates(config, rows).sum(-1).max())  # holes make many fronts
    return widest, min(widest, max(guess, first))


def _busy(rows: DecodeState) -> int:
    """The most forwards that a row can need: the steps ahead of it less those passed over."""
    each = zip(rows.next_active_step.tolist(), rows.step.tolist(), rows.steps.tolist(), strict=True)
    return max(
        sum(next_active_step[s] == s for s in range(step, budget))
        for next_active_step, step, budget in each
    )


def _nan_message(rows: DecodeState) -> str:
    row, step = max(enumerate(rows.bad_step.tolist()), key=lambda pair: pair[1])
    return (
        f"The model's logits are NaN or infinite at step {step + 1} of row {row + 1}; nothing was "
        "decoded from them. Try dtype='float32', or check the checkpoint."
    )


class AsyncHostCopy:
    """What was `told`, on its way to the host: copied behind the step's work, read when needed."""

    def __init__(self, values: Tensor) -> None:
        self._event: torch.cuda.Event | None = None
        if values.is_cuda:
            self._host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            self._host.copy_(values, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record()
        else:
            self._host = values

    def read(self) -> list[int]:
        if self._event is not None:
            self._event.synchronize()
        return self._host.tolist()
