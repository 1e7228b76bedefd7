"""Stories for `date_understanding` that tell, directly or not, what day it is today."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, timedelta
from random import Random

from wavefront.tasks.base import between, choose, terms

MONTHS = terms("Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec")
LONG_MONTHS = terms(
    "January February March April May June July August September October November December"
)
ORDINALS = terms(
    "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth"
)
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
DAY = timedelta(days=1)

Told = tuple[str, date, str]  # the story, today, and how today follows where it is not plain
Story = Callable[[Random, date], Told]

# Stories with one date in them, and how many days that date lies after today.
PLAIN = (
    ("Today is {day}.", 0),
    ("It is {day} today.", 0),
    ("Today, {day}, is a day that we will never forget.", 0),
    ("Today is {day}. Jane's appointment will be {n} days later.", 0),
    ("The current local time is {n}:{m:02} pm of {day}.", 0),
    ("Yesterday was {day}.", -1),
    ("Yesterday, {day}, Jane ate {n} pizzas and {m} wings.", -1),
    ("The concert was scheduled to be on {day}, but was delayed by one day to today.", -1),
    ("The day before yesterday was {day}.", -2),
    ("It was {day} a week ago.", -7),
    ("Tomorrow is {day}.", 1),
    ("Jane booked a flight for tomorrow, {day}.", 1),
    ("Jane scheduled {n} apointments with {m} poeple for tomorrow ({weekday}, {day}).", 1),
    ("Today's meeting is rescheduled to {n} am tomorrow, {day}.", 1),
    ("The deadline is {day}, which is {k} days away from now.", 0),
)
RESERVED_PLAIN = (
    ("The letter came today, on {day}.", 0),
    ("Jane left for Rome two days ago, on {day}.", -2),
    ("The exam is the day after tomorrow, on {day}.", 2),
    ("One week from now it will be {day}.", 7),
)


def shifted(day: date, days: int, months: int, years: int) -> date:
    """A day moved; where the month is too short, its last day."""
    month = day.month - 1 + months
    year, month = day.year + years + month // 12, month % 12 + 1
    number = day.day
    while number > 28:
        try:
            return date(year, month, number) + DAY * days
        except ValueError:
            number -= 1
    return date(year, month, number) + DAY * days


def numeric(day: date) -> str:
    return f"{day.month:02}/{day.day:02}/{day.year}"


def short(day: date) -> str:
    return f"{day.month}/{day.day}/{day.year}"


def spoken(day: date) -> str:
    return f"{MONTHS[day.month - 1]} {day.day}, {day.year}"


def ordinal(number: int) -> str:
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{'th' if 10 < number < 14 else ending}"


def written(rng: Random, day: date) -> str:
    """A day in one of the ways the benchmark writes it."""
    way = rng.random()
    if way < 0.4:
        return spoken(day)
    if way < 0.7:
        return short(day)
    if way < 0.85:
        return numeric(day)
    return f"{LONG_MONTHS[day.month - 1]} {day.day}, {day.year}"


def tell(rng: Random, today: date, reserved: bool) -> tuple[str, Told]:
    """A story about this day or, where the story has its own calendar, about another."""
    if reserved or rng.random() < 0.45:
        number = int(rng.random() * len(RESERVED_PLAIN if reserved else PLAIN))
        return f"plain {number}", plain(rng, today, (RESERVED_PLAIN if reserved else PLAIN)[number])
    number = int(rng.random() * len(STORIES))
    return f"story {number}", STORIES[number](rng, today)


def plain(rng: Random, today: date, story: tuple[str, int]) -> Told:
    text, offset = story
    away = between(rng, 2, 9)
    given = today + DAY * (offset + away * ("{k}" in text))
    said = text.format(
        day=written(rng, given),
        n=between(rng, 2, 11),
        m=between(rng, 2, 59),
        k=away,
        weekday=WEEKDAYS[given.weekday()][:3],
    )
    return said, today, "" if given == today else f"told {numeric(given)}"


def opinions(rng: Random, today: date) -> Told:
    other = today + DAY * choose(rng, (-1, 1))
    right = choose(rng, ("Jane", "John"))
    jane, john = (today, other) if right == "Jane" else (other, today)
    text = f"Jane thinks today is {short(jane)}, but John thinks today is {short(john)}."
    return f"{text} {right} is correct.", today, right


def corrected(rng: Random, today: date) -> Told:
    thought = today - DAY
    text = f"Jane thought today is {short(thought)}, but today is in fact "
    return f"{text}{MONTHS[today.month - 1]} {today.day}, which is 1 day later.", today, ""


def short_month(rng: Random, today: date) -> Told:
    today = date(today.year, today.month, 1)
    last = today - DAY
    text = f"Yesterday was {short(last)}. Today could not be "
    text += (
        f"{last.month}/{last.day + 1}/{last.year} because {LONG_MONTHS[last.month - 1]} has only "
    )
    return f"{text}{last.day} days.", today, f"told {numeric(last)}"


def holiday(rng: Random, today: date) -> Told:
    year = today.year
    name, month, day = choose(
        rng,
        (
            (f"Today is Christmas Eve of {year}.", 12, 24),
            (f"Today is Christmas Day of {year}.", 12, 25),
            (f"This is the last day of {year}.", 12, 31),
            (f"Today is the first day of {year}.", 1, 1),
            (f"Today is the last day of the first quarter of {year}.", 3, 31),
            (f"Today is the last day of the second quarter of {year}.", 6, 30),
            (f"Today is the last day of the third quarter of {year}.", 9, 30),
        ),
    )
    return name, date(year, month, day), ""


def numbered(rng: Random, today: date) -> Told:
    today = today.replace(day=between(rng, 1, 12))
    text = f"Today is the {ORDINALS[today.day - 1]} day of the {ORDINALS[today.month - 1]} month"
    return f"{text} of {today.year}.", today, ""


def month_end(rng: Random, today: date) -> Told:
    today = date(today.year, today.month, 1) - DAY
    text = f"Jane is celebrating the last day of {MONTHS[today.month - 1]} {today.year}."
    return text, today, ""


def birthday(rng: Random, today: date) -> Told:
    born, age = date(today.year, 3, 1) - DAY, between(rng, 5, 30)
    text = f"Jane was born on the last day of Feburary in {born.year}."
    text = f"{text} Today is her {age}-year-old birthday."
    reason = f"born {numeric(born)}, {born.year} + {age} = {born.year + age}"
    return text, shifted(born, 0, 0, age), reason


def anniversary(rng: Random, today: date) -> Told:
    years = choose(rng, (50, 25, 5, 10, between(rng, 2, 30)))
    text = f"Jane and John married on {spoken(today)}. "
    if years in (50, 25) and rng.random() < 0.7:
        text += f"Today is their {'golden' if years == 50 else 'silver'} wedding anniversary."
    else:
        text += f"It is their {years}-year anniversary today."
    after = shifted(today, 0, 0, years)
    return text, after, f"{today.year} + {years} = {after.year}"


def decade(rng: Random, today: date) -> Told:
    after = shifted(today, 0, 0, 10)
    text = f"{spoken(today)} is like yesterday to Jane, but that is actually ten years ago."
    return text, after, f"{today.year} + 10 = {after.year}"


def passed(rng: Random, today: date) -> Told:
    days = between(rng, 10, 200)
    text = f"Jane quited her job on {spoken(today)}. {days} days have passed since then."
    return text, today + DAY * days, counted(today, days)


def eggs(rng: Random, today: date) -> Told:
    days = between(rng, 5, 60)
    text = (
        f"On {MONTHS[today.month - 1]} {ordinal(today.day)}, {today.year} Jane bought {days} eggs."
    )
    text += " She ate one per day. Today she ran out of eggs."
    return text, today + DAY * days, counted(today, days)


def counted(day: date, days: int) -> str:
    """Forward month by month: the last day of each month passed, and how many days are left."""
    lines = [f"{numeric(day)[:5]} + {days}"]
    while True:
        last = shifted(day.replace(day=1), -1, 1, 0)
        if day + DAY * days <= last:
            return ", ".join(lines)
        days -= (last - day).days
        day = last
        lines.append(f"{numeric(day)[:5]} + {days}")
        day += DAY
        days -= 1


def new_year(rng: Random, today: date) -> Told:
    days = between(rng, 1, 3)
    text = f"{today.year} is coming in {24 * days - 12} hours."
    return text, date(today.year, 1, 1) - DAY * days, ""


def day_first(rng: Random, today: date) -> Told:
    today = today.replace(day=between(rng, 1, 12))
    text = "In the UK, people usually put the day before the month when formatting the date. "
    return f"{text}Therefore, today is {today:%d/%m}/{today.year} to them.", today, ""


def visits(rng: Random, today: date) -> Told:
    first, visit = today.replace(day=between(rng, 1, 28)), between(rng, 2, 12)
    text = f"Jane visits the bookstore on the {ordinal(first.day)} of each month starting from the "
    text += f"{LONG_MONTHS[first.month - 1]} of {first.year}."
    text += f" It is her {ordinal(visit)} visit to the bookstore today."
    return text, shifted(first, 0, visit - 1, 0), f"{numeric(first)} + {visit - 1} months"


def first_weekday(rng: Random, today: date) -> Told:
    first = date(today.year, 1, 1)
    today = first + DAY * between(rng, 1, 6)
    text = (
        f"The first day of {first.year} is a {WEEKDAYS[first.weekday()]}, and today is the first "
    )
    return f"{text}{WEEKDAYS[today.weekday()]} of {first.year}.", today, ""


def palindrome(rng: Random, today: date) -> Told:
    year = choose(rng, (2001, 2010, 2011, 2020, 2021, 2030))
    text = f"Today is the palindrome day of {year}, because the MMDDYYYY format of the date is the "
    backwards = str(year)[::-1]
    today = date(year, int(backwards[:2]), int(backwards[2:]))
    return f"{text}same backwards as forwards.", today, ""


def year_apart(rng: Random, today: date) -> Told:
    text = choose(
        rng,
        (
            "Today is {0}. Jane is watching NFL {1}.",
            "Today is {0}, and it is Jane's second time in the year {1} to see a meteor shower.",
        ),
    )
    return text.format(f"{today.month}/{today.day}", today.year), today, ""


def job(rng: Random, today: date) -> Told:
    years = between(rng, 2, 9)
    second = today + DAY
    after = shifted(today, 0, 0, years)
    text = (
        f"Jane got her job in {today.year}. Today is her {years}-year work anniversary. She still "
    )
    text += (
        f"remember that on {MONTHS[second.month - 1]} {second.day}, her second day at work, she "
    )
    return f"{text}spilled coffee on her laptop.", after, f"first day {numeric(today)}"


STORIES: tuple[Story, ...] = (
    *(opinions, corrected, short_month, holiday, holiday, numbered, month_end, birthday, birthday),
    *(anniversary, decade, passed, eggs, new_year, day_first, visits, first_weekday, palindrome),
    *(year_apart, job),
)
