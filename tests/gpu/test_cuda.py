"""What only a GPU can show. Run with `pytest -m gpu`, or `python tests/gpu/test_cuda.py` alone.

Nothing here imports pytest, so that it also runs where only torch is installed.
"""

from __future__ import annotations

import itertools
import logging
import statistics
import sys
import threading
import time

import torch

import wavefront
from wavefront.core import noise, spec
from wavefront.core.canvas import blank
from wavefront.core.errors import NumericalError
from wavefront.core.masks import distance, first, near, rank, smallest
from wavefront.core.reading import Reading, Sampling, read
from wavefront.core.state import start
from wavefront.engine.batcher import Batcher, CapturedBatchers, Kind, Request
from wavefront.engine.cuda_graphs import LOG, AutomaticGraphs, Graphs, run_eagerly
from wavefront.engine.options import plan
from wavefront.engine.session import begin, model_properties
from wavefront.kernels.compile import compile_model
from wavefront.models.toy import toy
from wavefront.text.byte_tokenizer import byte_tokenizer

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
    "blockwise(size=6, strategy=wavefront(size=3))",
    "edit(tau=0.2, extra_steps=3, selector=threshold(tau=0.3))",
    "block(size=8, selector=hierarchy(tau=0.4, low=0.2))",
    "block(size=8, selector=share())",
    "dcd(masks=4)",
    "rcr(size=8)",
    "tbd(size=8, drop=2, min_kept=2)",
    "tide(cascade_rounds=3, horizon=6, selector=threshold(tau=0.3))",
    "tide(cascade_rounds=0, horizon=0, revisable_band=4, remask_below=0.5, "
    "selector=threshold(tau=0.3))",
)
TIMED = ("test_default_settings_are_within_5_percent_of_a_captured_step",)  # see script.py
PROMPTS = [[5, 6, 7], [8, 9, 10, 11, 12], [20]]
BLOCK_SPECS = (
    "wavefront",
    "standard(selector=threshold(tau=0.3, floor=None))",
    "edit(tau=0.2, extra_steps=3, selector=threshold(tau=0.3))",
)


def on_both(family: str, **options):
    found = []
    for device in ("cpu", "cuda"):
        model = toy(family=family, device=device, dtype="float64")
        found.append(wavefront.generate_ids(model, PROMPTS, max_new_tokens=24, **options))
    return found


def test_block_causal_models_decode_the_same_on_both_with_the_cache_and_without() -> None:
    """On CUDA the flags are one step late, so a cached step always computes two blocks."""
    for family, strategy in itertools.product(("sdar", "fast_dllm_v2"), BLOCK_SPECS):
        options = {"strategy": strategy, "eos": "keep"}
        cpu, cuda = on_both(family, **options)
        assert cpu.tokens == cuda.tokens, (family, strategy)
        model = toy(family=family, device="cuda", dtype="float64")
        plain = wavefront.generate_ids(model, PROMPTS, max_new_tokens=24, cache="none", **options)
        assert plain.tokens == cuda.tokens, (family, strategy)
        captured = CapturedBatchers(model)
        for _ in range(2):  # the second decode replays what the first one captured
            given = {"max_new_tokens": 24, **options}
            session = begin(model, PROMPTS, given, captured=captured).drain()
            assert session.answers() == cuda.tokens, (family, strategy)


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
    cpu = noise.over_tokens(noise.key(one, one, slot, stream=noise.TOKEN), 1000)
    cuda = noise.over_tokens(
        noise.key(one.cuda(), one.cuda(), slot.cuda(), stream=noise.TOKEN), 1000
    )
    assert torch.equal(cpu, cuda.cpu())


def test_speculation_gives_the_same_tokens_on_the_device():
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
        state = start(session.canvas, config, [64] * 3, seeds=[0] * 3)
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


def test_logprobs_and_logit_bias_never_wait_for_the_device():
    """The same, with log-probabilities kept by a session and rows that have a bias."""
    options = {"max_new_tokens": 64, "logprobs": 5, "logit_bias": {3: 2.0, 9: -4.0}, "eos": "keep"}
    for speculate in (0, 3):
        model = toy(device="cuda")
        session = begin(model, PROMPTS, {**options, "speculate": speculate})
        next(session)
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            for _ in zip(range(16), session, strict=False):
                pass
        finally:
            torch.cuda.set_sync_debug_mode("default")
        here = begin(toy(), PROMPTS, {**options, "speculate": speculate}).drain()
        assert [len(row) for row in session.drain().commits()] == [
            len(row) for row in here.commits()
        ]


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


def test_default_settings_capture_steps_and_decode_as_eager_ones():
    """`LM` without flags: captured at the second use, the same tokens, nothing in the log."""
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    LOG.addHandler(handler)
    try:
        model = toy(vocab_size=258, device="cuda", dtype="float64")
        default = wavefront.LM(model, byte_tokenizer())
        eager = wavefront.LM(model, byte_tokenizer(), cuda_graphs=False)
        assert default.captured is not None
        assert eager.captured is None
        for options in ({}, {"speed": "balanced"}, {"speed": "fast"}, {"strategy": HORIZON}):
            given = {"max_new_tokens": 96, "eos": "keep", **options}
            for prompts in (["Once"], ["Once", "Twice upon a time"]):
                expected = [one.tokens for one in eager.generate(prompts, **given)]
                for _ in range(2):
                    made = [one.tokens for one in default.generate(prompts, **given)]
                    assert made == expected, (options, prompts)
        calls = [batcher._call for batcher in default.captured._kept.values()]
        assert calls
        graphs = [call for call in calls if isinstance(call, AutomaticGraphs)]
        assert len(graphs) == len(calls)
        assert all(one._graphs and not one._failed for one in graphs)
        assert not [line for line in lines if "CUDA graphs are off" in line]
    finally:
        LOG.removeHandler(handler)


