"""Grade-school word problems of one to six steps. Each step is a sentence with an equation.

Half are stories from `stories.txt`. The other half are chains: a stock of things, events that
change it, and a question. Chains make many more different problems than there are stories.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from random import Random

from wavefront.tasks.base import Draft, Procedural, choose, draw_int, split_words, worked_answer
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
MIN_STEPS, MAX_STEPS = 1, 6
UNUSUAL_SHARE = 0.1  # of people and things with a name from the whole vocabulary
ITEMS = split_words("book shirt toy lamp hat cup ball game chair plate bag kite pen map clock")


@dataclass(frozen=True)
class Gsm(Procedural):
    """Stories and chains in about equal parts."""

    def draft(self, rng: Random, reserved: bool) -> Draft:
        while True:
            words = choose_words(rng)
            make = chain if rng.random() < 0.5 else story
            draft = make(rng, words, reserved)
            if draft is not None:
                return draft


def choose_words(rng: Random) -> dict[str, str]:
    """Choose people and things for every slot that a story may have."""
    (name, upper, lower, his), (friend, *_), (third, *_) = rng.sample(PEOPLE, 3)
    item, other = rng.sample(ITEMS, 2)
    words = {slot: choose(rng, pool) for slot, pool in POOLS.items()}
    if rng.random() < UNUSUAL_SHARE:  # so that the model learns to copy any name
        name, friend, third = (unusual_word(rng).capitalize() for _ in range(3))
    if rng.random() < UNUSUAL_SHARE:
        words["things"] = f"{unusual_word(rng)}s"
    return words | {
        "name": name, "friend": friend, "third": third, "He": upper, "he": lower, "his": his,
        "item": item, "other": other,
    }  # fmt: skip


def unusual_word(rng: Random) -> str:
    """Choose any word, for names and things outside the lists above."""
    return choose(rng, vocabulary())


@cache
def stories_of_kind(kind: str, reserved: bool) -> tuple[Story, ...]:
    """Return the stories or links with a training wording, or with a reserved one."""
    found = [story for story in stories() if story.kind == kind]
    return tuple(s for s in found if (s.reserved_wordings if reserved else s.wordings))


def story(rng: Random, words: Mapping[str, str], reserved: bool) -> Draft | None:
    """Make a complete story with new numbers."""
    return join_parts(
        (choose(rng, stories_of_kind("@", reserved)),), rng, words=words, reserved=reserved
    )


def chain(rng: Random, words: Mapping[str, str], reserved: bool) -> Draft | None:
    """Make a chain: a start, one to four events, and a question."""
    events = [choose(rng, stories_of_kind("event", reserved)) for _ in range(draw_int(rng, 1, 4))]
    start, end = (
        choose(rng, stories_of_kind("start", reserved)),
        choose(rng, stories_of_kind("end", reserved)),
    )
    return join_parts((start, *events, end), rng, words=words, reserved=reserved)


def join_parts(
    parts: Sequence[Story], rng: Random, *, words: Mapping[str, str], reserved: bool
) -> Draft | None:
    """Join the parts. Return None if a number or the number of steps is out of range."""
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
    if not MIN_STEPS <= len(lines) <= MAX_STEPS:
        return None
    target = str(numbers[last])
    answer = worked_answer("\n".join(lines), target)
    return Draft(" ".join(sentences), answer, target, " ".join(skeleton))
