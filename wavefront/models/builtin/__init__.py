"""The models that come with the package, by name.

A built-in model is a folder here in the published checkpoint layout, or the `toy`. The toy has
seeded random weights over bytes: it decodes nonsense and needs no files.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from wavefront.models.toy import toy
from wavefront.storage.hub import builtin_checkpoints
from wavefront.text.byte_tokenizer import byte_tokenizer
from wavefront.text.tokenizer import Tokenizer


def names() -> tuple[str, ...]:
    """Return the names of the built-in models, the trained ones first."""
    return (*builtin_checkpoints(), "toy")


def directory(name: str) -> Path | None:
    """Return the folder of a built-in checkpoint, or None for any other name."""
    return builtin_checkpoints().get(name)


DEFAULT = names()[0]


def make_toy(*, device: Any = None, dtype: Any = None) -> tuple[Any, Tokenizer]:
    """Return the toy model and a byte tokenizer for it."""
    tokenizer = byte_tokenizer()
    size = tokenizer.vocab_size
    model = toy(vocab_size=size, max_length=4096, device=device or "cpu", dtype=dtype or "float32")
    return model, tokenizer
