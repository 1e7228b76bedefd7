"""Adapting an autoregressive checkpoint: reading, pruning, writing texts, rows, training."""

from __future__ import annotations

import json
import os
import random
import signal
import struct
import subprocess
import sys
import time
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from helpers.tiny_llamas import plain_logits, write_gguf, write_llama2c, write_published

import wavefront
from wavefront.core.errors import (
    CheckpointError,
    MissingExtraError,
    NumericalError,
    OptionError,
    WavefrontError,
)
from wavefront.models import loader as loader_module
from wavefront.models.judge import Judge
from wavefront.models.loader import load_model, save_checkpoint
from wavefront.models.transformer import Transformer
from wavefront.storage.checkpoint import open_checkpoint
from wavefront.storage.hub import builtin_checkpoints
from wavefront.text.tokenizer import Tokenizer, prompt_ids
from wavefront.train import gguf_file, loop, lr_schedule, train_step
from wavefront.train import original as original_module
from wavefront.train.adapt import adapt, choose_filters
from wavefront.train.card import COLOURS, KINDS, card_text, draw_curve
from wavefront.train.command import main, read_settings
from wavefront.train.config import AdaptConfig, RowConfig, TrainConfig
from wavefront.train.original import (
    Original,
    bpe_tokenizer,
    load_original,
    read_original,
    read_pieces,
    save_original,
)
from wavefront.train.overlap import clean_rows, overlapping_rows, shared_rows, template_runs
from wavefront.train.prune import expected_usage, prune
from wavefront.train.rows import Rows, RowSource
from wavefront.train.sampling import Writer
from wavefront.train.texts import unseen_texts
from wavefront.train.train_step import upload
from wavefront.train.validation import held_out_loss, held_out_rows

CPU = torch.device("cpu")
TEXT = "ab he abcd\nnaïve 東 cd"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("original") / "tiny.bin"
    write_llama2c(path)
    return path


@pytest.fixture(scope="module")
def original(file: Path) -> Original:
    return read_original(file)


def settings(file: Path, out: Path, **changes: Any) -> tuple[AdaptConfig, TrainConfig]:
    """Return a small setting: the original writes 64 texts, and 40 steps of training."""
    chosen: dict[str, Any] = {"steps": 40, "seed": 0, "minutes": None, "vocabulary": None} | changes
    config = AdaptConfig(
        original=file,
        out=out,
        vocabulary=chosen["vocabulary"],
        vocabulary_texts=16,
        texts=96,
        write_batch=48,
        held_out=16,
        held_out_texts=64,
        prompt_tokens=16,
        filters="",
        minutes=chosen["minutes"],
    )
    data = RowConfig(
        tokenizer=out / "original",
        rows_path=out / "rows",
        seed=chosen["seed"],
        tokens_per_step=768,
        buckets=(32, 48),
        bucket_weights=(0.8, 0.2),
        prefix=(1, 8),
        group=4,
    )
    training = TrainConfig(
        out=out,
        data=data,
        steps=chosen["steps"],
        lr=3e-3,
        eps=0.02,
        warmup=4,
        ema=0.9,
        device="cpu",
        workers=0,
        save_every=5,
        log_every=5,
        quiet=True,
    )
    return config, training


# ---------------------------------------------------------------- the original


def test_llama2c_logits_equal_a_plain_computation(tmp_path: Path) -> None:
    path = tmp_path / "tiny.bin"
    parts = write_llama2c(path)
    original = read_original(path)
    ids = [1, 260, 265, 262, 270, 259, 264]
    wanted = plain_logits(parts, ids)
    wanted[:, 2] = wanted[:, 1]  # the end has the row of the token that begins the next text
    got = original.model(torch.tensor([ids]))[0, :, : wanted.shape[1]].double().numpy()
    assert np.abs(got - wanted).max() < 2e-5 * np.abs(wanted).max()


def test_saved_original_loads_natively_with_the_same_logits(
    original: Original, tmp_path: Path
) -> None:
    save_original(original, tmp_path)
    ids = torch.tensor([[1, 260, 265, 262, 270]])
    native = load_model(tmp_path, device="cpu")
    assert isinstance(native, Transformer)
    assert native.family == "llada"
    assert not torch.equal(native(ids), original.model(ids)), "it is bidirectional"
    native.block_size = 1
    assert torch.equal(native(ids), original.model(ids))
    again = load_original(tmp_path)
    assert torch.equal(again.model(ids), original.model(ids))
    assert (again.bos_id, again.end_id) == (1, 2)
    assert again.never_written == original.never_written


def test_tokenizer_of_llama2c_encodes_any_text(original: Original, tmp_path: Path) -> None:
    save_original(original, tmp_path)
    reader = Tokenizer.load(tmp_path)
    assert reader.decode(prompt_ids(reader, TEXT)) == " " + TEXT
    assert prompt_ids(reader, "ab he")[0] == original.bos_id
    pieces = [original.tokenizer.id_to_token(id) for id in reader.encode("abcd he")]
    assert pieces == ["▁abcd", "▁he"], "the pair with the best score is merged first"
    assert reader.stop_ids == (2,)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(("kind", "layout"), [("llama", "llada"), ("qwen2", "dream")])
def test_published_originals_have_the_logits_of_transformers(
    tmp_path: Path, kind: str, layout: str, tied: bool
) -> None:
    rows = 258 if kind == "llama" else 300  # no free row for the mask, and some
    reference = write_published(tmp_path, kind, rows=rows, tied=tied)
    original = read_original(tmp_path)
    assert original.model.family == layout
    assert original.model.mask_id == 258
    assert original.model.vocab_size == max(259, rows)
    assert (original.bos_id, original.end_id) == (256 if kind == "llama" else None, 257)
    ids = torch.tensor([[256, 5, 77, 200, 31]])
    with torch.no_grad():
        wanted = reference(ids).logits
    kept = [token for token in range(rows) if token != 258]
    got = original.model(ids)[..., kept]
    assert (got - wanted[..., kept]).abs().max() < 1e-4 * wanted.abs().max()
    save_original(original, tmp_path / "saved")
    assert torch.equal(load_original(tmp_path / "saved").model(ids), original.model(ids))
    assert (
        Tokenizer.load(tmp_path / "saved").token_to_id(
            "<|mdm_mask|>" if layout == "llada" else "<|mask|>"
        )
        == 258
    )


LLAMA_NAMES = {
    "attention_norm": "attn_norm",
    "wq": "attn_q",
    "wk": "attn_k",
    "wv": "attn_v",
    "wo": "attn_output",
    "mlp_norm": "ffn_norm",
    "w1": "ffn_gate",
    "w2": "ffn_down",
    "w3": "ffn_up",
}
QWEN2_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.down_proj": "ffn_down",
    "mlp.up_proj": "ffn_up",
}


def test_llama_from_gguf_equals_the_one_from_llama2c(tmp_path: Path) -> None:
    pytest.importorskip("gguf", reason="gguf is not installed")
    parts = write_llama2c(tmp_path / "tiny.bin")
    parts["embedding"][2] = parts["embedding"][1]
    tensors = {
        f"blk.{layer}.{name}.weight": parts[part][layer]
        for part, name in LLAMA_NAMES.items()
        for layer in range(2)
    }
    tensors["token_embd.weight"] = parts["embedding"]
    tensors["output_norm.weight"] = parts["final_norm"]
    write_gguf(tmp_path / "tiny.gguf", "llama", tensors, quantized=False)
    original, wanted = (read_original(tmp_path / name) for name in ("tiny.gguf", "tiny.bin"))
    ids = torch.tensor([[1, 260, 265, 262, 270]])
    assert torch.equal(original.model(ids), wanted.model(ids))
    assert (original.bos_id, original.end_id) == (1, 2)
    assert original.tokenizer.encode(TEXT).ids == wanted.tokenizer.encode(TEXT).ids


