"""The lm-eval model: requests, arguments, chat templates, and the response cache."""

from __future__ import annotations

import importlib
import json
import os
import sqlite3
import subprocess
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.commands import refused, run, save_talker
from lm_eval import evaluator
from lm_eval.api.instance import Instance
from lm_eval.api.model import CachingLM
from lm_eval.api.registry import get_model
from lm_eval.tasks._yaml_loader import _import_func_in_yml

from wavefront import tasks
from wavefront.core.errors import MissingExtraError, OptionError, PromptError, WavefrontWarning
from wavefront.evaluation.fingerprint import of_weights
from wavefront.integrations.lm_eval import arguments, command, grading, likelihood, task_files
from wavefront.integrations.lm_eval.adapter import WavefrontLM
from wavefront.models.toy import toy
from wavefront.tasks.base import Ask

FEW = {"max_gen_toks": 8}
SHORT = {"pretrained": "toy", "max_new_tokens": 8, "mc_num": 4, "mc_batch": 2}


def build(**given: Any) -> WavefrontLM:
    return WavefrontLM(**(SHORT | given))


@pytest.fixture(scope="module")
def model() -> WavefrontLM:
    return build()


@pytest.fixture(scope="module")
def talker(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_talker(tmp_path_factory.mktemp("talker"))


def request(kind: str, *args: Any) -> Instance:
    return Instance(request_type=kind, doc={}, arguments=args, idx=0)  # pyright: ignore[reportArgumentType]


def requests_for(*contexts: str, **wanted: Any) -> list[Instance]:
    return [request("generate_until", context, FEW | wanted) for context in contexts]


def generate(model: Any, *contexts: str, **wanted: Any) -> list[str]:
    return model.generate_until(requests_for(*contexts, **wanted))


# Arguments


def test_options_of_the_model_are_not_decoding_options():
    given = {"mask_id": 5, "attention": "block", "block_size": 32, "block_length": 8}
    found = arguments.parse_arguments(given)
    assert found.load_options == {"mask_id": 5, "attention": "block", "block_size": 32}
    assert found.options == {"block_length": 8}


def test_specs_keep_their_commas():
    text = "pretrained=toy,strategy=wavefront(size=8, radius=2),steps=4,eps=1e-3,offline=true"
    assert arguments.parse(text) == {
        "pretrained": "toy",
        "strategy": "wavefront(size=8, radius=2)",
        "steps": 4,
        "eps": 1e-3,
        "offline": True,
    }
    nested = 'strategy=block(size=4, selector=threshold(tau=0.9)),stop_ids=[1,2],x="a,b",y=none'
    assert arguments.parse(nested) == {
        "strategy": "block(size=4, selector=threshold(tau=0.9))",
        "stop_ids": [1, 2],
        "x": "a,b",
        "y": None,
    }
    assert arguments.parse('{"strategy": "block(size=4)", "steps": 2}')["steps"] == 2
    assert arguments.parse("") == {}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("pretrained", "must be written name=value"),
        ("=toy", "must be written name=value"),
        ("steps=1,steps=2", "contain 'steps' twice"),
        ("strategy=block(size=4", "unmatched bracket or quote"),
        ("strategy=block(size=4))", "unmatched bracket or quote"),
        ('{"steps": ', "not valid JSON"),
        ("pretrained=toy,stepps=4", r"no model argument 'stepps' \(did you mean 'steps'\?\)"),
        ("pretrained=toy,model=toy", "pretrained and model mean the same"),
        ("pretrained=toy,strategy=blok", "did you mean 'block'"),
        ("pretrained=toy,steps=0", "steps must be between 1"),
        ("pretrained=toy,temperature=-1", "temperature must be between 0"),
        ("pretrained=toy,likelihood=lada", "did you mean 'llada'"),
        ("pretrained=toy,mc_num=10,mc_batch=4", "must be a multiple"),
        ("pretrained=toy,batch_size=0", "batch_size must be at least 1"),
        ("pretrained=toy,batch_size=many", "batch_size must be a whole number"),
        ("pretrained=toy,is_check_greedy=perhaps", "is_check_greedy must be True or False"),
        ("pretrained=toy,add_bos_token=true", "has no begin-of-sequence token"),
        ("pretrained=toy,device=gpu", "Device 'gpu' is unknown"),
        ("pretrained=toy,dtype=float", "no dtype 'float'"),
        ("pretrained=toy,max_new_tokens=64,steps=2,strategy=block(size=8)", "fewer than the 8"),
    ],
)
def test_bad_arguments_raise_a_one_line_error(text, says):
    with pytest.raises((OptionError, PromptError), match=says) as found:
        WavefrontLM.create_from_arg_string(text)
    assert "\n" not in str(found.value)


