"""A run: what it writes, how it goes on, and what it refuses."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.toy_runs import ENGINE, LOADER, OPTIONS, made, ordered, rewrite, setup

import wavefront
from wavefront import tasks
from wavefront.core.errors import OptionError, RunError, WavefrontError
from wavefront.evaluation import (
    Local,
    Worker,
    fingerprint,
    grade,
    merge,
    open_run,
    produce,
    runs_in,
)
from wavefront.evaluation.batches import Shard
from wavefront.evaluation.worker import Prompt
from wavefront.tasks.base import Ask
from wavefront.traces import trace_file


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("runs") / "whole").folder


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "copy"))


def test_a_run_has_every_item_once_with_what_it_takes_to_explain_it(whole: Path) -> None:
    run = open_run(whole)
    samples = tasks.load("boolean_expressions").items(Ask(count=7, style="bare"))
    assert run.finished
    assert {line["id"]: line["prompt"] for line in run.answers.values()} == {
        sample.id: sample.prompt for sample in samples
    }
    for line in run.answers.values():
        assert len(line["tokens"]) <= 8
        assert line["forwards"] == 8
        assert line["prompt_hash"] == fingerprint.digest([line["prompt"], ""])
    assert run.decides["options"]["strategy"] == "block(size=4)"
    assert run.decides["wavefront"] == wavefront.__version__
    assert run.environments[0]["torch"]
    assert not any("second" in name for line in run.answers.values() for name in line)


def test_answers_are_those_of_generate(whole: Path) -> None:
    lm = ENGINE.worker.lm
    for line in open_run(whole).answers.values():
        assert line["text"] == lm.generate(line["prompt"], **OPTIONS).text


def test_a_finished_run_is_recognised(copy: Path) -> None:
    before = {file.name: file.read_bytes() for file in copy.iterdir()}
    assert produce(ENGINE, setup(), copy) == (0, 7, 7)
    assert {file.name: file.read_bytes() for file in copy.iterdir()} == before


@pytest.mark.parametrize("kept", range(7))
@pytest.mark.parametrize("torn", [0, 20])
def test_a_run_cut_anywhere_goes_on_to_the_same_bytes(
    copy: Path, whole: Path, kept: int, torn: int
) -> None:
    lines = (copy / "answers.jsonl").read_bytes().splitlines(keepends=True)
    (copy / "answers.jsonl").write_bytes(b"".join(lines[:kept]) + lines[kept][:torn])
    assert produce(ENGINE, setup(), copy) == (7 - kept, 7, 7)
    assert ordered(copy) == ordered(whole)


def test_a_run_that_died_before_its_header_begins_anew(tmp_path: Path, whole: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "lock").touch()
    (tmp_path / "run" / ".header.json.77.part").write_text('{"form')
    assert ordered(made(tmp_path / "run")) == ordered(whole)


def test_the_answer_of_an_item_does_not_depend_on_the_others(whole: Path, tmp_path: Path) -> None:
    fewer = made(tmp_path / "fewer", ask=Ask(count=4, style="bare"))
    texts = {line["id"]: line["tokens"] for line in open_run(whole).answers.values()}
    assert len(fewer.answers) == 4
    assert {line["id"]: line["tokens"] for line in fewer.answers.values()}.items() <= texts.items()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"options": OPTIONS | {"strategy": "standard"}}, "options.strategy is 'standard.*here"),
        ({"options": OPTIONS | {"temperature": 0.5}}, "options.temperature is 0.5 here and 0.0"),
        ({"rows": 4}, "batch.rows is 4 here and 3 there"),
        ({"ask": Ask(count=8, style="bare")}, "task.count is 8"),
        ({"ask": Ask(count=7, style="paper")}, "ask.style is 'paper'"),
        ({"task": "navigate"}, "task.name is 'navigate'"),
        ({"raw": True}, "raw is True"),
        ({"trace": "basic"}, "trace is 'basic' here and '' there"),
        ({"shard": Shard(0, 2)}, "shard is"),
    ],
)
def test_another_configuration_is_refused_by_name(copy: Path, change: dict, words: str) -> None:
    before = ordered(copy)
    with pytest.raises(RunError, match=words):
        produce(ENGINE, setup(**change), copy)
    assert ordered(copy) == before


def test_another_model_is_refused(copy: Path, tmp_path: Path) -> None:
    half = replace(LOADER, dtype="bfloat16")
    with pytest.raises(RunError, match=r"model\.weights is .*; model\.dtype is 'bfloat16'"):
        produce(Local(Worker(half)), setup(), copy)


def test_other_sources_are_refused(copy: Path) -> None:
    header = json.loads((copy / "header.json").read_text())
    header["decides"]["code"] = "0" * 32
    (copy / "header.json").write_text(json.dumps(header))
    with pytest.raises(RunError, match=r"code is .* here and '0{32}' there"):
        produce(ENGINE, setup(), copy)


def test_another_machine_is_a_warning_and_is_noted(copy: Path) -> None:
    rewrite(copy / "environment.jsonl", torch="1.0")
    (copy / "answers.jsonl").unlink()
    with pytest.warns(wavefront.WavefrontWarning, match=r"torch is .* here and '1\.0' there"):
        produce(ENGINE, setup(), copy)
    assert len(open_run(copy).environments) == 2


def test_a_machine_that_only_reads_a_finished_run_is_not_noted(copy: Path) -> None:
    rewrite(copy / "environment.jsonl", torch="1.0")
    assert produce(ENGINE, setup(), copy).made == 0
    assert [one["torch"] for one in open_run(copy).environments] == ["1.0"]


def test_answers_of_another_run_are_refused(copy: Path) -> None:
    rewrite(copy / "answers.jsonl", key=lambda line: line["key"][::-1])
    with pytest.raises(RunError, match="7 answers that are not of this run"):
        produce(ENGINE, setup(), copy)


def test_a_foreign_directory_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(RunError, match=r"holds other things \(thesis.tex\)"):
        made(tmp_path)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["lock", "thesis.tex"]
    with pytest.raises(RunError, match="is not a run"):
        open_run(tmp_path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not valid JSON"),
        ("[]", "is not of a run"),
        ('{"format": "wavefront-answers", "version": 9}', "version 9"),
        ('{"format": "wavefront-answers", "version": 1}', "lacks what a run needs"),
        ('{"format": "wavefront-answers", "version": 1, "decides": {"ask": {"x": 1}}}', "lacks"),
    ],
)
def test_a_bad_header_is_a_sentence(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "header.json").write_text(text)
    with pytest.raises(RunError, match=words):
        runs_in(tmp_path)


def test_a_prompt_without_room_is_recorded_and_the_others_are_answered(tmp_path: Path) -> None:
    lengths = sorted(
        ENGINE.lengths([Prompt.of(s) for s in tasks.load("navigate").items(Ask(count=5))], False)
    )
    places = 4096 - lengths[2]
    options = {"strategy": "standard", "max_new_tokens": places, "steps": 1}
    run = made(tmp_path / "run", task="navigate", ask=Ask(count=5), options=options, rows=1)
    long = [line for line in run.answers.values() if line.get("problem")]
    assert len(long) == 5 - sum(length <= lengths[2] for length in lengths) > 0
    assert long[0]["finish_reason"] == "too long"
    assert f"{places} places" in long[0]["problem"]
    assert run.finished


def test_traces_lie_beside_the_answers_and_say_the_same(tmp_path: Path) -> None:
    run = made(tmp_path / "run", trace="basic", ask=Ask(count=2, style="bare"))
    lm = ENGINE.worker.lm
    for key, line in run.answers.items():
        trace = trace_file.load(run.folder / "traces" / f"{key}.npz")
        assert lm.text_of(trace) == line["text"]


@pytest.mark.parametrize("parts", [2, 3])
def test_shards_merged_are_the_run_of_one_process(whole: Path, tmp_path: Path, parts: int) -> None:
    folders = [tmp_path / str(n) for n in range(parts)]
    for n, folder in enumerate(folders):
        made(folder, shard=Shard(n, parts))
    joined = merge(folders[::-1], tmp_path / "joined")
    assert ordered(joined) == ordered(whole)
    assert joined.finished
    assert joined.decides == open_run(whole).decides
    assert produce(ENGINE, setup(), joined.folder) == (0, 7, 7)


def test_only_all_shards_of_one_run_are_merged(whole: Path, tmp_path: Path) -> None:
    one, two = (made(tmp_path / str(n), shard=Shard(n, 2)).folder for n in range(2))
    for parts, words in (
        ([one], "each once, and these are 0/2"),
        ([one, one], "these are 0/2, 0/2"),
        ([one, two, two], "these are 0/2, 1/2, 1/2"),
        ([one, whole], "these are 0/1, 0/2"),
        ([], "nothing to merge"),
        ([one, tmp_path], "several runs"),
    ):
        with pytest.raises(WavefrontError, match=words):
            merge(parts, tmp_path / "out")
    other = made(tmp_path / "other", shard=Shard(1, 2), rows=2).folder
    with pytest.raises(RunError, match=r"batch\.rows"):
        merge([one, other], tmp_path / "out")
    (two / "answers.jsonl").write_bytes(b"")
    with pytest.raises(RunError, match=r"has 0 of . answers: finish it first"):
        merge([one, two], tmp_path / "out")
    with pytest.raises(RunError, match="is a run already"):
        merge([whole], one)


def test_no_items_and_unknown_tasks_are_sentences(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(OptionError, match=r"no task 'gsn' \(did you mean 'gsm'"):
        made(tmp_path / "run", task="gsn")
    kind = type(tasks.load("gsm"))
    monkeypatch.setattr(kind, "items", lambda self, ask: [])
    with pytest.raises(OptionError, match="gsm has no items"):
        made(tmp_path / "run", task="gsm")
    assert not (tmp_path / "run").exists()


def test_bad_setups_are_sentences() -> None:
    with pytest.raises(OptionError, match="batch_size"):
        setup(rows=0)
    with pytest.raises(OptionError, match="trace must be one of"):
        setup(trace="much")


def test_fingerprints_tell_files_apart(tmp_path: Path) -> None:
    one, two = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    one.write_bytes(b"x" * 100)
    two.write_bytes(b"x" * 99 + b"y")
    first = fingerprint.of_files([one])
    assert first != fingerprint.of_files([two])
    one.write_bytes(two.read_bytes())
    assert first != fingerprint.of_files([one])


def test_a_large_file_is_read_once_and_again_when_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file = tmp_path / "w.safetensors"
    file.write_bytes(bytes(1 << 24))
    first = fingerprint.of_files([file])
    reads = []
    real = fingerprint.file_digest
    monkeypatch.setattr(fingerprint, "file_digest", lambda *a: reads.append(a) or real(*a))
    assert fingerprint.of_files([file]) == first
    assert reads == []
    file.write_bytes(bytes((1 << 24) - 1) + b"x")
    assert fingerprint.of_files([file]) != first
    assert len(reads) == 1


def test_a_strategy_from_outside_is_known_by_its_source() -> None:
    from examples.new_strategy import OutsideIn

    assert fingerprint.of_strategy(OutsideIn()) is not None
    assert fingerprint.of_strategy(wavefront.core.spec.resolve("block", "strategies")) is None


def test_a_task_can_be_given_options(tmp_path: Path) -> None:
    spec = "tracking_shuffled_objects(objects=3)"
    run = made(tmp_path / "run", task=spec, ask=Ask(count=2))
    assert run.task_spec == spec
    plain = made(
        tmp_path / "plain", task="tracking_shuffled_objects_three_objects", ask=Ask(count=2)
    )
    assert {*run.answers} == {*plain.answers}
    assert grade(open_run(run.folder))["n-samples"][run.task]["effective"] == 2


@pytest.mark.parametrize(
    "text", ["gsm(", "gsm(1)", "gsm(x=f())", "gsm(**{})", "gsm(allow_unsandboxed=True)", "(a=1)"]
)
def test_a_task_is_parsed_and_never_evaluated(tmp_path: Path, text: str) -> None:
    with pytest.raises(OptionError, match=r"A task is written|cannot be asked|no task"):
        made(tmp_path / "run", task=text)


def test_a_hole_is_filled_with_what_follows_it_in_sight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = tasks.load("boolean_expressions")
    samples = [
        replace(sample, extra={"suffix": f"and so on {n}" * n})
        for n, sample in enumerate(task.items(Ask(count=5, style="bare")))
    ]
    monkeypatch.setattr(type(task), "items", lambda self, ask: samples)
    run = made(tmp_path / "run")
    lm = ENGINE.worker.lm
    assert len({line["prompt_hash"] for line in run.answers.values()}) == 5
    for line in run.answers.values():
        after = f" {line['suffix']}" if "suffix" in line else ""
        options = {name: v for name, v in OPTIONS.items() if name != "max_new_tokens"}
        whole = lm.infill(f"{line['prompt']}<mask:8>{after}", **options)
        assert whole.tokens == line["tokens"]
    alone = made(tmp_path / "alone", options=OPTIONS, rows=1)
    assert {tuple(line["tokens"]) for line in alone.answers.values()} == {
        tuple(line["tokens"]) for line in run.answers.values()
    }


def test_progress_is_told_within_a_batch(tmp_path: Path) -> None:
    heard: list[tuple[float, int]] = []
    produce(ENGINE, setup(), tmp_path, progress=lambda done, total: heard.append((done, total)))
    shares = [done for done, _ in heard]
    assert {total for _, total in heard} == {7}
    assert shares == sorted(shares)
    assert (shares[0], shares[-1]) == (0, 7)
    # Eight steps a batch of up to three answers: something is told after each step, not after all.
    assert 0 < min(share for share in shares if share) < 1
    assert len({*shares}) > 2 * 8
