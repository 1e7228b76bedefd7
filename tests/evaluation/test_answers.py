"""Runs: what they write, how they resume, and what they refuse."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.toy_runs import (
    EXECUTOR,
    LOADER,
    OPTIONS,
    config,
    make_run,
    rewrite,
    sorted_answers,
)

import wavefront
from wavefront import tasks
from wavefront.core.errors import OptionError, RunError, WavefrontError
from wavefront.evaluation import (
    LocalExecutor,
    Worker,
    fingerprint,
    generate_answers,
    grade,
    merge,
    open_run,
    runs_in,
)
from wavefront.evaluation import run as run_module
from wavefront.evaluation.batches import Shard
from wavefront.evaluation.worker import Prompt
from wavefront.storage import fingerprint as files
from wavefront.tasks.base import Ask
from wavefront.traces import trace_file


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs") / "whole").folder


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "copy"))


def test_run_has_every_item_once_with_its_settings(whole: Path) -> None:
    run = open_run(whole)
    samples = tasks.load("boolean_expressions").items(Ask(count=7, style="bare"))
    assert run.finished
    assert {line["id"]: line["prompt"] for line in run.answers.values()} == {
        sample.id: sample.prompt for sample in samples
    }
    for line in run.answers.values():
        assert len(line["tokens"]) <= 8
        assert line["forwards"] == 8
        assert line["prompt_hash"] == fingerprint.of_value([line["prompt"], ""])
    assert run.decides["options"]["strategy"] == "block(size=4)"
    assert run.decides["wavefront"] == wavefront.__version__
    assert run.environments[0]["torch"]
    assert not any("second" in name for line in run.answers.values() for name in line)


def test_answers_equal_those_of_generate(whole: Path) -> None:
    lm = EXECUTOR.worker.lm
    for line in open_run(whole).answers.values():
        assert line["text"] == lm.generate(line["prompt"], **OPTIONS).text


def test_finished_run_is_left_unchanged(copy: Path) -> None:
    before = {file.name: file.read_bytes() for file in copy.iterdir()}
    assert generate_answers(EXECUTOR, config(), copy) == (0, 7, 7)
    assert {file.name: file.read_bytes() for file in copy.iterdir()} == before


@pytest.mark.parametrize("kept", range(7))
@pytest.mark.parametrize("torn", [0, 20])
def test_run_cut_anywhere_resumes_to_the_same_bytes(
    copy: Path, whole: Path, kept: int, torn: int
) -> None:
    lines = (copy / "answers.jsonl").read_bytes().splitlines(keepends=True)
    (copy / "answers.jsonl").write_bytes(b"".join(lines[:kept]) + lines[kept][:torn])
    assert generate_answers(EXECUTOR, config(), copy) == (7 - kept, 7, 7)
    assert sorted_answers(copy) == sorted_answers(whole)


def test_run_that_died_before_its_header_starts_again(tmp_path: Path, whole: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "lock").touch()
    (tmp_path / "run" / ".header.json.77.part").write_text('{"form')
    assert sorted_answers(make_run(tmp_path / "run")) == sorted_answers(whole)


def test_answer_of_an_item_does_not_depend_on_the_others(whole: Path, tmp_path: Path) -> None:
    fewer = make_run(tmp_path / "fewer", ask=Ask(count=4, style="bare"))
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
def test_other_settings_are_refused_by_name(copy: Path, change: dict, words: str) -> None:
    before = sorted_answers(copy)
    with pytest.raises(RunError, match=words):
        generate_answers(EXECUTOR, config(**change), copy)
    assert sorted_answers(copy) == before


def test_another_model_is_refused(copy: Path, tmp_path: Path) -> None:
    half = replace(LOADER, dtype="bfloat16")
    with pytest.raises(RunError, match=r"model\.weights is .*; model\.dtype is 'bfloat16'"):
        generate_answers(LocalExecutor(Worker(half)), config(), copy)


def test_attention_of_the_loader_is_part_of_the_model() -> None:
    by_block = Worker(replace(LOADER, path="toy", attention="block", block_size=4))
    plain = Worker(replace(LOADER, path="toy"))
    assert by_block.lm.model.block_size == 4
    assert plain.lm.model.block_size is None
    options = {"max_new_tokens": 8}
    assert by_block.about(options).model["attention_block_size"] == 4
    assert by_block.about(options).model != plain.about(options).model
    assert "attention_block_size" not in plain.about(options).model


@pytest.mark.parametrize("padded", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.parametrize("whole_blocks", [pytest.param(False, marks=pytest.mark.slow), True])
def test_answers_of_a_block_causal_model_equal_those_of_generate(
    padded: bool, whole_blocks: bool, tmp_path: Path
) -> None:
    loader = replace(LOADER, path="toy", attention="block", block_size=32)
    executor = LocalExecutor(Worker(loader))
    lm = executor.worker.lm
    lm.model.padded_blocks, lm.model.whole_blocks = padded, whole_blocks
    options = {"max_new_tokens": 40, "strategy": "standard", "eos": "keep"}
    run = config(options=options, loader=loader, ask=Ask(count=5, style="bare"), raw=True)
    generate_answers(executor, run, tmp_path / "run")
    for line in open_run(tmp_path / "run").answers.values():
        assert line["tokens"] == lm.generate(line["prompt"], raw=True, **options).tokens


def test_block_causal_model_refuses_text_after_a_hole() -> None:
    worker = Worker(replace(LOADER, path="toy", attention="block", block_size=4))
    with pytest.raises(OptionError, match="does not see the text after a hole"):
        worker.lengths([Prompt("Once", suffix="end.")], raw=True)


def test_quantised_weights_are_another_model(copy: Path, tmp_path: Path) -> None:
    worker = Worker(replace(LOADER, quantize="int8"))
    with pytest.raises(RunError, match=r"model\.quantize is 'int8' here and None there"):
        generate_answers(LocalExecutor(worker), config(), copy)
    generate_answers(LocalExecutor(worker), config(), tmp_path / "int8")
    header = json.loads((tmp_path / "int8" / "header.json").read_text())
    assert header["decides"]["model"]["quantize"] == "int8"


def test_other_code_is_refused(copy: Path) -> None:
    header = json.loads((copy / "header.json").read_text())
    header["decides"]["code"] = "0" * 32
    (copy / "header.json").write_text(json.dumps(header))
    with pytest.raises(RunError, match=r"code is .* here and '0{32}' there"):
        generate_answers(EXECUTOR, config(), copy)


def test_another_machine_warns_and_is_recorded(copy: Path) -> None:
    rewrite(copy / "environment.jsonl", torch="1.0")
    (copy / "answers.jsonl").unlink()
    with pytest.warns(wavefront.WavefrontWarning, match=r"torch is .* here and '1\.0' there"):
        generate_answers(EXECUTOR, config(), copy)
    assert len(open_run(copy).environments) == 2


def test_machine_that_only_reads_a_finished_run_is_not_recorded(copy: Path) -> None:
    rewrite(copy / "environment.jsonl", torch="1.0")
    assert generate_answers(EXECUTOR, config(), copy).added == 0
    assert [one["torch"] for one in open_run(copy).environments] == ["1.0"]


def test_answers_of_another_run_are_refused(copy: Path) -> None:
    rewrite(copy / "answers.jsonl", key=lambda line: line["key"][::-1])
    with pytest.raises(RunError, match="contains 7 answers from another run"):
        generate_answers(EXECUTOR, config(), copy)


def test_directory_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(RunError, match=r"is not empty \(thesis.tex\) and is not a run directory"):
        make_run(tmp_path)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["lock", "thesis.tex"]
    with pytest.raises(RunError, match="is not a run"):
        open_run(tmp_path)


def test_directory_of_several_runs_is_refused(tmp_path: Path) -> None:
    (tmp_path / "gsm--block").mkdir()
    (tmp_path / "gsm--block" / run_module.HEADER).write_text("{}")
    with pytest.raises(RunError, match="holds several runs, such as gsm--block, and cannot be one"):
        run_module.is_new(tmp_path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not valid JSON"),
        ("[]", "is not the header of a run"),
        ('{"format": "wavefront-answers", "version": 9}', "version 9"),
        ('{"format": "wavefront-answers", "version": 1}', "has missing or invalid fields"),
        ('{"format": "wavefront-answers", "version": 1, "decides": {"ask": {"x": 1}}}', "invalid"),
    ],
)
def test_bad_header_raises_run_error(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "header.json").write_text(text)
    with pytest.raises(RunError, match=words):
        runs_in(tmp_path)


def test_too_long_prompt_is_recorded_and_the_others_are_answered(tmp_path: Path) -> None:
    lengths = sorted(
        EXECUTOR.lengths([Prompt.of(s) for s in tasks.load("navigate").items(Ask(count=5))], False)
    )
    new_tokens = 4096 - lengths[2]
    options = {"strategy": "standard", "max_new_tokens": new_tokens, "steps": 1}
    run = make_run(tmp_path / "run", task="navigate", ask=Ask(count=5), options=options, rows=1)
    long = [line for line in run.answers.values() if line.get("problem")]
    assert len(long) == 5 - sum(length <= lengths[2] for length in lengths) > 0
    assert long[0]["finish_reason"] == "too long"
    assert f"{new_tokens} new tokens" in long[0]["problem"]
    assert run.finished


def test_traces_are_stored_and_agree_with_the_answers(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", trace="basic", ask=Ask(count=2, style="bare"))
    lm = EXECUTOR.worker.lm
    for key, line in run.answers.items():
        trace = trace_file.load(run.folder / "traces" / f"{key}.npz")
        assert lm.text_of(trace) == line["text"]


@pytest.mark.parametrize("parts", [2, 3])
def test_merged_shards_equal_the_run_of_one_process(
    whole: Path, tmp_path: Path, parts: int
) -> None:
    folders = [tmp_path / str(n) for n in range(parts)]
    for n, folder in enumerate(folders):
        make_run(folder, shard=Shard(n, parts))
    joined = merge(folders[::-1], tmp_path / "joined")
    assert sorted_answers(joined) == sorted_answers(whole)
    assert joined.finished
    assert joined.decides == open_run(whole).decides
    assert generate_answers(EXECUTOR, config(), joined.folder) == (0, 7, 7)


def test_merge_needs_every_shard_of_one_run(whole: Path, tmp_path: Path) -> None:
    one, two = (make_run(tmp_path / str(n), shard=Shard(n, 2)).folder for n in range(2))
    for parts, words in (
        ([one], "exactly once, and got 0/2"),
        ([one, one], "got 0/2, 0/2"),
        ([one, two, two], "got 0/2, 1/2, 1/2"),
        ([one, whole], "got 0/1, 0/2"),
        ([], "nothing to merge"),
        ([one, tmp_path], "several runs"),
    ):
        with pytest.raises(WavefrontError, match=words):
            merge(parts, tmp_path / "out")
    other = make_run(tmp_path / "other", shard=Shard(1, 2), rows=2).folder
    with pytest.raises(RunError, match=r"batch\.rows"):
        merge([one, other], tmp_path / "out")
    (two / "answers.jsonl").write_bytes(b"")
    with pytest.raises(RunError, match=r"has 0 of . answers: finish it first"):
        merge([one, two], tmp_path / "out")
    with pytest.raises(RunError, match="is already a run"):
        merge([whole], one)


def test_unknown_tasks_and_tasks_without_items_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(OptionError, match=r"no task 'gsn' \(did you mean 'gsm'"):
        make_run(tmp_path / "run", task="gsn")
    kind = type(tasks.load("gsm"))
    monkeypatch.setattr(kind, "items", lambda self, ask: [])
    with pytest.raises(OptionError, match="gsm has no items"):
        make_run(tmp_path / "run", task="gsm")
    assert not (tmp_path / "run").exists()


def test_bad_configs_are_refused() -> None:
    with pytest.raises(OptionError, match="batch_size"):
        config(rows=0)
    with pytest.raises(OptionError, match="trace must be one of"):
        config(trace="much")


def test_different_files_have_different_fingerprints(tmp_path: Path) -> None:
    one, two = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    one.write_bytes(b"x" * 100)
    two.write_bytes(b"x" * 99 + b"y")
    first = fingerprint.of_files([one])
    assert first != fingerprint.of_files([two])
    one.write_bytes(two.read_bytes())
    assert first != fingerprint.of_files([one])


def test_large_file_is_read_again_only_after_it_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file = tmp_path / "w.safetensors"
    file.write_bytes(bytes(1 << 24))
    first = fingerprint.of_files([file])
    reads = []
    real = files.file_digest
    monkeypatch.setattr(files, "file_digest", lambda *a: reads.append(a) or real(*a))
    assert fingerprint.of_files([file]) == first
    assert reads == []
    file.write_bytes(bytes((1 << 24) - 1) + b"x")
    assert fingerprint.of_files([file]) != first
    assert len(reads) == 1


def test_user_strategy_has_a_fingerprint_of_its_source() -> None:
    from examples.new_strategy import OutsideIn

    assert fingerprint.of_strategy(OutsideIn()) is not None
    assert fingerprint.of_strategy(wavefront.core.spec.resolve("block", "strategies")) is None


def test_task_can_have_options(tmp_path: Path) -> None:
    spec = "tracking_shuffled_objects(objects=3)"
    run = make_run(tmp_path / "run", task=spec, ask=Ask(count=2))
    assert run.task_spec == spec
    plain = make_run(
        tmp_path / "plain", task="tracking_shuffled_objects_three_objects", ask=Ask(count=2)
    )
    assert {*run.answers} == {*plain.answers}
    assert grade(open_run(run.folder))["n-samples"][run.task]["effective"] == 2


@pytest.mark.parametrize(
    "text", ["gsm(", "gsm(1)", "gsm(x=f())", "gsm(**{})", "gsm(allow_unsandboxed=True)", "(a=1)"]
)
def test_task_spec_is_parsed_and_never_evaluated(tmp_path: Path, text: str) -> None:
    with pytest.raises(OptionError, match=r"A task is written|cannot allow unsandboxed|no task"):
        make_run(tmp_path / "run", task=text)


def test_hole_is_filled_with_its_suffix_attended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = tasks.load("boolean_expressions")
    samples = [
        replace(sample, extra={"suffix": f"and so on {n}" * n})
        for n, sample in enumerate(task.items(Ask(count=5, style="bare")))
    ]
    monkeypatch.setattr(type(task), "items", lambda self, ask: samples)
    run = make_run(tmp_path / "run")
    lm = EXECUTOR.worker.lm
    assert len({line["prompt_hash"] for line in run.answers.values()}) == 5
    for line in run.answers.values():
        after = f" {line['suffix']}" if "suffix" in line else ""
        options = {name: v for name, v in OPTIONS.items() if name != "max_new_tokens"}
        whole = lm.infill(f"{line['prompt']}<mask:8>{after}", **options)
        assert whole.tokens == line["tokens"]
    alone = make_run(tmp_path / "alone", options=OPTIONS, rows=1)
    assert {tuple(line["tokens"]) for line in alone.answers.values()} == {
        tuple(line["tokens"]) for line in run.answers.values()
    }


def test_progress_is_reported_within_a_batch(tmp_path: Path) -> None:
    heard: list[tuple[float, int]] = []
    generate_answers(
        EXECUTOR, config(), tmp_path, progress=lambda done, total: heard.append((done, total))
    )
    shares = [done for done, _ in heard]
    assert {total for _, total in heard} == {7}
    assert shares == sorted(shares)
    assert (shares[0], shares[-1]) == (0, 7)
    # A batch takes eight steps, and each step reports progress.
    assert 0 < min(share for share in shares if share) < 1
    assert len({*shares}) > 2 * 8


def test_batch_has_one_row_per_item(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = EXECUTOR.worker.lm.model
    shapes: list[tuple[int, ...]] = []
    hidden = model.hidden

    def count(tokens, *rest, **more):
        shapes.append(tuple(tokens.shape))
        return hidden(tokens, *rest, **more)

    monkeypatch.setattr(model, "hidden", count)
    run = make_run(tmp_path / "run", ask=Ask(count=2, style="bare"), rows=8)
    assert len(run.answers) == 2
    assert {rows for rows, _ in shapes} <= {1, 2}  # two widths at most, never eight rows
    assert max(rows for rows, _ in shapes) * len({width for _, width in shapes}) == 2


def test_forwards_of_an_answer_are_its_own(tmp_path: Path) -> None:
    ask = Ask(count=4, style="bare")
    kept = make_run(tmp_path / "kept", ask=ask, options={**OPTIONS, "eos": "keep"}, rows=4)
    stop = next(line["tokens"][2] for line in kept.answers.values() if len(line["tokens"]) > 2)
    options = {**OPTIONS, "strategy": "left_to_right", "eos": "stop", "stop_ids": [stop]}
    together = make_run(tmp_path / "together", ask=ask, options=options, rows=4)
    alone = make_run(tmp_path / "alone", ask=ask, options=options, rows=1)
    counts = {line["id"]: line["forwards"] for line in together.answers.values()}
    assert counts == {line["id"]: line["forwards"] for line in alone.answers.values()}
    assert len({*counts.values()}) > 1
    assert sum(line["forwards"] for line in together.timings) < sum(counts.values())


@pytest.mark.parametrize(
    ("task", "how", "pattern"),
    [
        ("navigate", "final", r"(?s:.*)#### (Yes|No)"),
        ("navigate", "choice", r"#### (Yes|No)"),
        ("logical_deduction", "choice", r"#### \([A-G]\)"),
        ("object_counting", "final", r"(?s:.*)#### -?[0-9]+(\.[0-9]+)?"),
    ],
)
def test_constrained_answers_have_a_legal_final_answer(
    tmp_path: Path, task: str, how: str, pattern: str
) -> None:
    setup = replace(
        config(), task=task, constrain=how, ask=Ask(count=4, style="bare"), rows=2,
        options={**OPTIONS, "max_new_tokens": 16, "steps": 4},
    )  # fmt: skip
    generate_answers(EXECUTOR, setup, tmp_path / "run")
    made = open_run(tmp_path / "run")
    assert made.decides["constrain"] == how
    samples = {sample.id: sample for sample in tasks.load(task).items(setup.ask)}
    for line in made.answers.values():
        assert re.fullmatch(pattern, line["text"])
        if task == "logical_deduction":  # only the letters of its own question
            assert f"\n{line['text'].removeprefix('#### ')} " in samples[line["id"]].prompt
    grade(made)
    assert all(one["how"] == "strict" for one in open_run(made.folder).grades.values())
    with pytest.raises(RunError, match="constrain"):
        generate_answers(EXECUTOR, replace(setup, constrain=""), tmp_path / "run")


def test_tasks_without_listed_answers_refuse_the_constraint(tmp_path: Path) -> None:
    for task, how, words in (
        ("object_counting", "choice", "does not list its possible answers"),
        ("code", "final", "has no final answer"),
    ):
        with pytest.raises(OptionError, match=words):
            generate_answers(EXECUTOR, replace(config(), task=task, constrain=how), tmp_path / task)
    with pytest.raises(OptionError, match="constrain"):
        replace(config(), constrain="everything")
