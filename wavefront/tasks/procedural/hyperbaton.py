"""Choose the right adjective order, by writing the number of each adjective's kind."""

from __future__ import annotations

from dataclasses import dataclass
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
    real="Which sentence has the correct adjective order:",
    other=("Which phrase has its adjectives in the correct order?",),
    reserved=("Choose the phrase that a careful speaker of English would say.",),
)
# In English word order: opinion, size, age, shape, color, origin, material, purpose.
KINDS = tuple(
    tuple(text.split())
    for text in (
        "awful good lovely mysterious nice obnoxious repulsive ridiculous silly terrible wonderful",
        "big enormous huge large little massive medium-size midsize normal-size small tiny",
        "ancient archaic brand-new new old old-fashioned",
        "circular prismlike pyramidal rectangular spherical square triangular",
        "black blue brown gray green grey orange pink purple red tan white yellow",
        "American Bangladeshi Brazilian Chinese Congolese Egyptian Ethiopian Filipino German "
        "Indian Indonesian Iranian Japanese Mexican Nigerian Pakistani Russian Thai Turkish "
        "Vietnamese",
        "cardboard cloth fiberglass glass gold iron lead leather paper plastic rubber silver steel "
        "wood wool",
        "driving drinking eating exercise hiking smoking snorkeling typing walking whittling",
    )
)
NOUNS = split_words(
    "baby car cat chair computer dog knife match monkey motorcycle ship shoe sock surfboard sweater"
)


@dataclass(frozen=True)
class Hyperbaton(Procedural):
    """The adjectives of one phrase in both orders."""

    kind = "choice"

    def draft(self, rng: Random, reserved: bool) -> Draft:
        kinds = sorted(rng.sample(range(len(KINDS)), draw_int(rng, 2, 6)))
        right = [(choose(rng, KINDS[kind]), kind + 1) for kind in kinds]
        wrong = right[:]
        while wrong == right:
            if rng.random() < 0.3:  # a near miss: swap two neighbours
                at = draw_int(rng, 0, len(wrong) - 2)
                wrong[at], wrong[at + 1] = wrong[at + 1], wrong[at]
            else:
                rng.shuffle(wrong)
        noun = choose(rng, NOUNS)
        both = [right, wrong]
        if rng.random() < 0.5:
            both.reverse()
        phrases = [" ".join([*(word for word, _ in order), noun]) for order in both]
        lines = [
            f"({letter}) {', '.join(f'{word} {kind}' for word, kind in order)}"
            f": {'yes' if order is right else 'no'}"
            for letter, order in zip("AB", both, strict=True)
        ]
        target = "(A)" if both[0] is right else "(B)"
        question, original = WORDINGS.ask(rng, reserved, after=option_block(phrases))
        answer = worked_answer("\n".join(lines), target)
        return Draft(question, answer, target, " ".join(phrases), original=original)
