"""Studies: the paper's experiments on held-out items, one a file; `wavefront measure NAME`.

A study is a function `run(bench) -> Findings`. The file name is its name, and the first line of the
file says what it measures. A leading underscore marks a file that serves the studies.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module
from typing import Any

from wavefront.core.errors import OptionError, did_you_mean
from wavefront.paper.studies._bench import Bench, check
from wavefront.paper.studies._findings import Findings

__all__ = ["Bench", "Findings", "check", "find", "names"]


def names() -> list[str]:
    """Every study."""
    found = (module.name for module in pkgutil.iter_modules(__path__))
    return sorted(name for name in found if not name.startswith("_"))


def find(name: str) -> Any:
    """The module of a study: `run`, and `DEFAULTS`, what it wants of a bench that is not told."""
    if name not in names():
        listed = ", ".join(names())
        raise OptionError(
            f"There is no study {name!r}{did_you_mean(name, names())}; there are: {listed}."
        )
    return import_module(f"{__name__}.{name}")
