"""Find when someone could have gone somewhere: the gap between the hours they were seen."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from random import Random

from wavefront.tasks.base import (
    Draft,
    Procedural,
    Wordings,
    choose,
    draw_int,
    option_block,
    split_words,
    worked_answer,
)

WORDINGS = Wordings(
    real="Today, {0} went to the {1}. Between what times could they have gone?\n"
    "We know that:\n{2}\nBetween what times could {0} have gone to the {1}?",
    other=(
        "{0} went to the {1} today.\nWe know that:\n{2}\n"
        "Between what times could {0} have gone to the {1}?",
    ),
    reserved=(
        "Here is the day of {0}:\n{2}\nWhen could {0} have been at the {1}?",
        "{2}\nIn which hours was {0} free to visit the {1}?",
    ),
)
PEOPLE = split_words(
    "Andrew Anthony Ashley Betty David Elizabeth Emily Hannah James Jason Jennifer "
    "Jessica John Kimberly Leslie Linda Lisa Mark Mary Michael Nancy Richard Samantha "
    "Sarah Sean Steven Susan Thomas Tiffany William"
)
PLACES = split_words(
    "amusement park, art show, art studio, bakery, basketball court, beach, bookstore, "
    "clothing store, coffee shop, construction site, dance studio, football field, gas "
    "station, library, market, movies, museum, orchestra hall, park, physics classroom, "
    "restaurant, soccer field, swimming pool",
    ", ",
)
SEEN = split_words(
    "attending class at the school, buying a bike at the bike shop, buying a phone at the "
    "electronics store, buying clothes at the mall, buying cookies at a bakery, buying "
    "lunch at the deli, driving to the water park, fixing their computer at the "
    "electronic store, getting a coffee at the cafe, playing tennis at the tennis court, "
    "reading at the library, sitting on a rooftop, stretching at a yoga studio, taking "
    "photos near the Eiffel Tower, taking photos near the Leaning Tower of Pisa, waiting "
    "at the airport, waiting at the train station, walking in the garden, walking towards "
    "the Statue of Liberty, watching a movie at the theater, working at the office, "
    "working out at the gym",
    ", ",
)


@dataclass(frozen=True)
class TemporalSequences(Procedural):
    """A day from waking to closing time with one gap."""

    kind = "choice"

    def draft(self, rng: Random, reserved: bool) -> Draft:
        who, *others = rng.sample(PEOPLE, 7)
        where = choose(rng, PLACES)
        count = draw_int(rng, 4, 6)  # parts of the day, including the gap
        hours = sorted(rng.sample(range(5, 23), count + 1))
        gap = draw_int(rng, 0, count - 1)
        spans = [f"{clock(a)} to {clock(b)}" for a, b in pairwise(hours)]
        things = rng.sample(SEEN, count)
        facts = [f"{who} woke up at {clock(hours[0])}."]
        steps = [f"woke {clock(hours[0])}"]
        for index, span in enumerate(spans):
            if index != gap:
                facts.append(f"{others[index]} saw {who} {things[index]} from {span}.")
                steps.append(span)
        facts.append(f"The {where} was closed after {clock(hours[-1])}.")
        steps.append(f"closed {clock(hours[-1])}")
        free = spans.pop(gap)
        options = [free, *rng.sample(spans, 3)]
        rng.shuffle(options)
        target = f"({chr(65 + options.index(free))})"
        question, original = WORDINGS.ask(
            rng, reserved, who, where, "\n".join(facts), after=option_block(options)
        )
        text = ", ".join(steps) + f"\nfree {free}"
        skeleton = f"{hours} {gap} {options}"
        answer = worked_answer(text, target)
        return Draft(question, answer, target, skeleton, original=original)


def clock(hour: int) -> str:
    return f"{(hour - 1) % 12 + 1}{'am' if hour < 12 else 'pm'}"
