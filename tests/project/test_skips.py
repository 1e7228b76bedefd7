"""CI fails on a skip whose reason is not listed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parents[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("reason", "strict", "code"),
    [("no such thing", "1", 1), ("no such thing", "", 0), ("WAVEFRONT_DATA is not set", "1", 0)],
)
def test_unlisted_skip_fails_the_run(tmp_path, reason, strict, code):
    (tmp_path / "conftest.py").write_text((HERE / "conftest.py").read_text())
    (tmp_path / "skips.txt").write_text((HERE / "skips.txt").read_text())
    (tmp_path / "test_one.py").write_text(
        f"import pytest\n\ndef test_a():\n    pass\n\ndef test_b():\n    pytest.skip({reason!r})\n"
    )
    found = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        cwd=tmp_path,
        env={**os.environ, "WAVEFRONT_STRICT_SKIPS": strict},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == code, found.stdout + found.stderr
