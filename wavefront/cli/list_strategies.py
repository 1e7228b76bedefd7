"""`wavefront strategies`: the strategies there are.

All of it is read off the classes by walking the shelves, so a new file is listed by being there.
"""

from __future__ import annotations

import dataclasses
import inspect
import typing
from typing import Annotated, Any

import typer

from wavefront.cli.output import print_table, say, say_json, stderr
from wavefront.core.errors import SpecError, did_you_mean

SHELVES = {
    "strategies": "where a step may look",
    "selectors": "how many places a step commits, and which (a strategy's option take)",
}


def strategies(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="One to explain; module.Class for your own."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the strategies and their options, or explain one of them.

    After --strategy write NAME, or NAME(option=value, ...) in quotes; a take goes inside, as in
    "standard(selector=dream(eps=0.01))".
    """
    if name is not None:
        entry = _entry(*_find(name))
        say_json(entry) if as_json else say(_explanation(entry))
        return
    if as_json:
        say_json([_entry(kind, shelf) for shelf in SHELVES for kind in _kinds(shelf)])
        return
    for shelf, meaning in SHELVES.items():
        rows = [
            (kind.spec_name(), _options(kind), summary(inspect.getmodule(kind)))
            for kind in _kinds(shelf)
        ]
        print_table(f"{shelf}: {meaning}", rows)
    stderr().print("One of them in full: wavefront strategies NAME")


def _kinds(shelf: str) -> list[type[Any]]:
    from wavefront.core import spec

    return [spec.find(name, shelf) for name in spec.names(shelf)]


def _find(name: str) -> tuple[type[Any], str]:
    """The class of a name on either shelf, or from outside."""
    from wavefront.core import spec
    from wavefront.core.strategy import Selector, Strategy

    bare = name.partition("(")[0].strip()
    known = [one for shelf in SHELVES for one in spec.names(shelf)]
    if "." not in bare and bare not in known:
        raise SpecError(
            f"There is no strategy or take {bare!r}{did_you_mean(bare, known)}; "
            f"there are: {', '.join(known)}."
        )
    shelf = "strategies" if bare in spec.names("strategies") or "." in bare else "selectors"
    found = spec.find(bare, shelf)
    if not (issubclass(found, Strategy | Selector) and dataclasses.is_dataclass(found)):
        raise SpecError(f"{bare!r} is not a strategy: a strategy is a frozen dataclass.")
    return found, "selectors" if issubclass(found, Selector) else "strategies"


def _entry(kind: type[Any], shelf: str) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    name = kind.spec_name()
    options = [
        {"name": field.name, "type": _type(hints[field.name]), "default": _default(field)}
        for field in dataclasses.fields(kind)
    ]
    stated = [option for option in options if option["default"] is not None]
    # What everybody sets first comes first: the example shows values that a repr would show.
    shown = [field.name for field in dataclasses.fields(kind) if field.repr]
    values = ", ".join(f"{o['name']}={o['default']}" for o in stated if o["name"] in shown)
    example = getattr(kind, "example", "") or (f"{name}({values})" if values else name)
    return {
        "shelf": shelf,
        "name": name,
        "summary": summary(inspect.getmodule(kind)),
        "about": inspect.getdoc(kind) or "",
        "options": options,
        "example": example if shelf == "strategies" else f"standard(selector={example})",
    }


def summary(module: Any) -> str:
    """What a module is: the first line of its docstring, less its own name."""
    first = (inspect.getdoc(module) or "").partition("\n")[0]
    name, _, rest = first.partition(": ")
    own = module.__name__.rpartition(".")[2]
    return rest if name.lower().replace(" ", "_") == own else first


def _default(field: dataclasses.Field[Any]) -> str | None:
    """The default as a spec string writes it; None when there is none."""
    if field.default is not dataclasses.MISSING:
        return repr(field.default)
    if field.default_factory is not dataclasses.MISSING:
        return repr(field.default_factory())
    return None


def _type(hint: Any) -> str:
    if typing.get_origin(hint) is typing.Literal:
        return " or ".join(repr(value) for value in typing.get_args(hint))
    return getattr(hint, "__name__", str(hint)).lower() if isinstance(hint, type) else str(hint)


def _options(kind: type[Any]) -> str:
    """In short: what a repr shows, and the take. The others are off unless somebody sets them."""
    fields = dataclasses.fields(kind)
    first = [field for field in fields if field.repr or field.name == "selector"]
    shown = [
        field.name if _default(field) is None else f"{field.name}={_default(field)}"
        for field in first
    ]
    return ", ".join([*shown, *(["..."] if len(first) < len(fields) else [])])


def _explanation(entry: dict[str, Any]) -> str:
    lines = [f"{entry['name']}: {entry['summary']}", "", entry["about"]]
    if entry["options"]:
        width = max(len(option["name"]) for option in entry["options"])
        lines += ["", "Options"]
        lines += [
            f"  {option['name']:<{width}}  {option['type']}; "
            + ("no default" if option["default"] is None else f"by default {option['default']}")
            for option in entry["options"]
        ]
    # A question that the default model can answer, whatever the strategy.
    command = 'wavefront generate "I have two figs and a pear. How many fruits?"'
    example = [f"  {command} \\", f'    --strategy "{entry["example"]}"']
    return "\n".join([*lines, "", "Example", *example])
