"""`bench --advise`: the fastest setting of each word, from measured steps."""

from __future__ import annotations

import json

import pytest
import torch
from helpers.commands import records
from helpers.commands import run as run_command

from wavefront.bench import advice as module
from wavefront.bench.advice import (
    AdviceReport,
    Times,
    Variant,
    advise,
    choose,
    compiled_variants,
    ticks,
)
from wavefront.bench.model_shapes import quantized_twin
from wavefront.bench.settings import Settings
from wavefront.cli.bench import _show_advice
from wavefront.core.bounds import DEFAULT_STRATEGY
from wavefront.core.errors import OptionError
from wavefront.engine.options import SPEEDS, plan
from wavefront.engine.session import model_properties
from wavefront.models.toy import toy

SLOW = Times(100.0, {16: 50.0, 32: 51.0, 64: 70.0})
FAST = Times(60.0, {16: 20.0, 32: 40.0, 64: 45.0})
LOWER = Variant(dtype="bfloat16")


def by_word(times):
    return {one.speed: one for one in choose(times, name="ripple")}


def test_time_of_a_cached_step_is_the_mean_over_a_refresh_interval():
    found = by_word({Variant(): SLOW})
    assert found["exact"].ms_per_step == 100.0
    assert found["balanced"].ms_per_step == (100 + 7 * 51) / 8
    assert found["fast"].ms_per_step == (100 + 31 * 51) / 32
    assert found["fast"].tokens_per_s == pytest.approx(1000 / found["fast"].ms_per_step)
    assert found["fast"].times_exact == pytest.approx(100 / found["fast"].ms_per_step)


def test_setting_of_the_word_itself_is_kept_unless_another_is_clearly_faster():
    near = by_word({Variant(): SLOW})["fast"]  # a window of 16 is 2 % faster
    assert near.python == "wavefront.load('ripple', speed='fast').generate(prompt)"
    assert near.command == 'wavefront generate -m ripple --speed fast "…"'
    clear = by_word({Variant(): FAST})["fast"]
    assert "size=16" in str(clear.cache)
    assert f"cache={clear.cache!r}" in clear.python
    assert f'--cache "{clear.cache}"' in clear.command


def test_exact_is_never_cached_and_never_of_lower_precision():
    found = by_word({Variant(): SLOW, LOWER: FAST})
    assert (found["exact"].cache, found["exact"].dtype) == (None, None)
    assert found["exact"].ms_per_step == 100.0
    assert found["balanced"].dtype is None
    assert found["fast"].dtype == "bfloat16"
    assert "dtype" not in found["fast"].python  # `fast` loads it so by itself


def test_lower_precision_that_is_slower_is_turned_off():
    found = by_word({Variant(): FAST, LOWER: SLOW})["fast"]
    assert found.dtype is None
    assert "dtype='float32'" in found.python
    assert "--dtype float32" in found.command


def test_compiled_model_is_recommended_where_it_is_faster():
    found = by_word({Variant(): SLOW, Variant(compiled=True): FAST})
    assert found["exact"].python == "wavefront.load('ripple', compile=True).generate(prompt)"
    assert found["exact"].command == 'wavefront generate -m ripple --compile "…"'


def test_quantised_weights_are_recommended_only_where_they_are_allowed():
    int8, fp8 = Variant(quantize="int8"), Variant(quantize="fp8")
    times = {Variant(): SLOW, int8: Times(80.0, {32: 30.0}), fp8: Times(95.0, {32: 29.0})}
    found = by_word(times)
    assert found["exact"].quantize is None
    assert found["balanced"].quantize == "int8"
    assert found["fast"].quantize == "fp8"
    assert "quantize='fp8'" in found["fast"].python
    assert "--quantize fp8" in found["fast"].command
    assert found["fast"].times_exact == pytest.approx(100 / found["fast"].ms_per_step)