def test_step_that_cannot_be_captured_runs_directly():
    """A model that waits for the device: the decode continues, and the log says why."""
    model = toy(vocab_size=258, device="cuda", dtype="float64")
    expected = wavefront.LM(model, byte_tokenizer(), cuda_graphs=False).generate("Once")
    plain = model.hidden

    def waiting(tokens, *rest, **more):
        tokens.sum().item()
        return plain(tokens, *rest, **more)

    model.hidden = waiting
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    LOG.addHandler(handler)
    try:
        lm = wavefront.LM(model, byte_tokenizer())
        for _ in range(2):
            assert lm.generate("Once").tokens == expected.tokens
    finally:
        LOG.removeHandler(handler)
    assert sum("CUDA graphs are off" in line for line in lines) == 1, lines
    # The failed capture leaves no traces: stream, generator and device are as before.
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    assert torch.randn(4, device="cuda").isfinite().all().item()
    assert (
        wavefront.LM(toy(vocab_size=258, device="cuda"), byte_tokenizer()).generate("Once").tokens
    )


def test_model_on_another_device_than_the_current_one_is_captured():
    if torch.cuda.device_count() < 2:
        print("one GPU: not shown")
        return
    torch.cuda.set_device(0)
    for device in ("cuda:0", "cuda:1"):
        model = toy(vocab_size=258, device=device, dtype="float64")
        expected = wavefront.LM(model, byte_tokenizer(), cuda_graphs=False).generate("Once")
        lm = wavefront.LM(model, byte_tokenizer(), cuda_graphs=True)
        assert lm.generate("Once").tokens == expected.tokens
    assert torch.cuda.current_device() == 0


def test_capture_does_not_disturb_other_threads():
    """Another thread allocates and computes on the device while steps are captured.

    It uses its own random generator: torch reserves the default one during a capture.
    """
    model = toy(vocab_size=258, device="cuda", dtype="float64")
    expected = wavefront.LM(model, byte_tokenizer(), cuda_graphs=False).generate("Once")
    end, errors = threading.Event(), []

    def work():
        stream, source = torch.cuda.Stream(), torch.Generator(device="cuda")
        try:
            with torch.cuda.stream(stream):
                while not end.is_set():
                    torch.randn(1 << 16, device="cuda", generator=source).sum().item()
                    torch.empty(1 << 16, pin_memory=True)
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for _ in range(5):  # every model captures its own steps
            lm = wavefront.LM(model, byte_tokenizer(), cuda_graphs=True)
            assert lm.generate("Once").tokens == expected.tokens
    finally:
        end.set()
        thread.join()
    assert not errors, errors


def test_default_settings_are_within_5_percent_of_a_captured_step():
    """A model whose launches dominate: default against captured, after warm-up, in turns."""
    model = toy(vocab_size=1024, width=512, layers=8, device="cuda", dtype="bfloat16")
    prompt, given = [[5, 6, 7]], {"max_new_tokens": 253, "eos": "keep"}
    ways = {
        "default": CapturedBatchers(model, graphs=AutomaticGraphs),
        "captured": CapturedBatchers(model, graphs=Graphs),
        "eager": None,
    }
    for speed in ("exact", "fast"):
        times = {name: [] for name in ways}
        for _ in range(7):
            for name, captured in ways.items():
                torch.cuda.synchronize()
                began = time.monotonic()
                begin(model, prompt, {**given, "speed": speed}, captured=captured).drain()
                torch.cuda.synchronize()
                times[name].append((time.monotonic() - began) / 253 * 1000)
        middle = {name: statistics.median(found[2:]) for name, found in times.items()}
        first = times["default"][0] * 253 / 1000
        print(f"{speed}: {middle} ms per step; first decode {first:.2f} s with its warm-up")
        assert middle["default"] < 1.05 * middle["captured"], middle
        assert first < 20


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


def test_compiled_statistics_of_a_large_vocabulary_equal_eager_ones():
    """They are computed in parts; equal logits give the smallest id."""
    size, own = 126464, torch.zeros((1, 24), dtype=torch.long, device="cuda")
    draw = torch.Generator().manual_seed(0)
    logits = torch.randn(24, size, generator=draw).bfloat16().cuda()
    logits[8:16] = logits[8:16].round()  # many equal maxima
    given = {"vocab_size": size, "mask_id": 126336, "sampling": Sampling(), "needs": ()}

    def statistics_of(logits: torch.Tensor) -> Reading:
        return read(lambda chunk: logits[chunk], None, own, **given)

    eager = statistics_of(logits)
    made = torch.compile(statistics_of, dynamic=False)(logits)
    assert torch.equal(made.proposal, eager.proposal)
    assert torch.equal(made.bad, eager.bad)
    torch.testing.assert_close(made.logp, eager.logp, rtol=1e-5, atol=1e-5)


def test_kernels_for_few_rows_equal_torch():
    """A window against stored keys in bfloat16, compiled: near eager, and always the same."""
    cases = [("dream", 32, False, False), ("llada", 32, True, False), ("llada", 16, False, True)]
    for family, size, padded, dynamic in cases:
        plain, lean = (
            toy(family=family, device="cuda", dtype="bfloat16", width=512) for _ in range(2)
        )
        for block in plain.layers:
            block.use_small_batch_ops = False
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
            options = {"max_new_tokens": 64, "strategy": strategy, "cache": cache, "eos": "keep"}
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


def test_requests_in_a_batch_get_the_same_tokens_as_alone():
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
            settled = plan(options, model_properties(model))
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
        plan({"max_new_tokens": n, "strategy": s}, model_properties(model))
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


def test_a_step_with_more_candidates_than_expected_repeats_on_the_device():
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
