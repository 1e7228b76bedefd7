"""Every public name and attribute has a written type."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import wavefront
from wavefront import testing

ROOT = Path(wavefront.__file__).parents[1]


@pytest.fixture(scope="module")
def symbols() -> list[dict[str, Any]]:
    """Return every symbol of the package as pyright reports it to users."""
    if shutil.which("pyright", path=str(Path(sys.executable).parent)) is None:
        pytest.skip("pyright is not installed")
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable]
    command += ["--verifytypes", "wavefront", "--ignoreexternal", "--outputjson"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, env=env, cwd=ROOT, check=False)
    return json.loads(done.stdout)["typeCompleteness"]["symbols"]


def public_symbols() -> set[str]:
    """Return the qualified names of all public names."""
    named = [getattr(wavefront, name) for name in wavefront.__all__]
    named += [getattr(testing, name) for name in testing.__all__]
    found = (one for one in named if hasattr(one, "__qualname__"))
    return {f"{one.__module__}.{one.__qualname__}" for one in found}


@pytest.mark.slow
def test_every_public_symbol_has_a_written_type(symbols) -> None:
    names = {symbol["name"] for symbol in symbols}
    assert public_symbols() <= names
    mine = [
        symbol
        for symbol in symbols
        if any(
            symbol["name"] == home or symbol["name"].startswith(f"{home}.")
            for home in public_symbols()
        )
    ]
    assert len(mine) > 300  # the list is complete
    guessed = {
        symbol["name"]: [one["message"] for one in symbol["diagnostics"]]
        for symbol in mine
        if symbol["isTypeAmbiguous"] or not symbol["isTypeKnown"]
    }
    assert guessed == {}
