"""docs/claims.md matches the recorded results, and every command in it parses."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
from helpers.commands import parses
from helpers.pages import ROOT, load_script

from wavefront import paper

claims = load_script("claims")
PAGE = ROOT / "docs" / "claims.md"
PAPER = tomllib.loads((ROOT / "wavefront/paper/paper.toml").read_text("utf-8"))
ENTRIES = [entry for theme in claims.read_list()["theme"] for entry in theme["claim"]]
TEXT = "The wave has a lower ECE than block"


def recorded(folder: Path, verdicts: dict[str, str]) -> Path:
    """Record results in which only calibration was run, with these verdicts by place."""
    said = [
        {"text": TEXT, "where": where, "found": {"value": -1.0, "low": -2.0, "high": 0.5},
         "items": 9, "p": None, "verdict": verdict}
        for where, verdict in verdicts.items()
    ]  # fmt: skip
    rest = {"text": "The wave has a lower MCE than block on complex tasks", "where": "gsm, padded",
            "found": 0.1, "items": 9, "p": None, "verdict": "undecided: no interval"}  # fmt: skip
    about = {"models": ["ripple"], "command": "-", "commit": "-", "device": "-", "dtype": "-"}
    home = folder / "calibration"
    home.mkdir(parents=True)
    numbers = {"configuration": about, "claims": [*said, rest]}
    (home / "numbers.json").write_text(json.dumps(numbers), "utf-8")
    return folder


def ece(folder: Path, verdicts: dict[str, str]) -> Any:
    """Return the page's row on ECE for these verdicts."""
    (found,) = [row for row in claims.read(recorded(folder, verdicts))["Calibration"]
                if "lower ECE" in row.claim]  # fmt: skip
    return found


def test_page_matches_the_recorded_results() -> None:
    """After new results: python runs/claims.py."""
    assert PAGE.read_text("utf-8") == claims.page(claims.read())


def test_page_lists_every_experiment() -> None:
    ran = PAGE.read_text("utf-8").partition("## What was run")[2]
    for name in paper.NAMES:
        assert re.search(rf"^\| \[?{name}\b", ran, re.MULTILINE), name
        assert any(entry.get("from") == name for entry in ENTRIES), name


def test_every_verdict_is_one_of_four_words() -> None:
    rows = [row for theme in claims.read().values() for row in theme]
    assert len(rows) == len(ENTRIES) > 60
    assert {row.verdict for row in rows} <= {*claims.VERDICTS}
    assert all(row.measured and (row.by or row.measured.startswith("not run")) for row in rows)


def test_every_command_parses_and_every_file_exists() -> None:
    found = re.findall(r"`((?:wavefront|python|pytest) [^`]+)`", PAGE.read_text("utf-8"))
    assert len(found) > 30
    for text in found:
        tool, *words = shlex.split(text)
        if tool == "wavefront":
            parses([tool, *words])
        else:
            files = [word for word in words if word.endswith(".py")]
            assert files, text
            assert all((ROOT / file).exists() for file in files), text


def columns() -> list[list[float]]:
    """The numbers of every column of the paper's tables."""
    tables = [list(zip(*one["rows"], strict=True)) for one in PAPER.values() if "rows" in one]
    return [[float(n) for cell in column for n in re.findall(r"\d+\.\d+", cell)]
            for table in tables for column in table]  # fmt: skip


@pytest.mark.parametrize("entry", [e for e in ENTRIES if "paper" in e], ids=lambda e: e["text"])
def test_quoted_numbers_are_in_the_paper(entry: dict[str, Any]) -> None:
    """Each is in a table of paper.toml, or the difference of two of one row or column."""
    rows = [[float(n) for cell in row for n in re.findall(r"\d+\.\d+", cell)]
            for one in PAPER.values() for row in one.get("rows", [])]  # fmt: skip
    series = [*columns(), *rows]
    known = {round(n, 4) for one in series for n in one}
    known |= {round(abs(a - b), 4) for one in series for a in one for b in one}
    for number in re.findall(r"\d+\.\d+", entry["paper"]):
        assert float(number) in known, number


def test_verdicts_of_several_places_combine(tmp_path: Path) -> None:
    places = {
        "gsm, wavefront(size=8), padded": "agrees",
        "gsm, wavefront(size=8), prefix": "agrees",
    }
    assert ece(tmp_path / "a", places).verdict == "confirmed"
    places["code, wavefront(size=8), padded"] = "undecided: the interval holds 0"
    mixed = ece(tmp_path / "b", places)
    assert mixed.verdict == "undecided"
    assert "gsm, padded: −1.0 [−2.0, +0.5]: confirmed" in mixed.measured
    places["code, wavefront(size=8), prefix"] = "disagrees"
    assert ece(tmp_path / "c", places).verdict == "not confirmed"


def test_other_reading_is_shown_where_it_differs(tmp_path: Path) -> None:
    wave, other = "wavefront(size=8, radius=2)", "wavefront(size=8, radius=2, grow='accumulate')"
    same = ece(
        tmp_path / "a", {f"gsm, {wave}, padded": "agrees", f"gsm, {other}, padded": "agrees"}
    )
    assert "accumulate" not in same.measured
    apart = ece(
        tmp_path / "b", {f"gsm, {wave}, padded": "agrees", f"gsm, {other}, padded": "disagrees"}
    )
    assert apart.verdict == "confirmed"
    assert "accumulate: −1.0 [−2.0, +0.5]: not confirmed" in apart.measured


def test_only_deciding_places_of_many_are_shown(tmp_path: Path) -> None:
    places = {f"task{n}": "undecided: the interval holds 0" for n in range(9)}
    found = ece(tmp_path, {**places, "gsm": "disagrees"}).measured
    assert found.startswith("1 not confirmed, 9 undecided<br>gsm: ")
    assert "task3" not in found


def test_missing_experiment_shows_its_command(tmp_path: Path) -> None:
    rows = claims.read(tmp_path)["Right answers"]
    assert rows[0].measured == "not run yet: `wavefront paper run main`"
    assert rows[0].verdict == "undecided"


def test_unlisted_claim_is_an_error(tmp_path: Path) -> None:
    home = recorded(tmp_path, {"gsm": "agrees"})
    file = home / "calibration" / "numbers.json"
    file.write_text(file.read_text("utf-8").replace(TEXT, "Something new"), "utf-8")
    with pytest.raises(SystemExit, match="no entry for claims of calibration: Something new"):
        claims.read(home)


def test_entry_without_results_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="has nothing for this entry"):
        claims.read(recorded(tmp_path, {}))


@pytest.mark.parametrize(
    ("found", "unit", "shown"),
    [
        (None, "", "no value"),
        (True, "", "holds"),
        (0.0, "points", "+0.0"),
        ({"value": -0.0006, "low": -0.0017, "high": -0.000002}, "",
         "−0.000600 [−0.001700, −0.000002]"),
        ({"value": 0.02, "low": -0.0001, "high": 0.05}, "", "+0.020 [−0.000, +0.050]"),
        ({"value": 192.36, "low": 67.9, "high": 397.6}, "%", "+192.4 [+67.9, +397.6] %"),
    ],
)  # fmt: skip
def test_numbers_have_enough_digits(found: Any, unit: str, shown: str) -> None:
    assert claims.value(found, unit) == shown
