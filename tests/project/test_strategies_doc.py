"""docs/strategies.md: a section, a picture and all options per strategy, and working commands."""

from __future__ import annotations

import dataclasses
import re
import shlex
from pathlib import Path
from xml.etree import ElementTree

import pytest
from helpers.commands import records, run

from wavefront.core import spec
from wavefront.core.bounds import DECODE_OPTIONS, bounds_of

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "strategies.md").read_text(encoding="utf-8")
REGISTERED = [(kind, name) for kind in ("strategies", "selectors") for name in spec.names(kind)]
NAMES = [*(name for _, name in REGISTERED), "speculate"]
ENTRIES = PAGE.partition("\n## Strategies")[2].partition("\n## Considered")[0]
SECTIONS = dict(re.findall(r"^### (\w+)\n(.*?)(?=^##|\Z)", ENTRIES, re.DOTALL | re.MULTILINE))
COMMANDS = re.findall(r"`(wavefront generate [^`]+)`", PAGE)
PICTURE = r"!\[(.+)\]\(strategies/(\w+)\.svg\)"


def test_sections_match_the_registry() -> None:
    """Every registered name has a section and a picture, and no other name has one."""
    assert sorted(SECTIONS) == sorted(NAMES)
    pictures = sorted(path.stem for path in (DOCS / "strategies").iterdir())
    assert pictures == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_section_is_complete(name: str) -> None:
    section = SECTIONS[name]
    assert len(section.partition("![")[0].split()) > 15  # the description
    for heading in ("Options.", "Cost.", "Use it when", "Source."):
        assert section.count(f"* **{heading}**") == 1
    ((caption, picture),) = re.findall(PICTURE, section)
    assert picture == name
    assert caption.startswith(f"{name}: ")


@pytest.mark.parametrize("name", NAMES)
def test_picture_is_small_and_self_contained(name: str) -> None:
    drawn = (DOCS / "strategies" / f"{name}.svg").read_text(encoding="utf-8")
    assert len(drawn.encode()) < 40_000
    root = ElementTree.fromstring(drawn)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert root.get("width") == "640"
    texts = [text.text or "" for text in root.iter("{http://www.w3.org/2000/svg}text")]
    assert any(re.search(rf"\b{name}\b", text) for text in texts)
    assert "href" not in drawn
    assert "url(" not in drawn


@pytest.mark.parametrize(("kind", "name"), REGISTERED)
def test_options_have_their_defaults(kind: str, name: str) -> None:
    section = SECTIONS[name]
    for field in dataclasses.fields(spec.find(name, kind)):
        (default,) = re.findall(rf"`{field.name}`\s+\(`?(.+?)`?\)(?=[:;,. \n])", section)
        assert default == repr(field.default), field.name


def test_page_lists_the_recommended_setting_of_every_strategy() -> None:
    section = PAGE.partition("\n## Recommended settings")[2].partition("\n## ")[0]
    listed = dict(re.findall(r"^\| `(\w+)` \| `?(.+?)`? \|", section, re.MULTILINE))
    assert sorted(listed) == sorted(spec.names("strategies"))
    for name, text in listed.items():
        found = spec.find(name, "strategies")
        assert text == ("equal" if "recommended" not in found.__dict__ else found.recommended)
        assert found.recommended_spec().partition("(")[0] == name
        assert isinstance(spec.resolve(found.recommended_spec(), "strategies"), found)
        assert spec.resolve(found.default_spec(), "strategies") == found()


def test_page_lists_the_bounds_of_every_option() -> None:
    section = PAGE.partition("\n## Bounds")[2].partition("\n## ")[0]
    listed = dict(re.findall(r"^\| `?([\w ]+?)`? \| (.+) \|$", section, re.MULTILINE))
    registered = [(name, kind) for kind in spec.REGISTRIES for name in spec.names(kind)]
    expected = {name: bounds_of(spec.find(name, kind)) for name, kind in registered}
    expected["every decode"] = DECODE_OPTIONS
    del listed["name"]
    for name, bounds in expected.items():
        text = "; ".join(f"`{option}`: {own}" for option, own in bounds.items())
        assert listed.pop(name, "") == text
    assert not listed


def test_specs_on_the_page_parse() -> None:
    """Parse the specs of the commands and of the text, except the symbolic `dsb(size=masks)`."""
    for command in COMMANDS:
        for text in re.findall(r'-s "(.+?)"(?= |$)', command):
            assert spec.resolve(text, "strategies")
    names = "|".join(spec.names("strategies"))
    for text in re.findall(rf"`((?:{names})\([^`]*\))`", PAGE):
        if text != "dsb(size=masks)":
            assert spec.resolve(text, "strategies")


@pytest.mark.filterwarnings("ignore::wavefront.core.errors.WavefrontWarning")
@pytest.mark.parametrize("command", COMMANDS)
def test_command_works(command: str) -> None:
    _, *words = shlex.split(command.replace("$Q", "How many fruits?"))
    if "-n" not in words:
        words += ["-n", "16"]
    (record,) = records(run(*words, "--raw", "--json"))
    assert record["forwards"] >= 1


def test_links_within_the_page_resolve() -> None:
    assert set(re.findall(r"\]\(#([^)]+)\)", PAGE)) <= {
        *NAMES,
        "the-default",
        "recommended-settings",
    }
    for path in re.findall(r"\]\((?!https:|#)([^)#]+)\)", PAGE):
        assert (DOCS / path).exists(), path


def test_page_starts_with_a_choice_and_ends_with_omissions() -> None:
    titles = [title.partition(":")[0] for title in re.findall(r"^## (.+)$", PAGE, re.MULTILINE)]
    assert titles[0] == "Choose"
    assert "How they compare" in titles
    assert titles[-1] == "Considered and left out"
