"""Checkpoints: every way a published directory can be wrong, and the way out and back again."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from wavefront.core.errors import CheckpointError, MissingExtraError, OptionError
from wavefront.models.layer import Layer
from wavefront.models.loader import (
    families,
    load_model,
    published_state_dict,
    resolve_device,
    resolve_dtype,
    save_checkpoint,
)
from wavefront.models.protocol import Model
from wavefront.models.toy import toy
from wavefront.storage.checkpoint import open_checkpoint
from wavefront.storage.hub import INDEX, WEIGHTS, builtin_checkpoints, locate

GOLDEN = Path(__file__).parents[1] / "golden"
SHARD = "model-00001-of-00002.safetensors"
QUERY = {
    "llada": "model.transformer.blocks.0.q_proj.weight",
    "dream": "model.layers.0.self_attn.q_proj.weight",
}


def copied(name: str, folder: Path) -> Path:
    return Path(shutil.copytree(GOLDEN / name, folder / name, copy_function=shutil.copyfile))


@pytest.fixture
def llada(tmp_path: Path) -> Path:
    return copied("llada-tiny", tmp_path)


@pytest.fixture
def dream(tmp_path: Path) -> Path:
    return copied("dream-tiny", tmp_path)


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    return copied("dream-tiny-sharded", tmp_path)


def load(path: str | Path, *, dtype: str | None = None) -> Model:
    return load_model(path, device="cpu", dtype=dtype)


def edit(file: Path, changes: dict[str, Any], *, remove: tuple[str, ...] = ()) -> None:
    values = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({key: values[key] for key in values if key not in remove}))


def edit_weights(directory: Path, changes: dict[str, torch.Tensor], remove: str = "") -> None:
    tensors = load_file(directory / WEIGHTS) | changes
    tensors.pop(remove, None)
    save_file(tensors, directory / WEIGHTS)


def refuses(path: str | Path, sentence: str) -> None:
    with pytest.raises(CheckpointError, match=sentence) as caught:
        load(path)
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith(".")


# Files


def test_missing_path_is_refused(tmp_path: Path) -> None:
    refuses(tmp_path / "nothing" / "here", "There is no model .* a folder that holds config.json")


def test_file_instead_of_a_directory_is_refused(llada: Path) -> None:
    refuses(llada / WEIGHTS, "There is no model")


def test_directory_without_config_is_refused(llada: Path) -> None:
    (llada / "config.json").unlink()
    refuses(llada, "config.json is missing")


@pytest.mark.parametrize(
    ("text", "sentence"), [("{oops", "is not valid JSON"), ("[]", "must hold a JSON object")]
)
def test_config_that_is_not_a_json_object_is_refused(llada: Path, text: str, sentence: str) -> None:
    (llada / "config.json").write_text(text)
    refuses(llada, f"config.json.*{sentence}")


@pytest.mark.parametrize("path", [5, None, 1.5, ["ripple"], b"ripple"])
def test_value_that_is_not_a_path_is_refused(path: object) -> None:
    with pytest.raises(OptionError, match=r"must be a name or a path, not .*\.$"):
        load_model(path)


@pytest.mark.parametrize("name", ["x" * 5000, "~nobody-of-that-name/x", "a\0b", "ripples"])
def test_name_that_cannot_be_a_path_is_refused(name: str) -> None:
    refuses(name, "There is no model.*built-in name .*ripple")


def test_built_in_names_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load("ripple")
    assert model.vocab_size == open_checkpoint(builtin_checkpoints()["ripple"]).config["vocab_size"]
    refuses("toy", r"'toy' has no files; use wavefront\.load\('toy'\)")
    copied("llada-tiny", tmp_path).rename(tmp_path / "toy")
    monkeypatch.chdir(tmp_path)
    assert load("toy").family == "llada"


def test_directory_without_weights_is_refused(llada: Path) -> None:
    (llada / WEIGHTS).unlink()
    refuses(llada, "it needs model.safetensors or model.safetensors.index.json")


def test_pickled_weights_are_never_opened(llada: Path) -> None:
    (llada / WEIGHTS).unlink()
    (llada / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    refuses(llada, r"pytorch_model\.bin.*convert them to safetensors")


@pytest.mark.parametrize("keep", [0, 5, 4000])
def test_truncated_weights_are_refused(llada: Path, keep: int) -> None:
    (llada / WEIGHTS).write_bytes((llada / WEIGHTS).read_bytes()[:keep])
    refuses(llada, r"model\.safetensors is cut short or is not a safetensors file")


def test_weights_of_another_format_are_refused(llada: Path) -> None:
    (llada / WEIGHTS).write_bytes(b"version https://git-lfs.github.com/spec/v1\n" * 3)
    refuses(llada, "is not a safetensors file")


def test_missing_shard_is_refused(sharded: Path) -> None:
    (sharded / SHARD).unlink()
    refuses(sharded, f"names {SHARD}, which is missing")


def test_tensor_missing_from_its_shard_is_refused(sharded: Path) -> None:
    tensors = load_file(sharded / SHARD)
    del tensors["lm_head.weight"]
    save_file(tensors, sharded / SHARD)
    refuses(sharded, f"{SHARD} holds 'lm_head.weight', which it does not")


@pytest.mark.parametrize("tensor", ["model.layers.0.extra.weight", "lm_head.weight"])
def test_tensor_missing_from_the_index_is_refused(sharded: Path, tensor: str) -> None:
    """Be it unknown to the index, or a second one beside that of another shard."""
    weights = json.loads((sharded / INDEX).read_text())["weight_map"]
    shard = next(file for file in weights.values() if file != weights.get(tensor))
    save_file(load_file(sharded / shard) | {tensor: torch.ones(2)}, sharded / shard)
    refuses(sharded, f"does not say that {shard} holds '{tensor}', which it does; the index and")


def test_known_extras_need_not_be_in_the_index(sharded: Path) -> None:
    extra = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)}
    save_file(load_file(sharded / SHARD) | extra, sharded / SHARD)
    assert load(sharded).family == "dream"


@pytest.mark.parametrize(
    "shard", ["../other.safetensors", "/etc/x.safetensors", "a\\b.safetensors", "x.bin", "..", 3]
)
def test_index_with_a_path_outside_the_directory_is_refused(sharded: Path, shard: object) -> None:
    weights = json.loads((sharded / INDEX).read_text())["weight_map"]
    edit(sharded / INDEX, {"weight_map": weights | {"lm_head.weight": shard}})
    refuses(sharded, "maps tensor 'lm_head.weight' to .* do not trust")


def test_index_without_a_weight_map_is_refused(sharded: Path) -> None:
    edit(sharded / INDEX, {"weight_map": {}})
    refuses(sharded, "has no 'weight_map'")


# Tensors


def test_missing_tensor_is_refused(llada: Path) -> None:
    edit_weights(llada, {}, remove=QUERY["llada"])
    refuses(llada, r"'model\.transformer\.blocks\.0\.q_proj\.weight' is missing.*1 missing in all")


def test_extra_tensor_is_refused(llada: Path) -> None:
    edit_weights(llada, {"model.transformer.blocks.0.q_norm.weight": torch.ones(16)})
    refuses(llada, r"holds tensor 'model\.transformer\.blocks\.0\.q_norm\.weight', which")


def test_tensor_of_another_shape_is_refused(llada: Path) -> None:
    edit_weights(llada, {QUERY["llada"]: torch.ones(64, 32)})
    refuses(
        llada, r"q_proj\.weight' in .* has shape \[64, 32\], but config.json asks for \[64, 64\]"
    )


def test_quantised_tensor_is_refused(llada: Path) -> None:
    edit_weights(llada, {QUERY["llada"]: torch.ones(64, 64, dtype=torch.int8)})
    refuses(llada, r"q_proj\.weight' in .* is stored as I8; only BF16, F16, F32, F64")


def test_known_extras_are_ignored(dream: Path) -> None:
    expected = load(dream).raw_logits([[1, 2, 3]])
    edit_weights(dream, {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)})
    assert torch.equal(load(dream).raw_logits([[1, 2, 3]]), expected)


@pytest.mark.parametrize("family", families())
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tied_model_accepts_only_a_head_equal_to_its_embedding(
    tmp_path: Path, family: str, dtype: torch.dtype
) -> None:
    model = toy(family=family, tied=True)
    save_checkpoint(model, tmp_path)
    names = model.names
    embedding = load_file(tmp_path / WEIGHTS)[f"{names.embedding}.weight"]
    head = embedding.to(dtype, copy=True)
    edit_weights(tmp_path, {f"{names.head}.weight": head})
    assert torch.equal(load(tmp_path).raw_logits([[1, 2]]), model.raw_logits([[1, 2]]))
    head[3, 5] += 1
    edit_weights(tmp_path, {f"{names.head}.weight": head})
    refuses(tmp_path, f"'{names.head}.weight' in .* differs from '{names.embedding}.weight'.*tied")
    edit_weights(tmp_path, {f"{names.head}.weight": torch.ones(3)})
    refuses(tmp_path, r"has shape \[3\]")


# All experts are loaded alike, so one of a layer is enough.
NAMES = [
    pytest.param(family, name, marks=() if family in ("llada", "llada2") else pytest.mark.slow)
    for family in families()
    for name in toy(family=family).published_weights()
    if ".experts." not in name or ".experts.1." in name
]


@pytest.mark.parametrize(("family", "name"), NAMES)
def test_tensor_that_is_not_finite_is_refused(tmp_path: Path, family: str, name: str) -> None:
    """In every tensor, because not every NaN reaches the logits."""
    model = toy(family=family)
    for number in (float("nan"), float("inf"), float("-inf")):
        published_state_dict(model)[name].view(-1)[-1] = number
        save_checkpoint(model, tmp_path)
        refuses(tmp_path, f"Tensor '{re.escape(name)}' in .* holds NaN, infinity")


def test_number_too_large_for_the_dtype_is_refused(llada: Path) -> None:
    edit_weights(llada, {QUERY["llada"]: torch.full((64, 64), 1e5)})
    load(llada)
    with pytest.raises(CheckpointError, match=r"q_proj.*too large for torch\.float16.*wider dtype"):
        load(llada, dtype="fp16")


# Config


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("alibi", True),
        ("block_type", "sequential"),
        ("activation_type", "swiglu"),
        ("layer_norm_type", "default"),
        ("include_bias", True),
        ("bias_for_layer_norm", True),
        ("attention_layer_norm", True),
        ("layer_norm_with_affine", False),
        ("rope", False),
        ("scale_logits", True),
        ("input_emb_norm", True),
        ("block_group_size", 2),
        ("rope_scaling", {"type": "linear"}),
        ("embedding_size", 128),
        ("n_layers", 0),
        ("d_model", "64"),
        ("rope_theta", -1),
        ("rope_theta", float("nan")),
        ("rope_theta", 10**400),
        ("rms_norm_eps", float("inf")),
        ("partial_rotary_factor", 0.5),
        ("weight_tying", "no"),
        ("mask_token_id", 256),
        ("eos_token_id", -1),
    ],
)
def test_unsupported_llada_values_are_refused(llada: Path, key: str, value: object) -> None:
    edit(llada / "config.json", {key: value})
    refuses(llada, f"config.json: {key} .*{re.escape(repr(value)[:60])}")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rope_scaling", {"type": "yarn"}),
        ("use_sliding_window", True),
        ("use_mrope", True),
        ("hidden_act", "gelu"),
        ("head_dim", 8),
        ("attention_bias", False),
        ("partial_rotary_factor", 0.5),
        ("rope_parameters", "yarn"),
        ("layer_types", ["sliding_attention", "full_attention"]),
    ],
)
def test_unsupported_dream_values_are_refused(dream: Path, key: str, value: object) -> None:
    edit(dream / "config.json", {key: value})
    refuses(dream, f"config.json: {key} = .* is not supported")


@pytest.mark.parametrize(
    ("parameters", "sentence"),
    [
        ({"rope_type": "yarn", "factor": 4.0}, "rope_type = 'yarn' is not supported"),
        ({"type": "linear"}, "type = 'linear' is not supported"),
        ({"rope_type": "default", "partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5"),
        ({"full_attention": {"rope_type": "yarn"}}, "full_attention = .* is not supported"),
        ({"rope_theta": 1e4}, r"rope_theta is 1000000\.0, but 10000\.0 inside rope_parameters"),
        (
            {"rope_theta": float("inf")},
            "rope_theta must be a number above 0 and at most 1e\\+15, not inf",
        ),
    ],
)
def test_unsupported_rotary_parameters_are_refused(
    dream: Path, parameters: dict, sentence: str
) -> None:
    edit(dream / "config.json", {"rope_parameters": parameters})
    refuses(dream, f"config.json: {sentence}")


def test_consistent_rotary_parameters_are_accepted(dream: Path) -> None:
    plain = {"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 1.0}
    edit(dream / "config.json", {"rope_parameters": plain, "attention_bias": True})
    assert load(dream).family == "dream"


@pytest.mark.parametrize(
    "key",
    [
        *("d_model", "n_layers", "n_heads", "vocab_size", "rope_theta", "rms_norm_eps", "rope"),
        *("weight_tying", "mask_token_id", "max_sequence_length", "block_type", "include_bias"),
    ],
)
def test_missing_llada_key_is_refused(llada: Path, key: str) -> None:
    edit(llada / "config.json", {}, remove=(key,))
    refuses(llada, f"config.json has no '{key}'")


@pytest.mark.parametrize(
    "key",
    [
        *("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"),
        *("intermediate_size", "vocab_size", "rope_theta", "rms_norm_eps", "hidden_act"),
        *("tie_word_embeddings", "mask_token_id", "max_position_embeddings"),
    ],
)
def test_missing_dream_key_is_refused(dream: Path, key: str) -> None:
    edit(dream / "config.json", {}, remove=(key,))
    refuses(dream, f"config.json has no '{key}'")


def test_heads_that_do_not_divide_are_refused(llada: Path) -> None:
    edit(llada / "config.json", {"n_heads": 5})
    refuses(llada, "twice n_heads = 10 does not divide d_model = 64")
    edit(llada / "config.json", {"n_heads": 4, "n_kv_heads": 3})
    refuses(llada, "n_kv_heads = 3 does not divide n_heads = 4")


def test_unknown_family_is_refused(llada: Path) -> None:
    edit(llada / "config.json", {"model_type": "lada"}, remove=("architectures",))
    refuses(llada, "model_type 'lada'.*known: .*dream, .*llada, .*qwen2.*did you mean 'llada'")
    edit(llada / "config.json", {"model_type": "transformer"})
    refuses(llada, "model_type 'transformer', which no family supports")
    edit(llada / "config.json", {}, remove=("model_type",))
    refuses(llada, "config.json has no 'model_type'.*add the key")


def test_multi_query_attention_means_one_key_head(llada: Path) -> None:
    edit(llada / "config.json", {"multi_query_attention": True, "n_kv_heads": None})
    refuses(llada, r"k_proj\.weight' in .* asks for \[16, 64\]")
    edit(llada / "config.json", {"n_kv_heads": 2})
    refuses(llada, "n_kv_heads = 2 is not supported, only 1")


def test_matrices_may_have_more_rows_than_the_vocabulary(llada: Path) -> None:
    edit(llada / "config.json", {"vocab_size": 251})
    assert load(llada).vocab_size == 256


def test_stop_ids_come_from_both_files(dream: Path) -> None:
    assert load(dream).stop_ids == (243,)
    edit(dream / "config.json", {"eos_token_id": [243, 7]})
    edit(dream / "generation_config.json", {"eos_token_id": [9, 7]})
    assert load(dream).stop_ids == (243, 7, 9)


def test_first_stop_id_is_the_default_pad_id(dream: Path) -> None:
    edit(dream / "config.json", {"eos_token_id": [5, 7], "pad_token_id": None})
    assert load(dream).pad_id == 5


def test_qwen2_checkpoint_needs_a_mask_token(dream: Path) -> None:
    expected = load(dream).raw_logits([[1, 2, 3]])
    edit(dream / "config.json", {"model_type": "qwen2"}, remove=("mask_token_id", "rope_theta"))
    edit(dream / "config.json", {"rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}})
    refuses(dream, r"no 'mask_token_id', and the tokenizer has no mask token and no '<\|mask\|>'")
    for file, content in {
        "tokenizer.json": {"added_tokens": [{"id": 266, "content": "<|mask|>"}]},
        "tokenizer_config.json": {"added_tokens_decoder": {"265": {"content": "<|mask|>"}}},
        "added_tokens.json": {"<|mask|>": 264},
    }.items():
        (dream / file).write_text(json.dumps(content))
        assert load(dream).mask_id == int("".join(filter(str.isdigit, json.dumps(content))))
    assert load(dream).family == "dream"
    assert torch.equal(load(dream).raw_logits([[1, 2, 3]]), expected)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("tokenizer_config.json", {"added_tokens_decoder": ["<|mask|>"]}),
        ("tokenizer_config.json", {"added_tokens_decoder": {"265": "<|mask|>"}}),
        ("tokenizer_config.json", {"added_tokens_decoder": {"265": {"id": 265}}}),
        ("tokenizer_config.json", {"added_tokens_decoder": {"x": {"content": "<|mask|>"}}}),
        ("tokenizer.json", {"added_tokens": {"<|mask|>": 265}}),
        ("tokenizer.json", {"added_tokens": [{"content": "<|mask|>"}]}),
        ("tokenizer.json", {"added_tokens": 5}),
        ("added_tokens.json", {"<|mask|>": "265"}),
    ],
)
def test_added_tokens_of_the_wrong_type_are_refused(dream: Path, file: str, content: dict) -> None:
    edit(dream / "config.json", {}, remove=("mask_token_id",))
    (dream / file).write_text(json.dumps(content))
    refuses(dream, "added tokens of .* have an unknown format; fetch")


# Device and dtype


def test_dtypes_are_accepted_by_name() -> None:
    names = {"bf16": torch.bfloat16, "fp16": torch.float16, "float64": torch.float64}
    for name, dtype in names.items():
        assert resolve_dtype(name) is resolve_dtype(dtype) is dtype
    assert resolve_dtype("auto") is resolve_dtype(None) is None
    with pytest.raises(OptionError, match="did you mean 'bfloat16'"):
        resolve_dtype("bfloat61")
    with pytest.raises(OptionError, match=r"torch\.int8"):
        resolve_dtype(torch.int8)


def test_devices_are_accepted_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve_device("cpu").type == resolve_device(torch.device("cpu")).type == "cpu"
    with pytest.raises(OptionError, match=r"Device 'cudda' is unknown.*did you mean 'cuda'"):
        resolve_device("cudda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert resolve_device(None).type == resolve_device("auto").type == "cpu"
    for device in ("cuda", "cuda:1", "mps"):
        with pytest.raises(OptionError, match=f"'{device}' was requested.*use device='cpu'"):
            resolve_device(device)


def test_default_dtype_on_cpu_is_float32(dream: Path) -> None:
    assert open_checkpoint(dream).dtype is torch.bfloat16
    assert load(dream).dtype is torch.float32
    assert load(dream, dtype="fp16").dtype is torch.float16


# Out and back


@pytest.mark.parametrize("family", families())
@pytest.mark.parametrize("tied", [False, True])
def test_saved_model_loads_again(tmp_path: Path, family: str, tied: bool) -> None:
    model = toy(seed=5, family=family, tied=tied)
    save_checkpoint(model, tmp_path / "new" / "folder")
    again = load(tmp_path / "new" / "folder")
    ids = [[1, 2, 3, model.mask_id]]
    assert torch.equal(again.raw_logits(ids), model.raw_logits(ids))
    assert getattr(again, "config") == model.config  # noqa: B009
    assert sorted(file.name for file in (tmp_path / "new" / "folder").iterdir()) == [
        "config.json",
        WEIGHTS,
    ]


@pytest.mark.parametrize("name", ["llada-tiny", "dream-tiny"])
def test_saved_checkpoint_equals_the_published_one(tmp_path: Path, name: str) -> None:
    stored = load_file(GOLDEN / name / WEIGHTS)
    dtype = next(iter(stored.values())).dtype
    save_checkpoint(load(GOLDEN / name), tmp_path, dtype=dtype)
    written = load_file(tmp_path / WEIGHTS)
    assert written.keys() == stored.keys()
    assert all(torch.equal(written[key], stored[key]) for key in stored)
    published = json.loads((GOLDEN / name / "config.json").read_text())
    config = json.loads((tmp_path / "config.json").read_text())
    common = config.keys() & published.keys()
    assert {key: config[key] for key in common} == {key: published[key] for key in common}


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
def test_checkpoint_is_saved_in_the_requested_dtype(tmp_path: Path, dtype: str) -> None:
    save_checkpoint(toy(), tmp_path, dtype=dtype)
    assert open_checkpoint(tmp_path).dtype is resolve_dtype(dtype)


def test_published_weights_share_the_models_memory() -> None:
    model = toy()
    published_state_dict(model)[QUERY["llada"]].zero_()
    assert model.layers[0].qkv.weight[:64].abs().sum() == 0
    assert model.layers[0].qkv.weight[64:].abs().sum() > 0


def test_model_without_published_names_cannot_be_saved(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="SimpleNamespace has no published weight names"):
        save_checkpoint(types.SimpleNamespace(dtype=torch.float32), tmp_path)  # pyright: ignore


# The hub


class Hub(types.ModuleType):
    """A stand-in for huggingface_hub that serves one folder and remembers what was asked."""

    def __init__(self, source: Path, cache: Path, failure: Exception | None = None) -> None:
        super().__init__("huggingface_hub")
        self.source, self.cache, self.failure = source, cache, failure
        self.asked: list[tuple[str, str | None, bool]] = []
        self.patterns: set[str] = set()

    def snapshot_download(
        self, name: str, *, revision: str | None, allow_patterns: list[str], local_files_only: bool
    ) -> str:
        self.asked.append((name, revision, local_files_only))
        if self.failure:
            raise self.failure
        self.patterns |= set(allow_patterns)
        self.cache.mkdir(exist_ok=True)
        for file in self.source.iterdir():
            if file.name in allow_patterns:
                shutil.copyfile(file, self.cache / file.name)
        return str(self.cache)


def test_hub_id_fetches_only_needed_files(
    sharded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (sharded / "pytorch_model.bin").write_bytes(b"")
    (sharded / "other.safetensors").write_bytes(b"")
    hub = Hub(sharded, tmp_path / "cache")
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    model = load_model("org/name.v1", device="cpu", revision="abc", offline=True)
    assert model.family == "dream"
    assert set(hub.asked) == {("org/name.v1", "abc", True)}
    assert not any(pattern.endswith(".bin") or "*" in pattern for pattern in hub.patterns)
    fetched = {file.name for file in (tmp_path / "cache").iterdir()}
    assert fetched == {file.name for file in (GOLDEN / "dream-tiny-sharded").iterdir()}


def test_unsupported_model_is_refused_before_its_weights_are_fetched(
    sharded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = json.loads((sharded / "config.json").read_text())
    (sharded / "config.json").write_text(json.dumps({**config, "quantization_config": {}}))
    hub = Hub(sharded, tmp_path / "cache")
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    refuses("org/name", "load the unquantised checkpoint")
    assert not any(pattern.endswith(".safetensors") for pattern in hub.patterns)


def test_tokenizer_is_fetched_without_weights(
    llada: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", Hub(llada, tmp_path / "cache"))
    found = locate("org/name", weights=False)
    assert [file.name for file in found.iterdir()] == ["config.json"]


def test_hub_failure_raises_checkpoint_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = Hub(tmp_path, tmp_path, failure=RuntimeError("401 Client Error.\n\nNot found\n"))
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    refuses(
        "org/name", r"'org/name' .* could not be fetched .*\(revision main\): 401 Client Error\."
    )


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("RepositoryNotFoundError", "there is no such repository"),
        ("GatedRepoError", "it is gated"),
        ("LocalEntryNotFoundError", "it is not on this machine"),
        ("ConnectionError", "the Hub cannot be reached"),
    ],
)
def test_hub_failure_is_explained_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, words: str
) -> None:
    """The client's own messages have several lines, a request id and a URL."""
    failure = type(name, (Exception,), {})("404 (Request ID: x)\n\nFor more details, see https://")
    monkeypatch.setitem(sys.modules, "huggingface_hub", Hub(tmp_path, tmp_path, failure=failure))
    refuses(
        "org/name", rf"'org/name' .* could not be fetched .*\(revision main\): {words}[^\n]*\.$"
    )


