"""`wavefront paper run curves`: quality against forward passes, on equal terms."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers.commands import refused, run

from wavefront import paper
from wavefront.analysis.quality import TextQuality
from wavefront.evaluation.protocol import ADAPTIVE, FIXED, GRIDS, half_of
from wavefront.paper import curves
from wavefront.paper.curves import Bench, SettingResult
from wavefront.results import table

pytestmark = pytest.mark.slow

THRESHOLD = "standard(selector=threshold(tau={tau}))"


def ask(home: Path, *more: str) -> tuple[str, ...]:
    few = ("-m", "toy", "--task", "boolean_expressions", "--items", "12", "-n", "4", "-b", "12")
    return ("paper", "run", "curves", *few, "-s", "standard", "-s", THRESHOLD, *more, "-q",
            "-o", str(home))  # fmt: skip


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("curves") / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("wavefront.analysis.figures.style.DPI", 100)
        run(*ask(folder))
    return folder


def test_page_has_every_setting_the_choices_and_aup(home: Path) -> None:
    found = table.read(home)
    where = "boolean_expressions, N = 4"
    assert [one.title for one in found.tables] == [
        f"{where}: every setting", f"{where}: fixed budgets", f"{where}: adaptive strategies",
        f"{where}: AUP",
    ]  # fmt: skip
    settings = [row[0] for row in found.tables[0].rows]
    assert settings == [
        *(f"standard, T = {steps}" for steps in (4, 2, 1)),  # N/8 is less than one step
        *(THRESHOLD.replace("{tau}", f"{value:g}") for value in GRIDS["tau"]),
    ]
    assert [row[2] for row in found.tables[0].rows[:3]] == [4.0, 2.0, 1.0]
    assert {row[0] for row in found.tables[1].rows} == {
        "equal quality", "at most 1 forwards",
    }  # fmt: skip
    assert [row[:2] for row in found.tables[3].rows] == [
        ["standard", "fixed"], [THRESHOLD, "adaptive"],
    ]  # fmt: skip
    numbers = json.loads((home / "numbers.json").read_text())
    halves = numbers["toy, boolean_expressions, N=4"]["items"]
    assert sum(halves.values()) == 12
    assert min(halves.values()) > 0
    assert f"{halves['report']} items of the report half" in (home / "summary.md").read_text()
    assert "minutes in all on" in found.text
    assert (home / "curves.svg").is_file()


def test_paper_scale_has_every_strategy_and_selector() -> None:
    experiment = paper.find("curves")
    assert experiment.scale(paper=True).strategies == (*FIXED, *ADAPTIVE)
    assert experiment.scale().strategies == curves.COMPARED
    assert experiment.scale(paper=True, strategies=("standard",)).strategies == ("standard",)


def test_repeated_command_keeps_its_answers(home: Path) -> None:
    before = {file: file.stat().st_mtime_ns for file in home.rglob("answers.jsonl")}
    assert len(before) == 10
    run(*ask(home))
    assert before == {file: file.stat().st_mtime_ns for file in home.rglob("answers.jsonl")}


def test_cost_is_recorded_per_item(home: Path) -> None:
    for file in home.rglob("answers.jsonl"):
        for line in map(json.loads, file.read_text().splitlines()):
            assert line["forwards"] >= 1
            assert line["positions"] >= line["forwards"]


def test_wrong_options_are_refused(tmp_path: Path) -> None:
    assert "not written as name=value" in refused(*ask(tmp_path / "c", "--option", "priority"))
    assert "There is no option 'hotness'" in refused(*ask(tmp_path / "d", "--option", "hotness=1"))
    assert "leave out --steps" in refused(*ask(tmp_path / "a", "-t", "4"))
    said = refused(*ask(tmp_path / "b", "-s", "block(size={size})"))
    assert "may leave at most one option open" in said


def setting(spec: str, right: set[int], forwards: int, *, items: int = 400) -> SettingResult:
    ids = [f"item/{n}" for n in range(items)]
    return SettingResult(
        family=f"{spec.partition('(')[0]}(selector=threshold(tau={{tau}}))",
        spec=spec,
        steps=None,
        forwards=dict.fromkeys(ids, forwards),
        positions=dict.fromkeys(ids, 10 * forwards),
        tokens=dict.fromkeys(ids, 20),
        correct={item: n in right for n, item in enumerate(ids)},
        texts={},
        seconds=1.0,
    )


def bench(*results: SettingResult, model: str = "neutral") -> Bench:
    return Bench(model, "gsm", 64, results, {})


def told(spec: str, nats: float, forwards: int) -> SettingResult:
    """Return a setting that continues stories, each with the same nats per token."""
    one = setting(spec, set(), forwards)
    text = TextQuality(nats, 100, 0.9, nats, 64, 0.9, premature=False)
    return replace(one, correct={}, texts=dict.fromkeys(one.forwards, text))


def test_setting_is_chosen_on_the_tune_half_and_shown_on_the_other() -> None:
    """The quick setting is right on the tune half only, so it is chosen and then shown as bad."""
    tune = {n for n in range(400) if half_of(f"item/{n}") == "tune"}
    good = set(range(0, 400, 2))
    base = setting("standard(selector=threshold(tau=0.9))", good, 8)
    lucky = setting("block(selector=threshold(tau=0.9))", tune, 4)
    rows = {
        row[1]: row
        for row in curves._chosen_table(bench(base, lucky), "gsm", adaptive=True).rows
        if row[0] == "at most 8 forwards"
    }
    shown: Any = rows[lucky.family]
    assert shown[2] == lucky.name
    assert shown[3].value == 0.0
    assert shown[6] == "below the reference"
    assert rows[base.family][6] == "the reference"


def test_lower_nats_than_those_of_the_original_do_not_win_a_choice() -> None:
    """The quick setting is as likely as the original's texts, and the slow one likelier."""
    slow = told("block(selector=threshold(tau=0.9))", 0.8, 16)
    quick = told("block(selector=threshold(tau=0.5))", 1.3, 4)
    poor = told("block(selector=threshold(tau=0.1))", 2.0, 2)
    own = told("standard", 1.3, 1).texts
    found = Bench("tale", "stories", 64, [slow, quick, poor], own)
    rows: dict[Any, Any] = {
        row[0]: row for row in curves._chosen_table(found, "stories", adaptive=True).rows
    }
    assert rows["equal quality"][2] == quick.name
    assert rows["at most 16 forwards"][2] == quick.name
    without = Bench("tale", "stories", 64, [slow, quick, poor], {})
    assert without.aim(slow) > without.aim(quick)


