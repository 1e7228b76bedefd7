"""Help pages, and the error messages for wrong input."""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.commands import all_commands, find_command, records, refused, run
from typer.testing import CliRunner

import wavefront
from wavefront.cli import options as cli_options
from wavefront.cli import serve
from wavefront.cli.app import PANELS, app, out_of_memory
from wavefront.core import reading
from wavefront.engine import options

# Help.


@pytest.mark.parametrize("names", [names for names, _ in all_commands()], ids=" ".join)
def test_every_help_page_fits_80_columns(names: tuple[str, ...]) -> None:
    page = run(*names, "--help").stdout
    assert "Usage: wavefront" in page
    assert all(len(line) <= 80 for line in page.splitlines())


def test_help_pages_name_no_python_types() -> None:
    """A flag takes no value, and the name of an argument says what it is."""
    for names in ((), ("generate",), ("paper", "run"), ("eval", "diff")):
        page = run(*names, "--help").stdout
        assert not re.search(r"<(bool|str|int|float|path|list)", page), names


def test_every_summary_is_one_line_of_a_help_page() -> None:
    for names, group in all_commands():
        for name, one in getattr(group, "commands", {}).items():
            summary = (one.short_help or one.help).partition("\n\n")[0]
            room = 80 - 6 - max(map(len, group.commands))  # the frame and the column of names
            assert len(summary) <= room, (names, name)


def test_commands_of_the_program_are_in_panels() -> None:
    page = run("--help").stdout
    assert all(f"─ {panel} ─" in page for panel in PANELS)
    assert "─ Commands ─" not in page


def test_every_option_has_a_help_text_with_its_default() -> None:
    for names, command in all_commands():
        for one in command.params:
            hidden = getattr(one, "hidden", False) or names == ("serve",)
            if not hidden and one.default not in (None, False, True, "", ()):
                assert str(one.default).removesuffix(".0") in (one.help or ""), (names, one.name)


def test_one_option_name_has_one_meaning() -> None:
    """Some options appear in many commands. Their help texts agree."""
    params = [one for _, command in all_commands() for one in command.params]
    for name in ("--items-seed", "--seed", "--allow-unsandboxed", "--data", "--quiet", "--eos"):
        texts = {one.help for one in params if name in one.opts}
        assert len(texts) == 1, (name, texts)
    every = {name for one in params for name in one.opts}
    old = {"--output", "--count", "--places", "--capture", "--draft", "--again", "--most"}
    old |= {"--common", "--try", "--base", "--weight", "--i-accept-unsandboxed"}
    assert not every & old


def test_program_without_a_command_prints_help() -> None:
    assert "wavefront [OPTIONS] COMMAND" in run(code=2).stdout


def test_help_lists_the_values_that_the_library_accepts() -> None:
    def words(name: str) -> str:
        hint = typing.get_type_hints(cli_options.DecodingOptions, include_extras=True)[name]
        return hint.__metadata__[0].help

    known: dict[str, Sequence[str]] = {
        "priority": reading.PRIORITIES,
        "eos": reading.EOS_POLICIES,
        "sampling": reading.SAMPLING,
        "alg": tuple(options._ALGORITHMS),
        "speed": tuple(options.SPEEDS),
    }
    assert tuple(options.SPEEDS) == serve.SPEEDS
    for name, listed in known.items():
        assert all(word in words(name) for word in listed)
    length = typing.get_type_hints(cli_options.LengthOptions, include_extras=True)
    assert str(options.DEFAULT_LENGTH) in length["max_new_tokens"].__metadata__[0].help


COMMAND_LINE_NAMES = {library: here for here, library in cli_options.LIBRARY_NAMES.items()}


def spelling(name: str) -> str:
    """Return how the command line spells an option of the library."""
    return f"--{COMMAND_LINE_NAMES.get(name, name).replace('_', '-')}"


def test_every_option_of_the_library_is_an_option_of_every_decoding_command() -> None:
    known = set(options.Options.__annotations__)
    length = {"max_new_tokens", "gen_length", "max_tokens"}
    every = known | {"stop_id"}
    for command in ("generate", "chat", "compare", "infill"):
        taken = {name for one in find_command(command).params for name in one.opts}
        wanted = every - length if command == "infill" else every
        assert {spelling(name) for name in wanted} <= taken
    groups = (cli_options.DecodingOptions, cli_options.LengthOptions)
    fields = {field.name for group in groups for field in dataclasses.fields(group)}
    # These two are options of the model, so that they are given once.
    fields |= {"mask_id", "block_size"}
    assert {cli_options.LIBRARY_NAMES.get(name, name) for name in fields} == known


@pytest.mark.parametrize("name", sorted(options.Options.__annotations__))
def test_every_option_of_the_library_is_understood(name: str) -> None:
    hint = str(typing.get_type_hints(options.Options)[name])
    value = [] if hint == str(bool) else ["1" if "int" in hint or "float" in hint else "none"]
    length = [] if options.ALIASES.get(name, name) == "max_new_tokens" else ["-n", "4"]
    args = ["generate", "x", "-m", "toy", *length, spelling(name), *value]
    result = CliRunner().invoke(app, args)
    assert result.exit_code in (0, 1), result.stderr  # 2 would be an unknown option


