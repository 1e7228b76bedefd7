"""The bounds of options, and the default strategy.

Every number that a user can set has a smallest and a largest value.

A bound keeps a step short and every integer within 64 bits, for every request. Declare it
in the type of an option: `size: Annotated[int, IntRange(1, MAX_POSITIONS)] = 8`. `Spec` checks
it, and `wavefront list`, the documentation and the server's schema show it.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, Literal, TypeAlias

from wavefront.core.errors import OptionError, check_choice, check_float, check_int, quote

# The strategy of every entry point (Python, command line, server, transformers, lm-eval), unless
# the user names one. To change it, edit this line and the reason in docs/strategies.md#the-default.
DEFAULT_STRATEGY = "block(size=32, selector=threshold(tau=0.99, floor=None))"

MAX_POSITIONS = 1 << 20  # far beyond any context; a typo cannot fill the memory
MAX_STEPS = 1 << 20
MAX_TOKEN_ID = (1 << 31) - 1
MAX_SEED = (1 << 63) - 1
MAX_SPECULATED = 8  # a step computes as many canvases; longer drafts are seldom correct
MAX_ITEMS = 64  # entries of an option that is a tuple
MAX_BIASES = 1024  # entries of a logit bias

# Further names of decoding options, from the published samplers and OpenAI's API.
ALIASES = {
    "gen_length": "max_new_tokens",
    "max_tokens": "max_new_tokens",
    "block_size": "block_length",
    "eos_policy": "eos",
}


@dataclass(frozen=True)
class IntRange:
    """The bounds of an integer."""

    low: int
    high: int

    def check(self, name: str, value: object) -> None:
        """Raise `OptionError` unless `value` is an int within the bounds."""
        check_int(name, value, self.low, high=self.high)

    def schema(self) -> dict[str, Any]:
        """Return the bounds as keywords of a JSON schema."""
        return {"type": "integer", "minimum": self.low, "maximum": self.high}

    def __str__(self) -> str:
        return f"{self.low} to {self.high}"


@dataclass(frozen=True)
class FloatRange:
    """The bounds of a number."""

    low: float
    high: float

    def check(self, name: str, value: object) -> None:
        """Raise `OptionError` unless `value` is a number within the bounds."""
        check_float(name, value, self.low, high=self.high)

    def schema(self) -> dict[str, Any]:
        """Return the bounds as keywords of a JSON schema."""
        return {"type": "number", "minimum": self.low, "maximum": self.high}

    def __str__(self) -> str:
        return f"{self.low:.10g} to {self.high:.10g}"


@dataclass(frozen=True)
class TupleBounds:
    """The bounds of a tuple: how many entries it has, and the bounds of each."""

    each: IntRange | FloatRange
    what: str  # what the entries are, for error messages
    example: str
    max_items: int = MAX_ITEMS
    max_text: int = 0  # characters of an entry that is a text; 0: no texts

    def check(self, name: str, value: object) -> None:
        """Raise `OptionError` unless `value` is a tuple within the bounds."""
        if not isinstance(value, tuple):
            such = f"a tuple of {self.what}, such as {self.example}"
            raise OptionError(
                f"{name} must be {such}, not {quote(value)}.",
                option=name,
                value=value,
            )
        if len(value) > self.max_items:
            raise OptionError(
                f"{name} has {len(value)} entries; the limit is {self.max_items}.",
                option=name,
                value=value,
            )
        for entry in value:
            if not self.max_text or not isinstance(entry, str):
                self.each.check(name, entry)
            elif len(entry) > self.max_text:
                raise OptionError(
                    f"{name} has an entry of {len(entry)} characters; the limit is "
                    f"{self.max_text}.",
                    option=name,
                    value=value,
                )

    def schema(self) -> dict[str, Any]:
        """Return the bounds as keywords of a JSON schema."""
        entry = self.each.schema()
        if self.max_text:
            entry = {"anyOf": [entry, {"type": "string", "maxLength": self.max_text}]}
        return {"type": "array", "maxItems": self.max_items, "items": entry}

    def __str__(self) -> str:
        texts = f", or texts of up to {self.max_text} characters" if self.max_text else ""
        return f"up to {self.max_items} entries, each {self.each}{texts}"


Bounds: TypeAlias = IntRange | FloatRange | TupleBounds

_POSITIONS = IntRange(1, MAX_POSITIONS)
# The numeric options of a decode by name; see `wavefront.Options`.
DECODE_OPTIONS: Mapping[str, Bounds] = {
    "max_new_tokens": _POSITIONS,
    "steps": IntRange(1, MAX_STEPS),
    "temperature": FloatRange(0, 100),
    "seed": IntRange(0, MAX_SEED),
    "top_p": FloatRange(0, 1),
    "top_k": IntRange(1, MAX_TOKEN_ID),
    "cfg_scale": FloatRange(0, 100),
    "order_noise": FloatRange(0, 1e6),
    "speculate": IntRange(0, MAX_SPECULATED),
    "stop_ids": TupleBounds(IntRange(0, MAX_TOKEN_ID), "token ids", "(2, 3)"),
    "eps": FloatRange(1e-12, 0.999),
    "alg_temp": FloatRange(0, 1e6),
    "block_length": _POSITIONS,
    "max_wave_size": _POSITIONS,
    "radius": _POSITIONS,
    "logprobs": IntRange(0, 20),
    "logit_bias": FloatRange(-100, 100),  # each of its values
}


def check_option(name: str, value: object) -> None:
    """Raise `OptionError` unless `value` is within the bounds of the decode option `name`."""
    DECODE_OPTIONS[name].check(name, value)


@cache
def field_types(cls: type[Any]) -> Mapping[str, Any]:
    """Return the type of every annotated field of a class, with its bounds; {} if unreadable."""
    try:
        return typing.get_type_hints(cls, include_extras=True)
    except (NameError, TypeError):  # a user's class with types for type checkers only
        return {}


@cache
def bounds_of(cls: type[Any]) -> Mapping[str, Bounds]:
    """Return the bounds that a class declares, by the name of the option."""
    found = {name: _bounds_in(hint) for name, hint in field_types(cls).items()}
    return {name: bounds for name, bounds in found.items() if bounds is not None}


def _bounds_in(hint: Any) -> Bounds | None:
    """Return the bounds in a type such as `Annotated[int, IntRange(1, 8)] | None`."""
    for part in (*getattr(hint, "__metadata__", ()), *typing.get_args(hint)):
        if isinstance(part, Bounds):
            return part
        if (inner := _bounds_in(part)) is not None:
            return inner
    return None


def check_fields(value: Any) -> None:
    """Check the fields of a dataclass object against the bounds and literals of their types.

    Raises:
        OptionError: A field is out of bounds, has another type, or is not one of its literals.
    """
    types, bounds = field_types(type(value)), bounds_of(type(value))
    for name in (field.name for field in fields(value)):
        hint, given = types.get(name), getattr(value, name)
        if typing.get_origin(hint) is Literal:
            check_choice(name, given, typing.get_args(hint))
        elif hint is bool and not isinstance(given, bool):
            raise OptionError(
                f"{name} must be True or False, not {quote(given)}.", option=name, value=given
            )
        elif name in bounds and not (given is None and type(None) in typing.get_args(hint)):
            bounds[name].check(name, given)
