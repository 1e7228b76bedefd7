"""Every number that a user can set has bounds, which the library checks and the tools show."""

from __future__ import annotations

import dataclasses
import typing
from typing import Any

import pytest
from helpers.commands import records, run

from wavefront import Options
from wavefront.core import spec
from wavefront.core.bounds import (
    ALIASES,
    DECODE_OPTIONS,
    MAX_POSITIONS,
    FloatRange,
    IntRange,
    TupleBounds,
    bounds_of,
)
from wavefront.core.errors import OptionError, check_float, check_int
from wavefront.core.masks import FAR
from wavefront.server.request_models import CompletionBody, DecodingFields, schema
from wavefront.strategies.blockwise import Blockwise

CLASSES = [
    spec.find(name, registry) for registry in spec.REGISTRIES for name in spec.names(registry)
]
NUMBERS = (int, float, tuple)
HUGE = (10**31, 10**400, 10**5000, 1e300, float("inf"), float("nan"), -(10**400))


def numeric_options() -> list[tuple[type[Any], str]]:
    """Return every option of the registries whose type has a number in it."""
    found = []
    for cls in CLASSES:
        hints = typing.get_type_hints(cls)
        for field in dataclasses.fields(cls):
            parts = {hints[field.name], *typing.get_args(hints[field.name])}
            kinds = {typing.get_origin(part) or part for part in parts}
            if kinds & {*NUMBERS}:
                found.append((cls, field.name))
    return found


@pytest.mark.parametrize(("cls", "name"), numeric_options())
def test_every_number_of_every_registry_has_bounds(cls: type[Any], name: str) -> None:
    bounds = bounds_of(cls)[name]
    each = bounds.each if isinstance(bounds, TupleBounds) else bounds
    assert each.high < FAR or isinstance(bounds, TupleBounds)
    for value in HUGE:
        given = (value,) if isinstance(bounds, TupleBounds) else value
        with pytest.raises(OptionError, match=f"{name} must be") as caught:
            cls(**{name: given})
        assert len(str(caught.value)) < 300
    if isinstance(bounds, TupleBounds):
        with pytest.raises(OptionError, match="entries; the limit is"):
            cls(**{name: (each.low,) * (bounds.max_items + 1)})


def test_every_number_of_a_decode_has_bounds() -> None:
    numbers = {
        name
        for name, hint in typing.get_type_hints(Options).items()
        if {hint, *typing.get_args(hint)} & {int, float}
    }
    numbers |= {"stop_ids", "logit_bias"}  # several numbers each
    assert numbers - ALIASES.keys() - {"mask_id"} == DECODE_OPTIONS.keys()


def test_server_schema_has_the_bounds_of_the_library() -> None:
    def fields_of(body: Any) -> Any:
        return schema(body)["requestBody"]["content"]["application/json"]["schema"]["properties"]

    # Log-probabilities are in the answers of the OpenAI routes.
    properties = fields_of(CompletionBody) | fields_of(DecodingFields)
    for name, bounds in DECODE_OPTIONS.items():
        field = next(one for one in properties[name]["anyOf"] if one["type"] != "null")
        field = field.get("additionalProperties", field)
        if isinstance(bounds, TupleBounds):
            assert field["maxItems"] == bounds.max_items
            field, bounds = field["items"], bounds.each
        assert field["minimum"] == bounds.low
        assert field["maximum"] == bounds.high


def test_step_stays_bounded_with_the_longest_draft() -> None:
    bounds = DECODE_OPTIONS["speculate"]
    assert isinstance(bounds, IntRange)
    assert bounds.high == 8


def test_list_shows_the_bounds_of_every_option() -> None:
    for registry in spec.REGISTRIES:
        (listed,) = records(run("list", registry, "--json"))
        for entry in listed:
            bounds = bounds_of(spec.find(entry["name"], registry))
            for option in entry["options"]:
                own = bounds.get(option["name"])
                assert option["bounds"] == (None if own is None else str(own))
                assert option["schema"] == (None if own is None else own.schema())
    assert "0 to 64" in run("list", "strategies", "tide").stdout


@pytest.mark.parametrize("value", [0, 1, 10**300, "True", None, 1.0])
def test_switch_of_a_spec_must_be_true_or_false(value: Any) -> None:
    with pytest.raises(OptionError, match="lead must be True or False"):
        Blockwise(lead=value)


@pytest.mark.parametrize(
    ("bounds", "shown"),
    [
        (IntRange(1, MAX_POSITIONS), "1 to 1048576"),
        (FloatRange(1e-3, 1e3), "0.001 to 1000"),
        (
            TupleBounds(IntRange(0, 9), "digits", "(1, 2)", max_text=3),
            "up to 64 entries, each 0 to 9, or texts of up to 3 characters",
        ),
    ],
)
def test_bounds_are_shown_in_plain_numbers(bounds: Any, shown: str) -> None:
    assert str(bounds) == shown


@pytest.mark.parametrize("check", [check_int, check_float])
def test_checks_without_an_upper_bound_refuse_what_no_tensor_can_hold(check: Any) -> None:
    for value in (*HUGE, True, "8", (1, (2, 3)), None, [], 1j, b"8"):
        if check is check_float and value == 10**31:
            continue  # a float32 holds it
        with pytest.raises(OptionError, match="must be") as caught:
            check("size", value, 0)
        assert len(str(caught.value)) < 300


def test_selector_of_another_type_is_refused() -> None:
    for cls in CLASSES:
        if any(field.name == "selector" for field in dataclasses.fields(cls)):
            with pytest.raises(OptionError, match="selector must be a selector, not"):
                cls(selector="quota()")
