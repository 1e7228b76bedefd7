"""Find who holds what after swaps, by writing the full state as letters after every swap."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from wavefront.tasks.base import (
    Draft,
    ObjectsTask,
    join_list,
    option_block,
    split_words,
    worked_answer,
)

PEOPLE = ("Alice", "Bob", "Claire", "Dave", "Eve", "Fred", "Gertrude")


class Scene(NamedTuple):
    """The sentences of one setting, in the order of the text."""

    start: str
    has: str
    meanwhile: str
    swap: str
    end: str
    things: tuple[str, ...]


BALLS = tuple(
    f"{c} ball" for c in split_words("red orange yellow green blue purple brown pink black white")
)
PRESENTS = (
    *(f"{color} present" for color in split_words("red yellow green blue purple brown white")),
    "pink ball",
    "orange ball",
    "black ball",
)
BOOKS = (
    "Catch-22",
    "Frankenstein",
    "Hound of the Baskervilles",
    "Lolita",
    "Moby Dick",
    "The Fellowship of the Ring",
    "The Great Gatsby",
    "The Odyssey",
    "The Pearl",
    "Ulysses",
)
SCENES = (
    Scene(
        "are playing a game. At the start of the game, they are each holding a ball",
        "{} has a {}",
        "As the game progresses, pairs of players trade balls.",
        "swap balls",
        "At the end of the game, {} has the",
        BALLS,
    ),
    Scene(
        "are holding a white elephant gift exchange. At the start of the event, they are each"
        " holding a present of a different color",
        "{} has a {}",
        "As the event progresses, pairs of people swap gifts.",
        "swap their gifts",
        "At the end of the event, {} has the",
        PRESENTS,
    ),
    Scene(
        "are dancers at a square dance. At the start of a song, they each have a partner",
        "{} is dancing with {}",
        "Throughout the song, the dancers often trade partners.",
        "switch partners",
        "At the end of the dance, {} is dancing with",
        split_words("Helga Izzi Jamie Karl Lola Melissa Ophelia Patrick Rodrigo Sam"),
    ),
    Scene(
        "are on the same team in a soccer match. At the start of the match, they are each assigned"
        " to a position",
        "{} is playing {}",
        "As the game progresses, pairs of players occasionally swap positions.",
        "trade positions",
        "At the end of the match, {} is playing",
        (
            *("benchwarmer", "center midfielder", "cheerleader", "fullback", "goalkeeper"),
            *("left midfielder", "left winger", "right midfielder", "right winger", "striker"),
        ),
    ),
    Scene(
        "are friends and avid readers who occasionally trade books. At the start of the semester,"
        " they each buy one new book",
        "{} gets {}",
        "As the semester proceeds, they start trading around the new books.",
        "swap books",
        "At the end of the semester, {} has",
        BOOKS,
    ),
)
RESERVED = (
    Scene(
        "are sitting in a cafe. At the start of the evening, they each order a drink",
        "{} has a {}",
        "During the evening, pairs of friends exchange drinks.",
        "exchange drinks",
        "At the end of the evening, {} has the",
        split_words("coffee tea juice lemonade milk soda cocoa water cider shake"),
    ),
    Scene(
        "are students in one class. At the start of the week, they each have a desk",
        "{} has the {}",
        "During the week, pairs of students change desks.",
        "change desks",
        "At the end of the week, {} has the",
        tuple(f"{c} desk" for c in split_words("red orange yellow green blue purple brown pink")),
    ),
)


@dataclass(frozen=True)
class TrackingShuffledObjects(ObjectsTask):
    """As many swaps as people, as in the benchmark."""

    def draft(self, rng: Random, reserved: bool) -> Draft:
        number = int(rng.random() * len(RESERVED if reserved else SCENES))
        scene = (RESERVED if reserved else SCENES)[number]
        people = PEOPLE[: self.objects]
        things = rng.sample(scene.things, self.objects)
        state = [chr(65 + index) for index in range(self.objects)]
        told: list[str] = []
        steps = [f"{' '.join(people)}: {' '.join(state)}"]
        for turn in range(self.objects):
            first, second = rng.sample(range(self.objects), 2)
            state[first], state[second] = state[second], state[first]
            order = "Finally" if turn == self.objects - 1 else "Then" if turn else "First"
            told.append(f"{order}, {people[first]} and {people[second]} {scene.swap}.")
            steps.append(f"{people[first]} {people[second]}: {' '.join(state)}")
        asked = int(rng.random() * self.objects)
        steps.append(f"{people[asked]}: {state[asked]}")
        target = f"({state[asked]})"
        begin = join_list([scene.has.format(*pair) for pair in zip(people, things, strict=True)])
        question = (
            f"{join_list(people)} {scene.start}: {begin}.\n{scene.meanwhile} {' '.join(told)} "
            f"{scene.end.format(people[asked])}{option_block(things)}"
        )
        skeleton = f"{number} {' '.join(steps)}"
        return Draft(question, worked_answer("\n".join(steps), target), target, skeleton)
