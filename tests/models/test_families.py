"""Families: published logits of every family, and what is peculiar to one."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import wavefront
from wavefront.bench.model_shapes import DREAM_7B, LLADA_8B
from wavefront.core.errors import CheckpointError, OptionError
from wavefront.models.families import a2d
from wavefront.models.loader import (
    families,
    family_module,
    find_family,
    load_model,
    save_checkpoint,
)
from wavefront.models.toy import toy
from wavefront.models.transformer import Transformer
from wavefront.storage.hub import INDEX

pytestmark = pytest.mark.whole
GOLDEN = Path(__file__).parents[1] / "golden"
DENSE = ("a2d", "fast_dllm_v2", "illada", "sdar", "stable_diffcoder")
MIXTURES = ("llada2", "llada_moe", "sdar_moe")
FOLDERS = (*DENSE, *MIXTURES)
# Folders whose checkpoint names its mask token nowhere.
WITHOUT_MASK = ("illada", *MIXTURES)
CASES = [
    (folder, case)
    for folder in FOLDERS
    for case in json.loads((GOLDEN / folder / "cases.json").read_text())["forward"]
]


def load_case(folder: str, case: dict[str, Any]) -> Transformer:
    """Load the checkpoint of a forward case with the attention and the mask id of the case."""
    model = json.loads((GOLDEN / folder / "cases.json").read_text())["models"][case["model"]]
    directory = GOLDEN / folder / model.get("checkpoint", case["model"])
    block_size = case.get("block_length", case.get("block_size"))
    loaded = load_model(
        directory,
        device="cpu",
        mask_id=model["mask_id"] if folder in WITHOUT_MASK else None,
        attention="bidirectional" if block_size is None else "block",
        block_size=block_size,
    )
    assert isinstance(loaded, Transformer)
    assert loaded.mask_id == model["mask_id"]
    return loaded


def published_logits(folder: str, case: dict[str, Any]) -> Tensor:
    return torch.from_numpy(np.load(GOLDEN / folder / "forward_logits.npz")[case["logits_key"]])


def named(value: Any) -> str | None:
    return value["id"] if isinstance(value, dict) else None


@pytest.mark.parametrize(("folder", "case"), CASES, ids=named)
def test_logits_equal_the_published_ones(folder: str, case: dict[str, Any]) -> None:
    model, expected = load_case(folder, case), published_logits(folder, case)
    first, last = case.get("logits_positions", [0, None])
    logits = model.raw_logits(case["input_ids"], case.get("attention_mask"))[:, first:last]
    difference = (logits - expected).abs()
    if case["compare"] == "attended_only":
        difference = difference[torch.tensor(case["attention_mask"]).bool()]
    assert difference.max() < 1e-3


@pytest.mark.parametrize(
    ("folder", "case"), [pair for pair in CASES if pair[1].get("cached_prefix")], ids=named
)
def test_block_against_a_stored_prefix_equals_the_published_logits(
    folder: str, case: dict[str, Any]
) -> None:
    model, tokens = load_case(folder, case), torch.tensor(case["input_ids"])
    rows, length = tokens.shape
    kv, prefix = model.new_kv(rows, length), case["cached_prefix"]
    with torch.no_grad():
        model.encode(tokens, window=torch.arange(prefix).expand(rows, -1), kv=kv)
        block = torch.arange(prefix, length).expand(rows, -1)
        logits = model.head(model.encode(tokens, window=block, kv=kv))
    assert (logits - published_logits(folder, case)).abs().max() < 1e-3


def golden_cases(folder: str, kind: str) -> list[dict[str, Any]]:
    return json.loads((GOLDEN / folder / "cases.json").read_text())[kind]


@pytest.mark.parametrize(
    "cached", golden_cases("llada2", "cached_forward"), ids=lambda case: case["forward_id"]
)
def test_stored_blocks_of_llada2_give_the_published_logits(cached: dict[str, Any]) -> None:
    case = next(case for _, case in CASES if case["id"] == cached["forward_id"])
    model, tokens = load_case("llada2", case), torch.tensor(case["input_ids"])
    rows, length = tokens.shape
    first = cached["prefill_tokens"]
    assert length == first + cached["then_tokens"]
    kv = model.new_kv(rows, length)
    with torch.no_grad():
        model.encode(tokens, window=torch.arange(first).expand(rows, -1), kv=kv)
        block = torch.arange(first, length).expand(rows, -1)
        logits = model.head(model.encode(tokens, window=block, kv=kv))
    assert (logits - published_logits("llada2", case)[:, first:]).abs().max() < 1e-3


@pytest.mark.parametrize("case", golden_cases("illada", "confidence_loglikelihood"), ids=named)
def test_illada_scores_an_answer_as_published(case: dict[str, Any]) -> None:
    """Reveal the likeliest true token at every pass, and add up the log-probabilities."""
    model = load_case("illada", {"model": case["model"]})
    start, target = len(case["prefix"]), torch.tensor(case["target"])
    ends = list(model.stop_ids[:1]) if case["pad_eos"] else []
    tokens = torch.tensor([[*case["prefix"], *[model.mask_id] * len(target), *ends]])
    left, order, values = set(range(len(target))), [], []
    while left:
        logits = model.raw_logits(tokens.tolist())[0, start : start + len(target)]
        logp = logits.log_softmax(-1).gather(1, target[:, None])[:, 0]
        best = max(left, key=lambda at, logp=logp: float(logp[at]))
        left.remove(best)
        tokens[0, start + best] = target[best]
        order.append(start + best)
        values.append(float(logp[best]))
    assert order == case["order"]
    assert values == pytest.approx(case["per_token"], abs=1e-3)
    assert sum(values) == pytest.approx(case["value"], abs=1e-2)


# Which family, which mask token, which attention


def copied(folder: str, tmp_path: Path, name: str = "checkpoint") -> Path:
    """Copy a checkpoint, to edit it."""
    source = GOLDEN / folder / name
    return Path(shutil.copytree(source, tmp_path / "copy", copy_function=shutil.copyfile))


def edit(directory: Path, changes: dict[str, Any], *, remove: tuple[str, ...] = ()) -> None:
    file = directory / "config.json"
    values = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({key: values[key] for key in values if key not in remove}))


def refuses(path: Path, words: str, **options: Any) -> None:
    """Loading raises one sentence that contains the words."""
    with pytest.raises((CheckpointError, OptionError)) as caught:
        load_model(path, device="cpu", **options)
    message = str(caught.value)
    assert words in message
    assert "\n" not in message
    assert message.endswith(".")


@pytest.mark.parametrize(
    ("architecture", "model_type", "family"),
    [
        ("LLaDAModelLM", "llada", "llada"),
        ("LLaDAMoEModelLM", "llada", "llada_moe"),
        ("StableDiffcoderForCausalLM", "llama", "stable_diffcoder"),
        ("A2DQwen2LMHeadModel", "a2d-qwen2", "a2d"),
        ("Fast_dLLM_QwenForCausalLM", "Fast_dLLM_Qwen", "fast_dllm_v2"),
        ("LLaDA2MoeModelLM", "llada2_moe", "llada2"),
        ("SDARForCausalLM", None, "sdar"),
        (None, "SDAR_MoE", "sdar_moe"),
        ("AnotherName", "illada", "illada"),
        ("Qwen2ForCausalLM", "qwen2", "dream"),
    ],
)
def test_family_is_chosen_by_architecture_before_model_type(
    architecture: str | None, model_type: str | None, family: str
) -> None:
    config = {"architectures": None if architecture is None else [architecture]}
    assert find_family(config | {"model_type": model_type}).Net.family == family


@pytest.mark.parametrize("name", ["Dream-org/Dream-Coder-v0-Instruct-7B", "apple/DiffuCoder-7B"])
def test_coders_of_dreams_shape_are_read_by_their_config(name: str) -> None:
    """Both publish Dream's architecture, with the ids of the Qwen2.5-Coder tokenizer."""
    extra = {"_name_or_path": name, "auto_map": {"AutoModel": "modeling_dream.DreamModel"}}
    values = DREAM_7B | extra | {"pad_token_id": 151643, "mask_token_id": 151666}
    family = find_family(values)
    assert family.Net.family == "dream"
    model = family.Net(family.Config.from_json(values))
    assert (model.mask_id, model.stop_ids, model.block_size) == (151666, (151643,), None)
    assert sum(part.numel() for part in model.parameters()) == 7_615_616_512


