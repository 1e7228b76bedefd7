"""Every golden case without sampling matches the published samplers token for token."""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path

import pytest
import torch

import wavefront
from wavefront.core import budget

pytestmark = pytest.mark.whole
GOLDEN = Path(__file__).parents[1] / "golden"
CASES = json.loads((GOLDEN / "cases.json").read_text())


@cache
def model(name: str):
    return wavefront.load_model(GOLDEN / name, dtype="float32", device="cpu")


def stop_ids(name: str) -> list[int]:
    ids = CASES["models"][name]
    return [ids[key] for key in ("eos_id", "eot_id") if key in ids]


def rows_of(case) -> list[list[int]]:
    """Return the prompts without the padding of the fixtures; our code pads them itself."""
    marks = case["attention_mask"] or [[1] * len(row) for row in case["prompt"]]
    return [
        [token for token, real in zip(row, mark, strict=True) if real]
        for row, mark in zip(case["prompt"], marks, strict=True)
    ]


def decode(case, name: str, **changes):
    options = {**case["params"], "stop_ids": stop_ids(name), **changes}
    if not (options.get("logits_eos_inf") or options.get("confidence_eos_eot_inf")):
        options["eos"] = "keep"  # the published samplers fill the canvas
    return wavefront.generate_ids(model(case["model"]), rows_of(case), **options)


SAMPLED = [*CASES["llada_generate"], *CASES["dream_generate"]]


def named(case) -> str:
    return case["id"]


@pytest.mark.parametrize("case", SAMPLED, ids=named)
def test_decode_matches_the_published_sampler(case):
    found = decode(case, case["model"], fixed_budget=True)
    expected = case["expected"]
    width = len(case["prompt"][0])
    assert found.tokens == [row[width:] for row in expected["sequences"]]
    assert found.forwards == expected["num_forward"]
    for index, (row, prompt) in enumerate(zip(found.order, rows_of(case), strict=True)):
        padding = width - len(prompt)
        published = [
            [place - padding for place in step["rows"][index]["positions"]]
            for step in expected["trace"]
        ]
        assert row == published


@pytest.mark.slow
@pytest.mark.parametrize("case", SAMPLED, ids=named)
def test_skipped_forward_passes_change_nothing(case):
    """Without a fixed budget, steps with a zero quota are skipped, with the same tokens."""
    paid = decode(case, case["model"], fixed_budget=True)
    saved = decode(case, case["model"])
    assert saved.tokens == paid.tokens
    busy = [any(row[step] for row in paid.order) for step in range(paid.forwards)]
    assert saved.forwards == sum(busy)


@pytest.mark.parametrize("case", CASES["dream_generate"][:6], ids=named)
def test_sharded_checkpoint_decodes_the_same(case):
    sharded = wavefront.generate_ids(model("dream-tiny-sharded"), rows_of(case), **case["params"])
    assert sharded.tokens == decode(case, "dream-tiny").tokens


@pytest.mark.parametrize("case", CASES["edge_cases"], ids=named)
def test_mask_id_in_the_prompt_is_a_normal_token(case):
    """We differ from the published code on purpose: we never change a prompt.

    LLaDA lets such positions compete without counting them, so its answer can end with masks. Dream
    fills them. Our answer is always complete.
    """
    found = decode(case, case["model"], trace=True)
    mask_id = CASES["models"][case["model"]]["mask_id"]
    length = case["params"].get("gen_length") or case["params"]["max_new_tokens"]
    assert mask_id in case["prompt"][0]
    assert len(found.tokens[0]) == length
    assert mask_id not in found.tokens[0]
    first = torch.tensor(case["prompt"])
    assert torch.equal(found.trace.first.tokens[:, : first.shape[1]], first)
    committed = sorted(place for step in found.order[0] for place in step)
    assert committed == list(range(first.shape[1], first.shape[1] + length))


@pytest.mark.parametrize("case", CASES["schedules"]["llada"], ids=str)
def test_llada_commit_counts_match(case):
    n, steps = case["num_masked"], case["steps"]
    assert [budget.even(n, steps, step) for step in range(steps)] == case["counts"]
    step = torch.arange(steps)
    found = budget.even(torch.full_like(step, n), torch.full_like(step, steps), step)
    assert found.tolist() == case["counts"]


@pytest.mark.parametrize("case", CASES["schedules"]["dream"], ids=str)
def test_dream_commit_counts_match(case):
    eps = case.get("eps", 1e-3)
    assert list(budget.dream_plan(case["num_masked"], case["steps"], eps)) == case["counts"]


def test_dream_commit_counts_match_at_any_size():
    """Compare with the published arithmetic: a float32 linspace, a ratio, a truncation."""
    rng = random.Random(0)
    for _ in range(60):
        n, steps = rng.randint(1, 1100), rng.randint(1, 600)
        eps = rng.choice((1e-3, 1e-5, 0.1))
        times = torch.linspace(1, eps, steps + 1)
        left, counts = n, []
        for step in range(steps):
            share = 1 - times[step + 1] / times[step] if step < steps - 1 else 1
            counts.append(int(left * share))
            left -= counts[-1]
        assert list(budget.dream_plan(n, steps, eps)) == counts, (n, steps, eps)
