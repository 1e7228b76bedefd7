"""lm-eval as a program on our model, offline: a task of ours, multiple choice, perplexity, cache."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import wavefront

ROOT = Path(wavefront.__file__).parents[1]
CHOICE = """\
task: tiny_choice
dataset_path: json
dataset_kwargs: {data_files: {test: FILE}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: ["yes", "no"]
doc_to_target: label
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
"""
ROLLING = """\
task: tiny_rolling
dataset_path: json
dataset_kwargs: {data_files: {test: FILE}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{question}}"
metric_list: [{metric: byte_perplexity}]
"""


def program(home: Path, *args: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    """`wavefront …` with the network's clients told to stay off it, and folders of its own."""
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(home / "hf")}
    mine = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    done = subprocess.run(
        [sys.executable, "-m", "wavefront", *args],
        capture_output=True,
        text=True,
        cwd=home,
        timeout=280,
        env=os.environ | offline | mine,
    )
    assert done.returncode == code, done.stderr[-3000:]
    return done


def samples(folder: Path, task: str) -> list[dict[str, Any]]:
    (file,) = folder.glob(f"*/samples_{task}_*.jsonl")
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.mark.slow
def test_lm_eval_runs_local_tasks_offline(tmp_path):
    program(tmp_path, "lm-eval-tasks", "gsm", "navigate", "--count", "3", "--out", "tasks")
    data = tmp_path / "tasks" / "data" / "tiny.jsonl"
    data.write_text('{"question": "Is it?", "label": 0}\n{"question": "Was it?", "label": 1}\n')
    for name, text in (("choice", CHOICE), ("rolling", ROLLING)):
        (tmp_path / "tasks" / f"{name}.yaml").write_text(text.replace("FILE", str(data)))
    asked = ["--tasks", "wavefront_gsm", "wavefront_navigate", "tiny_choice", "tiny_rolling"]
    asked += ["--include_path", "tasks", "--log_samples", "--batch_size", "2"]
    asked += ["--use_cache", "cache"]
    model = "pretrained=toy,max_new_tokens=8,mc_num=4,mc_batch=2"

    def run(folder: str, schedule: str) -> str:
        given = ["--model_args", f"{model},schedule={schedule}", "--output_path", folder]
        return program(tmp_path, "lm-eval", "--", *asked, *given).stderr

    run("first", "wavefront(size=4, radius=2)")
    log = run("again", "wavefront(size=4, radius=2)")
    assert log.count("Requests remaining: 0") == 3
    # The trap: lm-eval itself would take every answer from the first run.
    log = run("other", "block(size=2)")
    assert log.count("Cached requests: 0,") == 3

    lm = wavefront.load("toy")
    for folder, schedule in (("first", "wavefront(size=4, radius=2)"), ("other", "block(size=2)")):
        for one in samples(tmp_path / folder, "wavefront_gsm"):
            prompt = one["doc"]["prompt"]
            answer = lm.generate(prompt, raw=True, schedule=schedule, max_new_tokens=8).text
            assert one["resps"] == [[answer]]
    first, again, other = (
        [one["resps"] for one in samples(tmp_path / folder, "wavefront_gsm")]
        for folder in ("first", "again", "other")
    )
    assert first == again != other
    (file,) = (tmp_path / "first").glob("*/results_*.json")
    results = json.loads(file.read_text())["results"]
    assert {"correct,none", "strict,none", "flexible,none"} <= set(results["wavefront_navigate"])
    assert results["tiny_choice"]["acc,none"] in (0.0, 0.5, 1.0)
    assert results["tiny_rolling"]["byte_perplexity,none"] > 1


@pytest.mark.slow
def test_mistakes_are_one_sentence(tmp_path):
    program(tmp_path, "lm-eval-tasks", "gsm", "--count", "1", "--out", "tasks")
    asked = ["--tasks", "wavefront_gsm", "--include_path", "tasks"]
    bad = program(
        tmp_path, "lm-eval", "--", *asked, "--model_args", "pretrained=toy,stepps=4", code=1
    )
    (line,) = [one for one in bad.stderr.splitlines() if one.startswith("error: ")]
    assert line == "error: There is no model argument 'stepps' (did you mean 'steps'?)."
    assert "Traceback" not in bad.stderr
    lost = program(tmp_path, "lm-eval", "--", "--tasks", "no_such_task", code=1)
    assert "error: lm-eval: Tasks not found: no_such_task; is --include_path" in lost.stderr