@pytest.mark.parametrize("kind", a2d.KINDS)
def test_each_kind_of_a2d_has_its_own_layers(kind: str, tmp_path: Path) -> None:
    config = {
        "a2d-qwen3": {"qk_norm": True},
        "a2d-qwen2": {"qk_norm": False, "qkv_bias": True},
        "a2d-llama": {"qk_norm": False},
    }[kind]
    model = a2d.Net(replace(toy(family="a2d").config, **config)).to_empty(device="cpu")
    model.init_weights(0)
    save_checkpoint(model, tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == kind
    again = load_model(tmp_path, device="cpu")
    assert torch.equal(again.raw_logits([[1, 2, 3]]), model.raw_logits([[1, 2, 3]]))
    names = set(model.published_weights())
    assert ("model.layers.0.self_attn.q_norm.weight" in names) == (kind == "a2d-qwen3")
    assert ("model.layers.0.self_attn.q_proj.bias" in names) == (kind == "a2d-qwen2")


def test_layer_norms_have_biases_that_reach_the_logits(tmp_path: Path) -> None:
    model = toy(family="illada")
    assert model.config.layer_norm
    names = [name for name in model.published_weights() if name.endswith("norm.bias")]
    assert len(names) == 2 * len(model.layers) + 1
    before = model.raw_logits([[1, 2, 3]])
    x = torch.randn((2, 3, 64), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        spread = (x.var(-1, keepdim=True, correction=0) + model.config.eps).sqrt()
        torch.testing.assert_close(model.final_norm(x), (x - x.mean(-1, keepdim=True)) / spread)
        for name in names:
            model.published_weights()[name].add_(0.5)
    assert not torch.allclose(model.raw_logits([[1, 2, 3]]), before)


def test_mask_id_comes_from_the_first_source_that_has_it(tmp_path: Path) -> None:
    path = copied("stable_diffcoder", tmp_path)
    settings = path / "tokenizer_config.json"
    assert load_model(path, device="cpu").mask_id == 5  # the tokenizer's mask token
    edit(path, {"mask_token_id": 9})
    assert load_model(path, device="cpu").mask_id == 9
    assert load_model(path, device="cpu", mask_id=7).mask_id == 7
    edit(path, {"mask_token_id": None})
    content = json.loads(settings.read_text())
    settings.write_text(json.dumps(content | {"mask_token": None}))
    assert load_model(path, device="cpu").mask_id == 5  # the family's token, as an added token
    settings.unlink()
    vocabulary = {"model": {"vocab": {"<[MASK_TOKEN]>": 11}}}
    (path / "tokenizer.json").write_text(json.dumps(vocabulary))
    assert load_model(path, device="cpu").mask_id == 11
    scores = [["a", 0.0], ["b", -1.0], ["c", -2.0], ["<[MASK_TOKEN]>", -3.0]]
    vocabulary = {"model": {"vocab": scores}}
    (path / "tokenizer.json").write_text(json.dumps(vocabulary))
    assert load_model(path, device="cpu").mask_id == 3
    (path / "tokenizer.json").unlink()
    (path / "vocab.json").write_text(json.dumps({"<[MASK_TOKEN]>": 12}))
    assert load_model(path, device="cpu").mask_id == 12
    (path / "vocab.json").unlink()
    refuses(path, "has no mask token and no '<[MASK_TOKEN]>'; give mask_id (--mask-id)")


@pytest.mark.parametrize(
    ("folder", "options", "block_size"),
    [
        ("sdar", {}, 4),
        ("sdar", {"block_size": 8}, 8),
        ("sdar", {"attention": "bidirectional"}, None),
        ("sdar", {"attention": "block"}, 4),
        ("a2d", {}, None),
        ("a2d", {"attention": "block"}, 32),
        ("a2d", {"attention": "block", "block_size": 16}, 16),
        ("fast_dllm_v2", {}, 32),
        ("stable_diffcoder", {}, 4),
        ("illada", {"mask_id": 5}, None),
    ],
)
def test_attention_is_the_familys_unless_it_is_given(
    folder: str, options: dict[str, Any], block_size: int | None
) -> None:
    model = load_model(GOLDEN / folder / "checkpoint", device="cpu", **options)
    assert model.block_size == block_size


def test_saved_block_size_is_loaded_again(tmp_path: Path) -> None:
    model = load_model(GOLDEN / "a2d" / "checkpoint", device="cpu", attention="block", block_size=8)
    save_checkpoint(model, tmp_path)
    assert load_model(tmp_path, device="cpu").block_size == 8


@pytest.mark.parametrize("family", families())
def test_saved_attention_is_loaded_again(family: str, tmp_path: Path) -> None:
    """A block-causal model that was loaded as bidirectional stays so, and the reverse."""
    save_checkpoint(toy(family=family), tmp_path / "first")
    for number, given in enumerate(({"attention": "bidirectional"}, {})):
        model = load_model(tmp_path / "first", device="cpu", **given)
        path = tmp_path / str(number)
        save_checkpoint(model, path)
        again = load_model(path, device="cpu")
        assert again.block_size == model.block_size
        ids = [[5, 6, 7, 8, 9, 10]]
        assert torch.equal(again.raw_logits(ids), model.raw_logits(ids))
        if given:
            assert model.block_size is None
            if family_module(family).BLOCK_SIZE is not None:
                usual = family_module(family).BLOCK_SIZE
                assert load_model(path, device="cpu", attention="block").block_size == usual


def test_unknown_attention_in_a_config_is_refused(tmp_path: Path) -> None:
    path = copied("sdar", tmp_path)
    edit(path, {"attention": "causal"})
    refuses(path, "attention = 'causal' is not supported, only 'bidirectional'")


# Bad input: one sentence each


@pytest.mark.parametrize(
    ("folder", "options", "words"),
    [
        ("sdar", {"block_size": 0}, "block_size must be at least 1, not 0"),
        ("sdar", {"block_size": -4}, "block_size must be at least 1, not -4"),
        ("sdar", {"block_size": 4.0}, "block_size must be a whole number at least 1, not 4.0"),
        ("sdar", {"block_size": 7}, "block_size = 7 does not divide the model's 512 positions"),
        ("sdar", {"block_size": 1024}, "block_size = 1024 does not divide the model's 512"),
        ("sdar", {"attention": "causal"}, "attention must be one of bidirectional, block"),
        ("sdar", {"attention": "bidirectional", "block_size": 4}, "attends to all positions"),
        ("a2d", {"block_size": 4}, "attends to all positions; add attention='block'"),
        ("illada", {"mask_id": 5, "attention": "block"}, "attention='block' needs block_size"),
        ("illada", {}, "config.json has no 'mask_token_id', and the tokenizer has no mask token"),
        ("illada", {"mask_id": -1}, "mask_id must be between 0 and 255, not -1"),
        ("illada", {"mask_id": 256}, "mask_id must be between 0 and 255, not 256"),
        ("illada", {"mask_id": True}, "mask_id must be a whole number"),
        ("illada", {"mask_id": 2}, "is also an eos_token_id"),
    ],
)
def test_wrong_load_options_are_refused(folder: str, options: dict[str, Any], words: str) -> None:
    refuses(GOLDEN / folder / "checkpoint", words, **options)


@pytest.mark.parametrize(
    ("folder", "name", "changes", "words"),
    [
        ("llada2", "llada2-tiny", {"score_function": "softmax"}, "score_function = 'softmax'"),
        ("llada2", "llada2-tiny", {"topk_method": "greedy"}, "topk_method = 'greedy'"),
        ("llada2", "llada2-tiny", {"norm_topk_prob": False}, "norm_topk_prob = False"),
        ("llada2", "llada2-tiny", {"n_group": 3}, "n_group = 3 does not divide num_experts = 8"),
        ("llada2", "llada2-tiny", {"topk_group": 5}, "topk_group = 5 of n_group = 4 groups"),
        ("llada2", "llada2-tiny", {"num_experts_per_tok": 9}, "num_experts_per_tok = 9 of num_ex"),
        ("llada2", "llada2-tiny", {"num_experts": 10**6}, "at most 4096 experts"),
        ("llada2", "llada2-tiny", {"partial_rotary_factor": 0.2}, "partial_rotary_factor = 0.2"),
        ("llada2", "llada2-tiny", {"partial_rotary_factor": 2}, "partial_rotary_factor must be"),
        ("llada2", "llada2-tiny", {"num_shared_experts": 2**24}, "num_shared_experts times"),
        ("llada2", "llada2-tiny", {"num_shared_experts": 0}, "which config.json does not describe"),
        (
            *("llada_moe", "llada-moe-tiny", {"moe_router_score_function": "sigmoid"}),
            "moe_router_score_function = 'sigmoid' is not supported, only 'softmax'",
        ),
        (
            *("llada_moe", "llada-moe-tiny", {"moe_layer_freq": [0, 1, 1]}),
            "moe_layer_freq = [0, 1, 1] is not supported",
        ),
        ("sdar_moe", "sdar-moe-tiny", {"scoring_func": "sigmoid"}, "'scoring_func' = 'sigmoid'"),
        ("sdar_moe", "sdar-moe-tiny", {"mlp_only_layers": [0]}, "mlp_only_layers = [0]"),
        ("sdar", "checkpoint", {"logit_scale": 2.0}, "'logit_scale' = 2.0 is not known to this"),
        ("sdar", "checkpoint", {"head_dim": 15}, "head_dim = 15 must be even"),
        ("sdar", "checkpoint", {"rope_scaling": {"type": "yarn"}}, "rope_scaling = "),
        ("stable_diffcoder", "checkpoint", {"head_dim": 32}, "head_dim = 32 is not supported"),
        ("fast_dllm_v2", "checkpoint", {"bd_size": 0}, "bd_size must be a whole number from 1"),
        (
            *("stable_diffcoder", "checkpoint", {"architectures": ["LlamaForCausalLM"]}),
            "model_type 'llama', which is a diffusion model only with the architecture",
        ),
        (
            "sdar",
            "checkpoint",
            {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]},
            "or make one from a Llama or Qwen2 with `wavefront train adapt`",
        ),
        (
            "sdar",
            "checkpoint",
            {"model_type": "nemotron_labs_diffusion", "architectures": ["Nemotron"]},
            "Nemotron-Labs-Diffusion is not supported, because its context is causal",
        ),
        (
            "sdar",
            "checkpoint",
            {"model_type": "nemotron_h", "architectures": ["NemotronTwoTowerForDiffusion"]},
            "Nemotron-Labs-TwoTower is not supported, because a second model reads its context",
        ),
        (
            "sdar",
            "checkpoint",
            {"model_type": "sumi", "architectures": ["SumiForDiffusionLM"]},
            "Sumi is not supported, because it has no mask token",
        ),
        (
            *("sdar", "checkpoint", {"model_type": "Llama", "architectures": None}),
            "a diffusion model only with the architecture 'StableDiffcoderForCausalLM', not none",
        ),
        (
            *("sdar", "checkpoint", {"model_type": "qwen3", "architectures": None}),
            "config.json has the model_type 'qwen3', which is not a diffusion model",
        ),
    ],
)
def test_config_of_another_architecture_is_refused(
    folder: str, name: str, changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    path = copied(folder, tmp_path, name)
    edit(path, changes)
    refuses(path, words, mask_id=12)


# Keys of other architectures that would change the output.
FOREIGN = {
    "logit_scale": 0.0625,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
    "multiple_of": 256,
    "embedding_multiplier": 12.0,
    "residual_multiplier": 0.22,
    "attention_multiplier": 0.0078125,
    "query_pre_attn_scalar": 256,
    "num_nextn_predict_layers": 1,
    "use_parallel_residual": True,
    "a_key_that_nobody_knows": "yes",
}


@pytest.mark.parametrize("key", FOREIGN)
@pytest.mark.parametrize("family", families())
def test_every_config_key_is_read_or_refused(family: str, key: str) -> None:
    module, config = family_module(family), cast(Any, toy(family=family).config)
    values = config.to_json()
    assert module.Config.from_json(values) == config
    with pytest.raises(CheckpointError) as caught:
        module.Config.from_json(values | {key: FOREIGN[key]})
    assert str(caught.value) == (
        f"config.json: {key!r} = {FOREIGN[key]!r} is not known to this family; remove the key if "
        "it does not change the output."
    )
    # A key that is off says nothing.
    assert module.Config.from_json(values | {key: None}) == config


# What the published files hold besides the sizes of `LLADA_8B` and `DREAM_7B`.
LLADA_FILE = {
    "alibi_bias_max": 8.0,
    "attention_dropout": 0.0,
    "attention_layer_norm_with_affine": True,
    "auto_map": {"AutoModel": "modeling_llada.LLaDAModelLM"},
    "embedding_dropout": 0.0,
    "flash_attention": False,
    "init_cutoff_factor": None,
    "init_device": "meta",
    "init_fn": "mitchell",
    "init_std": 0.02,
    "precision": "amp_bf16",
    "residual_dropout": 0.0,
    "transformers_version": "4.46.3",
    "use_cache": False,
}
DREAM_FILE = {
    "attention_dropout": 0.0,
    "auto_map": {"AutoModel": "modeling_dream.DreamModel"},
    "initializer_range": 0.02,
    "max_window_layers": 28,
    "transformers_version": "4.46.2",
    "use_cache": True,
}


@pytest.mark.parametrize(
    ("values", "parameters"),
    [
        (LLADA_8B | LLADA_FILE | {"_name_or_path": "GSAI-ML/LLaDA-8B-Base"}, 8_015_581_184),
        (LLADA_8B | LLADA_FILE | {"_name_or_path": "GSAI-ML/LLaDA-1.5"}, 8_015_581_184),
        (DREAM_7B | DREAM_FILE, 7_615_616_512),
        (
            DREAM_7B | DREAM_FILE | {"_name_or_path": "Dream-org/Dream-Coder-v0-Instruct-7B"},
            7_615_616_512,
        ),
        (
            DREAM_7B | DREAM_FILE | {"_name_or_path": "apple/DiffuCoder-7B-cpGRPO"},
            7_615_616_512,
        ),
    ],
    ids=["LLaDA-8B", "LLaDA-1.5", "Dream-7B", "Dream-Coder", "DiffuCoder"],
)
def test_published_configs_are_read(values: dict[str, Any], parameters: int) -> None:
    family = find_family(values)
    model = family.Net(family.Config.from_json(values))
    assert sum(part.numel() for part in model.parameters()) == parameters


@pytest.mark.parametrize("family", families())
def test_quantised_checkpoint_of_every_family_loads(family: str, tmp_path: Path) -> None:
    model = toy(family=family)
    save_checkpoint(model, tmp_path, storage="int8")
    loaded: Any = load_model(tmp_path, device="cpu")
    assert loaded.config == model.config


def test_expert_that_is_missing_from_the_shards_is_refused(tmp_path: Path) -> None:
    path = copied("llada2", tmp_path, "llada2-tiny-alt")
    missing = "model.layers.1.mlp.experts.5.up_proj.weight"
    index = json.loads((path / INDEX).read_text())
    shard = path / index["weight_map"].pop(missing)
    tensors = load_file(shard)
    del tensors[missing]
    save_file(tensors, shard)
    refuses(path, f"holds '{missing}', which it does not", mask_id=255)
    (path / INDEX).write_text(json.dumps(index))
    refuses(path, f"Tensor '{missing}' is missing from the weights (1 missing in all)", mask_id=255)


def test_gguf_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "model.Q4_K_M.gguf"
    file.write_bytes(b"GGUF\x03\x00\x00\x00")
    refuses(file, "is in the GGUF format, which cannot be loaded")
    refuses(tmp_path, "is in the GGUF format, which cannot be loaded")


def test_gguf_on_the_hub_is_refused_with_an_alternative() -> None:
    refuses(
        Path("someone/LLaDA-8B-GGUF"), "holds GGUF files, which cannot be loaded; give the Hub id"
    )


@pytest.mark.parametrize(
    ("value", "method"), [({"quant_method": "gptq", "bits": 4}, "'gptq'"), ({}, "'unknown'")]
)
def test_foreign_quantization_is_refused_with_an_alternative(
    tmp_path: Path, value: dict[str, object], method: str
) -> None:
    path = copied("sdar", tmp_path)
    edit(path, {"quantization_config": value})
    refuses(path, f"a quantization_config ({method}), whose weights cannot be read", mask_id=12)
    refuses(path, "load the unquantised checkpoint, and add quantize='int8'", mask_id=12)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"model_type": "llama", "architectures": ["LlamaForCausalLM"]}, "wavefront train adapt"),
        ({"model_type": "llada", "quantization_config": {}}, "load the unquantised checkpoint"),
        (None, "config.json is missing"),
    ],
)
def test_wrong_model_is_refused_before_its_other_files(
    config: dict[str, object] | None, words: str, tmp_path: Path
) -> None:
    """The reason is the model, not the tokenizer or the weights that the folder lacks."""
    if config is not None:
        (tmp_path / "config.json").write_text(json.dumps(config))
    for load in (wavefront.load, wavefront.load_model):
        with pytest.raises(CheckpointError, match=words):
            load(tmp_path, device="cpu")


@pytest.mark.parametrize(
    ("model_type", "architecture"),
    [
        ("llava", "LlavaForConditionalGeneration"),
        ("llada3_moe", "LLaDA3MoeModelLM"),
    ],
)
def test_other_model_gets_no_hint_at_a_similar_family(
    tmp_path: Path, model_type: str, architecture: str
) -> None:
    path = copied("sdar", tmp_path)
    edit(path, {"model_type": model_type, "architectures": [architecture]})
    with pytest.raises(CheckpointError, match=f"'{architecture}', which no family") as caught:
        load_model(path)
    assert "did you mean" not in str(caught.value)
    assert "wavefront list models" in str(caught.value)
