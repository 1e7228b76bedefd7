"""Plain text: for the tokenizer to learn from, and to pre-train on."""

from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path

import numpy as np

from wavefront.core.errors import OptionError
from wavefront.tasks.procedural.english import detokenize, paragraphs
from wavefront.train.config import DataConfig
from wavefront.train.row_layout import Encoder

ENGLISH = Path("english")


def lines(path: Path) -> list[str]:
    """The lines of a text file, perhaps gzipped. The word `english` stands for the paragraphs that
    the task of this name trains on, which leaves its held-out ones out.
    """
    if path == ENGLISH:
        return [detokenize(paragraph) for paragraph in paragraphs("train")]
    try:
        packed = path.read_bytes()
        text = (gzip.decompress(packed) if path.suffix == ".gz" else packed).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"text {str(path)!r} cannot be read as UTF-8: {error}.") from None
    return text.splitlines()


def encoded(path: Path, encoder: Encoder) -> np.ndarray:
    """A text as one run of uint16 ids."""
    every = [f"{line.strip()}\n" for line in lines(path) if line.strip()]
    made = encoder.backend.encode_batch_fast(every, add_special_tokens=False)
    return np.concatenate([np.zeros(0, np.uint16), *(np.array(x.ids, np.uint16) for x in made)])


def with_corpus(config: DataConfig, directory: Path) -> DataConfig:
    """The config with its text tokenised once, into a file all workers map into memory."""
    if config.text is None or config.text.suffix == ".npy":
        return config
    path = directory / "text.npy"
    np.save(path, encoded(config.text, Encoder(config.tokenizer)))
    return replace(config, text=path)
