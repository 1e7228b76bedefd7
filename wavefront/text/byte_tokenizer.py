"""The byte tokenizer of the built-in toy model."""

from __future__ import annotations

from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from wavefront.text.tokenizer import Tokenizer


def byte_tokenizer() -> Tokenizer:
    """Return a tokenizer with one token per byte, an end token and a mask token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Backend(models.BPE(vocab={byte: id for id, byte in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<|end|>"), AddedToken("<|mask|>")])
    return Tokenizer(backend, settings={"eos_token": "<|end|>"}, config={})