def test_model_args_override_flags_of_lm_eval():
    given = {"batch_size": "auto:4", "max_batch_size": None, "device": "cuda:0"}
    built = WavefrontLM.create_from_arg_string("pretrained=toy,strategy=block(size=4)", given)
    assert built.batch_size == arguments.AUTO_BATCH
    assert built.model.device.type in ("cpu", "cuda", "mps")
    assert repr(built.plan.config.strategy).startswith("block(size=4")
    both = WavefrontLM.create_from_arg_obj({"pretrained": "toy", "batch_size": 3}, given)
    assert both.batch_size == 3
    by_task = WavefrontLM.create_from_arg_string("pretrained=toy,steps=2,strategy=block(size=8)")
    with pytest.raises(OptionError, match="fewer than the 4 blocks"):
        by_task.generate_until(requests_for("Hello", max_gen_toks=32))


def test_model_is_registered_under_its_name():
    command.register()
    command.register()
    assert get_model("wavefront") is WavefrontLM
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    target = project["entry-points"]["lm_eval.models"]["wavefront"]
    assert EntryPoint("wavefront", target, "lm_eval.models").load() is WavefrontLM
    assert target == command.TARGET
    assert command.complete(["--tasks", "x"]) == ["run", "--tasks", "x", "--model", "wavefront"]
    assert command.complete(["ls", "tasks"]) == ["ls", "tasks"]
    for given in (["--model=hf"], ["-M", "hf"], ["run", "--help"], ["--config", "a.yaml"]):
        assert "wavefront" not in command.complete(given)


def test_missing_lm_eval_error_names_the_extra(monkeypatch):
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install -e '.*\[lm-eval\]'"):
        command.run(["--tasks", "x"])


def test_model_arguments_are_checked_before_lm_eval_starts():
    ours = ["run", "--model", "wavefront"]
    for words in (["--model_args", "steps=4", "stepps=4"], ["-a", "steps=4,stepps=4"],
                  ["--model_args=stepps=4"], ["--model_args", '{"stepps": 4}']):  # fmt: skip
        with pytest.raises(OptionError, match="no model argument 'stepps'"):
            command.check([*ours, *words])
        command.check(["run", "--model", "hf", *words])
    command.check([*ours, "--model_args", "strategy=wavefront(size=8, radius=2)", "steps=4"])
    command.check([*ours, "--tasks", "a=b"])


# Generation


def test_answers_equal_those_of_generate(model):
    prompts = ["Hello there", "Hi", "A rather longer prompt"]
    alone = [model.lm.generate(one, raw=True, max_new_tokens=8).text for one in prompts]
    assert generate(model, *prompts) == alone
    assert generate(build(batch_size=3), *prompts) == alone
    assert len(set(alone)) == 3


def test_strategies_reach_the_decoder(model):
    block = build(strategy="block(size=2)", steps=4)
    options = {"strategy": "block(size=2)", "steps": 4, "max_new_tokens": 8}
    expected = block.lm.generate("Hello there", raw=True, **options).text
    assert generate(block, "Hello there") == [expected]
    assert generate(model, "Hello there") != [expected]
    assert generate(model, "Hello there", strategy="block(size=2)", steps=4) == [expected]


def test_text_ends_before_the_first_stop_string(model):
    (whole,) = generate(model, "Hello there")
    assert generate(model, "Hello there", until=[whole[4:6]]) == [whole[: whole.find(whole[4:6])]]
    assert generate(model, "Hello there", until=whole[5]) == [whole[: whole.find(whole[5])]]
    assert generate(model, "Hello there", until=["", "never there"]) == [whole]


def test_answer_length_comes_from_model_args_or_the_task():
    tasks_say = build(max_new_tokens=None)
    assert tasks_say._options(FEW)[0]["max_new_tokens"] == 8
    expected = tasks_say.lm.generate("Hi", raw=True, max_new_tokens=5).text
    assert generate(tasks_say, "Hi", max_gen_toks=5) == [expected]
    assert build(gen_length=4, max_new_tokens=None)._options(FEW)[0]["max_new_tokens"] == 4
    assert tasks_say._options({})[0]["max_new_tokens"] == 256
    with pytest.raises(OptionError, match="leave no room for a prompt"):
        build(max_new_tokens=4096).generate_until(requests_for("Hi"))


