"""The models that come with the package, by name.

A built-in model is a folder here in the published checkpoint layout, or the `toy`. The toy has
seeded random weights over bytes: it decodes nonsense and needs no files.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from wavefront.models.loader import family_module, set_attention
from wavefront.models.quantize import check_kind, quantize_model
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
# What a user must know before the first answer.
SUMMARIES = {
    "ripple": "a model with 19 M parameters that solves small problems of the kinds it was trained "
    "on; it does not chat",
    "tale": "a model with 7.3 M parameters that writes children's stories in simple English; it "
    "does not chat or answer questions",
    "toy": "random weights over bytes, for tests: fast, but it decodes nonsense",
}
STORIES = "tale"  # writes English, so it is the default for infilling


def make_toy(
    *,
    device: Any = None,
    dtype: Any = None,
    quantize: str | None = None,
    attention: str | None = None,
    block_size: int | None = None,
) -> tuple[Any, Tokenizer]:
    """Return the toy model and a byte tokenizer for it; see `load_model` for the options."""
    tokenizer = byte_tokenizer()
    size = tokenizer.vocab_size
    model = toy(vocab_size=size, max_length=4096, device=device or "cpu", dtype=dtype or "float32")
    family = family_module(model.family)
    config = set_attention(model.config, family, attention=attention, block_size=block_size)
    model.block_size = config.block_size
    if check_kind(quantize) is not None:
        quantize_model(model, str(quantize))
    return model, tokenizer
