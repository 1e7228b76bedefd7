"""`I have a yam, and two onions. How many vegetables do I have?`, worked as a running sum."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from wavefront.tasks.base import Draft, Procedural, Wordings, choose, draw_int, worked_answer

WORDINGS = Wordings(
    real="I have {}. How many {} do I have?",
    other=(
        "There are {} here. How many {} are there?",
        "I see {}. How many {} do I see?",
    ),
    reserved=(
        "In the room there are {}. Count the {}.",
        "Sam owns {}. How many {} does Sam own?",
    ),
)
NUMBERS = ("", "", "two", "three", "four", "five", "six")
# Irregular plurals.
PLURALS = {
    "mouse": "mice",
    "fish": "fish",
    "sheep": "sheep",
    "goose": "geese",
    "potato": "potatoes",
    "tomato": "tomatoes",
    "mango": "mangoes",
    "radish": "radishes",
    "peach": "peaches",
    "couch": "couches",
    "strawberry": "strawberries",
    "raspberry": "raspberries",
    "blackberry": "blackberries",
    "cherry": "cherries",
    "head of broccoli": "heads of broccoli",
    "stalk of celery": "stalks of celery",
    "knife": "knives",
}
KINDS = {
    "fruits": "apple,banana,blackberry,grape,nectarine,orange,peach,plum,raspberry,strawberry,"
    "mango,cherry,pear,lemon",
    "vegetables": "cabbage,carrot,cauliflower,garlic,head of broccoli,lettuce head,onion,potato,"
    "stalk of celery,yam,radish,turnip,pepper",
    "musical instruments": "accordion,clarinet,drum,flute,piano,trombone,trumpet,violin,guitar,"
    "cello,harp",
    "animals": "bear,cat,chicken,cow,dog,donkey,duck,fish,frog,goat,mouse,pig,rabbit,snail,snake,"
    "horse,goose,sheep",
    "objects": "bed,car,chair,couch,fridge,lamp,microwave,oven,stove,table,toaster,"
    "clock,bike,knife",
}
ITEMS = {kind: tuple(text.split(",")) for kind, text in KINDS.items()}
KIND_NAMES = tuple(ITEMS)


@dataclass(frozen=True)
class ObjectCounting(Procedural):
    """Count the things of one kind, sometimes among things of another kind."""

    def draft(self, rng: Random, reserved: bool) -> Draft:
        kind = choose(rng, KIND_NAMES)
        names = rng.sample(ITEMS[kind], draw_int(rng, 2, 10))
        strangers = other_things(rng, kind)
        every = names + strangers
        rng.shuffle(every)
        parts, steps, total = [], [], 0
        for name in every:
            number = 1 if rng.random() < 0.78 else draw_int(rng, 2, 5)
            shown = count_phrase(name, number)
            parts.append(shown)
            if name in strangers:
                steps.append(f"{name}: no")
                continue
            total += number
            steps.append(f"{name} + {number} = {total}")
        text = ", ".join(parts[:-1]) + ", and " + parts[-1]
        question, original = WORDINGS.ask(rng, reserved, text, kind)
        answer = worked_answer(", ".join(steps), str(total))
        return Draft(question, answer, str(total), f"{kind} {text}", original=original)


def other_things(rng: Random, kind: str) -> list[str]:
    """Draw things of another kind for one item in three. `objects` has none, as it covers all."""
    other = choose(rng, KIND_NAMES)
    if kind == "objects" or other == kind or rng.random() > 0.5:
        return []
    return rng.sample(ITEMS[other], draw_int(rng, 1, 3))


def count_phrase(name: str, number: int) -> str:
    """Format a count, as in `an apple` or `two heads of broccoli`."""
    if number == 1:
        return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"
    return f"{NUMBERS[number]} {PLURALS.get(name, name + 's')}"
