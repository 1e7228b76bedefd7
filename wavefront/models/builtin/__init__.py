"""The models that come with the package, by name.

A built-in model is a folder in `checkpoints/`, in the real checkpoint layout, or the `toy`: seeded
random weights over bytes, which decodes nonsense at once and needs no file at all.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from wavefront.models.toy import toy
from wavefront.storage.hub import shipped
from wavefront.text.tokenizer import Tokenizer


def names() -> tuple[str, ...]:
    """The built-in models, the real ones first."""
    return (*shipped(), "toy")


def directory(name: str) -> Path | None:
    """The folder of a built-in checkpoint."""
    return shipped().get(name)


DEFAULT = names()[0]


def make_toy(*, device: Any = None, dtype: Any = None) -> tuple[Any, Tokenizer]:
    """The toy and a tokenizer of bytes for it."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Backend(models.BPE(vocab={byte: id for id, byte in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<|end|>"), AddedToken("<|mask|>")])
    size = backend.get_vocab_size()
    model = toy(vocab_size=size, max_length=4096, device=device or "cpu", dtype=dtype or "float32")
    return model, Tokenizer(backend, settings={"eos_token": "<|end|>"}, config={})
