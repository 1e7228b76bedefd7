"""The log of a run: JSON records in a file, and a progress line on standard error."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from wavefront.core.errors import RunError
from wavefront.storage.read_file import read_lines
from wavefront.storage.write_file import append_line, write_text
from wavefront.train.train_step import DeviceBatch, StepLoss

LINE_INTERVAL = 5.0  # seconds between progress lines if the output is not a terminal


class StepTotals:
    """Totals since the last record, kept on the device so that adding does not synchronise."""

    def __init__(self, tasks: Sequence[str], device: torch.device) -> None:
        self.tasks = list(tasks)
        self.sums = torch.zeros(len(tasks), 2, device=device)
        self.losses: list[Tensor] = []
        self.norms: list[Tensor] = []
        self.clear()

    def clear(self) -> None:
        """Reset all totals."""
        self.sums.zero_()
        self.losses.clear()
        self.norms.clear()
        self.rows = self.tokens = self.steps = 0
        self.waited = 0.0
        self.since = time.monotonic()

    def add(self, rows: DeviceBatch, outcome: StepLoss, norm: Tensor) -> None:
        """Add one step."""
        parts = torch.stack([outcome.bounds, outcome.lengths.to(outcome.bounds.dtype)], 1)
        self.sums.index_add_(0, rows.task, parts)
        self.losses.append(outcome.loss.detach())
        self.norms.append(norm.detach())
        self.steps += 1
        self.rows += rows.tokens.shape[0]
        self.tokens += rows.tokens.numel()

    def record(self) -> dict[str, Any]:
        """Return the means since the last call, and reset. This waits for the device."""
        loss = float(torch.stack(self.losses).mean())
        norm = float(torch.stack(self.norms).mean())
        seconds = max(1e-9, time.monotonic() - self.since)
        tasks = {
            name: round(bound / length, 4)
            for name, (bound, length) in zip(self.tasks, self.sums.tolist(), strict=True)
            if length
        }
        record = {
            "loss": loss,
            "grad_norm": norm,
            "tokens_per_second": round(self.tokens / seconds),
            "rows_per_second": round(self.rows / seconds, 1),
            "waiting": round(self.waited / seconds, 4),  # share of the time spent waiting for data
            "seconds_per_step": seconds / self.steps,
            "tasks": tasks,
        }
        self.clear()
        return record


class Log:
    """`log.jsonl` in a run's directory, and progress on standard error."""

    def __init__(self, path: Path, *, step: int, quiet: bool) -> None:
        """Open the log. A resumed run drops the records after the saved step."""
        self.path, self.quiet = path, quiet
        self._printed_at = 0.0
        kept = _records_until(path, step) if step else []
        write_text(path, "".join(kept), error=RunError)

    def write(self, record: dict[str, Any]) -> None:
        line = f"{json.dumps(record)}\n".encode()
        with self.path.open("ab") as file:
            append_line(file.fileno(), self.path, line, error=RunError)

    def progress(self, record: dict[str, Any], left: float) -> None:
        """Print loss, speed and time left: redrawn in a terminal, otherwise an occasional line."""
        now = time.monotonic()
        terminal = sys.stderr.isatty()
        if self.quiet or (not terminal and now - self._printed_at < LINE_INTERVAL):
            return
        self._printed_at = now
        minutes, seconds = divmod(round(left), 60)
        line = (
            f"step {record['step']}  loss {record['loss']:.4f}  lr {record['lr']:.2e}  "
            f"{record['tokens_per_second'] / 1e3:.0f}k tokens/s  waiting {record['waiting']:.0%}  "
            f"{minutes}:{seconds:02d} left"
        )
        print(
            f"\r{line}\x1b[K" if terminal else line,
            end="" if terminal else "\n",
            file=sys.stderr,
            flush=True,
        )

    def message(self, text: str) -> None:
        if not self.quiet:
            print(f"\n{text}" if sys.stderr.isatty() else text, file=sys.stderr, flush=True)


def _records_until(path: Path, step: int) -> list[str]:
    if not path.is_file():
        return []
    kept: list[str] = []
    for line in read_lines(path, error=RunError):
        try:
            if json.loads(line).get("step", 0) <= step:
                kept.append(line.decode("utf-8"))
        except ValueError:  # the last line of a killed run may be incomplete
            continue
    return kept
