"""What a model wrote, read and judged: the final answer of a text, an expression, a program.

Two readings of every answer: strict takes only the form that was asked for, flexible also finds an
answer that was written otherwise. Both verdicts are always reported.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Grade:
    """A verdict, the answer that was read, and how: "strict", "flexible" or "executed".

    `correct` is the verdict by which results are counted; `layers` is what stood around code that
    was run.
    """

    correct: bool
    answer: str | None
    how: str
    strict: bool = False
    flexible: bool = False
    layers: tuple[str, ...] = ()
