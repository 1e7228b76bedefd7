"""Dates from a short story: today first, then the shift that is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from random import Random

from wavefront.tasks.base import Draft, Procedural, between, choose, lettered, worked
from wavefront.tasks.procedural._date_stories import DAY, numeric, shifted, tell

# What is asked, and the shift from today in days, months and years.
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
    """A story that tells what day it is, and a question about a day near it."""

    kind = "choice"

    def draft(self, rng: Random, reserved: bool) -> Draft:
        today = date(between(rng, 1900, 2035), 1, 1) + DAY * between(rng, 0, 364)
        number, (story, today, reason) = tell(rng, today, reserved)
        asked, days, months, years = choose(rng, QUESTIONS)
        answer = shifted(today, days, months, years)
        options = [numeric(day) for day in distractors(rng, today, answer)]
        target = f"({chr(65 + options.index(numeric(answer)))})"
        question = f"{story} What is the date {asked} in MM/DD/YYYY?{lettered(options)}"
        steps = f"{reason}\n" if reason else ""
        steps += f"today {numeric(today)}\n{asked}: {numeric(answer)}\n{search(options, answer)}"
        skeleton = f"{number} {today} {asked}"
        return Draft(question, worked(steps, target), target, skeleton)


def search(options: list[str], answer: date) -> str:
    """The options in order, until the right one: a small model cannot find it at a glance."""
    place = options.index(numeric(answer))
    passed = [f"{chr(65 + index)} {option} no" for index, option in enumerate(options[:place])]
    return "\n".join([*passed, f"{chr(65 + place)} {numeric(answer)} yes"])


def distractors(rng: Random, today: date, answer: date) -> list[date]:
    """Five or six different days with the right one among them."""
    days = {answer: None}
    wanted = 6 if rng.random() < 0.85 else 5
    while len(days) < wanted:
        shape = rng.random()
        if shape < 0.3:
            other = answer + DAY * between(rng, -15, 15)
        elif shape < 0.5:
            other = shifted(answer, 0, between(rng, -6, 6), 0)
        elif shape < 0.7:
            other = shifted(answer, 0, 0, between(rng, -90, 90))
        elif shape < 0.9:
            other = answer + DAY * between(rng, -250, 250)
        else:
            other = today
        days[other] = None
    options = list(days)
    rng.shuffle(options)
    return options