def test_hub_id_without_huggingface_hub_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingExtraError, match=r"pip install -e '.*\[hub\]'"):
        load("org/name")


def test_offline_is_passed_to_the_hub_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real client, told to stay offline, with an empty cache."""
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    refuses("org/name", "'org/name' is not a local directory and could not be fetched from the Hub")
    with pytest.raises(CheckpointError, match=r"--offline\) forbids the download; leave it out"):
        load_model("org/name", device="cpu", offline=True)


# Hostile files: refused by their sizes, before anything is allocated


@pytest.mark.parametrize("layers", [3, 40_000, 1_000_000_000, 10**30])
@pytest.mark.parametrize("family", families())
def test_number_of_layers_is_compared_with_the_weights_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str, layers: int
) -> None:
    save_checkpoint(toy(family=family), tmp_path)
    key = {"llada": "n_layers"}.get(family, "num_hidden_layers")
    edit(tmp_path / "config.json", {key: layers})
    monkeypatch.setattr(Layer, "__init__", unexpected)
    refuses(tmp_path, f"config.json: {key} ")


def unexpected(*_: object) -> None:
    raise AssertionError("a layer was built")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("d_model", 2**22),
        ("n_heads", 2**40),
        ("embedding_size", 2**40),
        ("embedding_size", 512),
        ("vocab_size", 2**62),
        ("mlp_hidden_size", 2**40),
        ("mlp_hidden_size", 177),
        ("max_sequence_length", 2**40),
        ("rope_theta", 1e300),
        ("rms_norm_eps", 1e300),
        ("n_layers", True),
        ("n_layers", 2.0),
    ],
)
def test_sizes_that_the_weights_do_not_have_are_refused_by_key(
    llada: Path, key: str, value: object
) -> None:
    edit(llada / "config.json", {key: value})
    refuses(llada, f"config.json: {key} ")


def test_mlp_ratio_cannot_overflow_the_width(llada: Path) -> None:
    edit(llada / "config.json", {"mlp_ratio": 2**24, "mlp_hidden_size": None})
    refuses(llada, "config.json: mlp_ratio ")


def test_long_values_are_shortened_in_errors(llada: Path) -> None:
    for key in ("n_layers", "model_type", "mask_token_id", "rope_scaling", "rope_theta"):
        published = (llada / "config.json").read_text()
        # With a known architecture, the model_type would not be read.
        edit(llada / "config.json", {key: "9" * 100_000}, remove=("architectures",))
        with pytest.raises(CheckpointError, match=rf"config\.json.* {key} ") as caught:
            load(llada)
        assert len(str(caught.value)) < 300
        (llada / "config.json").write_text(published)


def safetensors(file: Path, header: object, *, length: int | None = None, size: int = 0) -> None:
    """Write a safetensors file from its header; `size` bytes of holes follow it."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    with file.open("wb") as out:
        out.write((len(text) if length is None else length).to_bytes(8, "little") + text)
        out.truncate(8 + len(text) + size)


