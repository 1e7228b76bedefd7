"""What only a GPU can show. Run with `pytest -m gpu`, or `python tests/gpu/test_cuda.py` alone.

Nothing here imports pytest, so that it also runs where only torch is installed.
"""

from __future__ import annotations

import itertools
import sys

import torch

import wavefront
from wavefront.core import noise, spec
from wavefront.core.canvas import blank
from wavefront.core.errors import NumericalError
from wavefront.core.masks import distance, first, near, rank, smallest
from wavefront.core.state import start
from wavefront.engine.batcher import Batcher, CapturedBatchers, Kind, Request
from wavefront.engine.cuda_graphs import Graphs, run_eagerly
from wavefront.engine.options import plan
from wavefront.engine.session import begin, source
from wavefront.kernels.compile import compile_model
from wavefront.models.toy import toy

SPECS = (
    "standard",
    "block(size=4)",
    "wavefront",
    "wavefront(grow='accumulate')",
    "left_to_right",
    "standard(selector=dream())",
    "standard(selector=origin())",
    "block(size=4, selector=factor())",
    "block(size=4, selector=local_leap())",
    "wavefront(selector=entropy_bound(gamma=0.1))",
    "adablock(size=4, delimiters=(7, 8))",
    "dsb(size=6)",
    "dcd(masks=4)",
    "rcr(size=8)",
    "tbd(size=8, drop=2, min_kept=2)",
    "tide(cascade_rounds=3, horizon=6, selector=threshold(tau=0.3))",
    "tide(density_sigma=3.0, patience=3, revisable_band=4, remask_below=0.5, "
    "distance_temperatures=(1.0, 1.3), selector=threshold(tau=0.3))",
)
PROMPTS = [[5, 6, 7], [8, 9, 10, 11, 12], [20]]


def on_both(family: str, **options):
    found = []
    for device in ("cpu", "cuda"):
        model = toy(family=family, device=device, dtype="float64")
        found.append(wavefront.generate_ids(model, PROMPTS, max_new_tokens=24, **options))
    return found


def test_every_strategy_decodes_as_on_the_cpu():
    for family, strategy in itertools.product(("llada", "dream"), SPECS):
        for extra in ({}, {"temperature": 0.9, "seed": 5}, {"steps": 6}, {"cfg_scale": 1.0}):
            if extra.get("steps") and ("block" in strategy or "tbd" in strategy):
                extra = {"steps": 12}
            cpu, cuda = on_both(family, strategy=strategy, **extra)
            assert cpu.tokens == cuda.tokens, (family, strategy, extra)
            assert cpu.order == cuda.order, (family, strategy, extra)


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
    for family, strategy in itertools.product(("llada", "dream"), SPECS):
        model = toy(family=family, device="cuda", dtype="float64")
        for extra in ({}, {"temperature": 0.9, "seed": 5}):
            made = [
                wavefront.generate_ids(
                    model, PROMPTS, max_new_tokens=24, strategy=strategy, speculate=draft, **extra
                )
                for draft in (0, 4)
            ]
            assert made[0].tokens == made[1].tokens, (family, strategy, extra)


def test_a_step_never_waits_for_the_device():
    """32 steps under sync-debug mode, for every strategy, stepwise and drafted."""
    for family, strategy, depth in itertools.product(("llada", "dream"), SPECS, (0, 3)):
        model = toy(family=family, device="cuda")
        options = {"max_new_tokens": 64, "strategy": strategy, "temperature": 0.5}
        session = begin(model, PROMPTS, options)
        config, length = session.plan.config, session.canvas.tokens.shape[1]
        batcher = Batcher(model, rows=3, length=length, updates=False)
        state = start(session.canvas, config, [64] * 3, [0] * 3)
        batcher.load(config, state, Kind(speculate=depth))
        batcher.step()
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            for _ in range(32):
                if batcher.busy:
                    batcher.step()
        finally:
            torch.cuda.set_sync_debug_mode("default")


CACHED = ("wave(refresh=4, size=20, near=2)", "dual(refresh=6)", "prefix(refresh=6)")
HORIZON = "tide(cascade_rounds=3, horizon=16, selector=threshold(tau=0.3))"


def walked(model, options, captured=None):
    """The answers, and of every step the tokens and the commits."""
    decoding = begin(model, PROMPTS, options, captured=captured)
    boards = [(step.canvas.tokens, step.decision.commit) for step in decoding]
    return decoding.answers(), [tuple(board.cpu() for board in pair) for pair in boards]


