"""Find the order of objects from statements about them.

The worked answer writes each statement in short form, then the order. The short form keeps the
objects' names: a small model copies a name easily, but fails if it must write a letter for it
first.

The statements are chosen so that exactly one order fits, without a search. Some objects have a
stated place. The other objects form a chain in order, and each link compares two neighbours in this
chain. If an object with a known place is between them, the link may compare one of the two with
that object instead. In the first part of the row it compares the lower one, so the row is filled
from the start. In the rest it compares the upper one, so the row is filled from the end. The other
way around would fix the objects in the middle and leave those outside free to swap.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import NamedTuple

from wavefront.tasks.base import (
    Draft,
    ObjectsTask,
    draw_int,
    join_list,
    option_block,
    split_words,
    worked_answer,
)

ORDINALS = ("", "", "second", "third", "fourth")
OPENING = (
    "The following paragraphs each describe a set of {size} objects arranged in a fixed order. "
    "The statements are logically consistent within each paragraph. "
)


class Scene(NamedTuple):
    """A setting. Places count from the first pole; `before` and `after` are comparisons."""

    start: str
    objects: tuple[str, ...]
    named: str  # how an object is named in a statement
    article: bool
    verb: str
    before: str
    after: str
    first: str
    from_first: str
    last: str
    from_last: str
    middle_from_last: bool  # the middle place is named from the last pole


LEFT_TO_RIGHT = (
    "is to the left of", "is to the right of", "the leftmost", "the {} from the left",
    "the rightmost", "the {} from the right",
)  # fmt: skip
BIRDS = (*split_words("crow falcon hawk hummingbird owl quail raven robin cardinal"), "blue jay")
COLORS = split_words("black blue brown gray green orange purple red white yellow")
# "motorcyle" is the benchmark's spelling.
VEHICLES = split_words("bus convertible hatchback limousine minivan motorcyle sedan tractor truck")
FRUITS = split_words(
    "apples cantaloupes kiwis loquats mangoes oranges peaches pears plums watermelons"
)
GOLFERS = split_words("Ada Amy Ana Dan Eli Eve Joe Mel Mya Rob")
SCENES = (
    Scene(
        "On a branch, there are {} birds", BIRDS,
        "the {}", True, "is", *LEFT_TO_RIGHT, False,
    ),
    Scene(
        "On a shelf, there are {} books", tuple(f"{color} book" for color in COLORS),
        "the {}", True, "is", *LEFT_TO_RIGHT, False,
    ),
    Scene(
        "In an antique car show, there are {} vehicles", (*VEHICLES, "station wagon"),
        "the {}", True, "is", "is older than", "is newer than", "the oldest", "the {}-oldest",
        "the newest", "the {}-newest", True,
    ),
    Scene(
        "In a golf tournament, there were {} golfers", GOLFERS,
        "{}", False, "finished", "finished above", "finished below", "first", "{}",
        "last", "{}-to-last", False,
    ),
    Scene(
        "A fruit stand sells {} fruits", FRUITS,
        "the {}", False, "are", "are less expensive than", "are more expensive than",
        "the cheapest", "the {}-cheapest", "the most expensive", "the {}-most expensive", True,
    ),
)  # fmt: skip
RESERVED = (
    Scene(
        "In a tower, there are {} boxes", tuple(f"{color} box" for color in COLORS),
        "the {}", True, "is", "is below", "is above", "the lowest", "the {} from the bottom",
        "the highest", "the {} from the top", False,
    ),
    Scene(
        "In a race, there were {} runners", GOLFERS,
        "{}", False, "arrived", "arrived before", "arrived after", "first", "{}",
        "last", "{}-to-last", False,
    ),
)  # fmt: skip


@dataclass(frozen=True)
class LogicalDeduction(ObjectsTask):
    """Three, five or seven objects."""

    def draft(self, rng: Random, reserved: bool) -> Draft:
        count = self.objects
        scenes = RESERVED if reserved else SCENES
        number = int(rng.random() * len(scenes))
        scene = scenes[number]
        names = rng.sample(scene.objects, count)
        order = list(range(count))
        rng.shuffle(order)
        facts = statements(rng, order)
        said = " ".join(statement(rng, scene, names, fact=fact) for fact in facts)
        place = draw_int(rng, 0, count - 1)
        asked = place_name(scene, place, count)
        target = f"({chr(65 + order[place])})"
        shown = [article(name) if scene.article else name for name in names]
        size = self.SIZES[count]
        question = (
            f"{OPENING.format(size=size)}{scene.start.format(size)}: {join_list(shown)}. {said}"
            + option_block([sentence(scene, name, asked) for name in names])
        )
        steps = solution(
            [short_name(name) for name in names], facts, order, place=place, asked=asked
        )
        # The skeleton includes the names. Three objects have so few structures that leaving some
        # out of training would teach the model that they never occur.
        skeleton = f"{number} {names} {facts} {place}"
        return Draft(question, worked_answer(steps, target), target, skeleton)


# A fact: ("=", object, place) or ("<", object, object), objects and places by number.
Fact = tuple[str, int, int]


def statements(rng: Random, order: list[int]) -> list[Fact]:
    """Return shuffled facts that only this order satisfies."""
    count = len(order)
    places = rng.sample(range(count), draw_int(rng, 0, count - 2))
    known = [place in places for place in range(count)]
    facts: list[Fact] = [("=", order[place], place) for place in places]
    free = [place for place in range(count) if not known[place]]
    pivot = draw_int(rng, 0, count)
    for left, right in pairwise(free):
        fact = (left, right)
        if right - left > 1 and rng.random() < 0.5:
            middle = draw_int(rng, left + 1, right - 1)
            fact = (left, middle) if left < pivot else (middle, right)
        facts.append(("<", order[fact[0]], order[fact[1]]))
    if rng.random() < 0.04 and count > 3:
        left, right = sorted(rng.sample(range(count), 2))
        facts.append(("<", order[left], order[right]))
    rng.shuffle(facts)
    return facts


def statement(rng: Random, scene: Scene, names: list[str], *, fact: Fact) -> str:
    """Write one fact as a sentence. A comparison may start from either side."""
    relation, first, second = fact
    if relation == "=":
        return sentence(scene, names[first], place_name(scene, second, len(names))) + "."
    verb = scene.before
    if rng.random() < 0.5:
        first, second, verb = second, first, scene.after
    return f"{object_name(scene, names[first], True)} {verb} {object_name(scene, names[second])}."


def sentence(scene: Scene, name: str, place: str) -> str:
    return f"{object_name(scene, name, True)} {scene.verb} {place}"


def object_name(scene: Scene, name: str, first: bool = False) -> str:
    text = scene.named.format(name)
    return text[0].upper() + text[1:] if first else text


def article(name: str) -> str:
    return f"{'an' if name[0] in 'aeio' else 'a'} {name}"


def place_name(scene: Scene, place: int, count: int) -> str:
    """Write a place in words, counted from the nearer pole."""
    from_last = count - 1 - place
    if from_last < place or (from_last == place and scene.middle_from_last):
        return scene.from_last.format(ORDINALS[from_last + 1]) if from_last else scene.last
    return scene.from_first.format(ORDINALS[place + 1]) if place else scene.first


def short_name(name: str) -> str:
    """Return one word that identifies an object, such as the colour of a book."""
    first, _, last = name.partition(" ")
    return first if last in ("book", "box") or not last else last


def solution(
    names: list[str], facts: list[Fact], order: list[int], *, place: int, asked: str
) -> str:
    """Write the statements in short form, the stated places, the order, and the answer."""
    short = [
        f"{names[first]} = {second + 1}" if relation == "=" else f"{names[first]} < {names[second]}"
        for relation, first, second in facts
    ]
    told = ["_"] * len(order)
    for relation, thing, where in facts:
        if relation == "=":
            told[where] = names[thing]
    row = [names[thing] for thing in order]
    return (
        f"{', '.join(short)}\n{' '.join(told)}\n{' '.join(row)}\n"
        f"{asked.removeprefix('the ')} = {place + 1}: {row[place]}"
    )
