"""What only a GPU can show. Run with `pytest -m gpu`, or `python tests/gpu/test_cuda.py` alone.

Nothing here imports pytest, so that it also runs where only torch is installed.
"""

from __future__ import annotations

import itertools

import torch

import wavefront
from wavefront import noise, spec
from wavefront.canvas import blank
from wavefront.decoding import begin
from wavefront.engine import advance
from wavefront.errors import NumericalError
from wavefront.masks import distance, first, rank
from wavefront.models.toy import toy
from wavefront.rows import start
from wavefront.speculate import speculate

SPECS = (
    "standard",
    "block(size=4)",
    "wavefront",
    "wavefront(grow='accumulate')",
    "left_to_right",
    "standard(take=dream())",
    "standard(take=origin())",
    "block(size=4, take=factor())",
    "block(size=4, take=local_leap())",
    "wavefront(take=entropy_bound(gamma=0.1))",
    "adablock(size=4, delimiters=(7, 8))",
    "dsb(size=6)",
    "dcd(masks=4)",
    "rcr(size=8)",
    "tbd(size=8, drop=2, least=2)",
    "tide(rounds=3, horizon=6, take=threshold(tau=0.3))",
    "tide(soft=3.0, patience=3, band=4, doubt=0.5, temper=(1.0, 1.3), take=threshold(tau=0.3))",
)
PROMPTS = [[5, 6, 7], [8, 9, 10, 11, 12], [20]]


def on_both(family: str, **options):
    found = []
    for device in ("cpu", "cuda"):
        model = toy(family=family, device=device, dtype="float64")
        found.append(wavefront.generate_ids(model, PROMPTS, max_new_tokens=24, **options))
    return found


def test_every_strategy_decodes_as_on_the_cpu():
    for family, schedule in itertools.product(("llada", "dream"), SPECS):
        for extra in ({}, {"temperature": 0.9, "seed": 5}, {"steps": 6}, {"cfg_scale": 1.0}):
            if extra.get("steps") and ("block" in schedule or "tbd" in schedule):
                extra = {"steps": 12}
            cpu, cuda = on_both(family, schedule=schedule, **extra)
            assert cpu.tokens == cuda.tokens, (family, schedule, extra)
            assert cpu.order == cuda.order, (family, schedule, extra)


def test_ties_break_to_the_left_on_the_device():
    scores = torch.randint(0, 3, (64, 2048), generator=torch.Generator().manual_seed(0)).float()
    scores[scores == 0] = float("nan")
    among = torch.rand(64, 2048, generator=torch.Generator().manual_seed(1)) < 0.5
    assert torch.equal(rank(scores, among), rank(scores.cuda(), among.cuda()).cpu())
    assert torch.equal(distance(among), distance(among.cuda()).cpu())
    assert torch.equal(first(among, 7), first(among.cuda(), 7).cpu())


def test_equal_logits_give_the_smallest_id_on_the_device():
    logits = torch.randint(0, 2, (512, 126464), device="cuda").to(torch.bfloat16)
    expected = (logits == 1).to(torch.int8).cpu().argmax(-1)
    assert torch.equal(logits.argmax(-1).cpu(), expected)
    assert torch.equal(logits.float().argmax(-1).cpu(), expected)


def test_noise_is_the_same_number_on_every_device():
    one = torch.tensor([3, 1 << 40])
    slot = torch.arange(10).expand(2, 10)
    cpu = noise.over_tokens(noise.key(one, one, slot, noise.TOKEN), 1000)
    cuda = noise.over_tokens(noise.key(one.cuda(), one.cuda(), slot.cuda(), noise.TOKEN), 1000)
    assert torch.equal(cpu, cuda.cpu())


def test_a_draft_decodes_as_without_on_the_device():
    for family, schedule in itertools.product(("llada", "dream"), SPECS):
        model = toy(family=family, device="cuda", dtype="float64")
        for extra in ({}, {"temperature": 0.9, "seed": 5}):
            made = [
                wavefront.generate_ids(
                    model, PROMPTS, max_new_tokens=24, schedule=schedule, draft=draft, **extra
                )
                for draft in (0, 4)
            ]
            assert made[0].tokens == made[1].tokens, (family, schedule, extra)


def test_a_step_never_waits_for_the_device():
    """32 steps under sync-debug mode, for every strategy, stepwise and drafted."""
    ways = (advance, speculate(3, 32))
    for family, schedule, run in itertools.product(("llada", "dream"), SPECS, ways):
        model = toy(family=family, device="cuda")
        options = {"max_new_tokens": 32, "schedule": schedule, "temperature": 0.5, "eos": "stop"}
        decoding = begin(model, PROMPTS, options)
        rows = start(decoding.canvas, decoding.plan.config, [32] * 3, [0] * 3)
        with torch.no_grad():
            rows, *_ = run(model, decoding.plan.config, rows, 32, True)
            torch.cuda.synchronize()
            torch.cuda.set_sync_debug_mode("error")
            try:
                for _ in range(31):
                    rows, *_ = run(model, decoding.plan.config, rows, 32, True)
            finally:
                torch.cuda.set_sync_debug_mode("default")


def test_stopping_one_step_late_costs_one_forward_and_changes_nothing():
    model = toy(device="cuda", dtype="float64")
    kept = wavefront.generate_ids(model, [[5, 6, 7]], max_new_tokens=24, schedule="left_to_right")
    stop = kept.tokens[0][5]
    cut = kept.tokens[0].index(stop)
    ended = wavefront.generate_ids(
        model,
        [[5, 6, 7]],
        max_new_tokens=24,
        schedule="left_to_right",
        eos="stop",
        stop_ids=[stop],
    )
    assert ended.tokens[0][: cut + 1] == kept.tokens[0][: cut + 1]
    assert ended.forwards <= cut + 2


def test_a_reach_wider_than_the_guess_is_redone_on_the_device():
    narrow = spec.resolve("wavefront(size=2, radius=9)", "schedules")
    for family in ("llada", "dream"):
        cpu, cuda = on_both(family, schedule=narrow)
        assert cpu.tokens == cuda.tokens


def test_nan_is_reported_with_its_step():
    model = toy(device="cuda")
    with torch.no_grad():
        model.embedding.weight[5] = float("nan")
    said = ""
    try:
        wavefront.generate_ids(model, PROMPTS, max_new_tokens=8)
    except NumericalError as error:
        said = str(error)
    assert "at step 1 of row" in said


def test_half_precision_runs_and_its_agreement_is_printed():
    reference = toy(device="cuda", dtype="float32")
    half = toy(device="cuda", dtype="bfloat16")
    pairs = [
        (wavefront.generate_ids(m, PROMPTS, max_new_tokens=24).tokens) for m in (reference, half)
    ]
    same = [a == b for x, y in zip(*pairs, strict=True) for a, b in zip(x, y, strict=True)]
    print(f"bf16 against float32, random toy: {sum(same)}/{len(same)} tokens agree")
    assert blank(PROMPTS, 2, mask_id=1, pad_id=0, device="cuda").tokens.is_cuda


if __name__ == "__main__":
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            test()
            print(f"ok  {name}", flush=True)
