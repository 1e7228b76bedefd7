"""Read the final answer of a text: after the mark `####`, or the last answer of its kind."""

from __future__ import annotations

import re

from wavefront.tasks.grading import Grade

MARK = "####"
OPTION = re.compile(r"\(([A-Z])\)")
NUMBER = re.compile(r"-?(?:\d[\d,]*(?:\.\d+)?|\.\d+)")
ANYWHERE = {
    "number": NUMBER,
    "choice": OPTION,
    "yes_no": re.compile(r"\b(?:yes|no)\b", re.IGNORECASE),
    "true_false": re.compile(r"\b(?:true|false)\b", re.IGNORECASE),
    "valid_invalid": re.compile(r"\b(?:valid|invalid)\b", re.IGNORECASE),
}
# The final answers of a kind, as the benchmark writes them.
ANSWERS = {
    "yes_no": ("Yes", "No"),
    "true_false": ("True", "False"),
    "valid_invalid": ("valid", "invalid"),
}
LISTED = re.compile(r"^\(([A-Z])\) ", re.MULTILINE)
PLAIN_NUMBER = r"-?[0-9]{1,12}(?:\.[0-9]{1,6})?"
SPOKEN = re.compile(r"\banswer is:?[ *]*(.*)", re.IGNORECASE)
EMPHASIS = re.compile(r"\*\*|\\boxed|\\text(?:bf)?|[{}`$]")


def grade_final(kind: str, target: str, text: str, *, spoken: bool = False) -> Grade:
    """Grade the text after the last `####`, or without that mark the last answer of this kind.

    Args:
        kind: What a final answer is: number, choice, yes_no, true_false, words, …
        target: The correct final answer.
        text: The model's text.
        spoken: Without the mark, try the text after the last "the answer is" first.
    """
    wanted = normalise(kind, target)
    _, mark, after = text.rpartition(MARK)
    if mark:
        lines = after.strip().splitlines()
        answer = normalise(kind, lines[0] if lines else "")
        right = answer == wanted
        return Grade(right, answer or None, "strict", right, right)
    answer = _spoken(kind, text) if spoken else ""
    answer = answer or _last(kind, text)
    right = answer == wanted
    return Grade(right, answer or None, "flexible", False, right)


def choices_of(kind: str, prompt: str) -> tuple[str, ...]:
    """Return the possible final answers; empty if they cannot be listed.

    Args:
        kind: What a final answer is; see `grade_final`.
        prompt: The question. Its last list of options says which letters there are.
    """
    if kind != "choice":
        return ANSWERS.get(kind, ())
    letters = "".join(LISTED.findall(prompt))
    return tuple(f"({letter})" for letter in letters[letters.rfind("A") :]) if letters else ()


def final_pattern(kind: str, prompt: str) -> str | None:
    """Return a regular expression for texts that end with a marked final answer of this kind.

    None if there is no such expression. Takes the same arguments as `choices_of`.
    """
    listed = "|".join(re.escape(choice) for choice in choices_of(kind, prompt))
    answer = PLAIN_NUMBER if kind == "number" else listed
    return f"(?s:.*){MARK} (?:{answer})" if answer else None


def _spoken(kind: str, text: str) -> str:
    said = SPOKEN.findall(text)
    if not said:
        return ""
    found = said[-1] if kind == "brackets" else EMPHASIS.sub("", said[-1])
    if kind in ANYWHERE:
        first = ANYWHERE[kind].search(found)
        return normalise(kind, first.group()) if first else _letter(kind, found)
    return normalise(kind, found)


def _letter(kind: str, found: str) -> str:
    alone = re.fullmatch(r"\W*([A-Z])\W*", found) if kind == "choice" else None
    return f"({alone[1]})" if alone else ""


def _last(kind: str, text: str) -> str:
    if kind in ANYWHERE:
        found = [match.group() for match in ANYWHERE[kind].finditer(text)]
    else:
        found = [line for line in text.splitlines() if line.strip()]
    return normalise(kind, found[-1]) if found else ""


def normalise(kind: str, answer: str) -> str:
    """Convert equivalent answers to one spelling: the benchmark's."""
    answer = " ".join(answer.strip().strip("<>" if kind != "brackets" else "").split())
    if kind == "number":
        return _number(answer)
    if kind == "choice":
        match = OPTION.search(answer)
        return match.group() if match else f"({answer.rstrip('.)')})"
    if kind in ("yes_no", "true_false", "valid_invalid"):
        return answer.strip("*. ").capitalize()
    if kind == "brackets":
        return " ".join(char for char in answer if char in "()[]{}<>")
    return answer.rstrip(".").replace(",", "")


def _number(answer: str) -> str:
    match = NUMBER.search(answer.replace("$", ""))
    if not match:
        return answer
    digits = match.group().replace(",", "")
    whole, _, rest = digits.partition(".")
    rest = rest.rstrip("0")
    if whole in ("", "-"):
        whole += "0"
    return f"{whole}.{rest}" if rest else whole
