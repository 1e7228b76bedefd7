"""Experiments: every table and figure of the paper, one a file; `wavefront experiment NAME`.

An experiment is a module with `run(lab) -> Findings`, `SMALL` and `PAPER`, the scales it runs at,
and `NEEDS`. The file name is its name, with dashes for underscores; the first line of the file says
what it asks. A leading underscore marks a file that serves the experiments.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module
from typing import Any

from wavefront.core.errors import OptionError, did_you_mean
from wavefront.paper._lab import Lab, Scale
from wavefront.paper._printed import where

__all__ = ["Lab", "Scale", "about", "find", "names"]

# In the order of the paper, its appendices included.
NAMES = (
    "decode-order", "main", "bertscore", "mhco", "size-radius", "bbh", "case", "baselines", "parity",
    "steps", "temperature", "priority", "latency", "calibration", "dynamics", "gradient",
)  # fmt: skip


def names() -> list[str]:
    """Every experiment, in the paper's order; one of a new file comes last."""
    found = [module.name.replace("_", "-") for module in pkgutil.iter_modules(__path__)
             if not module.name.startswith("_") and not module.ispkg]  # fmt: skip
    return [name for name in NAMES if name in found] + sorted({*found} - {*NAMES})


def find(name: str) -> Any:
    """The module of an experiment."""
    if name not in names():
        listed = ", ".join(names())
        raise OptionError(
            f"There is no experiment {name!r}{did_you_mean(name, names())}; there are: {listed}."
        )
    return import_module(f"{__name__}.{name.replace('-', '_')}")


def about(name: str) -> dict[str, str]:
    """What a list of experiments says of one."""
    module = find(name)
    line = (module.__doc__ or "").partition("\n")[0].partition(": ")[2].rstrip(".")
    return {"name": name, "paper": where(name), "what": line, "needs": module.NEEDS}
