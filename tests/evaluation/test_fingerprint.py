"""Fingerprints: what changes them and what does not."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from wavefront import tasks
from wavefront.evaluation import fingerprint
from wavefront.storage.fingerprint import of_sources, of_tensors
from wavefront.strategies.selectors.quota import Quota
from wavefront.strategies.standard import Standard

SOURCE = '''"""A module."""

# A comment.
RATE = 2


class Clock:
    """A clock."""

    def tick(self, times: int) -> int:
        """Return the ticks."""
        return RATE * times  # ticks

    async def wait(self) -> None:
        """Only a docstring."""
'''


@pytest.fixture
def package(tmp_path: Path) -> Path:
    (tmp_path / "core").mkdir()
    (tmp_path / "core" / "clock.py").write_text(SOURCE)
    (tmp_path / "other.py").write_text("x = 1\n")
    return tmp_path


def digest(package: Path) -> str:
    return of_sources(package, ("core/*.py", "lm.py"))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("# A comment.", "# Another comment,\n# on two lines."),
        ("  # ticks", ""),
        ('"""A module."""', '"""A module,\n\nwith a longer docstring.\n"""'),
        ('"""A clock."""', '"""A better clock."""'),
        ('"""Return the ticks."""', '"""Return the number of ticks."""'),
        ('"""Only a docstring."""', '"""Nothing but a docstring."""'),
        ("RATE * times", "(RATE  *  times)"),
    ],
)
def test_comments_docstrings_and_layout_keep_the_fingerprint(
    package: Path, old: str, new: str
) -> None:
    before = digest(package)
    assert old in SOURCE
    (package / "core" / "clock.py").write_text(SOURCE.replace(old, new))
    assert digest(package) == before


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("RATE = 2", "RATE = 3"),
        ("RATE * times", "RATE + times"),
        ("def tick", "def tock"),
        ("class Clock", "class Watch"),
        ("RATE = 2", 'RATE = 2\nNAME = "# not a comment"'),
    ],
)
def test_a_changed_statement_changes_the_fingerprint(package: Path, old: str, new: str) -> None:
    before = digest(package)
    (package / "core" / "clock.py").write_text(SOURCE.replace(old, new))
    assert digest(package) != before


def test_only_the_listed_modules_count(package: Path) -> None:
    before = digest(package)
    (package / "other.py").write_text("x = 2\n")
    assert digest(package) == before
    (package / "lm.py").write_text("x = 2\n")
    assert digest(package) != before


@pytest.mark.slow
def test_the_decoding_modules_of_the_package_are_listed(tmp_path: Path) -> None:
    for pattern in fingerprint.DECODING_SOURCES:
        assert list(fingerprint.PACKAGE.glob(pattern)), f"{pattern} matches no module"
    copy = Path(shutil.copytree(fingerprint.PACKAGE, tmp_path / "wavefront"))
    assert of_sources(copy, fingerprint.DECODING_SOURCES) == fingerprint.of_code()
    with (copy / "strategies" / "block.py").open("a") as file:
        file.write("# A comment.\n")
    with (copy / "cli" / "__init__.py").open("a") as file:
        file.write("x = 1\n")
    assert of_sources(copy, fingerprint.DECODING_SOURCES) == fingerprint.of_code()
    with (copy / "strategies" / "block.py").open("a") as file:
        file.write("x = 1\n")
    assert of_sources(copy, fingerprint.DECODING_SOURCES) != fingerprint.of_code()


def test_grader_changes_with_its_own_modules_only(tmp_path: Path) -> None:
    gsm, code, math = (tasks.load(name) for name in ("gsm", "code", "math"))
    before = [fingerprint.of_grader(task) for task in (gsm, code, math)]
    assert len({*before}) == 3
    copy = Path(shutil.copytree(fingerprint.PACKAGE, tmp_path / "wavefront"))

    def changed(file: str, line: str) -> list[bool]:
        """Return for which tasks a line at the end of a module changes the grader."""
        path = copy / file
        source = path.read_text()
        path.write_text(f"{source}\n{line}\n")
        found = [fingerprint.of_grader(task, copy) for task in (gsm, code, math)]
        path.write_text(source)
        return [new != old for new, old in zip(found, before, strict=True)]

    assert changed("tasks/grading/final_answer.py", "# A comment.") == [False] * 3
    assert changed("tasks/grading/final_answer.py", "x = 1") == [True] * 3
    assert changed("tasks/procedural/gsm.py", "x = 1") == [True, False, False]
    assert changed("tasks/procedural/code.py", "x = 1") == [False, True, False]
    assert changed("tasks/sandbox/checker.py", "x = 1") == [False, True, False]
    assert changed("tasks/benchmarks/_benchmark.py", "x = 1") == [False, False, True]
    assert changed("tasks/procedural/navigate.py", "x = 1") == [False] * 3


def test_every_bit_and_name_of_a_tensor_counts() -> None:
    tensors = {"a": torch.arange(6.0).view(2, 3), "b": torch.ones(4, dtype=torch.bfloat16)}
    first = of_tensors(tensors)
    assert of_tensors(dict(reversed(tensors.items()))) == first
    assert of_tensors({"a": tensors["a"].clone(), "b": tensors["b"].clone()}) == first
    for other in (
        {"a": tensors["a"].view(3, 2), "b": tensors["b"]},
        {"a": tensors["a"].flip(0), "b": tensors["b"]},
        {"a": tensors["a"], "c": tensors["b"]},
        {"a": tensors["a"], "b": tensors["b"].float()},
        {"a": tensors["a"]},
    ):
        assert of_tensors(other) != first


@dataclass(frozen=True)
class MySelector(Quota):
    """A selector that is not part of the package."""


def test_a_users_selector_in_a_built_in_strategy_has_a_fingerprint() -> None:
    assert fingerprint.of_strategy(Standard()) is None
    assert fingerprint.of_strategy(Standard(selector=MySelector())) is not None


def test_the_version_of_python_does_not_change_the_fingerprint(tmp_path: Path) -> None:
    """The digest was the same in Python 3.11, 3.12 and 3.13, whose syntax trees differ."""
    (tmp_path / "clock.py").write_text(
        "def show(one, two=('\"', \"'\")):\n"
        '    return f"{one!r:>{two[1]}}{\'x\'}" f"{one}"\n'
        "class Clock: pass\n"
    )
    assert of_sources(tmp_path, ["clock.py"])[:16] == "cc5bf2a05acc1c47"