@pytest.mark.parametrize("quantized", [False, True])
def test_qwen2_from_gguf_has_the_logits_of_transformers(tmp_path: Path, quantized: bool) -> None:
    pytest.importorskip("gguf", reason="gguf is not installed")
    reference = write_published(tmp_path / "hf", "qwen2", rows=260)
    stored = {name: part.detach().numpy() for name, part in reference.named_parameters()}
    tensors = {
        f"blk.{layer}.{name}.{kind}": stored[f"model.layers.{layer}.{part}.{kind}"]
        for part, name in QWEN2_NAMES.items()
        for layer in range(2)
        for kind in ("weight", "bias")
        if f"model.layers.{layer}.{part}.{kind}" in stored
    }
    tensors["token_embd.weight"] = tensors["output.weight"] = stored["model.embed_tokens.weight"]
    tensors["output_norm.weight"] = stored["model.norm.weight"]
    write_gguf(tmp_path / "tiny.gguf", "qwen2", tensors, quantized=quantized)
    original = read_original(tmp_path / "tiny.gguf")
    assert original.model.family == "dream"
    assert original.model.config.tied, "head and embedding are one matrix in two precisions"
    ids = torch.tensor([[5, 77, 200, 31]])
    with torch.no_grad():
        wanted = reference(ids).logits
    assert (original.model.vocab_size, original.model.mask_id) == (260, 258), "a row was unused"
    error = (original.model(ids) - wanted)[..., :258].abs().max() / wanted.abs().max()
    assert error < (0.03 if quantized else 1e-4)  # 8 bits and not 5
    assert original.tokenizer.encode("he").tokens == ["he"]


def test_gguf_file_without_the_library_gets_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    path = tmp_path / "tiny.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 0))
    with pytest.raises(MissingExtraError, match=r"pip install -e '.*\[gguf\]'"):
        read_original(path)


def test_tokenizer_without_room_for_a_mask_gets_one_sentence(tmp_path: Path) -> None:
    write_published(tmp_path, "llama", rows=258)
    stored = tmp_path / "tokenizer.json"
    values = json.loads(stored.read_text("utf-8"))
    mask = values["added_tokens"][-1] | {"id": 258, "content": "<|mdm_mask|>"}
    stored.write_text(json.dumps(values | {"added_tokens": [*values["added_tokens"], mask]}))
    with pytest.raises(CheckpointError, match="no room for a mask token: 259 tokens have 258 rows"):
        read_original(tmp_path)


def test_unknown_layout_gets_one_sentence(tmp_path: Path) -> None:
    write_published(tmp_path, "llama")
    config = json.loads((tmp_path / "config.json").read_text("utf-8"))
    (tmp_path / "config.json").write_text(json.dumps(config | {"model_type": "mamba"}))
    with pytest.raises(CheckpointError, match="layout 'mamba', which adapt does not support"):
        read_original(tmp_path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "known layout"),
        (b"not a checkpoint, only some text in a file", "known layout"),
        (None, "cut short"),
    ],
)
def test_damaged_originals_get_one_sentence(
    file: Path, tmp_path: Path, content: bytes | None, words: str
) -> None:
    path = tmp_path / "bad.bin"
    path.write_bytes(file.read_bytes()[:9000] if content is None else content)
    with pytest.raises(CheckpointError, match=words):
        read_original(path)


def llama2c_with(file: Path, **sizes: int) -> bytes:
    """Return the bytes of a llama2.c file with other sizes in its header."""
    names = ("width", "mlp", "layers", "heads", "kv_heads", "vocab", "length")
    raw = file.read_bytes()
    header = dict(zip(names, struct.unpack("7i", raw[:28]), strict=True)) | sizes
    return struct.pack("7i", *header.values()) + raw[28:]


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ({"layers": (1 << 20) - 1}, "cut short"),
        ({"vocab": 1}, "known layout"),
        ({"vocab": -258}, "known layout"),
        ({"heads": 0}, "known layout"),
        ({"width": -(1 << 31)}, "known layout"),
        ({"length": (1 << 20) - 1}, "cut short"),
    ],
)
def test_absurd_sizes_of_a_llama2c_file_get_one_sentence(
    file: Path, tmp_path: Path, sizes: dict[str, int], words: str
) -> None:
    path = tmp_path / "bad.bin"
    path.write_bytes(llama2c_with(file, **sizes))
    with pytest.raises(CheckpointError, match=words):
        read_original(path)


def test_sparse_llama2c_file_is_not_read(file: Path, tmp_path: Path) -> None:
    path = tmp_path / "sparse.bin"
    path.write_bytes(file.read_bytes()[:28])
    os.truncate(path, 1 << 40)
    with pytest.raises(CheckpointError, match="larger than"):
        read_original(path)


def test_sparse_llama2c_file_larger_than_the_memory_is_not_read(file: Path, tmp_path: Path) -> None:
    """The header and the size of the file agree, but the file takes no space on disk."""
    path = tmp_path / "sparse.bin"
    path.write_bytes(llama2c_with(file, width=1 << 16, mlp=1 << 16, layers=16)[:28])
    os.truncate(path, 1 << 42)
    with pytest.raises(CheckpointError, match=r"need \d+\.\d GB in float32"):
        read_original(path)


@pytest.mark.parametrize(
    ("size", "score", "text"), [(-8, 0.0, b""), (1 << 30, 0.0, b"a"), (1, float("nan"), b"a")]
)
def test_damaged_pieces_get_one_sentence(
    tmp_path: Path, size: int, score: float, text: bytes
) -> None:
    raw = struct.pack("<i", 8) + struct.pack("<fi", score, size) + text
    with pytest.raises(CheckpointError, match="damaged"):
        read_pieces(raw, 1, tmp_path)


def test_a_piece_that_is_too_long_gets_one_sentence() -> None:
    with pytest.raises(CheckpointError, match="a piece of 100000 characters"):
        bpe_tokenizer(["a" * 100_000], {})


GGUF_TEXT = struct.pack("<Q", 1) + b"a"


@pytest.mark.parametrize(
    ("keys", "tensors", "content", "words"),
    [
        (1 << 60, 0, b"", "keys and"),
        (0, 1 << 60, b"", "tensors"),
        (1, 0, GGUF_TEXT + struct.pack("<IQ", 8, 1 << 62), "cut short"),
        (1, 0, GGUF_TEXT + struct.pack("<IIQ", 9, 0, 1 << 40), "lists of over"),
        (1, 0, GGUF_TEXT + struct.pack("<IIQ", 9, 8, 1 << 20), "cut short"),
        (1, 0, GGUF_TEXT + struct.pack("<IIQ", 9, 9, 1), "list of lists"),
        (1, 0, GGUF_TEXT + struct.pack("<I", 99), "unknown kind 99"),
        (1, 0, b"", "cut short"),
        (0, 1, GGUF_TEXT + struct.pack("<I", 1 << 31), "dimensions"),
        (0, 1, GGUF_TEXT + struct.pack("<I2QIQ", 2, 1 << 40, 1 << 40, 0, 0), "larger than the"),
        (0, 1, GGUF_TEXT + struct.pack("<IQIQ", 1, 4, 0, 1 << 62), "after the end"),
    ],
)
def test_absurd_sizes_of_a_gguf_file_get_one_sentence(
    tmp_path: Path, keys: int, tensors: int, content: bytes, words: str
) -> None:
    # The header is checked before the library reads the file, so this needs no library.
    path = tmp_path / "bad.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, tensors, keys) + content)
    with pytest.raises(CheckpointError, match=words):
        read_original(path)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("num_hidden_layers", 1 << 23, "announces 8388608 layers"),
        ("intermediate_size", 1 << 23, "describe"),
        ("vocab_size", 1 << 23, "describe"),
    ],
)
def test_published_original_larger_than_its_weights_is_not_built(
    tmp_path: Path, key: str, value: int, words: str
) -> None:
    write_published(tmp_path, "llama")
    config = json.loads((tmp_path / "config.json").read_text()) | {key: value}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=words):
        read_original(tmp_path)


