"""The commands generate, infill, chat and list, inside the test process."""

from __future__ import annotations

import dataclasses
import json
import re
from importlib import metadata
from pathlib import Path

import pytest
from helpers.commands import records, run, save_talker
from rich.console import Console

import wavefront
from wavefront import tasks
from wavefront.core import spec
from wavefront.core.bounds import DEFAULT_STRATEGY
from wavefront.models import builtin
from wavefront.viewer.cells import Board

SHAPED = "wavefront(size={}, radius=3, grow='rebuild')"


@pytest.fixture(autouse=True)
def _examples_are_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[2])


@pytest.fixture(scope="module")
def lm() -> wavefront.LM:
    return wavefront.load("toy")


@pytest.fixture(scope="module")
def talker(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_talker(tmp_path_factory.mktemp("talker"))


# Generating.


def test_generate_prints_only_the_answer(lm: wavefront.LM) -> None:
    result = run("generate", "Hi", "-n", "12")
    assert result.stdout == lm.generate("Hi", max_new_tokens=12).text + "\n"
    assert result.stderr == ""


@pytest.mark.parametrize("source", ["argument", "pipe", "dash", "file", "file dash"])
def test_prompt_is_read_from_every_source(source: str, tmp_path: Path, lm: wavefront.LM) -> None:
    file = tmp_path / "prompt.txt"
    file.write_text("Why?\n")
    args = {
        "argument": ["Why?"],
        "pipe": [],
        "dash": ["-"],
        "file": ["--file", str(file)],
        "file dash": ["-f", "-"],
    }[source]
    piped = "Why?\n" if source in ("pipe", "dash", "file dash") else None
    result = run("generate", *args, "-n", "6", "--json", input=piped)
    (made,) = records(result)
    assert made["prompt"] == "Why?"
    assert made["text"] == lm.generate("Why?", max_new_tokens=6).text


def test_only_the_last_line_break_is_removed() -> None:
    (made,) = records(run("generate", "-n", "2", "--json", input="\n a\r\nb\n\r\n"))
    assert made["prompt"] == "\n a\r\nb\n"


def test_json_record_repeats_the_answer(lm: wavefront.LM) -> None:
    args = ["-s", "block(size=4)", "-t", "9", "--temperature", "0.8", "--seed", "7"]
    args += ["--priority", "margin", "--top-k", "50", "--top-p", "0.9", "--order-noise", "0.1"]
    args += ["--cfg-scale", "0.5", "--stop-id", "3", "--stop-id", "5", "--eos", "keep"]
    args += ["--sampling", "dream", "--fixed-budget"]
    (made,) = records(run("generate", "Hi", "--raw", "-n", "16", "--json", *args))
    again = lm.generate(made["prompt"], raw=made["raw"], **made["settings"])
    assert (again.text, again.tokens) == (made["text"], made["tokens"])
    assert again.forwards == made["forwards"]
    assert made["settings"]["strategy"] == made["strategy"] == "block(size=4)"
    assert made["settings"]["stop_ids"] == [3, 5]
    assert made["model"] == "toy"
    assert made["version"] == wavefront.__version__
    assert made["finish_reason"] in ("stop", "length")
    assert made["prompt_tokens"] == 2
    assert made["seconds"] > 0
    assert (made["device"], made["dtype"]) == ("cpu", "float32")


def test_json_record_has_logprobs_on_request(lm: wavefront.LM) -> None:
    (made,) = records(run("generate", "Hi", "-n", "6", "--json", "--logprobs", "2"))
    want = lm.generate("Hi", max_new_tokens=6, logprobs=2)
    assert want.logprobs is not None
    assert [one["id"] for one in made["logprobs"]] == want.tokens
    assert [one["logprob"] for one in made["logprobs"]] == [one.logprob for one in want.logprobs]
    assert [len(one["top"]) for one in made["logprobs"]] == [2] * len(want.tokens)
    assert "logprobs" not in records(run("generate", "Hi", "-n", "6", "--json"))[0]
    assert "logprobs needs --json" in run("generate", "Hi", "--logprobs", "2", code=1).stderr
    many = run("generate", "Hi", "--json", "--logprobs", "21", code=1)
    assert "between 0 and 20" in many.stderr


def test_logit_bias_is_read_from_one_value(lm: wavefront.LM) -> None:
    (made,) = records(run("generate", "Hi", "-n", "6", "--json", "--logit-bias", "70=50,71=-100"))
    assert made["settings"]["logit_bias"] == {"70": 50.0, "71": -100.0}
    assert made["text"] == lm.generate("Hi", max_new_tokens=6, logit_bias={70: 50, 71: -100}).text
    wrong = run("generate", "Hi", "--logit-bias", "70:5", code=1)
    assert "--logit-bias must be written as 11=5,12=-100" in wrong.stderr


def test_published_names_are_aliases() -> None:
    args = ["--gen-length", "16", "--block-length", "4", "--steps", "8"]
    (made,) = records(run("generate", "Hi", "--json", *args, "--remasking", "random"))
    settings = made["settings"]
    assert settings["strategy"] == "block(size=4)"
    assert (settings["max_new_tokens"], settings["priority"]) == (16, "random")


def test_options_of_dreams_sampler_are_accepted() -> None:
    args = ["--alg", "entropy", "--eps", "0.01", "--alg-temp", "0.2"]
    (made,) = records(run("generate", "Hi", "-n", "8", "--json", *args))
    assert made["strategy"] == "standard(selector=dream(eps=0.01))"
    assert made["settings"]["priority"] == "entropy"
    assert made["settings"]["order_noise"] == 0.2
    assert made["settings"]["sampling"] == "dream"


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["--strategy", "block", "--block-length", "2"], {"strategy": "block(size=2)"}),
        (["--max-wave-size", "4", "--radius", "3"], {"strategy": SHAPED.format(4)}),
        (["--eos-policy", "keep"], {"eos": "keep"}),
        (["--logits-eos-inf"], {"eos": "suppress-logit"}),
        (["--confidence-eos-eot-inf"], {"eos": "llada-confidence"}),
        (["--stop-ids", "3,5"], {"stop_ids": [3, 5], "eos": "stop"}),
        (["--stop-ids", ""], {"stop_ids": [], "eos": "keep"}),
        (["--cache", "none", "--mask-id", "MASK"], {"eos": "stop"}),
    ],
)
def test_option_names_of_python_are_accepted(
    args: list[str], expected: dict[str, object], lm: wavefront.LM
) -> None:
    args = [str(lm.model.mask_id) if one == "MASK" else one for one in args]
    (made,) = records(run("generate", "Hi", "--max-tokens", "8", "--json", *args))
    assert {name: made["settings"][name] for name in expected} == expected
    assert made["settings"]["max_new_tokens"] == 8


