"""The commands inside the test process: what they answer."""

from __future__ import annotations

import dataclasses
import json
import re
from importlib import metadata
from pathlib import Path

import pytest
from helpers.commands import records, run, save_talker

import wavefront
from wavefront.core import spec
from wavefront.models import builtin

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


def test_the_answer_and_nothing_else_is_printed(lm: wavefront.LM) -> None:
    result = run("generate", "Hi", "-n", "12")
    assert result.stdout == lm.generate("Hi", max_new_tokens=12).text + "\n"
    assert result.stderr == ""


@pytest.mark.parametrize("source", ["argument", "pipe", "dash", "file", "file dash"])
def test_a_prompt_comes_from_anywhere(source: str, tmp_path: Path, lm: wavefront.LM) -> None:
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


def test_only_the_last_line_break_is_taken_off() -> None:
    (made,) = records(run("generate", "-n", "2", "--json", input="\n a\r\nb\n\r\n"))
    assert made["prompt"] == "\n a\r\nb\n"


def test_a_json_record_is_enough_to_repeat_the_answer(lm: wavefront.LM) -> None:
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


def test_published_names_are_aliases() -> None:
    args = ["--gen-length", "16", "--block-length", "4", "--steps", "8"]
    (made,) = records(run("generate", "Hi", "--json", *args, "--remasking", "random"))
    settings = made["settings"]
    assert settings["strategy"] == "block(size=4)"
    assert (settings["max_new_tokens"], settings["priority"]) == (16, "random")


def test_the_sampler_of_dream_goes_by_its_own_names() -> None:
    args = ["--alg", "entropy", "--eps", "0.01", "--alg-temp", "0.2"]
    (made,) = records(run("generate", "Hi", "-n", "8", "--json", *args))
    assert made["strategy"] == "standard(selector=dream(eps=0.01))"
    assert made["settings"]["priority"] == "entropy"
    assert made["settings"]["order_noise"] == 0.2
    assert made["settings"]["sampling"] == "dream"


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["--strategy", "block", "--block-size", "2"], {"strategy": "block(size=2)"}),
        (["--max-wave-size", "4", "--radius", "3"], {"strategy": SHAPED.format(4)}),
        (["--eos-policy", "keep"], {"eos": "keep"}),
        (["--logits-eos-inf"], {"eos": "suppress-logit"}),
        (["--confidence-eos-eot-inf"], {"eos": "llada-confidence"}),
        (["--stop-ids", "3,5"], {"stop_ids": [3, 5], "eos": "stop"}),
        (["--stop-ids", ""], {"stop_ids": [], "eos": "keep"}),
        (["--cache", "none", "--mask-id", "MASK"], {"eos": "stop"}),
    ],
)
def test_python_names_are_command_line_names(
    args: list[str], expected: dict[str, object], lm: wavefront.LM
) -> None:
    args = [str(lm.model.mask_id) if one == "MASK" else one for one in args]
    (made,) = records(run("generate", "Hi", "--max-tokens", "8", "--json", *args))
    assert {name: made["settings"][name] for name in expected} == expected
    assert made["settings"]["max_new_tokens"] == 8


def test_decoding_stops_early_unless_told_otherwise() -> None:
    (made,) = records(run("generate", "Hi", "-n", "4", "--json"))
    assert made["settings"]["eos"] == "stop"
    (made,) = records(run("generate", "Hi", "-n", "4", "--json", "--eos", "keep"))
    assert made["settings"]["eos"] == "keep"


def test_lines_are_a_batch_with_the_answers_of_single_prompts(lm: wavefront.LM) -> None:
    prompts = ["Hi", "Good morning", "Why is it so?"]
    result = run("generate", "--lines", "-b", "2", "-n", "9", "--json", input="\n".join(prompts))
    made = records(result)
    assert [one["prompt"] for one in made] == prompts
    alone = [lm.generate(prompt, max_new_tokens=9).text for prompt in prompts]
    assert [one["text"] for one in made] == alone


