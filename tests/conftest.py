"""Shared by all tests."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

# For the processes that tests start: threads that spin slow each other down.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# Tiny tensors: a second thread costs more than it brings, and tests may run side by side.
torch.set_num_threads(1)

# A shell starts what runs in the background with interruptions ignored, and every process that a
# test starts would inherit it; some tests interrupt theirs.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

PLANTED = """\
from dataclasses import dataclass

from wavefront.core.cache_policy import Cache


@dataclass(frozen=True)
class Mine(Cache):
    refresh: int = 1
"""

# Of a test with more variants, so many evenly spaced ones are unit tests and the others are slow.
UNIT_VARIANTS = 8

_ALLOWED = [
    line
    for line in (Path(__file__).parent / "skips.txt").read_text().splitlines()
    if line and not line.startswith("#")
]
_unlisted: list[str] = []


@pytest.fixture
def planted_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], bool]]:
    """Put a module into the working directory; return a function: was it imported?"""
    (tmp_path / "planted.py").write_text(PLANTED)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield lambda: "planted" in sys.modules
    sys.modules.pop("planted", None)


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark most variants of a test as slow, unless the test is marked as `whole`."""
    tests: dict[str, list[pytest.Item]] = {}
    for item in items:
        if not any(item.get_closest_marker(name) for name in ("slow", "gpu", "whole")):
            tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for variants in tests.values():
        last = len(variants) - 1
        kept = {last * n // (UNIT_VARIANTS - 1) for n in range(UNIT_VARIANTS)}
        for number, item in enumerate(variants):
            if last >= UNIT_VARIANTS and number not in kept:
                item.add_marker(pytest.mark.slow)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    _note(report)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _note(report)


def _note(report: pytest.TestReport | pytest.CollectReport) -> None:
    if report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if not any(re.search(pattern, reason) for pattern in _ALLOWED):
            _unlisted.append(f"{report.nodeid}: {reason}")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A suite that skips what it should run is not green: CI asks for it to be said."""
    if _unlisted and os.environ.get("WAVEFRONT_STRICT_SKIPS"):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for line in _unlisted:
        terminalreporter.write_line(f"skipped for a reason that is not in tests/skips.txt: {line}")
