"""The training loop."""

from __future__ import annotations

import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from wavefront.core.errors import NumericalError, OptionError
from wavefront.models.loader import resolve_device
from wavefront.models.transformer import Transformer
from wavefront.train.config import TrainConfig
from wavefront.train.corpus import with_corpus
from wavefront.train.data import TrainingSource
from wavefront.train.export import build_model, keep_embeddings, write_model
from wavefront.train.log import Log, StepTotals
from wavefront.train.lr_schedule import PlannedClock, StepClock, WallClock, lr_factor
from wavefront.train.optimizer import WeightAverage, build_optimizers, set_rate
from wavefront.train.prefetch import Prefetcher
from wavefront.train.rows import open_source
from wavefront.train.state import STATE, restore_state, save_state
from wavefront.train.train_step import DeviceBatch, TrainStep, upload
from wavefront.train.validation import held_out_loss, held_out_rows

Clock = StepClock | WallClock


def train(config: TrainConfig) -> dict[str, Any]:
    """Train as configured, and return the last record of the log."""
    limit = time.monotonic() + 60.0 * (config.stop_after or float("inf"))
    timed = WallClock(config.minutes) if config.minutes else None
    run = TrainingRun(config)
    clock = run.clock(timed)
    data = with_corpus(config.data, config.out)
    tasks = open_source(data).tasks  # raises here, not in a worker, for a bad mixture or tokenizer
    # Start the workers first, so that they make data while the model is compiled.
    with (
        Prefetcher(data, workers=config.data_workers, start=run.step) as batches,
        _stop_on_signal() as stop,
    ):
        run.prepare()
        clock.start()
        run.advance(
            batches, clock, tasks=tasks, stop=lambda: stop.is_set() or time.monotonic() >= limit
        )
    return run.finish()