def test_decode_stops_at_the_stop_token_by_default() -> None:
    (made,) = records(run("generate", "Hi", "-n", "4", "--json"))
    assert made["settings"]["eos"] == "stop"
    (made,) = records(run("generate", "Hi", "-n", "4", "--json", "--eos", "keep"))
    assert made["settings"]["eos"] == "keep"


def test_constraints_hold_on_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "basket.json"
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    file.write_text(json.dumps(schema), encoding="utf-8")
    made = run("generate", "x", "-n", "24", "-t", "6", "--schema", str(file)).stdout
    assert isinstance(json.loads(made)["n"], int)
    assert run("generate", "x", "-n", "4", "--choice", "yes", "--choice", "no").stdout.strip() in (
        *("yes", "no"),
    )
    (record,) = records(run("generate", "x", "-n", "4", "--regex", "[0-9]{2}", "--json"))
    assert re.fullmatch("[0-9]{2}", record["text"])
    assert record["settings"]["regex"] == "[0-9]{2}"


def test_wrong_constraints_end_with_one_sentence(tmp_path: Path) -> None:
    bad = tmp_path / "bad.json"
    bad.write_bytes(b"\xff")
    for args, words in (
        (["--schema", str(tmp_path / "nothing.json")], "cannot be read"),
        (["--schema", str(bad)], "is not UTF-8"),
        (["--regex", "("], "The pattern cannot be used"),
        (["--regex", "a", "--choice", "b"], "cannot be combined"),
        (["--regex", "a{9}"], "too few for the pattern"),
    ):
        said = run("generate", "x", "-n", "4", *args, code=1).stderr
        assert words in " ".join(said.split())


def test_compare_shows_specs_without_defaults() -> None:
    given = "wavefront(size=8, radius=2, grow='rebuild')"
    made = run("compare", "x", "-s", "standard()", "-s", given, "-n", "4").stdout
    assert "grow=" not in made
    assert "standard()" not in made
    assert [line.split()[0] for line in made.splitlines() if line.startswith("wavefront")] == [
        "wavefront",
        "wavefront",
    ], "above the canvas and in the table"


def test_compare_shows_the_constraint() -> None:
    args = ["-n", "4", "--choice", "yes", "--choice", "no", "--no-watch"]
    made = run("compare", "x", "-s", "standard", "-s", "block", *args).stdout
    assert "choices: yes, no" in made


