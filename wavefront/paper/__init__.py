"""Paper: every table and figure of the paper as an experiment, one module each, and its claims.

It imports `evaluation`, `analysis` and the rooms below them.
Start reading at `experiment`, then at `main`; `claims` has the rules of the verdicts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wavefront.core.errors import OptionError, did_you_mean

if TYPE_CHECKING:
    from wavefront.paper.experiment import Experiment

__all__ = ["NAMES", "find"]

# In the order of the paper, its appendices included. The module has underscores for dashes.
NAMES = (
    "decode-order", "main", "bertscore", "mhco", "size-radius", "bbh", "case", "baselines",
    "parity", "steps", "temperature", "priority", "latency", "calibration", "dynamics", "gradient",
)  # fmt: skip


def find(name: str) -> Experiment:
    """Return an experiment by its name.

    Raises:
        OptionError: There is no such experiment.
    """
    if name not in NAMES:
        listed = ", ".join(NAMES)
        raise OptionError(
            f"There is no experiment {name!r}{did_you_mean(name, NAMES)}; there are: {listed}."
        )
    from wavefront.paper.experiment import Experiment

    return Experiment.load(name)