def test_aliases_are_not_on_the_help_page() -> None:
    page = run("generate", "--help").stdout
    assert "--block-length" not in page
    assert "--stop-ids" not in page
    assert "keep with a fixed budget and in infilling." in " ".join(page.replace("│", "").split())


# Errors.


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ([""], "The prompt is empty"),
        (["  \n "], "The prompt is empty"),
        (["x" * 5000], "the model takes 4096"),
        (["x", "-n", "5000"], "the model takes 4096"),
        (["x", "-n", "0"], "--max-new-tokens must be between 1 and"),
        (["x", "-n", "-3"], "--max-new-tokens must be between 1 and"),
        (["x", "-t", "0"], "--steps must be between 1 and"),
        (["x", "--seed", "-1"], "--seed must be between 0 and"),
        (["x", "--temperature", "-1"], "--temperature must be between 0 and 100"),
        (["x", "--temperature", "nan"], "--temperature must be between 0 and 100"),
        (["x", "--top-p", "2"], "--top-p must be between 0 and 1"),
        (["x", "--top-k", "0"], "--top-k must be between 1"),
        (["x", "-b", "0"], "--batch-size must be at least 1"),
        (["x", "-s", "wavefrnt"], "did you mean 'wavefront'"),
        (["x", "-s", "wavefront(siz=2)"], "did you mean 'size'"),
        (["x", "-s", "wavefront(size=0)"], "size must be between 1 and 1048576"),
        (["x", "-s", "wavefront(radius='a')"], "radius must be a whole number"),
        (["x", "-s", "wavefront("], "name(option=value)"),
        (["x", "-s", "nowhere.at.All"], "Cannot import 'nowhere.at.All'"),
        (["x", "--priority", "confidense"], "did you mean 'confidence'"),
        (["x", "--eos", "stopp"], "did you mean 'stop'"),
        (["x", "--alg", "entropi"], "did you mean 'entropy'"),
        (["x", "--remasking", "randomly"], "did you mean 'random'"),
        (["x", "--sampling", "lada"], "did you mean 'llada'"),
        (["x", "--eps", "0.1"], "give --alg as well"),
        (["x", "-n", "8", "--gen-length", "8"], "given twice"),
        (
            ["x", "--eos", "keep", "--eos-policy", "keep"],
            "once as --eos-policy",
        ),
        (
            ["x", "--stop-id", "1", "--stop-ids", "2"],
            "--stop-id is given twice, once as --stop-ids",
        ),
        (["x", "--radius", "2", "-s", "block"], "--radius belongs to wavefront"),
        (["x", "--radius", "0"], "--radius must be between 1 and 1048576"),
        (["x", "--eos", "keep", "--logits-eos-inf"], "Give one EOS policy"),
        (["x", "--mask-id", "1"], "--mask-id=1 is not this model's"),
        (["x", "--attention", "causal"], "--attention must be one of"),
        (
            ["x", "--attention", "block"],
            "no block size; --attention='block' needs --block-size.",
        ),
        (["x", "--block-size", "4"], "the model attends to all positions"),
        (["x", "--attention", "block", "--block-size", "0"], "--block-size must be at least 1"),
        (["x", "--attention", "block", "--block-size", "7"], "does not divide the model's"),
        (["x", "--cache", "prefixes"], "There is no cache 'prefixes'"),
        (["x", "--stop-id", "999999"], "--stop-id must be between 0 and"),
        (["x", "-m", "tooy"], "did you mean 'toy'"),
        (["x", "-m", "./nowhere"], "There is no model"),
        (["x", "-m", "/nowhere/at/all"], "There is no model"),
        (["x", "--device", "gpu"], "did you mean 'cpu'"),
        (["x", "--dtype", "float31"], "did you mean 'float32'"),
        (["x", "--quantize", "int7"], "no quantisation 'int7'; known: int8, fp8, int4"),
        (["--file", "nowhere.txt"], "no such file"),
        (["--file", "."], "is a directory"),
    ],
)
def test_wrong_values_get_one_sentence(args: list[str], words: str) -> None:
    assert words in refused("generate", *args)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["x", "-n", "many"], "'-n': 'many' is not a whole number."),
        (["x", "-n", "2.5"], "'2.5' is not a whole number."),
        (["x", "--temperature", "hot"], "'--temperature': 'hot' is not a number."),
        (["x", "--delay", "-1"], "'-1' is not between 0 and 60."),
        (["x", "--max-new-token", "3"], "did you mean '--max-new-tokens'"),
        (["x", "--stratgy", "block"], "did you mean '--strategy'"),
        (["x", "--wave-size", "8"], "did you mean '--max-wave-size'"),
        (["x", "--temp", "1"], "did you mean '--temperature'"),
        (["x", "--tempratur", "3"], "did you mean '--temperature'"),
        (["x", "--radius", "wide"], "'--radius': 'wide' is not a whole number."),
        (["x", "--stop-ids", "1,b"], "'--stop-ids': 'b' is not a whole number."),
        (["two", "words"], "in quotes"),
        (["x", "--file", "y"], "Give a prompt or --file, not both."),
    ],
)
def test_wrong_command_lines_get_one_sentence(args: list[str], words: str) -> None:
    assert words in refused("generate", *args, code=2)


