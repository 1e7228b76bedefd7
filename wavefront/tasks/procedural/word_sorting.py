"""Sort words: group them by first letter, then order each group by short prefixes."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from wavefront.tasks.base import Draft, Procedural, Wordings, choose, draw_int, worked_answer
from wavefront.tasks.procedural._words import vocabulary

WORDINGS = Wordings(
    real="Sort the following words alphabetically: List: {}",
    other=("Sort these words: {}", "Put these words in alphabetical order: {}"),
    reserved=("Order the words from a to z: {}", "Here is a list: {}. Arrange it alphabetically."),
)
MAX_CHARACTERS = 500  # of a worked answer: twenty long words and their prefixes


@dataclass(frozen=True)
class WordSorting(Procedural):
    """Two to twenty words. Some are joined from halves, because real lists have rare words."""

    kind = "words"

    def draft(self, rng: Random, reserved: bool) -> Draft:
        words = pick_words(rng, draw_int(rng, 2, 20))
        ordered = sorted(words)
        target = " ".join(ordered)
        text = " ".join(words)
        answer = worked_answer("\n".join(groups(words)), target)
        if len(answer) > MAX_CHARACTERS:
            return self.draft(rng, reserved)
        question, original = WORDINGS.ask(rng, reserved, text)
        return Draft(question, answer, target, text, original=original)


def pick_words(rng: Random, count: int) -> list[str]:
    """Choose different words, in random order."""
    known = vocabulary()
    words: dict[str, None] = {}
    while len(words) < count:
        word = choose(rng, known)
        if rng.random() < 0.15:
            other = choose(rng, known)
            word = word[: len(word) // 2 + 1] + other[len(other) // 2 :]
        words[word] = None
    return list(words)


def groups(words: list[str]) -> list[str]:
    """Write one line per first letter: its words as given, then their prefixes in order."""
    by_letter: dict[str, list[str]] = {}
    for word in words:
        by_letter.setdefault(word[0], []).append(word)
    lines: list[str] = []
    for letter in sorted(by_letter):
        group = by_letter[letter]
        line = " ".join(group)
        lines.append(line if len(group) == 1 else f"{line}: {' '.join(prefixes(group))}")
    return lines


def prefixes(words: list[str]) -> list[str]:
    """Return the shortest prefixes that distinguish the words, sorted."""
    ordered = sorted(words)
    shared = [0] * (len(ordered) + 1)
    for index in range(1, len(ordered)):
        before, word = ordered[index - 1], ordered[index]
        length = 0
        while length < len(before) and before[length] == word[length]:
            length += 1
        shared[index] = length
    return [word[: max(shared[i], shared[i + 1]) + 1] for i, word in enumerate(ordered)]
