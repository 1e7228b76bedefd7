"""`wavefront experiment`: each to its end on the toy, its page whole, its verdicts by rule."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.commands import records, refused, run
from helpers.pages import load_script

import wavefront
from wavefront import paper
from wavefront.analysis.figures import Figure
from wavefront.paper import _claims, _groups, _printed, _wrapped
from wavefront.paper._lab import Cell, Scale
from wavefront.paper.studies import Bench
from wavefront.results import table as runs
from wavefront.results.bootstrap import spanning
from wavefront.tasks.base import Sample

ROOT = Path(wavefront.__file__).parents[1]
CLAIMS = load_script("claims")
ENCODER = ROOT / "tests" / "golden" / "encoders" / "bert-tiny"
STUDIES = ("decode-order", "mhco", "case", "calibration", "dynamics", "gradient")
IDS = (*STUDIES, "main", "bertscore", "size-radius", "bbh", "baselines", "parity", "steps",
       "temperature", "priority", "latency")  # fmt: skip

DRAW = Bench.draw
DATA = os.environ.get("WAVEFRONT_DATA")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short questions for studies, and every figure drawn a single time."""
    monkeypatch.setattr("wavefront.analysis.figures.style.DPI", 100)
    real = Figure.bytes

    @functools.cache
    def page(picture: Figure) -> bytes:
        return real(picture)

    def some(self: Figure, kind: str = "svg", style: Any = None) -> bytes:
        return page(self) if kind == "svg" else runs.PNG

    def draw(self: Bench, name: str, count: int | None = None) -> list[Sample]:
        wanted = self.items if count is None else count
        return [Sample(f"{name}/{n}", f"{n} and {n}?", f"#### {n}", "4") for n in range(wanted)]

    monkeypatch.setattr(Figure, "bytes", some)
    monkeypatch.setattr(Bench, "draw", draw)


def tiny(name: str, home: Path, *more: str) -> Any:
    few = ["--items", "2", "-n", "8", "-b", "2", "--task", "boolean_expressions", "-q"]
    if name == "bertscore":
        more = ("--encoder", str(ENCODER), "--layer", "2", *more)
    return run("experiment", name, "-m", "toy", *few, "-o", str(home), *more)


# The encoder of BERTScore comes with a library that takes long to import.
SLOW = ("bertscore",)


@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=pytest.mark.slow) if one in SLOW else one for one in IDS]
)
def test_an_experiment_writes_its_page(name: str, tmp_path: Path) -> None:
    home = tmp_path / name
    done = tiny(name, home)
    summary = (home / "summary.md").read_text("utf-8")
    assert done.stdout.strip() == summary.strip()
    found = runs.read(home)
    assert _printed.where(name) in found.title
    verdicts = found.tables[0]
    assert list(verdicts.columns) == _claims.COLUMNS
    assert verdicts.rows
    known = ("agrees", "disagrees", "undecided", "not measurable")
    assert all(str(row[-1]).startswith(known) for row in verdicts.rows)
    assert len(found.tables) >= 2
    assert found.figures
    for item in found.figures:
        assert f"]({item.file})" in summary
        assert runs.image(home / item.file)[0] == "image/svg+xml"
    numbers = json.loads((home / "numbers.json").read_text("utf-8"))
    assert [one["verdict"] for one in numbers["claims"]] == [row[-1] for row in verdicts.rows]
    assert not CLAIMS.unplaced(name, numbers)  # each has its line in docs/claims.md
    said = found.configuration
    assert {"command", "commit", "device", "torch", "threads", "experiment"} <= said.keys()
    assert said["models"] == ["toy"]
    for beside in (_printed.printed(name), _printed.points(name)):
        if beside is not None:
            assert f"## {beside.title}\n" in summary


def test_the_list_names_every_id_of_the_paper() -> None:
    assert paper.names() == list(paper.NAMES)
    assert {*IDS} == {*paper.NAMES}
    told = records(run("experiments", "--json"))
    assert [one["name"] for one in told] == list(paper.NAMES)
    assert all(one["what"] and one["needs"] and one["paper"] != "none" for one in told)
    printed = run("experiments").stdout
    assert printed == run("experiment", "--list").stdout
    assert "Tables 6 and 7" in printed


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (("mian",), 1, "There is no experiment 'mian' (did you mean 'main'?)"),
        ((), 2, "Name an experiment"),
        (("main", "--items", "0"), 1, "items must be at least 1, not 0."),
        (("main", "-n", "0"), 1, "length must be at least 1, not 0."),
        (("main", "-b", "0"), 1, "batch_size must be at least 1, not 0."),
        (("main", "--seed", "-1"), 1, "seed must be at least 0, not -1."),
        (("main", "--task", "gsn"), 1, "no task 'gsn' (did you mean 'gsm'?)"),
        (("main", "--items", "x"), 2, "'x' is not a whole number."),
    ],
)
def test_bad_options_are_refused(args: tuple[str, ...], code: int, said: str) -> None:
    assert said in run("experiment", *args, code=code).stderr


