"""`wavefront tune` chooses on one half and reports on the other; prompt files; resuming."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.commands import records, refused, run

from wavefront import tasks
from wavefront.analysis.figures import Figure, TradeoffPoint, pareto_front
from wavefront.core.bounds import DEFAULT_STRATEGY
from wavefront.core.errors import OptionError
from wavefront.evaluation import tune as tune_module
from wavefront.evaluation.page import ResultsPage
from wavefront.evaluation.protocol import GRIDS, HALVES, half_of, knob_of, settings_of
from wavefront.evaluation.trials import Trial, TrialGroup, TrialResult, model_name
from wavefront.evaluation.tune import TRIES, Attempt, Objective
from wavefront.results import table as runs
from wavefront.tasks.base import Ask

QUICK = "tide(cascade_rounds=4, horizon=0, selector=threshold(tau=0.001))"
FEW = ("--candidate", "block(size=4)", "--candidate", QUICK, "--candidate",
       "wavefront(size=8, radius=2) | steps=4", "-n", "8", "-b", "4", "-q")  # fmt: skip


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wavefront.analysis.figures.style.DPI", 100)


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    file = tmp_path / "prompts.jsonl"
    rows = [{"prompt": f"{n} and {n}?", "answer": f"so\n#### {2 * n}"} for n in range(7)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


@pytest.mark.slow
def test_tuning_on_a_file_ends_with_a_strategy_to_paste(prompts: Path, tmp_path: Path) -> None:
    home = tmp_path / "out"
    done = run("tune", str(prompts), "-m", "toy", *FEW, "-o", str(home))
    last = done.stdout.strip().splitlines()[-1]
    # All are wrong, so the quickest is taken.
    assert last == f'-s "{QUICK}"'
    found = runs.read(home)
    held, tried = found.tables
    bases = ["default", "block(size=8)", "wavefront(size=8, radius=2)"]
    assert [row[0] for row in tried.rows][:3] == bases
    assert len(tried.rows) == 6
    assert found.title == "Strategies tuned on prompts.jsonl"
    assert done.stdout.startswith("Strategies tuned on prompts.jsonl. Wanted: fewest forward")
    assert "|---|" not in done.stdout, "the terminal shows tables, not Markdown"
    assert done.stdout.count(f'-s "{QUICK}"') == 1
    gaps: list[Any] = [row[2] for row in tried.rows[1:]]
    assert all(gap.low < 0 < gap.high for gap in gaps), "no verdict differs, but few items say so"
    svg = (home / "tune.svg").read_text()
    assert "items of the tune half" in runs.read(home).figures[0].title
    assert "<svg" in svg
    ids = [str(one.id) for one in tasks.load("jsonl", path=str(prompts)).items(Ask())]
    sizes = {half: sum(half_of(one) == half for one in ids) for half in HALVES}
    assert {row[-1] for row in held.rows} == {sizes["report"]}
    numbers = json.loads((home / "numbers.json").read_text())
    assert numbers["chosen"]["spec"] == QUICK
    halves = [
        {json.loads(line)["id"] for file in (home / part).rglob("answers.jsonl")
         for line in file.read_text().splitlines()}
        for part in HALVES
    ]  # fmt: skip
    assert [len(half) for half in halves] == [sizes[half] for half in HALVES]
    assert not halves[0] & halves[1]
    assert halves[0] | halves[1] == {*ids}
    assert "This comparison is not fair" in (home / "summary.md").read_text()
    assert (home / "tune.png").is_file()
    before = {file: file.stat().st_mtime_ns for file in home.rglob("answers.jsonl")}
    again = run("tune", str(prompts), "-m", "toy", *FEW, "-o", str(home), "--json")
    assert records(again) == [numbers["chosen"]]
    assert before == {file: file.stat().st_mtime_ns for file in home.rglob("answers.jsonl")}


def test_builtin_candidates_are_on_equal_terms() -> None:
    open_knobs = [text for text in TRIES if knob_of(text)]
    assert len(open_knobs) >= 4
    assert {len(settings_of(text)) for text in open_knobs} == {len(GRIDS["tau"])}
    assert not any("tau=0." in text for text in TRIES)
    deferred = {text.partition(" |")[0].partition("(")[0] for text in TRIES if "|" in text}
    assert deferred == {"standard", "block", "wavefront"}
    assert all(text.endswith("| eos=defer") for text in TRIES if "|" in text)


def test_decoding_options_follow_a_bar() -> None:
    one = Attempt.parse("wavefront(size=8, radius=2) | eos=defer, steps=32")
    assert one.strategy == "wavefront(size=8, radius=2)"
    assert one.options == {"eos": "defer", "steps": 32}
    for text in TRIES:
        for one in settings_of(text):
            Attempt.parse(one)
    with pytest.raises(OptionError, match="'eos' is not written as name=value"):
        Attempt.parse("block | eos")
    with pytest.raises(OptionError, match="wavfront"):
        Attempt.parse("wavfront")


def group_of(right: int, of: int, forwards: float) -> TrialGroup:
    result: Any = SimpleNamespace(
        trial=Trial("m", "t", "s"),
        correct={n: n < right for n in range(of)},
        quality={},
        texts=dict.fromkeys(range(of), ""),
        cost={"forwards": forwards, "tokens": 0, "seconds": 0.0},
    )
    return TrialGroup((result,))


def test_options_are_written_as_a_shell_accepts_them() -> None:
    assert tune_module._flag("fixed_budget", True) == " --fixed-budget"
    assert tune_module._flag("fixed_budget", False) == ""
    assert tune_module._flag("steps", 4) == " --steps 4"
    assert tune_module._flag("top_k", None) == ""
    assert tune_module._flag("cache", "wave(refresh=8)") == " --cache 'wave(refresh=8)'"


@pytest.mark.parametrize(
    "setting",
    [
        "block(size=8, selector=threshold(floor=None, tau=0.9))",
        "standard(selector=threshold) | eos=defer",
        "blockwise(size=4, strategy=standard(selector=local_leap()))",
        "tide(cascade_rounds=8)",
    ],
)
def test_a_setting_with_an_adaptive_selector_is_adaptive(setting: str) -> None:
    assert tune_module._is_adaptive(setting)


@pytest.mark.parametrize(
    "setting",
    [
        "block(size=8)",
        "tbd(size=32, gamma=0.8)",
        "standard(selector=origin())",
        "standard | steps=8",
    ],
)
def test_a_setting_with_a_fixed_budget_is_not_adaptive(setting: str) -> None:
    assert not tune_module._is_adaptive(setting)


def test_prompts_that_are_too_long_have_no_forward_passes() -> None:
    long = replace(result_of(5), correct={str(n): False for n in range(10)})
    group = TrialGroup((long,))
    assert group.tokens_per_forward == 1.0


def result_of(count: int) -> TrialResult:
    """Return the result of a trial with `count` answers of eight tokens in eight passes."""
    empty: dict[str, Any] = {}
    return TrialResult(
        trial=Trial(model="toy", task="task", strategy="standard"),
        correct={str(n): True for n in range(count)},
        quality=empty,
        originals=empty,
        texts={str(n): "" for n in range(count)},
        shown=empty,
        counts=empty,
        timings=(),
        cost={"forwards": 8.0, "tokens": 8 * count, "seconds": 1.0},
        folder=Path("run"),
    )


def test_model_is_named_after_its_directory_or_that_of_its_training() -> None:
    names = {"tale": "tale", "qwen/model": "qwen", "model": "model", "GSAI-ML/LLaDA-8B": "LLaDA-8B"}
    assert {path: model_name(path) for path in names} == names


def test_default_strategy_has_a_short_name_and_few_items_an_exact_interval() -> None:
    assert Attempt.parse(f"{DEFAULT_STRATEGY} | eos=defer").label == "default | eos=defer"
    assert Attempt.parse("block(size=8)").label == "block(size=8)"
    held = {DEFAULT_STRATEGY: group_of(9, 9, 2), "block(size=8)": group_of(9, 9, 8)}
    for group in held.values():
        object.__setattr__(group.results[0], "counts", {"forwards": {}})
    table = tune_module._held_out_table(held, DEFAULT_STRATEGY)
    assert table.rows[0][0] == "default"
    gap: Any = table.rows[1][2]
    assert gap.value == 0
    assert gap.low < -20
    assert gap.high > 20
    assert table.note == (f"The first line is the chosen setting. default is {DEFAULT_STRATEGY}.")


def test_spellings_of_one_setting_have_one_meaning() -> None:
    same = ("wavefront", "wavefront(size=8, radius=2)", "wavefront(radius=2) | ")
    assert len({Attempt.parse(text).meaning for text in same}) == 1
    one, two = (
        Attempt.parse(f"block | {rest}") for rest in ("eos=keep, steps=4", "steps=4, eos=keep")
    )
    assert one.meaning == two.meaning
    assert one.meaning != Attempt.parse("block | eos=keep, steps=5").meaning
    assert one.meaning != Attempt.parse("block(size=4) | eos=keep, steps=4").meaning


def test_objective_decides_the_choice() -> None:
    base, quick, bad = group_of(20, 20, 32), group_of(19, 20, 8), group_of(2, 20, 4)
    plain = Objective()
    assert plain.allows(base, quick)
    assert not plain.allows(base, bad)
    assert plain.rank(quick) > plain.rank(base)
    few = Objective(max_forwards=10)
    assert not few.allows(base, base)
    assert few.rank(quick) > few.rank(bad)
    dear, cheap = Objective(forward_cost=30), Objective(forward_cost=0.01)
    assert dear.rank(bad) > dear.rank(quick) > dear.rank(base)
    assert cheap.rank(base) > cheap.rank(quick) > cheap.rank(bad)
    with pytest.raises(OptionError, match="not both"):
        Objective(max_forwards=1, forward_cost=1)


@pytest.mark.parametrize(
    ("right", "items", "note"),
    [(12, 12, "up to 24 % fewer items"), (11, 12, "up to 35 % fewer items"), (400, 400, "")],
)
def test_page_says_how_large_a_loss_is_not_excluded(right: int, items: int, note: str) -> None:
    held_out = {"fast": group_of(right, items, 4), "block": group_of(items, items, 32)}
    said = tune_module._loss_note(held_out, "fast")
    assert note in said
    assert bool(said) == bool(note)


def test_baseline_that_is_chosen_has_no_loss() -> None:
    assert tune_module._loss_note({"block": group_of(2, 4, 32)}, "block") == ""


def test_pareto_front_has_no_beaten_setting() -> None:
    known = (("a", 8, 0.5), ("b", 4, 0.4), ("c", 6, 0.3), ("d", 8, 0.6), ("e", 9, 0.6))
    points = [TradeoffPoint(name, cost, mean, mean, mean) for name, cost, mean in known]
    assert [one.name for one in pareto_front(points)] == ["b", "d"]


def test_tuning_without_matplotlib_draws_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [TradeoffPoint("block(size=8)", 3.0, 0.5, 0.4, 0.6)]
    assert list(tune_module._figures(points, "block(size=8)", "gsm, 9 items")) == ["tune"]
    monkeypatch.setattr("wavefront.evaluation.page.find_spec", lambda name: None)
    page = ResultsPage(
        title="Tune",
        text="",
        configuration={},
        tables=[],
        numbers={},
        figures=tune_module._figures(points, "block(size=8)", "gsm, 9 items"),
    )
    assert not page.figures
    assert "matplotlib is not installed here" in page.text


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ({"prompt": "a"}, "Line 1 of"),
        ({"answer": "a"}, "Line 1 of"),
        ({"prompt": " ", "answer": "a"}, "Line 1 of"),
        ([1], "Line 1 of"),
        (
            '{"prompt": "a", "answer": "1"}\n\n{"prompt": "b"\n',
            "Line 3 of {file} is not valid JSON: Expecting ',' delimiter at column 15.",
        ),
        ('{"prompt": "a", "answer": "1"}\n\n{"prompt": "b"}', "Line 3 of"),
        (b'{"prompt": "\xfe"}', "Line 1 of {file} is not UTF-8 text."),
        ("[" * 100_000, "Line 1 of {file} cannot be read as JSON: "),
        ("\n", "bad.jsonl is empty: write one JSON object per line."),
    ],
)
def test_malformed_file_is_refused(line: Any, said: str, tmp_path: Path) -> None:
    file = tmp_path / "bad.jsonl"
    content = line if isinstance(line, str | bytes) else json.dumps(line)
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert said.format(file=file) in refused(
        "tune", str(file), "-m", "toy", "-o", str(tmp_path / "o")
    )
    assert "cannot be read" in refused("tune", str(tmp_path / "no.jsonl"), "-m", "toy")


def test_answer_kinds_are_inferred(tmp_path: Path) -> None:
    for targets, kind in ((["1", "-2.5"], "number"), (["(A)", "(B)"], "choice"),
                          (["yes", "No"], "yes_no"), (["a", "1"], "text")):  # fmt: skip
        file = tmp_path / "q.jsonl"
        file.write_text(
            "".join(json.dumps({"prompt": "p", "target": t, "id": t}) + "\n" for t in targets)
        )
        task = tasks.load("jsonl", path=str(file))
        samples = task.items(Ask())
        assert {one.extra["kind"] for one in samples} == {kind}
        assert all(task.grade(one, f"so #### {one.target}").correct for one in samples)
        assert not any(task.grade(one, "#### what").correct for one in samples)
    with pytest.raises(OptionError, match="needs a file"):
        tasks.load("jsonl")
    with pytest.raises(OptionError, match="answers must be one of"):
        tasks.load("jsonl", path="a", answers="words")


def test_too_few_items_or_forwards_are_refused(prompts: Path, tmp_path: Path) -> None:
    out = ("-o", str(tmp_path / "o"), "-m", "toy")
    few = refused("tune", str(prompts), *FEW, "--items", "3", *out)
    assert "Tuning needs at least 2 items in each half" in few
    assert "not both" in refused("tune", "gsm", "--forward-cost", "1", "--max-forwards", "3", *out)
    said = refused("tune", str(prompts), *FEW, "--max-forwards", "0.5", *out)
    assert "No setting needs at most 0.5 forward passes" in said


def test_figure_of_one_setting_can_be_drawn() -> None:
    from wavefront.analysis import figures

    drawn = figures.tradeoff([TradeoffPoint("block(size=8)", 3, 0.5, 0.4, 0.6)])
    assert isinstance(drawn, Figure)
    assert drawn.bytes("svg")
