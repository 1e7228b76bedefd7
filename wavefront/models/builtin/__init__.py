"""The models that come with the package, by name.

A built-in model is a folder in `checkpoints/`, in the real checkpoint layout, or the `toy`: seeded
random weights over bytes, which decodes nonsense at once and needs no file at all.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from wavefront.models.toy import toy
from wavefront.storage.hub import shipped
from wavefront.text.byte_tokenizer import byte_tokenizer
from wavefront.text.tokenizer import Tokenizer


def names() -> tuple[str, ...]:
    """The built-in models, the real ones first."""
    return (*shipped(), "toy")


def directory(name: str) -> Path | None:
    """The folder of a built-in checkpoint."""
    return shipped().get(name)


DEFAULT = names()[0]


def make_toy(*, device: Any = None, dtype: Any = None) -> tuple[Any, Tokenizer]:
    """Build the toy model and its byte tokenizer."""
    tokenizer = byte_tokenizer()
    size = tokenizer.vocab_size
    model = toy(vocab_size=size, max_length=4096, device=device or "cpu", dtype=dtype or "float32")
    return model, tokenizer
