"""Spec strings such as "wavefront(size=8, radius=2)", and the objects they describe.

A short name is a module in one of the packages of REGISTRIES. A dotted name, such as
`package.module.Class`, is a class anywhere. The repr of an object is its spec. Strings are parsed
and never evaluated. Use `resolve` for what the user wrote, and `resolve_builtin` for everything
that comes from a file or a request: it imports nothing.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import importlib
import os
import pkgutil
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, ClassVar, NamedTuple

from wavefront.core.bounds import DEFAULT_STRATEGY, check_fields
from wavefront.core.errors import (
    OptionError,
    SpecError,
    WavefrontError,
    did_you_mean,
    quote,
)

_LONGEST = 1000
# The environment variable with the folder of the user's own modules. Child processes inherit it.
OWN_FOLDER = "WAVEFRONT_OWN_FOLDER"
# Registry name: the package whose modules are the known names, and the noun for error messages.
REGISTRIES = {
    "strategies": ("wavefront.strategies", "strategy"),
    "selectors": ("wavefront.strategies.selectors", "selector"),
    "caches": ("wavefront.strategies.caches", "cache"),
}


class Spec:
    """Base class of everything a spec can name: a frozen dataclass whose repr is its spec."""

    registry: ClassVar[str] = ""  # the key in REGISTRIES where its subclasses are found

    def __post_init__(self) -> None:
        """Check the options against the bounds and literals of their types, and nested specs.

        A class with its own checks must call `super().__post_init__()` first.

        Raises:
            OptionError: An option is out of bounds, or has another type.
        """
        check_fields(self)
        cls: Any = type(self)
        for field in dataclasses.fields(cls):
            kind, value = _kind(default_of(field)), getattr(self, field.name)
            if kind is not None and not isinstance(value, kind):
                noun = REGISTRIES[kind.registry][1]
                raise OptionError(
                    f"{field.name} must be a {noun}, not {quote(value)}.",
                    option=field.name,
                    value=value,
                )

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        # Set on the class itself, so that @dataclass keeps it instead of adding its own.
        if "__repr__" not in cls.__dict__:
            type.__setattr__(cls, "__repr__", _render)  # an assignment would hide it from checkers

    @classmethod
    def spec_name(cls) -> str:
        """Return the short name of a registered class, or the dotted name of any other class."""
        package, _, module = cls.__module__.rpartition(".")
        if any(package == registered for registered, _ in REGISTRIES.values()):
            return module
        return f"{cls.__module__}.{cls.__qualname__}"


def _render(self: Any) -> str:
    """Return the spec string of an object, which is its repr."""
    shown = []
    for field in dataclasses.fields(self):
        value = getattr(self, field.name)
        # A field with repr=False is shown only if it differs from its default.
        if field.repr or value != default_of(field):
            shown.append(f"{field.name}={value!r}")
    return f"{self.spec_name()}({', '.join(shown)})"


def short(text: str, registry: str) -> str:
    """Return a spec without the options that equal the defaults of its class, for display.

    Nothing is imported, so the spec of a class from outside stays as it is. So does a text that is
    no spec.

    Args:
        text: The spec string.
        registry: The key in REGISTRIES where short names are found.
    """
    try:
        return _short(resolve_builtin(text, registry))
    except SpecError:
        return text


def label(text: str) -> str:
    """Return the name of a strategy for a table: `short`, but the default strategy is `default`."""
    name = short(text, "strategies")
    return "default" if name == short(DEFAULT_STRATEGY, "strategies") else name


def _short(made: Any) -> str:
    shown = []
    for field in dataclasses.fields(made):
        value = getattr(made, field.name)
        if value != default_of(field):
            written = _short(value) if isinstance(value, Spec) else repr(value)
            shown.append(f"{field.name}={written}")
    return f"{made.spec_name()}({', '.join(shown)})" if shown else made.spec_name()


def default_of(field: dataclasses.Field[Any]) -> Any:
    """Return the default of a field, even if it comes from a `default_factory`; else MISSING."""
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def check_frozen(cls: type[Any], name: str = "", *, noun: str = "") -> None:
    """Raise a SpecError unless the class is a frozen dataclass, which can be hashed.

    Args:
        cls: The class of a strategy, a selector, a cache policy or a task.
        name: What error messages call it; by default the name of the class.
        noun: What error messages call its kind; by default the noun of its registry.
    """
    params = getattr(cls, "__dataclass_params__", None)
    if params is None or not params.frozen:
        known = REGISTRIES.get(getattr(cls, "registry", ""), REGISTRIES["strategies"])
        noun = noun or known[1]
        raise SpecError(
            f"{name or cls.__name__!r} is not a {noun}: a {noun} is a frozen dataclass. Decorate "
            "the class with @dataclass(frozen=True)."
        )


@cache
def names(registry: str) -> tuple[str, ...]:
    """Return the names in a registry: the names of its modules."""
    package = importlib.import_module(REGISTRIES[registry][0])
    modules = pkgutil.iter_modules(package.__path__)
    return tuple(sorted(m.name for m in modules if not m.ispkg and not m.name.startswith("_")))


def find(name: str, registry: str, *, outside: bool = True) -> type[Any]:
    """Return the class with this name. `outside=False` refuses dotted names, which import code."""
    package, noun = REGISTRIES[registry]
    if "." in name:
        if not outside:
            raise SpecError(
                f"{quote(name)} is not a built-in {noun}, and dotted names are not accepted here."
            )
        return import_class(name)
    known = names(registry)
    if name not in known:
        listed = ", ".join(known)
        raise SpecError(
            f"There is no {noun} {quote(name)}{did_you_mean(name, known)}; there are: {listed}."
        )
    module = importlib.import_module(f"{package}.{name}")
    return getattr(module, "".join(word.capitalize() for word in name.split("_")))


def _classes(module: Any) -> list[str]:
    """Return the names of the specs that a module defines."""
    found = {name: cls for name, cls in vars(module).items() if isinstance(cls, type)}
    return [name for name, cls in found.items() if issubclass(cls, Spec)]


def import_class(name: str) -> type[Any]:
    """Return the class with a dotted name that the user wrote. This imports its module.

    Raises:
        SpecError: The module or the class does not exist.
    """
    module_name, _, class_name = name.rpartition(".")
    found = import_name(module_name, class_name, shown=name)
    if not isinstance(found, type):
        raise SpecError(f"{quote(name)} is not a class.")
    return found


@contextlib.contextmanager
def _own_folder_searched() -> Iterator[None]:
    """Search the user's own folder for modules, after all other folders.

    It is not searched at any other time: a file there must not stand in for an optional package
    that is not installed.
    """
    folder = os.environ.get(OWN_FOLDER)
    if not folder or folder in sys.path:
        yield
        return
    sys.path.append(folder)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(folder)


def import_name(module_name: str, name: str, *, shown: str) -> Any:
    """Return a name of a module that the user wrote. This imports the module.

    Args:
        module_name: The dotted name of the module.
        name: The name in it.
        shown: What the user wrote, for error messages.

    Raises:
        SpecError: The module cannot be imported, or has no such name.
    """
    module = None
    try:
        with _own_folder_searched():
            module = importlib.import_module(module_name)
        return getattr(module, name)
    except ModuleNotFoundError as error:
        advice = ""
        if error.name and f"{module_name}.".startswith(f"{error.name}."):
            advice = " Run from the directory that holds it, or add that directory to PYTHONPATH."
        raise SpecError(f"Cannot import {quote(shown)}: {error}.{advice}") from error
    except (ImportError, AttributeError) as error:
        hint = did_you_mean(name, [] if module is None else _classes(module))
        if name == "py":  # the name of the file, where the name of a class is needed
            hint = f"; write the class of that file, as {module_name}.NAME"
        raise SpecError(f"Cannot import {quote(shown)}: {error}{hint}.") from error


def resolve(text: str, registry: str) -> Any:
    """Return the object of a spec that the user wrote. A dotted name imports its module.

    Args:
        text: The spec string.
        registry: The key in REGISTRIES where short names are found.

    Raises:
        SpecError: The spec does not parse, names nothing known, or has a wrong option.
    """
    return _resolve(text, registry, outside=True)


def resolve_builtin(text: str, registry: str) -> Any:
    """Return the object of a spec that comes from a file or a request. Dotted names are rejected.

    Takes the same arguments and raises the same errors as `resolve`.
    """
    return _resolve(text, registry, outside=False)


def _resolve(text: str, registry: str, *, outside: bool) -> Any:
    noun = REGISTRIES[registry][1]
    if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise SpecError(
            f"A {noun} must be a string like name(option=value), not {type(text).__name__}."
        )
    if len(text) > _LONGEST:
        raise SpecError(f"Cannot read a spec of {len(text)} characters; the limit is {_LONGEST}.")
    unreadable = f"Cannot read {quote(text)} as a {noun}; write it like name(option=value)."
    try:
        node = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise SpecError(unreadable) from error
    if not isinstance(node, ast.Call | ast.Name | ast.Attribute):
        raise SpecError(f"{quote(text)} does not name a {noun}; write it like name(option=value).")
    try:
        return _build(node, text, registry, outside=outside)
    except (MemoryError, RecursionError) as error:  # of a deeply nested spec
        raise SpecError(unreadable) from error


def _build(node: ast.expr, text: str, registry: str, *, outside: bool) -> Any:
    """Return the object of a parsed spec. `text` is what error messages quote."""
    call = node if isinstance(node, ast.Call) else None
    name = _dotted(call.func if call else node, text)
    cls = find(name, registry, outside=outside)
    check_frozen(cls, name)
    options = {f.name: _Option(name, f.name, _kind(default_of(f))) for f in dataclasses.fields(cls)}
    if call and len(call.args) > len(options):
        raise SpecError(
            f"{name} takes at most {len(options)} options, but {quote(text)} gives more."
        )
    pairs = [*zip(options, call.args, strict=False)] if call else []
    pairs += [(word.arg or "", word.value) for word in call.keywords] if call else []
    values: dict[str, Any] = {}
    for option, value in pairs:
        if option not in options:
            listed = ", ".join(options) or "none"
            raise SpecError(
                f"{name} has no option {quote(option)}{did_you_mean(option, options)}; "
                f"it has: {listed}.",
                option=option,
            )
        if option in values:
            raise SpecError(f"{name} is given the option {quote(option)} twice.", option=option)
        values[option] = _value(value, options[option], outside)
    return _make(cls, name, values)


def add_options(text: str, name: str, options: Mapping[str, str]) -> str:
    """Return a spec in which every part with this name has these options, unless it gives others.

    Nothing is imported. A text that is no spec is returned as it is.

    Args:
        text: The spec string.
        name: The name of a strategy, selector or cache.
        options: The value of each option, written as in a spec.
    """
    try:
        tree = ast.parse(text.strip()[:_LONGEST], mode="eval")
        values = {key: ast.parse(value, mode="eval").body for key, value in options.items()}
        return ast.unparse(_OptionAdder(name, values).visit(tree))
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return text


class _OptionAdder(ast.NodeTransformer):
    """Adds options to every part of a spec that has a given name."""

    def __init__(self, name: str, values: Mapping[str, ast.expr]) -> None:
        self._name, self._values = name, values

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self._with_options(ast.Call(node, [], [])) if node.id == self._name else node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        node.args = [self.visit(part) for part in node.args]
        for word in node.keywords:
            word.value = self.visit(word.value)
        named = isinstance(node.func, ast.Name) and node.func.id == self._name
        return self._with_options(node) if named else node

    def _with_options(self, node: ast.Call) -> ast.expr:
        given = {word.arg for word in node.keywords}
        more = [ast.keyword(key, value) for key, value in self._values.items() if key not in given]
        return ast.Call(node.func, node.args, [*node.keywords, *more])


def _make(cls: type[Any], name: str, values: dict[str, Any]) -> Any:
    """Create the object. A refused value becomes a SpecError that keeps the error's fields."""
    try:
        return cls(**values)
    except WavefrontError as error:
        raise SpecError(
            f"{name}: {error}", option=error.option, value=error.value, hint=error.hint
        ) from error
    except TypeError as error:
        raise SpecError(f"Cannot create {name} from {quote(values)}: {error}.") from error


