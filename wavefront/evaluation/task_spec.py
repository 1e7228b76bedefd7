"""Asked: a task by its name and options, `bbh_navigate(cot=True)`, and its items."""

from __future__ import annotations

import ast
from typing import Any

from wavefront import tasks
from wavefront.core.errors import OptionError
from wavefront.tasks.base import Ask, Sample


def open_task(text: str, *, allow_unsandboxed: bool = False) -> Any:
    """A task from its name, or its name with options in brackets; nothing of it is evaluated."""
    name, options = parse(text)
    task: Any = tasks.load(name, **options)
    if allow_unsandboxed and hasattr(task, "allow_unsandboxed"):
        return tasks.load(name, **options, allow_unsandboxed=True)
    return task


def parse(text: str) -> tuple[str, dict[str, Any]]:
    """The name and the options."""
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
        raise OptionError(f"{text!r} cannot be asked: --allow-unsandboxed is an option apart.")
    return name.strip(), options


def samples_of(text: str, ask: Ask) -> tuple[Any, list[Sample]]:
    """A task and its items; refused when there are none, or two of one name."""
    task = open_task(text)
    samples = task.items(ask)
    if not samples:
        raise OptionError(f"{text} has no items of this kind: ask for another --split or --items.")
    ids = [sample.id for sample in samples]
    if len({*ids}) < len(ids):
        twice = next(one for one in ids if ids.count(one) > 1)
        raise OptionError(f"{text} has two items of the name {twice!r}: mend its data.")
    return task, samples
