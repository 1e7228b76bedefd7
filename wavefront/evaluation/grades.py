"""Grades: grade the answers of a run, separately from generating them, and write the summary."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from wavefront.core.errors import OptionError, RunError
from wavefront.evaluation import run, summary
from wavefront.evaluation.run import Run
from wavefront.evaluation.task_spec import open_task
from wavefront.storage import jsonl
from wavefront.storage.fingerprint import of_value
from wavefront.tasks.base import Grade, Sample

VERDICTS = ("correct", "strict", "flexible")


def grade(
    answered: Run,
    *,
    data: str = "",
    allow_unsandboxed: bool = False,
    regrade: bool = False,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> dict[str, Any]:
    """Grade every answer without a grade, write the summary, and return it.

    `regrade` deletes the existing grades first. Without it, grades by another version of the task
    raise `RunError`.
    """
    task = open_task(answered.task_spec, allow_unsandboxed=allow_unsandboxed)
    samples = _samples(answered, task, data)
    with jsonl.lock_directory(answered.folder):
        if not answered.answers:
            raise RunError(
                f"{answered.folder} has no answers to grade yet: run `wavefront eval generate`."
            )
        file = answered.folder / run.GRADES
        if regrade:
            file.unlink(missing_ok=True)
        with jsonl.JsonLines(file) as out:
            known = jsonl.by_key(out.found, file)
            _check_current(known, answered, str(task.version))
            for number, (key, answer) in enumerate(sorted(answered.answers.items()), 1):
                if key not in known:
                    out.append(_line(key, answer, samples[answer["id"]], task=task))
                progress(number, len(answered.answers))
        result = summary.summarise(run.open_run(answered.folder))
        jsonl.write_json(answered.folder / run.SUMMARY, result)
    return result


def _samples(answered: Run, task: Any, data: str) -> dict[str, Sample]:
    """Return the items by id; `RunError` if they are not those of the run."""
    samples = {sample.id: sample for sample in task.items(answered.ask(data))}
    for answer in answered.answers.values():
        sample = samples.get(answer.get("id", ""))
        if sample is None or run.prompt_hash(sample) != answer.get("prompt_hash"):
            raise RunError(
                f"{answered.folder} answers {answer.get('id')!r}, but {answered.task} here has no "
                "such item or another prompt for it: give the --data of the run."
            )
    return samples


def _check_current(known: Mapping[str, Mapping[str, Any]], answered: Run, version: str) -> None:
    """Raise `RunError` if a grade is of another answer or of another version of the task."""
    file: Path = answered.folder / run.GRADES
    for key, line in known.items():
        answer = answered.answers.get(key)
        if line.get("version") != version:
            raise RunError(
                f"{file} was graded by version {line.get('version')} of {answered.task}, and this "
                f"is version {version}: use --regrade."
            )
        if answer is None or line.get("text_hash") != of_value(answer["text"]):
            raise RunError(f"{file} has a grade of another answer ({key}): use --regrade.")


def _line(key: str, answer: Mapping[str, Any], sample: Sample, *, task: Any) -> dict[str, Any]:
    """Grade one answer. A prompt that was too long counts as wrong, without a grader."""
    problem = answer.get("problem")
    found = Grade(False, None, "not asked") if problem else task.grade(sample, answer["text"])
    line = {
        "key": key,
        "id": sample.id,
        "task": task.name,
        "version": str(task.version),
        "text_hash": of_value(answer["text"]),
        "correct": bool(found.correct),
        "strict": bool(found.strict),
        "flexible": bool(found.flexible),
        "answer": found.answer,
        "target": sample.target,
        "how": found.how,
    }
    if task.executes:
        line["layers"] = list(found.layers)  # the sandbox layers around the code
    return line


def verdicts(graded: Run, verdict: str = "correct") -> dict[str, bool]:
    """Return right or wrong for each item; `RunError` if some answers have no grade."""
    if verdict not in VERDICTS:
        raise OptionError(f"A verdict is one of {', '.join(VERDICTS)}, not {verdict!r}.")
    ungraded = len(graded.answers.keys() - graded.grades.keys())
    if ungraded or not graded.answers:
        raise RunError(
            f"{graded.folder} has {ungraded or 'no'} answers without a grade: run "
            f"`wavefront eval grade {graded.folder}`."
        )
    return {line["id"]: bool(line[verdict]) for line in graded.grades.values()}
