"""Write your own task outside the package: how many fruits are there?

Items are generated at random, so there are always new ones. The skeleton of an item decides to
which split it belongs.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import wavefront
from wavefront.tasks.base import Ask, Draft, Procedural, draw_int, worked_answer

NUMBERS = ("two", "three", "four", "five", "six", "seven", "eight", "nine")


@dataclass(frozen=True)
class Fruits(Procedural):
    """Figs, pears and plums, between two and `most` of each."""

    most: int = 9

    kind = "number"  # how a final answer is parsed: number, choice, yes_no, true_false, words, …
    version = "1"  # part of every result; increase it when items or grades change

    @property
    def name(self) -> str:
        return "fruits"

    def draft(self, rng: Random, reserved: bool) -> Draft:
        figs, pears, plums = (draw_int(rng, 2, self.most) for _ in range(3))
        said = "I have {} figs, {} pears, and {} plums.".format(
            *(NUMBERS[count - 2] for count in (figs, pears, plums))
        )
        # A wording that is used for testing only: the split "held-out-template".
        asked = "How many fruits is that?" if reserved else "How many fruits do I have?"
        both, total = figs + pears, figs + pears + plums
        steps = f"fig + {figs} = {figs}, pear + {pears} = {both}, plum + {plums} = {total}"
        return Draft(
            question=f"{said} {asked}",
            answer=worked_answer(steps, str(total)),
            target=str(total),
            skeleton=f"{figs} {pears} {plums}",
        )


if __name__ == "__main__":
    task = Fruits(most=8)
    items = task.items(Ask(count=2, style="bare"))
    assert all(task.grade(item, item.answer).correct for item in items)
    lm = wavefront.load("ripple")
    answers = lm.generate([item.prompt for item in items], max_new_tokens=32, eos="defer")
    for item, answer in zip(items, answers, strict=True):
        grade = task.grade(item, answer.text)
        print(f"{item.prompt} -> {grade.answer}, {'right' if grade.correct else 'wrong'}")
