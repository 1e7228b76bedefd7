"""Models: published numbers, and what `hidden` guarantees for padding, rows and windows."""

from __future__ import annotations

import importlib
import json
import pkgutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from wavefront.core.errors import OptionError, PromptError
from wavefront.models import families as family_files
from wavefront.models.architecture import ExpertLayout
from wavefront.models.layer import PassInputs
from wavefront.models.loader import families, load_model
from wavefront.models.protocol import Model
from wavefront.models.toy import toy
from wavefront.models.transformer import Transformer

pytestmark = pytest.mark.whole
GOLDEN = Path(__file__).parents[1] / "golden"
CASES = json.loads((GOLDEN / "cases.json").read_text())["forward"]
LOGITS = np.load(GOLDEN / "forward_logits.npz")
# Read from the folder, so that the tests below cover a new family file without naming it.
FAMILY_MODULES = [
    importlib.import_module(f"{family_files.__name__}.{entry.name}")
    for entry in pkgutil.iter_modules(family_files.__path__)
]
FAMILIES = [file.Net.family for file in FAMILY_MODULES if hasattr(file, "Net")]


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(autouse=True)
def without_gradients(request: pytest.FixtureRequest):
    with torch.set_grad_enabled("trains" in request.node.name):
        yield


def canvas(model: Model, batch: int, length: int, seed: int = 0) -> Tensor:
    """(B, L): random tokens, the second half masked."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, model.vocab_size - 2, (batch, length), generator=generator)
    tokens[:, length // 2 :] = model.mask_id
    return tokens


def everywhere(tokens: Tensor) -> Tensor:
    return torch.arange(tokens.shape[1]).expand_as(tokens)


def logits_at(model: Model, tokens: Tensor, attend: Tensor | None, at: Tensor) -> Tensor:
    return model.head(model.hidden(tokens, attend, at))


def left_padding(lengths: tuple[int, ...], width: int) -> Tensor:
    return torch.arange(width)[None, :] >= width - torch.tensor(lengths)[:, None]


def test_every_family_file_has_a_net() -> None:
    assert sorted(FAMILIES) == families()


# Published numbers


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_raw_logits_equal_the_published_models(case: dict) -> None:
    model = load_model(GOLDEN / case["model"], device="cpu")
    logits = model.raw_logits(case["input_ids"], case["attention_mask"])
    difference = (logits - torch.from_numpy(LOGITS[case["logits_key"]])).abs()
    if case["compare"] == "attended_only":
        difference = difference[torch.tensor(case["attention_mask"]).bool()]
    assert difference.max() < 1e-3


def test_sharded_checkpoint_loads_the_same_model() -> None:
    whole = load_model(GOLDEN / "dream-tiny", device="cpu")
    shards = load_model(GOLDEN / "dream-tiny-sharded", device="cpu")
    ids = [[1, 2, 3, 266, 266]]
    assert torch.equal(whole.raw_logits(ids), shards.raw_logits(ids))


@pytest.mark.parametrize("name", ["llada-tiny", "dream-tiny"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_differs_only_by_rounding(name: str, dtype: torch.dtype) -> None:
    ids = CASES[1]["input_ids"]
    exact = load_model(GOLDEN / name, device="cpu").raw_logits(ids)
    half = load_model(GOLDEN / name, device="cpu", dtype=dtype)
    assert half.raw_logits(ids).dtype == half.dtype == dtype
    error = (half.raw_logits(ids).float() - exact).abs().mean() / exact.abs().mean()
    assert error < 10 * torch.finfo(dtype).eps


def test_each_family_uses_its_own_rotary_precision(family: str) -> None:
    """LLaDA turns in float32 and rounds once; Dream rounds cosine and sine, and every product."""
    model = toy(family=family, dtype="bf16")
    block, positions = model.layers[0], torch.arange(100, 116)
    cosine, sine = model.rotary_angles(positions)
    x = torch.randn((1, 16, 64), generator=torch.Generator().manual_seed(0)).bfloat16()
    query, _, _ = block.project(x, PassInputs(cosine, sine, None, None))
    plain = block.qkv(x).unflatten(-1, (-1, block.head_dim))[:, :, : block.heads]
    if block.query_norm is not None:
        plain = block.query_norm(plain)
    turn, half = torch.complex(cosine, sine), cosine.shape[-1]
    first, second, rest = plain.split((half, half, block.head_dim - 2 * half), dim=-1)
    exact = torch.complex(first.float(), second.float()) * turn
    rounded_once = torch.cat((exact.real.bfloat16(), exact.imag.bfloat16(), rest), dim=-1)
    assert torch.equal(query, rounded_once) is model.config.rotary_float32
    torch.testing.assert_close(query, rounded_once, rtol=0.05, atol=0.05)


# What `hidden` and `head` promise


def test_llada_hidden_predicts_its_own_position() -> None:
    model = toy()
    tokens = canvas(model, 2, 12)
    expected = model.raw_logits(tokens)
    torch.testing.assert_close(logits_at(model, tokens, None, everywhere(tokens)), expected)


def test_dream_hidden_undoes_the_shift() -> None:
    model = toy(family="dream")
    tokens = canvas(model, 2, 12)
    raw = model.raw_logits(tokens)
    expected = torch.cat((raw[:, :1], raw[:, :-1]), dim=1)
    torch.testing.assert_close(logits_at(model, tokens, None, everywhere(tokens)), expected)


def test_dream_first_real_position_uses_its_own_output() -> None:
    model = toy(family="dream")
    tokens, attend = canvas(model, 2, 12), left_padding((12, 7), 12)
    raw = model.raw_logits(tokens, attend)
    logits = logits_at(model, tokens, attend, everywhere(tokens))
    torch.testing.assert_close(logits[1, 5], raw[1, 5])
    torch.testing.assert_close(logits[1, 6], raw[1, 5])
    torch.testing.assert_close(logits[0, 5], raw[0, 4])


def test_hidden_returns_the_requested_positions_in_order(family: str) -> None:
    model = toy(family=family, dtype="float64")
    tokens = canvas(model, 2, 12)
    at = torch.tensor([[7, 0, 11], [3, 3, 1]])
    full = model.hidden(tokens, None, everywhere(tokens))
    expected = full.gather(1, at[..., None].expand(-1, -1, full.shape[-1]))
    torch.testing.assert_close(model.hidden(tokens, None, at), expected)


# Padding and rows


def test_left_padded_row_equals_the_row_alone(family: str) -> None:
    model = toy(family=family, dtype="float64")
    alone = canvas(model, 1, 9)
    padded = torch.cat((torch.full((1, 6), model.pad_id), alone), dim=1)
    attend = left_padding((9,), 15)
    expected = logits_at(model, alone, None, everywhere(alone))
    got = logits_at(model, padded, attend, everywhere(padded))[:, 6:]
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)


def test_padding_tokens_do_not_change_the_output(family: str) -> None:
    model = toy(family=family)
    tokens, attend = canvas(model, 1, 12), left_padding((8,), 12)
    changed = torch.where(attend, tokens, 5)
    at = torch.arange(4, 12)[None]
    expected = logits_at(model, tokens, attend, at)
    assert torch.equal(logits_at(model, changed, attend, at), expected)


def test_other_rows_do_not_change_the_output(family: str) -> None:
    model = toy(family=family)
    one, other = canvas(model, 3, 12, seed=1), canvas(model, 3, 12, seed=2)
    other[1] = one[1]
    attend, lonely = left_padding((12, 9, 4), 12), left_padding((0, 9, 0), 12)
    at = everywhere(one)
    expected = logits_at(model, one, attend, at)
    assert torch.equal(logits_at(model, other, attend, at)[1], expected[1])
    emptied = logits_at(model, other, lonely, at)
    assert torch.equal(emptied[1], expected[1])
    assert not emptied.isnan().any()


def test_mask_of_all_positions_equals_no_mask(family: str) -> None:
    model = toy(family=family, dtype="float64")
    tokens = canvas(model, 2, 10)
    real = torch.ones_like(tokens, dtype=torch.bool)
    at = everywhere(tokens)
    masked = logits_at(model, tokens, real, at)
    torch.testing.assert_close(masked, logits_at(model, tokens, None, at))


# Windows and stored keys and values


def test_filling_the_kv_store_does_not_change_the_output(family: str) -> None:
    model = toy(family=family)
    tokens = canvas(model, 2, 12)
    at = everywhere(tokens)
    filled = model.hidden(tokens, None, at, kv=model.new_kv(2, 12))
    assert torch.equal(filled, model.hidden(tokens, None, at))


def test_window_over_all_positions_equals_the_full_pass(family: str) -> None:
    model = toy(family=family, dtype="float64")
    tokens, attend = canvas(model, 2, 12), left_padding((12, 8), 12)
    at, kv, filled = everywhere(tokens), model.new_kv(2, 12), model.new_kv(2, 12)
    window = at.flip(1)
    got = model.hidden(tokens, attend, at, window=window, kv=kv)
    torch.testing.assert_close(got, model.hidden(tokens, attend, at, kv=filled))
    for fresh, expected in zip((*kv.keys, *kv.values), (*filled.keys, *filled.values), strict=True):
        torch.testing.assert_close(fresh, expected)


def test_window_on_an_unchanged_canvas_equals_the_full_pass(family: str) -> None:
    """Keys and values read from the store are those of the full pass, so nothing may move."""
    model = toy(family=family, dtype="float64")
    tokens, attend = canvas(model, 2, 12), left_padding((12, 8), 12)
    kv = model.new_kv(2, 12)
    at = torch.tensor([[3, 9], [4, 11]])
    expected = model.hidden(tokens, attend, at, kv=kv)
    window = torch.tensor([[9, 3, 3, 3], [4, 11, 10, 11]])
    got = model.hidden(tokens, attend, at, window=window, kv=kv)
    torch.testing.assert_close(got, expected)


def test_window_reads_stored_keys_and_updates_its_own(family: str) -> None:
    model = toy(family=family, layers=1, dtype="float64")
    before, at = canvas(model, 1, 12), torch.tensor([[6]])
    after = before.clone()
    after[0, [2, 6]] = torch.tensor([1, 2])
    kv = model.new_kv(1, 12)
    model.hidden(before, None, at, kv=kv)
    stale = [key.clone() for key in kv.keys]
    model.hidden(after, None, at, window=torch.tensor([[6]]), kv=kv)
    changed = ~torch.isclose(kv.keys[0], stale[0]).all(-1).all(1)[0]
    assert changed.nonzero().flatten().tolist() == [6]


def test_dream_also_computes_the_position_before_the_window() -> None:
    model = toy(family="dream", dtype="float64")
    before = canvas(model, 1, 12)
    after = before.clone()
    after[0, 5] = 1
    kv = model.new_kv(1, 12)
    model.hidden(before, None, everywhere(before), kv=kv)
    at = window = torch.tensor([[6]])
    got = model.hidden(after, None, at, window=window, kv=kv)
    widened = model.new_kv(1, 12)
    model.hidden(before, None, everywhere(before), kv=widened)
    wide = model.hidden(after, None, at, window=torch.tensor([[5, 6]]), kv=widened)
    torch.testing.assert_close(got, wide)


def test_duplicate_positions_in_a_window_do_not_change_the_output(family: str) -> None:
    model = toy(family=family, dtype="float64")
    tokens = canvas(model, 1, 12)
    moved = tokens.clone()
    moved[0, 7] = 3
    at = torch.tensor([[7, 8]])
    results = []
    for window in ([[7, 8]], [[7, 8, 8, 7, 7, 7]]):
        kv = model.new_kv(1, 12)
        model.hidden(tokens, None, at, kv=kv)
        results.append(model.hidden(moved, None, at, window=torch.tensor(window), kv=kv))
    torch.testing.assert_close(results[0], results[1])


# Shapes of models


def test_consecutive_query_heads_share_a_key_head() -> None:
    """A grouped model equals the plain one whose key heads are repeated next to each other."""
    grouped = toy(family="dream", dtype="float64")
    config = grouped.config
    plain = type(grouped)(replace(config, kv_heads=config.heads))
    plain = plain.to(torch.float64).to_empty(device="cpu")
    for name, part in plain.published_weights().items():
        source = grouped.published_weights()[name]
        if source.shape != part.shape:
            source = (
                source.unflatten(0, (config.kv_heads, -1)).repeat_interleave(2, 0).flatten(0, 1)
            )
        part.copy_(source)
    tokens = canvas(grouped, 2, 10)
    torch.testing.assert_close(plain.raw_logits(tokens), grouped.raw_logits(tokens))


def test_tied_weights_use_the_embedding(family: str) -> None:
    model = toy(family=family, tied=True)
    assert model.output is None
    tokens = canvas(model, 1, 6)
    expected = model.encode(tokens) @ model.embedding.weight.T
    torch.testing.assert_close(model.raw_logits(tokens), expected)


def test_biases_reach_the_logits() -> None:
    model = toy(family="dream")
    tokens = canvas(model, 1, 6)
    before = model.raw_logits(tokens)
    for name, part in model.published_weights().items():
        if name.endswith("v_proj.bias"):
            part.add_(1.0)
    assert not torch.allclose(model.raw_logits(tokens), before)


# Sizes, number of tensors and number of parameters of a published checkpoint of each family.
REAL = {
    "llada": ((126464, 4096, 32, 32, 32, 12288), 291, 8_015_581_184),
    "dream": ((152064, 3584, 28, 28, 4, 18944), 339, 7_615_616_512),
    "a2d": ((151936, 1024, 28, 16, 8, 3072), 310, 596_049_920),
    "fast_dllm_v2": ((152064, 3584, 28, 28, 4, 18944), 339, 7_615_616_512),
    "illada": ((155136, 4096, 32, 32, 8, 14336), 290, 7_615_025_152),
    "sdar": ((151936, 4096, 36, 32, 8, 12288), 399, 8_190_735_360),
    "llada2": ((157184, 2048, 20, 16, 4, 5120), 14_813, 16_255_643_392),
    "llada_moe": ((157184, 2048, 16, 16, 16, 8192), 3_219, 7_356_880_896),
    "sdar_moe": ((151936, 2048, 48, 32, 4, 6144), 18_867, 30_532_122_624),
    "stable_diffcoder": ((155136, 4096, 32, 32, 8, 14336), 291, 8_250_462_208),
}
OTHER_SIZES = {
    "a2d": {"explicit_head_dim": 128, "tied": True},
    "illada": {"layer_norm": False, "tied": True},
    "llada2": {
        "explicit_head_dim": 128,
        "experts": replace(
            toy(family="llada2").config.experts,
            count=256,
            per_token=8,
            width=512,
            groups=8,
            kept_groups=4,
            shared_width=512,
        ),
    },
    "llada_moe": {
        "experts": ExpertLayout(count=64, per_token=8, width=1024, router="softmax"),
    },
    "sdar": {"explicit_head_dim": 128},
    "sdar_moe": {
        "explicit_head_dim": 128,
        "experts": ExpertLayout(count=128, per_token=8, width=768, router="normalized_softmax"),
    },
}


def test_published_models_have_their_published_size(family: str) -> None:
    """Nothing is allocated: a model is built without memory."""
    sizes, tensors, parameters = REAL[family]
    names = ("vocab_size", "width", "layers", "heads", "kv_heads", "mlp_width")
    small = toy(family=family)
    changes = dict(zip(names, sizes, strict=True)) | OTHER_SIZES.get(family, {})
    model = type(small)(replace(small.config, **changes))
    assert model.device.type == "meta"
    assert len(model.published_weights()) == tensors
    assert sum(part.numel() for part in model.published_weights().values()) == parameters
    stored = (*model.parameters(), *model.buffers())
    assert sum(part.numel() for part in stored) == parameters


# How it can be run


def test_forward_pass_runs_on_the_meta_device(family: str) -> None:
    """On the meta device a host read or a data-dependent shape raises."""
    model = toy(family=family).to("meta")
    tokens = torch.zeros((2, 12), dtype=torch.long, device="meta")
    attend = torch.ones((2, 12), dtype=torch.bool, device="meta")
    at = window = torch.zeros((2, 4), dtype=torch.long, device="meta")
    kv = model.new_kv(2, 12)
    for visible in (None, attend):
        assert model.head(model.hidden(tokens, visible, at)).shape == (2, 4, model.vocab_size)
        model.hidden(tokens, visible, at, kv=kv)
        assert model.hidden(tokens, visible, at, window=window, kv=kv).shape == (2, 4, 64)


@pytest.mark.slow
def test_forward_pass_compiles_in_one_graph(family: str) -> None:
    torch.compiler.reset()  # each family counts as one more compilation of `both`
    model = toy(family=family)
    tokens, attend = canvas(model, 2, 12), left_padding((12, 8), 12)
    at = window = torch.tensor([[5, 6], [7, 8]])

    def both(tokens: Tensor, kv) -> tuple[Tensor, Tensor]:
        full = model.hidden(tokens, attend, at, kv=kv)
        part = model.hidden(tokens, attend, at, window=window, kv=kv)
        return model.head(full), model.head(part)

    compiled = torch.compile(both, fullgraph=True, backend="aot_eager")
    kv, other = model.new_kv(2, 12), model.new_kv(2, 12)
    for got, expected in zip(compiled(tokens, kv), both(tokens, other), strict=True):
        torch.testing.assert_close(got, expected)
    for got, expected in zip((*kv.keys, *kv.values), (*other.keys, *other.values), strict=True):
        torch.testing.assert_close(got, expected)


def test_toy_trains(family: str) -> None:
    model = toy(family=family, tied=True).train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
    tokens = canvas(model, 4, 8)
    losses = []
    for _ in range(8):
        logits = model(tokens, left_padding((8, 8, 6, 5), 8))
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())
        optimiser.zero_grad()
        loss.backward()
        assert all(parameter.grad is not None for parameter in model.parameters())
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


def test_equal_seeds_give_equal_models(family: str) -> None:
    tokens = canvas(toy(), 1, 6)
    first, again, other = (toy(seed, family=family).raw_logits(tokens) for seed in (3, 3, 4))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_model_has_its_special_ids(family: str) -> None:
    model = toy(family=family, vocab_size=50, max_length=77)
    assert (model.family, model.vocab_size, model.max_length) == (family, 50, 77)
    assert (model.mask_id, model.pad_id, model.stop_ids) == (49, 48, (48,))
    model.stop_ids = (48, 47)
    assert (model.device.type, model.dtype) == ("cpu", torch.float32)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"family": "drem"}, "no toy of family 'drem'.*did you mean 'dream'"),
        ({"width": 20}, "width that is a multiple of 8; got 64, 2 and 20"),
        ({"vocab_size": 2}, "vocab_size >= 3"),
    ],
)
def test_invalid_toy_options_are_refused(options: dict, sentence: str) -> None:
    with pytest.raises(OptionError, match=sentence):
        toy(**options)


@pytest.mark.parametrize(
    "ids",
    [
        *([[1, 2], [3]], [1, 2], [], [[]], 5, "text", None, [["a"]], [[1.5]], [[True]], [[10**30]]),
        *(torch.tensor([1, 2]), torch.zeros(1, 2), torch.zeros((1, 2, 3), dtype=torch.long)),
    ],
    ids=str,
)
def test_input_that_is_not_rows_of_ids_is_refused(ids: object) -> None:
    with pytest.raises(PromptError, match=r"rows of one length.*\.$"):
        toy().raw_logits(ids)


@pytest.mark.parametrize("token", [-1, 64, 2**40])
def test_id_outside_the_vocabulary_is_refused(token: int) -> None:
    with pytest.raises(PromptError, match=rf"token id {token} is outside .* 0 to 63\.$"):
        toy().raw_logits([[1, token]])


@pytest.mark.parametrize(
    "attend", [[1, 1], [[1]], [[1, 1], [1, 1]], [[1, 2]], [[0.0, float("-inf")]], "yes", [[[1, 1]]]]
)
def test_attend_of_another_shape_is_refused(attend: object) -> None:
    with pytest.raises(OptionError, match=r"attend .* shape \[1, 2\]\.$"):
        toy().raw_logits([[1, 2]], attend)


def test_rows_may_be_tensors_of_any_integer_dtype() -> None:
    model, ids = toy(), [[1, 2, 3]]
    expected = model.raw_logits(ids, [[0, 1, 1]])
    tokens, attend = torch.tensor(ids, dtype=torch.int32), torch.tensor([[False, True, True]])
    assert torch.equal(model.raw_logits(tokens, attend), expected)


def test_toy_implements_the_model_protocol() -> None:
    model: Model = toy()
    assert isinstance(model, Transformer)
