"""Runs in their own processes that are killed with SIGKILL resume without loss."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers.processes import kill_and_count_survivors
from helpers.toy_runs import make_run, rewrite

import wavefront
from wavefront.tasks.base import Ask

ROOT = Path(wavefront.__file__).parents[1]
KILLS = 20
# Small batches, so that decoding an answer takes about as long as writing it.
COMMAND = [
    sys.executable, "-m", "wavefront", "eval", "generate", "-m", "toy", "--task",
    "boolean_expressions", "--style", "bare", "--items", "120", "-n", "8", "-b", "2",
    "-s", "wavefront", "--threads", "1",
]  # fmt: skip


def start(out: Path, *more: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [*COMMAND, "--out", str(out), *more],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str], code: int = 0) -> str:
    out, err = process.communicate(timeout=500)
    assert process.returncode == code, err
    return out + err


def lines(out: Path) -> list[bytes]:
    file = out / "answers.jsonl"
    return file.read_bytes().splitlines(keepends=True) if file.exists() else []


def wait_for(out: Path, count: int, process: subprocess.Popen[str]) -> None:
    """Wait until `count` answers are written or the process has ended."""
    until = time.monotonic() + 300
    while len(lines(out)) < count and process.poll() is None:
        assert time.monotonic() < until, process.communicate()
        time.sleep(0.002)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    out = tmp_path_factory.mktemp("unbroken") / "run"
    finish(start(out))
    found = lines(out)
    assert len(found) == 120
    return sorted(found)


@pytest.mark.slow
def test_run_killed_twenty_times_equals_the_unbroken_run(
    tmp_path: Path, unbroken: list[bytes]
) -> None:
    rng, out, killed = random.Random(7), tmp_path / "run", []
    for number in range(KILLS):
        process = start(out)
        # Kill some before the first new answer, while the header is written.
        if number % 5:
            wait_for(out, len(lines(out)) + rng.randrange(1, 6), process)
        else:
            time.sleep(rng.uniform(0, 3))
        time.sleep(rng.uniform(0, 0.05))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        killed.append(process.returncode)
        assert {*lines(out)[:-1]} <= {*unbroken}
    assert killed == [-signal.SIGKILL] * KILLS
    assert 20 <= len(lines(out)) < 120
    assert "120 of 120 answers" in finish(start(out))
    assert sorted(lines(out)) == unbroken


@pytest.mark.slow
def test_interrupted_run_says_how_to_resume(tmp_path: Path, unbroken: list[bytes]) -> None:
    out = tmp_path / "run"
    process = start(out)
    wait_for(out, 3, process)
    process.send_signal(signal.SIGINT)
    said = finish(process, 130)
    assert f"Results so far are in {out}. Run the same command to continue." in said
    assert "Traceback" not in said
    finish(start(out))
    assert sorted(lines(out)) == unbroken


@pytest.mark.slow
def test_killed_ray_worker_loses_no_answer(tmp_path: Path, unbroken: list[bytes]) -> None:
    out = tmp_path / "run"
    process = start(out, "--engine", "ray", "--workers", "2")
    wait_for(out, 8, process)
    timings = (out / "timings.jsonl").read_text().splitlines()
    victim = int(json.loads(timings[-1])["worker"].rpartition(":")[2])
    os.kill(victim, signal.SIGKILL)
    assert len(lines(out)) < 120
    said = finish(process)
    assert "A worker was lost (1 so far)" in said
    assert sorted(lines(out)) == unbroken
    timings = [json.loads(one) for one in (out / "timings.jsonl").read_text().splitlines()]
    batches = {json.loads(one)["batch"] for one in unbroken}
    assert sorted(one["batch"] for one in timings) == sorted(batches)
    assert len({one["worker"] for one in timings}) >= 2


@pytest.mark.slow
def test_run_with_too_many_lost_workers_stops_and_can_resume(
    tmp_path: Path, unbroken: list[bytes]
) -> None:
    out = tmp_path / "run"
    process = start(out, "--engine", "ray", "--max-losses", "0")
    wait_for(out, 4, process)
    timings = (out / "timings.jsonl").read_text().splitlines()
    os.kill(int(json.loads(timings[-1])["worker"].rpartition(":")[2]), signal.SIGKILL)
    assert "1 workers were lost: the answers so far are kept" in finish(process, 1)
    finish(start(out))
    assert sorted(lines(out)) == unbroken


@pytest.mark.slow
def test_missing_model_on_ray_raises_one_error(tmp_path: Path) -> None:
    out = tmp_path / "run"
    said = finish(start(out, "--engine", "ray", "-m", str(tmp_path / "nothing")), 1)
    assert "There is no model" in said
    assert "Traceback" not in said
    assert not out.exists()


@pytest.mark.slow
def test_sandboxes_end_with_a_killed_evaluator(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", task="code", ask=Ask(count=2))
    rewrite(run.folder / "answers.jsonl", text="    import time; time.sleep(60)")
    command = ["-m", "wavefront", "eval", "grade", str(run.folder), "--allow-unsandboxed"]
    assert kill_and_count_survivors(command, children=3) == 0
