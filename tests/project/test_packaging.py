"""A release: a self-contained wheel, a source archive that builds the same wheel, and notes."""

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
from collections.abc import Iterator
from configparser import ConfigParser
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest
from helpers.pages import load_script
from packaging.requirements import Requirement
from packaging.version import Version

import wavefront

ROOT = Path(wavefront.__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
DEVELOPMENT = {"docs", "dev"}  # extras for work on the project
# File types that the package may contain. Add a new type here on purpose.
KINDS = {
    ".bin", ".css", ".html", ".js", ".json", ".jsonl", ".md", ".png", ".py", ".safetensors",
    ".sha256", ".svg", ".toml", ".txt", ".typed",
}  # fmt: skip


release_notes = load_script("release_notes")


def build(source: Path, target: str, into: Path) -> Path:
    """Build a source tree with hatchling, without network access."""
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
    """Return the unpacked source archive."""
    folder = tmp_path_factory.mktemp("sdist")
    with tarfile.open(build(ROOT, "sdist", folder)) as packed:
        packed.extractall(folder / "unpacked", filter="data")
    (unpacked,) = (folder / "unpacked").iterdir()
    return unpacked


def contents(wheel: Path) -> dict[str, int]:
    """Return every file of a wheel with its checksum."""
    with zipfile.ZipFile(wheel) as packed:
        return {one.filename: one.CRC for one in packed.infolist()}


def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as packed:
        (name,) = (one for one in packed.namelist() if one.endswith(".dist-info/METADATA"))
        return Parser().parsestr(packed.read(name).decode())


def in_tree(folder: str) -> set[str]:
    """Return the project files of a folder."""
    command = ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard"]
    found = subprocess.run([*command, folder], capture_output=True, text=True, check=False)
    if found.returncode == 0 and found.stdout:
        return {one for one in found.stdout.splitlines() if (ROOT / one).exists()}
    every = (ROOT / folder).rglob("*")
    files = (one.relative_to(ROOT).as_posix() for one in every if one.is_file())
    return {one for one in files if "__pycache__" not in one}


def test_built_in_weights_are_below_60_megabytes() -> None:
    folder = ROOT / "wavefront" / "models" / "builtin"
    sizes = {file.parent.relative_to(folder).as_posix(): file.stat().st_size / 1e6
             for file in sorted(folder.rglob("*.safetensors"))}  # fmt: skip
    print(", ".join(f"{name} {size:.1f} MB" for name, size in sizes.items()))
    assert {"ripple", "tale", "tale/judge"} <= {*sizes}
    assert sum(sizes.values()) < 60, sizes


@pytest.mark.slow
def test_wheel_has_the_size_that_the_docs_state(wheel: Path) -> None:
    megabytes = wheel.stat().st_size / 1e6
    assert megabytes < 45
    page = (ROOT / "docs" / "index.md").read_text("utf-8")
    (stated,) = re.findall(r"The wheel has (\d+) MB", page)
    assert megabytes == pytest.approx(int(stated), abs=1)


@pytest.mark.slow
def test_wheel_contains_exactly_the_package(wheel: Path) -> None:
    info = f"wavefront-{wavefront.__version__}.dist-info"
    about = {"METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE"}
    assert set(contents(wheel)) == in_tree("wavefront") | {f"{info}/{name}" for name in about}
    licenses = {name for name in in_tree("wavefront") if Path(name).name == "LICENSE"}
    assert {Path(name).suffix for name in in_tree("wavefront") - licenses} <= KINDS
    assert wheel.name == f"wavefront-{wavefront.__version__}-py3-none-any.whl"
    ripple = {
        f"wavefront/models/builtin/ripple/{name}" for name in ("config.json", "tokenizer.json")
    }
    assert {*ripple, "wavefront/py.typed", "wavefront/server/page/index.html"} <= {*contents(wheel)}


@pytest.mark.slow
def test_wheel_metadata_matches_the_project(wheel: Path) -> None:
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
def test_archive_builds_the_same_wheel(wheel: Path, archive: Path, tmp_path: Path) -> None:
    again = build(archive, "wheel", tmp_path)
    assert contents(again) == contents(wheel)
    for name in ("tests", "docs", "examples", "runs", "hub"):
        here = {one for one in in_tree(name) if (ROOT / one).is_file()}
        assert here == {one for one in here if (archive / one).is_file()}


@pytest.mark.slow
def test_wheel_works_alone(wheel: Path, tmp_path: Path) -> None:
    """Decode with a wheel installed elsewhere, without a compiler, from another directory."""
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
        f"wavefront {wavefront.__version__} (torch "  # a wheel has no commit
    )
    question = "I have two figs and a pear. How many fruits?"
    answer = run(str(home / "bin" / "wavefront"), "generate", question, "-n", "24")
    assert answer.splitlines()[-1] == "#### 3"