class TrainingRun:
    """A run in progress: the model, the optimisers and the step."""

    def __init__(self, config: TrainConfig) -> None:
        self.config = config
        self.device = resolve_device(config.device)
        config.out.mkdir(parents=True, exist_ok=True)
        self.model: Transformer = build_model(config, self.device)
        if not config.embeddings:
            keep_embeddings(self.model)
        self.optimizers = build_optimizers(self.model, config)
        self.average = WeightAverage(self.model, config.ema)
        self.train_step = TrainStep(self.model, config)
        self._held_out_rows: tuple[list[DeviceBatch], TrainingSource] | None = None
        self.started_at = time.monotonic()
        self.step = 0
        self.saved = -1
        self.steps: int | None = config.steps  # the planned number of steps, if there is a plan
        self.seconds = 0.0  # time trained, without compilation
        state = config.out / STATE
        if config.resume and state.exists():
            stored = restore_state(state, **self._parts())
            self.step = self.saved = int(stored["step"])
            self.steps = config.steps or (stored["steps"] if config.train_minutes else None)
            self.seconds = float(stored["seconds"])
        elif state.exists():
            raise OptionError(f"{state} exists; resume from it, or choose another directory.")
        self.log = Log(config.out / "log.jsonl", step=self.step, quiet=config.quiet)
        self.last: dict[str, Any] = {"step": self.step}

    def clock(self, timed: WallClock | None) -> Clock:
        """Return the clock of this run: by planned steps, or `timed` if there is no plan."""
        minutes = self.config.train_minutes
        if self.steps is None and minutes is not None:
            return PlannedClock(minutes, first=self.step, seconds=self.seconds)
        return StepClock(self.steps or 0) if timed is None or self.steps else timed

    def _parts(self) -> dict[str, Any]:
        return {
            "config": self.config,
            "model": self.model,
            "optimizers": self.optimizers,
            "average": self.average,
        }

    def prepare(self) -> None:
        """Compile the model if configured."""
        config = self.config
        if self.device.type == "cuda":
            torch.set_float32_matmul_precision("high")
            torch.cuda.reset_peak_memory_stats()
            if self.model.config.heads != self.model.config.kv_heads:
                # With grouped heads, the gradients of cuDNN's attention can be NaN.
                torch.backends.cuda.enable_cudnn_sdp(False)
        size = sum(part.numel() for part in self.model.parameters())
        self.log.message(f"{size / 1e6:.1f} M parameters on {self.device}, from step {self.step}")
        compiles = self.device.type == "cuda" if config.compile is None else config.compile
        if compiles:
            begin = time.monotonic()
            self.train_step.compile(
                (config.data.rows(length), length) for length in config.data.buckets
            )
            self.log.message(f"compiled in {time.monotonic() - begin:.0f} s")

    def advance(
        self,
        batches: Prefetcher,
        clock: Clock,
        *,
        tasks: list[str],
        stop: Callable[[], bool],
    ) -> None:
        """Train until the clock has run out or `stop` returns True, then save the state."""
        config = self.config
        totals, factor = StepTotals(tasks, self.device), 0.0
        begin, before = time.monotonic(), self.seconds
        while not clock.is_over(self.step) and not stop():
            factor = lr_factor(
                self.step,
                clock.progress(self.step),
                warmup=config.warmup,
                decay_fraction=config.decay_fraction,
            )
            self._train_one_step(batches, totals, factor)
            if self.step % config.log_every == 0:
                self._report(totals, factor, clock)
            self.seconds = before + time.monotonic() - begin
            if isinstance(clock, PlannedClock):
                self.steps = clock.steps or None
            if config.eval_every and self.step % config.eval_every == 0:
                self._evaluate()
            if config.save_every and self.step % config.save_every == 0:
                self.save()
        if totals.steps:
            self._report(totals, factor, clock)
        if config.save_every:
            self.save()

    def _train_one_step(self, batches: Prefetcher, totals: StepTotals, factor: float) -> None:
        begin = time.monotonic()
        batch = next(batches)
        totals.waited += time.monotonic() - begin
        rows = upload(batch, self.device)
        outcome = self.train_step(rows, self.step)
        outcome.loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip)
        set_rate(self.optimizers, factor)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.average.update(self.step)
        totals.add(rows, outcome, norm)
        self.step += 1

    def _report(self, totals: StepTotals, factor: float, clock: Clock) -> None:
        record = totals.record()
        pace = record.pop("seconds_per_step")
        elapsed = round(time.monotonic() - self.started_at, 2)
        self.last = {"step": self.step, "lr": self.config.lr * factor, "elapsed": elapsed} | record
        if not (record["loss"] < float("inf") and record["grad_norm"] < float("inf")):
            raise NumericalError(
                f"Training diverged before step {self.step} (loss {record['loss']}). "
                "Lower the learning rate and resume."
            )
        self.log.write(self.last)
        self.log.progress(self.last, clock.seconds_left(self.step, pace))

    def save(self) -> None:
        """Save the state, unless this step is already saved.

        Raises:
            NumericalError: A weight is not finite. The last saved state is kept.
        """
        if self.saved != self.step:
            sums = torch.stack([part.detach().sum() for part in self.model.parameters()])
            if not bool(sums.isfinite().all()):
                raise NumericalError(
                    f"A weight is NaN at step {self.step}; the state of step {max(0, self.saved)} "
                    "is kept. Lower the learning rate and resume."
                )
            progress = {"step": self.step, "steps": self.steps, "seconds": self.seconds}
            save_state(self.config.out / STATE, **progress, **self._parts())
            self.saved = self.step

    def _evaluate(self) -> None:
        """Measure the held-out loss during training, of the average if there is one."""
        held_out = self._held_out(("ema",) if self.config.ema else ("raw",))
        name, entry = next(iter(held_out.items()))
        self.log.write({"step": self.step, "seconds": self.seconds, "held_out": held_out})
        self.log.message(f"step {self.step}: held-out loss {entry['loss']:.4f} ({name})")

    def _held_out(self, kinds: Sequence[str]) -> dict[str, Any]:
        """Return the held-out loss of the weights (raw) and of their average (ema)."""
        if self._held_out_rows is None:
            self._held_out_rows = held_out_rows(self.config.data, self.device)
        losses: dict[str, Any] = {}
        self.model.eval()
        for kind in kinds:
            if kind == "ema":
                self.average.swap()
            # Mixed precision keeps converted weights until it is left, so each kind has its own.
            with self.train_step.precision():
                losses[kind] = held_out_loss(self.model, *self._held_out_rows)
            if kind == "ema":
                self.average.swap()
        self.model.train()
        return losses

    def finish(self) -> dict[str, Any]:
        """Compute the held-out loss of the weights and their average, and export one of them."""
        config = self.config
        held_out = self._held_out(("raw", "ema") if config.ema else ("raw",))
        kind = config.export
        if kind == "best":
            kind = min(held_out, key=lambda name: held_out[name]["loss"])
        if kind == "ema":
            self.average.swap()
        folder = write_model(self.model, config.data.tokenizer, config.out / "model")
        if kind == "ema":
            self.average.swap()
        self.last = self.last | {"exported": kind, "held_out": held_out}
        self.last["peak_bytes"] = _peak_bytes(self.device)
        self.log.write(self.last)
        self.log.message(_summary(held_out, kind, folder))
        return self.last


def _peak_bytes(device: torch.device) -> int:
    """Return the peak memory use of the GPU or, without one, of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def _summary(held_out: dict[str, Any], kind: str, folder: Path) -> str:
    losses = ", ".join(f"{name} {entry['loss']:.4f}" for name, entry in held_out.items())
    size = (folder / "model.safetensors").stat().st_size / 1e6
    return f"held-out loss {losses}; {kind} weights in {folder} ({size:.1f} MB)"


@contextmanager
def _stop_on_signal() -> Iterator[threading.Event]:
    """Turn the first Ctrl-C or SIGTERM into a request to stop after the current step."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def request_stop(number: int, frame: object) -> None:
        stop.set()
        signal.signal(number, former[number])  # a second signal stops at once

    caught = (int(signal.SIGINT), int(signal.SIGTERM))
    former = {number: signal.signal(number, request_stop) for number in caught}
    try:
        yield stop
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
