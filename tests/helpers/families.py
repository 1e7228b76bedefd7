"""Strategies paired with the model families that support them."""

from __future__ import annotations

from typing import Any

import pytest

from wavefront.core import spec


def with_families(strategies: list[Any]) -> list[Any]:
    """Return each strategy, a spec or a `pytest.param`, with every family that supports it."""
    found = []
    for strategy in strategies:
        plain = isinstance(strategy, str)
        text, marks = (strategy, ()) if plain else (*strategy.values, strategy.marks)
        copies = spec.resolve(text, "strategies").reads_copies
        families = ("llada",) if copies else ("llada", "dream")
        found += [pytest.param(text, family, marks=marks) for family in families]
    return found
