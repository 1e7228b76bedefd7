"""Read a Llama or a Qwen2 from a GGUF file, with the `gguf` library (an extra).

Quantised weights are expanded to float32. A Llama's queries and keys are stored in interleaved
pairs, and are converted back to halves.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from tokenizers import AddedToken, Tokenizer
from torch import Tensor

from wavefront.core.errors import CheckpointError, MissingExtraError, install_command
from wavefront.storage.read_file import open_regular
from wavefront.train.original import LAYOUTS, Original, Stored, assemble, bpe_tokenizer, to_halves

MAGIC = b"GGUF"
CONTROL, UNUSED = 3, 5  # types of tokens; unused ones fill the embedding's last rows
NAMES = {
    "embedding": "token_embd",
    "attention_norm": "blk.{}.attn_norm",
    "query": "blk.{}.attn_q",
    "key": "blk.{}.attn_k",
    "value": "blk.{}.attn_v",
    "attention_out": "blk.{}.attn_output",
    "mlp_norm": "blk.{}.ffn_norm",
    "gate": "blk.{}.ffn_gate",
    "up": "blk.{}.ffn_up",
    "down": "blk.{}.ffn_down",
    "final_norm": "output_norm",
    "head": "output",
}
# The bytes of each kind of value; kind 8 is a text and kind 9 a list.
VALUE_BYTES = {**dict.fromkeys((0, 1, 7), 1), **dict.fromkeys((2, 3), 2)}
VALUE_BYTES |= {**dict.fromkeys((4, 5, 6), 4), **dict.fromkeys((10, 11, 12), 8)}
TEXT, LIST = 8, 9
MAX_KEYS, MAX_TENSORS, MAX_DIMENSIONS = 1 << 12, 1 << 16, 4
MAX_ENTRIES = 1 << 22  # of all lists; a vocabulary of 150,000 tokens has about a million
# Two matrices that differ by less than this share are one matrix, stored in two precisions.
SAME = 0.2


def is_gguf(path: Path) -> bool:
    """Return whether a file is a GGUF file."""
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


class _Header:
    """Reads the header of a GGUF file, and checks every size in it against the file."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file, self._size, self._entries = file, size, 0

    def check(self) -> None:
        """Raise a ValueError if the header is damaged, or announces more than the file holds."""
        self._skip(len(MAGIC))
        if self._number("<I") not in (2, 3):
            raise ValueError("its version is not 2 or 3")
        tensors, keys = self._number("<Q"), self._number("<Q")
        if keys > MAX_KEYS or tensors > MAX_TENSORS:
            raise ValueError(f"it announces {keys} keys and {tensors} tensors")
        for _ in range(keys):
            self._text()
            self._value(self._number("<I"))
        for _ in range(tensors):
            self._text()
            if (dimensions := self._number("<I")) > MAX_DIMENSIONS:
                raise ValueError(f"a tensor has {dimensions} dimensions")
            # The strongest compression of a weight is about one bit.
            if math.prod(self._number("<Q") for _ in range(dimensions)) > 8 * self._size:
                raise ValueError("a tensor is larger than the file")
            self._skip(4)
            if self._number("<Q") > self._size:
                raise ValueError("a tensor begins after the end of the file")

    def _value(self, kind: int) -> None:
        if kind == TEXT:
            self._text()
        elif kind == LIST:
            kind, count = self._number("<I"), self._number("<Q")
            self._entries += count
            if kind == LIST or self._entries > MAX_ENTRIES:
                raise ValueError(f"it has a list of lists, or lists of over {MAX_ENTRIES} entries")
            if kind == TEXT:
                for _ in range(count):
                    self._text()
            else:
                self._skip(count * self._width(kind))
        else:
            self._skip(self._width(kind))

    def _width(self, kind: int) -> int:
        if kind not in VALUE_BYTES:
            raise ValueError(f"it has a value of the unknown kind {kind}")
        return VALUE_BYTES[kind]

    def _text(self) -> None:
        self._skip(self._number("<Q"))

    def _number(self, form: str) -> int:
        data = self._file.read(struct.calcsize(form))
        if len(data) < struct.calcsize(form):
            raise ValueError("it is cut short")
        return struct.unpack(form, data)[0]

    def _skip(self, count: int) -> None:
        if self._file.tell() + count > self._size:
            raise ValueError("it is cut short")
        self._file.seek(count, os.SEEK_CUR)


def check_header(path: Path) -> None:
    """Check the sizes in the header of a GGUF file, because the library trusts them.

    Raises:
        CheckpointError: The header is damaged, or announces more than the file holds.
    """
    with open_regular(path, error=CheckpointError) as file:
        try:
            _Header(file, os.fstat(file.fileno()).st_size).check()
        except ValueError as error:
            raise _unreadable(path, error) from None


def _unreadable(path: Path, error: Exception) -> CheckpointError:
    reason = " ".join(str(error).split())[:200]
    return CheckpointError(f"{path} cannot be read as a GGUF file ({reason}); fetch it again.")