def test_samples_of_one_prompt_differ_and_can_be_repeated():
    warm = build(temperature=1.0)
    drawn = generate(warm, "Hello", "Hello", "Hello")
    assert len(set(drawn)) == 3
    assert generate(warm, "Hello", "Hello", "Hello") == drawn
    assert generate(build(temperature=1.0, seed=7), "Hello") != drawn[:1]


def test_task_sampling_needs_do_sample(model):
    greedy = generate(model, "Hello")
    assert generate(model, "Hello", temperature=1.0, top_p=0.9) == greedy  # without do_sample
    assert generate(model, "Hello", do_sample=True, temperature=1.0) != greedy
    assert generate(build(temperature=0.0), "Hello", do_sample=True, temperature=1.0) == greedy
    assert generate(model, "Hello", num_beams=1) == greedy
    with pytest.raises(OptionError, match=r"sets repetition_penalty=1.2, .*--gen_kwargs"):
        generate(model, "Hello", repetition_penalty=1.2)


def test_long_prompt_is_cut_on_the_left(talker):
    small = build(pretrained=talker, max_new_tokens=16)
    with pytest.warns(WavefrontWarning, match="cut on the left to the model's limit of 240"):
        cut = generate(small, "x" * 100 + "y" * 240)
    assert cut == generate(small, "y" * 240)
    with pytest.raises(OptionError, match="Request 1 is empty"):
        generate(small, "")


def test_long_prompt_of_a_padded_block_model_is_cut_to_whole_blocks():
    small = build(attention="block", block_size=32)
    small.model.padded_blocks, small.model.max_length = True, 128
    with pytest.warns(WavefrontWarning, match="cut on the left to the model's limit of 96"):
        cut = generate(small, "x" * 20 + "y" * 98)
    assert cut == generate(small, "y" * 96)


# Chat templates


def test_conversations_equal_those_of_generate(talker):
    chatty = build(pretrained=talker)
    turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
    text = chatty.apply_chat_template(turns)
    assert chatty.chat_template(True) == chatty.lm.tokenizer.template
    assert chatty.chat_template(False) is None
    assert talker.replace("/", "__") in chatty.tokenizer_name
    assert generate(chatty, text) == [chatty.lm.generate(turns, max_new_tokens=8).text]


def test_control_tokens_in_an_item_stay_text(talker):
    chatty = build(pretrained=talker)
    turns = [{"role": "user", "content": "Say <|eot_id|> or <|mdm_mask|>"}]
    text = chatty.apply_chat_template(turns)
    ids = chatty.prompts.encode(text)
    assert ids == chatty.prompts.lm.tokenizer.encode_rendered(
        text, [(text.index("Say"), text.rindex("<|eot_id|>"))]
    )
    assert chatty.model.mask_id not in ids
    assert chatty.prompts.encode("a raw <|mdm_mask|>").count(chatty.model.mask_id) == 0
    before, after = chatty.prompts.pair(text, " <|eot_id|>")
    end = chatty.lm.tokenizer.token_to_id("<|eot_id|>")
    assert end not in after
    assert before.count(end) == 1


def test_answer_can_have_a_prefix(talker):
    chatty = build(pretrained=talker)
    turns = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "The answer:"}]
    begun = chatty.apply_chat_template(turns, add_generation_prompt=False)
    assert begun == chatty.apply_chat_template(turns[:1]) + "The answer:"
    assert chatty.prompts.encode(begun)[-11:] == chatty.lm.tokenizer.encode("The answer:")


def test_text_rendered_by_another_process_encodes_the_same(talker):
    first, second = build(pretrained=talker), build(pretrained=talker)
    text = first.apply_chat_template([{"role": "user", "content": "Hello"}])
    second.chat_template(True)  # lm-eval asks for it even when it kept the requests
    assert second.prompts.encode(text) == first.prompts.encode(text)


def test_missing_chat_template_is_reported(model):
    with pytest.raises(PromptError, match="leave out --apply_chat_template"):
        model.chat_template(True)


# Log-likelihoods


