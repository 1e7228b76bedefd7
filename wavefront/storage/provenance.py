"""Source: the commit that this package was taken from, where that can be known."""

from __future__ import annotations

import contextlib
import json
import subprocess
from functools import cache
from importlib import metadata
from pathlib import Path

PACKAGE = Path(__file__).parents[1]
SHORT = 12  # digits


@cache
def commit() -> str | None:
    """Of a checkout, marked -dirty when it was changed since, or of an install from git."""
    return _of_checkout() or _of_install()


def _of_checkout() -> str | None:
    command = ["git", "-C", str(PACKAGE), "describe", "--always", "--dirty", f"--abbrev={SHORT}"]
    command += ["--exclude=*"]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        told = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
        # An environment may lie inside the repository of somebody else.
        inside = subprocess.run(
            ["git", "-C", str(PACKAGE), "ls-files", "--error-unmatch", "__init__.py"],
            capture_output=True,
            timeout=10,
        )
        return told.stdout.strip() if inside.returncode == 0 else None
    return None


def _of_install() -> str | None:
    """What pip wrote down of `pip install git+https://…`."""
    with contextlib.suppress(metadata.PackageNotFoundError, ValueError, AttributeError):
        told = json.loads(metadata.distribution("wavefront").read_text("direct_url.json") or "{}")
        return told.get("vcs_info", {}).get("commit_id", "")[:SHORT] or None
    return None
