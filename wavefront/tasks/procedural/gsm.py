"""Grade-school word problems of one to six steps, each step a sentence with its equation.

Half are stories from `stories.txt`; half are chains: a stock of things, a run of events that change
it, and a question, so that the number of different problems is not the number of stories.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from random import Random

from wavefront.tasks.base import Draft, Procedural, between, choose, terms, worked
from wavefront.tasks.procedural._stories import Story, play, stories
from wavefront.tasks.procedural._words import vocabulary

WOMEN = "Ava Emma Lily Mia Nora Ruth Sara Zoe Anna Clara Dora Ella Grace Hana Ivy Jane Kate Lena"
MEN = "Adam Ben Carl Dan Eli Finn Gus Hugo Ivan Jack Kurt Leo Max Noah Otto Paul Rob Sam Tom"
PEOPLE = tuple(
    (name, *words)
    for names, words in ((WOMEN, ("She", "she", "her")), (MEN, ("He", "he", "his")))
    for name in names.split()
)
NOUNS = {
    "things": "marbles stickers pencils shells coins beads cards buttons stamps books toys stones",
    "fruit": "apples pears plums oranges peaches lemons figs melons limes cherries",
    "baked": "cookies muffins cupcakes rolls pies buns biscuits",
    "animal": "chickens cows goats sheep ducks horses pigs rabbits",
    "pack": "boxes bags packs jars bowls crates",
}
POOLS = {slot: tuple(text.split()) for slot, text in NOUNS.items()}
FEWEST, MOST = 1, 6  # steps
STRANGE = 0.1  # of the people and things have a name from the whole vocabulary
ITEMS = terms("book shirt toy lamp hat cup ball game chair plate bag kite pen map clock")


@dataclass(frozen=True)
class Gsm(Procedural):
    """Stories and chains in about equal parts."""

    def draft(self, rng: Random, reserved: bool) -> Draft:
        while True:
            words = cast(rng)
            teller = chain if rng.random() < 0.5 else story
            told = teller(rng, words, reserved)
            if told is not None:
                return told


def cast(rng: Random) -> dict[str, str]:
    """People and things for every slot a story may have."""
    (name, upper, lower, his), (friend, *_), (third, *_) = rng.sample(PEOPLE, 3)
    item, other = rng.sample(ITEMS, 2)
    words = {slot: choose(rng, pool) for slot, pool in POOLS.items()}
    if rng.random() < STRANGE:  # names must be copied, whatever they are
        name, friend, third = (strange(rng).capitalize() for _ in range(3))
    if rng.random() < STRANGE:
        words["things"] = f"{strange(rng)}s"
    return words | {
        "name": name, "friend": friend, "third": third, "He": upper, "he": lower, "his": his,
        "item": item, "other": other,
    }  # fmt: skip


def strange(rng: Random) -> str:
    """Any word: names and things that no list of ours foresees."""
    return choose(rng, vocabulary())


@cache
def shelf(kind: str, reserved: bool) -> tuple[Story, ...]:
    """The stories or links that can be told: in training, or with a wording kept out of it."""
    told = [story for story in stories() if story.kind == kind]
    return tuple(s for s in told if (s.reserved_wordings if reserved else s.wordings))


def story(rng: Random, words: Mapping[str, str], reserved: bool) -> Draft | None:
    """One whole story with fresh numbers."""
    return tell((choose(rng, shelf("@", reserved)),), rng, words, reserved)


def chain(rng: Random, words: Mapping[str, str], reserved: bool) -> Draft | None:
    """A start, one to four events, and a question."""
    events = [choose(rng, shelf("event", reserved)) for _ in range(between(rng, 1, 4))]
    start, end = choose(rng, shelf("start", reserved)), choose(rng, shelf("end", reserved))
    return tell((start, *events, end), rng, words, reserved)


def tell(
    parts: Sequence[Story], rng: Random, words: Mapping[str, str], reserved: bool
) -> Draft | None:
    """The parts one after another; None when the numbers or the length do not work out."""
    numbers: dict[str, int] = {}
    sentences: list[str] = []
    lines: list[str] = []
    skeleton: list[str] = []
    last = "t"
    for part in parts:
        steps = play(rng, part.plot, numbers)
        if steps is None:
            return None
        values = {**words, **numbers}
        wording = choose(rng, part.reserved_wordings if reserved else part.wordings)
        sentences.append(wording.format_map(values))
        lines += [step.sentence.format_map(values) for step in steps]
        last = steps[-1].name if steps else last
        skeleton.append(f"{part.name} {sorted(numbers.items())}")
    if not FEWEST <= len(lines) <= MOST:
        return None
    target = str(numbers[last])
    answer = worked("\n".join(lines), target)
    return Draft(" ".join(sentences), answer, target, " ".join(skeleton))
