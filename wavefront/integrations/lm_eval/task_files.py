"""Task files for lm-eval: a YAML and a JSONL for each task, for offline use.

The items, the prompts (by default the paper's, zero-shot) and the grading are those of
`wavefront.tasks`. So lm-eval and `wavefront eval` use the same prompts and give the same grades.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Sequence
from dataclasses import asdict
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

from wavefront import tasks
from wavefront.core.errors import OptionError
from wavefront.integrations.lm_eval.grading import METRICS
from wavefront.tasks.base import Ask, Sample, Task

PREFIX = "wavefront_"
LENGTH = 1024  # new tokens, as in the paper; max_new_tokens in model_args takes precedence
BENCHMARKS = ("gsm8k", "math", "humaneval", "mbpp", "bbh")
GRADER = "wavefront.integrations.lm_eval.process_results"  # users' files name it: keep it


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

    Every file records the prompt style and the choice of items.
    """
    if not names:
        raise OptionError("No task is given: name at least one, such as gsm.")
    out = Path(out).resolve()
    (out / "data").mkdir(parents=True, exist_ok=True)
    written = [
        _write(name, out, ask, length=length, unsandboxed=allow_unsandboxed) for name in names
    ]
    subsets = [one.name for one in written if one.name.startswith(f"{PREFIX}bbh_")]
    if subsets:
        _write_group(out / f"{PREFIX}bbh.yaml", f"{PREFIX}bbh", subsets)
    return written


def _write(name: str, out: Path, ask: Ask, *, length: int, unsandboxed: bool) -> TaskFile:
    risky = unsandboxed and tasks.load(name).executes
    options = {"allow_unsandboxed": True} if risky else {}
    task: Task = tasks.load(name, **options)
    samples = task.items(ask)
    if not samples:
        raise OptionError(f"{name} has no items: check its data.")
    data = out / "data" / f"{name}.jsonl"
    lines = (json.dumps(_line(name, options, sample)) for sample in samples)
    data.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    yaml = out / f"{PREFIX}{name}.yaml"
    text = _yaml(task, name, data, length=length, ask=ask, risky=risky)
    yaml.write_text(text, encoding="utf-8")
    return TaskFile(f"{PREFIX}{name}", len(samples), yaml)


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
        "metadata": {"version": task.version, "items": digest, **choice},
    }
    if risky:  # lm-eval then requires --confirm_run_unsafe_code
        fields["unsafe_code"] = True
    lines = [f"{key}: {json.dumps(value)}" for key, value in fields.items()]
    return "\n".join([*lines, f"process_results: !function {GRADER}", ""])


def _write_group(file: Path, name: str, members: Sequence[str]) -> None:
    mean = [{"metric": one, "aggregation": "mean", "weight_by_size": False} for one in METRICS]
    fields = {"group": name, "task": list(members), "aggregate_metric_list": mean}
    lines = [f"{key}: {json.dumps(value)}" for key, value in fields.items()]
    file.write_text("\n".join([*lines, ""]), encoding="utf-8")
