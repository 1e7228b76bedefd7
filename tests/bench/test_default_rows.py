"""Rows of default settings, rows of a start, and what an interrupted run leaves."""

from __future__ import annotations

import json
import sys
import time

import pytest
from helpers.captured import AutomaticStatic
from helpers.commands import run

from wavefront import bench
from wavefront.bench import default_rows, start_rows, step_rows
from wavefront.bench.default_rows import StreamSteps, graph_count
from wavefront.bench.machine import DeviceLimits
from wavefront.bench.results import Row
from wavefront.bench.run import GROUPS
from wavefront.bench.step_rows import Stage
from wavefront.bench.targets import targets
from wavefront.engine.batcher import CapturedBatchers
from wavefront.lm import LM
from wavefront.models.toy import toy
from wavefront.text.byte_tokenizer import byte_tokenizer

SMALL = {"prompt_tokens": 16, "max_new_tokens": 64, "repeats": 1, "lengths": (64,)}


def make_settings(**more) -> bench.Settings:
    model = toy(vocab_size=512, max_length=512)
    return bench.Settings(model=model, name="toy", quick=True, **(SMALL | more))


def row(kind: str, ms: float, **more) -> Row:
    times = {"ms": ms, "low": ms, "high": ms, "least": ms, "repeats": 1}
    return Row(kind=kind, what="", **times, **more)


def test_stream_restarts_before_its_end_and_captures_its_steps_once():
    lm = LM(toy(vocab_size=512, max_length=512), byte_tokenizer(), speed="fast")
    lm.captured = CapturedBatchers(lm.model, graphs=AutomaticStatic)
    steps = StreamSteps(lm, "x" * 16, 64, 32)
    for _ in range(3):
        assert 0 < steps() <= 32
    assert steps.canvas_length == 80
    assert graph_count(lm) == 2  # a full step and a window; a restart uses the same batcher


@pytest.mark.slow
def test_default_rows_are_compared_with_captured_ones(monkeypatch):
    def with_graphs(*given, **named) -> LM:
        lm = LM(*given, **named)
        lm.captured = CapturedBatchers(lm.model, graphs=AutomaticStatic)
        return lm

    monkeypatch.setattr(default_rows, "LM", with_graphs)
    stage = Stage(make_settings(only=("default",)), DeviceLimits(1e12, 1e11))
    found = {one.name: one for one in default_rows.default_rows(stage)}
    assert {*found} == {
        *("default-exact-warm-up", "default-balanced-warm-up", "default-fast-warm-up"),
        *("default-exact", "default-balanced-cycle", "default-fast-cycle"),
        *("default-exact-captured", "default-balanced-captured-cycle"),
        "default-fast-captured-cycle",
    }
    assert "steps" in found["default-fast-warm-up"].note
    assert found["default-exact"].strategy.startswith("block(size=32")
    assert found["default-fast-cycle"].cache == repr(step_rows.window_policy(32))
    assert found["default-balanced-cycle"].cache == repr(step_rows.window_policy(32, refresh=8))
    names = ("default-exact", "default-balanced-cycle", "default-fast-cycle")
    exact, balanced, fast = (found[name].floor_ms or 0.0 for name in names)
    assert exact > balanced > fast > 0


def test_targets_of_default_settings_and_of_the_second_start():
    rows = [
        row("default", 104.0, variant="exact"),
        row("default", 100.0, variant="exact-captured"),
        row("default", 11.0, variant="fast", work="cycle"),
        row("default", 10.0, variant="fast-captured", work="cycle"),
        row("default", 3e3, variant="exact", work="warm-up"),
        row("start", 9e4, variant="first", work="start"),
        row("start", 2e4, variant="second", work="start"),
    ]
    found = {(one.work, one.target): one.met for one in targets(rows, cuda=True)}
    assert found == {
        ("no options, speed=exact", "≤ 1.05 × the captured row"): True,
        ("no options, speed=fast", "≤ 1.05 × the captured row"): False,
        ("no options, speed=exact", "warm-up ≤ 20 s"): True,
        ("second start with compilation", "≤ 30 s to the first token"): True,
    }