def test_published_original_larger_than_the_memory_is_not_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_published(tmp_path, "llama")
    monkeypatch.setattr(original_module, "host_memory", lambda: 1000)
    with pytest.raises(CheckpointError, match=r"need \d+\.\d GB in float32, and this machine has"):
        read_original(tmp_path)


@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
def test_long_list_of_end_tokens_is_refused_at_once(tmp_path: Path, name: str) -> None:
    write_published(tmp_path, "llama")
    file = tmp_path / name
    config = json.loads(file.read_text()) if file.is_file() else {}
    file.write_text(json.dumps(config | {"eos_token_id": [*range(100_000)]}))
    start = time.process_time()
    with pytest.raises(CheckpointError, match=f"{name}: eos_token_id lists 100000 ids"):
        read_original(tmp_path)
    assert time.process_time() - start < 5


def test_control_tokens_of_a_gguf_file_are_found_in_linear_time(tmp_path: Path) -> None:
    count = 60_000
    texts = [f"<{number}>" for number in range(count)]
    values = {
        "tokenizer.ggml.tokens": texts,
        "tokenizer.ggml.token_type": [gguf_file.CONTROL] * count,
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.scores": [0.0] * count,
        "tokenizer.ggml.eos_token_id": 2,
    }
    start = time.process_time()
    _, found = gguf_file._tokenizer(tmp_path, values)
    assert time.process_time() - start < 10
    assert [*found["added_tokens_decoder"]] == [*map(str, range(count))]


# ---------------------------------------------------------------- vocabulary


def test_pruned_original_gives_the_same_logits_for_kept_tokens(original: Original) -> None:
    usage = torch.zeros(original.model.vocab_size)
    usage[original.tokenizer.token_to_id("▁abcd")] = 1.0
    pruned = prune(original, usage, 3 + 256 + 9 + 1).original
    kept = [pruned.tokenizer.id_to_token(id) for id in range(pruned.model.vocab_size)]
    old = torch.tensor([original.tokenizer.token_to_id(text) for text in kept])
    assert pruned.tokenizer.encode("abcd").tokens == ["▁abcd"], "its merges are kept"
    ids = [1, *pruned.tokenizer.encode("abcd abcd").ids]
    got, wanted = pruned.model(torch.tensor([ids])), original.model(old[torch.tensor([ids])])
    assert torch.equal(got, wanted[..., old])
    assert kept[pruned.model.mask_id] == "<|mdm_mask|>"


def test_pruned_tokenizer_encodes_any_text(original: Original, tmp_path: Path) -> None:
    texts = Writer(original, device=CPU).write([[1]] * 8, length=32)
    rows = [[1, *text.answer.tolist()] for text in texts]
    usage = expected_usage(original, rows, CPU)
    counted = sum(len(row) for row in rows)
    assert usage.sum() == pytest.approx(counted, rel=1e-4)
    assert not usage[list(original.never_written)].any()
    pruned = prune(original, usage, 268)
    assert 0.5 < pruned.coverage < 1
    save_original(pruned.original, tmp_path)
    reader = Tokenizer.load(tmp_path)
    assert reader.vocab_size == pruned.original.model.vocab_size
    assert reader.decode(reader.encode(TEXT)) == " " + TEXT


def test_vocabulary_without_room_for_bytes_raises(original: Original) -> None:
    with pytest.raises(OptionError, match="vocabulary must be above 259"):
        prune(original, torch.ones(original.model.vocab_size), 200)


# ---------------------------------------------------------------- writing


def test_greedy_writing_equals_forward_passes_over_the_whole_text(original: Original) -> None:
    prompts = [[1], [1, 260, 265, 262], [1, 270]]
    rows = Writer(original, device=CPU).sample(prompts, length=20, temperature=0.0)
    never = list(original.never_written)
    for prompt, row in zip(prompts, rows.tolist(), strict=True):
        ids = list(prompt)
        while len(ids) < 20 and original.end_id not in ids:
            logits = original.model(torch.tensor([ids]))[0, -1]
            logits[never] = float("-inf")
            ids.append(int(logits.argmax()))
        ids += [original.end_id] * (20 - len(ids))
        assert row == ids


