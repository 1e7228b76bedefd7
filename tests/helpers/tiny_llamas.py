"""Tiny autoregressive checkpoints with random weights, in the layouts that `adapt` reads."""

from __future__ import annotations

import json
import struct
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

PIECES = [
    "\u2581",
    *"abcdeh",
    "he",
    "\u2581a",
    "\u2581b",
    "ab",
    "\u2581ab",
    "\u2581he",
    "cd",
    "\u2581cd",
]
PIECES += ["\u2581abcd", "de", "\u2581de"]
VOCAB = 3 + 256 + len(PIECES)


def write_llama2c(
    path: Path,
    *,
    width: int = 32,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    mlp_width: int = 48,
    length: int = 32,
    seed: int = 0,
) -> dict[str, np.ndarray]:
    """Write a llama2.c file with its tokenizer behind it, and return its tensors."""
    rng = np.random.default_rng(seed)
    kv_width = width // heads * kv_heads
    shapes = {
        "embedding": (VOCAB, width),
        "attention_norm": (layers, width),
        "wq": (layers, width, width),
        "wk": (layers, kv_width, width),
        "wv": (layers, kv_width, width),
        "wo": (layers, width, width),
        "mlp_norm": (layers, width),
        "w1": (layers, mlp_width, width),
        "w2": (layers, width, mlp_width),
        "w3": (layers, mlp_width, width),
        "final_norm": (width,),
        "rotary": (2, length, width // heads // 2),
    }
    parts = {
        name: (rng.standard_normal(shape) * (0.8 if name == "embedding" else 0.4)).astype("<f4")
        for name, shape in shapes.items()
    }
    for name in ("attention_norm", "mlp_norm", "final_norm"):
        parts[name] += 1
    parts["embedding"][:259] *= 0.3  # write pieces more often than bytes
    parts["embedding"][1] *= 2.5  # and end texts now and then
    sizes = (width, mlp_width, layers, heads, kv_heads, VOCAB, length)
    raw = struct.pack("7i", *sizes) + b"".join(part.tobytes() for part in parts.values())
    path.write_bytes(raw + tokenizer_bytes())
    return parts


def tokenizer_bytes() -> bytes:
    """Return the pieces in the format of llama2.c's tokenizer.bin."""
    texts = ["<unk>", "\n<s>\n", "\n</s>\n", *(chr(byte) for byte in range(256)), *PIECES]
    raw = struct.pack("i", max(len(text) for text in texts))
    for number, text in enumerate(texts):
        spelled = text.replace("\u2581", " ").encode()
        raw += struct.pack("fi", -float(number), len(spelled)) + spelled
    return raw


def plain_logits(parts: dict[str, np.ndarray], ids: list[int], heads: int = 4) -> np.ndarray:
    """Compute the logits of one row as llama2.c does: a loop in float64, interleaved pairs."""
    weights = {name: part.astype(np.float64) for name, part in parts.items()}
    layers, width = weights["attention_norm"].shape
    size = width // heads
    groups = heads // (weights["wk"].shape[1] // size)
    keys: list[list[np.ndarray]] = [[] for _ in range(layers)]
    values: list[list[np.ndarray]] = [[] for _ in range(layers)]
    rows = []
    for position, token in enumerate(ids):
        x = weights["embedding"][token].copy()
        for layer in range(layers):
            normed = _norm(x, weights["attention_norm"][layer])
            query, key, value = (weights[name][layer] @ normed for name in ("wq", "wk", "wv"))
            for vector in (query, key):
                for at in range(0, len(vector), 2):
                    angle = position / 10_000 ** ((at % size) / size)
                    pair = complex(vector[at], vector[at + 1]) * np.exp(1j * angle)
                    vector[at], vector[at + 1] = pair.real, pair.imag
            keys[layer].append(key)
            values[layer].append(value)
            mixed = np.zeros(width)
            for head in range(heads):
                mine = slice(head * size, (head + 1) * size)
                theirs = slice(head // groups * size, (head // groups + 1) * size)
                scores = np.array([query[mine] @ old[theirs] for old in keys[layer]])
                scores = np.exp((scores - scores.max()) / np.sqrt(size))
                mixed[mine] = sum(
                    share * old[theirs]
                    for share, old in zip(scores / scores.sum(), values[layer], strict=True)
                )
            x = x + weights["wo"][layer] @ mixed
            normed = _norm(x, weights["mlp_norm"][layer])
            gate = weights["w1"][layer] @ normed
            inner = gate / (1 + np.exp(-gate)) * (weights["w3"][layer] @ normed)
            x = x + weights["w2"][layer] @ inner
        rows.append(weights["embedding"] @ _norm(x, weights["final_norm"]))
    return np.array(rows)


def _norm(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x * x).mean() + 1e-5) * weight


def write_published(folder: Path, kind: str, *, rows: int = 300, tied: bool = True) -> Any:
    """Write a random Llama or Qwen2 as transformers does, and return transformers' own model."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

    shape: dict[str, Any] = {
        "vocab_size": rows,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        "tie_word_embeddings": tied,
        "bos_token_id": 256,
        "eos_token_id": 257,
        "initializer_range": 0.3,
    }
    torch.manual_seed(0)
    if kind == "llama":
        model: Any = LlamaForCausalLM(LlamaConfig(**shape))
    else:
        model = Qwen2ForCausalLM(Qwen2Config(**shape))
        for name, part in model.named_parameters():
            if name.endswith("bias"):
                torch.nn.init.normal_(part, std=0.3)
    model.eval().save_pretrained(folder)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": kind == "llama"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return model


def write_gguf(path: Path, kind: str, tensors: dict[str, np.ndarray], *, quantized: bool) -> None:
    """Write tensors under their GGUF names with a tokenizer of the kind's own type.

    With `quantized`, the head is stored in 8 bits and the embedding in 5, as published files do.
    """
    gguf: Any = import_module("gguf")
    writer = gguf.GGUFWriter(path, kind)
    writer.add_context_length(32)
    writer.add_embedding_length(32)
    writer.add_block_count(2)
    writer.add_feed_forward_length(48)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5 if kind == "llama" else 1e-6)
    writer.add_rope_freq_base(10_000.0)
    if kind == "llama":
        texts = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *PIECES]
        writer.add_tokenizer_model("llama")
        writer.add_token_scores([-float(number) for number in range(len(texts))])
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        types = [2, 3, 3, *[6] * 256, *[1] * len(PIECES)]
    else:
        from tokenizers import pre_tokenizers

        texts = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "he", "<|endoftext|>"]
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("qwen2")
        writer.add_token_merges(["h e"])
        writer.add_eos_token_id(257)
        texts += ["[PAD258]", "[PAD259]"]
        types = [*[1] * 257, 3, 5, 5]
    writer.add_token_list(texts)
    writer.add_token_types(types)
    for name, array in tensors.items():
        kinds = {"token_embd.weight": "Q5_0", "output.weight": "Q8_0"}
        if quantized and name in kinds:
            form = gguf.GGMLQuantizationType[kinds[name]]
            writer.add_tensor(name, gguf.quants.quantize(array, form), raw_dtype=form)
        else:
            writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
