"""docs/strategies.md: a section, a picture and all options of each strategy; commands that work."""

from __future__ import annotations

import dataclasses
import re
import shlex
from pathlib import Path
from xml.etree import ElementTree

import pytest
from helpers.commands import records, run

from wavefront.core import spec

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "strategies.md").read_text(encoding="utf-8")
SHELVES = [(shelf, name) for shelf in ("strategies", "selectors") for name in spec.names(shelf)]
NAMES = [*(name for _, name in SHELVES), "draft"]
SHELF = PAGE.partition("\n## Strategies")[2].partition("\n## Considered")[0]
SECTIONS = dict(re.findall(r"^### (\w+)\n(.*?)(?=^##|\Z)", SHELF, re.DOTALL | re.MULTILINE))
COMMANDS = re.findall(r"`(wavefront generate [^`]+)`", PAGE)
PICTURE = r"!\[(.+)\]\(strategies/(\w+)\.svg\)"


def test_the_sections_are_the_shelves() -> None:
    """Neither more nor fewer, so that what is taken off a shelf leaves the page."""
    assert sorted(SECTIONS) == sorted(NAMES)
    pictures = sorted(path.stem for path in (DOCS / "strategies").iterdir())
    assert pictures == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_section_answers_every_question(name: str) -> None:
    section = SECTIONS[name]
    assert len(section.partition("![")[0].split()) > 15  # what it does, in words
    for heading in ("Options.", "Cost.", "Use it when", "Source."):
        assert section.count(f"* **{heading}**") == 1
    ((caption, picture),) = re.findall(PICTURE, section)
    assert picture == name
    assert caption.startswith(f"{name}: ")


@pytest.mark.parametrize("name", NAMES)
def test_a_picture_is_small_and_stands_alone(name: str) -> None:
    drawn = (DOCS / "strategies" / f"{name}.svg").read_text(encoding="utf-8")
    assert len(drawn.encode()) < 40_000
    root = ElementTree.fromstring(drawn)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert root.get("width") == "640"
    texts = [text.text or "" for text in root.iter("{http://www.w3.org/2000/svg}text")]
    assert any(re.search(rf"\b{name}\b", text) for text in texts)
    assert "href" not in drawn
    assert "url(" not in drawn


@pytest.mark.parametrize(("shelf", "name"), SHELVES)
def test_every_option_is_told_with_its_default(shelf: str, name: str) -> None:
    section = SECTIONS[name]
    for field in dataclasses.fields(spec.find(name, shelf)):
        (default,) = re.findall(rf"`{field.name}`\s+\(`?(.+?)`?\)(?=[:;,. \n])", section)
        assert default == repr(field.default), field.name


def test_every_spec_on_the_page_parses() -> None:
    """Those of the commands, and those in passing, such as `dsb(size=masks)` less its words."""
    for command in COMMANDS:
        for text in re.findall(r'-s "(.+?)"(?= |$)', command):
            assert spec.resolve(text, "strategies")
    names = "|".join(spec.names("strategies"))
    for text in re.findall(rf"`((?:{names})\([^`]*\))`", PAGE):
        if text != "dsb(size=masks)":
            assert spec.resolve(text, "strategies")


@pytest.mark.filterwarnings("ignore::wavefront.core.errors.WavefrontWarning")
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_page_works(command: str) -> None:
    _, *words = shlex.split(command.replace("$Q", "How many fruits?"))
    if "-n" not in words:
        words += ["-n", "16"]
    (record,) = records(run(*words, "--raw", "--json"))
    assert record["forwards"] >= 1


def test_links_within_the_page_lead_somewhere() -> None:
    assert set(re.findall(r"\]\(#([^)]+)\)", PAGE)) <= set(NAMES)
    for path in re.findall(r"\]\((?!https:|#)([^)#]+)\)", PAGE):
        assert (DOCS / path).exists(), path


def test_the_page_begins_with_a_choice_and_ends_with_what_is_not_here() -> None:
    titles = [title.partition(":")[0] for title in re.findall(r"^## (.+)$", PAGE, re.MULTILINE)]
    assert titles[0] == "Choose"
    assert "How they compare" in titles
    assert titles[-1] == "Considered and left out"
