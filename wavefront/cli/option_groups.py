"""Groups of options: `decoding: DecodingOptions` in a command stands for all fields of that class.

typer wants every option as a parameter of the command. `expand` gives it the fields of the groups
in the place of the groups, so that commands share options without repeating them.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import traceback
import warnings
from collections.abc import Callable
from typing import Any, get_type_hints

from wavefront.cli.options import PlainOptions
from wavefront.cli.shell_completion import completed
from wavefront.core.errors import OptionError, WavefrontError, WavefrontWarning


def expand(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the fields of its option groups as parameters of its own."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {
        n: kind for n, kind in hints.items() if dataclasses.is_dataclass(kind)
    }
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        if name in groups:
            parameters += _fields(groups[name])
        else:
            keyword = inspect.Parameter.KEYWORD_ONLY
            parameters.append(parameter.replace(annotation=hints[name], kind=keyword))
    parameters = [completed(command.__name__, one) for one in parameters]

    @functools.wraps(command)
    def expanded(**values: Any) -> None:
        made = {
            name: kind(**{field.name: values.pop(field.name) for field in dataclasses.fields(kind)})
            for name, kind in groups.items()
        }
        _run(command, values | made)

    expanded.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportAttributeAccessIssue]
    expanded.__annotations__ = {one.name: one.annotation for one in parameters}
    return expanded


def _fields(group: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=field.default,
            annotation=hints[field.name],
        )
        for field in dataclasses.fields(group)
    ]


def _run(command: Callable[..., None], values: dict[str, Any]) -> None:
    """Call the command, and honour those of its options that are about calling it."""
    output = next((one for one in values.values() if isinstance(one, PlainOptions)), None)
    if output and output.quiet:
        warnings.simplefilter("ignore", WavefrontWarning)  # undone when the program returns
    try:
        command(**values)
    except WavefrontError:
        if output and output.debug:
            traceback.print_exc()
        raise


def given(*groups: Any) -> dict[str, Any]:
    """What was written on the command line, under the library's names."""
    values: dict[str, Any] = {}
    for group in groups:
        for name, value in vars(group).items():
            if value is not None and value is not False and value != []:
                values[name] = value
    # The one option that has another shape here: given again instead of listed.
    if one_by_one := values.pop("stop_id", None):
        if "stop_ids" in values:
            raise OptionError("'stop_ids' is given twice, once as 'stop_id'.")
        values["stop_ids"] = one_by_one
    return values
