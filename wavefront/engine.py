"""The engine: one pure step, `advance`, and the only loop, `decode`.

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

from wavefront import noise
from wavefront.canvas import Canvas, is_any
from wavefront.errors import NumericalError
from wavefront.model import Model
from wavefront.rows import Config, Rows, Step, reach, settle, start
from wavefront.schedule import Schedule, Stats
from wavefront.stats import Reading, priority_score, read


class Flags(NamedTuple):
    """What the host wants to know of a step, as scalar tensors."""

    done: Tensor  # every row is
    overflow: Tensor  # some row reached for more places than were scored: the step is void
    bad: Tensor  # some row met NaN


Advance = Callable[[Model, Config, Rows, int, bool], tuple[Rows, Step, Flags]]


def advance(
    model: Model, config: Config, rows: Rows, width: int, padded: bool
) -> tuple[Rows, Step, Flags]:
    """One step of every row, reading at most `width` places of each. Pure."""
    wanted = reach(config, rows)
    # The places in reach come first, by position; what follows them only fills a fixed width.
    at = (~wanted).to(torch.uint8).argsort(dim=-1, stable=True)[:, :width]
    overflow = (wanted.sum(-1) > width).any()
    reading = look(model, config, rows, at, padded)
    bad = (reading.bad & wanted.gather(-1, at)).any(-1)
    rows = remember(config, rows, at, reading)
    rows, view, decision = settle(config, rows, model.mask_id, bad=bad, void=overflow)
    step = Step(0, 0, view, decision, rows.canvas, rows.final, rows.done)
    return rows, step, Flags(rows.done.all(), overflow, (rows.bad_step >= 0).any())


def look(model: Model, config: Config, rows: Rows, at: Tensor, padded: bool) -> Reading:
    """The forward pass, and what it says of the places `at` (B, Q)."""
    canvas = rows.canvas
    tokens, wanted, attend = canvas.tokens, at, canvas.real if padded else None
    guided = config.cfg_scale > 0
    if guided:  # one forward of two rows each: as it is, and with all that was given hidden
        hidden_prompt = torch.where(canvas.slot >= 0, tokens, model.mask_id)
        tokens, wanted = torch.cat([tokens, hidden_prompt]), torch.cat([at, at])
        attend = torch.cat([attend, attend]) if attend is not None else None
    states = model.hidden(tokens, attend, wanted).flatten(0, 1)
    count = at.numel()

    def logits_of(chunk: slice) -> Tensor:
        seen = model.head(states[:count][chunk])
        if not guided:
            return seen
        blind = model.head(states[count:][chunk])
        return blind + (config.cfg_scale + 1) * (seen - blind)

    keys = noise.key(rows.seed, rows.step, canvas.slot.gather(-1, at), noise.TOKEN)
    return read(
        logits_of,
        keys,
        canvas.tokens.gather(-1, at),
        vocab_size=model.vocab_size,
        mask_id=model.mask_id,
        sampling=config.sampling,
        needs=config.needs,
    )


def remember(config: Config, rows: Rows, at: Tensor, reading: Reading) -> Rows:
    """Rows with the reading written at `at`, and the scores that follow from it."""
    fresh = Stats(reading.logp, reading.margin, reading.entropy, reading.own)
    slot = rows.canvas.slot.gather(-1, at)
    bits = noise.key(rows.seed, rows.step, slot, noise.PRIORITY)
    score = priority_score(config.priority, fresh, bits)
    if config.order_noise > 0:
        order = noise.key(rows.seed, rows.step, slot, noise.ORDER)
        score = score + config.order_noise * noise.gumbel(order)
    if config.sampling.eos == "suppress-confidence":
        ends = is_any(reading.proposal, config.sampling.stop_ids)
        score = score.masked_fill(ends, float("-inf"))  # only when nothing else is left
    stats = Stats(
        *(
            None if new is None or old is None else old.scatter(-1, at, new)
            for old, new in zip(rows.stats, fresh, strict=True)
        )  # pyright: ignore[reportArgumentType]
    )
    return rows._replace(
        proposal=rows.proposal.scatter(-1, at, reading.proposal),
        stats=stats,
        score=rows.score.scatter(-1, at, score),
    )


@torch.no_grad()  # torch enters it only while the generator runs, never in the consumer
def decode(
    model: Model,
    canvas: Canvas,
    config: Config,
    *,
    steps: Sequence[int],
    seeds: Sequence[int],
    run: Advance = advance,
) -> Iterator[Step]:
    """Fill the canvas, yielding every step. The only loop of the project.

    On CUDA the flags of a step are read while the next one runs, so the loop never waits; the price
    is at most one surplus forward, which is counted.
    """
    rows = start(canvas, config, steps, seeds)
    lengths = [int(n) for n in rows.length]
    padded = not bool(canvas.real.all())
    widest = max(1, *lengths)
    width = min(
        widest, max(config.schedule.width(n, t) for n, t in zip(lengths, steps, strict=True))
    )
    lag = 1 if canvas.tokens.is_cuda else 0
    waiting: deque[tuple[int, Step, _Glance]] = deque()
    index, total, forwards = 0, max(steps), 0
    while index < total or waiting:
        idle = index < total and not config.fixed_budget
        idle = idle and _all_idle(config.schedule, lengths, steps, index)
        if idle and not waiting:  # zero quotas: the clock goes on without a forward
            rows, index = rows._replace(step=rows.step + 1), index + 1
            continue
        launch = index < total and not idle
        if launch:
            rows, step, flags = run(model, config, rows, width, padded)
            waiting.append((index, step, _Glance(flags)))
            index, forwards = index + 1, forwards + 1
        if len(waiting) <= lag and launch and index < total:
            continue
        number, step, glance = waiting.popleft()
        done, overflow, bad = glance.read()
        if overflow:  # the step was void, and so are those in flight: again, with all places
            waiting.clear()
            index, width = number, widest
            continue
        if bad:
            raise NumericalError(
                f"The model's logits are NaN or infinite at step {number + 1}; nothing was "
                "decoded from them. Try dtype='float32', or check the checkpoint."
            )
        yield step._replace(number=number, forwards=forwards)
        if done and not config.fixed_budget:
            return


def _all_idle(schedule: Schedule, lengths: Sequence[int], steps: Sequence[int], index: int) -> bool:
    return all(
        index >= t or schedule.idle(n, t, index) for n, t in zip(lengths, steps, strict=True)
    )


class _Glance:
    """Flags on their way to the host: copied behind the step's own work, read when needed."""

    def __init__(self, flags: Flags) -> None:
        packed = torch.stack(flags)
        self._event: torch.cuda.Event | None = None
        if packed.is_cuda:
            self._host = torch.empty(packed.shape, dtype=packed.dtype, pin_memory=True)
            self._host.copy_(packed, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record()
        else:
            self._host = packed

    def read(self) -> tuple[bool, bool, bool]:
        if self._event is not None:
            self._event.synchronize()
        done, overflow, bad = self._host.tolist()
        return done, overflow, bad