def test_verdicts_follow_the_rules() -> None:
    half, all_ = set(range(0, 400, 2)), set(range(400))
    base = setting("standard(selector=threshold(tau=0.9))", half, 8)
    same = setting("block(selector=threshold(tau=0.9))", half, 8)
    better = setting("tide(cascade_rounds=0, horizon=0, selector=threshold(tau=0.9))", all_, 8)

    def verdict(one: SettingResult, *others: SettingResult, model: str = "neutral") -> str:
        return curves._verdict(bench(base, one, *others, model=model), base, one)[1]

    assert verdict(better) == "above the reference"
    assert verdict(same).startswith("no difference above 1.")  # 300 over the report half
    assert verdict(better, model="ripple") == (
        "not measurable here: ripple does not decide between schedules"
    )
    easy = setting("standard(selector=threshold(tau=0.9))", all_, 8)
    saturated = "not measurable here: both are above 95 % or below 5 %"
    assert curves._verdict(bench(easy, better), easy, better)[1] == saturated
    assert curves._verdict(bench(easy, better, base), easy, better)[1] == saturated


def test_aup_grows_with_parallelism_and_falls_with_accuracy() -> None:
    items = [f"item/{n}" for n in range(400)]
    good = set(range(320))

    def aup(*settings: SettingResult) -> float:
        found: Any = curves._aup(settings, items, 80.0)
        assert found.low <= found.value <= found.high
        return found.value

    slow, quick = setting("standard", good, 10), setting("standard", good, 5)
    assert aup(slow) == pytest.approx(2.0 * 80)
    assert aup(slow, quick) == pytest.approx(4.0 * 80)
    worse = setting("standard", set(range(312)), 5)
    assert aup(slow) < aup(slow, worse) < aup(slow, quick)


@pytest.mark.slow
def test_stories_are_measured_by_the_judge(tmp_path: Path) -> None:
    home = tmp_path / "out"
    run("paper", "run", "curves", "-m", "tale", "--task", "stories", "--items", "6", "-n", "8",
        "-b", "6", "-s", "standard", "-s", THRESHOLD, "-q", "-o", str(home))  # fmt: skip
    found = table.read(home)
    assert [one.title for one in found.tables][-1] == "stories, N = 8: every measure"
    last = found.tables[-1].rows[-1]
    assert last[0] == "the original's own texts"
    assert "Lower nats than the original's own texts are not better" in " ".join(found.text.split())
    assert not any("AUP" in one.title for one in found.tables)