def test_structure_of_a_constrained_answer_has_its_own_style(lm: wavefront.LM) -> None:
    stream = lm.stream("x", regex="fruit: (fig|pear)", max_new_tokens=16, steps=8)
    board = Board(stream, glow=0.0)
    assert not any(cell.state == "pinned" for cell in board.frame().cells)
    for step in stream:
        board.add(step)
    board.frame()  # new commits are marked once
    cells = [cell for cell in board.frame().cells if cell.state in ("known", "pinned")]
    assert "".join(cell.text for cell in cells) == stream.completions[0].text
    pinned = "".join(cell.text for cell in cells if cell.state == "pinned")
    assert pinned in ("fruit:ig", "fruit:ear")


def test_lines_are_answered_like_single_prompts(lm: wavefront.LM) -> None:
    prompts = ["Hi", "Good morning", "Why is it so?"]
    result = run("generate", "--lines", "-b", "2", "-n", "9", "--json", input="\n".join(prompts))
    made = records(result)
    assert [one["prompt"] for one in made] == prompts
    alone = [lm.generate(prompt, max_new_tokens=9).text for prompt in prompts]
    assert [one["text"] for one in made] == alone


def test_every_line_gets_a_one_line_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    decode = wavefront.text.tokenizer.Tokenizer.decode  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setattr(
        "wavefront.text.tokenizer.Tokenizer.decode",
        lambda self, ids, **given: decode(self, ids, **given)[:1] + "\n\\x",
    )
    result = run("generate", "--lines", "-n", "4", input="a\nb\n")
    lines = result.stdout.splitlines()
    assert len(lines) == 2
    assert all(line.endswith("\\n\\\\x") for line in lines)


def test_watching_prints_to_stderr_and_the_answer_to_stdout(lm: wavefront.LM) -> None:
    result = run("generate", "Hi", "-n", "8", "--watch")
    assert result.stdout == lm.generate("Hi", max_new_tokens=8).text + "\n"
    assert "step 8/8" in result.stderr
    assert "\x1b" not in result.stderr


def test_own_strategy_is_accepted() -> None:
    name = "examples.new_strategy.OutsideIn(size=2)"
    (made,) = records(run("generate", "Hi", "-n", "8", "--json", "-s", name))
    assert made["strategy"] == name


# Infilling.


def test_gaps_are_filled(lm: wavefront.LM) -> None:
    text = "The <mask:4> and \\<mask: <mask:2>."
    result = run("infill", text, "-m", "toy")
    assert result.stdout == lm.infill(text).text + "\n"
    (made,) = records(run("infill", "-m", "toy", "--json", "-s", "standard", input=text))
    assert made["prompt"] == text
    assert made["finish_reason"] == "filled"
    assert lm.infill(text, **made["settings"]).text == made["text"]
    assert "step 6/6" in run("infill", text, "-m", "toy", "--watch").stderr


def test_default_model_of_infill_writes_english() -> None:
    text = "Once upon a time there was a <mask:6>. She <mask:12>."
    (made,) = records(run("infill", text, "--json"))
    assert (made["model"], made["finish_reason"]) == ("tale", "filled")
    assert re.fullmatch(r"Once upon a time there was a \w.*\w\. She \w.*\w\.", made["text"])
    assert "  " not in made["text"]


def test_infill_has_no_length_option() -> None:
    assert "no option -n" in run("infill", "a<mask:2>", "-n", "3", code=2).stderr
    assert "no hole" in run("infill", "nothing to fill", code=1).stderr


# Block-causal models.


@pytest.mark.parametrize(
    ("args", "options"),
    [
        (("--cache", "blocks"), {"cache": "blocks"}),
        (("-s", "standard", "--eos", "stop-block"), {"strategy": "standard", "eos": "stop-block"}),
        (("--radius", "3", "--cache", "blocks"), {"strategy": "wavefront(radius=3)"}),
    ],
)
def test_generate_accepts_options_of_a_block_causal_model(
    args: tuple[str, ...], options: dict[str, str]
) -> None:
    by_block = wavefront.load("toy", attention="block", block_size=4)
    model = ("--attention", "block", "--block-size", "4")
    (made,) = records(run("generate", "Hi", "-n", "8", "--json", *args, *model))
    assert made["text"] == by_block.generate("Hi", max_new_tokens=8, **options).text  # pyright: ignore[reportArgumentType]
    assert "is not block-causal" in run("generate", "Hi", "--cache", "blocks", code=1).stderr


# Chatting.


