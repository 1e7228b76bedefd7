"""The limits of the device are measured once per test process: a measurement takes a second."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch

from wavefront.bench import machine

_measure = machine.measure_limits


@cache
def _measure_once(device: torch.device, dtype: torch.dtype) -> machine.DeviceLimits:
    return _measure(device, dtype, repeats=2)


@pytest.fixture(autouse=True)
def limits_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(device: torch.device, dtype: torch.dtype, **_: Any) -> machine.DeviceLimits:
        return _measure_once(device, dtype)

    monkeypatch.setattr(machine, "measure_limits", measure)