def locked(name: str) -> dict[str, Version]:
    """Return the versions in a lock file. Every package must have hashes."""
    text = (ROOT / "requirements" / f"{name}.txt").read_text("utf-8")
    entries = re.findall(r"^(\S+?)==(\S+)(.*\n(?:[ ].*\n)*)", text, re.MULTILINE)
    assert len(entries) == len(re.findall(r"^[^\s#]", text, re.MULTILINE)) > 5
    for package, _, rest in entries:
        hashes = re.findall(r"--hash=(.+?)(?: \\)?$", rest, re.MULTILINE)
        assert hashes, package
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", one) for one in hashes), package
    return {package: Version(version) for package, version, _ in entries}


def requirements(*extras: str) -> Iterator[Requirement]:
    """Yield the requirements of the core and of these extras, and of the extras they contain."""
    for line in PROJECT["dependencies"]:
        yield Requirement(line)
    todo = [*extras]
    while todo:
        for requirement in map(Requirement, EXTRAS[todo.pop()]):
            if requirement.name == "wavefront":
                todo += requirement.extras
            else:
                yield requirement


@pytest.mark.parametrize(("name", "extras"), [("dev", ["dev"]), ("image", ["serve", "hub"])])
def test_lock_pins_every_requirement_within_its_range(name: str, extras: list[str]) -> None:
    pinned = locked(name) | locked("torch")
    seen = 0
    for requirement in requirements(*extras):
        assert requirement.name.lower() in pinned, f"run make lock for {requirement}"
        assert requirement.specifier.contains(pinned[requirement.name.lower()]), requirement
        seen += 1
    assert seen > len(PROJECT["dependencies"])
    (torch,) = re.findall(r"^torch==(\S+)$", (ROOT / "constraints.txt").read_text("utf-8"), re.M)
    assert pinned["torch"] == Version(torch)
    assert "torch" not in locked(name)  # each index has its own files, and so its own hashes


def test_lock_of_the_build_has_the_version_of_development() -> None:
    (backend,) = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["build-system"][
        "requires"
    ]
    assert locked("build")["hatchling"] == locked("dev")["hatchling"]
    assert Requirement(backend).specifier.contains(locked("build")["hatchling"])


def test_locks_name_no_index_and_no_path() -> None:
    for file in (ROOT / "requirements").iterdir():
        text = file.read_text("utf-8")
        assert not re.search(r"://|^-|^\s*-(?!-hash)|@ |\s/\w", text, re.MULTILINE), file


def test_named_extras_match_the_defined_extras() -> None:
    pattern = re.compile(r"(?:wavefront|'\.)\[([\w,-]+)\]|install_command\('([\w-]+)'\)")
    named: set[str] = set()
    for file in (ROOT / "wavefront").rglob("*.py"):
        for found in pattern.findall(file.read_text("utf-8")):
            named |= {*"".join(found).split(",")}
    assert named == {*EXTRAS} - DEVELOPMENT - {"all"}
    for page in (*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "Dockerfile"):
        for found in pattern.findall(page.read_text("utf-8")):
            assert {*"".join(found).split(",")} <= {*EXTRAS}, page


def test_extra_all_contains_every_extra() -> None:
    (everything,) = EXTRAS["all"]
    inside = {*everything.removeprefix("wavefront[").removesuffix("]").split(",")}
    assert inside == {*EXTRAS} - DEVELOPMENT - {"all"}


def test_every_extra_is_documented() -> None:
    page = (ROOT / "docs" / "index.md").read_text("utf-8")
    assert {*re.findall(r"^\| `([\w-]+)` \|", page, re.MULTILINE)} == {*EXTRAS} - DEVELOPMENT


def test_current_version_has_release_notes() -> None:
    assert release_notes.notes((ROOT / "CHANGELOG.md").read_text("utf-8"), wavefront.__version__)


CHANGES = """# Changelog

## Unreleased

{}

## 0.2.0 - 2027-01-02

- New.

## 0.1.0

- Old.
"""


def test_release_notes_are_the_section_of_the_version() -> None:
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
