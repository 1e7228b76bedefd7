"""Task files for lm-eval: a YAML and a JSONL for each task, for offline use.

The items, the prompts (by default the paper's, zero-shot) and the grading are those of
`wavefront.tasks`. lm-eval and `wavefront eval` therefore use the same prompts and give the same
grades.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

from wavefront import tasks
from wavefront.core.errors import OptionError
from wavefront.evaluation.fingerprint import of_grader
from wavefront.evaluation.judging import is_judged
from wavefront.evaluation.task_spec import open_task, parse
from wavefront.integrations.lm_eval.grading import METRICS
from wavefront.storage.write_file import write_text
from wavefront.tasks.base import Ask, Sample, Task

PREFIX = "wavefront_"
LENGTH = 1024  # new tokens, as in the paper; max_new_tokens in model_args takes precedence
BENCHMARKS = ("gsm8k", "math", "humaneval", "mbpp", "bbh")
# Users' task files contain this name, so do not change it.
GRADER = "wavefront.integrations.lm_eval.process_results"


class TaskFile(NamedTuple):
    """A task that was written."""

    name: str  # in lm-eval
    items: int
    yaml: Path


def benchmarks() -> list[str]:
    """Return the names of the tasks of the paper's five benchmarks."""
    return [name for name in tasks.benchmarks() if name.startswith(BENCHMARKS)]


def write(
    names: Sequence[str],
    out: Path,
    *,
    ask: Ask,
    length: int = LENGTH,
    allow_unsandboxed: bool = False,
) -> list[TaskFile]:
    """Write every task to `out`, and a group for the BBH tasks.

    A name is a task spec that the user wrote: a built-in name, `module.Class`, or a JSONL file.
    Every file records the prompt style and the choice of items.
    """
    if not names:
        raise OptionError("No task is given: name at least one, such as gsm.")
    out = Path(out).resolve()
    (out / "data").mkdir(parents=True, exist_ok=True)
    written = [
        _write(name, out, ask, length=length, unsandboxed=allow_unsandboxed) for name in names
    ]
    subsets = [file.name for file in written if file.name.startswith(f"{PREFIX}bbh_")]
    if subsets:
        _write_group(out / f"{PREFIX}bbh.yaml", f"{PREFIX}bbh", subsets)
    return written


def _write(spec: str, out: Path, ask: Ask, *, length: int, unsandboxed: bool) -> TaskFile:
    kind, options = parse(spec)
    task: Task = open_task(spec, allow_unsandboxed=unsandboxed)
    risky = unsandboxed and task.executes
    options |= {"allow_unsandboxed": True} if risky else {}
    if is_judged(task):
        raise OptionError(
            f"{spec} has no right answers for lm-eval to count: use `wavefront eval run`."
        )
    samples = task.items(ask)
    if not samples:
        raise OptionError(f"{spec} has no items: check its data.")
    name = _file_name(kind, task, options)
    data = out / "data" / f"{name}.jsonl"
    grader = of_grader(task)
    lines = (json.dumps(_line(kind, options, sample) | {"grader": grader}) for sample in samples)
    write_text(data, "".join(f"{line}\n" for line in lines), error=OptionError)
    yaml = out / f"{PREFIX}{name}.yaml"
    text = _yaml(task, name, data, length=length, ask=ask, risky=risky)
    write_text(yaml, text, error=OptionError)
    return TaskFile(f"{PREFIX}{name}", len(samples), yaml)


def _file_name(kind: str, task: Task, options: dict[str, Any]) -> str:
    """Return the name of a task in lm-eval: a file's, a class's own, or the built-in name."""
    name = Path(options["path"]).stem if kind == "jsonl" else kind
    return re.sub(r"[^A-Za-z0-9_]+", "_", task.name if "." in kind else name)


def _line(name: str, options: dict[str, Any], sample: Sample) -> dict[str, str]:
    """Return an item with strings only, because lm-eval's reader needs columns of one type."""
    return {
        "task": name,
        "options": json.dumps(options),
        "id": sample.id,
        "prompt": sample.prompt,
        "answer": sample.answer,
        "target": sample.target,
        "extra": _literal(sample),
    }


def _literal(sample: Sample) -> str:
    """Return an item's extra fields as a Python literal, because JSON has no tuples."""
    text = repr(dict(sample.extra))
    try:
        same = ast.literal_eval(text) == dict(sample.extra)
    except (ValueError, SyntaxError):
        same = False
    if not same:
        raise OptionError(
            f"{sample.id} has a field that is not a Python literal: leave the task out."
        )
    return text


def _yaml(task: Task, name: str, data: Path, *, length: int, ask: Ask, risky: bool) -> str:
    """Return the task's YAML."""
    # JSON is valid YAML; only the tag that names a function is not JSON.
    choice = {key: value for key, value in asdict(ask).items() if key != "data"}
    metrics = [{"metric": one, "aggregation": "mean", "higher_is_better": True} for one in METRICS]
    digest = blake2b(data.read_bytes(), digest_size=8).hexdigest()
    fields: dict[str, Any] = {
        "task": f"{PREFIX}{name}",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(data)}},
        "test_split": "test",
        "output_type": "generate_until",
        "doc_to_text": "prompt",
        "doc_to_target": "target",
        "generation_kwargs": {"until": [], "max_gen_toks": length, "do_sample": False},
        "metric_list": metrics,
        "num_fewshot": 0,
        "metadata": {
            "version": task.version,
            "grader": of_grader(task),
            "items": digest,
            **choice,
        },
    }
    if risky:  # lm-eval then requires --confirm_run_unsafe_code
        fields["unsafe_code"] = True
    lines = [f"{key}: {json.dumps(value)}" for key, value in fields.items()]
    return "\n".join([*lines, f"process_results: !function {GRADER}", ""])


def _write_group(file: Path, name: str, members: Sequence[str]) -> None:
    mean = [{"metric": one, "aggregation": "mean", "weight_by_size": False} for one in METRICS]
    fields = {"group": name, "task": list(members), "aggregate_metric_list": mean}
    lines = [f"{key}: {json.dumps(value)}" for key, value in fields.items()]
    write_text(file, "\n".join([*lines, ""]), error=OptionError)
