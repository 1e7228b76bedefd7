"""Two runs compared, and where their decodes part."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest
from helpers.toy_runs import ENGINE, OPTIONS, made, rewrite

import wavefront
from wavefront.core.errors import RunError
from wavefront.evaluation import difference, divergence, explain, grade, open_run
from wavefront.tasks.base import Ask

OTHER = OPTIONS | {"strategy": "standard"}


def flip(folder: Path, *wrong: int) -> None:
    """Verdicts by hand: right, but for the items of these numbers."""
    order = sorted(line["id"] for line in open_run(folder).grades.values())
    rewrite(folder / "grades.jsonl", correct=lambda line: order.index(line["id"]) not in wrong)


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("runs")
    for name, options in (("a", OPTIONS), ("b", OTHER)):
        grade(made(home / name, options=options))
    flip(home / "a", 0, 1)
    flip(home / "b", 1, 4, 5, 6)
    return home


@pytest.fixture
def home(origin: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(origin, tmp_path / "home"))


def test_a_difference_is_paired(home: Path) -> None:
    pair = difference(open_run(home / "a"), open_run(home / "b"))
    test = pair.comparison.mcnemar
    assert test is not None
    assert test[:4] == (2, 3, 1, 1)
    assert test.p == pytest.approx(2 * (1 + 4) / 16)
    assert pair.comparison.gap.value == pytest.approx(-2 / 7)
    assert pair.comparison.gap.low <= -2 / 7 <= pair.comparison.gap.high
    assert [one.first_right for one in pair.changed] == [True, True, True, False]
    assert [one.name for one in pair.settings] == ["options.strategy"]
    texts = [
        {line["id"]: line["text"] for line in open_run(home / name).answers.values()}
        for name in "ab"
    ]
    for one in pair.changed:
        assert (one.first, one.second) == (texts[0][one.id], texts[1][one.id])
    assert pair.other_texts == sum(texts[0][id] != texts[1][id] for id in texts[0])
    json.dumps(pair.as_json())


def test_different_items_are_refused_unless_the_common_ones_are_asked_for(
    home: Path, tmp_path: Path
) -> None:
    fewer = made(tmp_path / "fewer", ask=Ask(count=5, style="bare"))
    grade(fewer)
    one, two = open_run(home / "a"), open_run(fewer.folder)
    with pytest.raises(RunError, match=r"2 are in one .* and 5 in both: --common"):
        difference(one, two)
    pair = difference(one, two, common=True)
    assert (pair.comparison.count, pair.left_out) == (5, 2)


@pytest.mark.parametrize("common", [False, True])
def test_nothing_in_common_is_refused(home: Path, tmp_path: Path, common: bool) -> None:
    other = made(tmp_path / "other", ask=Ask(count=7, seed=5, style="paper"))
    grade(other)
    with pytest.raises(RunError, match="over different items"):
        difference(open_run(home / "a"), open_run(other.folder), common=common)
    task = made(tmp_path / "task", task="navigate")
    grade(task)
    with pytest.raises(RunError, match=r"is of boolean_expressions and .* of navigate"):
        difference(open_run(home / "a"), open_run(task.folder), common=common)


def test_ungraded_runs_are_refused(home: Path) -> None:
    (home / "b" / "grades.jsonl").unlink()
    with pytest.raises(RunError, match="wavefront grade"):
        difference(open_run(home / "a"), open_run(home / "b"))


def test_partings_are_where_the_decodes_part(home: Path) -> None:
    pair, found = explain(open_run(home / "a"), open_run(home / "b"))
    differing = [one.id for one in pair.changed if one.first != one.second]
    assert sorted(one.item.id for one in found) == sorted(differing)
    assert len(found) >= 2
    assert [one.gap for one in found] == sorted((one.gap for one in found), reverse=True)
    lm = ENGINE.worker.lm
    for one in found:
        assert one.repeated
        commits = [_commits(lm, one.item.prompt, options) for options in (OPTIONS, OTHER)]
        other = {
            slot: min(side[slot][0] for side in commits)
            for slot in range(8)
            if commits[0][slot][1] != commits[1][slot][1]
        }
        assert one.slot in other
        assert min(one.first.step, one.second.step) == other[one.slot] == min(other.values())
        for sight, side in zip((one.first, one.second), commits, strict=True):
            step, token, p, known = side[one.slot]
            assert sight.step == step
            assert sight.probability is not None
            assert sight.token == lm.tokenizer.pieces([token])[0]
            assert sight.probability == pytest.approx(p, rel=1e-4)
            assert sight.known == known
            assert f"[{sight.token}]" in sight.around
            assert sight.others[0][1] >= sight.probability * (1 - 1e-3)


def _commits(lm: wavefront.LM, prompt: str, options: dict) -> list[tuple[int, int, float, int]]:
    """By slot: the step that decided it, its token and probability, and what was known then."""
    stream = lm.stream(prompt, **options)
    first = int((stream.decoding.canvas.slot >= 0).nonzero()[0, 1])
    found: dict[int, tuple[int, int, float, int]] = {}
    for step in stream:
        known = len(found)
        for place in step.decision.commit[0].nonzero()[:, 0].tolist():
            p = math.exp(float(step.view.stats.logp[0, place]))
            token = int(step.canvas.tokens[0, place])
            found[place - first] = (step.number + 1, token, p, known)
    return [found[slot] for slot in range(8)]


def test_recorded_traces_are_read_and_no_model_is_loaded(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, options in (("a", OPTIONS), ("b", OTHER)):
        run = made(tmp_path / name, options=options, trace="full")
        shutil.copy(home / name / "grades.jsonl", run.folder)
    again = explain(open_run(home / "a"), open_run(home / "b"))[1]
    monkeypatch.setattr("wavefront.evaluation.worker.Loader.load", None)
    read = explain(open_run(tmp_path / "a"), open_run(tmp_path / "b"))[1]
    assert [one._replace(gap=0, first=None, second=None) for one in read] == [
        one._replace(gap=0, first=None, second=None) for one in again
    ]
    for one, two in zip(read, again, strict=True):
        assert one.first[:5] == two.first[:5]
        assert one.gap == pytest.approx(two.gap, abs=2e-3)  # files keep alternatives in half


def test_a_decode_that_does_not_repeat_is_said(home: Path) -> None:
    rewrite(home / "a" / "answers.jsonl", text=lambda line: line["text"] + "?")
    _, found = explain(open_run(home / "a"), open_run(home / "b"))
    assert not any(one.repeated for one in found)


def test_a_run_of_another_model_is_not_explained(home: Path) -> None:
    file = home / "b" / "header.json"
    header = json.loads(file.read_text())
    header["decides"]["model"]["weights"] = "0"
    file.write_text(json.dumps(header))
    with pytest.raises(RunError, match=r"model\.weights"):
        explain(open_run(home / "a"), open_run(home / "b"))


def test_a_strategy_from_outside_is_imported_only_when_trusted(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[2])
    outside = OPTIONS | {"strategy": "examples.new_strategy.OutsideIn()"}
    run = made(tmp_path / "c", options=outside)
    grade(run)
    flip(run.folder, 4)
    assert run.decides["strategy"] is not None
    with pytest.raises(RunError, match="not run because a file says so: --trust"):
        explain(open_run(home / "a"), open_run(run.folder))
    assert explain(open_run(home / "a"), open_run(run.folder), trust=True)[1]


def test_traces_that_come_to_the_same_do_not_part(home: Path) -> None:
    lm = ENGINE.worker.lm
    trace = lm.generate("Hi", trace="full", **OPTIONS).trace
    item = difference(open_run(home / "a"), open_run(home / "b")).changed[0]
    assert divergence.part(item, trace, trace) is None


def test_the_first_commit_that_matters_need_not_be_the_leftmost(home: Path) -> None:
    lm, leftmost = ENGINE.worker.lm, []
    item = difference(open_run(home / "a"), open_run(home / "b")).changed[0]
    for seed in range(8):
        sides = [
            {"strategy": "standard", "max_new_tokens": 8, "priority": "random", "seed": one}
            for one in (seed, seed + 100)
        ]
        traces = [lm.generate("Hi", trace=True, **options).trace for options in sides]
        found = divergence.part(item, *traces)
        one, two = (_commits(lm, "Hi", options) for options in sides)
        other = {n: min(one[n][0], two[n][0]) for n in range(8) if one[n][1] != two[n][1]}
        if found is None:
            assert other == {}
            continue
        assert min(found.first.step, found.second.step) == min(other.values())
        assert other[found.slot] == min(other.values())
        leftmost.append(found.slot == min(other))
    assert leftmost
    assert not all(leftmost)
