"""Continue a text from WikiText-2. Only the next word has a right answer.

It reads the text under WAVEFRONT_DATA. The split `held-out-template` is the validation file, which
has other articles than the training file.
"""

from __future__ import annotations

import gzip
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Annotated, ClassVar

from wavefront.core.bounds import IntRange
from wavefront.core.spec import Spec
from wavefront.tasks.base import (
    Ask,
    Grade,
    Sample,
    Split,
    Style,
    digest,
    draw_int,
    draw_items,
    is_held_out,
    paper_prompt,
)
from wavefront.tasks.benchmarks._data import data_file

FILES: dict[str, tuple[str, ...]] = {
    "train": ("wikitext/wiki.train.raw.gz", "wikitext/train.txt.gz"),
    "held-out-template": ("wikitext/wiki.valid.raw", "wikitext/valid.txt"),
}
MIN_CHARACTERS = 200  # of a paragraph
# Undo WikiText's word splitting, roughly as a person would type.
DETOKENIZE = (
    (re.compile(r" @([-,.])@ "), r"\1"),
    (re.compile(r" ([,.;:!?%)\]]|'s\b|n't\b|'(?:re|ve|ll|d|m)\b)"), r"\1"),
    (re.compile(r"([(\[$]) "), r"\1"),
    (re.compile(r'" ([^"]*) "'), r'"\1"'),
    (re.compile(r"(\w) ' (?=\w)"), r"\1' "),
)


@dataclass(frozen=True)
class English(Spec):
    """A paragraph cut at a word: the first part is the prompt, the second the answer."""

    version: ClassVar[str] = "1"
    executes: ClassVar[bool] = False
    longest: Annotated[int, IntRange(1, 100_000)] = 420  # characters of both parts together

    @property
    def name(self) -> str:
        return "english"

    def sample(self, rng: Random, *, split: Split = "train", style: Style = "bare") -> Sample:
        chunk = self.text(rng, split=split)
        words = chunk.split(" ")
        cut = draw_int(rng, max(1, len(words) // 5), max(1, len(words) * 3 // 5))
        question, answer = " ".join(words[:cut]), " ".join(words[cut:])
        prompt = question if style == "bare" else paper_prompt(self.name, question)
        return Sample(f"{self.name}/{split}/{digest(chunk).hex()}", prompt, answer, answer)

    def text(self, rng: Random, *, split: Split = "train") -> str:
        """Return a run of complete sentences, for training without a prompt."""
        found = paragraphs(split)
        sentences = found[int(rng.random() * len(found))].split(" . ")
        start = draw_int(rng, 0, max(0, len(sentences) - 3))
        taken = sentences[start]
        for sentence in sentences[start + 1 :]:
            if len(taken) + len(sentence) > self.longest:
                break
            taken += " . " + sentence
        chunk = detokenize(taken if taken.endswith(" .") else taken + " .")
        if len(chunk) <= self.longest:
            return chunk
        return chunk[: self.longest].rpartition(" ")[0]

    def items(self, ask: Ask) -> list[Sample]:
        return draw_items(self, ask)

    def grade(self, sample: Sample, text: str) -> Grade:
        """Compare the first word with the original."""
        words = text.split()
        first = words[0] if words else None
        right = first == sample.target.split()[0]
        return Grade(right, first, "strict", right, right)


def paragraphs(split: Split) -> tuple[str, ...]:
    """Return the paragraphs of a split. Train and held-out share a file but no paragraph."""
    path = data_file(*FILES["train" if split == "held-out" else split])
    return _paragraphs(path, None if split == "held-out-template" else split == "held-out")


@cache
def _paragraphs(path: Path, held_out: bool | None) -> tuple[str, ...]:
    data = path.read_bytes()
    text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8")
    lines = [line.strip() for line in text.splitlines()]
    kept = [line for line in lines if len(line) >= MIN_CHARACTERS and not line.startswith("=")]
    return tuple(line for line in kept if held_out is None or is_held_out(line) == held_out)


def detokenize(text: str) -> str:
    """Convert WikiText's tokens to ordinary text."""
    for pattern, replacement in DETOKENIZE:
        text = pattern.sub(replacement, text)
    return text
