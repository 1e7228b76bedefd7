"""The learning-rate schedule: warm-up, a constant phase, linear decay to zero."""

from __future__ import annotations

import time

PLAN_AFTER = 60  # steps before a run is planned; the later half, without warm-up costs, is timed


def lr_factor(step: int, progress: float, *, warmup: int, decay_fraction: float) -> float:
    """Return the factor on the learning rate, in [0, 1].

    Warm-up counts steps, because the optimiser needs steps to collect its statistics. Decay follows
    `progress` in [0, 1] through this run, by steps or by time, so it always ends with the run.
    """
    warm = min(1.0, (step + 1) / warmup) if warmup else 1.0
    left = 1.0 - min(1.0, max(0.0, progress))
    fall = min(1.0, left / decay_fraction) if decay_fraction else 1.0
    return warm * fall


class StepClock:
    """Progress by steps. It depends only on the step, not on interruptions."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def start(self) -> None:
        """Do nothing: steps count from the start of the run."""

    def progress(self, step: int) -> float:
        return step / self.steps

    def seconds_left(self, step: int, pace: float) -> float:
        """Return the seconds left, at `pace` seconds per step."""
        return (self.steps - step) * pace

    def is_over(self, step: int) -> bool:
        return step >= self.steps


class PlannedClock(StepClock):
    """Progress by steps, whose number is planned from a time limit and the pace of the first ones.

    A resumed run keeps the plan, so its schedule does not depend on interruptions.
    """

    def __init__(self, minutes: float, *, first: int, seconds: float) -> None:
        """Plan a run of `minutes`, of which the steps before `first` have used `seconds`."""
        super().__init__(0)
        self._left = 60.0 * minutes - seconds
        self._first = first
        self._start = self._timed = time.monotonic()
        self._untimed = 0

    def start(self) -> None:
        self._start = self._timed = time.monotonic()

    def progress(self, step: int) -> float:
        done, now = step - self._first, time.monotonic()
        if done <= PLAN_AFTER // 2:
            self._timed, self._untimed = now, done
        if not self.steps and done >= PLAN_AFTER:
            pace = max(1e-9, now - self._timed) / (done - self._untimed)
            self.steps = step + max(1, int((self._left - (now - self._start)) / pace))
        return step / self.steps if self.steps else 0.0

    def seconds_left(self, step: int, pace: float) -> float:
        """Return the seconds left, at `pace` seconds per step."""
        return super().seconds_left(step, pace) if self.steps else self._left

    def is_over(self, step: int) -> bool:
        return bool(self.steps) and step >= self.steps


class WallClock:
    """Progress by time, from `start` to a fixed number of minutes after the clock was created.

    Time before `start` (compilation) uses up minutes, but the schedule begins at `start`.
    """

    def __init__(self, minutes: float) -> None:
        self._end = time.monotonic() + 60.0 * minutes
        self._start = time.monotonic()

    def start(self) -> None:
        self._start = time.monotonic()

    def progress(self, step: int) -> float:
        total = max(1e-9, self._end - self._start)
        return min(1.0, (time.monotonic() - self._start) / total)

    def seconds_left(self, step: int, pace: float) -> float:
        return max(0.0, self._end - time.monotonic())

    def is_over(self, step: int) -> bool:
        return time.monotonic() >= self._end
