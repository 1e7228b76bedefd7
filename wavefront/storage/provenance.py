"""Provenance: the git commit of this package, if it is known."""

from __future__ import annotations

import contextlib
import json
import subprocess
from functools import cache
from importlib import metadata
from pathlib import Path

PACKAGE = Path(__file__).parents[1]
SHORT = 12  # digits of a commit id


@cache
def commit() -> str | None:
    """Return the commit of a checkout (with -dirty if it has changes) or of an install from git."""
    return _of_checkout() or _of_install()


def _of_checkout() -> str | None:
    """Return the commit of the git checkout that holds this package."""
    command = ["git", "-C", str(PACKAGE), "describe", "--always", "--dirty", f"--abbrev={SHORT}"]
    command += ["--exclude=*"]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        described = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
        # A virtual environment may lie inside another repository.
        tracked = subprocess.run(
            ["git", "-C", str(PACKAGE), "ls-files", "--error-unmatch", "__init__.py"],
            capture_output=True,
            timeout=10,
        )
        return described.stdout.strip() if tracked.returncode == 0 else None
    return None


def _of_install() -> str | None:
    """Return the commit that pip recorded for `pip install git+https://…`."""
    with contextlib.suppress(metadata.PackageNotFoundError, ValueError, AttributeError):
        recorded = json.loads(
            metadata.distribution("wavefront").read_text("direct_url.json") or "{}"
        )
        return recorded.get("vcs_info", {}).get("commit_id", "")[:SHORT] or None
    return None