def test_shared_prefix_of_prompts_is_read_once(
    original: Original, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = [1, 260, 265, 262, 261]
    prompts = [[*first, 270], [*first, 263, 266, 264], first, [*first, 263]]
    alone = [
        Writer(original, device=CPU).sample([prompt], length=20, temperature=0.0)[0].tolist()
        for prompt in prompts
    ]
    read: list[tuple[int, ...]] = []
    encode = type(original.model).encode

    def counted(self: Any, tokens: Any, *args: Any, window: Any, **options: Any) -> Any:
        read.append(tuple(window.shape))
        return encode(self, tokens, *args, window=window, **options)

    monkeypatch.setattr(type(original.model), "encode", counted)
    monkeypatch.setattr("wavefront.train.sampling.PREFILL", 6)  # two rows per forward pass
    rows = Writer(original, device=CPU).sample(prompts, length=20, temperature=0.0)
    assert rows.tolist() == alone
    assert read[:3] == [(1, len(first)), (2, 3), (2, 3)]


def test_written_tokens_follow_the_model(original: Original) -> None:
    texts = Writer(original, device=CPU).write([[1]] * 4000, length=2, seed=5)
    logits = original.model(torch.tensor([[1]]))[0, 0]
    logits[list(original.never_written)] = float("-inf")
    wanted = logits.softmax(0).double().numpy()
    ids = [int(text.answer[0]) if len(text.answer) else original.end_id for text in texts]
    counts = np.bincount(ids, minlength=len(wanted))
    likely = wanted > 0.01
    error = np.abs(counts / 4000 - wanted)[likely]
    assert (error < 5 * np.sqrt(wanted[likely] / 4000)).all()
    assert not counts[wanted == 0].any()


def test_an_answer_has_at_most_so_many_tokens(original: Original) -> None:
    writer = Writer(original, device=torch.device("cpu"))
    prompts = [[1, 5, 6, 7, 8, 9, 10], [1, 5]]
    whole = writer.write(prompts, length=20, temperature=0.0)
    parts = writer.write(prompts, length=20, temperature=0.0, most=4)
    for text, part in zip(whole, parts, strict=True):
        assert part.answer.tolist() == text.answer[:4].tolist()
        assert part.finished == (text.finished and len(text.answer) < 4)
    assert any(not part.finished for part in parts)


def test_same_seed_writes_the_same_texts(original: Original) -> None:
    writer = Writer(original, device=CPU)
    first, again, other = (writer.sample([[1]] * 6, length=24, seed=seed) for seed in (3, 3, 4))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_unknown_filter_raises() -> None:
    assert len(choose_filters("finished,varied")) == 2
    with pytest.raises(OptionError, match="did you mean 'finished'"):
        choose_filters("finishd")


# ---------------------------------------------------------------- rows


def test_overlap_finds_shared_runs_of_13_tokens_and_nothing_else() -> None:
    rng = np.random.default_rng(0)
    texts = rng.integers(3, 4000, (50, 60))
    unseen = rng.integers(3, 4000, (4, 20))
    texts[7, 40:53] = unseen[2, 3:16]
    texts[9, 40:52] = unseen[2, 3:15]  # one token less
    texts[11, 54:], texts[12, :7] = unseen[1, :6], unseen[1, 6:13]  # across two rows
    rows, hidden = Rows.pack(list(texts)), Rows.pack(list(unseen))
    assert np.flatnonzero(overlapping_rows(rows, hidden)).tolist() == [7]
    assert clean_rows(hidden, rows).tolist() == [True, True, False, True]


def test_instructions_that_prompts_share_are_no_overlap() -> None:
    rng = np.random.default_rng(0)
    questions, answers = rng.integers(3, 4000, (2, 60, 20))
    template = rng.integers(3, 4000, 30)
    rows = [
        np.concatenate(parts) for parts in zip([template] * 60, questions, answers, strict=True)
    ]
    hidden = [np.concatenate((template, question)) for question in questions[:20]]
    found = overlapping_rows(Rows.pack(rows), Rows.pack(hidden))
    assert np.flatnonzero(found).tolist() == list(range(20))
    # A run with the end of the template and one common word is not enough.
    questions[:, 0] = 77
    rows = [np.concatenate((template, *pair)) for pair in zip(questions, answers, strict=True)]
    hidden = [np.concatenate((template, [77, number, 5])) for number in range(2000, 2020)]
    assert not overlapping_rows(Rows.pack(rows), Rows.pack(hidden)).any()
    # Copies of one text are one text, so what they share is no template.
    found = overlapping_rows(Rows.pack(rows[:1]), Rows.pack([rows[0][:50]] * 20))
    assert found.all()


def test_candidates_know_how_many_other_texts_they_would_cost() -> None:
    rng = np.random.default_rng(0)
    texts = rng.integers(3, 4000, (60, 60))
    template = rng.integers(3, 4000, 20)
    texts[:, :20] = template
    texts[10:14, 30:45] = texts[9, 30:45]  # four others share one run
    texts[20, 45:60], texts[21, 21:36] = texts[19, 21:36], texts[19, 40:55]  # two share two runs
    rows = Rows.pack(list(texts))
    candidates = Rows.pack([*(texts[i] for i in (0, 9, 19)), texts[30][:25]])
    templates = template_runs(candidates, share=0.5)
    assert not len(templates)  # more than four texts must share a template
    templates = template_runs(Rows.pack([*texts[:20, :30], *texts[:20, :30]]), share=0.5)
    assert len(templates) == 20 - 13 + 1
    shared = shared_rows(candidates, rows, templates=templates)
    assert shared.rows.tolist() == [0, 4, 2, 0]
    assert shared.runs.tolist() == [28, 28, 28, 0]
    # A held-out text that costs none costs none: even one that does not show its template.
    one = Rows.pack([texts[0]])
    others = rows.take(np.arange(1, 60))
    assert overlapping_rows(others, one).all()
    assert not overlapping_rows(others, one, templates=templates).any()


def test_rows_survive_a_round_trip(tmp_path: Path) -> None:
    rows = Rows.pack([[1, 2, 3], [70_000], [], [5, 6]], prompts=[1, 0, 0, 1])
    rows.save(tmp_path)
    loaded = Rows.join([Rows.load(tmp_path), rows.take(np.array([3]))])
    assert [row.tolist() for row in loaded] == [[1, 2, 3], [70_000], [], [5, 6], [5, 6]]
    assert loaded.prompts.tolist() == [1, 0, 0, 1, 1]


def test_rows_are_a_visible_prefix_then_text_then_end_tokens(tmp_path: Path) -> None:
    ended, cut = [1, 10, 11, 12, 2], [1, *range(20, 61)]
    answered = [1, *range(40, 80), 2]
    texts = [ended, cut, [1, 30, 31, 2], answered]
    Rows.pack(texts, prompts=[0, 0, 2, 3]).save(tmp_path / "train")
    np.save(tmp_path / "end.npy", np.array(2))
    config = RowConfig(
        tokenizer=tmp_path,
        rows_path=tmp_path,
        tokens_per_step=512,
        buckets=(32, 64),
        prefix=(1, 8),
        group=8,
    )
    source = RowSource(config)
    batches = source.make_group(0) + source.make_group(1)
    seen = set()
    for batch in batches:
        length = batch.tokens.shape[1]
        for row, start in zip(batch.tokens.tolist(), batch.start.tolist(), strict=True):
            text = {10: ended, 20: cut, 30: [1, 30, 31, 2], 40: answered}[row[1]]
            assert row == (text + [2] * length)[:length]
            assert text is not cut or length == 32, "a text without an end is never padded"
            assert text is not answered or length == 64, "an answer with an end is not cut"
            prompt = {30: 2, 40: 3}.get(text[1])
            assert start == prompt if prompt else 1 <= start <= min(8, len(text) - 1)
            seen.add((text[1], length))
    assert seen == {(10, 32), (10, 64), (20, 32), (30, 32), (30, 64), (40, 64)}
    again = RowSource(config).make_group(1)
    assert all(
        np.array_equal(first.tokens, second.tokens)
        for first, second in zip(again, batches[8:], strict=True)
    )


# ---------------------------------------------------------------- training


@pytest.mark.slow
def test_adapted_model_beats_its_untrained_self(file: Path, tmp_path: Path) -> None:
    config, training = settings(file, tmp_path, vocabulary=270)
    record = adapt(config, training)
    batches, source = held_out_rows(training.data, CPU)
    untrained = load_model(tmp_path / "original", device="cpu")
    trained = load_model(tmp_path / "model", device="cpu", dtype="float32")
    assert isinstance(untrained, Transformer)
    assert isinstance(trained, Transformer)
    before, after = (
        held_out_loss(model, batches, source)["loss"] for model in (untrained, trained)
    )
    assert after < before - 0.5
    assert after == pytest.approx(record["held_out"][record["exported"]]["loss"], abs=1e-2)
    assert trained.max_length == 48
    assert trained.mask_id == 269
    card = (tmp_path / "model" / "README.md").read_text("utf-8")
    assert "0 others shared a run of 13 tokens" in card
    prompts = (tmp_path / "model" / "prompts.jsonl").read_text("utf-8").splitlines()
    assert all(len(json.loads(line)["ids"]) <= 17 for line in prompts)
    assert {json.loads(line)["finished"] for line in prompts} <= {True, False}
    curve = (tmp_path / "model" / "training.jsonl").read_text().splitlines()
    losses = [line["step"] for line in map(json.loads, curve) if "loss" in line]
    assert losses == sorted({*losses}), "every step is there once"
    completion = wavefront.load(tmp_path / "model", device="cpu").generate(
        "ab he", max_new_tokens=8
    )
    assert completion.steps == 8


KILLED = """
import os, signal, sys
from pathlib import Path
from train.test_adapt import settings
from wavefront.train import loop
from wavefront.train.adapt import adapt
from wavefront.train.rows import Rows

place = sys.argv[3]
learn, save = loop.TrainingRun._train_one_step, Rows.save

def learn_until(self, *given):
    if place == "training" and self.step == 7:
        os.kill(os.getpid(), signal.SIGKILL)
    learn(self, *given)

def save_until(self, folder):
    if place == "writing" and folder.name == "00001":
        os.kill(os.getpid(), signal.SIGKILL)
    save(self, folder)

loop.TrainingRun._train_one_step, Rows.save = learn_until, save_until
adapt(*settings(Path(sys.argv[1]), Path(sys.argv[2]), steps=12))
"""


@pytest.mark.slow
def test_killed_adaptation_continues_bit_for_bit(file: Path, tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    adapt(*settings(file, whole, steps=12))
    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    paths = os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, sys.path)])
    environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    for place in ("writing", "training"):
        command = [sys.executable, str(script), str(file), str(parts), place]
        ended = subprocess.run(command, env=environment, capture_output=True, timeout=120)
        assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()[-2000:]
    assert torch.load(parts / "state.pt", weights_only=True)["step"] == 5
    adapt(*settings(file, parts, steps=12))
    states = [torch.load(folder / "state.pt", weights_only=True) for folder in (whole, parts)]
    assert states[0]["step"] == states[1]["step"] == 12
    for name, tensor in states[0]["model"].items():
        assert torch.equal(tensor, states[1]["model"][name]), name
    files = [folder / "model" / "model.safetensors" for folder in (whole, parts)]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_other_settings_in_a_begun_directory_raise(file: Path, tmp_path: Path) -> None:
    config, training = settings(file, tmp_path)
    adapt(replace(config, stage="original"), training)
    with pytest.raises(OptionError, match="started with texts=96, not 97"):
        adapt(replace(config, texts=97), training)
    with pytest.raises(OptionError, match="started with seed=0, not 1"):
        adapt(config, replace(training, data=replace(training.data, seed=1)))


