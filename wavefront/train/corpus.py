"""Plain text for training the tokenizer and for pre-training."""

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


def read_lines(path: Path) -> list[str]:
    """Read the lines of a text file, gzipped or not.

    The path `english` stands for the training paragraphs of the task of this name.
    """
    if path == ENGLISH:
        return [detokenize(paragraph) for paragraph in paragraphs("train")]
    try:
        packed = path.read_bytes()
        text = (gzip.decompress(packed) if path.suffix == ".gz" else packed).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"text {str(path)!r} cannot be read as UTF-8: {error}.") from None
    return text.splitlines()


def encode_text(path: Path, encoder: Encoder) -> np.ndarray:
    """Encode a text as one array of uint16 ids."""
    every = [f"{line.strip()}\n" for line in read_lines(path) if line.strip()]
    encodings = encoder.backend.encode_batch_fast(every, add_special_tokens=False)
    return np.concatenate(
        [np.zeros(0, np.uint16), *(np.array(x.ids, np.uint16) for x in encodings)]
    )


def with_corpus(config: DataConfig, directory: Path) -> DataConfig:
    """Encode the text once into a file that all workers map into memory. Return the new config."""
    if config.text is None or config.text.suffix == ".npy":
        return config
    path = directory / "text.npy"
    np.save(path, encode_text(config.text, Encoder(config.tokenizer)))
    return replace(config, text=path)
