"""Rows as LLaDA's fine-tuning has them: prompt, answer, <|eot_id|>, then <|endoftext|> to the end.

A row is exactly as long as its bucket, so there is no padding and attention needs no mask. The
canvas N = L - P is whatever the prompt leaves of the bucket: over many prompts the model sees every
length from MIN_CANVAS to MAX_CANVAS.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

import numpy as np
from tokenizers import Tokenizer

from wavefront.core.errors import CheckpointError

MIN_CANVAS, MAX_CANVAS = 32, 256
SPECIAL = {
    "bos": "<|startoftext|>",
    "eos": "<|endoftext|>",
    "mask": "<|mdm_mask|>",
    "start_header": "<|start_header_id|>",
    "end_header": "<|end_header_id|>",
    "eot": "<|eot_id|>",
}


class Special(NamedTuple):
    """The ids of the control tokens."""

    bos: int
    eos: int
    mask: int
    start_header: int
    end_header: int
    eot: int


class Pair(NamedTuple):
    """One example as ids: a rendered prompt ending with the open assistant turn, and the answer
    with its <|eot_id|>. A stretch of plain text has neither: both are empty.
    """

    prompt: list[int]
    answer: list[int]
    task: int


class Encoder:
    """A tokenizer as training uses it: control tokens are written as ids, text is always text."""

    def __init__(self, directory: Path) -> None:
        file = Path(directory) / "tokenizer.json"
        if not file.is_file():
            raise CheckpointError(f"{file} is missing: make a tokenizer there first.")
        self.backend = Tokenizer.from_file(str(file))
        self.backend.encode_special_tokens = True  # a control token typed in a text is text
        ids: dict[str, int] = {}
        for name, text in SPECIAL.items():
            number = self.backend.token_to_id(text)
            if number is None:
                raise CheckpointError(f"{file} lacks {text}: make the tokenizer with this package.")
            ids[name] = number
        self.special = special = Special(**ids)
        self.vocab_size = self.backend.get_vocab_size(with_added_tokens=True)
        header = (special.start_header, special.end_header)
        self._opening = [special.bos, header[0], *self.text("user"), header[1]]
        self._turn = [
            special.eot,
            header[0],
            *self.text("assistant"),
            header[1],
            *self.text("\n\n"),
        ]

    def text(self, text: str) -> list[int]:
        """Ids of a plain text."""
        return self.backend.encode(text, add_special_tokens=False).ids

    def pairs(self, examples: Sequence[tuple[str, str]], tasks: Sequence[int]) -> list[Pair]:
        """(prompt, answer) texts as ids. The blank line after the header and the prompt are encoded
        in one piece, as the chat template's output is.
        """
        texts = [f"\n\n{prompt.strip()}" for prompt, _ in examples]
        texts += [answer for _, answer in examples]
        encoded = self.backend.encode_batch_fast(texts, add_special_tokens=False)
        half, eot = len(examples), self.special.eot
        return [
            Pair(
                [*self._opening, *encoded[index].ids, *self._turn],
                [*encoded[half + index].ids, eot],
                task,
            )
            for index, task in enumerate(tasks)
        ]


def fits(prompt: int, answer: int, length: int) -> bool:
    """Whether a prompt and an answer (with its <|eot_id|>) of these sizes go into a bucket."""
    return max(MIN_CANVAS, answer) <= length - prompt <= MAX_CANVAS


def choose_bucket(pair: Pair, buckets: Sequence[int], bias: float, rng: Random) -> int | None:
    """A bucket the pair fits, the shorter the likelier; None when it fits none.

    Plain text fits every bucket: it fills the row, whatever its length.
    """
    prompt, answer = len(pair.prompt), len(pair.answer)
    able = [length for length in buckets if not answer or fits(prompt, answer, length)]
    if len(able) < 2:
        return able[0] if able else None
    weights = [length**-bias for length in able]
    point = rng.random() * sum(weights)
    for length, weight in zip(able, weights, strict=True):
        point -= weight
        if point < 0:
            return length
    return able[-1]


def write_row(row: np.ndarray, pair: Pair, eos: int) -> int:
    """Fill `row` (L,) with a pair; where its canvas begins."""
    start, end = len(pair.prompt), len(pair.prompt) + len(pair.answer)
    row[:start] = pair.prompt
    row[start:end] = pair.answer
    row[end:] = eos
    return start