def parting(eager, made) -> str:
    """Where two walks first part: the step, the row, the place, and both tokens there."""
    for number, (one, two) in enumerate(zip(eager, made, strict=False)):
        for what, a, b in zip(("token", "commit"), one, two, strict=True):
            if not torch.equal(a, b):
                row, place = (a != b).nonzero()[0].tolist()
                values = f"{int(a[row, place])} eager, {int(b[row, place])} captured"
                return f"step {number}, row {row}, place {place}: {what} {values}"
    return f"{len(eager)} steps eager, {len(made)} captured"


def test_captured_steps_decode_as_eager_ones():
    """Every strategy, plain, under each cache and with a horizon: the same tokens, replayed."""
    found = []
    for family in ("llada", "dream"):
        model = toy(family=family, device="cuda", dtype="float64")
        captured = CapturedBatchers(model)
        for strategy, cache in itertools.product((*SPECS, HORIZON), (None, *CACHED)):
            options = {"max_new_tokens": 48, "strategy": strategy, "cache": cache, "seed": 3}
            if cache is not None and strategy not in (*SPECS[:5], HORIZON):
                continue
            answers, eager = walked(model, options)
            for use in ("captured", "used again"):
                again, made = walked(model, options, captured)
                if again != answers:
                    found.append(f"{family} {strategy} {cache}, {use}: {parting(eager, made)}")
    assert not found, "\n".join(["captured steps part from eager ones:", *found])


def test_compiled_steps_decode_as_eager_ones():
    """Blocks and the work around them compiled, and captured: in float64, the same tokens."""
    found = []
    for family, strategy, cache in (
        ("llada", "block(size=4)", None),
        ("llada", "wavefront", CACHED[0]),
        ("dream", "wavefront", CACHED[1]),
    ):
        options = {"max_new_tokens": 48, "strategy": strategy, "cache": cache, "seed": 3}
        model = toy(family=family, device="cuda", dtype="float64")
        answers, eager = walked(model, options)
        compile_model(model, dynamic=False)
        again, made = walked(model, options, CapturedBatchers(model))
        if again != answers:
            found.append(f"{family} {strategy} {cache}: {parting(eager, made)}")
    assert not found, "\n".join(["compiled steps part from eager ones:", *found])


def test_kernels_for_few_rows_compute_what_torch_computes():
    """A window against stored keys in bfloat16, compiled: near eager, and always the same."""
    cases = [("dream", 32, False, False), ("llada", 32, True, False), ("llada", 16, False, True)]
    for family, size, padded, dynamic in cases:
        plain, lean = (
            toy(family=family, device="cuda", dtype="bfloat16", width=512) for _ in range(2)
        )
        torch._dynamo.reset()
        compile_model(lean, dynamic=dynamic)
        assert all(block.use_small_batch_ops for block in lean.layers)
        places = torch.arange(300, device="cuda")[None]
        tokens, window = places % 60, places[:, 100 : 100 + size]
        attend = places >= 9 if padded else None

        @torch.no_grad()
        def step(model, tokens=tokens, attend=attend, window=window):
            kv = model.new_kv(1, 300)
            model.encode(tokens, attend, kv=kv)
            return model.encode(tokens.flip(1), attend, window=window, kv=kv)

        eager, made = step(plain), step(lean)
        truth = step(plain.float())
        errors = [(one - truth).square().mean().sqrt().item() for one in (eager, made)]
        print(f"few rows, {family}, window {size}: {errors[1]:.4f} off, eager {errors[0]:.4f}")
        assert errors[1] < 1.2 * errors[0]
        assert all(torch.equal(step(lean), made) for _ in range(50))


def test_counting_orders_as_sorting_does_on_the_device():
    """Compiled, places are ordered by counting: thousands of them, ties and NaN."""
    draw = torch.Generator().manual_seed(0)
    scores = torch.randint(0, 40, (8, 1152), generator=draw).float().cuda()
    scores[scores == 0] = float("nan")
    among, then = (torch.rand(8, 1152, generator=draw).cuda() < share for share in (0.1, 0.6))

    def every(scores, among, then):
        keys = distance(among).clamp(max=1152)
        return rank(scores, among, then), smallest(keys, 64), near(among, 16), first(then, 9)

    base = every(scores, among, then)
    made = torch.compile(every, dynamic=False, fullgraph=True)(scores, among, then)
    for one, two in zip(base, made, strict=True):
        assert torch.equal(one, two)