def test_failed_first_try_does_not_fix_the_settings(file: Path, tmp_path: Path) -> None:
    config, training = settings(file, tmp_path / "run", steps=1)
    with pytest.raises(CheckpointError):
        adapt(replace(config, original=tmp_path / "missing", texts=97), training)
    for changes, words in (
        ({"filters": "tall"}, "no filter 'tall'"),
        ({"exclude": "gsm9k"}, "gsm9k"),
        ({"texts_from": tmp_path / "missing.txt"}, "cannot be read"),
        ({"text_length": 33}, "text_length must be at most 32"),
    ):
        with pytest.raises(WavefrontError, match=words):
            adapt(replace(config, **changes), training)
        assert not (tmp_path / "run" / "adapt.json").exists()
    adapt(replace(config, stage="original"), training)
    assert json.loads((tmp_path / "run" / "adapt.json").read_text())["texts"] == 96


def test_missing_file_name_is_said_in_words(file: Path, tmp_path: Path) -> None:
    config, training = settings(file, tmp_path / "run")
    adapt(replace(config, stage="original"), training)
    data = tmp_path / "texts.txt"
    data.write_text("one text\n\nanother text")
    with pytest.raises(OptionError, match="started without texts_from, not with texts_from=") as no:
        adapt(replace(config, texts_from=data), training)
    assert "None" not in str(no.value)
    # Earlier versions stored the word None.
    stored = tmp_path / "run" / "adapt.json"
    stored.write_text(stored.read_text().replace('"texts_from": null', '"texts_from": "None"'))
    adapt(replace(config, stage="original"), training)
    with pytest.raises(OptionError, match="started with texts=96, not 97"):
        adapt(replace(config, texts=97), training)


def test_slow_first_steps_do_not_shorten_a_planned_run(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(lr_schedule.time, "monotonic", lambda: now)
    clock = lr_schedule.PlannedClock(2.0, first=0, seconds=0.0)
    clock.start()
    step = 0
    while not clock.is_over(step):
        clock.progress(step)
        now += 20.0 if step == 0 else 0.5
        step += 1
    assert now == pytest.approx(120.0, abs=1.0)


@pytest.mark.slow
def test_planned_run_keeps_its_plan_when_it_is_resumed(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, training = settings(file, tmp_path)
    monkeypatch.setattr(lr_schedule, "PLAN_AFTER", 6)
    # The first steps may be several times as slow as the others.
    planned = replace(training, steps=None, train_minutes=0.2)
    adapt(replace(config, stage="rows"), planned)
    record = adapt(replace(config, minutes=0.04), planned)
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    assert state["step"] >= lr_schedule.PLAN_AFTER
    assert state["steps"] > state["step"] == record["step"]
    done = adapt(config, planned)
    assert done["step"] == state["steps"]
    assert done["lr"] < training.lr * 0.1


# ---------------------------------------------------------------- the curve


def polylines(svg: str) -> dict[str, list[tuple[float, float]]]:
    """Return the points of every line of a drawing, by colour."""
    root = ElementTree.fromstring(svg)
    return {
        line.get("stroke", ""): [
            (float(x), float(y))
            for x, y in (point.split(",") for point in line.get("points", "").split())
        ]
        for line in root.iter("{http://www.w3.org/2000/svg}polyline")
    }


@pytest.mark.parametrize(
    ("fraction", "words"),
    [
        (1.0, "linear decay over the whole run"),
        (0.3, "linear decay over the last 30 % of the run"),
        (0.0, "no decay"),
    ],
)
def test_card_writes_numbers_and_decay_in_words(
    tmp_path: Path, fraction: float, words: str
) -> None:
    config, training = settings(tmp_path / "tiny.bin", tmp_path)
    data = replace(training.data, tokens_per_step=131_072)
    facts = {"texts": 2000, "tokens": 64_000, "overlap": 0, "held_out": 1024, "excluded": 0}
    facts |= {"step": 17_370, "exported": "ema", "levels": {}, "peak_bytes": None}
    card = card_text(config, replace(training, data=data, decay_fraction=fraction), facts)
    assert f"17,370 steps of 131,072 tokens, adamw at 0.003, warm-up 4 steps,\n{words}, " in card
    assert "2,000 texts of 32 tokens" in card


def test_curve_has_a_line_for_each_kind_of_held_out_loss() -> None:
    steps = [{"step": step, "loss": 3.0 - step / 100} for step in range(10, 110, 10)]
    average = [{"step": step, "held_out": {"ema": {"loss": 5.0 - step / 100}}} for step in (50, 80)]
    both = [{"step": 100, "held_out": {"raw": {"loss": 4.7}, "ema": {"loss": 4.0}}}]
    svg = draw_curve(steps, average + both)
    found = {name: polylines(svg)[colour] for name, colour in COLOURS.items()}
    assert {name: len(line) for name, line in found.items()} == {
        "training loss": 10,
        KINDS["raw"]: 1,
        KINDS["ema"]: 3,
    }
    heights = [y for _, y in found[KINDS["ema"]]]
    assert heights == sorted(heights), "a falling loss is drawn as a falling line"
    assert found[KINDS["raw"]][0][1] < heights[-1], "the weights have a higher loss at that step"
    for name in found:
        assert f">{name}</text>" in svg
    shipped = [
        json.loads(line)
        for line in (builtin_checkpoints()["tale"] / "training.jsonl").read_text().splitlines()
    ]
    drawn = draw_curve(
        [one for one in shipped if "loss" in one], [one for one in shipped if "held_out" in one]
    )
    assert drawn == (builtin_checkpoints()["tale"] / "training.svg").read_text()
    losses = [one["held_out"]["ema"] for one in shipped if "ema" in one.get("held_out", {})]
    assert losses == sorted(losses, reverse=True), "another kind of loss would be a jump"


# ---------------------------------------------------------------- the judge


def test_judge_scores_texts_as_the_original_does(original: Original, tmp_path: Path) -> None:
    texts = [[1, 260, 265, 262, 2, 2], [1, 270, 271, 272, 273, 274]]
    judge = Judge(original.model, original.never_written)
    scores = judge.score(texts, [1, 3])
    assert [score.tokens for score in scores] == [4, 3], "up to the first end token"
    for text, start, score in zip(texts, (1, 3), scores, strict=True):
        logits = original.model(torch.tensor([text]))[0].double()
        logits[:, list(original.never_written)] = float("-inf")
        logp = logits.log_softmax(1)
        wanted = -sum(float(logp[at - 1, text[at]]) for at in range(start, start + score.tokens))
        assert score.nats == pytest.approx(wanted, rel=1e-5)
    judge.save(tmp_path)
    rows = Writer(original, device=CPU).sample([[1]] * 64, length=32).tolist()
    exact, rounded = (
        sum(score.nats for score in scores) / sum(score.tokens for score in scores)
        for scores in (
            judge.score(rows, [1] * 64),
            Judge.load(tmp_path, device="cpu").score(rows, [1] * 64),
        )
    )
    assert rounded == pytest.approx(exact, abs=0.03)
    size = (tmp_path / "model.safetensors").stat().st_size
    weights = sum(part.numel() for part in original.model.parameters())
    assert size < 1.5 * weights


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("n_layers", 1_000_000_000, "config.json: n_layers "),
        ("n_layers", 1 << 20, "config.json: n_layers "),
        ("mlp_hidden_size", 1 << 20, "config.json: mlp_hidden_size "),
        ("model_type", None, "model_type"),
        ("never_written", None, "is not a judge"),
        ("never_written", [1 << 63], "is not a judge"),
        ("never_written", [-1], "is not a judge"),
        ("never_written", ["a"], "is not a judge"),
    ],
)
def test_judge_that_its_weights_contradict_is_not_built(
    original: Original, tmp_path: Path, key: str, value: Any, words: str
) -> None:
    """A judge comes with a checkpoint, so it gets the same checks before a layer is built."""
    Judge(original.model, original.never_written).save(tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {key: value}))
    start = time.process_time()
    with pytest.raises(CheckpointError, match=words):
        Judge.load(tmp_path, device="cpu")
    assert time.process_time() - start < 3


