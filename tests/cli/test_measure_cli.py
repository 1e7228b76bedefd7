"""`wavefront measure`: every study on a toy, its files whole and its numbers complete."""

from __future__ import annotations

import functools
import importlib
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.commands import refused, run

import wavefront
from wavefront.analysis.figures import Figure
from wavefront.cli import measure
from wavefront.core.errors import OptionError
from wavefront.paper import studies
from wavefront.paper.studies import Bench
from wavefront.paper.studies._findings import clean, shown
from wavefront.results import table as runs
from wavefront.results.bootstrap import ends, mean, ratio, ratio_gap, verdict
from wavefront.tasks.base import Sample
from wavefront.traces import trace_file

FEW = ("-s", "block(size=4)", "-s", "wavefront(size=4, radius=2)", "-n", "8", "-b", "2")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short questions, and a third of the dots."""
    monkeypatch.setattr("wavefront.analysis.figures.style.DPI", 100)

    def draw(self: Bench, name: str, count: int | None = None) -> list[Sample]:
        wanted = self.items if count is None else count
        return [
            Sample(f"{name}/{n}", f"{n} and {n}?", f"#### {2 * n}"[-5:], "4") for n in range(wanted)
        ]

    monkeypatch.setattr(Bench, "draw", draw)


@pytest.fixture(scope="module")
def lm() -> wavefront.LM:
    return wavefront.load("toy")


@pytest.fixture
def drawn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every figure is drawn a single time; tests/test_figures.py has the files themselves."""
    real = Figure.bytes

    @functools.cache
    def page(picture: Figure) -> bytes:
        return real(picture)

    def some(self: Figure, kind: str = "svg", style: Any = None) -> bytes:
        return page(self) if kind == "svg" else runs.PNG

    monkeypatch.setattr(Figure, "bytes", some)


@pytest.mark.usefixtures("drawn_once")
@pytest.mark.parametrize("name", measure.STUDIES)
def test_a_study_writes_figures_numbers_and_a_run(name: str, tmp_path: Path) -> None:
    home = tmp_path / name
    done = run("paper", "measure", name, *FEW, "--items", "3", "--items-seed", "7", "-o", str(home))
    assert done.stderr.endswith(f"files in {home}\n")
    summary = (home / "summary.md").read_text("utf-8")
    assert done.stdout.strip() == summary.strip()
    found = runs.read(home)
    assert len(found.figures) >= 1
    for item in found.figures:
        assert item.title
        for file in (home / item.file, home / item.file.replace(".svg", "-dark.svg")):
            assert runs.image(file)[0] == "image/svg+xml"
            assert runs.image(file.with_suffix(".png"))[0] == "image/png"
    for item in found.traces:
        assert len(trace_file.load(home / item.file)) == 8
    numbers = json.loads((home / "numbers.json").read_text("utf-8"))
    assert numbers["n"] == (1 if name in ("decode_order", "case") else 3)
    said = numbers["configuration"]
    assert said == found.configuration
    assert {"model": "toy", "seed": 7, "places (N)": 8, "rows at once": 2}.items() <= said.items()
    assert said["strategies"] == ["block(size=4)", "wavefront(size=4, radius=2)"]
    assert {"command", "wavefront", "torch", "python", "device", "dtype", "date"} <= said.keys()
    for table in found.tables:
        assert f"## {table.title}\n" in summary
        assert len(table.rows) >= 1
    if name not in ("decode_order", "case"):
        cells = [cell for table in found.tables for row in table.rows for cell in row]
        assert any(isinstance(cell, runs.Interval) for cell in cells)


def test_the_same_command_finds_the_same(tmp_path: Path) -> None:
    for one in "ab":
        run("paper", "measure", "mhco", *FEW, "--items", "2", "-o", str(tmp_path / one))
    for file in (tmp_path / "a").iterdir():
        assert file.read_bytes() == (tmp_path / "b" / file.name).read_bytes(), file.name


