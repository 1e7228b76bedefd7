"""The training loop."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from wavefront.core.errors import NumericalError, OptionError
from wavefront.models.loader import resolve_device
from wavefront.models.transformer import Transformer
from wavefront.train.config import TrainConfig
from wavefront.train.corpus import with_corpus
from wavefront.train.data import BatchSource
from wavefront.train.export import build_model, write_model
from wavefront.train.log import Log, StepTotals
from wavefront.train.lr_schedule import StepClock, WallClock, lr_factor
from wavefront.train.optimizer import WeightAverage, build_optimizers, set_rate
from wavefront.train.prefetch import Prefetcher
from wavefront.train.state import STATE, restore_state, save_state
from wavefront.train.train_step import TrainStep, upload
from wavefront.train.validation import held_out_loss, held_out_rows


def train(config: TrainConfig) -> dict[str, Any]:
    """Train as configured, and return the last record of the log."""
    clock = WallClock(config.minutes) if config.minutes else StepClock(config.steps or 0)
    run = Run(config)
    data = with_corpus(config.data, config.out)
    tasks = BatchSource(data).tasks  # raises here, not in a worker, for a bad mixture or tokenizer
    # Start the workers first, so that they make data while the model is compiled.
    with (
        Prefetcher(data, workers=config.data_workers, start=run.step) as batches,
        _stop_on_signal() as stop,
    ):
        run.prepare()
        clock.start()
        run.advance(batches, clock, tasks=tasks, stop=stop)
    return run.finish()


class Run:
    """A run in progress: the model, the optimizers and the step."""

    def __init__(self, config: TrainConfig) -> None:
        self.config = config
        self.device = resolve_device(config.device)
        config.out.mkdir(parents=True, exist_ok=True)
        self.model: Transformer = build_model(config, self.device)
        self.optimizers = build_optimizers(self.model, config)
        self.average = WeightAverage(self.model, config.ema)
        self.train_step = TrainStep(self.model, config)
        self.started_at = time.monotonic()
        self.step = 0
        self.saved = -1
        state = config.out / STATE
        if config.resume and state.exists():
            self.step = self.saved = restore_state(state, **self._parts())
        elif state.exists():
            raise OptionError(f"{state} exists; resume from it, or choose another directory.")
        self.log = Log(config.out / "log.jsonl", step=self.step, quiet=config.quiet)
        self.last: dict[str, Any] = {"step": self.step}

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
        clock: StepClock | WallClock,
        *,
        tasks: list[str],
        stop: threading.Event,
    ) -> None:
        """Train until the clock is over or `stop` is set, then save the state."""
        config = self.config
        totals, factor = StepTotals(tasks, self.device), 0.0
        while not clock.is_over(self.step) and not stop.is_set():
            factor = lr_factor(
                self.step,
                clock.progress(self.step),
                warmup=config.warmup,
                decay_fraction=config.decay_fraction,
            )
            self._train_one_step(batches, totals, factor)
            if self.step % config.log_every == 0:
                self._report(totals, factor, clock)
            if self.step % config.save_every == 0:
                self.save()
        if totals.steps:
            self._report(totals, factor, clock)
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

    def _report(self, totals: StepTotals, factor: float, clock: StepClock | WallClock) -> None:
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
        """Save the state, unless this step is saved already."""
        if self.saved != self.step:
            save_state(self.config.out / STATE, step=self.step, **self._parts())
            self.saved = self.step

    def finish(self) -> dict[str, Any]:
        """Compute the held-out loss of the weights and their average, and export one of them."""
        config = self.config
        batches, source = held_out_rows(config.data, self.device)
        held_out: dict[str, Any] = {}
        self.model.eval()
        with self.train_step.precision():
            held_out["raw"] = held_out_loss(self.model, batches, source)
            if config.ema:
                self.average.swap()
                held_out["ema"] = held_out_loss(self.model, batches, source)
                self.average.swap()
        kind = config.export
        if kind == "best":
            kind = min(held_out, key=lambda name: held_out[name]["loss"])
        if kind == "ema":
            self.average.swap()
        folder = write_model(self.model, config.data.tokenizer, config.out / "model")
        if kind == "ema":
            self.average.swap()
        self.last = self.last | {"exported": kind, "held_out": held_out}
        self.log.write(self.last)
        self.log.message(_summary(held_out, kind, folder))
        return self.last


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