def test_chat_answers_line_by_line(talker: str) -> None:
    result = run("chat", "-m", talker, "-n", "5", "--json", input="Hello\n\n//who\n/quit\nno\n")
    first, second = records(result)
    assert first["messages"] == [{"role": "user", "content": "Hello"}]
    assert second["messages"] == [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": first["text"]},
        {"role": "user", "content": "/who"},
    ]
    again = wavefront.load(talker).generate(second["messages"], **second["settings"])
    assert again.text == second["text"]


def test_chat_ignores_a_byte_order_mark(talker: str) -> None:
    result = run("chat", "-m", talker, "-n", "4", "--json", input="\ufeffHello\n\ufeffAnd?\n")
    first, second = records(result)
    assert first["messages"][-1]["content"] == "Hello"
    assert second["messages"][-1]["content"] == "\ufeffAnd?"


@pytest.mark.parametrize("command", ["/quit", "/exit"])
def test_chat_ends_with_either_word(talker: str, command: str) -> None:
    result = run("chat", "-m", talker, "-n", "4", "--json", input=f"Hello\n{command}\nno\n")
    assert len(records(result)) == 1


def test_chat_commands_change_the_conversation(talker: str) -> None:
    typed = "Hello\n/strategy block(size=2)\nAnd?\n/reset\nOnce more\n/help\n"
    args = ["-m", talker, "-n", "4", "--json", "--system", "Be kind."]
    result = run("chat", *args, "--block-length", "4", input=typed)
    first, second, third = records(result)
    assert first["strategy"] == "block(size=4)"
    assert second["strategy"] == "block(size=2)"
    assert [message["role"] for message in third["messages"]] == ["system", "user"]
    assert "/reset" in result.stderr


def test_chat_strategy_replaces_one_given_by_aliases(talker: str) -> None:
    args = ["-m", talker, "-n", "4", "--json", "--strategy", "wavefront", "--radius", "3"]
    first, second = records(run("chat", *args, input="Hello\n/strategy block(size=2)\nAnd?\n"))
    assert first["strategy"] == SHAPED.format(8)
    assert second["strategy"] == "block(size=2)"


def test_chat_prints_answers_as_text(talker: str) -> None:
    result = run("chat", "-m", talker, "-n", "4", "--quiet", input="Hello\n/help\n")
    (made,) = records(run("chat", "-m", talker, "-n", "4", "--json", input="Hello\n"))
    assert result.stdout == made["text"] + "\n"
    assert result.stderr == ""


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("/stratgy block\n", "did you mean '/strategy'"),
        ("/strategy blok\n", "did you mean 'block'"),
        ("x" * 300 + "\n", "the model takes 256"),
    ],
)
def test_wrong_line_ends_a_chat_from_a_pipe(talker: str, typed: str, words: str) -> None:
    assert words in run("chat", "-m", talker, "-n", "4", input=typed, code=1).stderr


def test_model_without_template_cannot_chat() -> None:
    result = run("chat", "-m", "toy", input="Hello\n", code=1)
    assert "has no chat template" in result.stderr
    assert '`wavefront generate -m toy "Once upon a time"`' in result.stderr
    result = run("chat", "-m", "tale", input="Hello\n", code=1)
    assert '`wavefront generate -m tale "Once upon a time"`' in result.stderr


# Listing.


def test_every_strategy_is_listed_with_its_options() -> None:
    for kind in ("strategies", "selectors", "caches"):
        here = {one["name"]: one for one in json.loads(run("list", kind, "--json").stdout)}
        assert tuple(here) == spec.names(kind)
        for name, one in here.items():
            fields = dataclasses.fields(spec.find(name, kind))
            assert [option["name"] for option in one["options"]] == [f.name for f in fields]
            assert one["summary"]
            registry = "caches" if kind == "caches" else "strategies"
            assert spec.resolve(one["example"], registry) is not None


def test_list_prints_one_line_per_strategy_into_a_pipe() -> None:
    kinds = ("strategies", "selectors")
    lines = [line for kind in kinds for line in run("list", kind).stdout.splitlines()]
    for name in (*spec.names("strategies"), *spec.names("selectors")):
        (line,) = [line for line in lines if line.startswith(f"  {name} ")]
        assert line == line.rstrip()
    (line,) = [line for line in lines if line.startswith("  wavefront")]
    assert "size=8, radius=2, grow='rebuild', selector=quota()" in line
    assert "prune i" in line
    assert "recommended: the defaults " in line
    (line,) = [line for line in lines if line.startswith("  block ")]
    assert f"size=8, selector=quota(); recommended: {DEFAULT_STRATEGY} " in line


