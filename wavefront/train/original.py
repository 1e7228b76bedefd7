"""Read an autoregressive checkpoint as the causal model that `adapt` starts from.

The weights go straight into the architecture of the result, LLaDA's for a Llama and Dream's for a
Qwen2, with causal attention and with one row for the mask token. So one object writes the data,
gives the initial weights, and judges texts.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from dataclasses import fields as dataclass_fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

from wavefront.core.errors import CheckpointError
from wavefront.models.architecture import Architecture, Keys
from wavefront.models.loader import family_module, host_memory, load_model, save_checkpoint
from wavefront.models.transformer import Transformer
from wavefront.storage.checkpoint import Checkpoint, open_checkpoint, read_tensor
from wavefront.storage.hub import CONFIG, GENERATION, listed_ids, read_json
from wavefront.storage.read_file import open_regular, read_bytes
from wavefront.storage.write_file import write_text

SPACE = "\u2581"  # stands for a space in the pieces of sentencepiece
LLAMA2C_CONTROLS = ("<unk>", "<s>", "</s>")
LLAMA2C_THETA, LLAMA2C_EPS = 10_000.0, 1e-5  # llama2.c has no other values
LLAMA2C_PIECES = len(LLAMA2C_CONTROLS) + 256  # controls and bytes, which every tokenizer has
TOKENIZER_BYTES = 64 << 20  # of a tokenizer in a llama2.c file or beside it
PIECE_LIMIT = 1 << 10  # characters of a piece; the time to build a tokenizer grows with the square
ORIGINAL = "original.json"  # the ids of a saved original, next to its config.json


@dataclass(frozen=True)
class Original:
    """An autoregressive model, its tokenizer, and the ids that begin and end a text."""

    model: Transformer  # causal, in float32, with a row for the mask token
    tokenizer: Tokenizer
    bos_id: int | None
    end_id: int
    tokenizer_settings: Mapping[str, Any]  # the contents of tokenizer_config.json

    @property
    def never_written(self) -> tuple[int, ...]:
        """The ids that are never output: the mask, the BOS token, and rows without a token."""
        size = self.tokenizer.get_vocab_size(with_added_tokens=True)
        begin = () if self.bos_id is None or self.bos_id == self.end_id else (self.bos_id,)
        return (self.model.mask_id, *begin, *range(size, self.model.vocab_size))


def read_original(path: Path) -> Original:
    """Read an autoregressive checkpoint.

    Args:
        path: A directory with config.json and safetensors (Llama or Qwen2), a Hub id such as
            `org/name`, a GGUF file, a llama2.c file, or a directory that `save_original` wrote.

    Raises:
        MissingExtraError: A GGUF file needs the `gguf` library.
        CheckpointError: The checkpoint is missing, damaged or of an unknown layout.
    """
    if (path / ORIGINAL).is_file():
        return load_original(path)
    if not path.is_file():
        return read_published(path)
    from wavefront.train.gguf_file import is_gguf, read_gguf

    return read_gguf(path) if is_gguf(path) else read_llama2c(path)


def save_original(original: Original, directory: Path) -> None:
    """Write a model in float32 with its tokenizer, so that `read_original` reads the same back."""
    save_checkpoint(original.model, directory, dtype="float32")
    write_tokenizer_files(original, directory)
    ids = {"bos_id": original.bos_id, "end_id": original.end_id}
    write_text(directory / ORIGINAL, json.dumps(ids) + "\n", error=CheckpointError)


def write_tokenizer_files(original: Original, directory: Path) -> None:
    """Write `tokenizer.json` and `tokenizer_config.json`."""
    stored = original.tokenizer.to_str(pretty=False)
    write_text(directory / "tokenizer.json", stored, error=CheckpointError)
    text = json.dumps(original.tokenizer_settings, indent=2, sort_keys=True, ensure_ascii=False)
    write_text(directory / "tokenizer_config.json", text + "\n", error=CheckpointError)


def load_original(directory: Path) -> Original:
    """Load what `save_original` wrote."""
    model = load_model(directory, device="cpu", dtype="float32")
    assert isinstance(model, Transformer)
    model.block_size = 1
    settings, ids = (read_json(directory / name) for name in ("tokenizer_config.json", ORIGINAL))
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    return Original(model, tokenizer, tokenizer_settings=settings, **ids)


class Stored(NamedTuple):
    """How many tensors and weights the files of an original hold."""

    tensors: int
    weights: int  # an upper bound on their number


def build_causal(
    family: str,
    architecture: Mapping[str, Any],
    tensors: Callable[[str], Tensor],
    *,
    most: int | None = None,
) -> Transformer:
    """Build a causal model in float32 from an architecture and tensors with published names.

    The last row of embedding and head is the mask token's. It starts as the mean of the others.
    `most` is the largest number of weights to build.
    """
    module = family_module(family)
    empty: Transformer = module.Net(module.Config(**architecture))  # it has no memory yet
    count = sum(part.numel() for part in empty.published_weights().values())
    if most is not None and count > most:
        raise CheckpointError(
            f"The sizes of the original describe {count} weights, but its files hold at most "
            f"{most}; fetch it again."
        )
    _check_memory(4 * count)
    model: Transformer = empty.to_empty(device="cpu")
    for name, part in model.published_weights().items():
        part.copy_(tensors(name))
    model.block_size = 1
    return model.eval().requires_grad_(False)


def _check_memory(needed: int) -> None:
    """Raise if the weights of an original do not fit into memory; a sparse file takes no space."""
    memory = host_memory()
    if memory is not None and needed > memory:
        raise CheckpointError(
            f"The weights of the original need {needed / 1e9:.1f} GB in float32, and this machine "
            f"has {memory / 1e9:.1f} GB: adapt a smaller model."
        )


def add_row(rows: Tensor) -> Tensor:
    """Return an embedding with one more row, the mean of the others, for the mask token."""
    return torch.cat([rows, rows.mean(0, keepdim=True)])


def to_halves(matrix: Tensor, head_dim: int) -> Tensor:
    """Return a query or key matrix for rotary halves, from one for interleaved pairs."""
    pairs = matrix.view(-1, head_dim // 2, 2, matrix.shape[-1])
    return pairs.transpose(1, 2).reshape(matrix.shape)


def with_vocabulary(original: Original, keep: list[int], tokenizer: Tokenizer) -> Original:
    """Return the original with only the rows `keep` of its embedding and head, in this order.

    The mask token's row is added after them.
    """
    model = original.model
    family = family_module(model.family)
    place = {old: new for new, old in enumerate(keep)}
    fields = {
        part.name: getattr(model.config, part.name) for part in dataclass_fields(Architecture)
    }
    fields |= {"vocab_size": len(keep) + 1, "mask_id": len(keep)}
    fields |= {"pad_id": place[model.pad_id]}
    fields |= {"stop_ids": tuple(place[token] for token in model.stop_ids)}
    smaller: Transformer = family.Net(family.Config(**fields)).to_empty(device="cpu")
    source = model.published_weights()
    rows = torch.tensor([*keep, model.mask_id])
    for name, part in smaller.published_weights().items():
        part.copy_(source[name] if source[name].shape == part.shape else source[name][rows])
    smaller.block_size = 1
    settings = dict(original.tokenizer_settings)
    added = settings.pop("added_tokens_decoder", {})
    settings["added_tokens_decoder"] = {
        str(tokenizer.token_to_id(token["content"])): token for token in added.values()
    }
    return replace(
        original,
        model=smaller.eval().requires_grad_(False),
        tokenizer=tokenizer,
        tokenizer_settings=settings,
        bos_id=None if original.bos_id is None else place[original.bos_id],
        end_id=place[original.end_id],
    )


# ---------------------------------------------------------------- Llama and Qwen2

# The keys of both config files that change the numbers, with their supported values.
SUPPORTED = {
    "hidden_act": ("silu",),
    "rope_scaling": (None,),
    "use_sliding_window": (False, None),
    "mlp_bias": (False, None),
}
# The family of the result, by the `model_type` of the original.
LAYOUTS = {"llama": "llada", "qwen2": "dream"}


def read_published(path: Path) -> Original:
    """Read a Llama or a Qwen2 with safetensors, from a directory or from the Hub."""
    files = open_checkpoint(path)
    kind = str(files.config.get("model_type"))
    if kind not in LAYOUTS:
        raise CheckpointError(
            f"{path} has the layout {kind!r}, which adapt does not support; "
            f"it supports: {', '.join(LAYOUTS)}, GGUF files and llama2.c files."
        )
    stored = files.directory / "tokenizer.json"
    if not stored.is_file():
        raise CheckpointError(f"{path} has no tokenizer.json; save its tokenizer in this format.")
    _check_tokenizer(files.directory)
    tokenizer = Tokenizer.from_file(str(stored))
    settings = read_json(files.directory / "tokenizer_config.json", required=False)
    keys = Keys(files.config | {"eos_token_id": _end_ids(files)}, SUPPORTED)
    names = family_module("dream").Net.names  # Llama, Qwen2 and Dream share their names
    return assemble(
        _published_architecture(keys, biases=kind == "qwen2"),
        layout=LAYOUTS[kind],
        tensor=lambda name, layer: read_tensor(
            files.entries, getattr(names, name[0]).format(layer) + name[1]
        ),
        text=(tokenizer, settings),
        source=path,
        stored=Stored(
            len(files.entries), sum(math.prod(one.shape) for one in files.entries.values())
        ),
    )


def _end_ids(files: Checkpoint) -> list[int]:
    """Return the end tokens of config.json and of generation_config.json, each once."""
    found: list[int] = []
    for file, values in ((CONFIG, files.config), (GENERATION, files.generation)):
        ids = listed_ids(values, "eos_token_id", file=file)
        found += [id for id in ids if id not in (None, *found)]
    if not found:
        raise CheckpointError(f"{files.directory} names no eos_token_id, so its texts have no end.")
    return found


def _check_tokenizer(directory: Path) -> None:
    """Load the tokenizer in a child process first, with limits of time and memory."""
    from wavefront.text.tokenizer import Tokenizer as TextTokenizer  # needs jinja2

    TextTokenizer.load(directory)


def _published_architecture(keys: Keys, *, biases: bool) -> dict[str, Any]:
    """Return the fields of an architecture, without a mask token."""
    keys.only("attention_bias", *((True, None) if biases else (False, None)))
    width, heads = keys.size("hidden_size"), keys.size("num_attention_heads")
    kv_heads, rows = keys.optional_size("num_key_value_heads") or heads, keys.size("vocab_size")
    keys.divides(2 * heads, width, names=("twice num_attention_heads", "hidden_size"))
    keys.divides(kv_heads, heads, names=("num_key_value_heads", "num_attention_heads"))
    keys.only("head_dim", width // heads, None)
    stops = keys.tokens("eos_token_id", below=rows)
    return {
        "vocab_size": rows,
        "width": width,
        "layers": keys.size("num_hidden_layers"),
        "heads": heads,
        "kv_heads": kv_heads,
        "mlp_width": keys.size("intermediate_size"),
        "theta": keys.rotary_base(),
        "eps": keys.number("rms_norm_eps"),
        "qkv_bias": biases,
        "tied": keys.values.get("tie_word_embeddings") is True,
        "rotary_float32": not biases,
        "pad_id": stops[0],
        "stop_ids": stops,
        "max_length": keys.size("max_position_embeddings"),
        "bos_id": (*keys.tokens("bos_token_id", below=rows), None)[0],
    }


def assemble(
    architecture: dict[str, Any],
    *,
    layout: str,
    tensor: Callable[[tuple[str, str], int], Tensor],
    text: tuple[Tokenizer, Mapping[str, Any]],
    source: Path,
    stored: Stored,
) -> Original:
    """Build an original in the layout of the result.

    Args:
        architecture: The fields of `Architecture` without a mask, and `bos_id`.
        layout: The family of the result.
        tensor: Returns a tensor by its name in `Names`, such as ("query", ".weight"), and layer.
        text: The tokenizer and its settings.
        source: Where the original comes from, for error messages.
        stored: What the files hold. A larger architecture is refused before it is built.

    Raises:
        CheckpointError: The architecture is larger than what is stored, or the tokenizer has no
            room for a mask token.
    """
    module = family_module(layout)
    if architecture["layers"] > stored.tensors:
        raise CheckpointError(
            f"{source} announces {architecture['layers']} layers, but stores {stored.tensors} "
            "tensors; fetch it again."
        )
    tokenizer, settings = text
    mask = module.MASK_TOKEN
    rows, size = architecture["vocab_size"], tokenizer.get_vocab_size(with_added_tokens=True)
    if size > rows or tokenizer.token_to_id(mask) is not None:
        raise CheckpointError(
            f"The tokenizer of {source} has no room for a mask token: "
            + (f"it already has {mask}." if size <= rows else f"{size} tokens have {rows} rows.")
        )
    tokenizer.add_special_tokens([AddedToken(mask, special=True, normalized=False)])
    added = dict(settings.get("added_tokens_decoder") or {})
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    added[str(size)] = flags | {"content": mask, "special": True}
    architecture = architecture | {"mask_id": size, "vocab_size": max(rows, size + 1)}
    bos_id = architecture.pop("bos_id")
    dense = {
        name: template
        for name, template in module.Net.names._asdict().items()
        if template.count("{}") < 2  # an expert has a number of its own
    }
    places = {
        template.format(layer) + ending: ((name, ending), layer)
        for name, template in dense.items()
        for layer in range(architecture["layers"])
        for ending in (".weight", ".bias")
    }

    def read(name: str) -> Tensor:
        part = tensor(*places[name])
        if places[name][0][0] not in ("embedding", "head"):
            return part
        part = part.float().clone() if size < rows else add_row(part.float())
        part[size] = part[:size].mean(0)
        return part

    # An embedding has a row more for the mask token, and a head may share it.
    most = stored.weights + 2 * architecture["width"]
    model = build_causal(layout, architecture, read, most=most)
    return Original(
        model,
        tokenizer,
        bos_id=bos_id if settings.get("add_bos_token", layout == "llada") else None,
        end_id=model.stop_ids[0],
        tokenizer_settings=dict(settings) | {"added_tokens_decoder": added},
    )


# ---------------------------------------------------------------- llama2.c


def read_llama2c(path: Path) -> Original:
    """Read a llama2.c checkpoint in float32.

    Its tokenizer is at the end of the file or in `tokenizer.bin`. Its stories end with the token
    that begins the next one. `</s>` gets that token's row, so that the end has its own id.
    """
    with open_regular(path, error=CheckpointError) as file:
        header = file.read(28)
    if len(header) < 28:
        raise CheckpointError(f"{path} is not a checkpoint of a known layout; it is too short.")
    width, mlp_width, layers, heads, kv_heads, signed_vocab, length = struct.unpack("7i", header)
    sizes = (width, mlp_width, layers, heads, kv_heads, abs(signed_vocab), length)
    known = all(0 < size < 1 << 20 for size in sizes) and abs(signed_vocab) >= LLAMA2C_PIECES
    if not known or width % (2 * heads) or heads % kv_heads:
        raise CheckpointError(
            f"{path} is not a checkpoint of a known layout; give a directory with config.json and "
            "safetensors, a GGUF file, or a llama2.c file."
        )
    vocab, tied, head_dim = abs(signed_vocab), signed_vocab > 0, width // heads
    kv_width = kv_heads * head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "embedding": (vocab, width),
        "attention_norm": (layers, width),
        "query": (layers, width, width),
        "key": (layers, kv_width, width),
        "value": (layers, kv_width, width),
        "attention_out": (layers, width, width),
        "mlp_norm": (layers, width),
        "gate": (layers, mlp_width, width),
        "down": (layers, width, mlp_width),
        "up": (layers, mlp_width, width),
        "final_norm": (width,),
        "rotary": (2, length, head_dim // 2),  # tables that the model computes by itself
    }
    if not tied:
        shapes["head"] = (vocab, width)
    # The header tells the size of the weights: a longer file is not read.
    weights = 28 + 4 * sum(math.prod(shape) for shape in shapes.values())
    if path.stat().st_size < weights:
        raise CheckpointError(f"{path} is cut short; fetch it again.")
    _check_memory(weights)
    raw = read_bytes(path, limit=weights + TOKENIZER_BYTES, error=CheckpointError)
    parts, at = {}, 28
    for name, shape in shapes.items():
        count = math.prod(shape)
        parts[name] = torch.from_numpy(np.frombuffer(raw, "<f4", count, at).copy()).view(shape)
        at += 4 * count
    stored = raw[at:] or _neighbour(path)
    tokenizer, settings = llama2c_tokenizer(read_pieces(stored, vocab, path), length)
    begin, end = 1, 2
    for name in ("embedding", "head"):
        if name in parts:
            parts[name][end] = parts[name][begin]
            parts[name] = add_row(parts[name])
    for name in ("query", "key"):
        parts[name] = torch.stack([to_halves(part, head_dim) for part in parts[name]])
    names = family_module("llada").Net.names._asdict()
    architecture = {
        "vocab_size": vocab + 1,
        "width": width,
        "layers": layers,
        "heads": heads,
        "kv_heads": kv_heads,
        "mlp_width": mlp_width,
        "theta": LLAMA2C_THETA,
        "eps": LLAMA2C_EPS,
        "qkv_bias": False,
        "tied": tied,
        "rotary_float32": True,
        "mask_id": vocab,
        "pad_id": end,
        "stop_ids": (end,),
        "max_length": length,
    }
    kinds = {
        name.format(layer) + ".weight": parts[kind][layer] if "{}" in name else parts[kind]
        for kind, name in names.items()
        if kind in parts
        for layer in range(layers)
    }
    model = build_causal("llada", architecture, kinds.__getitem__)
    return Original(model, tokenizer, bos_id=begin, end_id=end, tokenizer_settings=settings)


def _neighbour(path: Path) -> bytes:
    file = path.parent / "tokenizer.bin"
    if not file.is_file():
        raise CheckpointError(f"{path} holds no tokenizer; put its tokenizer.bin next to it.")
    return read_bytes(file, limit=TOKENIZER_BYTES, error=CheckpointError)


def read_pieces(raw: bytes, count: int, path: Path) -> list[tuple[str, float]]:
    """Read the pieces and scores of llama2.c's `tokenizer.bin`."""
    pieces: list[tuple[str, float]] = []
    at = 4  # after the longest length
    try:
        for _ in range(count):
            score, size = struct.unpack_from("<fi", raw, at)
            text = raw[at + 8 : at + 8 + max(0, size)].decode("utf-8")
            if len(text.encode()) != size or not math.isfinite(score):
                raise ValueError("a piece is damaged")
            pieces.append((text, score))
            at += 8 + size
    except (struct.error, ValueError):
        raise CheckpointError(f"The tokenizer of {path} is damaged; fetch it again.") from None
    return pieces


