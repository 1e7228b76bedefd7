r"""Grade mathematical answers: read the last `\boxed` and compare two expressions.

Two answers are equal if they have the same spelling after normalisation, or if math-verify proves
it. The first test is cheap and covers text that no algebra system can parse.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import lru_cache

from wavefront.core.errors import MissingExtraError, RunError, install_command
from wavefront.tasks.grading import Grade

SECONDS = 5  # time limit of one comparison by math-verify
CHILD_SECONDS = 60.0  # the same in a child process, with its start and the parsing
_CHILD = (
    "import sys; sys.path[:] = {path!r}; "
    "from wavefront.tasks.grading.maths import compare_input; compare_input()"
)
MAX_CHARACTERS = 400  # longer answers are not given to math-verify
BOX = re.compile(r"\\(?:boxed|fbox)(?![a-zA-Z])\s*")
SPOKEN = re.compile(r"\b(?:answer is|answer:)[\s:*]*(.+)", re.IGNORECASE)
OPENING = re.compile(r"\$\$?|\\\(|\\\[")  # of a formula inside text
CLOSING = {"$": "$", "$$": "$", "\\(": "\\)", "\\[": "\\]"}
NUMBER = re.compile(r"-?(?:\d[\d,]*(?:\.\d+)?|\.\d+)(?:/\d+)?")
SPELLINGS: tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...] = (
    (re.compile(r"\\[dt]frac(?![a-zA-Z])"), r"\\frac"),
    (re.compile(r"\\(?:left|right|displaystyle|big|Big)(?![a-zA-Z])"), ""),
    (re.compile(r"\\(?:text|mbox|textbf|mathrm|textrm)\s*\{([^{}]*)\}"), r"\1"),
    (re.compile(r"\\[!,;: ]|~|\s+"), ""),
    (re.compile(r"\^\{?\\circ\}?|\\degree|\\%|%|\\\$|\$"), ""),
    (re.compile(r"\\frac(\d)(\d)"), r"\\frac{\1}{\2}"),
    (re.compile(r"\\sqrt(\d)"), r"\\sqrt{\1}"),
    (re.compile(r"^[a-zA-Z](?:\([a-z]\))?=(?=[^=]+$)"), ""),
    (re.compile(r"(?<![\d.])(?<!\d,)0+(?=\d)"), ""),
    (re.compile(r"(?<!\d)(?=\.\d)"), "0"),
    (re.compile(r"(\d\.)(\d*0)(?!\d)"), lambda match: match[1] + match[2].rstrip("0")),
    (re.compile(r"\.(?!\d)$|(?<=\d)\.(?!\d)"), ""),
)


def last_boxed(text: str) -> str | None:
    r"""Return the content of the last `\boxed` or `\fbox`, or None without a closed one."""
    boxes = list(BOX.finditer(text))
    if not boxes:
        return None
    at = boxes[-1]
    if not text[at.end() :].startswith("{"):
        word = re.match(r"\\?[a-zA-Z]+|[^\s$\\{}.]+", text[at.end() :])
        return word.group() if word else None
    depth, start = 0, at.end() + 1
    escaped = False
    for index in range(at.end(), len(text)):
        char = text[index]
        if not escaped:
            depth += (char == "{") - (char == "}")
        escaped = char == "\\" and not escaped
        if depth == 0:
            return text[start:index].strip()
    return None


def last_expression(text: str) -> str | None:
    """Return the text after "the answer is", else the last formula, else the last number."""
    said = SPOKEN.findall(text)
    if said:
        text = said[-1].strip()
        found = next(_formulas(text), None)
        return (text.rstrip(". *") if found is None else found).strip() or None
    formulas = list(_formulas(text))
    if formulas:
        return formulas[-1].strip() or None
    numbers = NUMBER.findall(text)
    return numbers[-1] if numbers else None


def _formulas(text: str) -> Iterator[str]:
    r"""Yield the formulas in `$…$`, `$$…$$`, `\(…\)` and `\[…\]`, in order.

    Every character is read at most a few times. A pattern such as `\\\((.+?)\\\)` would search the
    rest of the text again for every unmatched opening delimiter.
    """
    at, missing = 0, set[str]()
    while opening := OPENING.search(text, at):
        closing, start = CLOSING[opening[0]], opening.end()
        at = opening.start() + 1
        if closing in missing:
            continue
        end = text.find(closing, start if closing == "$" else start + 1)
        if end < 0:
            missing.add(closing)
        elif end > start:
            yield text[start:end]
            at = end + len(closing)
            if closing == "$" and text.startswith("$", at):
                at += 1


def normalise(answer: str) -> str:
    """Convert answers that differ only in typesetting to one spelling."""
    answer = answer.strip().rstrip(".")
    for pattern, replacement in SPELLINGS:
        answer = pattern.sub(replacement, answer)
    if re.fullmatch(r"-?\d{1,3}(?:,(?:\\!)?\d{3})+(?:\.\d+)?", answer):
        answer = answer.replace(",", "")
    alone = re.fullmatch(r"\(([A-Z])\)", answer)
    return alone[1] if alone else answer


def are_equal(target: str, answer: str) -> bool:
    """Return whether two answers are equal."""
    if not answer.strip():
        return False
    if normalise(target) == normalise(answer):
        return True
    return len(answer) <= MAX_CHARACTERS and _proves_equal(target, answer)


@lru_cache(maxsize=4096)
def _proves_equal(target: str, answer: str) -> bool:
    try:
        from math_verify import parse, verify
    except ImportError:
        raise MissingExtraError(
            f"Grading MATH needs math-verify: {install_command('eval')}."
        ) from None
    # math-verify implements its timeout with a signal, which only the main thread can set.
    if threading.current_thread() is not threading.main_thread():
        return _proves_equal_in_child(target, answer)
    wanted, given = (parse(f"${text}$", parsing_timeout=SECONDS) for text in (target, answer))
    return bool(wanted and given) and verify(wanted, given, timeout_seconds=SECONDS)


def _proves_equal_in_child(target: str, answer: str) -> bool:
    """Compare two answers in the main thread of another process.

    Raises:
        RunError: The process failed.
    """
    code = _CHILD.format(path=[os.path.abspath(entry) for entry in sys.path])
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-c", code],
            input=json.dumps([target, answer]),
            capture_output=True,
            text=True,
            timeout=CHILD_SECONDS,
        )
    except subprocess.TimeoutExpired:  # as if math-verify itself had taken too long
        return False
    if done.returncode:
        raise RunError("The process that compares two answers failed: grade again.")
    return json.loads(done.stdout.splitlines()[-1])


def compare_input() -> None:
    """Print whether the two answers on standard input are equal. The child process calls this."""
    print(json.dumps(_proves_equal(*json.load(sys.stdin))))


def grade_maths(target: str, text: str) -> Grade:
    r"""Grade the content of the last `\boxed` (strict), or the last expression (flexible)."""
    answer = last_boxed(text)
    how = "flexible" if answer is None else "strict"
    if answer is None:
        answer = last_expression(text)
    right = answer is not None and are_equal(target, answer)
    return Grade(right, answer, how, right and how == "strict", right)
