"""The tokenizer of `ripple`: byte-level BPE in the layout of a LLaDA checkpoint.

Every digit is a separate token, so that a number has only one encoding. Line breaks are separate
pieces, so that the ids of a prompt do not depend on the header before it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from random import Random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from wavefront.core.errors import CheckpointError, OptionError, check_int
from wavefront.storage.write_file import write_text
from wavefront.tasks import DEFAULT_MIXTURE, stream
from wavefront.text.chat_template import LLADA_TEMPLATE
from wavefront.train import corpus
from wavefront.train.row_layout import SPECIAL

SIZE = 2048
# A word, one digit, or a run of symbols, each with the space before it; line breaks; other blanks
# except the last one, which belongs to the next piece.
PIECES = r" ?\p{L}+| ?\p{N}| ?[^\s\p{L}\p{N}]+|\n+|[^\S\n]+(?!\S)|[^\S\n]+"


def train_tokenizer(texts: Iterable[str], size: int = SIZE) -> Tokenizer:
    """Train a tokenizer of exactly `size` entries. The same texts give the same tokenizer."""
    minimum = 256 + len(SPECIAL)
    check_int("size", size, minimum, high=1 << 16)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[AddedToken(text, special=True) for text in SPECIAL.values()],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        max_token_length=16,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    count = tokenizer.get_vocab_size(with_added_tokens=True)
    if count != size:
        raise OptionError(f"The texts give only {count} tokens, not {size}.")
    return tokenizer


def training_texts(
    *,
    samples: int = 20_000,
    mixture: Mapping[str, float] | None = None,
    text: Path | None = None,
    lines: int = 6_000,
    seed: int = 0,
) -> Iterator[str]:
    """Yield prompts and answers of the mixture, then some lines of a plain text."""
    chosen = DEFAULT_MIXTURE if mixture is None else mixture
    for sample in islice(stream(chosen, seed=seed), samples):
        yield sample.prompt
        yield sample.answer
    if text is not None:
        full = [line for line in corpus.read_lines(text) if len(line) > 80]
        yield from Random(seed).sample(full, min(lines, len(full)))


def write_tokenizer(tokenizer: Tokenizer, directory: Path, *, max_length: int = 1024) -> None:
    """Write `tokenizer.json` and `tokenizer_config.json` in the layout of a LLaDA checkpoint."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    added = {
        str(tokenizer.token_to_id(text)): {
            "content": text,
            "lstrip": False,
            "normalized": False,
            "rstrip": False,
            "single_word": False,
            "special": True,
        }
        for text in SPECIAL.values()
    }
    settings = {
        "add_bos_token": False,
        "add_eos_token": False,
        "added_tokens_decoder": added,
        "additional_special_tokens": [SPECIAL["mask"]],
        "bos_token": SPECIAL["bos"],
        "chat_template": LLADA_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "eos_token": SPECIAL["eos"],
        "model_max_length": max_length,
        "pad_token": SPECIAL["eos"],
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    text = json.dumps(settings, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
    write_text(directory / "tokenizer_config.json", text, error=CheckpointError)