def test_start_is_measured_in_two_processes_with_one_directory(monkeypatch):
    folders = []

    def process(options, folder):
        folders.append(folder)
        return {"imports": 1.0, "model": 2.0, "first token": 30.0 / len(folders)}

    monkeypatch.setattr(start_rows, "_run_process", process)
    stage = Stage(make_settings(only=("start",)), DeviceLimits(1e12, 1e11))
    first, second = start_rows.start_rows(stage)
    assert (first.ms, second.ms) == (30_000, 15_000)
    assert second.note == "imports after 1.0 s, model after 2.0 s, first token after 15.0 s"
    assert folders[0] == folders[1]


@pytest.mark.slow
def test_process_of_a_start_prints_its_times(monkeypatch, capsys):
    monkeypatch.setattr("wavefront.kernels.compile.BACKEND", "eager")
    options = {"name": "toy", "device": "cpu", "dtype": "float32"}
    options |= {"prompt_tokens": 8, "max_new_tokens": 16}
    monkeypatch.setattr(sys, "argv", ["start", str(time.time()), json.dumps(options)])
    start_rows.main()
    found = json.loads(capsys.readouterr().out)
    assert [*found] == ["imports", "model", "first token", "token 5"]
    assert sorted(found.values()) == [*found.values()]


@pytest.mark.slow
def test_interrupted_run_keeps_the_groups_that_are_complete(tmp_path, monkeypatch):
    def interrupt(stage: Stage) -> list[Row]:
        raise KeyboardInterrupt

    monkeypatch.setitem(GROUPS, "memory", interrupt)
    out, seen = tmp_path / "bench.json", []

    def save(report: bench.Report) -> None:
        seen.append(report.complete)
        bench.save(report, out)

    with pytest.raises(KeyboardInterrupt):
        bench.run(make_settings(only=("exact", "batch", "memory")), save=save)
    assert seen == [("exact",), ("exact", "batch")]
    report = bench.load(out)
    assert report.missing == ("memory",)
    assert {one.kind for one in report.rows} == {"exact", "batch"}
    shown = run("bench", "--plot", str(out))
    assert "Not measured: memory." in shown.stdout


@pytest.mark.slow
def test_rows_are_printed_as_they_are_measured(tmp_path):
    few = ("-n", "32", "--prompt-tokens", "16", "--repeats", "1", "--device", "cpu", "--quick")
    done = run("bench", "-m", "toy", *few, "--only", "memory", "-o", str(tmp_path / "b.json"))
    assert "memory: exact step: " in done.stderr
    quiet = run("bench", "-m", "toy", *few, "--only", "memory", "--quiet")
    assert "memory: exact step: " not in quiet.stderr


def test_quantised_rows_have_the_accuracy_of_their_quantisation(tmp_path):
    file = tmp_path / "accuracy.json"
    entry = {"strategy": "wavefront(size=8, radius=2)", "cache": None, "right": 0.9}
    file.write_text(json.dumps({"entries": [entry, {**entry, "quantize": "fp8", "right": 0.8}]}))
    strategy = {"strategy": entry["strategy"]}
    rows = [
        row("exact", 1.0, **strategy),
        *(row("quantized", 1.0, variant=kind, **strategy) for kind in ("none", "int8", "fp8")),
    ]
    empty = {"about": {}, "settings": {"only": ()}, "limits": {}}
    found = bench.add_accuracies(bench.Report(**empty, rows=tuple(rows)), file).rows
    right = [one.accuracy and one.accuracy["right"] for one in found]
    assert right == [0.9, 0.9, None, 0.8]


@pytest.mark.slow
def test_adaptive_steps_compute_the_positions_of_standard(monkeypatch):
    stage = Stage(make_settings(only=("strategies",)), DeviceLimits(1e12, 1e11))
    rows = step_rows._adaptive_rows(stage)
    assert {one.note for one in rows} == {"512 positions in each step"}
    hidden = "tide(size=4, radius=1, cascade_rounds=8, horizon=1, selector=threshold(tau=0.9))"
    monkeypatch.setattr(step_rows, "ADAPTIVE", hidden)
    monkeypatch.setattr("wavefront.engine.window.BUCKET", 16)
    with pytest.raises(RuntimeError, match="positions"):
        step_rows._adaptive_rows(stage)
