"""Words for the tasks that need many."""

from __future__ import annotations

from functools import cache

from wavefront.task import SHELF


@cache
def vocabulary() -> tuple[str, ...]:
    """Six thousand lower-case words of WikiText-2, neither very common nor very rare."""
    return tuple((SHELF / "words.txt").read_text("ascii").split())