@pytest.mark.parametrize("length", [2**63, 2**40, 2**26])
def test_header_that_claims_to_be_huge_is_refused(llada: Path, length: int) -> None:
    safetensors(llada / WEIGHTS, {}, length=length, size=2**33)
    refuses(llada, r"model\.safetensors .*header")


@pytest.mark.parametrize(
    "header",
    [
        b"[" * 1_000_000,
        b"{}" + b" " * 100,
        {"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 2**62]}},
        {"a": {"dtype": "F32", "shape": [2**62, 2**62], "data_offsets": [0, 16]}},
        {"a": {"dtype": "F32", "shape": [-4], "data_offsets": [0, 16]}},
        {"a": {"dtype": "F32", "shape": [4], "data_offsets": [16, 0]}},
        {
            "a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]},
            "b": {"dtype": "F32", "shape": [2], "data_offsets": [8, 16]},
        },
        {"a": {"dtype": "PICKLE", "shape": [4], "data_offsets": [0, 16]}},
        {"a": []},
    ],
)
def test_damaged_header_is_refused(llada: Path, header: object) -> None:
    safetensors(llada / WEIGHTS, header, size=16)
    refuses(llada, r"model\.safetensors")


def sparse_weights(directory: Path, *, share: float) -> None:
    """Replace the weights by a file of holes that has this share of the machine's memory."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    width = int((share * memory / 16) ** 0.5) // 8 * 8  # two layers, four matrices, two bytes
    edit(directory / "config.json", {"d_model": width})
    header: dict[str, Any] = {}
    end = 0
    for name, entry in open_checkpoint(directory).entries.items():
        shape = [width if side == 64 else side for side in entry.shape]
        start, end = end, end + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}
    safetensors(directory / WEIGHTS, header, size=end)


def test_weights_larger_than_the_memory_are_refused(llada: Path) -> None:
    """A sparse file takes no space on disk, but its tensors would fill the memory."""
    sparse_weights(llada, share=0.5)
    wanted = r"need \d+\.\d GB in float64, and cpu has \d+\.\d GB: use dtype='bfloat16' \(\d"
    with pytest.raises(CheckpointError, match=wanted):
        load(llada, dtype="float64")


def test_weights_file_larger_than_the_memory_is_refused(llada: Path) -> None:
    sparse_weights(llada, share=20)
    refuses(llada, r"model\.safetensors cannot be opened|need \d+\.\d GB")


def test_too_many_shards_are_refused(sharded: Path) -> None:
    edit(sharded / INDEX, {"weight_map": {f"t{n}": f"s{n}.safetensors" for n in range(5000)}})
    refuses(sharded, "names 5000 shards, more than")


@pytest.mark.parametrize(
    "shard", ["a\0.safetensors", "a\n.safetensors", "a" * 300 + ".safetensors"]
)
def test_shard_name_that_no_file_can_have_is_refused(sharded: Path, shard: str) -> None:
    weights = json.loads((sharded / INDEX).read_text())["weight_map"]
    edit(sharded / INDEX, {"weight_map": weights | {"lm_head.weight": shard}})
    refuses(sharded, "maps tensor 'lm_head.weight' to .* do not trust")


@pytest.mark.parametrize("name", [SHARD, INDEX, "config.json", "generation_config.json"])
def test_link_out_of_the_directory_is_refused(sharded: Path, tmp_path: Path, name: str) -> None:
    target = (sharded / name).rename(tmp_path / "outside")
    (sharded / name).symlink_to(target)
    refuses(sharded, f"{name} is a link to a file outside its folder")


def test_links_of_the_hub_cache_and_inside_the_folder_are_accepted(
    sharded: Path, tmp_path: Path
) -> None:
    blobs = tmp_path / "models--org--name" / "blobs"
    folder = blobs.parent / "snapshots" / "0123"
    blobs.mkdir(parents=True)
    folder.mkdir(parents=True)
    for number, file in enumerate(sorted(sharded.iterdir())):
        file.rename(blobs / f"{number}")
        (folder / file.name).symlink_to(Path("../../blobs") / f"{number}")
    assert load(folder).family == "dream"
    inner = sharded / "data"
    inner.mkdir()
    for file in folder.iterdir():
        shutil.copyfile(file, inner / file.name)
        (sharded / file.name).symlink_to(inner / file.name)
    assert load(sharded).family == "dream"
    linked = tmp_path / "linked"
    linked.symlink_to(folder)
    assert load(linked).family == "dream"


# Token ids


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"mask_token_id": 39}, "config.json: mask_token_id = 39 is also an eos_token_id"),
        ({"eos_token_id": [7, 250]}, "config.json: mask_token_id = 250 is also an eos_token_id"),
        ({"pad_token_id": 250}, "config.json: mask_token_id = 250 is also the pad_token_id"),
        ({"mask_token_id": 256}, "config.json: mask_token_id = 256 is not a token id"),
        ({"mask_token_id": -1}, "config.json: mask_token_id = -1 is not a token id"),
        ({"mask_token_id": True}, "config.json: mask_token_id = True is not a token id"),
        ({"mask_token_id": [250]}, r"config.json: mask_token_id = \[250\] is not a token id"),
        ({"eos_token_id": True}, "config.json: eos_token_id = True is not a token id"),
        ({"eos_token_id": [39, False]}, "config.json: eos_token_id = False is not a token id"),
        ({"eos_token_id": {"id": 39}}, "config.json: eos_token_id = .* is not a token id"),
        ({"eos_token_id": [*range(257)]}, "config.json: eos_token_id lists 257 ids, more than 256"),
        ({"eos_token_id": [39] * 9999}, "config.json: eos_token_id lists 9999 ids, more than 256"),
        ({"pad_token_id": False}, "config.json: pad_token_id = False is not a token id"),
    ],
)
def test_wrong_token_ids_are_refused(llada: Path, changes: dict, sentence: str) -> None:
    edit(llada / "config.json", changes)
    refuses(llada, sentence)


def test_mask_id_among_the_ends_of_the_generation_config_is_refused(dream: Path) -> None:
    edit(dream / "generation_config.json", {"eos_token_id": [9, 266]})
    refuses(dream, "mask_token_id = 266 is also an eos_token_id")
    edit(dream / "generation_config.json", {"eos_token_id": [9] * 300})
    refuses(dream, "generation_config.json: eos_token_id lists 300 ids, more than 256")