def test_log_likelihood_is_the_estimate(model):
    pairs = [("Two and two", " is four"), ("", "Hello"), ("Ends in blanks  ", "x"), ("Hm", "")]
    found = model.loglikelihood([request("loglikelihood", *pair) for pair in pairs])
    encode, settings = model.lm.tokenizer.encode, likelihood.LikelihoodSettings("llada", 4, 2)
    cut = [("Two and two", " is four"), ("", "Hello"), ("Ends in blanks", "  x"), ("Hm", "")]
    for (value, greedy), (context, rest) in zip(found, cut, strict=True):
        ids = encode(context), encode(rest)
        assert value == likelihood.log_likelihood(model.model, *ids, settings=settings)
        assert greedy is likelihood.is_greedy(model.model, *ids)
    assert found[3] == (0.0, True)
    value, greedy = model.loglikelihood([request("loglikelihood", "", "x")])[0]
    assert value < 0
    assert not greedy


def test_greedy_check_can_be_turned_off(model):
    pairs = []
    for prompt in "abcdefghijklmnopqrstuvwxyz":
        written = model.lm.generate(prompt, raw=True, strategy="standard", max_new_tokens=1)
        if model.lm.tokenizer.encode(written.text) == written.tokens:  # no part of a character
            pairs.append(request("loglikelihood", prompt, written.text))
    found = model.loglikelihood(pairs)
    assert found
    assert all(greedy for _, greedy in found)
    unchecked = build(is_check_greedy=False).loglikelihood(pairs)
    assert unchecked == [(value, False) for value, _ in found]


def test_each_family_has_its_own_rule(model):
    assert model.likelihood.rule == "llada"
    assert model.arguments.likelihood_settings("dream").rule == "dream"
    assert build(likelihood="left_to_right").likelihood.rule == "left_to_right"
    assert build(cfg_scale=0.5, seed=3).likelihood[3:] == (0.5, 3)


@pytest.mark.parametrize("rule", ["llada", "dream"])
def test_rolling_counts_every_token_once(talker, rule):
    small = build(pretrained=talker, likelihood=rule)
    text = "abcdefghij" * 60  # 600 tokens, and the model takes 256
    (value,) = small.loglikelihood_rolling([request("loglikelihood_rolling", text)])
    ids, bos = small.lm.tokenizer.encode(text), small.lm.tokenizer.bos_id
    room, expected = 256 - (1 if rule == "llada" else 2), 0.0
    for start in range(0, 600, room):
        end = min(start + room, 600)
        before = ids[end - room - 1 : start] if start else [bos]
        window = (before, ids[start:end])
        expected += likelihood.log_likelihood(small.model, *window, settings=small.likelihood)
    assert value == pytest.approx(expected)


# The cache


def cached(model: WavefrontLM, path: Any) -> Any:
    return CachingLM(model, str(path / "cache.db"))


def never(*_: Any) -> Any:
    raise AssertionError("decoded again")


def test_cache_serves_the_same_settings(tmp_path, monkeypatch):
    first = generate(cached(build(), tmp_path), "Hello", "Hi")
    again = cached(build(), tmp_path)
    monkeypatch.setattr(WavefrontLM, "_decode", never)
    assert generate(again, "Hello", "Hi") == first


@pytest.mark.parametrize(
    "change",
    [
        {"strategy": "block(size=2)"},
        {"strategy": "wavefront(size=2, radius=1)"},
        {"steps": 4},
        {"max_new_tokens": 4},
        {"seed": 1, "temperature": 1.0},
        {"dtype": "float64"},
        {"eos": "keep"},
    ],
)
def test_cache_does_not_serve_other_settings(tmp_path, change):
    prompts = ("Hello there", "Hi", "A rather longer prompt")
    generate(cached(build(), tmp_path), *prompts)
    found = generate(cached(build(**change), tmp_path), *prompts)
    assert found == generate(build(**change), *prompts)
    tables = sqlite3.connect(tmp_path / "cache.db").execute("select name from sqlite_master")
    assert len([name for (name,) in tables if name.startswith("wavefront ")]) == 2


def test_other_weights_have_another_fingerprint():
    def weights(model: Any) -> str:
        return of_weights(SimpleNamespace(model=model))  # pyright: ignore[reportArgumentType]

    assert weights(toy(0)) == weights(toy(0)) != weights(toy(1))
    one = toy(0)
    before = weights(one)
    name, part = next(iter(one.named_parameters()))
    part.data.view(-1)[:2] = part.data.view(-1)[:2].flip(0)  # the same numbers in another order
    assert weights(one) != before, name