def test_the_list_is_the_shelf() -> None:
    assert sorted(measure.STUDIES) == studies.names()
    for name in studies.names():
        module = importlib.import_module(f"wavefront.paper.studies.{name}")
        assert (module.__doc__ or "").startswith(f"{name.capitalize()}: ")
        assert callable(module.run)
    help_page = run("paper", "measure", "--help").stdout
    assert all(len(line) <= 80 for line in help_page.splitlines())
    assert all(re.search(rf"^ +{name} ", help_page, re.MULTILINE) for name in measure.STUDIES)


def test_a_wrong_study_is_refused_with_the_nearest() -> None:
    done = run("paper", "measure", "mcho", code=2)
    assert "There is no study 'mcho' (did you mean 'mhco'?)" in done.stderr


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        (("--items", "-1"), "items must be"),
        (("-s", "blok"), "did you mean 'block'"),
        (("--batch-size", "0"), "batch must be"),
        (("--task", "gms"), "did you mean 'gsm'"),
    ],
)
def test_wrong_values_are_refused_before_a_model_is_loaded(
    option: tuple[str, str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wavefront.lm.load", lambda *_, **__: pytest.fail("loaded"))
    assert sentence in refused("paper", "measure", "mhco", *option, "-o", str(tmp_path / "x"))
    assert not (tmp_path / "x").exists()


def test_items_are_held_out_fixed_by_the_seed_and_fit(lm, monkeypatch) -> None:
    monkeypatch.undo()
    bench = Bench(lm=lm, items=4, length=96, seed=1)
    found = bench.draw("web_of_lies")
    assert (
        found == bench.draw("web_of_lies") != Bench(lm=lm, items=4, length=96).draw("web_of_lies")
    )
    assert len({one.id for one in found}) == 4
    assert all("/held-out/" in one.id for one in found)
    assert all(len(lm.tokenizer.encode(one.answer)) < 96 for one in found)
    with pytest.raises(OptionError, match="fit 8 places: give a larger -n"):
        Bench(lm=lm, items=1, length=8).draw("gsm")


def test_what_a_later_task_cannot_hold_is_said_before_anything_is_decoded(lm, monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr(Bench, "decode", lambda *args, **options: pytest.fail("decoded"))
    tasks = ("boolean_expressions", "multistep_arithmetic_two")
    with pytest.raises(OptionError, match="multistep_arithmetic_two have answers that fit 24"):
        studies.find("mhco").run(Bench(lm=lm, tasks=tasks, items=2, length=24))


def test_intervals_are_over_items_and_in_pairs() -> None:
    top, bottom = torch.tensor([1, 3, 0, 4]), torch.tensor([4, 4, 4, 4])
    found = ratio(top, bottom, scale=100)
    assert ends(found)[0] == 50
    assert 0 < ends(found)[1] < 50 < ends(found)[2] < 100
    assert ends(ratio_gap((top, bottom), (top + 1, bottom))) == (0.25, 0.25, 0.25)  # all the same
    assert ends(mean(torch.tensor([1.0, math.nan, 3.0])))[0] == 2
    assert mean(torch.tensor([math.nan])) is None
    assert mean(torch.tensor([2.0])) == 2.0  # one item has no interval
    assert ratio(torch.zeros(3), torch.zeros(3)) is None


def test_a_verdict_needs_items_and_an_interval_clear_of_zero() -> None:
    below = runs.Interval(-2.0, -3.0, -1.0)
    assert verdict(below, 20, claimed="lower") == "agrees"
    assert verdict(below, 20, claimed="higher") == "disagrees"
    assert verdict(below, 5, claimed="lower").startswith("undecided")
    assert verdict(runs.Interval(-2.0, -3.0, 0.0), 20, claimed="lower").startswith("undecided")
    assert verdict(None, 20, claimed="lower") == "not measurable here"


def test_numbers_are_json_and_cells_are_markdown() -> None:
    made = clean({"a": torch.tensor([1.0, math.nan]), "b": (runs.Interval(1.0, 0.0, 2.0),)})
    assert made == {"a": [1.0, None], "b": [{"value": 1.0, "low": 0.0, "high": 2.0}]}
    assert shown("a|b\nc") == "a\\|b c"
    assert shown(None) == "–"
    assert shown(runs.Interval(1.0, 0.5, 2.0)) == "1.000 [0.500, 2.000]"
