"""Grades: verdicts on the answers of a run, made apart from them, and the summary of both."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from wavefront.core.errors import OptionError, RunError
from wavefront.evaluation import run, summary
from wavefront.evaluation.fingerprint import digest
from wavefront.evaluation.run import Run
from wavefront.evaluation.task_spec import open_task
from wavefront.storage import jsonl
from wavefront.tasks.base import Grade, Sample

VERDICTS = ("correct", "strict", "flexible")


def grade(
    there: Run,
    *,
    data: str = "",
    allow_unsandboxed: bool = False,
    again: bool = False,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> dict[str, Any]:
    """Grade what has no grade yet, write the summary, and return it.

    `again` forgets the grades that are there; they are refused when another version made them.
    """
    task = open_task(there.task_spec, allow_unsandboxed=allow_unsandboxed)
    samples = _samples(there, task, data)
    with jsonl.held(there.folder):
        if not there.answers:
            raise RunError(
                f"{there.folder} has no answers to grade yet: run `wavefront eval generate`."
            )
        file = there.folder / run.GRADES
        if again:
            file.unlink(missing_ok=True)
        with jsonl.Lines(file) as out:
            known = _current(jsonl.by_key(out.found, file), there, str(task.version), file)
            for number, (key, answer) in enumerate(sorted(there.answers.items()), 1):
                if key not in known:
                    out.append(_line(key, answer, samples[answer["id"]], task))
                progress(number, len(there.answers))
        made = summary.summarise(run.open_run(there.folder))
        jsonl.write_json(there.folder / run.SUMMARY, made)
    return made


def _samples(there: Run, task: Any, data: str) -> dict[str, Sample]:
    """The items of a run by their names; refused when they are not those that were asked."""
    samples = {sample.id: sample for sample in task.items(there.ask(data))}
    for answer in there.answers.values():
        sample = samples.get(answer.get("id", ""))
        if sample is None or run.prompt_hash(sample) != answer.get("prompt_hash"):
            raise RunError(
                f"{there.folder} answers {answer.get('id')!r}, and {there.task} as it is here has "
                "no such item or asks it otherwise: give the --data it was made with."
            )
    return samples


def _current(
    known: Mapping[str, Mapping[str, Any]], there: Run, version: str, file: Path
) -> Mapping[str, Mapping[str, Any]]:
    """The grades that are there, refused when they are of other answers or of another version."""
    for key, line in known.items():
        answer = there.answers.get(key)
        if line.get("version") != version:
            raise RunError(
                f"{file} was graded by version {line.get('version')} of {there.task}, and this is "
                f"version {version}: --regrade grades again."
            )
        if answer is None or line.get("text_hash") != digest(answer["text"]):
            raise RunError(f"{file} has a grade of another answer ({key}): --regrade grades again.")
    return known


def _line(key: str, answer: Mapping[str, Any], sample: Sample, task: Any) -> dict[str, Any]:
    """A verdict. What could not be asked is wrong, and no grader is called for it."""
    problem = answer.get("problem")
    made = Grade(False, None, "not asked") if problem else task.grade(sample, answer["text"])
    told = {
        "key": key,
        "id": sample.id,
        "task": task.name,
        "version": str(task.version),
        "text_hash": digest(answer["text"]),
        "correct": bool(made.correct),
        "strict": bool(made.strict),
        "flexible": bool(made.flexible),
        "answer": made.answer,
        "target": sample.target,
        "how": made.how,
    }
    if task.executes:
        told["layers"] = list(made.layers)  # what stood around the code
    return told


def verdicts(there: Run, verdict: str = "correct") -> dict[str, bool]:
    """Right or wrong by item; refused before all answers are graded."""
    if verdict not in VERDICTS:
        raise OptionError(f"A verdict is one of {', '.join(VERDICTS)}, not {verdict!r}.")
    ungraded = len(there.answers.keys() - there.grades.keys())
    if ungraded or not there.answers:
        raise RunError(
            f"{there.folder} has {ungraded or 'no'} answers without a grade: run "
            f"`wavefront eval grade {there.folder}`."
        )
    return {line["id"]: bool(line[verdict]) for line in there.grades.values()}
