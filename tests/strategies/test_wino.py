"""WINO: its published rule, and the masked copies at which committed tokens are tested."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import wavefront
from wavefront.bench.block_reference import BlockReference
from wavefront.core.errors import OptionError
from wavefront.engine.session import begin
from wavefront.models.toy import toy


def model_of(seed: int, **more: Any) -> Any:
    return toy(seed=seed, dtype="float64", **more)


def logits_with_copies(model: Any, tokens: Tensor, start: int, size: int) -> tuple[Tensor, Tensor]:
    """Return the logits of a row, and those of masked copies of a block, from a plain forward."""
    length = tokens.shape[1]
    block = torch.arange(start, start + size)
    positions = torch.cat((torch.arange(length), block))
    allowed = torch.ones((length + size, length + size), dtype=torch.bool)
    allowed[:length, length:] = False
    allowed[length + torch.arange(size), block] = False
    reference = BlockReference(model)
    pairs = torch.arange(0, model.config.rotary_dim, 2, dtype=torch.float64)
    angles = torch.outer(
        positions.double(), 1 / model.config.theta ** (pairs / model.config.rotary_dim)
    )
    angles = torch.cat((angles, angles), -1)[None, None]
    reference._angles = lambda start, count, like: (angles.sin(), angles.cos())
    longer = torch.cat((tokens, torch.full((1, size), model.mask_id)), 1)
    mask = torch.zeros(allowed.shape, dtype=torch.float64).masked_fill(~allowed, float("-inf"))
    with torch.no_grad():
        logits = reference(longer, mask=mask[None, None])[0][0]
    return logits[:length], logits[length:]


def published(model: Any, prompt: list[int], count: int, *, size: int, tau: float, keep: float):
    """Decode as the published description says; return the tokens and the number of passes.

    The one change is the bound on what a step takes back: fewer tokens than it commits.
    """
    tokens, passes = torch.tensor([[*prompt, *[model.mask_id] * count]]), 0
    for start in range(len(prompt), len(prompt) + count, size):
        while (tokens[0, start : start + size] == model.mask_id).any():
            passes += 1
            assert passes <= 2 * count
            real, copies = logits_with_copies(model, tokens, start, size)
            part = tokens[0, start : start + size]
            masked = part == model.mask_id
            allowed = real[start : start + size].clone()
            allowed[:, model.mask_id] = float("-inf")  # the published loop would not end if it won
            best = allowed.argmax(-1)
            sure = real[start : start + size].softmax(-1).gather(1, best[:, None])[:, 0]
            sure = torch.where(masked, sure, -1.0)
            accept = sure > tau
            most = min(max(int(int(masked.sum()) * 0.7), 5), 20)
            if int(accept.sum()) > most or not accept.any():
                accept = torch.zeros_like(masked)
                accept[sure.topk(most if (sure > tau).any() else 1).indices] = True
            kept = copies.softmax(-1).gather(1, part[:, None])[:, 0]
            kept = torch.where(masked, 2.0, kept)
            back, most = kept < keep, int(accept.sum()) - 1
            if int(back.sum()) > most:
                back = torch.zeros_like(back)
                back[kept.topk(most, largest=False).indices] = True
            part[accept] = best[accept]
            part[back] = model.mask_id
    return tokens[0, len(prompt) :].tolist(), passes


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("size", "tau", "keep"), [(16, 0.3, 0.9), (8, 0.2, 0.4), (24, 0.1, 0.99)])
def test_decodes_as_published(seed, size, tau, keep):
    model, prompt = model_of(seed, vocab_size=24), [5, 6, 7]
    expected, passes = published(model, prompt, 48, size=size, tau=tau, keep=keep)
    spec = f"wino(size={size}, keep={keep}, selector=threshold(tau={tau}))"
    found = wavefront.generate_ids(
        model, [prompt], strategy=spec, max_new_tokens=48, eos="keep", trace=True
    )
    assert found.tokens[0] == expected
    assert found.forwards == passes
    assert found.trace is not None


def test_takes_tokens_back():
    model = model_of(1, vocab_size=24)
    spec = "wino(size=16, keep=0.9, selector=threshold(tau=0.2))"
    options = {"strategy": spec, "max_new_tokens": 16, "eos": "keep"}
    remasked = [step.decision.remask for step in begin(model, [[5, 6, 7]], options)]
    assert any(mask is not None and bool(mask.any()) for mask in remasked)


def test_copy_sees_everything_but_its_own_token():
    model = model_of(0, layers=1)  # with more layers, others pass on what they saw
    tokens = torch.tensor([[5, 6, 7, 8, 9, 10]])
    at = torch.tensor([[2, 3, 4]])
    copies = torch.tensor([[True, True, False]])
    with torch.no_grad():
        found = model.head(model.hidden(tokens, None, at, copies=copies))[0]
        for position in (2, 3):  # its own token does not matter, another one does
            changed = tokens.clone()
            changed[0, position] = 20
            other = model.head(model.hidden(changed, None, at, copies=copies))[0]
            torch.testing.assert_close(other[position - 2], found[position - 2])
            assert not torch.allclose(other[3 - position], found[3 - position])
        plain = model.head(model.hidden(tokens, None, at))[0]
    torch.testing.assert_close(found[2], plain[2])  # no position attends to a copy


@pytest.mark.parametrize("family", ["sdar", "llada2"])
def test_works_inside_the_blocks_of_a_block_causal_model(family):
    model = toy(seed=3, family=family, dtype="float64")
    options: dict[str, Any] = {"max_new_tokens": 14, "eos": "keep"}
    options["strategy"] = "wino(size=4, selector=threshold(tau=0.1))"
    cached = wavefront.generate_ids(model, [[5, 6, 7]], **options)
    plain = wavefront.generate_ids(model, [[5, 6, 7]], cache="none", **options)
    assert cached.tokens == plain.tokens
    assert cached.order == plain.order
    assert model.mask_id not in cached.tokens[0]


@pytest.mark.parametrize("family", ["dream", "fast_dllm_v2"])
def test_models_with_shifted_outputs_are_refused(family):
    said = (
        rf"^wino\(size=128, keep=0\.9\) reads .* masked copies, which models of family '{family}'"
    )
    with pytest.raises(OptionError, match=said) as caught:
        wavefront.generate_ids(toy(family=family), [[5]], strategy="wino", max_new_tokens=8)
    assert str(caught.value.value).startswith("wino(")