def test_cache_separates_likelihood_settings(tmp_path):
    requests = [request("loglikelihood", "Two", " and two"), request("loglikelihood", "A", "b")]
    first = cached(build(), tmp_path).loglikelihood(requests)
    assert cached(build(mc_num=8), tmp_path).loglikelihood(requests) != first
    assert cached(build(), tmp_path).loglikelihood(requests) == first
    rolling = [request("loglikelihood_rolling", "A whole text")]
    value = cached(build(), tmp_path).loglikelihood_rolling(rolling)
    assert cached(build(mc_num=8), tmp_path).loglikelihood_rolling(rolling) != value


def test_answers_before_a_crash_are_kept(tmp_path, monkeypatch):
    usual, batches = WavefrontLM._decode, []

    def breaks(self: WavefrontLM, batch: Any) -> list[str]:
        batches.append([job.args[0] for job in batch])
        if len(batches) == 3:
            raise KeyboardInterrupt
        return usual(self, batch)

    monkeypatch.setattr(WavefrontLM, "_decode", breaks)
    prompts = ("one", "three", "seventeen", "two")
    with pytest.raises(KeyboardInterrupt):
        generate(cached(build(), tmp_path), *prompts)
    assert batches == [["seventeen"], ["three"], ["one"]]  # the longest first
    assert generate(cached(build(), tmp_path), *prompts) == generate(build(), *prompts)
    assert batches[3:5] == [["one"], ["two"]]


def test_unknown_cache_format_is_refused(model):
    class Hook:
        dbdict = {}  # noqa: RUF012

    with pytest.raises(OptionError, match="leave out --use_cache"):
        model.set_cache_hook(Hook())


# Task files


def test_task_yaml_names_only_public_paths(tmp_path):
    (written,) = task_files.write(["gsm"], tmp_path, ask=Ask(count=1))
    (line,) = [x for x in written.yaml.read_text().splitlines() if "!function" in x]
    assert line == "process_results: !function wavefront.integrations.lm_eval.process_results"
    assert line.count("wavefront") == 1
    module, _, name = line.split()[-1].rpartition(".")
    public = importlib.import_module(module)
    assert name in public.__all__
    assert getattr(public, name) is grading.process_results
    assert _import_func_in_yml(f"{module}.{name}", tmp_path) is grading.process_results


def test_task_files_hold_our_items_and_grade_them(tmp_path):
    names = ["gsm", "navigate", "word_sorting", "code"]
    written = task_files.write(names, tmp_path, ask=Ask(count=3), length=64)
    assert [one.name for one in written] == [f"wavefront_{name}" for name in names]
    for name, one in zip(names, written, strict=True):
        items = tasks.load(name).items(Ask(count=3))
        data = (tmp_path / "data" / f"{name}.jsonl").read_text().splitlines()
        lines = [json.loads(line) for line in data]
        assert [line["prompt"] for line in lines] == [item.prompt for item in items]
        assert [grading.sample(line) for line in lines] == items
        text = one.yaml.read_text()
        assert str(tmp_path / "data" / f"{name}.jsonl") in text
        assert '"max_gen_toks": 64' in text
        assert "unsafe_code" not in text
        if name == "code":
            continue
        for line in lines:
            right = grading.process_results(line, [line["answer"]])
            assert right == {"correct": 1.0, "strict": 1.0, "flexible": 1.0}
            wrong = grading.process_results(line, ["#### none of these"])
            assert wrong["correct"] == wrong["strict"] == 0.0
            assert grading.process_results(line, [[line["answer"], "no"]])["correct"] == 1.0
            assert grading.process_results(line, [""])["correct"] == 0.0


def test_task_file_of_another_grader_is_refused(tmp_path):
    (written,) = task_files.write(["gsm"], tmp_path, ask=Ask(count=1))
    (text,) = (tmp_path / "data" / "gsm.jsonl").read_text().splitlines()
    line = json.loads(text)
    assert f'"grader": "{line["grader"]}"' in written.yaml.read_text()
    for other in ({**line, "grader": "0" * 32}, {n: v for n, v in line.items() if n != "grader"}):
        with pytest.raises(OptionError, match="`wavefront lm-eval tasks`"):
            grading.process_results(other, [line["answer"]])


