"""WikiText: continue a sentence or fill its middle. BERTScore compares with the original."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import ClassVar

from wavefront.tasks.base import Ask, Sample, Style
from wavefront.tasks.benchmarks._benchmark import Benchmark
from wavefront.tasks.grading import Grade
from wavefront.tasks.procedural.english import detokenize

FILES = {
    "test": "wikitext/wiki.test.raw",
    "valid": "wikitext/wiki.valid.raw",
    "train": "wikitext/wiki.train.raw.gz",
}
VARIANTS = {"wikitext": {}, "wikitext_infill": {"infill": True}}
SENTENCES = 1000  # as in the paper
MIN_WORDS, MAX_WORDS = 8, 60  # of a sentence
END = re.compile(r"(?<= [.!?]) (?=[A-Z\"])")


@dataclass(frozen=True, kw_only=True)
class Wikitext(Benchmark):
    """1,000 sentences selected by the seed. The first half is given, the second is the reference.

    With `infill`, the middle third is the reference, and `extra["suffix"]` is the text after it.
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

    def ask(self, question: str, style: Style, shots: object) -> str:
        """Return the prompt. Infilling has no instruction, because text follows the gap."""
        return question if self.infill else super().ask(question, style, ())

    def grade(self, sample: Sample, text: str) -> Grade:
        """Compare with the reference (strict) or its first word (flexible)."""
        words, wanted = text.split(), sample.target.split()
        strict, flexible = words == wanted, words[:1] == wanted[:1]
        return Grade(strict, text.strip() or None, "strict", strict, flexible)


def sentences(text: str) -> list[str]:
    """Return the sentences of the running text in file order, as ordinary text."""
    found: list[str] = []
    for line in text.splitlines():
        line = line.strip()
        if line and not line.startswith("="):
            found += [sentence for sentence in END.split(line) if _fit(sentence)]
    return [detokenize(sentence) for sentence in found]


def _fit(sentence: str) -> bool:
    return (
        sentence.endswith(" .") and MIN_WORDS <= len(detokenize(sentence).split(" ")) <= MAX_WORDS
    )