def test_the_scale_of_the_paper_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WAVEFRONT_DATA", raising=False)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    said = refused("experiment", "main", "--paper", "-o", str(tmp_path / "out"))
    for part in (
        "LLaDA-8B-Instruct",
        "LLaDA-1.5",
        "Dream-v0-Instruct-7B",
        "gsm8k",
        "WAVEFRONT_DATA",
    ):
        assert part in said
    said = refused("experiment", "steps", "--paper", "-m", "toy", "-o", str(tmp_path / "out"))
    assert "items of gsm8k" in said
    assert "checkpoint" not in said
    assert not (tmp_path / "out").exists()


def test_the_scales_of_the_paper_are_the_paper_s() -> None:
    for name in paper.NAMES:
        scale = paper.find(name).PAPER
        assert scale.models
        assert scale.style == "paper"
        assert name == "bertscore" or scale.length == 1024
    assert len(paper.find("bbh").PAPER.tasks) == 27
    assert len(paper.find("main").PAPER.models) == 3
    assert paper.find("temperature").PAPER.seeds == (0, 1, 2)


def test_the_paper_s_numbers_are_as_printed() -> None:
    cell = _printed.cell
    assert cell("main", "GSM8K", model="LLaDA-8B", strategy="WavefrontDiffusion") == "82.03"
    assert cell("main", "MBPP", model="Dream", strategy="BlockDiffusion") == "58.52"
    assert cell("bertscore", "F1", strategy="WavefrontDiffusion") == "0.8094 ± 0.0033"
    assert cell("size-radius", "F=8, R=8", dataset="HumanEval") == "42.07"
    assert cell("temperature", "0.8", strategy="WavefrontDiffusion") == "78.86 ± 0.41"
    assert cell("latency", "ms/token", strategy="Autoregressive Greedy") == "9.2"
    assert cell("calibration", "MCE", dataset="GSM8K", strategy="Wave") == "0.4824"
    assert cell("main", "nothing") is None
    assert cell("main", "GSM8K", model="ripple") is None
    bbh = _printed.printed("bbh")
    assert bbh is not None
    assert len(bbh.rows) == 50
    # Every difference is the wave's share less the base's.
    for row in bbh.rows:
        assert float(row[4]) == pytest.approx(float(row[3]) - float(row[2]), abs=1e-9)


def group(*right: bool, strategy: str = "block(size=8)") -> _groups.Group:
    cell: Any = SimpleNamespace(cell=Cell("m", "t", strategy), right=dict(enumerate(right)))
    return _groups.Group((cell,))


def test_a_direction_needs_an_interval_clear_of_zero_and_the_test() -> None:
    base, better = group(*[False] * 20), group(*[True] * 20)
    assert _claims.directed("c", "w", base, better).verdict == "agrees"
    assert _claims.directed("c", "w", better, base).verdict == "disagrees"
    assert _claims.directed("c", "w", better, base, "lower").verdict == "agrees"
    assert _claims.directed("c", "w", base, base).verdict == "undecided: the interval holds 0"
    few = _claims.directed("c", "w", group(False, False), group(True, True))
    assert few.verdict == "undecided: fewer than 6 items"
    # Five of twelve, all one way: the bootstrap is clear of 0, the exact test is not below 0.05.
    five: Any = _claims.directed("c", "w", group(*[False] * 12), group(*[True] * 5, *[False] * 7))
    assert five.found.low > 0
    assert five.p == pytest.approx(0.0625)
    assert five.verdict.startswith("undecided: McNemar")
    assert _claims.directed("c", "w", _groups.Group(()), base).word == "not"


def test_alike_needs_items_even_where_no_pair_differs() -> None:
    few, many = group(*[True] * 20), group(*[True] * 300)
    assert _claims.alike("c", "w", few, few, 2.0).word == "undecided"
    assert _claims.alike("c", "w", many, many, 2.0).verdict == "agrees"
    worse = group(*[False] * 300)
    assert _claims.alike("c", "w", many, worse, 2.0).verdict == "disagrees"
    assert _claims.within(None, 9, 1.0) == "not measurable here"
    assert _claims.within(spanning(0, -0.1, 0.1), 3, 1.0).startswith("undecided")


def test_a_correlation_has_an_interval_around_it() -> None:
    found: Any = _wrapped.correlated(-0.6, 30)
    assert found.low < -0.6 < found.high < 0
    assert _wrapped.correlated(None, 30) is None
    assert _wrapped.correlated(-0.6, 4) == -0.6


