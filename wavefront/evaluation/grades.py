"""Grades: grade the answers of a run, separately from generating them, and write the summary."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from wavefront.core.errors import OptionError, RunError
from wavefront.evaluation import fingerprint, judging, run, summary
from wavefront.evaluation.run import Run
from wavefront.evaluation.task_spec import open_run_task, trusted_tasks
from wavefront.storage import jsonl
from wavefront.storage.fingerprint import of_value
from wavefront.storage.write_file import write_text
from wavefront.tasks.base import Grade, Sample, Task

VERDICTS = tuple(summary.METRICS)


def grade(
    answered: Run,
    *,
    tasks: Sequence[str] = (),
    data: str = "",
    allow_unsandboxed: bool = False,
    regrade: bool = False,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> dict[str, Any]:
    """Grade every answer without a grade, write the summary, and return it.

    Args:
        answered: The run.
        tasks: Your own tasks, such as `module.Class`, that the run may use and import.
        data: The folder of the task's files.
        allow_unsandboxed: Run model-written code even if no sandbox is available.
        regrade: Delete all existing grades first. Without it, only the grades from other
            graders are replaced.
        progress: Called with the number of grades so far and the number of answers.

    Raises:
        RunError: The run has no answers, another version of the task graded it, or its task is not
            built in and not among `tasks`.
    """
    task = open_run_task(
        answered.task_spec,
        trusted_tasks(tasks),
        name=answered.task,
        allow_unsandboxed=allow_unsandboxed,
    )
    samples = _samples(answered, task, data)
    with jsonl.lock_directory(answered.folder):
        if not answered.answers:
            raise RunError(
                f"{answered.folder} has no answers to grade yet: run `wavefront eval generate`."
            )
        file = answered.folder / run.GRADES
        if regrade:
            file.unlink(missing_ok=True)
        grader = fingerprint.of_grader(task)
        known = _current_grades(answered, str(task.version), grader)
        missing = {key: one for key, one in sorted(answered.answers.items()) if key not in known}
        if answered.judged:
            lines = judging.quality_lines(answered, missing, samples, task=task)
        else:
            lines = _lines(missing, samples, task=task)
        done = len(known)
        with jsonl.JsonLines(file) as out:
            progress(done, len(answered.answers))
            for some in lines:
                out.append(*({**line, "grader": grader} for line in some))
                done += len(some)
                progress(done, len(answered.answers))
        result = summary.summarise(run.open_run(answered.folder))
        jsonl.write_json(answered.folder / run.SUMMARY, result)
    return result


def _samples(answered: Run, task: Any, data: str) -> dict[str, Sample]:
    """Return the items by id. Raises `RunError` if they differ from the run's items."""
    samples = {sample.id: sample for sample in task.items(answered.ask(data))}
    for answer in answered.answers.values():
        sample = samples.get(answer.get("id", ""))
        if sample is None or run.prompt_hash(sample) != answer.get("prompt_hash"):
            raise RunError(
                f"{answered.folder} has an answer to {answer.get('id')!r}, but {answered.task} "
                "here lacks this item or has a different prompt for it: give the --data of the run."
            )
    return samples


def _current_grades(answered: Run, version: str, grader: str) -> dict[str, dict[str, Any]]:
    """Return this grader's grades, and remove the grades of other graders from the file.

    Raises `RunError` if a grade belongs to another answer or another version of the task.
    """
    file = answered.folder / run.GRADES
    known = jsonl.by_key(jsonl.read(file), file)
    for key, line in known.items():
        answer = answered.answers.get(key)
        if line.get("version") != version:
            raise RunError(
                f"{file} was graded by version {line.get('version')} of {answered.task}, but the "
                f"current version is {version}: use --regrade."
            )
        if answer is None or line.get("text_hash") != of_value(answer["text"]):
            raise RunError(f"{file} has a grade for a different answer ({key}): use --regrade.")
    current = {key: line for key, line in known.items() if line.get("grader") == grader}
    if len(current) < len(known):
        lines = "".join(f"{jsonl.dump(line)}\n" for line in current.values())
        write_text(file, lines, error=RunError)
    return current


def _lines(
    missing: Mapping[str, Mapping[str, Any]], samples: Mapping[str, Sample], *, task: Task
) -> Iterator[list[dict[str, Any]]]:
    """Yield the grades in order. Programs run several at a time, one for every core."""

    def line(key: str) -> list[dict[str, Any]]:
        answer = missing[key]
        return [_line(key, answer, samples[answer["id"]], task=task)]

    if not task.executes:
        yield from map(line, missing)
        return
    pool = ThreadPoolExecutor(os.cpu_count() or 1)
    try:
        yield from pool.map(line, missing)
    finally:
        pool.shutdown(cancel_futures=True)


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
    """Return whether each item is correct; raise `RunError` if some answers have no grade."""
    if verdict not in VERDICTS:
        raise OptionError(
            f"A verdict is one of {', '.join(VERDICTS)}, not {verdict!r}.",
            option="verdict",
            value=verdict,
        )
    if graded.judged:
        raise RunError(
            f"{graded.folder} is a run of {graded.task}, whose answers are not right or wrong: "
            "compare their quality with `wavefront eval diff`."
        )
    check_graded(graded)
    return {line["id"]: bool(line[verdict]) for line in graded.grades.values()}


def check_graded(graded: Run) -> None:
    """Raise `RunError` if some answers have no grade."""
    ungraded = len(graded.answers.keys() - graded.grades.keys())
    if ungraded or not graded.answers:
        raise RunError(
            f"{graded.folder} has {ungraded or 'no'} answers without a grade: run "
            f"`wavefront eval grade {graded.folder}`."
        )
    if graded.grader is None:
        raise RunError(
            f"{graded.folder} has grades from an unknown grader: run "
            f"`wavefront eval grade {graded.folder}`."
        )
