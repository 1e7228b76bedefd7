"""Mixture of experts: the routers' choices, and every way to compute the chosen experts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from wavefront.models import experts
from wavefront.models.architecture import ExpertLayout
from wavefront.models.experts import ExpertWeights, Router
from wavefront.models.layer import MixtureOfExperts
from wavefront.models.loader import load_model, save_checkpoint
from wavefront.models.toy import toy
from wavefront.models.transformer import Transformer
from wavefront.storage.checkpoint import open_checkpoint

GOLDEN = Path(__file__).parents[1] / "golden"
WAYS = {
    "all": experts.all_experts,
    "grouped": experts.grouped_experts,
    "padded": experts.padded_experts,
}
FAMILIES = ("llada2", "llada_moe", "sdar_moe")


@pytest.fixture(autouse=True)
def without_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def random_weights(count: int = 6, dtype: torch.dtype = torch.float64) -> ExpertWeights:
    layout = ExpertLayout(count=count, per_token=2, width=32, router="softmax")
    weights = ExpertWeights(16, layout).to(dtype)
    generator = torch.Generator().manual_seed(0)
    for parameter in weights.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return weights


def router_cases() -> list[Any]:
    found: list[Any] = []
    for folder in FAMILIES:
        cases = json.loads((GOLDEN / folder / "cases.json").read_text())
        forward = {case["id"]: case for case in cases["forward"]}
        for entry in cases["router"]:
            case = forward[entry["forward_id"]]
            name = f"{folder}-{entry['forward_id']}-{entry['layer']}"
            found.append(pytest.param(folder, cases["models"], case, entry, id=name))
    return found


@pytest.mark.parametrize(("folder", "models", "case", "entry"), router_cases())
def test_router_chooses_the_published_experts(
    folder: str, models: dict[str, Any], case: dict[str, Any], entry: dict[str, Any]
) -> None:
    block_size = case.get("block_length")
    model = load_model(
        GOLDEN / folder / case["model"],
        device="cpu",
        mask_id=models[case["model"]]["mask_id"],
        block_size=block_size,
    )
    assert isinstance(model, Transformer)
    mixture = model.layers[entry["layer"]].mlp
    assert isinstance(mixture, MixtureOfExperts)
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []
    mixture.router.register_forward_hook(lambda _, __, found: seen.append(found))
    tokens = torch.tensor(case["input_ids"])
    attend = case.get("attention_mask")
    model(tokens, None if attend is None else torch.tensor(attend).bool())
    weights, chosen = (part.unflatten(0, tokens.shape) for part in seen[0])
    for token in entry["tokens"]:
        at = (token["row"], token["position"])
        order = weights[at].argsort(descending=True)
        assert chosen[at][order].tolist() == token["experts"]
        torch.testing.assert_close(
            weights[at][order], torch.tensor(token["weights"]), rtol=0, atol=1e-4
        )


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("rows", [1, 5, 150])
def test_every_way_computes_the_same_experts(way: str, rows: int) -> None:
    if way == "grouped" and experts.grouped_product is None:
        pytest.skip("this version of torch has no grouped product")
    weights, generator = random_weights(), torch.Generator().manual_seed(rows)
    x = torch.randn((rows, 16), generator=generator, dtype=torch.float64)
    # Expert 4 is never chosen, so its group is empty.
    chosen = torch.stack([torch.randperm(4, generator=generator)[:2] for _ in range(rows)])
    chosen[0, 0] = 5
    expected = torch.stack(
        [
            torch.stack([weights.down[e] @ gated(weights.gate_up[e] @ row) for e in wanted])
            for row, wanted in zip(x, chosen.tolist(), strict=True)
        ]
    )
    if way == "grouped":  # torch's grouped product has no float64
        weights, x = weights.float(), x.float()
    tolerance = {"rtol": 1e-4, "atol": 1e-3} if way == "grouped" else {}
    for function in (WAYS[way], experts.looped_experts):
        outputs = function(weights, x, chosen)
        assert outputs.shape == (rows, 2, 16)
        torch.testing.assert_close(outputs.double(), expected, **tolerance)


def gated(gate_up: torch.Tensor) -> torch.Tensor:
    gate, up = gate_up.chunk(2)
    return torch.nn.functional.silu(gate) * up


def test_other_positions_do_not_change_the_bits_of_an_expert() -> None:
    weights = random_weights(dtype=torch.float32)
    x = torch.randn((40, 16), generator=torch.Generator().manual_seed(1))
    chosen = torch.tensor([[0, 1]]).expand(40, -1)
    together = experts.looped_experts(weights, x, chosen)
    for count in (1, 3, 17):
        alone = experts.looped_experts(weights, x[:count], chosen[:count])
        assert torch.equal(alone, together[:count])


def test_router_keeps_its_bias_in_float32(tmp_path: Path) -> None:
    model = toy(family="llada2", dtype="bf16")
    mixture = model.layers[1].mlp
    assert isinstance(mixture, MixtureOfExperts)
    bias = mixture.router.expert_bias
    assert bias is not None
    bias.copy_(torch.linspace(-1, 1, 8) + 1e-5)
    save_checkpoint(model, tmp_path)
    name = "model.layers.1.mlp.gate.expert_bias"
    assert open_checkpoint(tmp_path).entries[name].dtype == "F32"
    again = load_model(tmp_path, device="cpu", dtype="bf16")
    assert isinstance(again, Transformer)
    assert torch.equal(again.published_weights()[name], bias)
    assert torch.equal(again.to(torch.float16).published_weights()[name], bias)


def test_only_experts_of_the_best_groups_are_chosen() -> None:
    """The single best expert is in a group whose two best together score least."""
    layout = ExpertLayout(
        count=6, per_token=2, width=8, router="grouped_sigmoid", groups=3, kept_groups=2, scale=2.0
    )
    router = Router(6, layout)
    router.weight.copy_(torch.eye(6))
    logits = torch.tensor([[3.0, -9.0, 1.0, 1.5, 2.0, 0.5]])
    weights, chosen = router(logits)
    assert chosen.tolist() == [[4, 3]]
    scores = torch.tensor([2.0, 1.5]).sigmoid()
    torch.testing.assert_close(weights, (2.0 * scores / scores.sum())[None])


def test_bias_changes_the_choice_but_not_the_weights() -> None:
    layout = ExpertLayout(count=4, per_token=1, width=8, router="grouped_sigmoid")
    router = Router(4, layout)
    router.weight.copy_(torch.eye(4))
    assert router.expert_bias is not None
    router.expert_bias[2] = 5.0
    weights, chosen = router(torch.tensor([[1.0, 0.0, -1.0, 0.0]]))
    assert chosen.tolist() == [[2]]
    torch.testing.assert_close(weights, torch.tensor([[-1.0]]).sigmoid())
