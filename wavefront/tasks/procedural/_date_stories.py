"""Stories for `date_understanding` that state or imply today's date."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, timedelta
from random import Random

from wavefront.tasks.base import choose, draw_int, split_words

MONTHS = split_words("Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec")
LONG_MONTHS = split_words(
    "January February March April May June July August September October November December"
)
ORDINALS = split_words(
    "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth"
)
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
DAY = timedelta(days=1)

DatedStory = tuple[str, date, str]  # the story, today, and how today follows from it
Story = Callable[[Random, date], DatedStory]

# Stories with one date in them, and how many days that date is after today.
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


def shift_date(day: date, *, days: int = 0, months: int = 0, years: int = 0) -> date:
    """Shift a date. If the target month is too short, use its last day."""
    month = day.month - 1 + months
    year, month = day.year + years + month // 12, month % 12 + 1
    number = day.day
    while number > 28:
        try:
            return date(year, month, number) + DAY * days
        except ValueError:
            number -= 1
    return date(year, month, number) + DAY * days


def numeric_format(day: date) -> str:
    return f"{day.month:02}/{day.day:02}/{day.year}"


def short_format(day: date) -> str:
    return f"{day.month}/{day.day}/{day.year}"


def long_format(day: date) -> str:
    return f"{MONTHS[day.month - 1]} {day.day}, {day.year}"


def ordinal(number: int) -> str:
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{'th' if 10 < number < 14 else ending}"


def format_date(rng: Random, day: date) -> str:
    """Format a date in one of the benchmark's ways."""
    way = rng.random()
    if way < 0.4:
        return long_format(day)
    if way < 0.7:
        return short_format(day)
    if way < 0.85:
        return numeric_format(day)
    return f"{LONG_MONTHS[day.month - 1]} {day.day}, {day.year}"


def tell(rng: Random, today: date, reserved: bool) -> tuple[str, DatedStory]:
    """Return a story and its number. Some stories choose a date of their own."""
    if reserved or rng.random() < 0.45:
        number = int(rng.random() * len(RESERVED_PLAIN if reserved else PLAIN))
        return f"plain {number}", plain(rng, today, (RESERVED_PLAIN if reserved else PLAIN)[number])
    number = int(rng.random() * len(STORIES))
    return f"story {number}", STORIES[number](rng, today)


def plain(rng: Random, today: date, story: tuple[str, int]) -> DatedStory:
    text, offset = story
    away = draw_int(rng, 2, 9)
    given = today + DAY * (offset + away * ("{k}" in text))
    said = text.format(
        day=format_date(rng, given),
        n=draw_int(rng, 2, 11),
        m=draw_int(rng, 2, 59),
        k=away,
        weekday=WEEKDAYS[given.weekday()][:3],
    )
    return said, today, "" if given == today else f"told {numeric_format(given)}"


def opinions(rng: Random, today: date) -> DatedStory:
    other = today + DAY * choose(rng, (-1, 1))
    right = choose(rng, ("Jane", "John"))
    jane, john = (today, other) if right == "Jane" else (other, today)
    text = (
        f"Jane thinks today is {short_format(jane)}, but John thinks today is {short_format(john)}."
    )
    return f"{text} {right} is correct.", today, right


def corrected(rng: Random, today: date) -> DatedStory:
    thought = today - DAY
    text = f"Jane thought today is {short_format(thought)}, but today is in fact "
    return f"{text}{MONTHS[today.month - 1]} {today.day}, which is 1 day later.", today, ""


def short_month(rng: Random, today: date) -> DatedStory:
    today = date(today.year, today.month, 1)
    last = today - DAY
    text = f"Yesterday was {short_format(last)}. Today could not be "
    text += (
        f"{last.month}/{last.day + 1}/{last.year} because {LONG_MONTHS[last.month - 1]} has only "
    )
    return f"{text}{last.day} days.", today, f"told {numeric_format(last)}"


def holiday(rng: Random, today: date) -> DatedStory:
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


def numbered(rng: Random, today: date) -> DatedStory:
    today = today.replace(day=draw_int(rng, 1, 12))
    text = f"Today is the {ORDINALS[today.day - 1]} day of the {ORDINALS[today.month - 1]} month"
    return f"{text} of {today.year}.", today, ""


def month_end(rng: Random, today: date) -> DatedStory:
    today = date(today.year, today.month, 1) - DAY
    text = f"Jane is celebrating the last day of {MONTHS[today.month - 1]} {today.year}."
    return text, today, ""


def birthday(rng: Random, today: date) -> DatedStory:
    born, age = date(today.year, 3, 1) - DAY, draw_int(rng, 5, 30)
    text = f"Jane was born on the last day of Feburary in {born.year}."
    text = f"{text} Today is her {age}-year-old birthday."
    reason = f"born {numeric_format(born)}, {born.year} + {age} = {born.year + age}"
    return text, shift_date(born, years=age), reason