def _dotted(node: ast.expr, text: str) -> str:
    """Return the name or dotted name that a node spells."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value, text)}.{node.attr}"
    raise SpecError(f"Cannot read {quote(text)}: a name was expected before the options.")


class _Option(NamedTuple):
    """One option of a spec: its owner's name, its own name, and its kind if it is a spec too."""

    owner: str
    name: str
    kind: type[Spec] | None

    def __str__(self) -> str:
        return f"{self.owner}: {self.name}"


def _kind(default: Any) -> type[Spec] | None:
    """Return the base class, such as Selector, of an option that is itself a spec."""
    lineage = type(default).__mro__
    return lineage[lineage.index(Spec) - 1] if Spec in lineage else None


def _value(node: ast.expr, option: _Option, outside: bool) -> Any:
    """Return the value of an option: a literal, or the object of a nested spec."""
    shown, kind = ast.unparse(node)[:40], option.kind
    if kind is None:
        try:
            return ast.literal_eval(node)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError) as error:
            raise SpecError(
                f"{option} must be a plain value; put a word in quotes. Got {shown}.",
                option=option.name,
                value=shown,
            ) from error
    found = None
    if isinstance(node, ast.Call | ast.Name | ast.Attribute):
        found = _build(node, str(option), kind.registry, outside=outside)
    if not isinstance(found, kind):
        noun = REGISTRIES[kind.registry][1]
        raise SpecError(
            f"{option} must be a {noun} such as quota(), not {shown}.",
            option=option.name,
            value=shown,
        )
    return found
