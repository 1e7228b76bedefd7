"""Answer questions about coloured things on a surface: single things, rows, removed things."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from wavefront.tasks.base import (
    Draft,
    Procedural,
    choose,
    draw_int,
    join_list,
    option_block,
    split_words,
    worked_answer,
)

COLORS = split_words(
    "red orange yellow green blue brown magenta fuchsia mauve teal turquoise burgundy "
    "silver gold black grey purple pink"
)
THINGS = split_words(
    "booklet, bracelet, cat toy, crayon, cup, dog leash, envelope, fidget spinner, jug, "
    "keychain, mug, necklace, notebook, pair of sunglasses, paperclip, pen, pencil, "
    "plate, puzzle, scrunchiephone charger, sheet of paper, stress ball, teddy bear, "
    "textbook",
    ", ",
)
PLURALS = {
    "pair of sunglasses": "pairs of sunglasses",
    "sheet of paper": "sheets of paper",
    "dog leash": "dog leashes",
}
NUMBERS = split_words(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen "
    "fourteen fifteen sixteen"
)
SURFACES = ("table", "desk", "floor", "nightstand")
RESERVED_SURFACES = ("shelf", "bench")
SETS = ("a set of", "several", "a bunch of", "the following")
GENERIC = ("thing", "object", "item")


class Item(NamedTuple):
    """A question without its surface: text, options, worked steps, and the right option."""

    text: str
    options: tuple[str, ...]
    steps: str
    right: str
    shape: str


@dataclass(frozen=True)
class ReasoningAboutColoredObjects(Procedural):
    """Six kinds of question, in the benchmark's proportions."""

    kind = "choice"

    def draft(self, rng: Random, reserved: bool) -> Draft:
        surface = choose(rng, RESERVED_SURFACES if reserved else SURFACES)
        point = rng.random() * 250
        if point < 72:
            item = single(rng)
        elif point < 129:
            item = removal(rng, surface)
        else:
            item = row(rng)
        target = f"({chr(65 + item.options.index(item.right))})"
        question = f"On the {surface}, {item.text}{option_block(item.options)}"
        return Draft(question, worked_answer(item.steps, target), target, item.shape)


def single(rng: Random) -> Item:
    """Ask for the colour of one thing, or how many things have neither of two colours."""
    count = draw_int(rng, 2, 6)
    colors, things = rng.sample(COLORS, count), rng.sample(THINGS, count)
    see = choose(rng, ("I see", "you see", "there is"))
    text = f"{see} {join_list([a(f'{c} {t}') for c, t in zip(colors, things, strict=True)])}."
    asked = draw_int(rng, 0, count - 1)
    shape = f"{colors} {asked}"
    kind = rng.random() * 72
    if kind < 27:
        color = colors[asked] if rng.random() < 0.5 else choose(rng, COLORS)
        right = "yes" if color == colors[asked] else "no"
        steps = f"{things[asked]}: {colors[asked]}, {color}? {right}"
        return Item(f"{text} Is the {things[asked]} {color}?", ("yes", "no"), steps, right, shape)
    if kind < 55:
        steps = f"{things[asked]}: {colors[asked]}"
        question = f"{text} What color is the {things[asked]}?"
        return Item(question, COLORS, steps, colors[asked], shape)
    first, second = rng.sample([*colors, *COLORS], 2)
    while first == second:
        second = choose(rng, COLORS)
    kept = [color for color in colors if color not in (first, second)]
    steps = count_phrase(kept)
    question = f"{text} How many {choose(rng, GENERIC)}s are neither {first} nor {second}?"
    return Item(question, NUMBERS[:7], steps, NUMBERS[len(kept)], f"{colors} {first} {second}")


