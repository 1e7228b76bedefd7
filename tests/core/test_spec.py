from __future__ import annotations

import sys
from dataclasses import dataclass, field

import pytest

from wavefront import Selector, Strategy
from wavefront.cli import app as program
from wavefront.core import spec
from wavefront.core.errors import SpecError
from wavefront.core.state import Config
from wavefront.strategies.block import Block
from wavefront.strategies.selectors.dream import Dream
from wavefront.strategies.selectors.quota import Quota
from wavefront.strategies.standard import Standard
from wavefront.strategies.wavefront import Wavefront


@dataclass(frozen=True)
class Outsider(Strategy):
    """A strategy outside the registry."""

    pace: float = 0.5
    selector: Quota = field(default=Quota())


@dataclass(frozen=True)
class HasFactory(Strategy):
    """A strategy whose default selector comes from a factory."""

    selector: Selector = field(default_factory=Quota, repr=False)


@dataclass
class NotFrozen(Strategy):
    """A strategy that cannot be hashed."""

    selector: Selector = field(default=Quota(), repr=False)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("standard()", "standard"),
        ("wavefront(size=8, radius=2, grow='rebuild')", "wavefront"),
        ("wavefront(size=4, radius=2, grow='rebuild')", "wavefront(size=4)"),
        ("wavefront(8, 3)", "wavefront(radius=3)"),
        ("standard(selector=quota())", "standard"),
        ("standard(selector=dream(eps=0.1))", "standard(selector=dream(eps=0.1))"),
        (
            "block(size=32, selector=threshold(tau=0.99, floor=None))",
            "block(size=32, selector=threshold(tau=0.99, floor=None))",
        ),
        (f"{__name__}.Outsider(pace=0.5)", f"{__name__}.Outsider(pace=0.5)"),
        ("unknown(size=8)", "unknown(size=8)"),
        ("a title", "a title"),
    ],
)
def test_short_spec_leaves_out_the_defaults(text, expected):
    assert spec.short(text, "strategies") == expected


@pytest.mark.parametrize("name", spec.names("strategies"))
def test_short_spec_resolves_to_the_same_object(name):
    cls = spec.find(name, "strategies")
    for text in (cls.default_spec(), cls.recommended_spec()):
        made = spec.resolve(text, "strategies")
        assert spec.resolve(spec.short(text, "strategies"), "strategies") == made
        assert len(spec.short(repr(made), "strategies")) <= len(repr(made))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("wavefront", Wavefront()),
        ("wavefront()", Wavefront()),
        (" wavefront( size = 4, grow='accumulate' ) ", Wavefront(size=4, grow="accumulate")),
        ("wavefront(4, 3)", Wavefront(4, 3)),
        ("block(size=16)", Block(16)),
        ("standard(selector=dream(eps=0.1))", Standard(selector=Dream(0.1))),
        ("standard(selector=dream)", Standard(selector=Dream())),
        (f"{__name__}.Outsider(pace=2)", Outsider(2)),
        (f"{__name__}.HasFactory", HasFactory()),
        (f"{__name__}.HasFactory(selector=dream(eps=0.1))", HasFactory(Dream(0.1))),
    ],
)
def test_spec_resolves_to_the_object_and_its_repr_resolves_to_it_again(text, expected):
    made = spec.resolve(text, "strategies")
    assert made == expected
    assert spec.resolve(repr(made), "strategies") == made


def test_default_of_a_factory_is_left_out_of_the_spec():
    assert repr(HasFactory()) == f"{__name__}.HasFactory()"


def test_strategy_that_is_not_frozen_raises_an_error_with_the_fix():
    fix = r"@dataclass\(frozen=True\)"
    with pytest.raises(SpecError, match=fix):
        spec.resolve(f"{__name__}.NotFrozen()", "strategies")
    with pytest.raises(SpecError, match=fix):
        Config(strategy=NotFrozen())


