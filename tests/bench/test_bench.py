"""The bench: reference loops, floors, timing, rows, targets and files."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest
import torch
from helpers.captured import Static
from helpers.commands import run
from rich.cells import cell_len
from rich.console import Console

import wavefront
from wavefront import bench
from wavefront.bench import profiler, reference_loops, roofline, workloads
from wavefront.bench.machine import DeviceLimits
from wavefront.bench.memory import peak_memory
from wavefront.bench.model_shapes import (
    LLADA_8B,
    SHAPES,
    quantized_twin,
    random_model,
    shape_lm,
    twin,
    write_sparse_checkpoint,
)
from wavefront.bench.reference_model import Reference
from wavefront.bench.results import DEFAULT, Row, Workload
from wavefront.bench.run import _overhead_notes as overhead_notes
from wavefront.bench.settings import FULL_ROWS
from wavefront.bench.step_rows import Stage, window_policy
from wavefront.bench.targets import at_least, at_most, targets
from wavefront.bench.text_decodes import decodes
from wavefront.bench.timing import summarise, time_in_turns, time_piece
from wavefront.bench.workloads import (
    Case,
    Cycle,
    Forward,
    Loop,
    Steps,
    new_batcher,
)
from wavefront.cli.bench import _show as show
from wavefront.core import spec
from wavefront.core.cache_policy import Cache
from wavefront.core.canvas import blank
from wavefront.core.errors import OptionError
from wavefront.core.masks import positions
from wavefront.engine import batcher
from wavefront.models.loader import find_family
from wavefront.models.quantize import KINDS, quantization_of
from wavefront.models.toy import toy
from wavefront.storage.checkpoint import open_checkpoint
from wavefront.text.tokenizer import prompt_ids

PROMPTS = [[5, 6, 7], [8, 9, 10], [20, 21, 22]]
SMALL = {
    "prompt_tokens": 16,
    "max_new_tokens": 64,
    "lengths": (64, 128),
    "batches": (1, 2),
    "repeats": 2,
}


def toy_without_mask(**options):
    """Build a toy model that never predicts the mask token, which only the loops could propose."""
    model = toy(dtype="float64", **options)
    with torch.no_grad():
        model.output.weight[model.mask_id] = 0
    return model


def tokens(model, count: int, prompts=PROMPTS):
    return blank(prompts, count, mask_id=model.mask_id, pad_id=model.pad_id, device="cpu").tokens


def run_to_end(steps, canvas, prompt_tokens: int) -> list[list[int]]:
    for _ in steps:
        pass
    return canvas[:, prompt_tokens:].tolist()


@pytest.mark.parametrize(("strategy", "block"), [("standard", None), ("block(size=8)", 8)])
@pytest.mark.parametrize("steps", [32, 16])
def test_llada_loop_equals_wavefront(strategy, block, steps):
    model = toy_without_mask()
    ours = wavefront.generate_ids(
        model, PROMPTS, max_new_tokens=32, steps=steps, strategy=strategy
    ).tokens
    canvas = tokens(model, 32)
    made = list(reference_loops.llada(Reference(model), canvas, 3, steps=steps, block=block))
    assert len(made) == steps
    assert canvas[:, 3:].tolist() == ours


@dataclass(frozen=True)
class ThisBlock(Cache):
    """Recompute only the block of the first masked position."""

    refresh: int = 8
    given: int = 3

    def positions_to_refresh(self, rows, candidates, stored):
        block = (positions(candidates) - self.given) // self.refresh
        here = torch.where(rows.canvas.masked, block, 1 << 30).amin(-1, keepdim=True)
        return (block == here) & (rows.canvas.slot >= 0)

    def window(self, width, length):
        return self.refresh


def test_dual_loop_equals_a_cache_that_computes_only_the_block():
    model = toy_without_mask()
    plan = bench_plan(model, "block(size=8)", 32)
    canvas = blank(PROMPTS, 32, mask_id=model.mask_id, pad_id=model.pad_id, device="cpu")
    steps = {"steps": [32] * 3, "seeds": [0] * 3}
    *_, last = batcher.decode(model, canvas, plan.config, cache=ThisBlock(), **steps)
    ours = last.canvas.tokens[:, 3:].tolist()
    theirs = canvas.tokens.clone()
    assert (
        run_to_end(reference_loops.dual(Reference(model), theirs, 3, steps=32, block=8), theirs, 3)
        == ours
    )
    # The dual cache approximates the loop without a cache, so the result differs.
    full = canvas.tokens.clone()
    assert run_to_end(
        reference_loops.llada(Reference(model), full, 3, steps=32, block=8), full, 3
    ) != (theirs[:, 3:].tolist())


def bench_plan(model, strategy: str, count: int):
    return Case(model, 3, count, 3, strategy).plan


def test_reference_model_gives_our_logits():
    for tied in (False, True):
        model = toy(dtype="float64", tied=tied)
        canvas = tokens(model, 8)
        with torch.no_grad():
            theirs = Reference(model)(canvas)[0]
        torch.testing.assert_close(theirs, model.raw_logits(canvas), rtol=1e-10, atol=1e-10)
    with pytest.raises(OptionError, match="family 'dream'"):
        Reference(toy(family="dream"))


@pytest.mark.slow
def test_llada_loop_equals_wavefront_on_a_trained_model():
    lm = wavefront.load("ripple", device="cpu")
    ids = prompt_ids(lm.tokenizer, "Sam has 3 bags of 4 figs and eats 2. How many are left?")
    for strategy, block in (("standard", None), ("block(size=32)", 32)):
        ours = wavefront.generate_ids(lm.model, [ids], max_new_tokens=64, strategy=strategy)
        canvas = tokens(lm.model, 64, [ids])
        steps = reference_loops.llada(Reference(lm.model), canvas, len(ids), steps=64, block=block)
        assert run_to_end(steps, canvas, len(ids)) == ours.tokens


def test_loops_refuse_unequal_blocks_or_steps():
    model = Reference(toy())
    for count, steps, block in ((32, 32, 5), (32, 5, 8), (32, 2, 8)):
        for loop in (reference_loops.llada, reference_loops.dual):
            with pytest.raises(OptionError, match="choose multiples"):
                next(loop(model, torch.zeros(1, 3 + count).long(), 3, steps=steps, block=block))


def test_floors_equal_a_calculation_by_hand():
    from wavefront.models.families.llada import Config

    arch = Config.from_json(LLADA_8B)
    layers = 32 * (4 * 4096**2 + 3 * 4096 * 12288)
    assert roofline.layer_weights(arch) == layers == 6_979_321_856
    head = 4096 * 126464
    full = roofline.full_step(arch, 1152, read=16, dtype=torch.bfloat16)
    attention = 4 * 1152**2 * 4096 * 32
    assert full.flops == 2 * layers * 1152 + attention + 2 * head * 16
    assert full.bytes == 2 * (layers + head)
    limits = DeviceLimits(782e12, 4.14e12)  # one H200
    assert full.floor(limits) == pytest.approx(21.5e-3, rel=0.005)
    part = roofline.window_step(arch, 1152, size=32, read=28, dtype=torch.bfloat16)
    assert part.bytes == 2 * (layers + head) + 2 * 2 * 32 * 1152 * 4096
    assert part.floor(limits) == pytest.approx(3.77e-3, rel=0.005)
    # Rows share the weights, but have their own keys, values and positions.
    many = roofline.window_step(arch, 1152, size=32, read=28, rows=8, dtype=torch.bfloat16)
    assert many.flops == 8 * part.flops
    assert many.bytes - part.bytes == 7 * 2 * 2 * 32 * 1152 * 4096


def test_exponents_and_quartiles():
    fit = bench.fit((1, 2, 4, 8), (3.0, 12.0, 48.0, 192.0))
    assert fit.exponent == pytest.approx(2)
    assert fit.scale == pytest.approx(3)
    assert fit.error == pytest.approx(0, abs=1e-9)
    assert bench.fit((1, 2, 4), (1.0, 2.0, 5.0)).error > 0
    with pytest.raises(OptionError, match="two sizes"):
        bench.fit((4, 4), (1.0, 1.0))
    found = summarise([5.0, 1.0, 2.0, 4.0, 3.0])
    assert (found.median, found.low, found.high, found.least, found.repeats) == (3, 2, 4, 1, 5)
    assert summarise([2.0])[:3] == (2, 2, 2)


def test_pieces_take_turns_and_ready_is_not_timed():
    now, seen = [0.0], []

    class Piece:
        def __init__(self, name: str, seconds: float) -> None:
            self.name, self.seconds = name, seconds
            self.ready_calls = 0

        def ready(self) -> None:
            now[0] += 100
            self.ready_calls += 1

        def __call__(self) -> int:
            seen.append(self.name)
            now[0] += self.seconds
            return 4

    pieces = {"a": Piece("a", 2.0), "b": Piece("b", 8.0)}
    cpu = torch.device("cpu")
    found = time_in_turns(cpu, pieces, repeats=2, warm_up=1, now=lambda: now[0])
    assert seen == ["a", "b", "b", "a", "a", "b"]
    assert pieces["a"].ready_calls == 3
    assert (found["a"].median, found["b"].median) == (0.5, 2.0)
    assert found["a"].repeats == 2
    assert time_piece(cpu, pieces["b"], lambda: now[0]) == 2.0


@pytest.mark.parametrize("captured", [False, True])
def test_workloads_run_real_steps_and_restart(captured, monkeypatch):
    if captured:
        monkeypatch.setattr(workloads, "call_for", lambda model, *, captured=True: Static())
    case = Case(toy(vocab_size=96, max_length=512), 16, 64)
    batch = new_batcher(case, window_policy(32, 1 << 20))
    for workload in (
        Steps(case, new_batcher(case), 40),
        Steps(case, batch, 40),
        Cycle(case, new_batcher(case, window_policy(32, 8)), 8),
        Loop(case, lambda x: reference_loops.llada(Reference(case.model), x, 16, steps=64), 40),
    ):
        assert [workload() for _ in range(3)] == [workload.count] * 3
    steps = Steps(case, new_batcher(case), 5)
    steps()
    (state,) = steps.batcher._groups.values()
    assert int(state.canvas.masked.sum()) == 64 - 5
    assert batch.active[0].steps_since_refresh > 2  # only windows after the full forward pass
    for size in (None, 32):
        assert Forward(case, 28, 3, size=size)() == 3
    stored = batch._kv.keys[0].fill_(torch.nan)
    assert Forward(case, 28, 3, size=32, kv=batch._kv)() == 3
    fresh = stored.isfinite().all(-1).all(1)[0].nonzero()[:, 0]
    assert fresh.tolist() == list(range(16, 48))  # only its window, in the cache of the steps


def test_only_read_positions_have_logits():
    case = Case(toy(max_length=512), 16, 64)  # its hidden size equals its vocabulary size
    ours = peak_memory(case.model, Steps(case, new_batcher(case), 1))
    reference = Reference(case.model)
    theirs = peak_memory(
        case.model, Loop(case, lambda x: reference_loops.llada(reference, x, 16, steps=64), 1)
    )
    assert (ours.logits, theirs.logits) == (case.read(), 80)
    assert theirs.largest >= 80 * 64 * 8  # a float64 softmax


def test_random_models_have_the_shape_and_twins_share_weights():
    small = {"d_model": 64, "n_layers": 2, "n_heads": 2, "n_kv_heads": 2, "mlp_hidden_size": 96}
    ids = {"vocab_size": 128, "embedding_size": 128, "mask_token_id": 120, "eos_token_id": 121}
    model = random_model("llada-8b-shape", device="cpu", **small, **ids, pad_token_id=121)
    assert model.dtype == torch.bfloat16
    assert 0.01 < float(model.embedding.weight.detach().float().std()) < 0.03
    assert float(model.final_norm.weight.detach().float().mean()) == 1
    other = twin(model)
    assert other.embedding.weight.data_ptr() == model.embedding.weight.data_ptr()
    canvas = tokens(model, 4)
    assert torch.equal(other.raw_logits(canvas), model.raw_logits(canvas))


def test_shapes_can_be_quantised():
    small = {"d_model": 64, "n_layers": 1, "n_heads": 2, "n_kv_heads": 2, "mlp_hidden_size": 96}
    ids = {"vocab_size": 512, "embedding_size": 512, "mask_token_id": 300, "eos_token_id": 301}
    lm = shape_lm("llada-8b-shape", quantize="int8", device="cpu", **small, **ids, pad_token_id=301)
    assert quantization_of(lm.model) == "int8"
    assert lm.generate("a", max_new_tokens=4, raw=True).forwards <= 4
    with pytest.raises(OptionError, match="There is no quantisation 'int5'"):
        shape_lm("llada-8b-shape", quantize="int5")


@pytest.mark.parametrize(
    ("name", "parameters", "block_size"),
    [
        ("llada-8b-shape", 8_015_581_184, None),
        ("dream-7b-shape", 7_615_616_512, None),
        ("sdar-8b-shape", 8_190_735_360, 4),
        ("llada2-mini-shape", 16_255_643_392, 32),
    ],
)
def test_shapes_are_those_of_published_models(
    name: str, parameters: int, block_size: int | None
) -> None:
    """Nothing is allocated: a model is built without memory."""
    family = find_family(SHAPES[name])
    model = family.Net(family.Config.from_json(SHAPES[name]))
    assert sum(part.numel() for part in model.published_weights().values()) == parameters
    assert model.block_size == block_size


def test_random_mixture_has_no_uninitialised_bias():
    small = {"hidden_size": 64, "num_hidden_layers": 2, "num_experts": 8, "head_dim": 16}
    small |= {"num_attention_heads": 2, "num_key_value_heads": 2, "moe_intermediate_size": 16}
    ids = {"vocab_size": 128, "mask_token_id": 120, "pad_token_id": 121}
    more = {"intermediate_size": 96, "num_experts_per_tok": 2, "n_group": 4, "topk_group": 2}
    model = random_model("llada2-mini-shape", device="cpu", **small, **ids, **more)
    (bias,) = model.buffers()
    assert bias.dtype == torch.float32
    assert not bias.any()
    assert model.raw_logits(tokens(model, 4)).isfinite().all()


@pytest.mark.parametrize("kind", KINDS)
def test_quantized_twins_compute_with_the_same_codes(kind):
    model = toy(vocab_size=96, width=128)
    lower = quantized_twin(model, kind)
    other, ids = twin(lower), tokens(model, 4)
    assert isinstance(model.output, torch.nn.Linear), "the model itself is unchanged"
    assert torch.equal(other.raw_logits(ids), lower.raw_logits(ids))
    assert not torch.equal(lower.raw_logits(ids), model.raw_logits(ids))
    pairs = zip(other.buffers(), lower.buffers(), strict=True)
    assert all(one.data_ptr() == two.data_ptr() for one, two in pairs)


def test_sparse_checkpoint_has_the_shape_and_takes_no_space(tmp_path):
    write_sparse_checkpoint("sdar-8b-shape", tmp_path)
    file = tmp_path / "model.safetensors"
    assert file.stat().st_size > 16e9
    assert file.stat().st_blocks * 512 < 1e6
    found = open_checkpoint(tmp_path).entries
    assert sum(math.prod(one.shape) for one in found.values()) == 8_190_735_360


def test_rows_that_need_a_gpu_are_left_out_elsewhere():
    usual = bench.Settings(model=toy(max_length=512), **SMALL).only
    assert "exact" in usual
    assert not {"default", "quantized", "strategies", "start"} & {*usual}


@pytest.mark.slow
def test_rows_are_chosen_by_their_text():
    model = toy(vocab_size=512, max_length=512)
    texts = ("window 32, int8 weights$", "^exact step, unquantised", "exact step, standard, batch")
    only = ("cached", "quantized", "strategies")
    report = bench.run(
        bench.Settings(model=model, name="toy", only=only, rows=texts, quick=True, **SMALL)
    )
    names = [row.name for row in report.rows]
    assert names == ["quantized-none", "quantized-int8-cached", "strategies-8-standard"]
    assert report.settings["rows"] == list(texts)


def test_adaptive_steps_end_with_their_decode():
    case = Case(toy(), 8, 32, 2, "standard(selector=threshold(tau=0.01))")
    steps = Steps(case, new_batcher(case), 32)
    for _ in range(2):
        steps.ready()
        assert 0 < steps() < 32


@pytest.fixture(scope="module")
def report() -> bench.Report:
    model = toy(vocab_size=512, max_length=512)
    only = tuple(name for name in FULL_ROWS if name not in ("text", "start"))
    return bench.run(bench.Settings(model=model, name="toy", only=only, quick=True, **SMALL))


@pytest.mark.slow
@pytest.mark.slow
def test_every_row_is_there_with_finite_numbers(report):
    names = [one.name for one in report.rows]
    for name in ("exact", "exact-forward", "llada", "llada-block", "cached-16", "cached-32"):
        assert name in names
    for name in ("cached-64", "cached-32-cycle", "dual", "batch-1", "batch-8", "end-to-end"):
        assert name in names
    for name in ("quantized-none", "quantized-fp8", "quantized-int8-cached", "strategies-8-tide"):
        assert name in names
    for one in report.rows:
        assert 0 < one.least <= one.low <= one.ms <= one.high < math.inf
    ours, theirs = report.find("exact"), report.find("llada")
    assert ours.ratio == pytest.approx(theirs.ms / ours.ms)
    assert 0 < ours.of_floor == pytest.approx(ours.floor_ms / ours.ms)
    assert theirs.floor_ms is None
    assert theirs.published_ms is None  # published times are of another machine
    eight = report.find("batch-8")
    assert eight.tokens_per_s == pytest.approx(8000 / eight.ms)
    assert report.limits["flops"] > 1e9
    assert report.limits["bandwidth"] > 1e8
    assert {(one.subject, one.against) for one in report.curves} == {
        (who, side) for who in ("exact", "cached") for side in ("length", "batch")
    }
    assert all(math.isfinite(one.fit.exponent) for one in report.curves)
    # The targets of steps hold for CUDA only.
    assert [(one.work, one.met) for one in report.targets] == [("memory", True)]
    assert report.about["torch"] == torch.__version__


@pytest.mark.slow
def test_report_is_read_back_from_its_file(report, tmp_path):
    file = tmp_path / "deep" / "bench.json"
    bench.save(report, file)
    assert bench.load(file) == report
    json.loads(file.read_text(), parse_constant=pytest.fail)


@pytest.mark.slow
def test_files_that_are_not_reports_are_refused(tmp_path, report):
    with pytest.raises(OptionError, match="cannot be read"):
        bench.load(tmp_path / "none.json")
    for text in ("", "[]", "{}", '{"format": 2, "rows": [{"nme": 1}]}', "3"):
        (tmp_path / "bad.json").write_text(text)
        with pytest.raises(OptionError, match="not a result of" if text else "not valid JSON"):
            bench.load(tmp_path / "bad.json")
    (tmp_path / "old.json").write_text(json.dumps(report.to_json() | {"format": 99}))
    with pytest.raises(OptionError, match="has format 99"):
        bench.load(tmp_path / "old.json")
    (tmp_path / "file").write_text("")
    with pytest.raises(OptionError, match="cannot be written"):
        bench.save(report, tmp_path / "file" / "x.json")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"only": ("exat",)}, "did you mean 'exact'"),
        ({"rows": ("step (",)}, "'step \\(' is not a regular expression"),
        ({"max_new_tokens": 33}, "multiple of 32"),
        ({"max_new_tokens": 0}, "at least 32"),
        ({"prompt_tokens": 500}, "between 1 and 512"),
        ({"lengths": (1024,)}, "between 64 and 512"),
        ({"batches": (0,)}, "at least 1"),
        ({"repeats": 0}, "at least 1"),
        ({"items": 0}, "at least 1"),
    ],
)
def test_invalid_settings_are_refused(change, said):
    with pytest.raises(OptionError, match=said):
        bench.Settings(model=toy(max_length=512), **(SMALL | change))


@pytest.mark.slow
def test_accuracies_are_added_to_their_configuration(tmp_path):
    model = toy(vocab_size=96, max_length=512)
    settings = bench.Settings(model=model, name="toy", only=("cached",), quick=True, **SMALL)
    file = tmp_path / "accuracy.json"
    # Another spelling of the same strategy and cache.
    cache = "wave(near=4, size=32)"
    entries = [{"strategy": "wavefront", "cache": cache, "right": 0.5}]
    file.write_text(json.dumps({"entries": entries}))
    report = bench.run(settings, accuracy=file)
    found = {one.name: one.accuracy for one in report.rows}
    assert found["cached-32"] == entries[0]
    assert found["cached-16"] is found["dual"] is None
    without = replace(report, rows=tuple(replace(one, accuracy=None) for one in report.rows))
    assert bench.add_accuracies(without, file) == report
    unknown = '{"entries": [{"strategy": "nothing", "cache": null}]}'
    for text, words in (("[]", "has no accuracies"), (unknown, "nothing"), ("x", "not valid JSON")):
        file.write_text(text)
        with pytest.raises(OptionError, match=words):
            bench.run(settings, accuracy=file)


def row(kind: str, ms: float, **more) -> Row:
    times = {"ms": ms, "low": ms, "high": ms, "least": ms, "repeats": 1}
    made = Row(kind=kind, what="", **times, **more)
    return replace(made, what=made.name)


def test_names_are_labels_of_typed_fields():
    names = {
        "exact": Workload(kind="exact"),
        "exact-eager": Workload(kind="exact", captured=False),
        "exact-default": Workload(kind="exact", variant=DEFAULT),
        "cached-32-default-cycle": Workload(
            kind="cached", window=32, work="cycle", variant=DEFAULT
        ),
        "exact-compiled-forward": Workload(kind="exact", work="forward", compiled=True),
        "llada": Workload(kind="exact", program="llada"),
        "llada-forward": Workload(kind="exact", program="llada", work="forward"),
        "llada-block": Workload(kind="exact", program="llada-block"),
        "cached-32": Workload(kind="cached", window=32),
        "cached-32-compiled-forward": Workload(
            kind="cached", window=32, work="forward", compiled=True
        ),
        "cached-32-cycle": Workload(kind="cached", window=32, work="cycle"),
        "dual": Workload(kind="cached", program="dual"),
        "batch-8-compiled": Workload(kind="batch", window=32, batch=8, compiled=True),
        "end-to-end": Workload(kind="end-to-end", work="decode", window=32),
        "end-to-end-llada": Workload(kind="end-to-end", work="decode", program="llada"),
        "memory-exact": Workload(kind="memory", captured=False, variant="exact"),
        "memory-llada": Workload(kind="memory", captured=False, program="llada"),
        "text-llada-block": Workload(kind="text", work="answer", program="llada-block"),
        "text-wave-defer": Workload(kind="text", work="answer", variant="wave-defer"),
    }
    assert {name: workload.name for name, workload in names.items()} == {n: n for n in names}


def test_default_settings_are_compared_with_the_captured_rows():
    rows = [
        row("exact", 100.0),
        row("exact", 80.0, compiled=True),
        row("exact", 130.0, captured=False),
        row("exact", 104.0, variant=DEFAULT),
        row("cached", 10.0, window=32, work="cycle"),
        row("cached", 11.0, window=32, work="cycle", variant=DEFAULT),
    ]
    found = {one.work: one for one in targets(rows, cuda=True) if "default" in one.work}
    assert found["default settings, exact"].found == pytest.approx(1.04)
    assert found["default settings, exact"].met
    assert not found["default settings, cached"].met
    assert not [one for one in targets(rows, cuda=False) if "default" in one.work]


RECORDED = Path(__file__).parents[2] / "docs" / "results" / "bench"


@pytest.mark.parametrize("name", ["numbers", "default", "start", "sdar", "llada2", "scaling"])
def test_recorded_reports_load_and_reach_the_same_targets(name):
    report = bench.load(RECORDED / f"{name}.json")
    stored = json.loads((RECORDED / f"{name}.json").read_text())
    assert [row.name for row in report.rows] == [entry["name"] for entry in stored["rows"]]
    published = stored["settings"].get("model") == "llada-8b-shape"
    again = targets(report.rows, cuda=True, published=published)
    assert [one for one in again if one.work != "memory"] == [
        one for one in report.targets if one.work != "memory"
    ]


def test_targets_compare_the_fastest_rows():
    compiled = {"compiled": True}
    cached = {"window": 32}
    assert (at_least("w", "t", 3.0, goal=4).short, at_least("w", "t", 4.0, goal=4).met) == (
        "25 % short",
        True,
    )
    assert (at_most("w", "t", 1.5, goal=1).short, at_most("w", "t", 1.0, goal=1).met) == (
        "50 % over",
        True,
    )
    rows = [
        row("exact", 30.0, floor_ms=21.0, ratio=1.3),
        row("exact", 26.0, floor_ms=21.0, ratio=1.5, **compiled),
        row("exact", 29.9, work="forward"),
        row("cached", 9.0, **cached),
        row("cached", 8.0, work="forward", **cached),
        row("cached", 6.06, reference="dual", ratio=50.0 / 6.06, **cached, **compiled),
        row("cached", 6.0, work="forward", **cached, **compiled),
        row("end-to-end", 10.0, work="decode", ratio=4.4),
        row("end-to-end", 7.0, work="decode", ratio=6.3, **compiled),
        row("exact", 41.0, program="llada", published_ms=40.4),
        row("cached", 50.0, program="dual", published_ms=37.1),
        row("batch", 5.0, batch=1, tokens_per_s=200.0),
        row("batch", 8.0, batch=8, tokens_per_s=1000.0),
    ]
    found = {(one.work, one.target): one for one in targets(rows, cuda=True)}
    # The faster of the two rows counts.
    assert found["exact step", "≥ 80 % of its floor"].met
    assert found["exact step", "≥ 1.4 × the LLaDA-style loop"].met
    # The published time of the loop counts if it is slower here: 37.1 / 6.06, not 50 / 6.06.
    assert not found["cached step", "≥ 7 × the dual-cache loop"].met
    assert found["batch 8, cached", "≥ 4 × the tokens/s of batch 1"].met
    assert found["strategy in a step, exact", "≤ 1 % of the forward"].met
    # Compiled rows are compared with compiled rows.
    assert found["strategy in a step, cached-32-compiled", "≤ 1 % of the forward"].met
    assert ("strategy in a step, cached-32", "≤ 1 % of the forward") not in found
    assert found["end to end", "≥ 6 × the LLaDA-style loop"].note == "end-to-end-compiled"
    assert found["llada, off by %", "within 10 % of the published 40.4 ms"].met
    off = found["dual, off by %", "within 10 % of the published 37.1 ms"]
    assert (off.met, round(off.found)) == (False, 35)
    answer = {"work": "answer", "variant": "cached-stop", "cache": "wave(refresh=32)"}
    text = row("text", 9.0, ratio=3.0, **answer)
    (missed,) = targets([*rows[:3], text], cuda=False)
    assert (missed.work, missed.met) == ("whole answer, cached wave", False)


def test_published_times_hold_for_one_machine_and_shape():
    settings = bench.Settings(model=toy(max_length=2048), name="llada-8b-shape")
    assert not settings.as_published
    assert (
        Stage(
            replace(settings, prompt_tokens=128, max_new_tokens=1024), DeviceLimits(1.0, 1.0)
        ).count
        == 1
    )


@pytest.mark.slow
def test_texts_equal_those_of_the_loops():
    name, model, lm = bench.load_model("toy", device="cpu")
    settings = bench.Settings(
        model=model,
        name=name,
        lm=lm,
        only=("text",),
        items=1,
        max_new_tokens=32,
        prompt_tokens=16,
    )
    found = {one.name: one for one in bench.run(settings).rows}
    same = "1 of 1 texts equal to those of LLaDA-style loop"
    assert found["text-standard-stop"].note.endswith(f"; {same}, standard")
    assert found["text-block-stop"].note.endswith(f"; {same}, blocks of 32")
    assert all((one.visible_per_s or 0) > 0 for one in found.values())


@pytest.mark.slow
def test_command_writes_results_profiles_and_figures(tmp_path):
    pytest.importorskip("matplotlib")
    out, traces = tmp_path / "b.json", tmp_path / "traces"
    few = ("-n", "64", "--prompt-tokens", "16", "--repeats", "1", "--lengths", "64,128")
    few += ("--device", "cpu")
    rows = ("--only", "exact", "--only", "lengths", "--threads", "1", "--quick")
    done = run("bench", "-m", "toy", *few, *rows, "-o", str(out), "--profile", str(traces))
    assert "LLaDA-style loop, blocks of 32" in done.stdout
    assert "grows as length^" not in done.stdout, "a quick run cannot show it"
    assert {"exact.json", "llada.json"} <= {one.name for one in traces.iterdir()}
    assert json.loads((traces / "exact.json").read_text())["traceEvents"]
    assert (tmp_path / "b-scaling.png").exists()
    (tmp_path / "b-scaling.png").unlink()
    again = run("bench", "--plot", str(out))
    assert again.stdout == done.stdout
    assert (tmp_path / "b-scaling.png").exists()
    assert json.loads(run("bench", "--plot", str(out), "--json").stdout)["format"] == 2


@pytest.mark.parametrize("name", ["numbers", "scaling"])
def test_table_fits_a_terminal_and_has_readable_numbers(monkeypatch, capsys, name):
    narrow = partial(Console, width=80, highlight=False, emoji=False, markup=False)
    monkeypatch.setattr("wavefront.cli.bench.stdout", narrow)
    show(bench.load(RECORDED / f"{name}.json"), as_json=False)
    page = capsys.readouterr().out
    assert all(cell_len(line) <= 80 for line in page.splitlines())
    assert not re.search(r"\de[+-]\d", page)
    assert "± 0.00" not in page
    assert "floor" not in page
    assert ("speedup: " in page) == (name == "numbers")


@pytest.mark.slow
def test_words_of_the_rows_are_explained(capsys):
    assert [one.label for one in decodes(quick=True)] == [
        "LLaDA-style loop, standard",
        "wavefront(size=8, radius=2), eos=defer",
        "wavefront(size=8, radius=2), eos=defer, cache=wave(refresh=32, size=32, near=4)",
    ]
    _, model, _ = bench.load_model("toy", device="cpu")
    small = {"prompt_tokens": 16, "max_new_tokens": 32, "repeats": 1}
    shown: list[str] = []
    settings = bench.Settings(
        model=model, name="toy", only=("exact", "memory"), tick=shown.append, **small
    )
    report = bench.run(settings)
    assert {*shown} == {"limits", *(row.what for row in report.rows)}, "the words of the table"
    report = replace(report, rows=tuple(row for row in report.rows if row.kind == "memory"))
    show(report, as_json=False)
    page = capsys.readouterr().out
    assert "memory: a step of the LLaDA-style loop" in page
    assert re.search(r"positions at once; largest tensor \d+ MB *$", page, re.MULTILINE)
    assert "memory: what a step needs beyond the weights" in page
    assert not re.search(r"^memory: .* m?s\b", page, re.MULTILINE), "memory is not a time"
    on_gpu = replace(report.rows[0], peak_bytes=12_300_000)
    show(replace(report, rows=(on_gpu,)), as_json=False)
    assert re.search(r"^memory: exact step +12\.3 MB", capsys.readouterr().out, re.MULTILINE)
    assert "eos=defer:" not in page, "only words of its own rows"
    show(
        replace(report, rows=tuple(replace(one, kind="text") for one in report.rows)), as_json=False
    )
    assert "eos=defer:" in capsys.readouterr().out


def test_quick_run_names_an_overhead_only_if_it_exceeds_the_spread():
    def make(work: str, ms: float) -> bench.Row:
        times = {"ms": ms, "low": ms - 2, "high": ms + 2, "least": ms - 2, "repeats": 3}
        return bench.Row(kind="exact", work=work, what="exact step", **times)

    close, apart = [make("step", 11), make("forward", 10)], [make("step", 16), make("forward", 10)]
    assert overhead_notes(close, quick=True) == []
    assert len(overhead_notes(close, quick=False)) == 1
    assert overhead_notes(apart, quick=True) == [
        "exact step: 60.0 % more time than its forward pass alone."
    ]


def test_quick_command_measures_no_curves(monkeypatch):
    asked = []

    def stop(settings, **_):
        asked.append(settings)
        raise KeyboardInterrupt

    monkeypatch.setattr(bench, "run", stop)
    run("bench", "-m", "toy", "--device", "cpu", "--quick", code=None)
    run("bench", "-m", "toy", "--device", "cpu", "--quick", "--only", "lengths", code=None)
    assert not {"lengths", "batches"} & {*asked[0].only}
    assert "exact" in asked[0].only
    assert asked[1].only == ("lengths",)


def test_quick_run_is_small_on_a_cpu():
    model = toy(max_length=1024)
    usual, quick = bench.defaults(model), bench.defaults(model, quick=True)
    assert quick.keys() == usual.keys()
    assert quick["max_new_tokens"] < usual["max_new_tokens"]
    assert max(quick["lengths"]) < max(usual["lengths"])


def test_invalid_command_lines_are_refused(tmp_path):
    for args, code, said in (
        (("--only", "exat"), 1, "did you mean 'exact'"),
        (("-m", "llada-9b-shape"), 1, "did you mean 'llada-8b-shape'"),
        (("--threads", "0"), 2, "at least 1"),
        (("--lengths", "a"), 2, "not a whole number"),
        (("--plot", str(tmp_path / "no.json")), 1, "cannot be read"),
    ):
        more = () if "--plot" in args or "-m" in args else ("-m", "toy")
        assert said in run("bench", *args, *more, "--device", "cpu", code=code).stderr
    page = run("bench", "--help").stdout
    assert all(name in page for name in bench.ROWS)
    assert spec.resolve("wave", "caches")


def test_kernel_table_lists_the_longest_first():
    events = [
        {"cat": "kernel", "name": "b", "ts": 10.0, "dur": 5.0},
        {"cat": "kernel", "name": "a" * 200, "ts": 0.0, "dur": 4.0},
        {"cat": "kernel", "name": "b", "ts": 20.0, "dur": 5.0},
        {"cat": "cpu_op", "name": "launch", "ts": 0.0, "dur": 99.0},
        {"name": "no kind"},
    ]
    first, second, third = profiler.kernel_table(events).splitlines()
    assert first == "3 kernels, 0.01 ms busy of 0.03 ms"
    assert second.split() == ["10.0", "us", "2", "x", "5.00", "b"]
    assert third.endswith("  " + "a" * 150)
    assert profiler.kernel_table([]) == "No kernel ran on the device.\n"


def test_targets_of_quantised_rows_batches_and_strategies():
    quantized = partial(row, "quantized", window=32)
    rows = [
        quantized(4.5, variant="none"),
        quantized(2.5, variant="int8", floor_ms=1.86),
        quantized(2.9, variant="fp8", floor_ms=1.86),
        quantized(1.9, variant="int4", floor_ms=1.1),
        row("quantized", 18.0, variant="fp8"),
        row("quantized", 9e3, work="load", variant="int8", peak_bytes=int(9.2e9)),
        row("quantized", 9e3, work="load", variant="int4", peak_bytes=int(6.1e9)),
        row("batch", 7.0, batch=8, floor_ms=5.09),
        row("batch", 28.0, batch=32, floor_ms=12.0, tokens_per_s=1142.0),
        row("strategies", 27.0, variant="block"),
        row("strategies", 27.4, variant="wave"),
        row("strategies", 100.0, variant="standard", batch=200),
        row("strategies", 120.0, variant="tide", batch=200),
    ]
    found = {(one.work, one.target): one.met for one in targets(rows, cuda=True, published=True)}
    assert found == {
        ("cached step, int8", "≤ 1.4 × its floor"): True,
        ("cached step, int8", "≥ 1.7 × the unquantised step"): True,
        ("cached step, fp8", "≤ 1.4 × its floor"): False,
        ("cached step, fp8", "≥ 1.7 × the unquantised step"): False,
        ("cached step, int4", "≤ 2 ms"): True,
        ("exact step, fp8", "≤ 17 ms"): False,
        ("memory, int8, loading included", "≤ 9.5 GB"): True,
        ("memory, int4, loading included", "≤ 6 GB"): False,
        ("batch 8, cached", "≤ 7.2 ms"): True,
        ("batch 32, cached", "≥ 1,100 tokens/s"): True,
        ("wave, off by %", "within 2 % of blocks"): True,
        ("adaptive step, batch 200", "≤ 1.15 × standard"): False,
    }
    # Targets in milliseconds, tokens per second and bytes are for one machine and model.
    elsewhere = {one.target for one in targets(rows, cuda=True)}
    assert elsewhere == {
        "≤ 1.4 × its floor",
        "≥ 1.7 × the unquantised step",
        "within 2 % of blocks",
        "≤ 1.15 × standard",
    }
