"""docs/claims.md matches the recorded results, and every command in it parses."""

from __future__ import annotations

import json
import re
import shlex
import shutil
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
    rest = {
        "text": "The wave has a lower MCE than block on complex tasks",
        "where": "gsm, padded",
        "found": 0.1,
        "items": 9,
        "p": None,
        "verdict": "not measurable here: no interval",
    }
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
        assert any(name in claims.sources(entry) for entry in ENTRIES), name


def test_every_verdict_is_one_of_five() -> None:
    rows = [row for theme in claims.read().values() for row in theme]
    assert len(rows) == len(ENTRIES) > 60
    assert {claims.verdict_word(row.verdict) for row in rows} == {*claims.VERDICTS}
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
        "gsm, wavefront(size=8), padded": "confirmed",
        "gsm, wavefront(size=8), prefix": "confirmed",
    }
    assert ece(tmp_path / "a", places).verdict == "confirmed"
    places["code, wavefront(size=8), padded"] = "no difference above 2"
    mixed = ece(tmp_path / "b", places)
    assert mixed.verdict == "not confirmed"  # it holds in some places only
    assert "gsm, padded: −1.0 [−2.0, +0.5]: confirmed" in mixed.measured
    places["code, wavefront(size=8), prefix"] = "not confirmed"
    assert ece(tmp_path / "c", places).verdict == "not confirmed"
    none = {"gsm, prefix": "no difference above 2", "code, prefix": "no difference above 0.5"}
    assert ece(tmp_path / "d", none).verdict == "no difference above 2.0"
    some = {"gsm, prefix": "confirmed", "code, prefix": "not measurable here: few"}
    assert ece(tmp_path / "e", some).verdict == "confirmed"


def test_largest_tables_decide_wave_against_block() -> None:
    """The pooled numbers are those of the recorded tables with the most items."""
    first = claims.read()["Accuracy"][0]
    assert "19 tasks, T = N: +0.38 [+0.03, +0.74]; 5250 items" in first.measured
    assert "17 real BBH files, T = N: +0.0 [−0.4, +0.4]; 4250 items" in first.measured
    assert "ripple: " not in first.measured  # the table of 750 items
    rows = claims.ripple_rows("real, canvas x1, T = N/1")
    assert len(rows) == 17
    with pytest.raises(SystemExit, match="has no table"):
        claims.ripple_rows("real, canvas x9")


def test_withdrawn_verdicts_do_not_return() -> None:
    """What a review found to rest on one task, on solved items, or on a definition."""
    rows = {
        row.claim.partition("<br>")[0]: row for theme in claims.read().values() for row in theme
    }
    for text in (
        "... above SSD",
        "The wave is above truncated blocks (TBD, a reconstruction)",
        "No training is needed",
        "It takes as long per token as left to right",
        "F = 16 is no better than F = 8",
    ):
        assert rows[text].verdict == "not measurable here", text
    assert rows["Updates are at most F × T"].verdict == "holds by construction"
    assert (
        rows["The most confident positions always lie near known text"].verdict == "not confirmed"
    )
    assert not any("about three" in row.measured + row.by for row in rows.values())


def test_model_with_neutral_masks_decides_beside_ripple(tmp_path: Path) -> None:
    rows = {row.claim.partition("<br>")[0]: row for row in claims.read()["Accuracy"]}
    text = "The wave has more correct answers than block with the same step budget"
    assert rows[text].measured.startswith("qwen: ")
    assert rows[text].verdict == "no difference above 2.5 points"
    assert rows[text].measured.count("; ripple does not decide between schedules<br>") == 5
    # Without that page, ripple's numbers stay without a verdict.
    for name in ("main", "ripple"):
        shutil.copytree(ROOT / "docs" / "results" / name, tmp_path / name)
    only = {row.claim.partition("<br>")[0]: row for row in claims.read(tmp_path)["Accuracy"]}
    assert only[text].verdict == "not measurable here"
    assert only["The wave is far above standard"].measured.startswith("−0.1 [−1.1, +0.8]")
    assert only["The wave is far above standard"].verdict == "not measurable here"


def test_other_reading_is_shown_where_it_differs(tmp_path: Path) -> None:
    wave, other = "wavefront(size=8, radius=2)", "wavefront(size=8, radius=2, grow='accumulate')"
    same = ece(
        tmp_path / "a", {f"gsm, {wave}, padded": "confirmed", f"gsm, {other}, padded": "confirmed"}
    )
    assert "accumulate" not in same.measured
    apart = ece(
        tmp_path / "b",
        {f"gsm, {wave}, padded": "confirmed", f"gsm, {other}, padded": "not confirmed"},
    )
    assert apart.verdict == "confirmed"
    assert "accumulate: −1.0 [−2.0, +0.5]: not confirmed" in apart.measured


def test_only_deciding_places_of_many_are_shown(tmp_path: Path) -> None:
    places = {f"task{n}": "no difference above 2" for n in range(9)}
    found = ece(tmp_path, {**places, "gsm": "not confirmed"}).measured
    assert found.startswith("1 not confirmed, 9 no difference above<br>gsm: ")
    assert "task3" not in found


def test_missing_experiment_shows_its_command(tmp_path: Path) -> None:
    rows = claims.read(tmp_path)["Accuracy"]
    assert rows[1].measured == "not run yet: `wavefront paper run main`"
    assert rows[1].verdict == "not measurable here"


def test_sizes_of_excluded_differences_are_rounded_up() -> None:
    assert claims.bound(0.36548, "") == "0.37"
    assert claims.bound(3.014, "points") == "3.1"
    assert claims.bound(2.5, "points") == "2.5"
    assert claims.bound(0.009369, "") == "0.010"


def test_page_without_the_claim_of_an_entry_is_an_error(tmp_path: Path) -> None:
    for name in ("qwen-main", "main", "ripple"):
        shutil.copytree(ROOT / "docs" / "results" / name, tmp_path / name)
    file = tmp_path / "qwen-main" / "numbers.json"
    found = json.loads(file.read_text("utf-8"))
    found["claims"] = [one for one in found["claims"] if "far above" not in one["text"]]
    file.write_text(json.dumps(found), "utf-8")
    with pytest.raises(SystemExit, match="qwen-main has nothing for this entry"):
        claims.read(tmp_path)


def test_unlisted_claim_is_an_error(tmp_path: Path) -> None:
    home = recorded(tmp_path, {"gsm": "confirmed"})
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
