"""lm-eval as a process with our model, offline: tasks, multiple choice, perplexity, cache."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers.pages import blocks, commands

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


# Skip lm-eval's thousands of own tasks, which load slowly, and pass the arguments as one string.
AGAIN = """\
import json, sys
import lm_eval
from lm_eval.tasks import TaskManager
from lm_eval.utils import setup_logging
from wavefront.integrations.lm_eval import register

setup_logging()
register()
asked, found = json.loads(sys.argv[1]), []
for strategy in asked["strategies"]:
    results = lm_eval.simple_evaluate(
        model="wavefront",
        model_args=f"{asked['model']},strategy={strategy}",
        tasks=asked["tasks"],
        use_cache="cache",
        task_manager=TaskManager(include_path="tasks", include_defaults=False),
    )
    samples = results["samples"]
    found.append({task: [one["resps"] for one in samples[task]] for task in asked["tasks"]})
print(json.dumps(found))
"""
TASKS = ("wavefront_gsm", "wavefront_navigate", "tiny_choice", "tiny_rolling")
MODEL = "pretrained=toy,max_new_tokens=8,mc_num=4,mc_batch=2"
WAVE, BLOCK = "wavefront(size=4, radius=2)", "block(size=2)"


def program(home: Path, *args: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run Python offline, with cache folders of its own."""
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(home / "hf")}
    mine = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    done = subprocess.run(
        [sys.executable, *args],
        capture_output=True,
        text=True,
        cwd=home,
        timeout=280,
        env=os.environ | offline | mine,
    )
    assert done.returncode == code, done.stderr[-3000:]
    return done


def ours(home: Path, *args: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    return program(home, "-m", "wavefront", *args, code=code)


def responses(home: Path, task: str) -> list[Any]:
    (file,) = (home / "out").glob(f"*/samples_{task}_*.jsonl")
    return [json.loads(line)["resps"] for line in file.read_text().splitlines()]


@pytest.mark.slow
def test_lm_eval_runs_local_tasks_offline(tmp_path):
    ours(tmp_path, "lm-eval", "tasks", "gsm", "navigate", "--items", "3", "--out", "tasks")
    data = tmp_path / "tasks" / "data" / "tiny.jsonl"
    data.write_text('{"question": "Is it?", "label": 0}\n{"question": "Was it?", "label": 1}\n')
    for name, text in (("choice", CHOICE), ("rolling", ROLLING)):
        (tmp_path / "tasks" / f"{name}.yaml").write_text(text.replace("FILE", str(data)))
    asked = ["--tasks", *TASKS, "--include_path", "tasks", "--batch_size", "2", "--log_samples"]
    asked += ["--output_path", "out", "--use_cache", "cache"]
    asked += ["--model_args", f"{MODEL},strategy={WAVE}"]
    done = ours(tmp_path, "lm-eval", "run", "--", *asked)
    assert "fatal" not in done.stderr  # the folder is not in a git repository

    (file,) = (tmp_path / "out").glob("*/results_*.json")
    results = json.loads(file.read_text())["results"]
    assert {"correct,none", "strict,none", "flexible,none"} <= set(results["wavefront_navigate"])
    assert results["tiny_choice"]["acc,none"] in (0.0, 0.5, 1.0)
    assert results["tiny_rolling"]["byte_perplexity,none"] > 1

    given = {"model": MODEL, "tasks": TASKS, "strategies": [WAVE, BLOCK]}
    done = program(tmp_path, "-c", AGAIN, json.dumps(given))
    again, other = json.loads(done.stdout.splitlines()[-1])
    # lm-eval alone would take every answer from the first run.
    assert done.stderr.count("Requests remaining: 0") == 3
    assert done.stderr.count("Cached requests: 0,") == 3
    first = {task: responses(tmp_path, task) for task in TASKS}
    assert again["wavefront_gsm"] == first["wavefront_gsm"] != other["wavefront_gsm"]
    lm = wavefront.load("toy")
    lines = (tmp_path / "tasks" / "data" / "gsm.jsonl").read_text().splitlines()
    prompts = [json.loads(line)["prompt"] for line in lines]
    for strategy, found in ((WAVE, first), (BLOCK, other)):
        options = {"strategy": strategy, "max_new_tokens": 8}
        texts = [lm.generate(prompt, raw=True, **options).text for prompt in prompts]
        assert found["wavefront_gsm"] == [[[text]] for text in texts]


@pytest.mark.slow
def test_commands_of_the_guide_run_as_printed(tmp_path):
    (block,) = (
        one
        for one in blocks(ROOT / "docs" / "evaluate.md", "bash")
        if "wavefront lm-eval run" in one.text and "--data DIR" not in one.text
    )
    install, *printed = commands(block.text, {})
    assert install.words[:2] == ["pip", "install"]
    assert [one.words[:3] for one in printed] == [
        ["wavefront", "lm-eval", "tasks"], ["wavefront", "lm-eval", "run"],
    ]  # fmt: skip
    for one in printed:
        ours(tmp_path, *one.words[1:])
    (file,) = (tmp_path / "out").glob("*/results_*.json")
    found = json.loads(file.read_text())["results"]["wavefront_boolean_expressions"]
    assert found["correct,none"] > 0.5  # ripple solves this task


@pytest.mark.slow
def test_mistakes_raise_a_one_line_error(tmp_path):
    bad = ["--tasks", "arc_easy", "--model_args", "pretrained=toy,stepps=4"]
    said = ours(tmp_path, "lm-eval", "run", "--", *bad, code=1).stderr.splitlines()
    assert said == ["error: There is no model argument 'stepps' (did you mean 'steps'?)."]
    lost = ours(tmp_path, "lm-eval", "run", "--", "--tasks", "no_such_task", code=1)
    assert "error: lm-eval: Tasks not found: no_such_task; is --include_path" in lost.stderr
    assert "Traceback" not in lost.stderr
