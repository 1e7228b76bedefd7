"""What is released: a wheel that stands alone, an archive that makes the same wheel, and notes."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from configparser import ConfigParser
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest
from helpers.pages import load_script

import wavefront

ROOT = Path(wavefront.__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
WORKSHOP = {"docs", "dev"}  # for working on the project
# What a package of ours may hold besides Python; a new kind of file is added here knowingly.
KINDS = {
    ".bin", ".css", ".html", ".js", ".json", ".md", ".png", ".py", ".safetensors", ".sha256",
    ".toml", ".txt", ".typed",
}  # fmt: skip


release_notes = load_script("release_notes")


def build(source: Path, target: str, into: Path) -> Path:
    """What hatchling makes of a tree, without a network."""
    if importlib.util.find_spec("hatchling") is None:
        pytest.skip("hatchling is not installed")
    command = [sys.executable, "-m", "hatchling", "build", "--target", target]
    subprocess.run([*command, "--directory", str(into)], cwd=source, check=True, text=True)
    (made,) = into.glob("*.whl" if target == "wheel" else "*.tar.gz")
    return made


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, "wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sdist, unpacked."""
    folder = tmp_path_factory.mktemp("sdist")
    with tarfile.open(build(ROOT, "sdist", folder)) as packed:
        packed.extractall(folder / "unpacked", filter="data")
    (unpacked,) = (folder / "unpacked").iterdir()
    return unpacked


def contents(wheel: Path) -> dict[str, int]:
    """Every file of a wheel and its checksum."""
    with zipfile.ZipFile(wheel) as packed:
        return {one.filename: one.CRC for one in packed.infolist()}


def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as packed:
        (name,) = (one for one in packed.namelist() if one.endswith(".dist-info/METADATA"))
        return Parser().parsestr(packed.read(name).decode())


def in_tree(folder: str) -> set[str]:
    """The files of a folder that belong to the project."""
    command = ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard"]
    found = subprocess.run([*command, folder], capture_output=True, text=True, check=False)
    if found.returncode == 0 and found.stdout:
        return {one for one in found.stdout.splitlines() if (ROOT / one).exists()}
    every = (ROOT / folder).rglob("*")
    files = (one.relative_to(ROOT).as_posix() for one in every if one.is_file())
    return {one for one in files if "__pycache__" not in one}


@pytest.mark.slow
def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    told = f"wavefront-{wavefront.__version__}.dist-info"
    about = {"METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE"}
    assert set(contents(wheel)) == in_tree("wavefront") | {f"{told}/{name}" for name in about}
    assert {Path(name).suffix for name in in_tree("wavefront")} <= KINDS
    assert wheel.name == f"wavefront-{wavefront.__version__}-py3-none-any.whl"
    ripple = {f"wavefront/checkpoints/ripple/{name}" for name in ("config.json", "tokenizer.json")}
    assert {*ripple, "wavefront/py.typed", "wavefront/serve/page/index.html"} <= {*contents(wheel)}


@pytest.mark.slow
def test_the_wheel_says_of_itself_what_the_project_says(wheel: Path) -> None:
    about = metadata(wheel)
    assert about["Name"] == "wavefront"
    assert about["Version"] == wavefront.__version__
    assert about["Requires-Python"] == PROJECT["requires-python"] == ">=3.11"
    assert about["License-Expression"] == "MIT"
    assert about.get_all("License-File") == ["LICENSE"]
    assert "Typing :: Typed" in about.get_all("Classifier", [])
    assert {*about.get_all("Provides-Extra", [])} == {*EXTRAS}
    core = [one for one in about.get_all("Requires-Dist", []) if "extra ==" not in one]
    assert {re.split(r"[<>=]", one)[0] for one in core} == {
        re.split(r"[<>=]", one)[0] for one in PROJECT["dependencies"]
    }
    with zipfile.ZipFile(wheel) as packed:
        (name,) = (one for one in packed.namelist() if one.endswith("/entry_points.txt"))
        points = ConfigParser()
        points.read_string(packed.read(name).decode())
    assert dict(points["console_scripts"]) == PROJECT["scripts"]
    assert dict(points["lm_eval.models"]) == PROJECT["entry-points"]["lm_eval.models"]


