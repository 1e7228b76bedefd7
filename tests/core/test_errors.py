from __future__ import annotations

import pickle

import pytest

from wavefront.core import errors, spec
from wavefront.core.errors import (
    OptionError,
    SpecError,
    WavefrontError,
    check_choice,
    check_float,
    check_int,
)


def test_error_stores_its_fields_and_shows_only_the_message():
    error = OptionError("radius must be at least 1, not 0.", option="radius", value=0, hint="Try 2")
    assert str(error) == "radius must be at least 1, not 0."
    assert (error.option, error.value, error.hint) == ("radius", 0, "Try 2")


def test_fields_default_to_none():
    error = WavefrontError("The prompt is empty.")
    assert (error.option, error.value, error.hint) == (None, None, None)
    assert error.args == ("The prompt is empty.",)


def test_every_error_type_is_a_wavefront_error_and_survives_pickling():
    kinds = [
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(kind, Warning)
    ]
    assert len(kinds) > 8
    for kind in kinds:
        assert issubclass(kind, WavefrontError)
        again = pickle.loads(pickle.dumps(kind("text", option="size", value=3, hint="more")))
        assert (type(again), str(again)) == (kind, "text")
        assert (again.option, again.value, again.hint) == ("size", 3, "more")


@pytest.mark.parametrize(
    ("check", "value"),
    [
        (lambda name, value: check_int(name, value, 1), 0),
        (lambda name, value: check_int(name, value, 1), True),
        (lambda name, value: check_int(name, value, 1, high=4), 5),
        (lambda name, value: check_float(name, value, 0, high=1), 1.5),
        (lambda name, value: check_float(name, value, 0), "0.1"),
        (lambda name, value: check_float(name, value, 0), float("nan")),
        (lambda name, value: check_choice(name, value, ("one", "two")), "three"),
    ],
)
def test_checks_name_the_option_and_the_value(check, value):
    with pytest.raises(OptionError) as caught:
        check("radius", value)
    assert caught.value.option == "radius"
    assert caught.value.value is value
    assert str(caught.value).startswith("radius must be")


@pytest.mark.parametrize(
    ("text", "option", "value"),
    [
        ("wavefront(radius=0)", "radius", 0),
        ("wavefront(grow='shrink')", "grow", "shrink"),
        ("standard(selector=threshold(tau=2))", "tau", 2),
        ("wavefront(siz=3)", "siz", None),
        ("wavefront(size=1, size=2)", "size", None),
        ("wavefront(radius=x)", "radius", "x"),
        ("wavefront(selector=3)", "selector", "3"),
    ],
)
def test_spec_error_keeps_the_option_and_value_of_the_inner_error(text, option, value):
    with pytest.raises(SpecError) as caught:
        spec.resolve(text, "strategies")
    assert (caught.value.option, caught.value.value) == (option, value)


def test_install_command_fits_a_checkout_and_an_installed_package(tmp_path, monkeypatch):
    assert errors.install_command("serve") == "pip install -e '.[serve]'"
    monkeypatch.setattr(errors, "__file__", str(tmp_path / "wavefront" / "core" / "errors.py"))
    assert errors.install_command("serve") == "pip install 'wavefront[serve]'"
