"""MATH-500: five hundred test problems of MATH."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from wavefront.tasks.benchmarks.math import Math


@dataclass(frozen=True, kw_only=True)
class Math500(Math):
    """The subset that most publications use."""

    splits: ClassVar[tuple[str, ...]] = ("test",)
    files: ClassVar[Mapping[str, str]] = {"test": "math/math500.jsonl"}
