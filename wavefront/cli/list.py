"""`wavefront list`: strategies, selectors, caches, models and tasks.

The lists are read from the classes of each registry, so a new file appears in them automatically.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import typing
from collections.abc import Callable
from typing import Annotated, Any

import typer

from wavefront.cli import completion
from wavefront.cli.command import Command
from wavefront.cli.options import Json, UsageError
from wavefront.cli.output import print_columns, print_table, say, say_json, stderr
from wavefront.core.bounds import bounds_of
from wavefront.core.errors import SpecError, check_choice, did_you_mean

EXAMPLES = """\
Examples
wavefront list
wavefront list strategies
wavefront list strategies wavefront
wavefront list tasks --json

How to write a strategy
After --strategy, write NAME or "NAME(option=value, ...)". A selector is an
option of a strategy: "standard(selector=dream(eps=0.01))".
"""
SPECS = {
    "strategies": "where a step may commit tokens (--strategy)",
    "selectors": "how many tokens a step commits, and which (a strategy's option `selector`)",
    "caches": "which keys and values are reused between steps (--cache)",
}
KINDS = (*SPECS, "models", "tasks")
app = typer.Typer(add_completion=False)


@app.command(cls=Command, epilog=EXAMPLES)
def show_list(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND",
            help="strategies, selectors, caches, models, tasks or all. Default: all.",
            autocompletion=completion.words(*KINDS, "all"),
            show_default=False,
        ),
    ] = "all",
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="Explain this strategy, selector or cache. Use module.Class for your own.",
            autocompletion=completion.modules(
                "strategies", "strategies/selectors", "strategies/caches"
            ),
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """List strategies, selectors, caches, models and tasks."""
    check_choice("KIND", kind, (*KINDS, "all"))
    if name is not None:
        if kind not in SPECS:
            raise UsageError(f"A name can follow {', '.join(SPECS)}, not {kind!r}.")
        entry = _entry(_find(name, kind), kind)
        say_json(entry) if as_json else say(_explanation(entry))
        return
    kinds = KINDS if kind == "all" else (kind,)
    if as_json:
        entries = {one: _entries(one) for one in kinds}
        say_json(entries if kind == "all" else entries[kind])
        return
    for one in kinds:
        _print(one)
    if kind in ("all", *SPECS):
        named = "strategies" if kind == "all" else kind
        stderr().print(f"To explain one of them: wavefront list {named} NAME")


def _entries(kind: str) -> Any:
    if kind == "models":
        return {"built_in": _built_in_models(), "families": _model_families()}
    if kind == "tasks":
        return _tasks()
    return [_entry(one, kind) for one in _classes(kind)]


def _print(kind: str) -> None:
    if kind == "models":
        row: Callable[[dict[str, Any]], tuple[str, str, str]] = lambda one: (  # noqa: E731
            one["name"],
            one["load"][0],
            one["summary"],
        )
        print_table("models: built in", [*map(row, _built_in_models())])
        print_table("models: families, from a directory or the Hub", [*map(row, _model_families())])
        columns = ("name", "architectures", "layout", "attention", "exact", "tested")
        print_columns(
            ("family", *columns[1:]),
            [[_cell(one[column]) for column in columns] for one in _model_families()],
        )
        print()
    elif kind == "tasks":
        titles = {
            "generated": "drawn from a seed",
            "files": "read from files (--data)",
            "model": "judged by a model",
        }
        for source, title in titles.items():
            found = [one for one in _tasks() if one["source"] == source]
            subsets = [one["name"].removeprefix("bbh_") for one in found if _is_subset(one)]
            rows = [(one["name"], "", one["summary"]) for one in found if not _is_subset(one)]
            rows += [("bbh_SUBSET", "", f"BIG-Bench Hard: {', '.join(subsets)}.")] * bool(subsets)
            print_table(f"tasks: {title}", rows)
        print("Your own: --task FILE.jsonl, or --task module.Class\n")
    else:
        rows = [(one.spec_name(), _syntax(one, kind), _summary(one)) for one in _classes(kind)]
        print_table(f"{kind}: {SPECS[kind]}", rows)


def _classes(registry: str) -> list[type[Any]]:
    from wavefront.core import spec

    return [spec.find(name, registry) for name in spec.names(registry)]


def _find(name: str, registry: str) -> type[Any]:
    """Return the class of a name in a registry, or of a dotted name."""
    from wavefront.core import spec

    bare, known = name.partition("(")[0].strip(), spec.names(registry)
    if "." not in bare and bare not in known:
        others = [f"`list {one} {bare}`" for one in SPECS if bare in spec.names(one)]
        hint = f" (did you mean {others[0]}?)" if others else did_you_mean(bare, known)
        listed = ", ".join(known)
        raise SpecError(f"There is no {bare!r} among the {registry}{hint}; there are: {listed}.")
    found = spec.find(bare, registry)
    if not issubclass(found, spec.Spec):
        noun = spec.REGISTRIES[registry][1]
        base = noun.capitalize()
        raise SpecError(f"{bare!r} is not a {noun}: its class does not derive from {base}.")
    spec.check_frozen(found, bare)
    return found


def _entry(found: type[Any], registry: str) -> dict[str, Any]:
    hints, name, bounds = typing.get_type_hints(found), found.spec_name(), bounds_of(found)
    options = [
        {
            "name": field.name,
            "type": _type(hints[field.name]),
            "default": _default(field),
            "schema": bounds[field.name].schema() if field.name in bounds else None,
            "bounds": str(bounds[field.name]) if field.name in bounds else None,
        }
        for field in dataclasses.fields(found)
    ]
    if registry == "strategies":
        recommended = found.recommended_spec()
        special = {"recommended": recommended, "example": recommended}
    else:
        # The example shows the options that a repr shows.
        shown = [field.name for field in dataclasses.fields(found) if field.repr]
        stated = [one for one in options if one["default"] is not None and one["name"] in shown]
        values = ", ".join(f"{one['name']}={one['default']}" for one in stated)
        example = f"{name}({values})" if values else name
        special = {
            "example": f"standard(selector={example})" if registry == "selectors" else example
        }
    return {
        "kind": registry,
        "name": name,
        "summary": _summary(found),
        "about": inspect.getdoc(found) or "",
        "options": options,
        **special,
    }


def _summary(found: Any) -> str:
    """Return the first line of the docstring of a class's module, without the module's name."""
    module: Any = found if inspect.ismodule(found) else inspect.getmodule(found)
    first = (inspect.getdoc(module) or "").partition("\n")[0]
    name, _, rest = first.partition(": ")
    own = module.__name__.rpartition(".")[2]
    return rest if name.lower().replace(" ", "_") == own else first


def _default(field: dataclasses.Field[Any]) -> str | None:
    """Return the default as a spec string writes it, or None if there is none."""
    from wavefront.core import spec

    found = spec.default_of(field)
    return None if found is dataclasses.MISSING else repr(found)


def _type(hint: Any) -> str:
    if typing.get_origin(hint) is typing.Literal:
        return " or ".join(repr(value) for value in typing.get_args(hint))
    return getattr(hint, "__name__", str(hint)).lower() if isinstance(hint, type) else str(hint)


def _syntax(found: type[Any], registry: str) -> str:
    """Return the options of a class; for a strategy also its recommended spec."""
    options = _short_options(found)
    if registry != "strategies":
        return options
    recommended = found.recommended_spec()
    if recommended == found.default_spec():
        return f"{options}; recommended: the defaults"
    return f"{options}; recommended: {recommended}"


def _short_options(found: type[Any]) -> str:
    """Return the options that a repr shows, and the selector. The others are off by default."""
    fields = dataclasses.fields(found)
    first = [field for field in fields if field.repr or field.name == "selector"]
    shown = [
        field.name if _default(field) is None else f"{field.name}={_default(field)}"
        for field in first
    ]
    return ", ".join([*shown, *(["..."] if len(first) < len(fields) else [])])


def _explanation(entry: dict[str, Any]) -> str:
    title = ": ".join(filter(None, (entry["name"], entry["summary"])))
    lines = [title, "", entry["about"]]
    if entry["options"]:
        width = max(len(option["name"]) for option in entry["options"])
        lines += ["", "Options"]
        lines += [
            f"  {option['name']:<{width}}  {option['type']}"
            + (f", {option['bounds']}; " if option["bounds"] else "; ")
            + ("no default" if option["default"] is None else f"default {option['default']}")
            for option in entry["options"]
        ]
    # A question that the default model can answer with any strategy.
    command = 'wavefront generate "I have two figs and a pear. How many fruits?"'
    flag = "--cache" if entry["kind"] == "caches" else "--strategy"
    example = [f"  {command} \\", f'    {flag} "{entry["example"]}"']
    built_in = "." not in str(entry["name"])  # a class of yours recommends nothing by itself
    title = "Recommended" if "recommended" in entry and built_in else "Example"
    return "\n".join([*lines, "", title, *example])


def _built_in_models() -> list[dict[str, Any]]:
    from wavefront.models import builtin

    return [
        {"name": name, "load": [f"--model {name}"], "summary": _describe_model(name)}
        for name in builtin.names()
    ]


def _describe_model(name: str) -> str:
    from wavefront.models import builtin

    folder, summary = builtin.directory(name), builtin.SUMMARIES[name]
    if folder is None:
        return summary
    family = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("model_type")
    size = sum(file.stat().st_size for file in folder.glob("*.safetensors")) / 1e6
    return f"{summary} (family {family}, {size:.0f} MB)"


def _model_families() -> list[dict[str, Any]]:
    from wavefront.models import loader

    return [
        {
            "name": name,
            "load": [f"--model {one}" for one in completion.PUBLISHED.get(name, ("DIRECTORY",))],
            "model_types": list(module.MODEL_TYPES),
            "architectures": list(module.ARCHITECTURES),
            "layout": module.LAYOUT,
            "attention": _attention(module),
            "block_size": module.BLOCK_SIZE,
            "exact": "logits" if module.BLOCK_SIZE is None else "logits, prefix cache",
            "tested": module.TESTED,
            "summary": _summary(module),
        }
        for name, module in loader.family_modules().items()
    ]


def _cell(value: str | list[str]) -> str:
    return value if isinstance(value, str) else "\n".join(value)


def _attention(family: Any) -> str:
    """Return the attention of a family, the default first."""
    by_block = f"block of {family.BLOCK_SIZE}"
    if family.BLOCK_SIZE is None:
        return "bidirectional"
    # The toy has the family's default attention.
    return by_block if "block_size" in family.TOY else f"bidirectional or {by_block}"


def _is_subset(task: dict[str, str]) -> bool:
    return task["name"].startswith("bbh_")


def _tasks() -> list[dict[str, str]]:
    from wavefront import tasks

    return [
        {"name": name, "source": source, "summary": _summary(type(tasks.load(name)))}
        for source, names in (
            ("generated", tasks.names()),
            ("files", tasks.benchmarks()),
            ("model", tasks.judged_tasks()),
        )
        for name in names
    ]
