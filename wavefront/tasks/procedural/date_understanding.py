"""Infer a date from a short story: first find today, then apply the shift."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from random import Random

from wavefront.tasks.base import Draft, Procedural, choose, draw_int, option_block, worked_answer
from wavefront.tasks.procedural._date_stories import DAY, numeric_format, shift_date, tell

# The wording of the question, and the shift from today in days, months and years.
QUESTIONS = (
    ("today", 0, 0, 0),
    ("tomorrow", 1, 0, 0),
    ("yesterday", -1, 0, 0),
    ("24 hours later", 1, 0, 0),
    ("one week from today", 7, 0, 0),
    ("one week ago from today", -7, 0, 0),
    ("10 days ago", -10, 0, 0),
    ("a month ago", 0, -1, 0),
    ("one year ago from today", 0, 0, -1),
)


@dataclass(frozen=True)
class DateUnderstanding(Procedural):
    """A story that implies today's date, and a question about a date near it."""

    kind = "choice"

    def draft(self, rng: Random, reserved: bool) -> Draft:
        today = date(draw_int(rng, 1900, 2035), 1, 1) + DAY * draw_int(rng, 0, 364)
        number, (story, today, reason) = tell(rng, today, reserved)
        asked, days, months, years = choose(rng, QUESTIONS)
        answer = shift_date(today, days=days, months=months, years=years)
        options = [numeric_format(day) for day in distractors(rng, today, answer)]
        target = f"({chr(65 + options.index(numeric_format(answer)))})"
        question = f"{story} What is the date {asked} in MM/DD/YYYY?{option_block(options)}"
        steps = f"{reason}\n" if reason else ""
        steps += f"today {numeric_format(today)}\n{asked}: {numeric_format(answer)}\n"
        steps += search_steps(options, answer)
        skeleton = f"{number} {today} {asked}"
        return Draft(question, worked_answer(steps, target), target, skeleton)


def search_steps(options: list[str], answer: date) -> str:
    """List the options in order up to the right one, because a small model needs these steps."""
    place = options.index(numeric_format(answer))
    passed = [f"{chr(65 + index)} {option} no" for index, option in enumerate(options[:place])]
    return "\n".join([*passed, f"{chr(65 + place)} {numeric_format(answer)} yes"])


def distractors(rng: Random, today: date, answer: date) -> list[date]:
    """Return five or six different dates, the right one among them."""
    days = {answer: None}
    wanted = 6 if rng.random() < 0.85 else 5
    while len(days) < wanted:
        shape = rng.random()
        if shape < 0.3:
            other = answer + DAY * draw_int(rng, -15, 15)
        elif shape < 0.5:
            other = shift_date(answer, months=draw_int(rng, -6, 6))
        elif shape < 0.7:
            other = shift_date(answer, years=draw_int(rng, -90, 90))
        elif shape < 0.9:
            other = answer + DAY * draw_int(rng, -250, 250)
        else:
            other = today
        days[other] = None
    options = list(days)
    rng.shuffle(options)
    return options
