"""Graders: find the final answer, expression or program in a model's text, and check it.

Every answer is read in two ways. Strict reading accepts only the requested form. Flexible reading
also finds an answer in another form. A grade always reports both. Start reading at `final_answer`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Grade:
    """A verdict, the answer that was read, and how it was read.

    `how` is "strict", "flexible" or "executed". Results count `correct`. `layers` lists the sandbox
    layers that were active if code was run.
    """

    correct: bool
    answer: str | None
    how: str
    strict: bool = False
    flexible: bool = False
    layers: tuple[str, ...] = ()
