"""Spec strings: "wavefront(size=8, radius=2)" <-> the object. A repr is a spec.

File names are the registry: a short name is a module of one of the packages in REGISTRIES, and a
dotted name is a class anywhere, `package.module.Class`. Strings are parsed, never evaluated.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import pkgutil
from functools import cache
from typing import Any, ClassVar

from wavefront.core.errors import SpecError, WavefrontError, did_you_mean

_LONGEST = 1000
# What a spec can name: the package whose modules are the names, and the noun for error messages.
REGISTRIES = {
    "strategies": ("wavefront.strategies", "strategy"),
    "selectors": ("wavefront.strategies.selectors", "selector"),
    "caches": ("wavefront.strategies.caches", "cache"),
}


class Spec:
    """Base of everything a spec string can name: a frozen dataclass whose repr is its spec."""

    registry: ClassVar[str] = ""  # the key in REGISTRIES where its subclasses are found

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        # Placed in the class itself, so that @dataclass keeps it instead of writing its own.
        if "__repr__" not in cls.__dict__:
            type.__setattr__(cls, "__repr__", _render)  # an assignment would hide it from checkers

    @classmethod
    def spec_name(cls) -> str:
        """Return the short name of a registered class, the dotted name of any other."""
        package, _, module = cls.__module__.rpartition(".")
        if any(package == registered for registered, _ in REGISTRIES.values()):
            return module
        return f"{cls.__module__}.{cls.__qualname__}"


def _render(self: Any) -> str:
    shown = []
    for field in dataclasses.fields(self):
        value = getattr(self, field.name)
        # repr=False marks a field that is worth showing only when somebody set it.
        if field.repr or value != field.default:
            shown.append(f"{field.name}={value!r}")
    return f"{self.spec_name()}({', '.join(shown)})"


@cache
def names(registry: str) -> tuple[str, ...]:
    """Return the names in a registry, from its file names."""
    package = importlib.import_module(REGISTRIES[registry][0])
    modules = pkgutil.iter_modules(package.__path__)
    return tuple(sorted(m.name for m in modules if not m.ispkg and not m.name.startswith("_")))


def find(name: str, registry: str, *, outside: bool = True) -> type[Any]:
    """Return the class of a name. `outside=False` refuses dotted names, which import code."""
    package, noun = REGISTRIES[registry]
    if "." in name:
        if not outside:
            raise SpecError(
                f"{name!r} is not a built-in {noun}, and dotted names are not accepted here."
            )
        return _outside(name)
    known = names(registry)
    if name not in known:
        raise SpecError(
            f"There is no {noun} {name!r}{did_you_mean(name, known)}; there are: {', '.join(known)}."
        )
    module = importlib.import_module(f"{package}.{name}")
    return getattr(module, "".join(word.capitalize() for word in name.split("_")))


def _outside(name: str) -> type[Any]:
    module_name, _, class_name = name.rpartition(".")
    try:
        found = getattr(importlib.import_module(module_name), class_name)
    except ModuleNotFoundError as error:
        advice = ""
        if error.name and f"{module_name}.".startswith(f"{error.name}."):
            advice = " Run from the directory that holds it, or put that on PYTHONPATH."
        raise SpecError(f"Cannot import {name!r}: {error}.{advice}") from error
    except (ImportError, AttributeError) as error:
        raise SpecError(f"Cannot import {name!r}: {error}.") from error
    if not isinstance(found, type):
        raise SpecError(f"{name!r} is not a class.")
    return found


def resolve(text: str, registry: str, *, outside: bool = True) -> Any:
    """Return the object that a spec string describes."""
    noun = REGISTRIES[registry][1]
    if len(text) > _LONGEST:
        raise SpecError(f"Cannot read a spec of {len(text)} characters; {_LONGEST} are enough.")
    try:
        node = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise SpecError(
            f"Cannot read {text[:80]!r} as a {noun}; write it like name(option=value)."
        ) from error
    if not isinstance(node, ast.Call | ast.Name | ast.Attribute):
        raise SpecError(f"{text[:80]!r} names no {noun}; write it like name(option=value).")
    return _build(node, text, registry, outside)


def _build(node: ast.expr, text: str, registry: str, outside: bool) -> Any:
    call = node if isinstance(node, ast.Call) else None
    name = _dotted(call.func if call else node, text)
    made = find(name, registry, outside=outside)
    if not dataclasses.is_dataclass(made):
        raise SpecError(f"{name!r} is not a strategy: a strategy is a frozen dataclass.")
    fields = [field.name for field in dataclasses.fields(made)]
    options: dict[str, Any] = {}
    if call and len(call.args) > len(fields):
        raise SpecError(f"{name} takes at most {len(fields)} options, {text!r} gives more.")
    kinds = {f.name: _kind(f.default) for f in dataclasses.fields(made)}
    pairs = [*zip(fields, call.args, strict=False)] if call else []
    pairs += [(word.arg or "", word.value) for word in call.keywords] if call else []
    for option, value in pairs:
        if option not in fields:
            listed = ", ".join(fields) or "none"
            raise SpecError(
                f"{name} has no option {option!r}{did_you_mean(option, fields)}; it has: {listed}."
            )
        if option in options:
            raise SpecError(f"{name} is given the option {option!r} twice.")
        options[option] = _value(value, f"{name}: {option}", kinds[option], outside)
    return _make(made, name, options)


def _make(made: type[Any], name: str, options: dict[str, Any]) -> Any:
    try:
        return made(**options)
    except WavefrontError as error:
        raise SpecError(f"{name}: {error}") from error
    except TypeError as error:
        raise SpecError(f"{name} cannot be made from {options}: {error}.") from error


def _dotted(node: ast.expr, text: str) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value, text)}.{node.attr}"
    raise SpecError(f"Cannot read {text[:80]!r}: a name was expected before the options.")


def _kind(default: Any) -> type[Spec] | None:
    """Return the base class, such as Selector, of an option that is itself a spec."""
    lineage = type(default).__mro__
    return lineage[lineage.index(Spec) - 1] if Spec in lineage else None


def _value(node: ast.expr, option: str, kind: type[Spec] | None, outside: bool) -> Any:
    if kind is None:
        try:
            return ast.literal_eval(node)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError) as error:
            shown = ast.unparse(node)[:40]
            raise SpecError(
                f"{option} must be a plain value, and a word goes in quotes, not {shown}."
            ) from error
    made = None
    if isinstance(node, ast.Call | ast.Name | ast.Attribute):
        made = _build(node, option, kind.registry, outside)
    if not isinstance(made, kind):
        shown = ast.unparse(node)[:40]
        noun = REGISTRIES[kind.registry][1]
        raise SpecError(f"{option} must be a {noun} such as quota(), not {shown}.")
    return made
