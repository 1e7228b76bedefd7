"""Spec strings such as "wavefront(size=8, radius=2)", and the objects they describe.

A short name is a module in one of the packages of REGISTRIES. A dotted name, such as
`package.module.Class`, is a class anywhere. The repr of an object is its spec. Strings are parsed
and never evaluated.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import pkgutil
from functools import cache
from typing import Any, ClassVar, NamedTuple

from wavefront.core.errors import SpecError, WavefrontError, did_you_mean

_LONGEST = 1000
# Registry name: the package whose modules are the known names, and the noun for error messages.
REGISTRIES = {
    "strategies": ("wavefront.strategies", "strategy"),
    "selectors": ("wavefront.strategies.selectors", "selector"),
    "caches": ("wavefront.strategies.caches", "cache"),
}


class Spec:
    """Base class of everything a spec can name: a frozen dataclass whose repr is its spec."""

    registry: ClassVar[str] = ""  # the key in REGISTRIES where its subclasses are found

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
        if field.repr or value != _default(field):
            shown.append(f"{field.name}={value!r}")
    return f"{self.spec_name()}({', '.join(shown)})"


def _default(field: dataclasses.Field[Any]) -> Any:
    """Return the default of a field, also if it comes from a `default_factory`."""
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def check_frozen(cls: type[Any], name: str = "") -> None:
    """Raise a SpecError unless the class is a frozen dataclass, which can be hashed.

    Args:
        cls: The class of a strategy, a selector or a cache policy.
        name: What error messages call it; by default the name of the class.
    """
    params = getattr(cls, "__dataclass_params__", None)
    if params is None or not params.frozen:
        noun = REGISTRIES.get(getattr(cls, "registry", ""), REGISTRIES["strategies"])[1]
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
                f"{name!r} is not a built-in {noun}, and dotted names are not accepted here."
            )
        return _outside(name)
    known = names(registry)
    if name not in known:
        listed = ", ".join(known)
        raise SpecError(
            f"There is no {noun} {name!r}{did_you_mean(name, known)}; there are: {listed}."
        )
    module = importlib.import_module(f"{package}.{name}")
    return getattr(module, "".join(word.capitalize() for word in name.split("_")))


def _classes(module: Any) -> list[str]:
    """Return the names of the specs that a module defines."""
    found = {name: one for name, one in vars(module).items() if isinstance(one, type)}
    return [name for name, one in found.items() if issubclass(one, Spec)]


def _outside(name: str) -> type[Any]:
    """Return the class with a dotted name."""
    module_name, _, class_name = name.rpartition(".")
    module = None
    try:
        module = importlib.import_module(module_name)
        found = getattr(module, class_name)
    except ModuleNotFoundError as error:
        advice = ""
        if error.name and f"{module_name}.".startswith(f"{error.name}."):
            advice = " Run from the directory that holds it, or add that directory to PYTHONPATH."
        raise SpecError(f"Cannot import {name!r}: {error}.{advice}") from error
    except (ImportError, AttributeError) as error:
        hint = did_you_mean(class_name, [] if module is None else _classes(module))
        raise SpecError(f"Cannot import {name!r}: {error}{hint}.") from error
    if not isinstance(found, type):
        raise SpecError(f"{name!r} is not a class.")
    return found


def resolve(text: str, registry: str, *, outside: bool = True) -> Any:
    """Return the object that a spec string describes."""
    noun = REGISTRIES[registry][1]
    if len(text) > _LONGEST:
        raise SpecError(f"Cannot read a spec of {len(text)} characters; the limit is {_LONGEST}.")
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
    """Return the object of a parsed spec. `text` is what error messages quote."""
    call = node if isinstance(node, ast.Call) else None
    name = _dotted(call.func if call else node, text)
    cls = find(name, registry, outside=outside)
    check_frozen(cls, name)
    options = {f.name: _Option(name, f.name, _kind(_default(f))) for f in dataclasses.fields(cls)}
    if call and len(call.args) > len(options):
        raise SpecError(f"{name} takes at most {len(options)} options, {text!r} gives more.")
    pairs = [*zip(options, call.args, strict=False)] if call else []
    pairs += [(word.arg or "", word.value) for word in call.keywords] if call else []
    values: dict[str, Any] = {}
    for option, value in pairs:
        if option not in options:
            listed = ", ".join(options) or "none"
            raise SpecError(
                f"{name} has no option {option!r}{did_you_mean(option, options)}; "
                f"it has: {listed}.",
                option=option,
            )
        if option in values:
            raise SpecError(f"{name} is given the option {option!r} twice.", option=option)
        values[option] = _value(value, options[option], outside)
    return _make(cls, name, values)


def _make(cls: type[Any], name: str, values: dict[str, Any]) -> Any:
    """Create the object. A refused value becomes a SpecError that keeps the error's fields."""
    try:
        return cls(**values)
    except WavefrontError as error:
        raise SpecError(
            f"{name}: {error}", option=error.option, value=error.value, hint=error.hint
        ) from error
    except TypeError as error:
        raise SpecError(f"Cannot create {name} from {values}: {error}.") from error


def _dotted(node: ast.expr, text: str) -> str:
    """Return the name or dotted name that a node spells."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value, text)}.{node.attr}"
    raise SpecError(f"Cannot read {text[:80]!r}: a name was expected before the options.")


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
        found = _build(node, str(option), kind.registry, outside)
    if not isinstance(found, kind):
        noun = REGISTRIES[kind.registry][1]
        raise SpecError(
            f"{option} must be a {noun} such as quota(), not {shown}.",
            option=option.name,
            value=shown,
        )
    return found
