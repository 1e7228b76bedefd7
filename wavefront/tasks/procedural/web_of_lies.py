"""Find who tells the truth in a chain of people who talk about each other."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from wavefront.tasks.base import Draft, Procedural, Wordings, draw_int, split_words, worked_answer

WORDINGS = Wordings(
    real="Question: {} Does {} tell the truth?",
    other=("{} Does {} tell the truth?", "Question: {} Is {} telling the truth?"),
    reserved=("{} Can you believe {}?", "Here is what is known: {} Is {} truthful?"),
)
NAMES = split_words(
    "Alejandro Alexis Amberly Andree Antwan Audrie Bernita Christie Conception Crista "
    "Dallas Delbert Delfina Elanor Fidel Fletcher Gwenn Helene Inga Jamey Jaymie Jerry "
    "Jim Ka Kandi Kristian Leda Lorine Maybelle Michael Michaela Millicent Millie Osvaldo "
    "Phoebe Rashida Raymond Ryan Sal Shalonda Shaunda Shenna Sherrie Sima Tamika Teressa "
    "Vernell Vina Willian Yoland"
)
SAYS = ("lies", "tells the truth")
RESERVED_SAYS = ("is a liar", "is honest")
STATEMENTS = 4  # in every real item


@dataclass(frozen=True)
class WebOfLies(Procedural):
    """The first person is given. Every other says whether the previous one lies."""

    kind = "yes_no"

    def draft(self, rng: Random, reserved: bool) -> Draft:
        length = STATEMENTS if rng.random() < 0.8 else draw_int(rng, 2, 6)
        people = rng.sample(NAMES, length + 1)
        says = RESERVED_SAYS if reserved else SAYS
        truthful = rng.random() < 0.5
        told = [f"{people[0]} {says[truthful]}."]
        steps = [f"{people[0]} {SAYS[truthful]}."]
        for speaker, subject in zip(people[1:], people[:-1], strict=True):
            claim = rng.random() < 0.5
            told.append(f"{speaker} says {subject} {says[claim]}.")
            truthful = claim == truthful
            steps.append(f"{speaker} {SAYS[truthful]}.")
        text = " ".join(told)
        question, original = WORDINGS.ask(rng, reserved, text, people[-1])
        target = "Yes" if truthful else "No"
        answer = worked_answer("\n".join(steps), target)
        return Draft(question, answer, target, text, original=original)
