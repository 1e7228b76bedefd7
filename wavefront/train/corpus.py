"""Plain text for training the tokenizer and for pre-training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from wavefront.core.errors import OptionError, RunError
from wavefront.storage.read_file import read_unpacked
from wavefront.storage.write_file import replacing
from wavefront.tasks.procedural.english import detokenize, paragraphs
from wavefront.train.config import BatchConfig, DataConfig
from wavefront.train.row_layout import RowEncoder

ENGLISH = Path("english")
TEXT_LIMIT = 4 << 30  # bytes of a text, which is held in memory


def read_lines(path: Path) -> list[str]:
    """Read the lines of a text file, gzipped or not.

    The path `english` stands for the training paragraphs of the task of this name.
    """
    if path == ENGLISH:
        return [detokenize(paragraph) for paragraph in paragraphs("train")]
    return read_training_text(path, option="text").splitlines()


def read_training_text(path: Path, *, option: str) -> str:
    """Read a UTF-8 text of at most `TEXT_LIMIT` bytes, gzipped or not.

    Raises:
        OptionError: The file cannot be read. The error names `option`.
    """
    try:
        return read_unpacked(path, limit=TEXT_LIMIT, error=OptionError).decode("utf-8")
    except UnicodeDecodeError as error:
        raise OptionError(
            f"{option} {str(path)!r} cannot be read as UTF-8: {error}.", option=option
        ) from None
    except OptionError as error:
        error.option = option
        raise


def encode_text(path: Path, encoder: RowEncoder) -> np.ndarray:
    """Encode a text as one array of uint16 ids."""
    every = [f"{line.strip()}\n" for line in read_lines(path) if line.strip()]
    encodings = encoder.backend.encode_batch_fast(every, add_special_tokens=False)
    return np.concatenate(
        [np.zeros(0, np.uint16), *(np.array(x.ids, np.uint16) for x in encodings)]
    )


def with_corpus(config: BatchConfig, directory: Path) -> BatchConfig:
    """Encode the text once into a file that all workers map into memory. Return the new config."""
    if not isinstance(config, DataConfig) or config.text is None or config.text.suffix == ".npy":
        return config
    path = directory / "text.npy"
    text = encode_text(config.text, RowEncoder(config.tokenizer))
    with replacing(path, error=RunError) as part, part.open("wb") as file:
        np.save(file, text)
    return replace(config, text=path)