def test_groups_pool_and_pair() -> None:
    groups = {
        ("m", "d", "block(size=8)"): group(True, False),
        ("m", "e", "block(size=8)"): group(True),
    }
    assert len(_groups.pool(groups, "block(size=8)").cells) == 2
    assert len(_groups.pool(groups, "e", "block(size=8)").cells) == 1
    assert _groups.base_key(groups, ("m", "d", "standard")) == ("m", "d", "block(size=8)")
    assert _groups.base_key(groups, ("m", "d", "block(size=8)")) is None


def test_cells_have_folders_of_their_own() -> None:
    cells = [
        Cell("a/b", "gsm", "block(size=8)"),
        Cell("a/b", "gsm", "block(size=8)", "draft=4"),
        Cell("a/b", "gsm", "block(size=8)", "T=4", 1),
        Cell("a/b", "gsm", "block(size=8)", "T=4", 2),
    ]
    assert len({cell.folder for cell in cells}) == len(cells)
    assert str(cells[0].folder) == "b/gsm--block-size=8"


def test_an_experiment_done_again_answers_nothing_again(tmp_path: Path) -> None:
    tiny("steps", tmp_path)
    files = sorted(tmp_path.rglob("answers.jsonl"))
    before = [(file, file.stat().st_mtime_ns) for file in files]
    tiny("steps", tmp_path)
    assert len(files) == 12
    assert before == [(file, file.stat().st_mtime_ns) for file in files]
    # Answers that were made elsewhere are told as such.
    for file in tmp_path.rglob("environment.jsonl"):
        file.write_text(json.dumps({"device": "a big one", "torch": "1.0"}) + "\n")
    header = files[0].parent / "header.json"
    header.write_text(json.dumps(json.loads(header.read_text()) | {"commit": "abc"}))
    tiny("steps", tmp_path)
    told = json.loads((tmp_path / "numbers.json").read_text("utf-8"))["configuration"]
    assert (told["device"], told["torch"]) == ("a big one", "1.0")
    assert "python" not in told
    assert "abc" in told["commit"]  # beside that of the other runs
    said = run("experiment", "steps", "-m", "toy", "--items", "3", "-n", "8", "-b", "2", "-q",
               "--task", "boolean_expressions", "-o", str(tmp_path), code=1).stderr  # fmt: skip
    assert "is another run" in said


def numbers(home: Path) -> Any:
    """Everything that was measured but time."""
    found = json.loads((home / "numbers.json").read_text("utf-8"))
    for row in found["measured"]:
        del row["seconds"]
    return found["claims"], found["measured"]


@pytest.mark.slow
def test_a_killed_experiment_goes_on_and_ends_with_the_same_numbers(tmp_path: Path) -> None:
    def start(home: Path) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "wavefront", "experiment", "steps", "-m", "toy", "-q",
                   "--items", "12", "-n", "16", "-b", "2", "-o", str(home)]  # fmt: skip
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        return subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def answers(home: Path) -> int:
        return sum(len(file.read_bytes().splitlines()) for file in home.rglob("answers.jsonl"))

    whole, broken = tmp_path / "whole", tmp_path / "broken"
    process = start(whole)
    assert process.communicate(timeout=500)[0]
    assert process.returncode == 0
    for wanted in (3, 40, 90):
        process = start(broken)
        until = time.monotonic() + 300
        while answers(broken) < wanted and process.poll() is None:
            assert time.monotonic() < until
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert process.returncode == -signal.SIGKILL
        assert wanted <= answers(broken) < answers(whole)
        assert not (broken / "numbers.json").exists()
    process = start(broken)
    process.communicate(timeout=500)
    assert process.returncode == 0
    assert numbers(broken) == numbers(whole)


def test_a_scale_refuses_what_none_takes() -> None:
    with pytest.raises(wavefront.OptionError, match="steps must be at least 1"):
        Scale(steps=0)


@pytest.mark.skipif(not DATA, reason="WAVEFRONT_DATA is not set")
def test_studies_and_grids_take_benchmarks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Bench, "draw", DRAW)
    bench = Bench(lm=wavefront.load("toy"), tasks=("gsm8k",), length=256, style="paper")
    found = bench.draw("gsm8k", 3)
    assert [one.id for one in found] == [one.id for one in bench.draw("gsm8k", 3)]
    assert all(len(one.answer) < 256 and "####" in one.answer for one in found)
    few = ("-m", "toy", "--items", "1", "-n", "8", "-q", "--data", str(DATA))
    home = tmp_path / "steps"
    run("experiment", "steps", "--paper", *few, "-o", str(home))
    rows = runs.read(home).tables[1].rows
    assert {row[1] for row in rows} == {"GSM8K"}
    assert [row[-1] for row in rows][-2:] == ["82.03", "82.03"]