def test_missing_value_is_named() -> None:
    assert "'-n' requires an argument" in run("generate", "x", "-n", code=2).stderr


def test_unknown_command_gets_a_suggestion() -> None:
    assert "Did you mean 'generate'" in run("generat", code=2).stderr


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "The prompt is empty"),
        (b"\n\n", "The prompt is empty"),
        (b"caf\xe9", "standard input is not UTF-8 at byte 3"),
    ],
)
def test_wrong_standard_input_gets_one_sentence(data: bytes, words: str) -> None:
    assert words in refused("generate", "-", input=data)


def test_empty_line_is_named() -> None:
    assert "Line 2 is empty" in refused("generate", "--lines", input="a\n\nb\n")


def test_options_are_checked_before_a_model_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wavefront.lm.load", lambda *_, **__: pytest.fail("loaded"))
    assert "did you mean" in refused("generate", "x", "-s", "wavefrnt")
    assert "size must be" in run("infill", "a<mask:3>", "-s", "block(size=0)", code=1).stderr


def test_debug_shows_the_traceback() -> None:
    result = run("generate", "x", "-n", "0", "--debug", code=1)
    assert "Traceback" in result.stderr
    assert result.stderr.splitlines()[-1].startswith("error: --max-new-tokens")


OWN_STRATEGIES = """
from dataclasses import dataclass, field
import wavefront
from wavefront.strategies.selectors.quota import Quota

@dataclass(frozen=True)
class Selectorless(wavefront.Strategy):
    def step(self, view, state):
        return wavefront.Decision(view.masked, candidates=view.masked)

@dataclass(frozen=True)
class Undecided(Selectorless):
    selector: wavefront.Selector = field(default=Quota(), repr=False)

    def step(self, view, state):
        return view.masked

@dataclass(frozen=True)
class Mistyped(Undecided):
    def step(self, view, state):
        return view.maskd
"""


def test_mistakes_in_a_strategy_of_your_own_are_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_mistakes.py").write_text(OWN_STRATEGIES)
    monkeypatch.syspath_prepend(str(tmp_path))
    ask = ("generate", "x", "-n", "4", "-s")
    assert "Selectorless has no selector" in refused(*ask, "own_mistakes.Selectorless")
    said = refused(*ask, "own_mistakes.Undecided")
    assert "step returns a Tensor, not a wavefront.Decision." in said
    lines = run(*ask, "own_mistakes.Mistyped", code=1).stderr.splitlines()
    assert lines[0].endswith('own_mistakes.py", line 21, in step')
    assert lines[-2].startswith("AttributeError: 'View' object has no attribute 'maskd'")
    failed = "error: Your code failed in own_mistakes.py, line 21. --debug shows all calls."
    assert lines[-1] == failed
    with pytest.raises(AttributeError, match="maskd"):
        run(*ask, "own_mistakes.Mistyped", "--debug", code=None)


def test_errors_contain_no_control_characters() -> None:
    assert "\x1b" not in refused("generate", "x", "-m", "\x1b[31mred/..")


def test_warning_is_shown_once_and_can_be_silenced() -> None:
    args = ["generate", "--lines", "-b", "1", "-n", "32", "-t", "2", "-s", "wavefront"]
    result = run(*args, input="a\nb\nc\n")
    (line,) = result.stderr.splitlines()
    assert line.startswith("warning: 32 positions in 2 steps are 16 commits per step")
    assert len(result.stdout.splitlines()) == 3
    assert run(*args, "--quiet", input="a\nb\n").stderr == ""


def test_model_without_stop_token_is_decoded_to_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lm = wavefront.load("toy")
    endless = wavefront.LM(lm.model, lm.tokenizer, name="endless")
    endless.stop_ids = ()
    monkeypatch.setattr("wavefront.lm.load", lambda *_, **__: endless)
    (made,) = records(run("generate", "Hi", "-n", "4", "--json"))
    assert made["settings"]["eos"] == "keep"


def test_out_of_memory_gets_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("wavefront.lm.LM.stream", fail)
    assert "Out of memory: try --quantize int8, or a smaller -n" in refused("generate", "x")
    quantized = refused("generate", "x", "--quantize", "int8")
    assert "--quantize int4, or --speed fast" in quantized
    assert out_of_memory({"quantize": "int4", "max_new_tokens": 8, "speed": None}) == (
        "Out of memory: try a smaller -n, or --speed fast."
    )
    assert out_of_memory({}) == "Out of memory: try a smaller model."