def test_listed_strategies_have_a_recommended_spec() -> None:
    for one in json.loads(run("list", "strategies", "--json").stdout):
        assert spec.resolve(one["recommended"], "strategies").spec_name() == one["name"]
    assert "Recommended" in run("list", "strategies", "block").stdout


def test_list_all_has_every_kind() -> None:
    listed = json.loads(run("list", "--json").stdout)
    assert list(listed) == ["strategies", "selectors", "caches", "models", "tasks"]
    assert json.loads(run("list", "all", "--json").stdout) == listed
    assert "did you mean 'tasks'" in run("list", "taks", code=1).stderr
    assert "A name can follow" in run("list", "models", "toy", code=2).stderr


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("strategies", "wavefront"),
        ("selectors", "dream"),
        ("strategies", "examples.new_strategy.OutsideIn"),
    ],
)
def test_one_strategy_is_explained(kind: str, name: str) -> None:
    text = run("list", kind, name).stdout
    assert text.startswith(f"{name}: ")
    assert "bool" not in text  # the state of a strategy is an implementation detail
    example = re.findall(r'--strategy "(.*)"$', text, re.MULTILINE)[0]
    spec.resolve(example, "strategies")
    assert json.loads(run("list", kind, name, "--json").stdout)["name"] == name


def test_cache_is_explained_with_its_option() -> None:
    assert re.search(r'--cache "wave\(.*\)"$', run("list", "caches", "wave").stdout, re.MULTILINE)


def test_unknown_strategy_is_not_explained() -> None:
    assert "did you mean 'wavefront'" in run("list", "strategies", "wavefrnt", code=1).stderr
    assert "`list selectors dream`" in run("list", "strategies", "dream", code=1).stderr
    assert "not a strategy" in run("list", "strategies", "pathlib.Path", code=1).stderr


def test_models_are_listed_with_how_to_load_them(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = json.loads(run("list", "models", "--json").stdout)
    assert tuple(one["name"] for one in listed["built_in"]) == builtin.names()
    assert {one["name"] for one in listed["families"]} >= {"llada", "dream"}
    monkeypatch.setattr(
        "wavefront.cli.output.stdout",
        lambda: Console(width=80, highlight=False, emoji=False, markup=False),
    )
    narrow = run("list", "models").stdout
    assert all(len(line) <= 80 for line in narrow.splitlines())
    assert "…" not in narrow
    assert all(name in narrow for one in listed["families"] for name in one["architectures"])
    monkeypatch.undo()
    text = run("list", "models").stdout
    for one in (*listed["built_in"], *listed["families"]):
        assert one["load"][0] in text
        assert one["summary"] in text
    page = (Path(__file__).parents[2] / "docs" / "index.md").read_text()
    for one in listed["families"]:
        names = "<br>".join(f"`{name}`" for name in one["architectures"])
        cells = (one["layout"], one["attention"], one["exact"], one["tested"])
        assert f"| {one['name']} | {names} | {' | '.join(cells)} |" in page
        assert all(cell in text for cell in (*one["architectures"], *cells))


def test_every_task_is_listed() -> None:
    listed = json.loads(run("list", "tasks", "--json").stdout)
    assert [one["name"] for one in listed] == [
        *tasks.names(),
        *tasks.benchmarks(),
        *tasks.judged_tasks(),
    ]
    assert all(one["summary"] for one in listed)
    text = run("list", "tasks").stdout
    assert all(f"  {name} " in text for name in (*tasks.names(), *tasks.judged_tasks()))
    assert all(name.removeprefix("bbh_") in text for name in tasks.benchmarks())
    assert text.count("bbh_") == 1  # the subsets of BBH share a row


def test_version_names_the_commit_and_torch() -> None:
    (line,) = run("--version").stdout.splitlines()
    assert re.fullmatch(
        rf"wavefront {re.escape(wavefront.__version__)} "
        rf"\((commit [0-9a-f]{{7,12}}(-dirty)?, )?torch {re.escape(metadata.version('torch'))}\)",
        line,
    )


def test_generate_points_out_that_infill_fills_holes() -> None:
    few = ("-n", "4")
    done = run("generate", "The <mask:5> sat.", *few)
    assert "warning: <mask:5> is plain text for `generate`; `wavefront infill`" in done.stderr
    assert "infill" not in run("generate", "The \\<mask:5> sat.", *few).stderr
    assert "infill" not in run("generate", "The <mask:5> sat.", *few, "--quiet").stderr


@pytest.mark.parametrize("kind", ["strategies", "selectors", "caches"])
def test_list_names_its_own_kind(kind: str) -> None:
    hint = f"To explain one of them: wavefront list {kind} NAME"
    assert hint in run("list", kind).stderr