def read_gguf(path: Path) -> Original:
    """Read an original from a GGUF file.

    Raises:
        MissingExtraError: The `gguf` library is not installed.
        CheckpointError: The file is damaged, or not a Llama or a Qwen2.
    """
    check_header(path)
    try:
        gguf: Any = import_module("gguf")
    except ImportError:
        raise MissingExtraError(
            f"Reading {path.name} needs the gguf library: {install_command('gguf')}."
        ) from None
    try:
        reader = gguf.GGUFReader(path)
        values = {name: field.contents() for name, field in reader.fields.items()}
        tensors = {tensor.name: tensor for tensor in reader.tensors}
    except Exception as error:  # the library checks little, so a damaged file raises anything
        raise _unreadable(path, error) from None
    kind = str(values.get("general.architecture"))
    if kind not in LAYOUTS:
        raise CheckpointError(
            f"{path} has the layout {kind!r}, which adapt does not support; "
            f"it supports: {', '.join(LAYOUTS)}."
        )
    try:
        return _build(path, values, tensors)
    except KeyError as error:
        raise CheckpointError(f"{path} has no {error}, which a {kind} needs.") from None
    except (ValueError, TypeError, IndexError, OverflowError, ZeroDivisionError) as error:
        raise _unreadable(path, error) from None


def _build(path: Path, values: Mapping[str, Any], tensors: Mapping[str, Any]) -> Original:
    kind = str(values["general.architecture"])
    text = _tokenizer(path, values)
    end = int(values["tokenizer.ggml.eos_token_id"])
    heads = int(values[f"{kind}.attention.head_count"])
    width = int(values[f"{kind}.embedding_length"])
    tied = "output.weight" not in tensors or _same(tensors)
    architecture = {
        "vocab_size": len(values["tokenizer.ggml.tokens"]),  # with unused rows
        "width": width,
        "layers": int(values[f"{kind}.block_count"]),
        "heads": heads,
        "kv_heads": int(values.get(f"{kind}.attention.head_count_kv", heads)),
        "mlp_width": int(values[f"{kind}.feed_forward_length"]),
        "theta": float(values.get(f"{kind}.rope.freq_base", 10_000.0)),
        # Stored in float32; the published number has few digits.
        "eps": float(f"{values[f'{kind}.attention.layer_norm_rms_epsilon']:.6g}"),
        "qkv_bias": kind == "qwen2",
        "tied": tied,
        "rotary_float32": kind != "qwen2",
        "pad_id": end,
        "stop_ids": (end,),
        "max_length": int(values[f"{kind}.context_length"]),
        "bos_id": values.get("tokenizer.ggml.bos_token_id"),
    }

    def tensor(name: tuple[str, str], layer: int) -> Tensor:
        part, ending = name
        # A tied head is often stored in a better precision than the embedding.
        stored = "output" if part == "embedding" and tied and "output.weight" in tensors else ""
        weight = _expand(tensors[(stored or NAMES[part].format(layer)) + ending])
        if kind == "llama" and part in ("query", "key"):
            weight = to_halves(weight, width // heads)
        return weight

    # The dimensions were checked against the size of the file.
    weights = sum(math.prod(int(size) for size in one.shape) for one in tensors.values())
    return assemble(
        architecture,
        layout=LAYOUTS[kind],
        tensor=tensor,
        text=text,
        source=path,
        stored=Stored(len(tensors), weights),
    )


def _expand(tensor: Any) -> Tensor:
    """Return a stored tensor in float32."""
    quants: Any = import_module("gguf.quants")
    values = quants.dequantize(tensor.data, tensor.tensor_type)
    return torch.from_numpy(np.array(values, np.float32))


def _same(tensors: Mapping[str, Any]) -> bool:
    """Return whether head and embedding are the same matrix in two precisions."""
    head, embedding = (_expand(tensors[name]) for name in ("output.weight", "token_embd.weight"))
    if head.shape != embedding.shape:
        return False
    return bool((head - embedding).abs().mean() < SAME * head.abs().mean())


def _tokenizer(path: Path, values: Mapping[str, Any]) -> tuple[Tokenizer, dict[str, Any]]:
    """Return the tokenizer of a GGUF file, and its settings."""
    texts = [str(text) for text in values["tokenizer.ggml.tokens"]]
    types = list(values["tokenizer.ggml.token_type"])
    while types and types[-1] == UNUSED:
        texts, types = texts[:-1], types[:-1]
    kind = values["tokenizer.ggml.model"]
    if kind == "llama":
        scores = values["tokenizer.ggml.scores"][: len(texts)]
        tokenizer = bpe_tokenizer(texts, dict(zip(texts, map(float, scores), strict=True)))
    elif kind == "gpt2" and values.get("tokenizer.ggml.pre") == "qwen2":
        from wavefront.text.tokenizer import qwen2_backend

        merges = [tuple(str(pair).split(" ")) for pair in values["tokenizer.ggml.merges"]]
        vocabulary = {text: number for number, text in enumerate(texts)}
        tokenizer = qwen2_backend(vocabulary, [(left, right) for left, right in merges])
    else:
        raise CheckpointError(
            f"The tokenizer {kind!r} of {path} is not supported, only those of Llama and Qwen2."
        )
    controls = [text for text, number in zip(texts, types, strict=True) if number == CONTROL]
    tokenizer.add_special_tokens(
        [AddedToken(text, special=True, normalized=False) for text in controls]
    )
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    end = texts[int(values["tokenizer.ggml.eos_token_id"])]
    places = {text: number for number, text in reversed([*enumerate(texts)])}  # the first of each
    settings: dict[str, Any] = {
        "add_bos_token": bool(values.get("tokenizer.ggml.add_bos_token", kind == "llama")),
        "added_tokens_decoder": {
            str(places[text]): flags | {"content": text, "special": True} for text in controls
        },
        "clean_up_tokenization_spaces": False,
        "eos_token": end,
        "pad_token": end,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    if "tokenizer.ggml.bos_token_id" in values:
        settings["bos_token"] = texts[int(values["tokenizer.ggml.bos_token_id"])]
    if "tokenizer.chat_template" in values:
        settings["chat_template"] = str(values["tokenizer.chat_template"])
    return tokenizer, settings
