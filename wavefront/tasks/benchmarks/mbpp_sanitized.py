"""MBPP sanitized: the items of MBPP that the authors verified and reworded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from wavefront.tasks.benchmarks.mbpp import Mbpp


@dataclass(frozen=True, kw_only=True)
class MbppSanitized(Mbpp):
    """257 test items of 427."""

    file: ClassVar[str] = "mbpp/sanitized-mbpp.json"

    @property
    def template(self) -> str:
        return "mbpp"
