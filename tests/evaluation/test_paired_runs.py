"""Comparing two runs, and where their decodes diverge."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest
from helpers.toy_runs import EXECUTOR, OPTIONS, make_run, rewrite

import wavefront
from wavefront.core import spec
from wavefront.core.errors import RunError, WavefrontError
from wavefront.evaluation import compare_runs, divergence, explain, grade, grades, merge, open_run
from wavefront.evaluation.batches import Shard
from wavefront.tasks.base import Ask

OTHER = OPTIONS | {"strategy": "standard"}


def flip(folder: Path, *wrong: int) -> None:
    """Set every verdict to right, except for the items with these numbers."""
    order = sorted(line["id"] for line in open_run(folder).grades.values())
    rewrite(folder / "grades.jsonl", correct=lambda line: order.index(line["id"]) not in wrong)


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("runs")
    for name, options in (("a", OPTIONS), ("b", OTHER)):
        grade(make_run(home / name, options=options))
    flip(home / "a", 0, 1)
    flip(home / "b", 1, 4, 5, 6)
    return home


@pytest.fixture
def home(origin: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(origin, tmp_path / "home"))


def test_comparison_is_paired(home: Path) -> None:
    pair = compare_runs(open_run(home / "a"), open_run(home / "b"))
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


def test_different_items_are_refused_unless_intersected(home: Path, tmp_path: Path) -> None:
    fewer = make_run(tmp_path / "fewer", ask=Ask(count=5, style="bare"))
    grade(fewer)
    one, two = open_run(home / "a"), open_run(fewer.folder)
    with pytest.raises(RunError, match=r"2 are in only one .* and 5 in both: --intersect"):
        compare_runs(one, two)
    pair = compare_runs(one, two, intersect=True)
    assert (pair.comparison.count, pair.left_out) == (5, 2)


@pytest.mark.parametrize("intersect", [False, True])
def test_runs_without_shared_items_are_refused(home: Path, tmp_path: Path, intersect: bool) -> None:
    other = make_run(tmp_path / "other", ask=Ask(count=7, seed=5, style="paper"))
    grade(other)
    with pytest.raises(RunError, match="have different items"):
        compare_runs(open_run(home / "a"), open_run(other.folder), intersect=intersect)
    task = make_run(tmp_path / "task", task="navigate")
    grade(task)
    with pytest.raises(RunError, match=r"a run of boolean_expressions, but .* a run of navigate"):
        compare_runs(open_run(home / "a"), open_run(task.folder), intersect=intersect)
    prompts = tmp_path / "fruit.jsonl"
    prompts.write_text('{"prompt": "a", "answer": "1"}\n')
    file = make_run(tmp_path / "file", task=f"jsonl(path='{prompts}')")
    grade(file)
    with pytest.raises(RunError, match=r"but .* is a run of fruit\.jsonl"):
        compare_runs(open_run(home / "a"), open_run(file.folder), intersect=intersect)


def test_ungraded_runs_are_refused(home: Path) -> None:
    (home / "b" / "grades.jsonl").unlink()
    with pytest.raises(RunError, match="wavefront eval grade"):
        compare_runs(open_run(home / "a"), open_run(home / "b"))


def test_runs_of_different_graders_are_refused(home: Path) -> None:
    rewrite(home / "b" / "grades.jsonl", grader="0" * 32)
    for compare in (compare_runs, explain):
        with pytest.raises(RunError, match=r"different graders.*`wavefront eval grade"):
            compare(open_run(home / "a"), open_run(home / "b"))


def test_merged_shards_have_no_grades_of_their_graders(tmp_path: Path) -> None:
    parts = [make_run(tmp_path / f"{n}", shard=Shard(n, 2)) for n in range(2)]
    for part in parts:
        grade(part)
    rewrite(parts[0].folder / "grades.jsonl", grader="0" * 32)
    merged = merge([part.folder for part in parts], tmp_path / "merged")
    assert merged.grades == {}
    with pytest.raises(RunError, match=r"7 answers without a grade"):
        grades.verdicts(merged)


def test_divergence_is_the_first_commit_that_differs(home: Path) -> None:
    pair, found = explain(open_run(home / "a"), open_run(home / "b"))
    differing = [one.id for one in pair.changed if one.first != one.second]
    assert sorted(one.item.id for one in found) == sorted(differing)
    assert len(found) >= 2
    assert [one.gap for one in found] == sorted((one.gap for one in found), reverse=True)
    lm = EXECUTOR.worker.lm
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
    """Return by slot: its step, token and probability, and how many slots were known."""
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
        run = make_run(tmp_path / name, options=options, trace="full")
        shutil.copy(home / name / "grades.jsonl", run.folder)
    again = explain(open_run(home / "a"), open_run(home / "b"))[1]
    monkeypatch.setattr("wavefront.evaluation.worker.Loader.load", None)
    read = explain(open_run(tmp_path / "a"), open_run(tmp_path / "b"))[1]
    assert [one._replace(gap=0, first=None, second=None) for one in read] == [
        one._replace(gap=0, first=None, second=None) for one in again
    ]
    for one, two in zip(read, again, strict=True):
        assert one.first[:5] == two.first[:5]
        assert one.gap == pytest.approx(
            two.gap, abs=2e-3
        )  # files store alternatives in half precision


def test_decode_that_differs_from_its_record_is_reported(home: Path) -> None:
    rewrite(home / "a" / "answers.jsonl", text=lambda line: line["text"] + "?")
    _, found = explain(open_run(home / "a"), open_run(home / "b"))
    assert not any(one.repeated for one in found)


def test_constrained_runs_are_decoded_again_with_their_constraint(tmp_path: Path) -> None:
    pytest.importorskip("outlines_core")
    given = {"task": "logical_deduction_three_objects", "constrain": "choice"}
    runs = [
        make_run(tmp_path / name, options=options, **given)
        for name, options in (("a", OPTIONS), ("b", OTHER))
    ]
    for run in runs:
        traces = divergence.TraceSource()
        assert all(traces.matches(run, answer["id"]) for answer in run.answers.values())


def test_run_of_another_model_is_not_explained(home: Path) -> None:
    file = home / "b" / "header.json"
    header = json.loads(file.read_text())
    header["decides"]["model"]["weights"] = "0"
    file.write_text(json.dumps(header))
    with pytest.raises(RunError, match=r"model\.weights"):
        explain(open_run(home / "a"), open_run(home / "b"))


def test_user_strategy_is_used_only_when_trusted(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[2])
    outside = OPTIONS | {"strategy": "examples.new_strategy.OutsideIn()"}
    run = make_run(tmp_path / "c", options=outside)
    grade(run)
    flip(run.folder, 4)
    assert run.decides["strategy"] is not None
    with pytest.raises(RunError, match=r"importing it runs its code\. .* name it with --strategy"):
        explain(open_run(home / "a"), open_run(run.folder))
    trusted = [spec.resolve(outside["strategy"], "strategies")]
    assert explain(open_run(home / "a"), open_run(run.folder), trusted=trusted)[1]


@pytest.mark.parametrize(
    "options",
    [
        {"strategy": "planted.Mine()"},
        {"strategy": "standard(selector=planted.Mine())"},
        {"cache": "planted.Mine()"},
    ],
)
def test_run_header_never_imports_a_module(home: Path, planted_module, options) -> None:
    file = home / "b" / "header.json"
    header = json.loads(file.read_text())
    header["decides"]["options"] |= options
    file.write_text(json.dumps(header))
    with pytest.raises(RunError, match=r"planted\.Mine"):
        explain(open_run(home / "a"), open_run(home / "b"))
    assert not planted_module()


def set_model(home: Path, **fields: object) -> None:
    """Change what the header of the second run says about its model."""
    file = home / "b" / "header.json"
    header = json.loads(file.read_text())
    header["model"] |= fields
    file.write_text(json.dumps(header))


def test_run_header_never_fetches_a_model(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    def refuse(name: str, *, local_files_only: bool, **_: object) -> str:
        asked.append(local_files_only)
        raise FileNotFoundError(name)

    monkeypatch.setattr("huggingface_hub.snapshot_download", refuse)
    set_model(home, path="attacker/model", offline=False)
    with pytest.raises(WavefrontError, match="attacker/model"):
        explain(open_run(home / "a"), open_run(home / "b"))
    assert asked == [True]


@pytest.mark.parametrize("threads", [1, -3, "x", 10**30])
def test_run_header_does_not_set_the_threads(home: Path, threads: object) -> None:
    set_model(home, threads=threads)
    loader = divergence.loader_of(open_run(home / "b").header)
    assert (loader.threads, loader.offline) == (None, True)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("dtype", ["float32"]),
        ("speed", ["exact"]),
        ("speed", None),
        ("device", 0),
        ("device", "moon"),
        ("dtype", "float1"),
        ("speed", "light"),
        ("quantize", {"int8": 1}),
        ("revision", 3),
        ("mask_id", "5"),
        ("mask_id", True),
        ("mask_id", 10**30),
        ("mask_id", -3),
        ("block_size", 1.5),
        ("block_size", 10**30),
        ("attention", []),
    ],
)
def test_bad_model_field_in_a_run_header_is_a_sentence(
    home: Path, field: str, value: object
) -> None:
    set_model(home, **{field: value})
    with pytest.raises(
        RunError, match=rf"(?i)b cannot be decoded again\. .*{field}.*\.$"
    ) as raised:
        explain(open_run(home / "a"), open_run(home / "b"))
    assert "\n" not in str(raised.value)


def test_equal_traces_do_not_diverge(home: Path) -> None:
    lm = EXECUTOR.worker.lm
    trace = lm.generate("Hi", trace="full", **OPTIONS).trace
    item = compare_runs(open_run(home / "a"), open_run(home / "b")).changed[0]
    assert divergence.find_divergence(item, trace, trace) is None


def test_divergence_need_not_be_the_leftmost_difference(home: Path) -> None:
    lm, leftmost = EXECUTOR.worker.lm, []
    item = compare_runs(open_run(home / "a"), open_run(home / "b")).changed[0]
    for seed in range(8):
        sides = [
            {"strategy": "standard", "max_new_tokens": 8, "priority": "random", "seed": one}
            for one in (seed, seed + 100)
        ]
        traces = [lm.generate("Hi", trace=True, **options).trace for options in sides]
        found = divergence.find_divergence(item, *traces)
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
