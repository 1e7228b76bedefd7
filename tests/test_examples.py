"""The examples run, and the strategy among them keeps the laws."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from wavefront import spec
from wavefront.testing import check

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=[path.stem for path in EXAMPLES])
def test_an_example_runs(example: Path) -> None:
    if "transformers" in example.stem and find_spec("transformers") is None:
        pytest.skip("transformers is not installed")
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "error"}
    done = subprocess.run(
        [sys.executable, str(example)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_a_strategy_from_outside_keeps_the_laws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT)
    made = spec.resolve("examples.new_schedule.OutsideIn(size=3)", "schedules")
    assert repr(made) == "examples.new_schedule.OutsideIn(size=3)"
    assert "reads_only_its_reach" in check(made)
