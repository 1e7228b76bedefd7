"""Task specs: a task by its name and options, such as `bbh_navigate(cot=True)`, and its items.

Your own task is `module.Class`, or a JSONL file. `open_task` opens what the user wrote, and
imports the module. `open_run_task` opens what a run names: it imports nothing.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Mapping
from dataclasses import is_dataclass, replace
from pathlib import Path
from typing import Any

from wavefront import tasks
from wavefront.core.errors import OptionError, RunError, SpecError, quote
from wavefront.core.spec import check_frozen, import_class
from wavefront.evaluation.protocol import check_half, half_of
from wavefront.tasks.base import Ask, Sample
from wavefront.tasks.grading.final_answer import MARK, choices_of, final_pattern

CONSTRAIN = ("final", "choice")  # what an answer to an item may look like

FILES = (".jsonl", ".json")
REQUIRED = ("name", "version", "executes", "items", "grade")


def open_task(text: str, *, allow_unsandboxed: bool = False) -> Any:
    """Open a task that the user wrote. The spec is parsed and never evaluated.

    Args:
        text: A name of `wavefront list tasks`, `module.Class` for your own task, or the path of a
            JSONL file. A name or a class may have options: `gsm8k(any_data=True)`.
        allow_unsandboxed: Let the task run code without a sandbox.

    Raises:
        OptionError: There is no such task or option, or the class is not a task.
    """
    name, options = parse(text)
    task = _import_task(name, options) if "." in name else tasks.load(name, **options)
    return _unsandboxed(task) if allow_unsandboxed else task


def open_run_task(
    spec: str, trusted: Mapping[str, Any], *, name: str, allow_unsandboxed: bool = False
) -> Any:
    """Open the task of a run. A run can come from anyone, so nothing is imported.

    Args:
        spec: The task as the run spells it.
        trusted: Tasks that the user named, by their specs; see `trusted_tasks`.
        name: The name of the run's task.
        allow_unsandboxed: Let the task run code without a sandbox.

    Raises:
        RunError: The task is not built in, and the user has not named it.
        OptionError: There is no such task or option.
    """
    own = [task for task in trusted.values() if task.name == name]
    task = trusted.get(spec, own[0] if own else None)
    if task is None:
        known, options = parse(spec)
        if "." in known:
            raise RunError(
                f"The run uses the task {quote(spec)}, which is not built in; importing it runs "
                "its code. If you trust it, name it with --task."
            )
        task = tasks.load(known, **options)
    return _unsandboxed(task) if allow_unsandboxed else task


def trusted_tasks(specs: Any) -> dict[str, Any]:
    """Open the tasks that the user named, by their specs."""
    return {spec: open_task(spec) for spec in specs or ()}


def is_own(text: str) -> bool:
    """Return whether a spec names a user's own task: a class or a file."""
    return "." in parse(text)[0] or parse(text)[0] == "jsonl"


def _unsandboxed(task: Any) -> Any:
    able = is_dataclass(task) and hasattr(task, "allow_unsandboxed")
    return replace(task, allow_unsandboxed=True) if able else task  # pyright: ignore[reportArgumentType]


def _import_task(name: str, options: Mapping[str, Any]) -> Any:
    """Create a task of a class outside the package."""
    try:
        kind = import_class(name)
        lacking = [one for one in REQUIRED if not hasattr(kind, one)]
        if lacking:
            raise OptionError(
                f"{quote(name)} is not a task: it has no {', '.join(lacking)}. Derive it from "
                "wavefront.tasks.base.Procedural.",
                option="task",
                value=name,
            )
        check_frozen(kind, name, noun="task")
    except SpecError as error:
        raise OptionError(str(error), option="task", value=name) from error
    return tasks.construct(kind, options)


def parse(text: str) -> tuple[str, dict[str, Any]]:
    """Return the name and the options of a spec. The path of a file stands for `jsonl(path=...)`.

    Raises:
        OptionError: The text is not a spec.
    """
    if text.strip().endswith(FILES):
        return "jsonl", {"path": text.strip()}
    name, bracket, _ = text.partition("(")
    if not bracket:
        return text.strip(), {}
    try:
        call = ast.parse(text.strip(), mode="eval").body
        assert isinstance(call, ast.Call)
        assert not call.args
        options = {str(one.arg): ast.literal_eval(one.value) for one in call.keywords}
    except (SyntaxError, ValueError, AssertionError, RecursionError, MemoryError):
        raise OptionError(
            f"A task is written NAME or NAME(option=value, ...), not {text!r}."
        ) from None
    if "allow_unsandboxed" in options or "None" in options:
        raise OptionError(
            f"A task spec cannot allow unsandboxed code, as {text!r} does: use --allow-unsandboxed."
        )
    return name.strip(), options


def label(text: str) -> str:
    """Return the name of a task for a table or a title: of a file of prompts, the file's name."""
    name, options = parse(text)
    return Path(str(options["path"])).name if name == "jsonl" and "path" in options else text


def samples_of(text: str, ask: Ask) -> tuple[Any, list[Sample]]:
    """Return a task that the user named, and its items. Raises `OptionError` if it is unusable."""
    task = open_task(text)
    return task, items_of(task, ask, name=text)


def items_of(task: Any, ask: Ask, *, name: str) -> list[Sample]:
    """Return a task's items. Raises `OptionError` if there are none or two share an id."""
    check_half(ask.half)
    samples = [sample for sample in task.items(ask) if ask.half in ("", half_of(sample.id))]
    if not samples:
        raise OptionError(f"{name} has no items of this kind: choose another --split or --items.")
    counts = Counter(sample.id for sample in samples)
    if len(counts) < len(samples):
        twice = next(one for one, count in counts.items() if count > 1)
        raise OptionError(f"{name} has two items with the id {twice!r}: correct its data.")
    return samples


def constraint_of(task: Any, sample: Sample, how: str) -> dict[str, Any]:
    """Return the decoding options that keep the answer to an item gradable.

    Args:
        task: The task.
        sample: The item.
        how: "final": any text that ends with a marked final answer. "choice": only a marked final
            answer, one of the options listed in the question. "": no constraint.

    Raises:
        OptionError: The final answers of the item cannot be described.
    """
    if not how:
        return {}
    kind = task.final_kind(sample) if hasattr(task, "final_kind") else ""
    if how == "choice" and (choices := choices_of(kind, sample.prompt)):
        return {"choices": [f"{MARK} {choice}" for choice in choices]}
    if how == "final" and (pattern := final_pattern(kind, sample.prompt)):
        return {"regex": pattern}
    what = "does not list its possible answers" if how == "choice" else "has no final answer"
    raise OptionError(
        f"{task.name} {what}: leave out constrain={how!r}.", option="constrain", value=how
    )