def llama2c_tokenizer(
    pieces: list[tuple[str, float]], max_length: int
) -> tuple[Tokenizer, dict[str, Any]]:
    """Return the tokenizer of a llama2.c file, with a mask token, and its settings."""
    # Ids 3 to 258 are the bytes, however the file spells them.
    texts = [*LLAMA2C_CONTROLS, *(f"<0x{byte:02X}>" for byte in range(256))]
    texts += [text.replace(" ", SPACE) for text, _ in pieces[len(texts) :]]
    scores = {text: score for text, (_, score) in zip(texts, pieces, strict=True)}
    tokenizer = bpe_tokenizer(texts, scores)
    mask = family_module("llada").MASK_TOKEN
    if mask in scores:
        raise CheckpointError(f"The tokenizer has no room for a mask token: it already has {mask}.")
    controls = [*LLAMA2C_CONTROLS, mask]
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in controls])
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    settings = {
        "add_bos_token": True,
        "add_eos_token": False,
        "added_tokens_decoder": {
            str(tokenizer.token_to_id(text)): flags | {"content": text, "special": True}
            for text in controls
        },
        "additional_special_tokens": [mask],
        "bos_token": "<s>",
        "clean_up_tokenization_spaces": False,
        "eos_token": "</s>",
        "model_max_length": max_length,
        "pad_token": "</s>",
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": "<unk>",
    }
    return tokenizer, settings


def bpe_tokenizer(texts: list[str], scores: Mapping[str, float]) -> Tokenizer:
    """Return sentencepiece's byte-pair encoding: the pair with the best score is merged first.

    Args:
        texts: The pieces in the order of their ids.
        scores: The score of every piece.

    Raises:
        CheckpointError: A piece is too long.
    """
    if (longest := max(map(len, texts), default=0)) > PIECE_LIMIT:
        raise CheckpointError(
            f"The tokenizer has a piece of {longest} characters; the limit is {PIECE_LIMIT}."
        )
    vocabulary = {text: number for number, text in enumerate(texts)}
    merges: list[tuple[float, int, str, str]] = []
    for text, number in vocabulary.items():
        for cut in range(1, len(text)):
            left, right = text[:cut], text[cut:]
            if left in vocabulary and right in vocabulary and number > 2:
                merges.append((-scores[text], number, left, right))
    merges.sort(key=lambda merge: merge[:2])
    tokenizer = Tokenizer(
        models.BPE(
            vocab=vocabulary,
            merges=[(left, right) for _, _, left, right in merges],
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(
        replacement=SPACE, prepend_scheme="always", split=False
    )
    # The space before a first word is kept, so that a prompt and its continuation can be joined.
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return tokenizer
