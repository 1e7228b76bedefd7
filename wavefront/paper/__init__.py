"""Paper: every table and figure of the paper as an experiment, one module each, and its claims.

A module that defines `NEEDS`, `SMALL`, `PAPER` and `run` is an experiment; see `Experiment`.
It imports `evaluation`, `analysis` and the folders that these may import.
Start reading at `experiment`, then at `main`; `claims` has the rules of the verdicts.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from wavefront.core.errors import OptionError, did_you_mean

if TYPE_CHECKING:
    from wavefront.paper.experiment import Experiment

__all__ = ["NAMES", "Description", "describe", "find", "names"]

# The paper's own experiments in its order, appendices included.
NAMES = (
    "decode-order", "main", "bertscore", "mhco", "size-radius", "bbh", "case", "baselines",
    "parity", "steps", "temperature", "priority", "latency", "calibration", "dynamics", "gradient",
)  # fmt: skip


@cache
def names() -> tuple[str, ...]:
    """Return the names of all experiments: the paper's own in its order, then all others.

    An experiment is a module of this package that defines `run`. Its name has dashes where the
    module has underscores.
    """
    modules = sorted(Path(__file__).parent.glob("*.py"))
    found = [file for file in modules if "\ndef run(" in file.read_text("utf-8")]
    others = (file.stem.replace("_", "-") for file in found)
    return (*NAMES, *(name for name in others if name not in NAMES))


class Description(NamedTuple):
    """What `wavefront paper list` says about an experiment."""

    name: str
    paper: str  # the table or figure
    question: str  # the first line of the module
    needs: str


def describe(name: str) -> Description:
    """Return the description of an experiment that `names` lists.

    This reads the module without importing it, so it needs neither torch nor matplotlib.
    """
    from wavefront.paper.published import place_in_paper

    file = Path(__file__).with_name(f"{name.replace('-', '_')}.py")
    module = ast.parse(file.read_text("utf-8"))
    question = (ast.get_docstring(module) or "").partition("\n")[0].partition(": ")[2].rstrip(".")
    needs = next(
        ast.literal_eval(line.value)
        for line in module.body
        if isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) == "NEEDS"
    )
    return Description(name, place_in_paper(name), question, needs)


def find(name: str) -> Experiment:
    """Return an experiment by its name.

    Raises:
        OptionError: There is no such experiment.
    """
    known = names()
    if name not in known:
        listed = ", ".join(known)
        raise OptionError(
            f"There is no experiment {name!r}{did_you_mean(name, known)}; there are: {listed}."
        )
    from wavefront.paper.experiment import Experiment

    return Experiment.load(name)
