"""wavefront in transformers: models, `generate`, and what it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("transformers", reason="transformers is not installed")

from helpers.masked_lms import make, tokenizer
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoTokenizer,
    GenerationConfig,
    LlamaConfig,
    LogitsProcessorList,
    MinLengthLogitsProcessor,
    StoppingCriteria,
    StoppingCriteriaList,
    TopPLogitsWarper,
)
from transformers.generation.streamers import BaseStreamer

import wavefront
from wavefront.core.errors import OptionError, PromptError, WavefrontError
from wavefront.integrations import hf
from wavefront.models.loader import family_modules
from wavefront.storage.hub import builtin_checkpoints

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden"
LLADA, DREAM = GOLDEN / "llada-tiny", GOLDEN / "dream-tiny"
PROMPTS = torch.tensor([[5, 6, 7, 8], [9, 10, 11, 12]])


@pytest.fixture(scope="module", params=["llada-tiny", "dream-tiny", "dream-tiny-sharded"])
def path(request: pytest.FixtureRequest) -> Path:
    return GOLDEN / request.param


@pytest.fixture(scope="module")
def model() -> Any:
    return AutoModel.from_pretrained(LLADA)


@pytest.fixture(scope="module")
def ripple() -> Any:
    return AutoModel.from_pretrained(builtin_checkpoints()["ripple"])


# The models


def test_published_checkpoint_loads_without_remote_code(path: Path) -> None:
    kind = hf.LLaDAForDiffusion if "llada" in path.name else hf.DreamForDiffusion
    for auto in (AutoModel, AutoModelForMaskedLM):
        made = auto.from_pretrained(path)
        assert type(made) is kind
        assert not made.training
    # A common keyword that has no effect.
    assert type(kind.from_pretrained(path, trust_remote_code=True)) is kind


def test_forward_returns_the_raw_logits(path: Path) -> None:
    made, ours = AutoModel.from_pretrained(path), wavefront.load_model(path, device="cpu")
    ids, mask = torch.randint(0, 200, (2, 9)), torch.ones(2, 9, dtype=torch.long)
    mask[0, :3] = 0
    with torch.no_grad():
        assert torch.equal(made(ids).logits, ours.raw_logits(ids))
        seen = made(input_ids=ids, attention_mask=mask)
        assert torch.equal(seen.logits, ours.raw_logits(ids, mask))
        assert torch.equal(made(ids, return_dict=False)[0], made(ids)[0])


def test_forward_has_gradients(model: Any) -> None:
    model(PROMPTS).logits.sum().backward()
    assert model.net.embedding.weight.grad.abs().sum() > 0
    model.zero_grad()


def test_dtype_is_float32_or_stored_or_given() -> None:
    stored = builtin_checkpoints()["ripple"]
    assert AutoModel.from_pretrained(stored).dtype is torch.float32
    assert AutoModel.from_pretrained(stored, dtype="auto").dtype is torch.float16
    assert AutoModel.from_pretrained(stored, dtype=torch.bfloat16).dtype is torch.bfloat16


@pytest.mark.parametrize("device", ["cpu", torch.device("cpu"), {"": "cpu"}])
def test_device_map_names_one_device(device: Any) -> None:
    assert hf.LLaDAForDiffusion.from_pretrained(LLADA, device_map=device).device.type == "cpu"


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"device_map": {"a": "cpu", "b": "cpu"}}, "device_map"),
        ({"device_map": 99}, "cuda:99"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"dtype": "int4"}, "int4"),
    ],
)
def test_loading_refuses_unsupported_keywords(given: Any, word: str) -> None:
    with pytest.raises(WavefrontError, match=word):
        hf.LLaDAForDiffusion.from_pretrained(LLADA, **given)


def test_saved_model_is_a_published_checkpoint(path: Path, tmp_path: Path) -> None:
    made = AutoModel.from_pretrained(path)
    made.save_pretrained(tmp_path)
    again = AutoModel.from_pretrained(tmp_path)
    with torch.no_grad():
        assert torch.equal(again(PROMPTS).logits, made(PROMPTS).logits)
    ours = wavefront.load_model(tmp_path, device="cpu")
    assert torch.equal(ours.raw_logits(PROMPTS), made(PROMPTS).logits)
    with pytest.raises(OptionError, match="push_to_hub"):
        made.save_pretrained(tmp_path, push_to_hub=True)


def test_model_from_config_has_random_weights(path: Path) -> None:
    config = AutoConfig.from_pretrained(path)
    assert config.hidden_size == 64
    torch.manual_seed(1)
    made = AutoModel.from_config(config)
    assert torch.isfinite(made(PROMPTS).logits).all()
    assert made.generate(PROMPTS, max_new_tokens=4).shape[0] == 2


def test_config_of_another_architecture_is_refused() -> None:
    config = AutoConfig.from_pretrained(LLADA)
    config.alibi = True
    with pytest.raises(WavefrontError, match="alibi"):
        AutoModel.from_config(config)


def test_tokenizer_loads_without_remote_code(tmp_path: Path) -> None:
    """Dream publishes a vocabulary, merges, and its own class to read them."""
    letters = {letter: id for id, letter in enumerate("abcdefghijklmnopqrstuvwxyzĠ")} | {"th": 27}
    (tmp_path / "vocab.json").write_text(json.dumps(letters))
    (tmp_path / "merges.txt").write_text("#version: 0.2\nt h\n")
    plain = {"lstrip": False, "rstrip": False, "normalized": False, "special": True}
    settings = {
        "tokenizer_class": "DreamTokenizer",
        "auto_map": {"AutoTokenizer": ["tokenization_dream.DreamTokenizer", None]},
        "eos_token": "<|endoftext|>",
        "pad_token": "<|endoftext|>",
        "added_tokens_decoder": {
            "28": {"content": "<|endoftext|>", **plain},
            "29": {"content": "<|mask|>", **plain},
        },
        "chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}",
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "Dream", "mask_token_id": 29}))
    words = hf.load_tokenizer(tmp_path)
    assert words("the<|mask|>").input_ids == [27, 4, 29]
    assert words.decode([27, 4]) == "the"
    assert (words.mask_token_id, words.eos_token_id, words.pad_token_id) == (29, 28, 28)
    batch = words(["the", "a"], padding=True)
    assert batch["input_ids"] == [[27, 4], [28, 0]]
    rendered = words.apply_chat_template([{"role": "user", "content": "the"}], tokenize=False)
    assert rendered == "the"


def test_loaded_tokenizer_equals_that_of_transformers() -> None:
    path = builtin_checkpoints()["ripple"]
    ours, theirs = hf.load_tokenizer(path), AutoTokenizer.from_pretrained(path)
    text = "Sam has 3 bags.<|eot_id|>\n\nfin"
    assert ours(text).input_ids == theirs(text).input_ids
    assert ours.mask_token == "<|mdm_mask|>"
    asked = [{"role": "user", "content": "Hi"}]
    assert list(ours.apply_chat_template(asked, return_dict=True)["input_ids"]) == list(
        theirs.apply_chat_template(asked, return_dict=True)["input_ids"]
    )
    assert hf.read_tokenizer(ours).encode("Hi") == wavefront.load("ripple").tokenizer.encode("Hi")


def test_end_of_turn_is_a_stop_token(ripple: Any) -> None:
    assert tuple(ripple.generation_config.eos_token_id) == wavefront.load("ripple").stop_ids


# Every family

# Folder -> the options that its files do not hold.
CHECKPOINTS: dict[str, dict[str, Any]] = {
    "llada-tiny": {},
    "dream-tiny": {},
    "dream-tiny-sharded": {},
    "a2d/checkpoint": {"mask_id": 251},
    "fast_dllm_v2/checkpoint": {"mask_id": 249},
    "illada/checkpoint": {"mask_id": 5},
    "llada2/llada2-tiny": {"mask_id": 271},
    "llada2/llada2-tiny-alt": {"mask_id": 255},
    "llada_moe/llada-moe-tiny": {"mask_id": 263},
    "sdar/checkpoint": {},
    "sdar_moe/sdar-moe-tiny": {"mask_id": 262},
    "stable_diffcoder/checkpoint": {"mask_id": 5},
}
ALL_OPTIONS = [
    *CHECKPOINTS.items(),
    ("a2d/checkpoint", {"mask_id": 251, "attention": "block", "block_size": 4}),
    ("sdar/checkpoint", {"block_size": 8}),
    ("sdar/checkpoint", {"attention": "bidirectional"}),
    ("fast_dllm_v2/checkpoint", {"mask_id": 249, "block_size": 8}),
]


def named(value: Any) -> str:
    return value if isinstance(value, str) else "-".join(map(str, value.values())) or "default"


def test_table_has_every_checkpoint_of_the_golden_folder() -> None:
    found = {str(file.parent.relative_to(GOLDEN)) for file in GOLDEN.rglob("config.json")}
    assert {name for name in found if "encoders" not in name} == {*CHECKPOINTS}
    named = {kind for module in family_modules().values() for kind in module.ARCHITECTURES}
    assert named == {*hf.CLASSES}


@pytest.mark.parametrize(("folder", "options"), ALL_OPTIONS, ids=named)
def test_auto_class_loads_every_family(folder: str, options: Any, tmp_path: Path) -> None:
    path = GOLDEN / folder
    ours: Any = wavefront.load_model(path, device="cpu", **options)
    (name,) = json.loads((path / "config.json").read_text())["architectures"]
    made = AutoModelForMaskedLM.from_pretrained(path, **options)
    assert type(made) is hf.CLASSES[name]
    assert type(hf.DiffusionModel.from_pretrained(path, **options)) is hf.CLASSES[name]
    assert made.net.config == ours.config
    assert (made.config.mask_token_id, made.net.family) == (ours.mask_id, ours.family)
    ids = torch.randint(6, 240, (2, 9))
    with torch.no_grad():
        assert torch.equal(made(ids).logits, ours.raw_logits(ids))
    for given in ({"strategy": "standard", "steps": 7}, {}):
        given |= {"max_new_tokens": 7, "eos": "keep"}
        expected = wavefront.generate_ids(ours, PROMPTS.tolist(), **given).tokens
        assert made.generate(PROMPTS, **given)[:, 4:].tolist() == expected
    made.save_pretrained(tmp_path)
    again = AutoModelForMaskedLM.from_pretrained(tmp_path)
    assert torch.equal(again.generate(PROMPTS, **given), made.generate(PROMPTS, **given))
    # The config of a loaded model says everything about it.
    same = AutoModelForMaskedLM.from_config(made.config).net
    assert (same.mask_id, same.block_size) == (ours.mask_id, ours.block_size)


def test_attention_given_to_a_saved_model_is_in_its_config(tmp_path: Path) -> None:
    path = GOLDEN / "sdar" / "checkpoint"
    AutoModelForMaskedLM.from_pretrained(path, attention="bidirectional").save_pretrained(tmp_path)
    assert AutoModelForMaskedLM.from_pretrained(tmp_path).net.block_size is None
    made = AutoModelForMaskedLM.from_pretrained(tmp_path, attention="block")
    assert made.net.block_size == 4
    assert AutoModelForMaskedLM.from_config(made.config).net.block_size == 4


@pytest.mark.parametrize("folder", CHECKPOINTS)
def test_padding_changes_no_answer_of_a_family(folder: str) -> None:
    made = AutoModelForMaskedLM.from_pretrained(GOLDEN / folder, **CHECKPOINTS[folder])
    ids, mask = torch.tensor([[0, 6, 7, 8], [9, 10, 11, 12]]), torch.ones(2, 4).long()
    mask[0, 0] = 0
    given: Any = {"max_new_tokens": 6, "eos": "keep"}
    found = made.generate(ids, attention_mask=mask, **given)
    assert found[0, 4:].equal(made.generate(ids[:1, 1:], **given)[0, 3:])


@pytest.mark.parametrize("folder", CHECKPOINTS)
def test_streamer_receives_the_answer_of_a_family(folder: str) -> None:
    made = AutoModelForMaskedLM.from_pretrained(GOLDEN / folder, **CHECKPOINTS[folder])
    heard: list[Tensor] = []

    class Streamer(BaseStreamer):
        def put(self, value: Tensor) -> None:
            heard.append(value)

        def end(self) -> None:
            pass

    found = made.generate(PROMPTS[:1], max_new_tokens=7, eos="keep", streamer=Streamer())
    assert heard[0].equal(PROMPTS[:1])
    assert torch.cat(heard[1:]).equal(found[0, 4:])


@pytest.mark.parametrize(
    "folder", ["llada_moe/llada-moe-tiny", "sdar_moe/sdar-moe-tiny", "llada2/llada2-tiny"]
)
def test_missing_mask_id_can_be_given(folder: str) -> None:
    """The sentence names an option that the same call accepts."""
    with pytest.raises(WavefrontError, match="give mask_id"):
        AutoModelForMaskedLM.from_pretrained(GOLDEN / folder)
    AutoModelForMaskedLM.from_pretrained(GOLDEN / folder, **CHECKPOINTS[folder])


def test_class_of_another_family_is_refused() -> None:
    with pytest.raises(OptionError, match="use DreamForDiffusion or AutoModelForMaskedLM"):
        hf.LLaDAForDiffusion.from_pretrained(DREAM)


def test_plain_llama_is_no_masked_lm() -> None:
    with pytest.raises(WavefrontError, match="StableDiffcoderForCausalLM"):
        AutoModelForMaskedLM.from_config(LlamaConfig(num_hidden_layers=1))


def test_block_causal_model_of_other_code_is_refused() -> None:
    """transformers reads Stable-DiffCoder as a causal Llama; nothing decodes it by mistake."""
    theirs: Any = AutoModelForCausalLM.from_pretrained(GOLDEN / "stable_diffcoder" / "checkpoint")
    assert type(theirs).__name__ == "LlamaForCausalLM"
    for call in (
        lambda: hf.MaskedLM(theirs, mask_id=5),
        lambda: hf.enable(theirs, mask_id=5),
        lambda: theirs.generate(PROMPTS, custom_generate=hf.generate, max_new_tokens=4),
    ):
        with pytest.raises(OptionError, match=r"attends by blocks.*wavefront\.load\(path\)\.$"):
            call()


@pytest.mark.parametrize("name", ["SDARForCausalLM", "LLaDA2MoeModelLM", "DreamModel"])
def test_remote_code_of_a_family_is_refused(name: str) -> None:
    remote = make("Bert")
    remote.__class__ = type(name, (type(remote),), {})
    with pytest.raises(OptionError, match=r"wavefront\.load\(path\)"):
        hf.MaskedLM(remote, mask_id=3)


# generate


STRATEGIES = [
    "wavefront(size=4)",
    "standard",
    "block(size=4)",
    "left_to_right",
    "rcr",
    "tide",
    "tide(cascade_rounds=0, horizon=0, selector=quota())",
]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_generate_equals_generate_ids(path: Path, strategy: str) -> None:
    made, ours = AutoModel.from_pretrained(path), wavefront.load_model(path, device="cpu")
    given: Any = {"strategy": strategy, "max_new_tokens": 8, "steps": 8}
    expected = wavefront.generate_ids(ours, PROMPTS.tolist(), **given, eos="keep").tokens
    found = made.generate(PROMPTS, custom_generate=hf.generate, **given, eos="keep")
    assert found[:, :4].equal(PROMPTS)
    assert found[:, 4:].tolist() == expected
    assert made.generate(PROMPTS, **given, eos="keep").equal(found)  # the default of the model
    assert hf.generate(made, PROMPTS, **given, eos="keep").equal(found)  # and a direct call


def test_built_in_model_answers_through_transformers(ripple: Any) -> None:
    lm, words = (
        wavefront.load("ripple"),
        AutoTokenizer.from_pretrained(builtin_checkpoints()["ripple"]),
    )
    question = "Sam has 3 bags of 4 figs and eats 2. How many are left?"
    prompt = words.apply_chat_template(
        [{"role": "user", "content": question}], return_tensors="pt", return_dict=True
    )
    given: Any = {"strategy": "wavefront(size=8, radius=2)", "max_new_tokens": 32, "steps": 12}
    found = ripple.generate(**prompt, custom_generate=hf.generate, **given)
    answer = words.decode(found[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True)
    assert answer == lm.generate(question, **given, eos="stop").text
    assert "####" in answer


def ends(model: Any, count: int = 8) -> tuple[int, list[list[int]]]:
    """Return a token of the greedy answers, and the answers without a cut."""
    answers = model.generate(PROMPTS, max_new_tokens=count, eos="keep")[:, 4:].tolist()
    return answers[0][3], answers


def test_rows_are_cut_after_their_stop_token_and_padded(model: Any) -> None:
    end, answers = ends(model)
    found = model.generate(PROMPTS, max_new_tokens=8, eos_token_id=end, pad_token_id=1)
    kept = [row[: row.index(end) + 1] if end in row else row for row in answers]
    widest = max(map(len, kept))
    assert found[:, 4:].tolist() == [row + [1] * (widest - len(row)) for row in kept]


def test_output_is_as_short_as_the_longest_row(model: Any) -> None:
    end, answers = ends(model)
    found = model.generate(PROMPTS[:1], max_new_tokens=8, eos_token_id=end)
    assert found[0, 4:].tolist() == answers[0][: answers[0].index(end) + 1]
    assert found.shape[1] < 12


def test_padding_and_other_rows_change_nothing(path: Path) -> None:
    made = AutoModel.from_pretrained(path)
    given: Any = {"max_new_tokens": 6, "eos": "keep", "strategy": "wavefront(size=3)"}
    alone = made.generate(PROMPTS[:1, 1:], **given)[0, 3:]
    for side in ("left", "right"):
        row = [0, 6, 7, 8] if side == "left" else [6, 7, 8, 0]
        ids = torch.tensor([row, PROMPTS[1].tolist()])
        mask = torch.ones_like(ids)
        mask[0, row.index(0)] = 0
        found = made.generate(ids, attention_mask=mask, **given)
        assert found[:, :4].equal(ids)
        assert found[0, 4:].equal(alone)


def test_max_length_counts_the_prompt(model: Any) -> None:
    found = model.generate(PROMPTS, max_length=10, eos="keep")
    assert found.shape == (2, 10)


def test_return_dict_has_costs_history_and_trace(model: Any) -> None:
    given: Any = {"max_new_tokens": 8, "return_dict_in_generate": True, "eos": "keep"}
    found = model.generate(PROMPTS, steps=4, **given)
    assert isinstance(found, hf.DiffusionOutput)
    assert found["sequences"].equal(model.generate(PROMPTS, max_new_tokens=8, steps=4, eos="keep"))
    assert found.forwards == 4
    assert found.row_forwards.tolist() == [4, 4]
    assert found.tokens_per_forward.tolist() == [2.0, 2.0]
    assert found.history is None
    assert found.trace is None
    result = model.generate(PROMPTS, steps=4, output_history=True, **given)
    assert len(result.history) == 4
    assert result.history[-1].equal(result.sequences)
    masked = [(ids == model.net.mask_id).sum().item() for ids in result.history]
    assert masked == [12, 8, 4, 0]
    assert len(list(result.trace.replay())) == 4


def test_history_needs_return_dict(model: Any) -> None:
    with pytest.raises(OptionError, match="return_dict_in_generate"):
        model.generate(PROMPTS, max_new_tokens=4, output_history=True)


def test_sampling_follows_the_torch_seed(model: Any) -> None:
    given: Any = {"do_sample": True, "temperature": 2.0, "max_new_tokens": 8, "eos": "keep"}

    def draw(seed: int) -> Any:
        torch.manual_seed(seed)
        return model.generate(PROMPTS, **given)

    assert draw(0).equal(draw(0))
    assert not draw(0).equal(draw(1))
    assert model.generate(PROMPTS, seed=5, **given).equal(model.generate(PROMPTS, seed=5, **given))


def test_several_sequences_of_a_prompt_differ(model: Any) -> None:
    found = model.generate(
        PROMPTS,
        do_sample=True,
        temperature=3.0,
        num_return_sequences=3,
        max_new_tokens=8,
        eos="keep",
    )
    assert found.shape == (6, 12)
    assert len({tuple(row) for row in found[:3].tolist()}) == 3
    assert found[:3, :4].equal(PROMPTS[:1].expand(3, 4))


def test_temperature_without_do_sample_is_greedy(model: Any) -> None:
    asked = GenerationConfig(max_new_tokens=8, do_sample=False)
    asked.temperature = 5.0  # published configs may have one
    assert model.generate(PROMPTS, asked).equal(model.generate(PROMPTS, max_new_tokens=8))


def test_top_k_of_one_is_greedy(model: Any) -> None:
    found = model.generate(PROMPTS, do_sample=True, top_k=1, temperature=2.0, max_new_tokens=8)
    assert found.equal(model.generate(PROMPTS, max_new_tokens=8))


def test_generation_config_can_hold_wavefront_options(model: Any) -> None:
    asked = GenerationConfig(max_new_tokens=8, strategy="left_to_right", eos="keep")
    expected = model.generate(PROMPTS, max_new_tokens=8, strategy="left_to_right", eos="keep")
    found = model.generate(PROMPTS, generation_config=asked)
    assert found.equal(expected)
    assert not expected.equal(model.generate(PROMPTS, max_new_tokens=8, eos="keep"))


class Never(StoppingCriteria):
    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
        return False


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"num_beams": 2}, "num_beams"),
        ({"repetition_penalty": 1.5}, "RepetitionPenalty"),
        ({"no_repeat_ngram_size": 2}, "NGram"),
        ({"bad_words_ids": [[3]]}, "BadWords"),
        ({"guidance_scale": 2.0}, "guidance_scale|Guidance"),
        ({"max_time": 1.0}, "MaxTime"),
        ({"output_scores": True, "return_dict_in_generate": True}, "output_scores"),
        ({"logits_processor": LogitsProcessorList([MinLengthLogitsProcessor(3, 1)])}, "MinLength"),
        ({"logits_processor": LogitsProcessorList([TopPLogitsWarper(0.5)])}, "TopP"),
        ({"stopping_criteria": StoppingCriteriaList([Never()])}, "Never"),
        ({"prefix_allowed_tokens_fn": lambda batch, ids: [1]}, "Prefix"),
        ({"assistant_model": object()}, "assistant"),
        ({"strategy": "wavefrnt"}, "wavefront"),
        ({"steps": 0}, "steps"),
        ({"token_type_ids": torch.ones_like(PROMPTS)}, "token_type_ids"),
        ({"infill": True}, "nothing to fill"),
    ],
)
def test_unsupported_options_are_refused(model: Any, given: Any, word: str) -> None:
    with pytest.raises(WavefrontError, match=word):
        model.generate(PROMPTS, custom_generate=hf.generate, **{"max_new_tokens": 4} | given)


def test_unknown_option_is_refused_by_transformers(model: Any) -> None:
    with pytest.raises(ValueError, match="scedule"):
        model.generate(PROMPTS, max_new_tokens=4, scedule="block")


def test_too_long_prompt_is_refused(model: Any) -> None:
    with pytest.raises(PromptError, match="shorten"):
        model.generate(PROMPTS, max_new_tokens=model.net.max_length)


def test_infill_fills_masks_in_place(model: Any) -> None:
    mask = model.net.mask_id
    ids = torch.tensor([[5, mask, 7, mask, mask], [0, 9, mask, 10, 11]])
    real = torch.ones_like(ids)
    real[1, 0] = 0
    found = model.generate(ids, attention_mask=real, infill=True, strategy="standard")
    holes = ids == mask
    assert found.shape == ids.shape
    assert found[~holes].equal(ids[~holes])
    assert (found[holes] != mask).all()
    alone = model.generate(ids[1:, 1:], infill=True, strategy="standard")
    assert alone[0].equal(found[1, 1:])


def test_holes_are_encoded_as_in_infill(ripple: Any) -> None:
    path = builtin_checkpoints()["ripple"]
    words, lm = hf.load_tokenizer(path), wavefront.load("ripple")
    text = "Ivy reads 24 * 9 = <mask:3> pages.\n304 - 216 = <mask:2> are left."
    holes = hf.encode_holes(words, text)
    found = ripple.generate(**holes, infill=True)[0]
    assert words.decode(found) == lm.infill(text).text
    assert " = 216 pages." in words.decode(found)
    with pytest.raises(OptionError, match="no mask token"):
        hf.encode_holes(AutoTokenizer.from_pretrained(path), text)


def test_tokenizer_adds_the_begin_token_that_its_files_ask_for() -> None:
    path = builtin_checkpoints()["tale"]
    words, lm = hf.load_tokenizer(path), wavefront.load("tale")
    assert words("Tom").input_ids == [words.bos_token_id, *lm.tokenizer.encode("Tom")]
    text = "Once upon a time there was a <mask:6>. She <mask:12>."
    found = AutoModel.from_pretrained(path).generate(**hf.encode_holes(words, text), infill=True)
    assert words.decode(found[0], skip_special_tokens=True).strip() == lm.infill(text).text


def test_strategy_that_names_a_token_needs_the_tokenizer() -> None:
    words = tokenizer()
    model = hf.enable(make("Bert"), mask_id=3)
    given: Any = {"strategy": "adablock(delimiters=('mat',))", "max_new_tokens": 8}
    with pytest.raises(OptionError, match="tokenizer"):
        model.generate(torch.tensor([[1, 9]]), **given)
    by_id = model.generate(torch.tensor([[1, 9]]), max_new_tokens=8, strategy=_by_id(words))
    assert model.generate(torch.tensor([[1, 9]]), tokenizer=words, **given).equal(by_id)
    given["strategy"] = "adablock(delimiters=('the mat',))"
    with pytest.raises(OptionError, match="2 tokens"):
        model.generate(torch.tensor([[1, 9]]), tokenizer=words, **given)


def _by_id(words: Any) -> str:
    return f"adablock(delimiters=({words.convert_tokens_to_ids('mat')},))"


def test_another_custom_generate_is_called(model: Any) -> None:
    def other(model: Any, input_ids: Any, **_: Any) -> str:
        return "theirs"

    assert model.generate(PROMPTS, max_new_tokens=2, custom_generate=other) == "theirs"


def test_hub_folder_works(model: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path))
    given: Any = {"strategy": "block(size=4)", "max_new_tokens": 8}
    folder = str(ROOT / "hub")
    found = model.generate(PROMPTS, custom_generate=folder, trust_remote_code=True, **given)
    assert found.equal(model.generate(PROMPTS, **given))
    with pytest.raises(WavefrontError, match="num_beams"):
        model.generate(
            PROMPTS, custom_generate=folder, trust_remote_code=True, num_beams=2, max_new_tokens=4
        )


def test_hub_folder_works_with_a_masked_lm(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path))
    words = tokenizer()
    model = hf.enable(make("Bert"), words)
    ids = words("the cat", return_tensors="pt").input_ids
    given: Any = {"custom_generate": str(ROOT / "hub"), "trust_remote_code": True}
    found = model.generate(ids, max_new_tokens=5, **given)
    assert found.equal(model.generate(ids, max_new_tokens=5))


ABSENT = (
    "import importlib.util as u; find = u.find_spec\n"
    "u.find_spec = lambda name, *a: None if name == 'transformers' else find(name, *a)\n"
)
OLD = "import importlib.metadata as m; m.version = lambda name: '4.9.2'\n"


@pytest.mark.parametrize(("before", "word"), [(ABSENT, "needs transformers:"), (OLD, "not 4.9.2")])
def test_missing_or_old_transformers_error_names_the_extra(before: str, word: str) -> None:
    code = before + (
        "import wavefront\n"
        "try:\n    wavefront.integrations.hf\n"
        "except wavefront.MissingExtraError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "pip install -e '.[transformers]'" in done.stdout, done.stderr
    assert word in done.stdout


@pytest.mark.parametrize("option", ["strategy", "cache"])
def test_generation_config_never_imports_a_module(
    model: Any, planted_module: Any, option: str, tmp_path: Path
) -> None:
    (tmp_path / "generation_config.json").write_text(
        json.dumps({option: "planted.Mine()", "max_new_tokens": 8})
    )
    asked = GenerationConfig.from_pretrained(tmp_path)
    with pytest.raises(OptionError, match=rf"{option}=.* to generate"):
        model.generate(PROMPTS, generation_config=asked)
    assert not planted_module()