def removal(rng: Random, surface: str) -> Item:
    """Ask how many things of a kind are left after another kind is removed."""
    colors, things = (
        rng.sample(COLORS, draw_int(rng, 2, 4)),
        rng.sample(THINGS, draw_int(rng, 2, 3)),
    )
    pairs = [(color, thing) for color in colors for thing in things]
    pairs = rng.sample(pairs, draw_int(rng, 3, min(7, len(pairs))))
    heaps = [(draw_int(rng, 1, 3), color, thing) for color, thing in pairs]
    said = [f"{NUMBERS[n]} {c} {t if n == 1 else plural(t)}" for n, c, t in heaps]
    there = f"there {'is' if heaps[0][0] == 1 else 'are'}"
    text = f"{choose(rng, ('I see', 'you see', there))} {join_list(said)}."
    _, color, thing = choose(rng, heaps)
    generic = choose(rng, GENERIC)
    if rng.random() < 0.5:
        left = [heap for heap in heaps if heap[1] == color and heap[2] != thing]
        asked = f"all the {plural(thing)} from the {surface}, how many {color} {generic}s"
    else:
        left = [heap for heap in heaps if heap[2] == thing and heap[1] != color]
        asked = f"all the {color} {generic}s from the {surface}, how many {plural(thing)}"
    total = 0
    steps: list[str] = []
    for number, shade, kind in left:
        total += number
        steps.append(f"{shade} {kind} + {number} = {total}")
    question = f"{text} If I remove {asked} remain on it?"
    shape = f"{heaps} {asked}"
    return Item(question, NUMBERS, ", ".join(steps) or "none", NUMBERS[total], shape)


def row(rng: Random) -> Item:
    """Ask about things in a row: ends, neighbours, the furthest, how many on one side."""
    count = draw_int(rng, 3, 6)
    colors, things = rng.sample(COLORS, count), rng.sample(THINGS, count)
    generic = choose(rng, GENERIC)
    said = join_list([a(f"{c} {t}") for c, t in zip(colors, things, strict=True)])
    text = f"you see {choose(rng, SETS)} {generic}s arranged in a row: {said}."
    places = ", ".join(f"{index} {color}" for index, color in enumerate(colors, 1))
    at = draw_int(rng, 0, count - 1)
    named = f"{colors[at]} {generic}" if rng.random() < 0.5 else things[at]
    kind = rng.random() * 121
    right = rng.random() < 0.5
    side = "right" if right else "left"
    if kind < 31:
        other = choose(rng, (choose(rng, COLORS), choose(rng, colors)))
        kept = [c for c in (colors[at + 1 :] if right else colors[:at]) if c != other]
        text += f" How many non-{other} {generic}s do you see to the {side} of the {named}?"
        steps = f"{places}\n{named}: {at + 1}\n{count_phrase(kept)}"
        shape = f"{colors} {at} {side} {other}"
        return Item(text, NUMBERS[:7], steps, NUMBERS[len(kept)], shape)
    if kind < 55:
        found, asked = (count - 1 if right else 0), f"{side}-most {generic}"
    elif kind < 85 and 0 <= at + (1 if right else -1) < count:
        found, asked = at + (1 if right else -1), f"{generic} directly to the {side} of the {named}"
    else:
        at += count % 2 and at == count // 2  # both ends are equally far from the middle
        named = f"{colors[at]} {generic}" if named not in things else things[at]
        found, asked = (0 if at >= count / 2 else count - 1), f"{generic} furthest from the {named}"
    steps = f"{places}\n" + ("" if "most" in asked else f"{named}: {at + 1}\n")
    steps += f"{found + 1}: {colors[found]}"
    text += f" What is the color of the {asked}?"
    return Item(text, COLORS, steps, colors[found], f"{colors} {at} {asked}")


def count_phrase(colors: list[str]) -> str:
    """Number the colours, as in `red 1, blue 2`."""
    return ", ".join(f"{color} {index}" for index, color in enumerate(colors, 1)) or "none"


def plural(thing: str) -> str:
    return PLURALS.get(thing, thing + "s")


def a(name: str) -> str:
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"