def test_repr_is_a_spec():
    assert repr(Wavefront()) == "wavefront(size=8, radius=2, grow='rebuild')"
    assert repr(Standard()) == "standard()"
    assert repr(Standard(selector=Dream())) == "standard(selector=dream(eps=0.001))"
    assert repr(Outsider()) == f"{__name__}.Outsider(pace=0.5, selector=quota())"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("wavfront", "did you mean 'wavefront'"),
        ("wavefront(siz=3)", "did you mean 'size'"),
        ("wavefront(size=0)", "size must be between 1 and 1048576"),
        ("wavefront(size=2.5)", "whole number"),
        ("wavefront(size=True)", "whole number"),
        ("wavefront(size='8')", "whole number"),
        ("wavefront(radius=-1)", "radius must be between 1 and 1048576"),
        ("wavefront(grow='shrink')", "grow must be one of"),
        ("wavefront(size=1, size=2)", "twice"),
        ("wavefront(8, size=2)", "twice"),
        ("wavefront(1, 2, 'rebuild', quota(), 5)", "at most 4"),
        ("wavefront(**{'size': 3})", "no option ''"),
        ("wavefront(selector=3)", "selector must be"),
        ("wavefront(", "Cannot read"),
        ("", "Cannot read"),
        ("3", "does not name a strategy"),
        ("'wavefront'", "does not name a strategy"),
        ("lambda: 0", "does not name a strategy"),
        ("wavefront(size=[x for x in ()])", "plain value"),
        ("wavefront(size=2**40)", "plain value"),
        ("__import__('os').getcwd()", "a name was expected"),
        ("standard(selector=open('x'))", "no selector 'open'"),
        (
            "standard(selector=wavefront.strategies.standard.Standard())",
            "selector must be a selector",
        ),
        ("wavefront(radius=x)", "radius must be a plain value"),
        ("wavefront(grow=rebuild)", "put a word in quotes"),
        ("no.such.Thing()", "Cannot import .* Run from the directory that holds it"),
        ("wavefront.such.Thing()", "Cannot import .* Run from the directory that holds it"),
        ("json.Thing()", "Cannot import 'json.Thing': module 'json' has no attribute 'Thing'.$"),
        ("json.py", "has no attribute 'py'; write the class of that file, as json.NAME.$"),
        (f"{__name__}.Outsidr()", "has no attribute 'Outsidr' (did you mean 'Outsider'"),
        ("wavefront.core.masks.top()", "not a class"),
        ("collections.OrderedDict()", "not a strategy"),
        ("quota()", "no strategy 'quota'"),
        ("wavefront." * 3000 + "x", "Cannot"),
        ("(" * 500, "Cannot read"),
        (f"wavefront(size={'-' * 900}1)", "Cannot read"),
        (f"wavefront(size={'-' * 90}1)", "size must be"),
    ],
)
def test_bad_spec_raises_a_short_spec_error(text, sentence):
    with pytest.raises(SpecError, match=sentence.replace("(", r"\(")) as caught:
        spec.resolve(text, "strategies")
    assert len(str(caught.value)) < 400


def test_spec_is_parsed_and_never_evaluated(tmp_path):
    target = tmp_path / "written"
    for text in (
        f"wavefront(size=open({str(target)!r}, 'w'))",
        f"(open({str(target)!r}, 'w'))",
        f"wavefront(size=[open({str(target)!r}, 'w')][0])",
    ):
        with pytest.raises(SpecError):
            spec.resolve(text, "strategies")
    assert not target.exists()


def test_builtin_specs_refuse_dotted_names():
    for text in (f"{__name__}.Outsider()", f"standard(selector={__name__}.Outsider())"):
        with pytest.raises(SpecError, match="dotted names are not accepted"):
            spec.resolve_builtin(text, "strategies")
    assert spec.resolve_builtin("block", "strategies") == Block()


def test_options_are_added_where_a_spec_does_not_give_them():
    more = {"size": "3", "selector": "quota()"}
    for text, expected in (
        ("block", "block(size=3, selector=quota())"),
        ("block()", "block(size=3, selector=quota())"),
        ("block(size=9)", "block(size=9, selector=quota())"),
        ("blockwise(strategy=block)", "blockwise(strategy=block(size=3, selector=quota()))"),
        ("standard(selector=threshold(tau=0.5))", "standard(selector=threshold(tau=0.5))"),
        ("block((", "block(("),
        ("block(" + "(" * 999, "block(" + "(" * 999),
    ):
        assert spec.add_options(text, "block", more) == expected


def test_file_added_to_the_registry_is_found(tmp_path, monkeypatch):
    import wavefront.strategies as registry

    (tmp_path / "every_other.py").write_text(
        "from dataclasses import dataclass\n"
        "from wavefront.strategies.standard import Standard\n"
        "@dataclass(frozen=True)\n"
        "class EveryOther(Standard):\n"
        "    gap: int = 2\n"
    )
    monkeypatch.setattr(registry, "__path__", [*registry.__path__, str(tmp_path)])
    spec.names.cache_clear()
    try:
        made = spec.resolve("every_other(gap=3)", "strategies")
        assert repr(made) == "every_other(gap=3)"
    finally:
        spec.names.cache_clear()
        sys.modules.pop("wavefront.strategies.every_other", None)


def test_own_folder_has_one_name() -> None:
    assert program.OWN_FOLDER == spec.OWN_FOLDER
