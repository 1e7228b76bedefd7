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
from wavefront.train.data import Source
from wavefront.train.export import build_model, write_model
from wavefront.train.log import Log, Tally
from wavefront.train.lr_schedule import StepClock, WallClock, rate
from wavefront.train.optimizer import Average, build, set_rate
from wavefront.train.prefetch import Feed
from wavefront.train.state import STATE, restore_state, save_state
from wavefront.train.train_step import Learner, upload
from wavefront.train.validation import held_out_loss, held_out_rows


def train(config: TrainConfig) -> dict[str, Any]:
    """Train as configured; the last record of the log."""
    clock = WallClock(config.minutes) if config.minutes else StepClock(config.steps or 0)
    run = Run(config)
    data = with_corpus(config.data, config.out)
    tasks = Source(data).tasks  # and a bad mixture or tokenizer is refused here, not in a worker
    # The workers start first, so that they fill their pipes while the model is compiled.
    with Feed(data, workers=config.data_workers, start=run.step) as feed, _interrupts() as asked:
        run.prepare()
        clock.start()
        run.advance(feed, clock, tasks, asked)
    return run.finish()


class Run:
    """A run in progress: what it has learned, and where it stands."""

    def __init__(self, config: TrainConfig) -> None:
        self.config = config
        self.device = resolve_device(config.device)
        config.out.mkdir(parents=True, exist_ok=True)
        self.model: Transformer = build_model(config, self.device)
        self.optimizers = build(self.model, config)
        self.average = Average(self.model, config.ema)
        self.learner = Learner(self.model, config)
        self.began = time.monotonic()
        self.step = 0
        self.saved = -1
        state = config.out / STATE
        if config.resume and state.exists():
            self.step = self.saved = restore_state(state, **self._parts())
        elif state.exists():
            raise OptionError(f"{state} exists: resume from it, or choose another directory.")
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
        """Compile, where that is wanted."""
        config = self.config
        if self.device.type == "cuda":
            torch.set_float32_matmul_precision("high")
        size = sum(part.numel() for part in self.model.parameters())
        self.log.say(f"{size / 1e6:.1f} M parameters on {self.device}, from step {self.step}")
        wanted = self.device.type == "cuda" if config.compile is None else config.compile
        if wanted:
            begin = time.monotonic()
            self.learner.compile(
                (config.data.rows(length), length) for length in config.data.buckets
            )
            self.log.say(f"compiled in {time.monotonic() - begin:.0f} s")

    def advance(
        self, feed: Feed, clock: StepClock | WallClock, tasks: list[str], asked: threading.Event
    ) -> None:
        """Steps until the clock or somebody says stop; the state is saved at the end."""
        config = self.config
        tally, factor = Tally(tasks, self.device), 0.0
        while not clock.over(self.step) and not asked.is_set():
            factor = rate(
                self.step,
                clock.progress(self.step),
                warmup=config.warmup,
                decay_fraction=config.decay_fraction,
            )
            self._learn(feed, tally, factor)
            if self.step % config.log_every == 0:
                self._report(tally, factor, clock)
            if self.step % config.save_every == 0:
                self.save()
        if tally.steps:
            self._report(tally, factor, clock)
        self.save()

    def _learn(self, feed: Feed, tally: Tally, factor: float) -> None:
        begin = time.monotonic()
        batch = next(feed)
        tally.waited += time.monotonic() - begin
        rows = upload(batch, self.device)
        outcome = self.learner(rows, self.step)
        outcome.loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip)
        set_rate(self.optimizers, factor)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.average.update(self.step)
        tally.add(rows, outcome, norm)
        self.step += 1

    def _report(self, tally: Tally, factor: float, clock: StepClock | WallClock) -> None:
        record = tally.record()
        pace = record.pop("seconds_per_step")
        elapsed = round(time.monotonic() - self.began, 2)
        self.last = {"step": self.step, "lr": self.config.lr * factor, "elapsed": elapsed} | record
        if not (record["loss"] < float("inf") and record["grad_norm"] < float("inf")):
            raise NumericalError(
                f"training diverged before step {self.step} (loss {record['loss']}): "
                "lower the learning rate and resume."
            )
        self.log.write(self.last)
        self.log.progress(self.last, clock.seconds_left(self.step, pace))

    def save(self) -> None:
        """Write the state, unless it is there already."""
        if self.saved != self.step:
            save_state(self.config.out / STATE, step=self.step, **self._parts())
            self.saved = self.step

    def finish(self) -> dict[str, Any]:
        """Judge the weights and their average on held-out data; export the better, or the asked."""
        config = self.config
        batches, source = held_out_rows(config.data, self.device)
        judged: dict[str, Any] = {}
        self.model.eval()
        with self.learner.precision():
            judged["raw"] = held_out_loss(self.model, batches, source)
            if config.ema:
                self.average.swap()
                judged["ema"] = held_out_loss(self.model, batches, source)
                self.average.swap()
        kind = config.export
        if kind == "best":
            kind = min(judged, key=lambda name: judged[name]["loss"])
        if kind == "ema":
            self.average.swap()
        folder = write_model(self.model, config.data.tokenizer, config.out / "model")
        if kind == "ema":
            self.average.swap()
        self.last = self.last | {"exported": kind, "held_out": judged}
        self.log.write(self.last)
        self.log.say(_summary(judged, kind, folder))
        return self.last


def _summary(judged: dict[str, Any], kind: str, folder: Path) -> str:
    losses = ", ".join(f"{name} {entry['loss']:.4f}" for name, entry in judged.items())
    size = (folder / "model.safetensors").stat().st_size / 1e6
    return f"held-out loss {losses}; {kind} weights in {folder} ({size:.1f} MB)"


@contextmanager
def _interrupts() -> Iterator[threading.Event]:
    """Turns the first Ctrl-C or SIGTERM into a wish to stop after the current step."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return

    def ask(number: int, frame: object) -> None:
        asked.set()
        signal.signal(number, former[number])  # a second one is meant

    caught = (int(signal.SIGINT), int(signal.SIGTERM))
    former = {number: signal.signal(number, ask) for number in caught}
    try:
        yield asked
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
