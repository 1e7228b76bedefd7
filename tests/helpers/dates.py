"""A solver for `date_understanding`: one pattern per story, and the standard calendar."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date, datetime, timedelta

from helpers.solvers import letter

Rule = tuple[str, Callable[..., date]]
WEEKDAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
COUNTING = re.split(
    " ", "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth"
)
DATE = r"((?:\d+/\d+/\d{4})|(?:[A-Z][a-z]+\.? \d+(?:st|nd|rd|th)?, \d{4}))"


def read(text: str) -> date:
    """`9/7/2003`, `Sep 9, 1909`, `Sept. 1st, 2021`, `April 30, 2021`."""
    text = re.sub(r"(\d)(?:st|nd|rd|th)", r"\1", text).replace("Sept.", "Sep")
    for form in ("%m/%d/%Y", "%b %d, %Y", "%B %d, %Y"):
        try:
            return datetime.strptime(text, form).date()
        except ValueError:
            continue
    raise AssertionError(text)


def days(number: int) -> timedelta:
    return timedelta(days=number)


def years(day: date, number: int) -> date:
    try:
        return day.replace(year=day.year + number)
    except ValueError:
        return day.replace(year=day.year + number, day=28)


def month_end(year: int, month: int) -> date:
    return date(year + month // 12, month % 12 + 1, 1) - days(1)


def months(day: date, number: int) -> date:
    index = day.year * 12 + day.month - 1 + number
    last = month_end(index // 12, index % 12 + 1)
    return last.replace(day=min(day.day, last.day))


def nearest_weekday(year: str, wanted: str) -> date:
    first = date(int(year), 1, 1)
    return next(day for n in range(7) if WEEKDAYS[(day := first + days(n)).weekday()] == wanted)


def palindrome_day(year: str) -> date:
    every = (date(int(year), 1, 1) + days(n) for n in range(365))
    return next(day for day in every if f"{day:%m%d%Y}" == f"{day:%m%d%Y}"[::-1])


def thanksgiving(year: str) -> date:
    november = (date(int(year), 11, n) for n in range(1, 31))
    return [day for day in november if day.weekday() == 3][3]


def worked_since(started: str, number: str, second: str) -> date:
    return years(read(f"{second}, {started}") - days(1), int(number))


def visited(day: str, month: str, year: str, visit: str) -> date:
    return months(read(f"{month} {day}, {year}"), int(visit) - 1)


# The first pattern that matches decides, so special patterns come before general ones.
RULES: tuple[Rule, ...] = (
    (r"Jane thinks today is (\S+), but John thinks today is (\S+)\. (\w+) is correct",
     lambda jane, john, who: read(jane if who == "Jane" else john)),
    (r"thought today is (\S+), but today is in fact .* which is 1 day later",
     lambda text: read(text) + days(1)),
    (r"Christmas Eve of (\d+)", lambda year: date(int(year), 12, 24)),
    (r"Christmas Day of (\d+)", lambda year: date(int(year), 12, 25)),
    (r"last day of the (\w+) quarter of (\d+)",
     lambda quarter, year: month_end(int(year), 3 * COUNTING.index(quarter) + 3)),
    (r"Today is the first day of (\d+)", lambda year: date(int(year), 1, 1)),
    (r"This is the last day of (\d+)", lambda year: date(int(year), 12, 31)),
    (r"the (\w+) day of the (\w+) month of (\d+)",
     lambda day, month, year: date(int(year), COUNTING.index(month) + 1, COUNTING.index(day) + 1)),
    (r"celebrating the last day of (\w+) (\d+)",
     lambda month, year: month_end(int(year), read(f"{month} 1, {year}").month)),
    (r"born on the last day of Feburary in (\d+)\. Today is her (\d+)-year-old",
     lambda year, age: years(month_end(int(year), 2), int(age))),
    (rf"married on {DATE}\. It is their (\d+)-year", lambda text, n: years(read(text), int(n))),
    (rf"married on {DATE}\. Today is their golden", lambda text: years(read(text), 50)),
    (rf"married on {DATE}\. Today is their silver", lambda text: years(read(text), 25)),
    (rf"^{DATE} is like yesterday .* ten years ago", lambda text: years(read(text), 10)),
    (rf"quited her job on {DATE}\. (\d+) days have", lambda text, n: read(text) + days(int(n))),
    (rf"^On {DATE} Jane bought (\d+) eggs", lambda text, n: read(text) + days(int(n))),
    (r"^(\d+) is coming in (\d+) hours",
     lambda year, hours: (datetime(int(year), 1, 1) - timedelta(hours=int(hours))).date()),
    (r"In the UK.* today is (\d+)/(\d+)/(\d+)",
     lambda day, month, year: date(int(year), int(month), int(day))),
    (r"on the (\d+)\w\w of each month starting from the (\w+) of (\d+)\. It is her (\d+)", visited),
    (r"first day of (\d+) is a \w+, and today is the first (\w+)", nearest_weekday),
    (r"palindrome day of (\d+)", palindrome_day),
    (r"US Thanksgiving of (\d+)", thanksgiving),
    (r"Today is (\d+)/(\d+)[.,].*?(?:NFL|year) (\d{4})",
     lambda month, day, year: date(int(year), int(month), int(day))),
    (r"got her job in (\d+)\. Today is her (\d+)-year .* on (\w+ \d+), her second day",
     worked_since),
    (rf"deadline is {DATE}, which is (\d+) days away", lambda text, n: read(text) - days(int(n))),
    (rf"[Dd]ay before yesterday was {DATE}", lambda text: read(text) + days(2)),
    (rf"two days ago, on {DATE}", lambda text: read(text) + days(2)),
    (rf"day after tomorrow, on {DATE}", lambda text: read(text) - days(2)),
    (rf"One week from now it will be {DATE}", lambda text: read(text) - days(7)),
    (rf"It was {DATE} a week ago", lambda text: read(text) + days(7)),
    (rf"(?:Yesterday was|Yesterday,|scheduled to be on) {DATE}", lambda text: read(text) + days(1)),
    (rf"[Tt]omorrow(?: is|,| \(\w+,) {DATE}", lambda text: read(text) - days(1)),
    (DATE, read),
)  # fmt: skip
SHIFTS: dict[str, Callable[[date], date]] = {
    "today": lambda day: day,
    "tomorrow": lambda day: day + days(1),
    "yesterday": lambda day: day - days(1),
    "24 hours later": lambda day: day + days(1),
    "one week from today": lambda day: day + days(7),
    "one week ago from today": lambda day: day - days(7),
    "10 days ago": lambda day: day - days(10),
    "a month ago": lambda day: months(day, -1),
    "one year ago from today": lambda day: years(day, -1),
}


def date_understanding(question: str) -> str:
    found = re.match(r"(.*) What is the date (.*) in MM/DD/YYYY\?", question)
    assert found, question
    story, asked = found.groups()
    for pattern, rule in RULES:
        if match := re.search(pattern, story):
            return letter(question, f"{SHIFTS[asked](rule(*match.groups())):%m/%d/%Y}")
    raise AssertionError(story)