@pytest.mark.slow
def test_the_archive_makes_the_same_wheel(wheel: Path, archive: Path, tmp_path: Path) -> None:
    again = build(archive, "wheel", tmp_path)
    assert contents(again) == contents(wheel)
    for name in ("tests", "docs", "examples", "runs", "hub"):
        here = {one for one in in_tree(name) if (ROOT / one).is_file()}
        assert here == {one for one in here if (archive / one).is_file()}


@pytest.mark.slow
def test_the_wheel_works_alone(wheel: Path, tmp_path: Path) -> None:
    """Installed elsewhere, without a compiler in sight, it decodes from another directory."""
    home, bare = tmp_path / "home", tmp_path / "bin"
    bare.mkdir()
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*install, "--target", str(home), str(wheel)], check=True)
    env = {**os.environ, "PATH": str(bare), "PYTHONPATH": str(home)}
    assert shutil.which("cc", path=env["PATH"]) is None

    def run(*words: str) -> str:
        ran = [sys.executable, *words]
        return subprocess.run(
            ran, cwd=bare, env=env, capture_output=True, text=True, check=True
        ).stdout

    assert run("-c", "import wavefront; print(wavefront.__file__)").startswith(str(home))
    assert run(str(home / "bin" / "wavefront"), "--version").startswith(
        f"wavefront {wavefront.__version__} (torch "  # no commit: a wheel knows none
    )
    question = "I have two figs and a pear. How many fruits?"
    answer = run(str(home / "bin" / "wavefront"), "generate", question, "-n", "24")
    assert answer.splitlines()[-1] == "#### 3"


def test_every_extra_that_is_named_is_there_and_every_one_there_is_named() -> None:
    pattern = re.compile(r"wavefront\[([\w,-]+)\]")
    named: set[str] = set()
    for file in (ROOT / "wavefront").rglob("*.py"):
        for found in pattern.findall(file.read_text("utf-8")):
            named |= {*found.split(",")}
    assert named == {*EXTRAS} - WORKSHOP - {"all"}
    for page in (*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "Dockerfile"):
        for found in pattern.findall(page.read_text("utf-8")):
            assert {*found.split(",")} <= {*EXTRAS}, page


def test_the_extra_of_all_is_all() -> None:
    (everything,) = EXTRAS["all"]
    inside = {*everything.removeprefix("wavefront[").removesuffix("]").split(",")}
    assert inside == {*EXTRAS} - WORKSHOP - {"all"}


def test_every_extra_has_its_line_in_the_docs() -> None:
    page = (ROOT / "docs" / "start.md").read_text("utf-8")
    assert {*re.findall(r"^\| `([\w-]+)` \|", page, re.MULTILINE)} == {*EXTRAS} - WORKSHOP


def test_this_version_has_its_notes() -> None:
    assert release_notes.notes((ROOT / "CHANGELOG.md").read_text("utf-8"), wavefront.__version__)


CHANGES = """# Changelog

## Unreleased

{}

## 0.2.0 - 2027-01-02

- New.

## 0.1.0

- Old.
"""


def test_notes_are_the_section_of_the_version() -> None:
    assert release_notes.notes(CHANGES.format(""), "0.2.0") == "- New."
    assert release_notes.notes(CHANGES.format("- Next."), "0.3.0.dev0") == "- Next."
    assert release_notes.notes(CHANGES.format(""), "0.3.0.dev0") == "Nothing yet."
    for text, version, why in (
        (CHANGES.format("- Next."), "0.2.0", "unreleased changes"),
        (CHANGES.format(""), "0.3.0", "no section '## 0.3.0 - YYYY-MM-DD'"),
        (CHANGES.format(""), "0.1.0", "no section"),  # without its date
        ("# Changelog\n\n## 0.1.0 - 2027-01-01\n", "0.1.0", "says nothing"),
        ("# Changelog\n", "0.3.0.dev0", "no section '## Unreleased'"),
    ):
        with pytest.raises(release_notes.NoNotes, match=why):
            release_notes.notes(text, version)
