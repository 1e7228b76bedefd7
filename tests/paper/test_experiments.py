"""`wavefront paper`: every experiment runs on the toy, writes its page, and decides by rule."""

from __future__ import annotations

import functools
import json
import os
import shutil
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
from wavefront.core.errors import OptionError
from wavefront.evaluation import fingerprint
from wavefront.evaluation.page import ResultsPage
from wavefront.evaluation.trials import Scale, Trial, TrialGroup, compare_groups, percent_gap
from wavefront.paper import claims, constraint, main, mhco, published, steps, tables
from wavefront.paper.decoder import ItemDecoder
from wavefront.paper.experiment import figure_title
from wavefront.paper.published import data_name, dataset
from wavefront.results import table as runs
from wavefront.results.interval import Interval
from wavefront.results.table import Table
from wavefront.storage.hub import BUILTIN
from wavefront.tasks import sandbox
from wavefront.tasks.base import Sample
from wavefront.traces import trace_file

ROOT = Path(wavefront.__file__).parents[1]
CLAIMS_PAGE = load_script("claims")
ENCODER = ROOT / "tests" / "golden" / "encoders" / "bert-tiny"
TRACED = ("decode-order", "mhco", "case", "calibration", "dynamics", "gradient")
DRAW = ItemDecoder.draw
DATA = os.environ.get("WAVEFRONT_DATA")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw short questions, and every figure a single time."""
    monkeypatch.setattr("wavefront.analysis.figures.style.DPI", 100)
    real = Figure.bytes

    @functools.cache
    def page(picture: Figure) -> bytes:
        return real(picture)

    def some(self: Figure, kind: str = "svg", style: Any = None) -> bytes:
        return page(self) if kind == "svg" else runs.PNG

    def draw(self: ItemDecoder, name: str, count: int | None = None) -> list[Sample]:
        wanted = self.items if count is None else count
        return [Sample(f"{name}/{n}", f"{n} and {n}?", f"#### {n}", "4") for n in range(wanted)]

    monkeypatch.setattr(Figure, "bytes", some)
    monkeypatch.setattr(ItemDecoder, "draw", draw)


def tiny(name: str, home: Path, *more: str) -> Any:
    few = ["--items", "2", "-n", "8", "-b", "2", "--task", "boolean_expressions", "-q"]
    if name == "bertscore":
        more = ("--encoder", str(ENCODER), "--layer", "2", *more)
    return run("paper", "run", name, "-m", "toy", *few, "-o", str(home), *more)


def tiny_refused(name: str, home: Path, *more: str) -> str:
    few = ["--items", "2", "-n", "8", "-b", "2", "--task", "boolean_expressions", "-q"]
    return run("paper", "run", name, "-m", "toy", *few, "-o", str(home), *more, code=1).stderr


def test_machine_without_a_sandbox_answers_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(line: bytes, arguments: list[str], **_: Any) -> Any:
        return sandbox._Reply({"refused": "no namespaces"}, False)

    both = ("--task", "code", "-s", "standard", "-s", "block(size=4)")
    with monkeypatch.context() as patch:
        patch.setattr(sandbox, "_start", refuse)
        text = " ".join(tiny_refused("main", tmp_path / "out", *both).split())
    assert "No sandbox is available" in text
    assert "the same command grades them" in text
    answers = {file: file.read_bytes() for file in tmp_path.rglob("answers.jsonl")}
    assert len(answers) == 4  # two tasks and two strategies
    tiny("main", tmp_path / "out", *both)
    assert answers == {file: file.read_bytes() for file in tmp_path.rglob("answers.jsonl")}


@pytest.mark.slow
def test_answers_are_graded_where_there_is_no_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, out = tmp_path / "model", tmp_path / "out"
    shutil.copytree(BUILTIN / "ripple", model)
    few = ("--task", "code", "-m", str(model), "-s", "standard", "-s", "block(size=4)")
    with monkeypatch.context() as patch:
        patch.setattr(sandbox, "_start", lambda *_, **__: sandbox._Reply({"refused": "no"}, False))
        assert "No sandbox is available" in " ".join(tiny_refused("main", out, *few).split())
    assert '"grader of code' not in (out / "results.jsonl").read_text()  # it graded nothing
    shutil.rmtree(model)
    tiny("main", out, *few)
    assert '"grader of code' in (out / "results.jsonl").read_text()


def test_page_may_be_made_with_another_python_than_the_grades(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = ("--task", "code", "-s", "standard", "-s", "block(size=4)")
    tiny("main", tmp_path, *few)
    monkeypatch.setattr("platform.python_version_tuple", lambda: ("3", "99", "0"))
    tiny("main", tmp_path, *few)
    # Further answers need one grader for all.
    said = tiny_refused("main", tmp_path, *few, "-s", "wavefront(size=4)")
    assert "has grades of code from another version of its grader" in said


QUICK = ("main", "decode-order", "mhco", "parity", "case")


@pytest.mark.parametrize(
    "name",
    [pytest.param(one, marks=pytest.mark.slow) if one not in QUICK else one for one in paper.NAMES],
)
def test_experiment_writes_its_page(name: str, tmp_path: Path) -> None:
    home = tmp_path / name
    done = tiny(name, home)
    summary = (home / "summary.md").read_text("utf-8")
    shown = [line for line in done.stdout.splitlines() if line]
    assert shown[0] == summary.splitlines()[0]
    assert "## What the paper claims, and what was found" in shown
    assert set(shown) <= set(summary.splitlines())  # the page also has figures and settings
    found = runs.read(home)
    assert published.place_in_paper(name) in found.title
    verdicts = found.tables[0]
    assert list(verdicts.columns) == claims.COLUMNS
    assert verdicts.rows
    assert all(str(row[-1]).startswith(claims.VERDICTS) for row in verdicts.rows)
    assert len(found.tables) >= 2
    assert found.figures
    for item in found.figures:
        assert f"]({item.file})" in summary
        assert runs.image(home / item.file)[0] == "image/svg+xml"
    numbers = json.loads((home / "numbers.json").read_text("utf-8"))
    assert [one["verdict"] for one in numbers["claims"]] == [row[-1] for row in verdicts.rows]
    assert not CLAIMS_PAGE.unlisted(name, numbers)  # each has its line in docs/claims.md
    said = found.configuration
    assert {"command", "commit", "device", "torch", "threads", "experiment"} <= said.keys()
    assert said["models"] == ["toy"]
    for beside in (published.published_table(name), published.caveats_table(name)):
        if beside is not None:
            assert f"## {beside.title}\n" in summary


@pytest.mark.slow
def test_constraint_makes_every_answer_valid(tmp_path: Path) -> None:
    tasks = ("--task", "navigate", "--task", "object_counting")
    few = ("--items", "2", "-n", "20", "--steps", "8", "-b", "2", "-q", "-s", "standard")
    run("paper", "run", "constraint", "-m", "toy", *few, *tasks, "-o", str(tmp_path / "made"))
    found = runs.read(tmp_path / "made")
    pooled, alone = (table.records() for table in found.tables)
    assert {row["constraint"] for row in alone if row["task"] == "navigate"} == {
        "none", "final", "choice",
    }  # fmt: skip
    assert {row["constraint"] for row in alone if row["task"] == "object_counting"} == {
        "none", "final",
    }  # fmt: skip
    assert {row["T"] for row in alone} == {"8", "2"}
    for row in (*pooled, *alone):
        valid = row["valid, %"]
        assert isinstance(valid, Interval)
        assert valid.value == (0 if row["constraint"] == "none" else 100)
        assert (row["valid, less none"] is None) == (row["constraint"] == "none")


def test_list_names_every_experiment() -> None:
    folder = Path(paper.__file__).parent
    modules = {file.stem for file in folder.glob("*.py") if "\ndef run(" in file.read_text()}
    every = (*paper.NAMES, "constraint", "curves", "stories")  # three are not of the paper
    assert {name.replace("-", "_") for name in every} == modules
    listed = records(run("paper", "list", "--json"))
    assert [one["name"] for one in listed] == list(every)
    assert all(one["question"] and one["needs"] for one in listed)
    assert [one["paper"] != "none" for one in listed] == [True] * len(paper.NAMES) + [False] * 3
    assert "Tables 6 and 7" in run("paper", "list").stdout


def test_list_works_without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    from wavefront.cli import paper as command

    assert "matplotlib" not in run("paper", "list").stderr
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    assert run("paper", "list").stderr.endswith("need matplotlib: pip install -e '.[figures]'.\n")
    # Read every description in a process that cannot import torch or matplotlib.
    code = (
        "import sys; sys.modules.update(dict.fromkeys(('matplotlib', 'torch')))\n"
        "from wavefront import paper\n"
        "print(len([paper.describe(name) for name in paper.names()]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) == len(paper.names())


def test_overview_leaves_out_what_a_page_folds() -> None:
    tables = [Table("Short", ["a"], [[1]], "A note."), Table("Long", ["b"], [[2]] * 21)]
    page = ResultsPage(
        title="T", text="How.", configuration={"x": 1}, tables=tables, numbers={}, figures={}
    )
    assert page.overview() == "# T\n\nHow.\n\n## Short\n\n| a |\n|---|\n| 1 |\n\nA note."
    assert "Long" in page.markdown()


def test_experiment_outside_the_paper_is_listed_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "new_one.py").write_text("\ndef run(runner): ...\n")
    monkeypatch.setattr(paper, "__file__", str(tmp_path / "__init__.py"))
    paper.names.cache_clear()
    try:
        assert paper.names() == (*paper.NAMES, "new-one")
    finally:
        paper.names.cache_clear()


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (("mian",), 1, "There is no experiment 'mian' (did you mean 'main'?)"),
        ((), 2, "Missing argument"),
        (("main", "--items", "0"), 1, "--items must be at least 1, not 0."),
        (("main", "-n", "0"), 1, "--max-new-tokens must be at least 1, not 0."),
        (("main", "-b", "0"), 1, "--batch-size must be at least 1, not 0."),
        (("main", "--seed", "-1"), 1, "--seed must be at least 0, not -1."),
        (("main", "--items-seed", "-1"), 1, "--items-seed must be at least 0, not -1."),
        (("parity", "-s", "block"), 1, "parity compares fixed strategies"),
        (("mhco", "-s", "blok"), 1, "did you mean 'block'"),
        (("mhco", "--task", "gms"), 1, "did you mean 'gsm'"),
        (("main", "--task", "gsn"), 1, "no task 'gsn' (did you mean 'gsm'?)"),
        (("main", "--items", "x"), 2, "'x' is not a whole number."),
    ],
)
def test_wrong_options_are_refused_before_a_model_is_loaded(
    args: tuple[str, ...], code: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wavefront.lm.load", lambda *_, **__: pytest.fail("loaded"))
    out = ("-o", str(tmp_path / "x")) if args else ()
    assert said in run("paper", "run", *args, *out, code=code).stderr
    assert not (tmp_path / "x").exists()


def test_paper_scale_names_everything_that_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WAVEFRONT_DATA", raising=False)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    said = refused("paper", "run", "main", "--paper", "-o", str(tmp_path / "out"))
    for part in (
        "LLaDA-8B-Instruct",
        "LLaDA-1.5",
        "Dream-v0-Instruct-7B",
        "gsm8k",
        "WAVEFRONT_DATA",
    ):
        assert part in said
    said = refused("paper", "run", "steps", "--paper", "-m", "toy", "-o", str(tmp_path / "out"))
    assert "items of gsm8k" in said
    assert "checkpoint" not in said
    assert not (tmp_path / "out").exists()


def test_paper_scales_are_those_of_the_paper() -> None:
    for name in paper.NAMES:
        scale = paper.find(name).paper
        assert scale.models
        assert scale.style == "paper"
        assert name == "bertscore" or scale.length == 1024
    assert len(paper.find("bbh").paper.tasks) == 27
    assert len(paper.find("main").paper.models) == 3
    assert paper.find("temperature").paper.seeds == (0, 1, 2)


def test_published_numbers_are_as_printed() -> None:
    cell = published.published_cell
    assert cell("main", "GSM8K", model="LLaDA-8B", strategy="WavefrontDiffusion") == "82.03"
    assert cell("main", "MBPP", model="Dream", strategy="BlockDiffusion") == "58.52"
    assert cell("bertscore", "F1", strategy="WavefrontDiffusion") == "0.8094 ± 0.0033"
    assert cell("size-radius", "F=8, R=8", dataset="HumanEval") == "42.07"
    assert cell("temperature", "0.8", strategy="WavefrontDiffusion") == "78.86 ± 0.41"
    assert cell("latency", "ms/token", strategy="Autoregressive Greedy") == "9.2"
    assert cell("calibration", "MCE", dataset="GSM8K", strategy="Wave") == "0.4824"
    assert cell("main", "nothing") is None
    assert cell("main", "GSM8K", model="ripple") is None
    bbh = published.published_table("bbh")
    assert bbh is not None
    assert len(bbh.rows) == 50
    # Every difference is the wave's share minus the base's.
    for row in bbh.rows:
        assert float(row[4]) == pytest.approx(float(row[3]) - float(row[2]), abs=1e-9)


def test_page_of_correct_answers_says_what_the_papers_numbers_are_of() -> None:
    real = main.about([("qwen", "GSM8K", "standard"), ("LLaDA-8B-Instruct", "GSM8K", "standard")])
    assert "next to gsm" not in real
    assert real.startswith("The paper does not have qwen: the column `paper` is that of LLaDA-8B")
    assert "next to gsm" in main.about([("ripple", "gsm", "standard")])


def group(
    *right: bool, strategy: str = "block(size=8)", task: str = "t", model: str = "m", seed: int = 0,
    text: str = "",
) -> TrialGroup:  # fmt: skip
    result: Any = SimpleNamespace(
        trial=Trial(model, task, strategy, seed=seed),
        correct=dict(enumerate(right)),
        quality={},
        texts=dict.fromkeys(range(len(right)), text) if text else {},
    )
    return TrialGroup((result,))


def more(base: TrialGroup, other: TrialGroup, claimed: str = "higher") -> Any:
    return claims.accuracy_claim("c", "w", base=base, other=other, claimed=claimed)


def test_direction_needs_an_interval_clear_of_zero_and_a_significant_test() -> None:
    base, better = group(*[False] * 20), group(*[True] * 20)
    assert more(base, better).verdict == "confirmed"
    assert more(better, base).verdict == "not confirmed"
    assert more(better, base, "lower").verdict == "confirmed"
    half = group(*[True, False] * 10)
    assert more(half, half).verdict == "no difference above 15"  # the rule of three: 300 / 20
    few = more(group(False, False), group(True, True))
    assert few.verdict == "not measurable here: fewer than 6 items"
    # Five of twelve, all one way: the bootstrap is clear of 0, the exact test is not below 0.05.
    none, some = group(*[False] * 12), group(*[True] * 5, *[False] * 7)
    assert compare_groups(none, some).gap.low > 0
    five = more(none, some)
    assert five.p == pytest.approx(0.0625)
    assert five.word == "no difference above"
    assert more(TrialGroup(()), base).word == "not measurable here"


def test_direction_verdict_needs_items_and_an_interval_clear_of_zero() -> None:
    verdict, below = claims.direction_verdict, Interval(-2.0, -3.0, -1.0)
    assert verdict(below, 20, "lower") == "confirmed"
    assert verdict(below, 20, "higher") == "not confirmed"
    assert verdict(below, 5, "lower") == claims.TOO_FEW
    assert verdict(Interval(-2.0, -3.0, 0.5), 20, "lower") == "no difference above 3"
    assert verdict(Interval(1.0, -0.5, 2.25), 20, "lower") == "no difference above 2.25"
    assert verdict(-2.0, 20, "lower") == claims.NO_INTERVAL
    assert verdict(None, 20, "lower") == "not measurable here"


def test_bound_is_exact_where_few_items_differ() -> None:
    half = [True, False] * 48
    base, other = group(*half, *[False] * 4), group(*half, True, *[False] * 3)
    found = more(base, other)  # a bootstrap excludes every loss, and gains above 3 points
    assert found.found == percent_gap(compare_groups(base, other))
    assert found.found.low < -3 < 6 < found.found.high
    # A true difference of 2 points shows four differing items of 400, or fewer, in 1 of 10 cases.
    base, other = group(*[False] * 4, *half * 4), group(*[True] * 4, *half * 4)
    assert claims.equal_accuracy_claim("c", "w", base=base, other=other).word == (
        "no difference above"
    )


def test_gain_in_valid_answers_is_exact_where_few_differ() -> None:
    groups, valid = {}, {}
    for how, right in (("none", [True] * 18 + [False] * 2), ("final", [True] * 20)):
        made = group(*right, text="a")
        one: Any = made.results[0]
        one.folder, one.cost = Path(how), {"forwards": 1.0, "tokens": 20, "seconds": 1.0}
        valid[one.folder] = one.correct
        groups["m", "t", "8", "standard", how] = made
    _, row = constraint._table("t", groups, valid).records()
    gain: Any = row["valid, less none"]
    assert gain == row["right, less none"]
    assert gain.low < 0  # two of 20 differ: the bootstrap has 0 there


def test_lead_over_steps_follows_the_rules_of_accuracy_claims() -> None:
    wave, half = "wavefront(size=8)", [True, False] * 10
    shares = {("T=8", "block(size=8)"): half, ("T=8", wave): [False] * 20,
              ("T=32", "block(size=8)"): half, ("T=32", wave): [True] * 20}  # fmt: skip

    def lead(model: str, *seeds: int) -> claims.Claim:
        pooled = {
            (model, "t", *key): TrialGroup(
                tuple(
                    group(*right, strategy=key[1], model=model, seed=seed).results[0]
                    for seed in seeds
                )
            )
            for key, right in shares.items()
        }
        return steps._growth(pooled, ["T=8", "T=32"], wave)

    assert lead("m", 0).verdict == "confirmed"
    assert lead("m", 0, 1).items == 20
    biased = lead("ripple", 0)
    assert biased.verdict == "not measurable here: ripple does not decide between schedules"
    assert biased.found == lead("m", 0).found


def test_equality_needs_items_even_where_no_pair_differs() -> None:
    def same(base: TrialGroup, other: TrialGroup) -> claims.Claim:
        return claims.equal_accuracy_claim("c", "w", base=base, other=other, margin=2.0)

    few, many = group(*[True, False] * 10), group(*[True, False] * 150)
    assert same(few, few).verdict == "no difference above 15"
    assert same(many, many).verdict == "confirmed"
    assert same(many, group(*[False] * 300)).verdict == "not confirmed"
    assert claims.margin_verdict(None, 9, 1.0) == "not measurable here"
    assert claims.margin_verdict(Interval(0, -0.1, 0.1), 3, 1.0) == claims.TOO_FEW
    assert claims.margin_verdict(Interval(0, -3, 1), 30, 2.0) == "no difference above 3"


def test_equal_texts_hold_by_construction() -> None:
    one, two = group(*[True, False] * 150, text="a"), group(*[True, False] * 150, text="a")
    same = claims.equal_accuracy_claim("c", "w", base=one, other=two)
    assert same.verdict == "holds by construction: the texts are the same"
    other = group(*[True, False] * 150, text="b")
    assert claims.equal_accuracy_claim("c", "w", base=one, other=other).verdict == "confirmed"


def test_saturated_tasks_are_left_out_of_accuracy_claims() -> None:
    easy, nearly = group(*[True] * 100, task="easy"), group(*[True] * 96, *[False] * 4, task="easy")
    hard, better = group(*[False] * 30, task="hard"), group(*[True] * 30, task="hard")
    alone = more(nearly, easy)
    assert alone.verdict == "not measurable here: every task is above 95 % or below 5 %"
    assert alone.found is None
    both = more(
        TrialGroup(nearly.results + hard.results), TrialGroup(easy.results + better.results)
    )
    assert (both.items, both.verdict) == (30, "confirmed")  # the items of the hard task only
    assert not claims.is_saturated(easy, group(*[True] * 90, *[False] * 10, task="easy"))


def test_seeds_of_one_item_count_as_one_item() -> None:
    """Four items, each answered under three seeds, are not twelve."""
    base = TrialGroup(tuple(group(*[False] * 4, seed=n).results[0] for n in range(3)))
    other = TrialGroup(tuple(group(*[True] * 4, seed=n).results[0] for n in range(3)))
    found = more(base, other)
    assert found.items == 4
    assert found.verdict == claims.TOO_FEW
    assert found.p == 0.125  # of four items, not of twelve


def test_model_trained_for_schedules_does_not_decide_between_them() -> None:
    base, better = group(*[False] * 20, model="ripple"), group(*[True] * 20, model="ripple")
    assert more(base, better).verdict == "confirmed"  # two settings of one schedule
    wave = group(*[True] * 20, model="ripple", strategy="wavefront(size=8)")
    found = more(base, wave)
    assert found.verdict == "not measurable here: ripple does not decide between schedules"
    assert found.found.value == 100  # the number is still shown


def test_verdicts_by_construction_are_counted_apart() -> None:
    exact = claims.exact_claim("c", "w", holds=True, items=1, construction=True)
    failed = claims.exact_claim("c", "w", holds=False, items=1, construction=True)
    counted = claims.exact_claim("c", "w", holds=True, items=9)
    assert [one.word for one in (exact, failed, counted)] == [
        "holds by construction", "not confirmed", "confirmed",
    ]  # fmt: skip
    assert claims.count_verdicts([exact, exact, failed, counted]) == (
        "Of 2 claims of the paper: 1 confirmed, 1 not confirmed. 2 more hold by construction."
    )


def test_correlation_has_an_interval_around_it() -> None:
    found: Any = claims.correlation_interval(-0.6, 30)
    assert found.low < -0.6 < found.high < 0
    assert claims.correlation_interval(None, 30) is None
    assert claims.correlation_interval(-0.6, 4) == -0.6


def test_our_tasks_do_not_have_the_names_of_data_sets() -> None:
    names = [data_name(task) for task in ("gsm", "code", "hyperbaton", "gsm8k", "bbh_navigate")]
    assert names == ["gsm", "code", "BBH-like", "GSM8K", "BBH"]
    assert [dataset(name) for name in names] == ["GSM8K", "HumanEval", "BBH", "GSM8K", "BBH"]


def test_title_of_a_figure_names_tasks_items_and_model() -> None:
    settings = {"tasks": ["gsm", "code"], "items of each task": 8, "models": ["ripple"]}
    assert figure_title("Correct answers", settings) == (
        "Correct answers · gsm, code · n ≤ 8 per task · ripple"
    )
    one = {**settings, "tasks": ["gsm"], "items of each task": "all"}
    assert figure_title("Regret, gsm", one) == "Regret, gsm · all items · ripple"


def test_groups_pool_and_find_their_base() -> None:
    groups = {
        ("m", "d", "block(size=8)"): group(True, False),
        ("m", "e", "block(size=8)"): group(True),
    }
    assert len(tables.pool(groups, "block(size=8)").results) == 2
    assert len(tables.pool(groups, "e", "block(size=8)").results) == 1
    assert tables.block_key(groups, ("m", "d", "standard")) == ("m", "d", "block(size=8)")
    assert tables.block_key(groups, ("m", "d", "block(size=8)")) is None


def test_trials_have_distinct_folders() -> None:
    trials = [
        Trial("a/b", "gsm", "block(size=8)"),
        Trial("a/b", "gsm", "block(size=8)", "speculate=4"),
        Trial("a/b", "gsm", "block(size=8)", "T=4", 1),
        Trial("a/b", "gsm", "block(size=8)", "T=4", 2),
    ]
    assert len({trial.folder for trial in trials}) == len(trials)
    assert str(trials[0].folder) == "b/gsm--block-size=8"


@pytest.mark.slow
def test_repeated_experiment_keeps_its_answers(tmp_path: Path) -> None:
    tiny("steps", tmp_path)
    files = sorted(tmp_path.rglob("answers.jsonl"))
    before = [(file, file.stat().st_mtime_ns) for file in files]
    tiny("steps", tmp_path)
    assert len(files) == 12
    assert before == [(file, file.stat().st_mtime_ns) for file in files]
    # The page names the machine that made the answers.
    for file in tmp_path.rglob("environment.jsonl"):
        file.write_text(json.dumps({"device": "a big one", "torch": "1.0"}) + "\n")
    header = files[0].parent / "header.json"
    header.write_text(json.dumps(json.loads(header.read_text()) | {"commit": "abc"}))
    (tmp_path / "results.jsonl").unlink()
    tiny("steps", tmp_path)
    told = json.loads((tmp_path / "numbers.json").read_text("utf-8"))["configuration"]
    assert (told["device"], told["torch"]) == ("a big one", "1.0")
    assert "python" not in told
    assert "abc" in told["commit"]  # beside that of the other runs
    said = run("paper", "run", "steps", "-m", "toy", "--items", "3", "-n", "8", "-b", "2", "-q",
               "--task", "boolean_expressions", "-o", str(tmp_path), code=1).stderr  # fmt: skip
    assert "has a run with different settings" in said


def numbers(home: Path) -> Any:
    """Return everything that was measured, except times."""
    found = json.loads((home / "numbers.json").read_text("utf-8"))
    for row in found["measured"]:
        del row["seconds"]
    return found["claims"], found["measured"]


@pytest.mark.slow
def test_killed_experiment_continues_and_ends_with_the_same_numbers(tmp_path: Path) -> None:
    def start(home: Path) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "wavefront", "paper", "run", "steps", "-m", "toy", "-q",
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


def test_scale_refuses_wrong_values() -> None:
    with pytest.raises(OptionError, match="steps must be at least 1"):
        Scale(steps=0)


@pytest.mark.slow
@pytest.mark.skipif(not DATA, reason="WAVEFRONT_DATA is not set")
def test_benchmarks_can_be_drawn_and_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ItemDecoder, "draw", DRAW)
    scale = Scale(tasks=("gsm8k",), length=256, style="paper")
    decoder = ItemDecoder(lm=wavefront.load("toy"), scale=scale)
    found = decoder.draw("gsm8k", 3)
    assert [one.id for one in found] == [one.id for one in decoder.draw("gsm8k", 3)]
    assert all(len(one.answer) < 256 and "####" in one.answer for one in found)
    few = ("-m", "toy", "--items", "1", "-n", "8", "-q", "--data", str(DATA))
    home = tmp_path / "steps"
    run("paper", "run", "steps", "--paper", *few, "-o", str(home))
    rows = runs.read(home).tables[1].rows
    assert {row[1] for row in rows} == {"GSM8K"}
    assert [row[-1] for row in rows][-2:] == ["82.03", "82.03"]


@pytest.mark.slow
@pytest.mark.parametrize("name", TRACED)
def test_traced_experiment_records_its_settings_and_traces(name: str, tmp_path: Path) -> None:
    home = tmp_path / name
    specs = ["block(size=4)", "wavefront(size=4, radius=2)"]
    few = ["-m", "toy", "-s", specs[0], "-s", specs[1], "-n", "8", "-b", "2", "--items", "3"]
    seeds = ["--items-seed", "7", "--seed", "5"]
    done = run("paper", "run", name, *few, *seeds, "-o", str(home))
    assert done.stderr.endswith(f"files in {home}; summary.md has all tables.\n")
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
    single = name in ("decode-order", "case")
    assert numbers["n"] == (1 if single else 3)
    said = numbers["configuration"]
    assert said == found.configuration
    assert {"model": "toy", "seed": 5, "seed of the items": 7}.items() <= said.items()
    assert {"positions (N)": 8, "batch size": 2, "strategies": specs}.items() <= said.items()
    assert {"command", "wavefront", "torch", "python", "device", "dtype", "date"} <= said.keys()
    summary = (home / "summary.md").read_text("utf-8")
    for table in found.tables:
        assert f"## {table.title}\n" in summary
        assert len(table.rows) >= 1
    if not single:
        cells = [cell for table in found.tables for row in table.rows for cell in row]
        assert any(isinstance(cell, Interval) for cell in cells)


def test_same_command_writes_the_same_files(tmp_path: Path) -> None:
    for one in "ab":
        tiny("mhco", tmp_path / one)
    for file in (tmp_path / "a").iterdir():
        one, two = (part.read_bytes() for part in (file, tmp_path / "b" / file.name))
        if file.name == "results.jsonl":  # it has times
            one, two = (
                [json.loads(line) | {"seconds": 0} for line in part.splitlines()]
                for part in (one, two)
            )
        assert one == two, file.name


@pytest.mark.parametrize(
    "name",
    [
        "mhco",
        "steps",
        *(
            pytest.param(one, marks=pytest.mark.slow)
            for one in ("calibration", "dynamics", "gradient", "parity", "latency", "temperature")
        ),
    ],
)
def test_page_is_made_again_from_the_results_alone(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny(name, tmp_path / "a")
    (tmp_path / "b").mkdir()
    shutil.copy(tmp_path / "a" / "results.jsonl", tmp_path / "b")
    monkeypatch.setattr("wavefront.engine.batcher.Batcher.step", lambda *_: pytest.fail("decoded"))
    tiny(name, tmp_path / "b")
    made = {file.name for file in (tmp_path / "a").iterdir()} - {"runs"}
    assert made == {file.name for file in (tmp_path / "b").iterdir()}
    for file in (one for one in sorted(made) if not one.endswith(".npz")):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes(), file


def other_grader(monkeypatch: pytest.MonkeyPatch) -> None:
    of_grader = fingerprint.of_grader
    monkeypatch.setattr(
        fingerprint, "of_grader", lambda *one, **more: of_grader(*one, **more)[::-1]
    )


def test_results_of_another_grader_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny("steps", tmp_path)
    tiny("steps", tmp_path)
    other_grader(monkeypatch)
    said = tiny_refused("steps", tmp_path)
    assert "has grades of boolean_expressions from another version of its grader" in said
    (tmp_path / "results.jsonl").unlink()
    tiny("steps", tmp_path)


def test_results_of_an_unknown_grader_are_refused(tmp_path: Path) -> None:
    tiny("steps", tmp_path)
    file = tmp_path / "results.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    kept = [line for line in lines if '"grader of ' not in line]
    assert len(kept) == len(lines) - 1
    file.write_text("".join(kept))
    said = tiny_refused("steps", tmp_path)
    assert "has grades of boolean_expressions from another version of its grader" in said


def test_results_of_each_task_have_its_grader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny("steps", tmp_path)
    tiny("steps", tmp_path, "--task", "navigate")
    kept = (tmp_path / "results.jsonl").read_text()
    assert kept.count('"grader of ') == 2
    other_grader(monkeypatch)
    for one in ("boolean_expressions", "navigate"):
        said = refused("paper", "run", "steps", "-m", "toy", "--items", "2", "-n", "8", "-b", "2",
                       "--task", one, "-o", str(tmp_path))  # fmt: skip
        assert f"grades of {one} from another" in said


@pytest.mark.slow
def test_judged_results_without_a_grader_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = ("-m", "tale", "--task", "stories", "--items", "2", "-n", "8", "-b", "2", "-q")
    run("paper", "run", "steps", *few, "-o", str(tmp_path))
    page = runs.read(tmp_path)  # its sentences are about nats, not about shares
    assert page.title.startswith("Quality of texts")
    assert "The judge is the autoregressive original" in page.text
    assert "McNemar" not in page.text
    assert page.figures[0].title.startswith("Quality of texts")
    file = tmp_path / "results.jsonl"
    before = file.read_bytes()
    assert b"grader" not in before
    other_grader(monkeypatch)
    run("paper", "run", "steps", *few, "-o", str(tmp_path))
    assert file.read_bytes() == before


def test_results_of_other_settings_are_refused(tmp_path: Path) -> None:
    tiny("mhco", tmp_path)
    assert "McNemar" not in runs.read(tmp_path).text  # the page has no such test
    said = tiny_refused("mhco", tmp_path, "--radius", "3")
    assert "has a run with different settings: radius is 3 here and 2 there" in said


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["main", "steps", "size-radius", "priority", "temperature", "latency", "parity"]
)
def test_task_with_a_judge_is_compared_by_nats(name: str, tmp_path: Path) -> None:
    few = ("--items", "6", "-n", "8", "-b", "1" if name in ("latency", "parity") else "6", "-q")
    run("paper", "run", name, "-m", "tale", "--task", "stories", *few, "-o", str(tmp_path))
    found = runs.read(tmp_path)
    assert all(str(row[-1]).startswith(claims.VERDICTS) for row in found.tables[0].rows)
    if name == "parity":
        return
    assert "The judge is the autoregressive original" in found.text
    table = next(one for one in found.tables if "nats per token" in one.columns)
    assert table.rows[-1][list(table.columns).index("nats per token") - 1] == (
        "the original's own texts"
    )
    for row in table.records():
        for measure in ("nats per token", "tokens", "ends within 64 tokens"):
            assert isinstance(row[measure], Interval)
        assert row["items"] in (6, None)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mhco", "calibration", "dynamics", "gradient"])
def test_traced_experiment_of_stories_has_intervals(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ItemDecoder, "draw", DRAW)
    few = ("--items", "2", "-n", "200", "-t", "25", "-b", "2", "-q", "--items-seed", "1")
    one = ("-s", "block(size=8)") if name in ("mhco", "dynamics") else ()
    run("paper", "run", name, "-m", "tale", "--task", "stories", *few, *one,
        "-s", "wavefront(size=8, radius=2)", "-o", str(tmp_path))  # fmt: skip
    texts = {"task", "strategy", "reading", "canvas", "made by", "scope", "claim", "verdict",
             "paper: lower", "paper: lower ECE", "paper: above 0", "choices", "items"}  # fmt: skip
    texts |= {"leave-one-out"}  # of a quarter of the items: here one, which has no interval
    for table in runs.read(tmp_path).tables[1:]:
        for row in (one for one in table.records() if one.get("items") != 1):
            for column, value in row.items():
                known = column in texts or value is None or "paper" in table.title
                assert known or isinstance(value, Interval), (table.title, column, value)


def test_drawn_items_are_held_out_fixed_by_the_seed_and_fit(monkeypatch) -> None:
    monkeypatch.setattr(ItemDecoder, "draw", DRAW)
    lm = wavefront.load("toy")

    def draw(seed: int) -> list[Sample]:
        scale = Scale(items=4, length=96)
        return ItemDecoder(lm=lm, scale=scale, items_seed=seed).draw("web_of_lies")

    found = draw(1)
    assert found == draw(1) != draw(0)
    assert len({one.id for one in found}) == 4
    assert all("/held-out/" in one.id for one in found)
    assert all(len(lm.tokenizer.encode(one.answer)) < 96 for one in found)
    with pytest.raises(OptionError, match="fit 8 positions: give a larger -n"):
        ItemDecoder(lm=lm, scale=Scale(items=1, length=8)).draw("gsm")


def test_items_of_later_tasks_are_checked_before_decoding(monkeypatch) -> None:
    monkeypatch.setattr(ItemDecoder, "draw", DRAW)
    monkeypatch.setattr(ItemDecoder, "decode", lambda *args, **options: pytest.fail("decoded"))
    tasks = ("boolean_expressions", "multistep_arithmetic_two")
    decoder = ItemDecoder(
        lm=wavefront.load("toy"),
        scale=Scale(tasks=tasks, items=2, length=24, strategies=("block",)),
    )
    with pytest.raises(OptionError, match="multistep_arithmetic_two have answers that fit 24"):
        mhco.measure(decoder)
