"""What a run says while it runs: one JSON object a line, and a line for whoever watches."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from wavefront.train.train_step import Outcome, Rows

QUIET_SECONDS = 5.0  # between two lines where the output is no terminal


class Tally:
    """Sums since the last record, kept on the device so that counting never waits for it."""

    def __init__(self, tasks: Sequence[str], device: torch.device) -> None:
        self.tasks = list(tasks)
        self.sums = torch.zeros(len(tasks), 2, device=device)
        self.losses: list[Tensor] = []
        self.norms: list[Tensor] = []
        self.clear()

    def clear(self) -> None:
        """Start the next count."""
        self.sums.zero_()
        self.losses.clear()
        self.norms.clear()
        self.rows = self.tokens = self.steps = 0
        self.waited = 0.0
        self.since = time.monotonic()

    def add(self, rows: Rows, outcome: Outcome, norm: Tensor) -> None:
        """One step."""
        parts = torch.stack([outcome.bounds, outcome.lengths.to(outcome.bounds.dtype)], 1)
        self.sums.index_add_(0, rows.task, parts)
        self.losses.append(outcome.loss.detach())
        self.norms.append(norm.detach())
        self.steps += 1
        self.rows += rows.tokens.shape[0]
        self.tokens += rows.tokens.numel()

    def record(self) -> dict[str, Any]:
        """Means since the last call, which starts the next count; this waits for the device."""
        loss = float(torch.stack(self.losses).mean())
        norm = float(torch.stack(self.norms).mean())
        seconds = max(1e-9, time.monotonic() - self.since)
        tasks = {
            name: round(bound / length, 4)
            for name, (bound, length) in zip(self.tasks, self.sums.tolist(), strict=True)
            if length
        }
        made = {
            "loss": loss,
            "grad_norm": norm,
            "tokens_per_second": round(self.tokens / seconds),
            "rows_per_second": round(self.rows / seconds, 1),
            "waiting": round(self.waited / seconds, 4),  # share of the time spent without data
            "seconds_per_step": seconds / self.steps,
            "tasks": tasks,
        }
        self.clear()
        return made


class Log:
    """`log.jsonl` in a run's directory, and progress on standard error."""

    def __init__(self, path: Path, *, step: int, quiet: bool) -> None:
        """A resumed run drops the records its predecessor wrote after the saved step."""
        self.path, self.quiet = path, quiet
        self._said = 0.0
        kept = _until(path, step) if step else []
        path.write_text("".join(kept), encoding="utf-8")

    def write(self, record: dict[str, Any]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def progress(self, record: dict[str, Any], left: float) -> None:
        """Loss, speed and time left: redrawn in a terminal, now and then a line elsewhere."""
        now = time.monotonic()
        terminal = sys.stderr.isatty()
        if self.quiet or (not terminal and now - self._said < QUIET_SECONDS):
            return
        self._said = now
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

    def say(self, text: str) -> None:
        if not self.quiet:
            print(f"\n{text}" if sys.stderr.isatty() else text, file=sys.stderr, flush=True)


def _until(path: Path, step: int) -> list[str]:
    if not path.is_file():
        return []
    kept: list[str] = []
    for line in path.read_text("utf-8").splitlines(keepends=True):
        try:
            if json.loads(line).get("step", 0) <= step:
                kept.append(line)
        except ValueError:  # the last line of a killed run may be cut short
            continue
    return kept