def test_a_cached_or_captured_step_never_waits_for_the_device():
    model = toy(device="cuda")
    for strategy, cache in itertools.product(("wavefront", "standard", HORIZON), (None, *CACHED)):
        for capture in (False, True):
            options = {"max_new_tokens": 64, "strategy": strategy, "cache": cache}
            decoding = begin(
                model, PROMPTS, options, captured=CapturedBatchers(model) if capture else None
            )
            for _ in range(24):  # every shape that is met has been captured by now
                next(decoding)
            torch.cuda.synchronize()
            torch.cuda.set_sync_debug_mode("error")
            try:
                for _ in range(16):
                    next(decoding)
            finally:
                torch.cuda.set_sync_debug_mode("default")


def test_requests_in_slots_get_what_they_get_alone():
    kinds = [
        ([5, 6, 7], {"max_new_tokens": 12, "strategy": "standard"}),
        ([8, 9], {"max_new_tokens": 20, "temperature": 0.7, "seed": 4}),
        ([3] * 5, {"max_new_tokens": 16, "strategy": "block(size=4)", "steps": 8}),
        ([9, 9, 9], {"max_new_tokens": 24, "strategy": "rcr(size=16)"}),
        ([2], {"max_new_tokens": 30, "strategy": HORIZON}),
    ]
    for call, cache in itertools.product((run_eagerly, None), (None, CACHED[0])):
        model = toy(device="cuda", dtype="float64")
        requests = []
        for ids, options in kinds:
            settled = plan(options, source(model))
            board = [*ids, *[model.mask_id] * settled.length]
            requests.append(Request(board, [n >= len(ids) for n in range(len(board))], settled))

        def serve(some, cache=cache, call=call, model=model):
            policy = cache and spec.resolve(cache, "caches")
            slots = Batcher(model, rows=3, length=40, cache=policy, call=call or Graphs())
            waiting, seats = list(some), []
            while waiting or slots.busy:
                while waiting and slots.free:
                    seats.append(slots.admit(waiting.pop(0)))
                slots.step()
            return [seat.tokens for seat in seats]

        together = serve(requests)
        alone = [serve([one])[0] for one in requests]
        same = sum(a == b for a, b in zip(together, alone, strict=True))
        print(f"slots, captured {call is None}, cache {cache}: {same}/{len(kinds)} as alone")
        assert same == len(kinds)


def test_a_thousand_requests_leave_the_memory_as_it_was():
    model = toy(device="cuda")
    slots = Batcher(model, rows=8, length=64, call=Graphs())
    settled = [
        plan({"max_new_tokens": n, "strategy": s}, source(model))
        for n, s in itertools.product((8, 16, 24), ("wavefront", "standard", "block(size=4)"))
    ]
    left, held = 1000, []
    while left or slots.busy:
        while left and slots.free:
            one = settled[left % len(settled)]
            board = [5 + left % 7, *[model.mask_id] * one.length]
            slots.admit(Request(board, [n > 0 for n in range(len(board))], one))
            left -= 1
        slots.step()
        if left % 100 == 0:
            held.append(torch.cuda.memory_allocated())
    print(f"memory held: {held[len(held) // 2]} in the middle, {held[-1]} at the end")
    assert held[-1] <= 1.05 * held[len(held) // 2]


def test_stopping_one_step_late_costs_one_forward_and_changes_nothing():
    model = toy(device="cuda", dtype="float64")
    kept = wavefront.generate_ids(model, [[5, 6, 7]], max_new_tokens=24, strategy="left_to_right")
    stop = kept.tokens[0][5]
    cut = kept.tokens[0].index(stop)
    ended = wavefront.generate_ids(
        model,
        [[5, 6, 7]],
        max_new_tokens=24,
        strategy="left_to_right",
        eos="stop",
        stop_ids=[stop],
    )
    assert ended.tokens[0][: cut + 1] == kept.tokens[0][: cut + 1]
    assert ended.forwards <= cut + 2


def test_a_reach_wider_than_the_guess_is_redone_on_the_device():
    narrow = spec.resolve("wavefront(size=2, radius=9)", "strategies")
    for family in ("llada", "dream"):
        cpu, cuda = on_both(family, strategy=narrow)
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
    import script

    sys.exit(script.run(globals()))