@pytest.mark.slow
@pytest.mark.skipif("WAVEFRONT_DATA" not in os.environ, reason="WAVEFRONT_DATA is not set")
def test_reference_answers_of_the_benchmarks_are_right(tmp_path):
    """The references are right, including code in the sandbox; empty answers are wrong."""
    names = task_files.benchmarks()
    if not names:
        return
    assert {name.split("_")[0] for name in names} >= set(task_files.BENCHMARKS)
    for one in task_files.write(names, tmp_path, ask=Ask(count=2)):
        data = tmp_path / "data" / f"{one.name.removeprefix('wavefront_')}.jsonl"
        for line in map(json.loads, data.read_text().splitlines()):
            answer = line["answer"] or f"#### {line['target']}"
            assert grading.process_results(line, [answer])["correct"] == 1.0, line["id"]
            assert grading.process_results(line, [""])["correct"] == 0.0, line["id"]
    assert (tmp_path / "wavefront_bbh.yaml").read_text().count("wavefront_bbh_") == 27


def test_unsandboxed_code_needs_lm_evals_confirmation_too(tmp_path):
    given = {"ask": Ask(count=1), "allow_unsandboxed": True}
    code, plain = task_files.write(["code", "gsm"], tmp_path, **given)
    assert "unsafe_code: true" in code.yaml.read_text()
    assert "unsafe_code" not in plain.yaml.read_text()
    line = json.loads((tmp_path / "data" / "code.jsonl").read_text().splitlines()[0])
    assert json.loads(line["options"]) == {"allow_unsandboxed": True}


def test_task_file_cannot_switch_the_sandbox_off(monkeypatch):
    def is_unsandboxed(options: str = '{"allow_unsandboxed": true}') -> bool:
        return getattr(grading._task("code", options)[0], "allow_unsandboxed")  # noqa: B009

    monkeypatch.setattr(grading, "TRUSTED", set())
    grading._task.cache_clear()
    assert not is_unsandboxed()
    grading.trust([])
    assert not is_unsandboxed()
    grading.trust([], allow_unsandboxed=True)
    assert is_unsandboxed()
    assert not is_unsandboxed("{}")
    grading._task.cache_clear()


def test_lm_eval_outside_a_repository_prints_no_error_of_git(tmp_path, monkeypatch, capfd):
    found = []
    original = evaluator.get_git_commit_hash
    monkeypatch.setattr(
        "lm_eval.__main__.cli_evaluate", lambda: found.append(evaluator.get_git_commit_hash())
    )
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.delenv("GIT_DIR", raising=False)  # set while a hook of git runs the tests
    monkeypatch.chdir(tmp_path)
    command.run(["--tasks", "x"])
    assert (found.pop(), capfd.readouterr().err) == (None, "")

    author = ["-c", "user.name=A", "-c", "user.email=a@b.c"]
    for words in (["init", "-q"], [*author, "commit", "-q", "--allow-empty", "-m", "First"]):
        subprocess.run(["git", *words], check=True)
    done = subprocess.run(["git", "describe", "--always"], capture_output=True, text=True)
    command.run(["--tasks", "x"])
    assert (found.pop(), capfd.readouterr().err) == (done.stdout.strip(), "")

    (tmp_path / ".git" / "config").write_text("[")  # another error is still shown
    command.run(["--tasks", "x"])
    assert "fatal: bad config" in capfd.readouterr().err
    assert evaluator.get_git_commit_hash is original


def test_commands_report_mistakes(tmp_path):
    out = ("--out", str(tmp_path))
    assert "no task 'gms'" in refused("lm-eval", "tasks", "gms", *out)
    assert "style must be one of" in refused("lm-eval", "tasks", "gsm", "--style", "loud", *out)
    assert "items must be" in refused("lm-eval", "tasks", "gsm", "--items", "0", *out)
    help_page = run("lm-eval", "run", code=2).stdout
    assert "--model_args" in help_page
    written = run("lm-eval", "tasks", "gsm", "--items", "2", *out).stdout
    assert written.split("\t")[:2] == ["wavefront_gsm", "2 items"]


@pytest.mark.parametrize("option", ["strategy", "cache"])
def test_task_file_never_imports_a_module(model: Any, planted_module: Any, option: str) -> None:
    with pytest.raises(OptionError, match=r"model_args"):
        generate(model, "Hello", **{option: "planted.Mine()"})
    assert not planted_module()