def anniversary(rng: Random, today: date) -> DatedStory:
    years = choose(rng, (50, 25, 5, 10, draw_int(rng, 2, 30)))
    text = f"Jane and John married on {long_format(today)}. "
    if years in (50, 25) and rng.random() < 0.7:
        text += f"Today is their {'golden' if years == 50 else 'silver'} wedding anniversary."
    else:
        text += f"It is their {years}-year anniversary today."
    after = shift_date(today, years=years)
    return text, after, f"{today.year} + {years} = {after.year}"


def decade(rng: Random, today: date) -> DatedStory:
    after = shift_date(today, years=10)
    text = f"{long_format(today)} is like yesterday to Jane, but that is actually ten years ago."
    return text, after, f"{today.year} + 10 = {after.year}"


def passed(rng: Random, today: date) -> DatedStory:
    days = draw_int(rng, 10, 200)
    text = f"Jane quited her job on {long_format(today)}. {days} days have passed since then."
    return text, today + DAY * days, count_forward(today, days)


def eggs(rng: Random, today: date) -> DatedStory:
    days = draw_int(rng, 5, 60)
    text = (
        f"On {MONTHS[today.month - 1]} {ordinal(today.day)}, {today.year} Jane bought {days} eggs."
    )
    text += " She ate one per day. Today she ran out of eggs."
    return text, today + DAY * days, count_forward(today, days)


def count_forward(day: date, days: int) -> str:
    """Count forward month by month: the end of each month, and how many days are left."""
    lines = [f"{numeric_format(day)[:5]} + {days}"]
    while True:
        last = shift_date(day.replace(day=1), days=-1, months=1)
        if day + DAY * days <= last:
            return ", ".join(lines)
        days -= (last - day).days
        day = last
        lines.append(f"{numeric_format(day)[:5]} + {days}")
        day += DAY
        days -= 1


def new_year(rng: Random, today: date) -> DatedStory:
    days = draw_int(rng, 1, 3)
    text = f"{today.year} is coming in {24 * days - 12} hours."
    return text, date(today.year, 1, 1) - DAY * days, ""


def day_first(rng: Random, today: date) -> DatedStory:
    today = today.replace(day=draw_int(rng, 1, 12))
    text = "In the UK, people usually put the day before the month when formatting the date. "
    return f"{text}Therefore, today is {today:%d/%m}/{today.year} to them.", today, ""


def visits(rng: Random, today: date) -> DatedStory:
    first, visit = today.replace(day=draw_int(rng, 1, 28)), draw_int(rng, 2, 12)
    text = f"Jane visits the bookstore on the {ordinal(first.day)} of each month starting from the "
    text += f"{LONG_MONTHS[first.month - 1]} of {first.year}."
    text += f" It is her {ordinal(visit)} visit to the bookstore today."
    return (
        text,
        shift_date(first, months=visit - 1),
        f"{numeric_format(first)} + {visit - 1} months",
    )


def first_weekday(rng: Random, today: date) -> DatedStory:
    first = date(today.year, 1, 1)
    today = first + DAY * draw_int(rng, 1, 6)
    text = (
        f"The first day of {first.year} is a {WEEKDAYS[first.weekday()]}, and today is the first "
    )
    return f"{text}{WEEKDAYS[today.weekday()]} of {first.year}.", today, ""


def palindrome(rng: Random, today: date) -> DatedStory:
    year = choose(rng, (2001, 2010, 2011, 2020, 2021, 2030))
    text = f"Today is the palindrome day of {year}, because the MMDDYYYY format of the date is the "
    backwards = str(year)[::-1]
    today = date(year, int(backwards[:2]), int(backwards[2:]))
    return f"{text}same backwards as forwards.", today, ""


def year_apart(rng: Random, today: date) -> DatedStory:
    text = choose(
        rng,
        (
            "Today is {0}. Jane is watching NFL {1}.",
            "Today is {0}, and it is Jane's second time in the year {1} to see a meteor shower.",
        ),
    )
    return text.format(f"{today.month}/{today.day}", today.year), today, ""


def job(rng: Random, today: date) -> DatedStory:
    years = draw_int(rng, 2, 9)
    second = today + DAY
    after = shift_date(today, years=years)
    text = (
        f"Jane got her job in {today.year}. Today is her {years}-year work anniversary. She still "
    )
    text += (
        f"remember that on {MONTHS[second.month - 1]} {second.day}, her second day at work, she "
    )
    return f"{text}spilled coffee on her laptop.", after, f"first day {numeric_format(today)}"


STORIES: tuple[Story, ...] = (
    *(opinions, corrected, short_month, holiday, holiday, numbered, month_end, birthday, birthday),
    *(anniversary, decade, passed, eggs, new_year, day_first, visits, first_weekday, palindrome),
    *(year_apart, job),
)
