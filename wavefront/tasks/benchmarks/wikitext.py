"""WikiText: go on with a sentence, or fill its middle; BERTScore compares with what stood there."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import ClassVar

from wavefront.tasks.base import Ask, Sample, Style
from wavefront.tasks.benchmarks._benchmark import Benchmark
from wavefront.tasks.grading import Grade
from wavefront.tasks.procedural.english import typed

FILES = {
    "test": "wikitext/wiki.test.raw",
    "valid": "wikitext/wiki.valid.raw",
    "train": "wikitext/wiki.train.raw.gz",
}
VARIANTS = {"wikitext": {}, "wikitext_infill": {"infill": True}}
SENTENCES = 1000  # the paper's number
FEWEST, MOST = 8, 60  # words of a sentence worth cutting
END = re.compile(r"(?<= [.!?]) (?=[A-Z\"])")


@dataclass(frozen=True, kw_only=True)
class Wikitext(Benchmark):
    """1,000 sentences drawn with the seed: the first half is given, the second is the reference.

    With `infill` the middle third is the reference; `extra["suffix"]` is the text after it.
    """

    kind: ClassVar[str] = "text"
    splits: ClassVar[tuple[str, ...]] = tuple(FILES)
    infill: bool = False

    @property
    def name(self) -> str:
        return "wikitext_infill" if self.infill else "wikitext"

    def items(self, ask: Ask) -> list[Sample]:
        return super().items(ask if ask.count else replace(ask, count=SENTENCES))

    def samples(self, ask: Ask) -> list[Sample]:
        text = self.read_text(FILES[ask.split], ask)
        return [
            self._cut(f"{self.name}/{ask.split}/{index}", sentence)
            for index, sentence in enumerate(sentences(text))
        ]

    def _cut(self, name: str, sentence: str) -> Sample:
        words = sentence.split(" ")
        third = len(words) // 3
        start, stop = (third, 2 * third) if self.infill else (len(words) // 2, len(words))
        given, target = " ".join(words[:start]), " ".join(words[start:stop])
        extra = {"suffix": " ".join(words[stop:])} if self.infill else {}
        return Sample(name, given, target, target, extra)

    def ask(self, question: str, style: Style, shown: object) -> str:
        """A hole in a text is asked without an instruction: the text goes on after it."""
        return question if self.infill else super().ask(question, style, ())

    def grade(self, sample: Sample, text: str) -> Grade:
        """Strict: the reference word for word; flexible: its first word. The score is elsewhere."""
        words, wanted = text.split(), sample.target.split()
        strict, flexible = words == wanted, words[:1] == wanted[:1]
        return Grade(strict, text.strip() or None, "strict", strict, flexible)


def sentences(text: str) -> list[str]:
    """The sentences of the running text, typed as a person would, in file order."""
    found: list[str] = []
    for line in text.splitlines():
        line = line.strip()
        if line and not line.startswith("="):
            found += [sentence for sentence in END.split(line) if _fit(sentence)]
    return [typed(sentence) for sentence in found]


def _fit(sentence: str) -> bool:
    return sentence.endswith(" .") and FEWEST <= len(typed(sentence).split(" ")) <= MOST
