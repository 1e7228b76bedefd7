"""The bench: its loops do their job, its floors are arithmetic, its files are whole."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace

import pytest
import torch
from helpers.commands import run

import wavefront
from wavefront import bench
from wavefront.bench import profiler, reference_loops, roofline
from wavefront.bench.machine import Limits
from wavefront.bench.memory import peak
from wavefront.bench.model_shapes import LLADA_8B, random_model, twin
from wavefront.bench.reference_model import Reference
from wavefront.bench.results import Row
from wavefront.bench.step_rows import Stage, policy
from wavefront.bench.targets import least, most, verdicts
from wavefront.bench.timing import in_turns, spent, summary
from wavefront.bench.workloads import Case, Cycle, Forward, Loop, Steps, cached, exact
from wavefront.core import spec
from wavefront.core.cache_policy import Cache
from wavefront.core.canvas import blank
from wavefront.core.errors import OptionError
from wavefront.core.masks import positions
from wavefront.engine.cached_step import CachedStep
from wavefront.engine.session import DecodeSession
from wavefront.models.toy import toy
from wavefront.text.tokenizer import prompt_ids

PROMPTS = [[5, 6, 7], [8, 9, 10], [20, 21, 22]]
SMALL = {"given": 16, "places": 64, "lengths": (64, 128), "batches": (1, 2), "repeats": 2}


def decided(**options):
    """A toy that never prefers the mask token, which our samplers do not propose and theirs do."""
    model = toy(dtype="float64", **options)
    with torch.no_grad():
        model.output.weight[model.mask_id] = 0
    return model


def tokens(model, places: int, prompts=PROMPTS):
    return blank(prompts, places, mask_id=model.mask_id, pad_id=model.pad_id, device="cpu").tokens


def filled(steps, canvas, given: int) -> list[list[int]]:
    for _ in steps:
        pass
    return canvas[:, given:].tolist()


@pytest.mark.parametrize(("strategy", "block"), [("standard", None), ("block(size=8)", 8)])
@pytest.mark.parametrize("steps", [32, 16])
def test_the_llada_loop_decodes_as_ours(strategy, block, steps):
    model = decided()
    ours = wavefront.generate_ids(
        model, PROMPTS, max_new_tokens=32, steps=steps, strategy=strategy
    ).tokens
    canvas = tokens(model, 32)
    made = list(reference_loops.llada(Reference(model), canvas, 3, steps=steps, block=block))
    assert len(made) == steps
    assert canvas[:, 3:].tolist() == ours


@dataclass(frozen=True)
class ThisBlock(Cache):
    """Recompute the block that the first open place lies in, and nothing else."""

    refresh: int = 8
    given: int = 3

    def positions_to_refresh(self, rows, wanted, stored):
        block = (positions(wanted) - self.given) // self.refresh
        here = torch.where(rows.canvas.masked, block, 1 << 30).amin(-1, keepdim=True)
        return (block == here) & (rows.canvas.slot >= 0)

    def window(self, width, length):
        return self.refresh


def test_the_dual_loop_decodes_as_a_cache_of_ours_that_computes_the_block_alone():
    model = decided()
    plan = bench_plan(model, "block(size=8)", 32)
    canvas = blank(PROMPTS, 32, mask_id=model.mask_id, pad_id=model.pad_id, device="cpu")
    ours = DecodeSession(model, canvas, plan, run=CachedStep(ThisBlock(), model, 3, 35, 32)).drain()
    theirs = canvas.tokens.clone()
    assert filled(
        reference_loops.dual(Reference(model), theirs, 3, steps=32, block=8), theirs, 3
    ) == (ours.answers())
    # It is an approximation, and this is what it approximates.
    full = canvas.tokens.clone()
    assert filled(reference_loops.llada(Reference(model), full, 3, steps=32, block=8), full, 3) != (
        theirs[:, 3:].tolist()
    )


def bench_plan(model, strategy: str, places: int):
    return Case(model, 3, places, 3, strategy).plan


def test_the_reference_module_gives_our_logits():
    for tied in (False, True):
        model = toy(dtype="float64", tied=tied)
        canvas = tokens(model, 8)
        with torch.no_grad():
            theirs = Reference(model)(canvas)[0]
        torch.testing.assert_close(theirs, model.raw_logits(canvas), rtol=1e-10, atol=1e-10)
    with pytest.raises(OptionError, match="family 'dream'"):
        Reference(toy(family="dream"))


@pytest.mark.slow
def test_the_llada_loop_decodes_as_ours_on_a_trained_model():
    lm = wavefront.load("ripple", device="cpu")
    ids = prompt_ids(lm.tokenizer, "Sam has 3 bags of 4 figs and eats 2. How many are left?")
    for strategy, block in (("standard", None), ("block(size=32)", 32)):
        ours = wavefront.generate_ids(lm.model, [ids], max_new_tokens=64, strategy=strategy)
        canvas = tokens(lm.model, 64, [ids])
        steps = reference_loops.llada(Reference(lm.model), canvas, len(ids), steps=64, block=block)
        assert filled(steps, canvas, len(ids)) == ours.tokens


def test_loops_refuse_what_they_cannot_divide():
    model = Reference(toy())
    for places, steps, block in ((32, 32, 5), (32, 5, 8), (32, 2, 8)):
        for loop in (reference_loops.llada, reference_loops.dual):
            with pytest.raises(OptionError, match="choose multiples"):
                next(loop(model, torch.zeros(1, 3 + places).long(), 3, steps=steps, block=block))


def test_floors_by_hand():
    from wavefront.models.families.llada import Config

    arch = Config.from_json(LLADA_8B)
    layers = 32 * (4 * 4096**2 + 3 * 4096 * 12288)
    assert roofline.layer_weights(arch) == layers == 6_979_321_856
    head = 4096 * 126464
    full = roofline.full(arch, 1152, read=16, dtype=torch.bfloat16)
    attention = 4 * 1152**2 * 4096 * 32
    assert full.flops == 2 * layers * 1152 + attention + 2 * head * 16
    assert full.bytes == 2 * (layers + head)
    limits = Limits(782e12, 4.14e12)  # one H200
    assert full.floor(limits) == pytest.approx(21.5e-3, rel=0.005)
    part = roofline.window(arch, 1152, size=32, read=28, dtype=torch.bfloat16)
    assert part.bytes == 2 * (layers + head) + 2 * 2 * 32 * 1152 * 4096
    assert part.floor(limits) == pytest.approx(3.77e-3, rel=0.005)
    # Rows share the weights, and have keys, values and places of their own.
    many = roofline.window(arch, 1152, size=32, read=28, rows=8, dtype=torch.bfloat16)
    assert many.flops == 8 * part.flops
    assert many.bytes - part.bytes == 7 * 2 * 2 * 32 * 1152 * 4096


def test_exponents_and_spread():
    fit = bench.fit((1, 2, 4, 8), (3.0, 12.0, 48.0, 192.0))
    assert fit.exponent == pytest.approx(2)
    assert fit.scale == pytest.approx(3)
    assert fit.error == pytest.approx(0, abs=1e-9)
    assert bench.fit((1, 2, 4), (1.0, 2.0, 5.0)).error > 0
    with pytest.raises(OptionError, match="two sizes"):
        bench.fit((4, 4), (1.0, 1.0))
    found = summary([5.0, 1.0, 2.0, 4.0, 3.0])
    assert (found.median, found.low, found.high, found.least, found.repeats) == (3, 2, 4, 1, 5)
    assert summary([2.0])[:3] == (2, 2, 2)


def test_pieces_take_turns_and_getting_ready_is_not_timed():
    now, seen = [0.0], []

    class Piece:
        def __init__(self, name: str, seconds: float) -> None:
            self.name, self.seconds = name, seconds
            self.made_ready = 0

        def ready(self) -> None:
            now[0] += 100
            self.made_ready += 1

        def __call__(self) -> int:
            seen.append(self.name)
            now[0] += self.seconds
            return 4

    pieces = {"a": Piece("a", 2.0), "b": Piece("b", 8.0)}
    cpu = torch.device("cpu")
    found = in_turns(cpu, pieces, repeats=2, warm_up=1, now=lambda: now[0])
    assert seen == ["a", "b", "b", "a", "a", "b"]
    assert pieces["a"].made_ready == 3
    assert (found["a"].median, found["b"].median) == (0.5, 2.0)
    assert found["a"].repeats == 2
    assert spent(cpu, pieces["b"], lambda: now[0]) == 2.0


def test_subjects_make_true_steps_and_begin_anew():
    case = Case(toy(vocab_size=96, max_length=512), 16, 64)
    run = cached(case, policy(32, 1 << 30))
    for subject in (
        Steps(case, exact(case), case.read(), 40),
        Steps(case, run, 28, 40),
        Cycle(case, cached(case, policy(32, 8)), 28, 8),
        Loop(case, lambda x: reference_loops.llada(Reference(case.model), x, 16, steps=64), 40),
    ):
        assert [subject() for _ in range(3)] == [subject.count] * 3
    steps = Steps(case, exact(case), case.read(), 5)
    steps()
    assert int(steps._rows.canvas.masked.sum()) == 64 - 5
    assert run.steps_since_refresh > 2  # windows only, since the full forward that filled the store
    for size in (None, 32):
        assert Forward(case, 28, 3, size=size)() == 3
    stored = run.kv.keys[0].fill_(torch.nan)
    assert Forward(case, 28, 3, size=32, kv=run.kv)() == 3
    fresh = stored.isfinite().all(-1).all(1)[0].nonzero()[:, 0]
    assert fresh.tolist() == list(range(16, 48))  # in the steps' own store, its window alone


def test_how_many_logits_exist_at_once():
    case = Case(toy(max_length=512), 16, 64)  # its stream is as wide as its vocabulary
    ours = peak(case.model, Steps(case, exact(case), case.read(), 1))
    reference = Reference(case.model)
    theirs = peak(
        case.model, Loop(case, lambda x: reference_loops.llada(reference, x, 16, steps=64), 1)
    )
    assert (ours.logits, theirs.logits) == (case.read(), 80)
    assert theirs.largest >= 80 * 64 * 8  # a float64 softmax


def test_random_shapes_and_twins():
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


@pytest.fixture(scope="module")
def report() -> bench.Report:
    model = toy(vocab_size=96, max_length=512)
    only = tuple(name for name in bench.ROWS if name != "text")
    return bench.run(bench.Settings(model=model, name="toy", only=only, quick=True, **SMALL))


def test_every_number_is_there_and_finite(report):
    names = [one.name for one in report.rows]
    for name in ("exact", "exact-forward", "llada", "llada-block", "cached-16", "cached-32"):
        assert name in names
    for name in ("cached-64", "cached-cycle", "dual", "batch-1", "batch-8", "end-to-end"):
        assert name in names
    for one in report.rows:
        assert 0 < one.least <= one.low <= one.ms <= one.high < math.inf
    ours, theirs = report.find("exact"), report.find("llada")
    assert ours.ratio == pytest.approx(theirs.ms / ours.ms)
    assert 0 < ours.of_floor == pytest.approx(ours.floor_ms / ours.ms)
    assert theirs.floor_ms is None
    assert theirs.published_ms is None  # these are no figures of this machine
    eight = report.find("batch-8")
    assert eight.tokens_per_s == pytest.approx(8000 / eight.ms)
    assert report.limits["flops"] > 1e9
    assert report.limits["bandwidth"] > 1e8
    assert {(one.subject, one.against) for one in report.curves} == {
        (who, side) for who in ("exact", "cached") for side in ("length", "batch")
    }
    assert all(math.isfinite(one.fit.exponent) for one in report.curves)
    # The targets of steps are a GPU's.
    assert [(one.work, one.met) for one in report.verdicts] == [("memory", True)]
    assert report.about["torch"] == torch.__version__


def test_a_report_survives_its_file(report, tmp_path):
    file = tmp_path / "deep" / "bench.json"
    bench.save(report, file)
    assert bench.load(file) == report
    json.loads(file.read_text(), parse_constant=pytest.fail)


def test_files_that_are_no_report(tmp_path, report):
    with pytest.raises(OptionError, match="cannot be read"):
        bench.load(tmp_path / "none.json")
    for text in ("", "[]", "{}", '{"format": 1, "rows": [{"nme": 1}]}', "3"):
        (tmp_path / "bad.json").write_text(text)
        with pytest.raises(OptionError, match="no result of"):
            bench.load(tmp_path / "bad.json")
    (tmp_path / "old.json").write_text(json.dumps(report.to_json() | {"format": 99}))
    with pytest.raises(OptionError, match="of format 99"):
        bench.load(tmp_path / "old.json")
    (tmp_path / "file").write_text("")
    with pytest.raises(OptionError, match="cannot be written"):
        bench.save(report, tmp_path / "file" / "x.json")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"only": ("exat",)}, "did you mean 'exact'"),
        ({"places": 33}, "multiple of 32"),
        ({"places": 0}, "at least 32"),
        ({"given": 500}, "between 1 and 512"),
        ({"lengths": (1024,)}, "between 64 and 512"),
        ({"batches": (0,)}, "at least 1"),
        ({"repeats": 0}, "at least 1"),
        ({"items": 0}, "at least 1"),
    ],
)
def test_settings_that_cannot_be(change, said):
    with pytest.raises(OptionError, match=said):
        bench.Settings(model=toy(max_length=512), **(SMALL | change))


def test_accuracies_stand_beside_their_configuration(tmp_path):
    model = toy(vocab_size=96, max_length=512)
    settings = bench.Settings(model=model, name="toy", only=("cached",), quick=True, **SMALL)
    file = tmp_path / "accuracy.json"
    # Another spelling of the same two.
    cache = "wave(near=4, size=32)"
    entries = [{"strategy": "wavefront", "cache": cache, "right": 0.5}]
    file.write_text(json.dumps({"entries": entries}))
    report = bench.run(settings, accuracy=file)
    found = {one.name: one.accuracy for one in report.rows}
    assert found["cached-32"] == entries[0]
    assert found["cached-16"] is found["dual"] is None
    forgot = replace(report, rows=tuple(replace(one, accuracy=None) for one in report.rows))
    assert bench.accurate(forgot, file) == report  # measured afterwards
    for text in ("[]", '{"entries": [{"strategy": "nothing", "cache": null}]}', "x"):
        file.write_text(text)
        with pytest.raises(OptionError, match=r"holds no accuracies|no strategy|nothing"):
            bench.run(settings, accuracy=file)


def test_verdicts():
    def made(name: str, ms: float, **more) -> Row:
        times = {"ms": ms, "low": ms, "high": ms, "least": ms, "repeats": 1}
        return Row(name=name, what=name, **times, **more)

    assert (least("w", "t", 3.0, 4).short, least("w", "t", 4.0, 4).met) == ("25 % short", True)
    assert (most("w", "t", 1.5, 1).short, most("w", "t", 1.0, 1).met) == ("50 % over", True)
    rows = [
        made("exact", 30.0, floor_ms=21.0, ratio=1.3),
        made("exact-compiled", 26.0, floor_ms=21.0, ratio=1.5),
        made("exact-forward", 29.9),
        made("cached-32", 9.0),
        made("cached-forward", 8.0),
        made("cached-32-compiled", 6.06, reference="dual", ratio=50.0 / 6.06),
        made("cached-32-compiled-forward", 6.0),
        made("end-to-end", 10.0, ratio=4.4),
        made("end-to-end-compiled", 7.0, ratio=6.3),
        made("llada", 41.0, published_ms=40.4),
        made("dual", 50.0, published_ms=37.1),
        made("batch-1", 5.0, tokens_per_s=200.0),
        made("batch-8", 8.0, tokens_per_s=1000.0),
    ]
    found = {(one.work, one.target): one for one in verdicts(rows, cuda=True)}
    # The quickest of the two ways counts.
    assert found["exact step", "≥ 80 % of its floor"].met
    assert found["exact step", "≥ 1.4 × the LLaDA-style loop"].met
    # Against the loop as published, where it is slower here: 37.1 / 6.06, and not 50.
    assert not found["cached step", "≥ 7 × the dual-cache loop"].met
    assert found["batch 8, cached", "≥ 4 × the tokens/s of batch 1"].met
    assert found["strategy in a step, exact", "≤ 1 % of the forward"].met
    # Compiled beside compiled, where that was measured.
    assert found["strategy in a step, cached-32-compiled", "≤ 1 % of the forward"].met
    assert ("strategy in a step, cached-32", "≤ 1 % of the forward") not in found
    assert found["end to end", "≥ 6 × the LLaDA-style loop"].note == "end-to-end-compiled"
    assert found["llada, off by %", "within 10 % of the published 40.4 ms"].met
    off = found["dual, off by %", "within 10 % of the published 37.1 ms"]
    assert (off.met, round(off.found)) == (False, 35)
    text = made("text-cached-stop", 9.0, ratio=3.0)
    (missed,) = verdicts([*rows[:3], text], cuda=False)
    assert (missed.work, missed.met) == ("whole answer, cached wave", False)


def test_the_published_figures_are_of_one_machine_and_shape():
    settings = bench.Settings(model=toy(max_length=2048), name="llada-8b-shape")
    assert not settings.as_published
    assert Stage(replace(settings, given=128, places=1024), Limits(1.0, 1.0)).count == 1


@pytest.mark.slow
def test_texts_are_compared_with_what_they_should_equal():
    name, model, lm = bench.subject("toy", device="cpu")
    settings = bench.Settings(
        model=model, name=name, lm=lm, only=("text",), quick=True, places=32, given=16
    )
    found = {one.name: one for one in bench.run(settings).rows}
    assert "1/1 texts as llada" in found["text-standard-stop"].note
    assert "1/1 texts as llada-block" in found["text-block-stop"].note
    assert all((one.visible_per_s or 0) > 0 for one in found.values())


@pytest.mark.slow
def test_the_command(tmp_path):
    pytest.importorskip("matplotlib")
    out, traces = tmp_path / "b.json", tmp_path / "traces"
    few = ("-n", "64", "--prompt-tokens", "16", "--repeats", "1", "--lengths", "64,128")
    few += ("--device", "cpu")
    rows = ("--only", "exact", "--only", "lengths", "--threads", "1", "--quick")
    done = run("bench", "-m", "toy", *few, *rows, "-o", str(out), "--profile", str(traces))
    assert "LLaDA-style loop, blocks of 32" in done.stdout
    assert "exponent" in done.stdout
    assert {"exact.json", "llada.json"} <= {one.name for one in traces.iterdir()}
    assert json.loads((traces / "exact.json").read_text())["traceEvents"]
    assert (tmp_path / "b-scaling.png").exists()
    (tmp_path / "b-scaling.png").unlink()
    again = run("bench", "--plot", str(out))
    assert again.stdout == done.stdout
    assert (tmp_path / "b-scaling.png").exists()
    assert json.loads(run("bench", "--plot", str(out), "--json").stdout)["format"] == 1


def test_command_lines_that_cannot_be(tmp_path):
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


def test_kernels_of_a_trace_are_summed_the_longest_first():
    events = [
        {"cat": "kernel", "name": "b", "ts": 10.0, "dur": 5.0},
        {"cat": "kernel", "name": "a" * 200, "ts": 0.0, "dur": 4.0},
        {"cat": "kernel", "name": "b", "ts": 20.0, "dur": 5.0},
        {"cat": "cpu_op", "name": "launch", "ts": 0.0, "dur": 99.0},
        {"name": "no kind"},
    ]
    first, second, third = profiler.kernels(events).splitlines()
    assert first == "3 kernels, 0.01 ms at work of 0.03 ms"
    assert second.split() == ["10.0", "us", "2", "x", "5.00", "b"]
    assert third.endswith("  " + "a" * 150)
    assert profiler.kernels([]) == "Nothing ran on the device.\n"