def test_every_line_gives_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    decode = wavefront.text.tokenizer.Tokenizer.decode  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setattr(
        "wavefront.text.tokenizer.Tokenizer.decode",
        lambda self, ids: decode(self, ids)[:1] + "\n\\x",
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


def test_a_strategy_of_ones_own() -> None:
    name = "examples.new_strategy.OutsideIn(size=2)"
    (made,) = records(run("generate", "Hi", "-n", "8", "--json", "-s", name))
    assert made["strategy"] == name


# Infilling.


def test_holes_are_filled(lm: wavefront.LM) -> None:
    text = "The <mask:4> and \\<mask: <mask:2>."
    result = run("infill", text)
    assert result.stdout == lm.infill(text).text + "\n"
    (made,) = records(run("infill", "--json", "-s", "standard", input=text))
    assert made["prompt"] == text
    assert lm.infill(text, **made["settings"]).text == made["text"]
    assert "step 6/6" in run("infill", text, "--watch").stderr


def test_an_infilling_takes_no_length() -> None:
    assert "no option -n" in run("infill", "a<mask:2>", "-n", "3", code=2).stderr
    assert "no hole" in run("infill", "nothing to fill", code=1).stderr


# Chatting.


def test_a_conversation_goes_on_line_by_line(talker: str) -> None:
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


def test_commands_change_the_conversation(talker: str) -> None:
    typed = "Hello\n/strategy block(size=2)\nAnd?\n/reset\nOnce more\n/help\n"
    args = ["-m", talker, "-n", "4", "--json", "--system", "Be kind."]
    result = run("chat", *args, "--block-length", "4", input=typed)
    first, second, third = records(result)
    assert first["strategy"] == "block(size=4)"
    assert second["strategy"] == "block(size=2)"
    assert [message["role"] for message in third["messages"]] == ["system", "user"]
    assert "/reset" in result.stderr


def test_another_strategy_takes_the_place_of_one_given_by_aliases(talker: str) -> None:
    args = ["-m", talker, "-n", "4", "--json", "--strategy", "wavefront", "--radius", "3"]
    first, second = records(run("chat", *args, input="Hello\n/strategy block(size=2)\nAnd?\n"))
    assert first["strategy"] == SHAPED.format(8)
    assert second["strategy"] == "block(size=2)"


def test_answers_of_a_conversation_are_printed_as_text(talker: str) -> None:
    result = run("chat", "-m", talker, "-n", "4", "--quiet", input="Hello\n/help\n")
    (made,) = records(run("chat", "-m", talker, "-n", "4", "--json", input="Hello\n"))
    assert result.stdout == made["text"] + "\n"
    assert result.stderr == ""


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("/scedule block\n", "did you mean '/strategy'"),
        ("/strategy blok\n", "did you mean 'block'"),
        ("x" * 300 + "\n", "the model takes 256"),
    ],
)
def test_a_line_that_cannot_be_answered_ends_a_pipe(talker: str, typed: str, words: str) -> None:
    assert words in run("chat", "-m", talker, "-n", "4", input=typed, code=1).stderr


def test_a_model_without_a_template_cannot_chat() -> None:
    result = run("chat", "-m", "toy", input="Hello\n", code=1)
    assert "has no chat template" in result.stderr
    assert "generate --raw" in result.stderr


# Shelves.


def test_every_strategy_is_listed_with_its_options() -> None:
    listed = json.loads(run("strategies", "--json").stdout)
    for shelf in ("strategies", "selectors"):
        here = {one["name"]: one for one in listed if one["shelf"] == shelf}
        assert tuple(here) == spec.names(shelf)
        for name, one in here.items():
            fields = dataclasses.fields(spec.find(name, shelf))
            assert [option["name"] for option in one["options"]] == [f.name for f in fields]
            assert one["summary"]
            assert spec.resolve(one["example"], "strategies") is not None


def test_into_a_pipe_every_strategy_takes_one_line() -> None:
    lines = run("strategies").stdout.splitlines()
    for name in (*spec.names("strategies"), *spec.names("selectors")):
        (line,) = [line for line in lines if line.startswith(f"  {name} ")]
        assert line == line.rstrip()
    (line,) = [line for line in lines if line.startswith("  wavefront")]
    assert "size=8, radius=2, grow='rebuild', selector=quota()" in line
    assert "keep the best" in line


@pytest.mark.parametrize("name", ["wavefront", "dream", "examples.new_strategy.OutsideIn"])
def test_one_strategy_is_explained(name: str) -> None:
    text = run("strategies", name).stdout
    assert text.startswith(f"{name}: ")
    assert "bool" not in text  # how a state is kept is for those who read the code
    example = re.findall(r'--strategy "(.*)"$', text, re.MULTILINE)[0]
    spec.resolve(example, "strategies")
    assert json.loads(run("strategies", name, "--json").stdout)["name"] == name


def test_an_unknown_strategy_is_not_explained() -> None:
    assert "did you mean 'wavefront'" in run("strategies", "wavefrnt", code=1).stderr
    assert "not a strategy" in run("strategies", "pathlib.Path", code=1).stderr


def test_models_are_listed_with_how_to_load_them() -> None:
    listed = json.loads(run("models", "--json").stdout)
    assert tuple(one["name"] for one in listed["built_in"]) == builtin.names()
    assert {one["name"] for one in listed["families"]} >= {"llada", "dream"}
    text = run("models").stdout
    for one in (*listed["built_in"], *listed["families"]):
        assert one["load"][0] in text
        assert one["summary"] in text


def test_versions() -> None:
    (line,) = run("--version").stdout.splitlines()
    assert re.fullmatch(
        rf"wavefront {re.escape(wavefront.__version__)} "
        rf"\((commit [0-9a-f]{{7,12}}(-dirty)?, )?torch {re.escape(metadata.version('torch'))}\)",
        line,
    )
    assert run("version").stdout.splitlines()[0] == f"wavefront {wavefront.__version__}"
    assert json.loads(run("version", "--json").stdout)["wavefront"] == wavefront.__version__