def test_judge_larger_than_the_memory_is_not_built(
    original: Original, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Judge(original.model, original.never_written).save(tmp_path)
    monkeypatch.setattr(loader_module, "host_memory", lambda: 1000)
    with pytest.raises(CheckpointError, match="The weights need"):
        Judge.load(tmp_path, device="cpu")


def test_judge_reads_a_text_longer_than_its_context_in_windows(original: Original) -> None:
    judge = Judge(original.model, original.never_written)
    context = original.model.max_length
    half = context // 2
    source = torch.Generator().manual_seed(0)
    text = [1, *torch.randint(260, 275, (2 * context + 5,), generator=source).tolist(), 2, 7]
    nats = judge.token_nats([text, text[:4]], [3, 3])
    assert [len(one) for one in nats] == [len(text) - 4, 1], "up to the end token, each token once"
    assert nats[0][: context - 3] == pytest.approx(judge.token_nats([text[:context]], [3])[0])
    for at in (context, context + half - 1, len(text) - 2):
        first = (at - context) // half * half + half
        window = text[first : at + 1]
        assert half <= len(window) - 1 < context
        assert nats[0][at - 3] == pytest.approx(judge.token_nats([window], [at - first])[0][0])
    assert judge.token_nats([[1]], [1]) == [[]]


# ---------------------------------------------------------------- the command


@pytest.mark.slow
def test_training_needs_only_torch_numpy_tokenizers_and_safetensors() -> None:
    blocked = ("typer", "rich", "click", "pydantic", "jinja2", "huggingface_hub", "transformers")
    script = (
        "import sys\n"
        f"for name in {blocked!r}: sys.modules[name] = None\n"
        "import wavefront.train.command, wavefront.train.adapt\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_config_file_sets_what_the_command_line_leaves_out(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text('texts = 7\nbuckets = [32, 64]\nname = "x"\n')
    assert read_settings(path) == {"texts": 7, "buckets": (32, 64), "name": "x"}
    path.write_text("text = 7\n")
    with pytest.raises(OptionError, match="did you mean 'texts'"):
        read_settings(path)
    path.write_text("texts = = 7\n")
    assert main(["adapt", "--config", str(path), "--original", "x", "--out", "y"]) == 2


def test_recipe_of_the_story_model_is_valid() -> None:
    path = Path(__file__).parents[2] / "runs" / "tale.toml"
    assert read_settings(path)["buckets"][-1] == 768


# ---------------------------------------------------------------- texts from files


def adapt_to_file(folder: Path, data: Path, **changes: Any) -> dict[str, Any]:
    """Adapt a tiny Llama to a file for a few steps."""
    config, training = settings(folder / "hf", folder / "run", steps=3)
    config = replace(config, texts_from=data, texts=24, text_length=40, held_out=2, **changes)
    return adapt(config, training)


def test_prompts_stay_visible_and_answers_end(tmp_path: Path) -> None:
    write_published(tmp_path / "hf", "llama")
    data = tmp_path / "pairs.jsonl"
    lines = [{"prompt": f"add {i} and {i}", "answer": f"it is {2 * i}"} for i in range(20)]
    data.write_text("".join(json.dumps(line) + "\n" for line in lines))
    adapt_to_file(tmp_path, data)
    rows = Rows.load(tmp_path / "run" / "rows" / "train")
    assert len(rows) == 18
    reader = Tokenizer.load(tmp_path / "run" / "original")
    for row, start in zip(rows, rows.prompts.tolist(), strict=True):
        assert row[-1] == 257
        number = reader.decode(row[:start].tolist()).split()[-1]
        assert reader.decode(row[start:].tolist()) == f"it is {2 * int(number)}"


def test_held_out_texts_cost_few_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_published(tmp_path / "hf", "llama")
    data = tmp_path / "pairs.jsonl"
    rng = random.Random(0)

    def word() -> str:
        return "".join(rng.choices("abcdefghij", k=16))

    # Of each kind, all but a few texts repeat one another.
    usual = {kind: word() for kind in ("sum:", "sort")}
    lines = [
        {"prompt": f"{kind} {word() if i % 10 == 0 else f'{usual[kind]} {i}'}", "answer": str(i)}
        for kind, count in (("sum:", 60), ("sort", 20))
        for i in range(count)
    ]
    repeated = dict(lines[0])  # a text that could be held out, and its copy
    data.write_text("".join(json.dumps(line) + "\n" for line in [*lines, repeated]))
    config, training = settings(tmp_path / "hf", tmp_path / "run", steps=3)
    adapt(replace(config, texts_from=data, held_out=4, stage="rows"), training)
    said = capsys.readouterr().err
    assert "4 of 4 held-out texts share no run of 13 tokens with another text" in said
    assert "0 of 77 training texts share a run" in said
    held = Rows.load(tmp_path / "run" / "rows" / "held-out")
    reader = Tokenizer.load(tmp_path / "run" / "original")
    texts = [reader.decode(row.tolist()) for row in held]
    unwanted = (repeated["prompt"], *usual.values())
    assert not any(part in text for text in texts for part in unwanted)
    assert {"sum:" in text for text in texts} == {True, False}


def test_repetitions_of_held_out_texts_are_never_trained_on(tmp_path: Path) -> None:
    write_published(tmp_path / "hf", "llama")
    data = tmp_path / "pairs.jsonl"
    lines = [{"prompt": f"{i:02} the same long beginning", "answer": str(i)} for i in range(8)]
    data.write_text("".join(json.dumps(line) + "\n" for line in lines))
    config, training = settings(tmp_path / "hf", tmp_path / "run", steps=3)
    config = replace(config, texts_from=data, stage="rows")
    with pytest.raises(OptionError, match="No training text is left"):
        adapt(config, training)


def test_copies_of_short_held_out_texts_are_never_trained_on(tmp_path: Path) -> None:
    """A text of fewer than 13 tokens shares no run of 13 tokens with its copy."""
    write_published(tmp_path / "hf", "llama")
    data = tmp_path / "pairs.jsonl"
    lines = [{"prompt": f"q{i % 4}", "answer": "a"} for i in range(20)]
    data.write_text("".join(json.dumps(line) + "\n" for line in lines))
    adapt_to_file(tmp_path, data)
    rows = tmp_path / "run" / "rows"
    held = {row.tobytes() for row in Rows.load(rows / "held-out")}
    used = Rows.load(rows / "train")
    assert len(used) in (10, 15)
    assert not any(row.tobytes() in held for row in used)


def test_copies_of_one_text_leave_nothing_to_train_on(tmp_path: Path) -> None:
    write_published(tmp_path / "hf", "llama")
    data = tmp_path / "pairs.jsonl"
    data.write_text(2 * (json.dumps({"prompt": "a", "answer": "b"}) + "\n"))
    with pytest.raises(OptionError, match="No training text is left"):
        adapt_to_file(tmp_path, data)


def test_rare_kind_keeps_its_share_and_its_texts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its instructions are a template, although few of all texts have them."""
    write_published(tmp_path / "hf", "llama")
    data = tmp_path / "pairs.jsonl"
    rng = random.Random(0)
    lines = [
        {"prompt": f"{kind} {''.join(rng.choices('abcdefghij', k=16))}", "answer": str(i)}
        for kind, count in (("sum:", 200), ("rare, with long instructions:", 10))
        for i in range(count)
    ]
    data.write_text("".join(json.dumps(line) + "\n" for line in lines))
    config, training = settings(tmp_path / "hf", tmp_path / "run", steps=3)
    adapt(replace(config, texts_from=data, held_out=21, stage="rows"), training)
    assert "0 of 189 training texts share a run" in capsys.readouterr().err
    reader = Tokenizer.load(tmp_path / "run" / "original")
    held = Rows.load(tmp_path / "run" / "rows" / "held-out")
    rare = sum("rare" in reader.decode(row.tolist()) for row in held)
    order = np.random.default_rng(training.data.seed).permutation(210)[:21]
    assert rare == (order >= 200).sum()


def test_file_of_two_texts_is_enough(tmp_path: Path) -> None:
    write_published(tmp_path / "hf", "llama")
    data = tmp_path / "pairs.jsonl"
    data.write_text("".join(json.dumps({"prompt": p, "answer": p}) + "\n" for p in "ab"))
    adapt_to_file(tmp_path, data)
    assert len(Rows.load(tmp_path / "run" / "rows" / "train")) == 1
    assert len(Rows.load(tmp_path / "run" / "rows" / "held-out")) == 1


def test_pairs_with_long_answers_are_left_out(tmp_path: Path) -> None:
    write_published(tmp_path / "hf", "llama")
    data = tmp_path / "pairs.jsonl"
    lines = [{"prompt": f"add {i}", "answer": "x" * (4 + i)} for i in range(20)]
    data.write_text("".join(json.dumps(line) + "\n" for line in lines))
    adapt_to_file(tmp_path, data, longest_answer=15)  # characters are tokens; one is the end
    run = tmp_path / "run" / "rows"
    rows = [row for part in ("train", "held-out") for row in Rows.load(run / part)]
    starts = [*Rows.load(run / "train").prompts, *Rows.load(run / "held-out").prompts]
    lengths = sorted(len(row) - start for row, start in zip(rows, starts, strict=True))
    assert lengths == [*range(5, 16)]


def test_run_without_states_leaves_its_model(file: Path, tmp_path: Path) -> None:
    config, training = settings(file, tmp_path, steps=2)
    adapt(config, replace(training, save_every=0))
    assert not (tmp_path / "state.pt").exists()
    assert (tmp_path / "model" / "model.safetensors").is_file()


def test_adaptation_takes_as_many_positions_as_its_original(tmp_path: Path) -> None:
    write_published(tmp_path / "hf", "llama")
    config, training = settings(tmp_path / "hf", tmp_path / "run", steps=1)
    adapt(config, training)
    before, after = (load_model(tmp_path / "run" / one) for one in ("original", "model"))
    assert training.data.buckets[-1] < after.max_length == before.max_length


def test_original_answers_prompts_that_have_no_answer(tmp_path: Path) -> None:
    write_published(tmp_path / "hf", "qwen2")
    data = tmp_path / "prompts.jsonl"
    data.write_text("".join(json.dumps({"prompt": f"number {i}"}) + "\n" for i in range(20)))
    adapt_to_file(tmp_path, data)
    rows = Rows.load(tmp_path / "run" / "rows" / "train")
    assert len(rows) == 24, "prompts are used in turn"
    assert all(0 < start < len(row) <= 40 for row, start in zip(rows, rows.prompts, strict=True))
    model = load_model(tmp_path / "run" / "model", device="cpu")
    assert model.family == "dream"
    # A GPU loads the stored type, and activations of Qwen2 can overflow float16.
    assert open_checkpoint(tmp_path / "run" / "model").dtype is torch.bfloat16


def test_long_plain_texts_become_several_rows(tmp_path: Path) -> None:
    write_published(tmp_path / "hf", "llama")
    data = tmp_path / "plain.txt"
    data.write_text("\n\n".join([f"text {i} " + "x" * 60 for i in range(9)]))
    adapt_to_file(tmp_path, data)
    rows = Rows.load(tmp_path / "run" / "rows" / "train")
    assert max(len(row) for row in rows) == 48
    assert {int(row[0]) for row in rows} > {256}, "only the first row has the begin token"
    assert {int(row[-1]) for row in rows} > {257}, "and only the last one the end"


def test_texts_that_share_13_tokens_with_excluded_ones_are_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_published(tmp_path / "hf", "llama")
    data, exclude = tmp_path / "plain.txt", tmp_path / "unseen.jsonl"
    texts = [f"{chr(97 + i) * 20} {i}" for i in range(10)]
    data.write_text("\n\n".join([*texts, "a question of the test set, in full"]))
    exclude.write_text(json.dumps({"prompt": "Q: a question of the test set"}) + "\n")
    adapt_to_file(tmp_path, data, exclude=str(exclude))
    assert "1 of 10 training texts share a run of 13 tokens" in capsys.readouterr().err
    assert len(Rows.load(tmp_path / "run" / "rows" / "train")) == 9


def test_texts_that_are_compared_with_no_benchmark_get_a_note(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "plain.txt"
    data.write_text("\n\n".join(f"{chr(97 + i) * 20} {i}" for i in range(10)))
    config, training = settings(file, tmp_path / "run")
    adapt(replace(config, texts_from=data, stage="rows"), training)
    assert "no benchmark" in (said := capsys.readouterr().err)
    assert "--exclude NAME" in said
    config, training = settings(file, tmp_path / "own")
    adapt(replace(config, stage="rows"), training)
    assert "--exclude" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("empty.txt", "\n\n", "holds no text"),
        ("empty.jsonl", "", "holds no text"),
        ("bad.jsonl", '{"question": "?"}\n', "Line 1 of data .* has neither a text nor a prompt"),
        ("cut.jsonl", '{"prompt": "a"', "Line 1 of data"),
        ("deep.jsonl", '{"prompt":' * 100_000, "Line 1 of data"),
        ("surrogate.jsonl", '{"prompt": "\\ud800"}\n', "Line 1 of data .* has a lone surrogate"),
        ("mixed.jsonl", '{"prompt": "a"}\n{"prompt": "b", "answer": "c"}\n', "some lines only"),
        ("one.txt", "a text alone in a file", "holds only one text"),
        (None, None, "cannot be read"),
    ],
)
def test_bad_data_files_get_one_sentence(
    tmp_path: Path, name: str | None, content: str | None, words: str
) -> None:
    write_published(tmp_path / "hf", "llama")
    data = tmp_path / (name or "missing.txt")
    if content is not None:
        data.write_text(content)
    with pytest.raises(OptionError, match=words):
        adapt_to_file(tmp_path, data)


# ---------------------------------------------------------------- trouble during training


def test_nan_stops_training_and_keeps_the_last_state(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_one = loop.TrainingRun._train_one_step

    def spoil(run: loop.TrainingRun, *given: Any) -> None:
        train_one(run, *given)
        if run.step == 8:
            run.model.final_norm.weight.data.fill_(float("nan"))

    monkeypatch.setattr(loop.TrainingRun, "_train_one_step", spoil)
    config, training = settings(file, tmp_path, steps=20)
    with pytest.raises(
        NumericalError, match="weight is NaN at step 10; the state of step 5 is kept"
    ):
        adapt(config, replace(training, log_every=100))
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    assert state["step"] == 5
    assert all(tensor.isfinite().all() for tensor in state["model"].values())
    monkeypatch.undo()
    assert adapt(config, training)["step"] == 20


def test_full_disk_keeps_the_last_state(file: Path, tmp_path: Path) -> None:
    config, training = settings(file, tmp_path, steps=6)
    adapt(config, training)
    before = (tmp_path / "state.pt").read_bytes()
    (tmp_path / f".state.pt.{os.getpid()}.part").symlink_to("/dev/full")
    with pytest.raises(CheckpointError, match=r"state\.pt cannot be written"):
        adapt(config, replace(training, steps=9))
    assert (tmp_path / "state.pt").read_bytes() == before
    assert adapt(config, replace(training, steps=9))["step"] == 9


def test_kept_embeddings_change_only_in_the_row_of_the_mask(file: Path, tmp_path: Path) -> None:
    config, training = settings(file, tmp_path, steps=4)
    adapt(config, replace(training, embeddings=False, ema=0.0))
    before = load_model(tmp_path / "original", device="cpu", dtype="float32")
    after = torch.load(tmp_path / "state.pt", weights_only=True)["model"]
    assert isinstance(before, Transformer)
    changed = (after["embedding.weight"] != before.embedding.weight).any(1)
    assert changed.nonzero().flatten().tolist() == [before.mask_id]
    assert not torch.equal(after["layers.0.qkv.weight"], before.layers[0].qkv.weight)


def test_head_that_is_not_trained_changes_no_other_gradient(file: Path, tmp_path: Path) -> None:
    config, training = settings(file, tmp_path)
    adapt(replace(config, stage="rows"), training)
    batch = upload(RowSource(cast("RowConfig", training.data)).make_group(0)[0], CPU)
    model = load_model(tmp_path / "original", device="cpu", dtype="float64")
    assert isinstance(model, Transformer)
    model.requires_grad_(True)
    gradients = []
    for trained in (True, False):
        model.zero_grad()
        step = train_step.TrainStep(model, replace(training, embeddings=trained))
        step(batch, 0).loss.backward()
        gradients.append(
            {name: cast("torch.Tensor", part.grad) for name, part in model.named_parameters()}
        )
    whole, layers = gradients
    for name in whole:
        if name == "embedding.weight":
            assert torch.allclose(whole[name][model.mask_id], layers[name][model.mask_id])
            assert not torch.allclose(whole[name], layers[name])
        else:
            assert torch.allclose(whole[name], layers[name], rtol=1e-6, atol=1e-9)


def test_loss_in_parts_has_the_same_gradient(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, training = settings(file, tmp_path)
    adapt(replace(config, stage="rows"), training)
    batch = upload(RowSource(cast("RowConfig", training.data)).make_group(0)[0], CPU)
    model = load_model(tmp_path / "original", device="cpu", dtype="float64")
    assert isinstance(model, Transformer)
    model.requires_grad_(True)
    gradients = []
    for most in (1 << 30, 5 * batch.tokens.shape[1] * model.vocab_size):
        monkeypatch.setattr(train_step, "MAX_LOGITS", most)
        model.zero_grad()
        train_step.TrainStep(model, training)(batch, 0).loss.backward()
        gradients.append(
            [part.grad.clone() for part in model.parameters() if part.grad is not None]
        )
    for whole, parts in zip(*gradients, strict=True):
        assert torch.allclose(whole, parts, rtol=1e-6, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("storage", [None, "int8"])
def test_adaptation_starts_from_an_earlier_one(
    storage: str | None, file: Path, tmp_path: Path
) -> None:
    config, training = settings(file, tmp_path / "first", steps=4)
    adapt(config, replace(training, ema=0.0))
    first = load_model(tmp_path / "first" / "model", device="cpu", dtype="float32")
    save_checkpoint(first, tmp_path / "stored", storage=storage)
    first = load_model(tmp_path / "stored", device="cpu", dtype="float32")
    again, more = settings(file, tmp_path / "second", steps=1)
    start = replace(again, start_from=tmp_path / "stored")
    adapt(start, replace(more, ema=0.0, lr=1e-8, weight_decay=0.0))
    second = load_model(tmp_path / "second" / "model", device="cpu", dtype="float32")
    assert isinstance(first, Transformer)
    assert isinstance(second, Transformer)
    stored = first.layers[0].qkv.weight.half()  # int8 weights times their scales are rounded
    assert torch.equal(stored, second.layers[0].qkv.weight.half())


def test_start_of_another_shape_raises(file: Path, tmp_path: Path) -> None:
    write_llama2c(tmp_path / "other.bin", layers=1)
    config, training = settings(tmp_path / "other.bin", tmp_path / "other", steps=1)
    adapt(config, training)
    config, training = settings(file, tmp_path / "run", steps=1)
    start = replace(config, start_from=tmp_path / "other" / "model")
    with pytest.raises(OptionError, match=r"n_layers=1, but the original has 2"):
        adapt(start, training)


def test_text_length_beyond_the_context_raises(file: Path, tmp_path: Path) -> None:
    config, training = settings(file, tmp_path)
    with pytest.raises(OptionError, match="text_length must be at most 32"):
        adapt(replace(config, text_length=33), training)


@pytest.mark.skipif(not os.environ.get("WAVEFRONT_DATA"), reason="WAVEFRONT_DATA is not set")
def test_benchmarks_of_the_qwen_recipe_can_be_excluded() -> None:
    file = Path(wavefront.__file__).parents[1] / "runs" / "qwen.toml"
    recipe = tomllib.loads(file.read_text("utf-8"))
    names = recipe["exclude"].split(",")
    assert "bbh" in names
    counts = {
        name: sum(map(len, unseen_texts([name], lambda text: [len(text)]).values()))
        for name in names
    }
    assert counts["bbh"] > 6000
    assert all(count > 100 for count in counts.values())
