"""Close the open brackets, by writing the input in pieces with the stack after each."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from wavefront.tasks.base import Draft, Procedural, Wordings, choose, draw_int, worked_answer

WORDINGS = Wordings(
    real="Complete the rest of the sequence, making sure that the parentheses are closed properly."
    " Input: {}",
    other=(
        "Close the open brackets. Input: {}",
        "Complete the sequence so that every bracket is closed: {}",
    ),
    reserved=("Which brackets must follow? {}", "Finish this bracket sequence: {}"),
)
CLOSING = {"(": ")", "[": "]", "{": "}", "<": ">"}
OPENING = tuple(CLOSING)
MAX_ANSWER = 210  # symbols and line ends in the worked answer


@dataclass(frozen=True)
class DyckLanguages(Procedural):
    """One to three brackets are left open at the end of the input."""

    kind = "brackets"

    def draft(self, rng: Random, reserved: bool) -> Draft:
        while True:
            symbols, stack = prefix(rng)
            lines = pieces(symbols)
            if sum(len(line) // 2 + 2 for line in lines) < MAX_ANSWER:
                break
        text = " ".join(symbols)
        target = " ".join(CLOSING[symbol] for symbol in reversed(stack))
        question, original = WORDINGS.ask(rng, reserved, text)
        return Draft(
            question, worked_answer("\n".join(lines), target), target, text, original=original
        )


def prefix(rng: Random) -> tuple[list[str], list[str]]:
    """Return a prefix of a balanced sequence, and the one to three brackets that it leaves open.

    Most inputs are short and few have a hundred symbols, as in the benchmark.
    """
    wanted = int(2 + 98 * rng.random() ** 3.3)
    left = draw_int(rng, 1, 3 if wanted > 2 else 2)
    symbols: list[str] = []
    stack: list[str] = []
    while len(symbols) < wanted or not 0 < len(stack) <= left:
        room = len(stack) < 8 and len(symbols) < wanted
        if room and (not stack or rng.random() < 0.55):
            stack.append(choose(rng, OPENING))
            symbols.append(stack[-1])
        elif stack:
            symbols.append(CLOSING[stack.pop()])
        else:
            wanted += 1
    return symbols, stack


def pieces(symbols: list[str]) -> list[str]:
    """Write each run of opening then closing brackets, and the stack after it."""
    lines: list[str] = []
    stack: list[str] = []
    start = 0
    for index, symbol in enumerate(symbols, 1):
        if symbol in CLOSING:
            stack.append(symbol)
        else:
            stack.pop()
        if index == len(symbols) or (symbol not in CLOSING and symbols[index] in CLOSING):
            lines.append(f"{' '.join(symbols[start:index])} | {' '.join(stack)}".rstrip())
            start = index
    return lines
