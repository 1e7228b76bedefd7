"""Protocol: the rules for comparing strategies (docs/experiments.md#protocol).

An adaptive strategy has a knob, such as a threshold. All knobs get grids of the same size. Settings
are chosen on the tune half of the items and shown on the report half. Fixed budgets and adaptive
strategies are listed separately.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from itertools import pairwise
from typing import Any

from wavefront.core.errors import OptionError, check_choice

HALVES = ("tune", "report")
FEWEST_VALUES = 5  # of a grid
RATIOS = (1, 2, 4, 8)  # T is N over this, for strategies with a fixed budget

# The values of every knob, from many commits per step to few. A spec names its knob in braces.
GRIDS: Mapping[str, tuple[float, ...]] = {
    "tau": (0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99),
    "leap": (0.75, 0.8, 0.85, 0.9, 0.95, 0.98, 0.99),  # tau of local_leap: at least its `relaxed`
    "factor": (4.0, 2.0, 1.0, 0.5, 0.25, 0.1, 0.05),
    "gamma": (2.0, 1.0, 0.5, 0.2, 0.1, 0.05, 0.01),
}
FIXED = (
    "standard",
    "block(size=8)",
    "block(size=32)",
    "wavefront(size=8, radius=2)",
    "wavefront(size=8, radius=2, grow='accumulate')",
    "wavefront(size=16, radius=4)",
    "left_to_right",
    "rcr(size=32)",
    "tbd(size=32)",
)
ADAPTIVE = (
    "standard(selector=threshold(tau={tau}))",
    "standard(selector=factor(factor={factor}))",
    "standard(selector=entropy_bound(gamma={gamma}))",
    "standard(selector=local_leap(tau={leap}))",
    "standard(selector=hierarchy(tau={tau}))",
    "block(size=8, selector=threshold(tau={tau}))",
    "block(size=32, selector=threshold(tau={tau}))",
    "block(size=32, selector=factor(factor={factor}))",
    "block(size=32, selector=entropy_bound(gamma={gamma}))",
    "block(size=32, selector=local_leap(tau={leap}))",
    "block(size=32, selector=hierarchy(tau={tau}))",
    "left_to_right(selector=threshold(tau={tau}))",
    "wavefront(size=8, radius=2, selector=threshold(tau={tau}))",
    "wavefront(size=16, radius=4, selector=threshold(tau={tau}))",
    "wavefront(size=16, radius=8, selector=threshold(tau={tau}))",
    "adablock(size=16, selector=threshold(tau={tau}))",
    "dsb(size=32, selector=threshold(tau={tau}))",
    "dcd(masks=16, selector=threshold(tau={tau}))",
    "tbd(size=32, selector=threshold(tau={tau}))",
    "edit(tau={tau}, selector=threshold(tau={tau}))",
    "wino(size=32, selector=threshold(tau={tau}))",
    "tide(cascade_rounds=8, horizon=0, selector=threshold(tau={tau}))",
    "tide(cascade_rounds=8, horizon=64, selector=threshold(tau={tau}))",
)


def half_of(item: str) -> str:
    """Return the half that an item belongs to, "tune" or "report".

    It depends only on the item's id, not on the run, the order or the number of items.
    """
    return HALVES[sha256(item.encode()).digest()[0] % 2]


def check_half(half: str) -> None:
    """Raise `OptionError` unless this is one of the halves, or empty for all items."""
    check_choice("half", half, ("", *HALVES))


def check_grids(grids: Mapping[str, Sequence[float]]) -> None:
    """Check that a comparison by these grids is on equal terms.

    Raises:
        OptionError: A grid has fewer than five different values, or fewer than another one.
    """
    sizes = {name: len({*values}) for name, values in grids.items()}
    for name, size in sizes.items():
        if size < FEWEST_VALUES:
            raise OptionError(
                f"The grid of {name} needs at least {FEWEST_VALUES} different values, not {size}.",
                option=name,
            )
        if size != max(sizes.values()):
            raise OptionError(
                f"The grid of {name} has {size} values and another one has {max(sizes.values())}: "
                "give every option the same number of values.",
                option=name,
            )


check_grids(GRIDS)


def knob_of(family: str) -> str | None:
    """Return the knob that a spec leaves open, such as "tau"; None for a fixed spec.

    Raises:
        OptionError: The spec leaves several knobs open, or one without a grid.
    """
    names = [*dict.fromkeys(re.findall(r"\{(\w*)\}", family))]
    if not names:
        return None
    if len(names) > 1 or names[0] not in GRIDS:
        known = ", ".join(f"{{{name}}}" for name in GRIDS)
        raise OptionError(
            f"A strategy may leave at most one option open, one of {known}; {family!r} does not.",
            option="strategy",
            value=family,
        )
    return names[0]


def settings_of(family: str) -> list[str]:
    """Return the specs of a strategy: one for each value of its knob, or the spec itself."""
    knob = knob_of(family)
    if knob is None:
        return [family]
    return [family.replace(f"{{{knob}}}", f"{value:g}") for value in GRIDS[knob]]


def parse_options(parts: Iterable[str]) -> dict[str, Any]:
    """Parse decode options that are written as `name=value`; empty parts are ignored.

    Raises:
        OptionError: A part has no `=`.
    """
    options: dict[str, Any] = {}
    for part in filter(None, (one.strip() for one in parts)):
        name, equal, value = part.partition("=")
        if not equal:
            raise OptionError(
                f"{part!r} is not written as name=value.", option="option", value=part
            )
        try:
            options[name.strip()] = ast.literal_eval(value.strip())
        except (ValueError, SyntaxError):
            options[name.strip()] = value.strip()
    return options


def accuracy_under_parallelism(
    points: Sequence[tuple[float, float]], best: float, *, alpha: float = 3.0, drop: float = 5.0
) -> float:
    """Return AUP: the area under the curve of accuracy against tokens per forward pass.

    This follows d3LLM (Qian et al., ICML 2026; `AUP_leaderboard/aup_utils.py` in its code). Points
    are sorted by parallelism rho; points more than `drop` below the first are dropped.

        AUP = rho_1 y_1 + sum_i (rho_i - rho_{i-1}) (y_i W(y_i) + y_{i-1} W(y_{i-1})) / 2
        W(y) = min(exp(-alpha (1 - y / best)), 1)

    d3LLM refuses a curve whose last point is below that limit. Here that point is dropped.

    Args:
        points: Tokens per forward pass, and accuracy in %.
        best: The highest accuracy of all strategies on the same items, in %.
        alpha: How strongly a lower accuracy counts.
        drop: The percentage points that a setting may lose relative to the least parallel one.

    Raises:
        OptionError: There is no point, or one makes no progress.
    """
    if not points or any(rho <= 0 for rho, _ in points):
        raise OptionError("AUP needs at least one setting, and each must write tokens.")
    ordered = sorted(points)
    kept = [point for point in ordered if point[1] >= ordered[0][1] - drop]

    def weighted(accuracy: float) -> float:
        return accuracy * min(math.exp(-alpha * (1 - accuracy / best)), 1.0) if best else 0.0

    area = kept[0][0] * kept[0][1]
    for (before, low), (rho, accuracy) in pairwise(kept):
        area += (rho - before) * (weighted(accuracy) + weighted(low)) / 2
    return area


def choose(
    settings: Sequence[str],
    *,
    quality: Callable[[str], float],
    cost: Callable[[str], float],
    least: float | None = None,
    most: float | None = None,
) -> str | None:
    """Choose a setting of one strategy on the tune half.

    Args:
        settings: The settings.
        quality: Returns the quality of a setting; more is better.
        cost: Returns its forward passes.
        least: The quality that the choice must reach; the cheapest such setting is chosen.
        most: The cost that the choice may have; the best such setting is chosen.

    Returns:
        The setting, or None if none is allowed.
    """
    allowed = [
        one
        for one in settings
        if (least is None or quality(one) >= least) and (most is None or cost(one) <= most)
    ]
    if not allowed:
        return None
    if least is not None:
        return min(allowed, key=lambda one: (cost(one), -quality(one)))
    return max(allowed, key=lambda one: (quality(one), -cost(one)))