def test_compilation_has_its_cost_and_only_the_fastest_quantisation_is_compiled():
    times = {Variant(): SLOW, Variant(quantize="int8"): FAST, Variant(quantize="fp8"): SLOW}
    chosen = settings(compile=True)
    assert compiled_variants(chosen, times) == [
        Variant(compiled=True),
        Variant(compiled=True, quantize="int8"),
    ]
    assert compiled_variants(settings(), times) == []
    times[Variant(compiled=True)] = FAST._replace(full=1.0, compile_seconds=80.0)
    assert by_word(times)["exact"].compile_seconds == 80.0


def test_recommended_caches_are_valid_options():
    model = toy()
    for one in choose({Variant(): FAST}, name="toy"):
        made = plan({"speed": one.speed, "cache": one.cache or "none"}, model_properties(model))
        assert repr(made.cache) == str(one.cache)


def settings(**more):
    return Settings(model=toy(), name="toy", prompt_tokens=4, max_new_tokens=32, repeats=1, **more)


def test_advice_is_measured_and_every_tick_counts(monkeypatch):
    monkeypatch.setattr(module, "computes_bfloat16", lambda device: True)
    seen = []
    chosen = settings(tick=seen.append)
    report = advise(chosen)
    assert [one.speed for one in report.advice] == list(SPEEDS)
    assert all(one.ms_per_step > 0 for one in report.advice)
    assert len(seen) == ticks(chosen)
    assert chosen.model.dtype == torch.float32  # the lower precision is a copy
    json.dumps(report.to_json())


def test_quantisation_without_room_for_a_copy_is_left_out(monkeypatch):
    chosen = settings()
    copies = {kind: quantized_twin(chosen.model, kind) for kind in module.QUANTIZATIONS}
    shared = {part.data_ptr() for part in chosen.model.parameters()}
    sizes = {
        kind: sum(
            part.nbytes
            for part in (*copy.parameters(), *copy.buffers())
            if part.data_ptr() not in shared
        )
        for kind, copy in copies.items()
    }
    for spare, expected in ((0, ["int8", "fp8"]), (-1, ["int8"])):
        room = sum(sizes.values()) + spare
        monkeypatch.setattr(module, "free_cuda_memory", lambda device, room=room: room)
        assert module._fitting(chosen) == expected
    monkeypatch.setattr(module, "free_cuda_memory", lambda device: 0)
    assert module._fitting(chosen) == []


def test_command_names_what_it_left_out(capsys):
    report = AdviceReport(
        about={"device": "a GPU", "dtype": "bfloat16", "threads": 1},
        settings=dict.fromkeys(("model", "prompt_tokens", "max_new_tokens", "strategy"), 1),
        advice=(),
        left_out=("fp8",),
    )
    _show_advice(report, as_json=False)
    assert "a copy of the weights does not fit: fp8." in capsys.readouterr().out


def test_canvas_without_room_for_a_window_is_an_error(monkeypatch):
    monkeypatch.setattr(module, "WINDOWS", {64: 16})
    with pytest.raises(OptionError, match="needs at least 65 new tokens") as error:
        advise(settings())
    assert error.value.option == "max_new_tokens"


@pytest.mark.parametrize("option", [("--only", "exact"), ("--quick",), ("--lengths", "64")])
def test_options_that_are_not_used_are_refused(option):
    said = run_command("bench", "--advise", "-m", "toy", *option, code=2).stderr
    assert f"--advise does not use {option[0]}" in said


@pytest.mark.slow
def test_command_prints_the_lines_to_use(tmp_path):
    arguments = ["bench", "--advise", "-m", "toy", "-n", "32", "--prompt-tokens", "4"]
    out = tmp_path / "advice.json"
    shown = run_command(*arguments, "--repeats", "1", "--out", str(out))
    assert [one["speed"] for one in json.loads(out.read_text())["advice"]] == list(SPEEDS)
    assert DEFAULT_STRATEGY in shown.stdout
    for word in SPEEDS:
        assert f"\n{word}:\n" in shown.stdout
    assert "wavefront.load('toy')" in shown.stdout
    (found,) = records(run_command(*arguments, "--repeats", "1", "--json"))
    assert [one["speed"] for one in found["advice"]] == list(SPEEDS)
