"""The vocabulary for tasks that need many words."""

from __future__ import annotations

from functools import cache

from wavefront.tasks.base import PROCEDURAL


@cache
def vocabulary() -> tuple[str, ...]:
    """Return six thousand lower-case words of WikiText-2, neither very common nor very rare."""
    return tuple((PROCEDURAL / "words.txt").read_text("ascii").split())
