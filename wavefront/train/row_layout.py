"""The row layout of LLaDA's fine-tuning: prompt, answer, <|eot_id|>, then <|endoftext|>.

A row is exactly as long as its bucket, so there is no padding and attention needs no mask. The
canvas has N = L - P positions, the rest of the bucket after the prompt. Over many prompts the model
sees every canvas length from MIN_CANVAS to MAX_CANVAS.
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


class SpecialIds(NamedTuple):
    """The ids of the control tokens."""

    bos: int
    eos: int
    mask: int
    start_header: int
    end_header: int
    eot: int


class Pair(NamedTuple):
    """One example as ids.

    The prompt ends with the open assistant turn, and the answer with <|eot_id|>. For plain text
    both are empty.
    """

    prompt: list[int]
    answer: list[int]
    task: int


class RowEncoder:
    """The tokenizer used for training.

    It writes control tokens as ids, and never turns text into control tokens.
    """

    def __init__(self, directory: Path) -> None:
        file = Path(directory) / "tokenizer.json"
        if not file.is_file():
            raise CheckpointError(f"{file} is missing; train a tokenizer first.")
        self.backend = Tokenizer.from_file(str(file))
        self.backend.encode_special_tokens = True  # encode a control token in a text as text
        ids: dict[str, int] = {}
        for name, text in SPECIAL.items():
            number = self.backend.token_to_id(text)
            if number is None:
                raise CheckpointError(f"{file} has no {text}; train the tokenizer with wavefront.")
            ids[name] = number
        self.special = special = SpecialIds(**ids)
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
        """Encode a plain text."""
        return self.backend.encode(text, add_special_tokens=False).ids

    def pairs(self, examples: Sequence[tuple[str, str]], tasks: Sequence[int]) -> list[Pair]:
        """Encode (prompt, answer) texts.

        The blank line after the header is encoded together with the prompt, as in the output of the
        chat template.
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


def fits_bucket(prompt: int, answer: int, length: int) -> bool:
    """Return whether a prompt and an answer (with <|eot_id|>) of these sizes fit a bucket."""
    return max(MIN_CANVAS, answer) <= length - prompt <= MAX_CANVAS


def choose_bucket(pair: Pair, buckets: Sequence[int], *, bias: float, rng: Random) -> int | None:
    """Choose a bucket that the pair fits, with a bias to short ones; None if there is none.

    Plain text fits every bucket, because it fills the row.
    """
    prompt, answer = len(pair.prompt), len(pair.answer)
    able = [length for length in buckets if not answer or fits_bucket(prompt, answer, length)]
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
    """Write a pair into `row` (L,), and return where its canvas begins."""
    start, end = len(pair.prompt), len(pair.prompt) + len(pair.answer)
    row[:start] = pair.prompt
    row[start:end] = pair.answer
    row[end:] = eos
    return start
