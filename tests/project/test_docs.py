"""README and docs: every block of code runs, quotes are verbatim, every link leads somewhere."""

from __future__ import annotations

import importlib
import json
import os
import re
from pathlib import Path

import pytest
import torch
import typer
from helpers.commands import parses, run
from helpers.pages import PAGES, ROOT, Block, Command, anchors, blocks, commands, links, name

import wavefront
from wavefront.cli.app import app

LANGUAGES = {"python", "bash", "json", "text", "console"}
# Pages that take more than a few seconds: a trained model decodes, or a study draws its figures.
SLOW = {
    "python": {
        "README.md",
        "docs/concepts.md",
        "docs/faster.md",
        "docs/measures.md",
        "docs/own-strategy.md",
        "docs/own-task.md",
        "docs/traces.md",
    },
    "bash": {"README.md", "docs/reproduce.md", "docs/studies.md"},
}
# Pages whose code another test runs, because it needs a server or a package besides.
ELSEWHERE = {"docs/serve.md": "test_serve_doc.py", "docs/transformers.md": "test_hf_doc.py"}
# What is not run, and why. Commands of ours that are listed here must still parse.
EXEMPT = {
    "make": "makes an environment; .ci/run does",
    "pip install": "changes the environment",
    "source": "changes the shell",
    "srun": "needs Slurm",
    "torchrun": "needs as many GPUs; the shards of tests/evaluate are the same without it",
    "wavefront merge part*": "needs the shards that srun would make; tests/evaluate merges some",
    "wavefront grade runs/gsm": "the same",
    "wavefront lm-eval": "loads lm-eval; tests/test_lm_eval_process.py runs it",
    "wavefront bertscore": "needs an encoder; tests/test_bertscore.py runs it",
    "wavefront bench": "takes minutes; tests/test_bench.py runs every row small",
    "wavefront paper run ": "takes minutes; tests/paper runs every one small",
    "wavefront tune": "takes minutes; tests/test_tune.py runs it",
    "wavefront report experiments/main": "needs what the experiment would write",
    "wavefront serve": "does not end; tests/test_serve.py runs it",
    "wavefront report runs/main": "an example of a directory; tests/test_report.py has one",
    "wavefront report wave.npz": "the same",
}
NEEDS = {  # anywhere in a command
    "GSAI-ML/": "needs a download",
    "--device cuda": "needs a GPU",
    "--data": "needs the benchmarks' files",
    "runs/block runs/paper": "the same",
}
# The toy decodes, and these make a command small where its settings are those of a measurement.
SMALLER = {
    "wavefront measure": ["--items", "1", "-n", "96", "--task", "boolean_expressions", "--quiet"],
    "wavefront eval": ["--items", "2", "-n", "8"],
    "wavefront answers": ["--items", "2", "-n", "8"],
}


def excuse(command: Command) -> str:
    for table, matches in ((EXEMPT, command.text.startswith), (NEEDS, command.text.__contains__)):
        for part, reason in table.items():
            if matches(part):
                return reason
    return ""


def with_blocks(language: str) -> list[object]:
    slow = SLOW.get(language, set())
    return [
        pytest.param(page, id=name(page), marks=pytest.mark.slow if name(page) in slow else ())
        for page in PAGES
        if blocks(page, language) and name(page) not in ELSEWHERE
    ]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_block_says_what_it_is(page: Path) -> None:
    """A block without a language would be run by nothing here."""
    text = page.read_text("utf-8")
    assert len(re.findall(r"^ *```", text, re.MULTILINE)) == 2 * len(blocks(page))
    assert {block.language for block in blocks(page)} <= LANGUAGES
    for block in blocks(page):
        assert "wavefront." not in block.text or block.language != "text"


@pytest.mark.parametrize("page", with_blocks("python"))
@pytest.mark.filterwarnings("ignore::wavefront.core.errors.WavefrontWarning")
def test_the_python_of_a_page_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All blocks of a page, one after another, in one namespace."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(ROOT)
    space: dict[str, object] = {"__name__": "__main__"}
    for block in blocks(page, "python"):
        if block.title or block.note.startswith("not run: "):
            continue
        if block.note == "needs WAVEFRONT_DATA" and "WAVEFRONT_DATA" not in os.environ:
            pytest.skip("WAVEFRONT_DATA is not set")
        code = "\n" * (block.line - 1) + block.text
        exec(compile(code, str(page), "exec"), space)


def test_what_runs_elsewhere_does() -> None:
    """The other test is there, and reads the page itself."""
    for page in PAGES:
        if other := ELSEWHERE.get(name(page)):
            assert page.name in (ROOT / "tests" / other).read_text("utf-8")


def test_few_blocks_are_left_out() -> None:
    """Each says why, in the remark before it."""
    left = [block for page in PAGES for block in blocks(page, "python") if block.note]
    reasons = [block.note.removeprefix("not run: ") for block in left]
    assert all(reasons)
    assert len(reasons) <= 6, reasons


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_quoted_code_is_in_the_file(page: Path) -> None:
    for block in blocks(page, "python"):
        if block.title:
            assert block.text in (ROOT / block.title).read_text("utf-8"), (block.title, block.line)


@pytest.mark.parametrize("page", with_blocks("bash"))
@pytest.mark.filterwarnings("ignore::wavefront.core.errors.WavefrontWarning")
def test_the_commands_of_a_page_run(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one folder, on the toy, through the command line itself."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(ROOT)
    variables: dict[str, str] = {}
    for block in blocks(page, "bash"):
        for command in commands(block.text, variables):
            if not excuse(command):
                execute(command)
            elif command.words[0] == "wavefront":
                parses(command.words)


def execute(command: Command) -> None:
    assert command.words[0] == "wavefront", f"neither ours nor exempt: {command.text}"
    smaller = [more for part, more in SMALLER.items() if command.text.startswith(part)]
    result = run(*command.words[1:], *(smaller[0] if smaller else []))
    assert result.stdout or result.stderr
    if command.into:
        Path(command.into).write_text(result.stdout, "utf-8")


def test_every_exemption_is_used() -> None:
    every = [
        command.text
        for page in PAGES
        for block in blocks(page, "bash")
        for command in commands(block.text, {})
    ]
    for part in EXEMPT:
        assert any(text.startswith(part) for text in every), part
    for part in NEEDS:
        assert any(part in text for text in every), part


@pytest.mark.slow
def test_printed_output_is_what_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The session of docs/traces.md, with the model that it was made with."""
    monkeypatch.chdir(tmp_path)
    (session,) = blocks(ROOT / "docs" / "traces.md", "console")
    (script,) = blocks(ROOT / "docs" / "traces.md", "bash")
    record = next(one for one in commands(script.text, {}) if "record" in one.words)
    question = re.search(r'Q="(.+)"', script.text)
    assert question is not None
    words = [question.group(1) if word == "$Q" else word for word in record.words[1:]]
    run(*words, "-m", "ripple")
    first, _, expected = session.text.partition("\n")
    assert run(*commands(first.removeprefix("$ "), {})[0].words[1:]).stdout == expected


def sessions(page: Path) -> list[tuple[str, str]]:
    """Every command that is typed in a console, and what it printed."""
    typed = re.compile(r"^\$ (.+)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)
    return [pair for block in blocks(page, "console") for pair in typed.findall(block.text)]


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "console")], ids=name)
def test_what_is_typed_parses(page: Path) -> None:
    ours = [typed for typed, _ in sessions(page) if typed.startswith("wavefront ")]
    assert ours
    for typed in ours:
        parses(commands(typed, {})[0].words)


@pytest.mark.slow
def test_the_first_hour_prints_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers, refusals and traces of the transcript; what has times in it is as it was then."""
    monkeypatch.chdir(tmp_path)
    tried = 0
    for typed, printed in sessions(ROOT / "docs" / "first-hour.md"):
        words = commands(typed, {})[0].words[1:]
        if words[:1] != ["generate"] and words[:2] != ["trace", "record"]:
            continue
        code = 1 if printed.startswith("error: ") else 0
        if "cuda" in words and torch.cuda.is_available():
            continue
        made = run(*words, "-m", "ripple", code=code)
        found = made.stderr if code else made.stdout
        start = printed.partition("…")[0]
        assert found.startswith(start) if "…" in printed else start.endswith(found)
        tried += 1
    assert tried >= 4


@pytest.mark.slow
def test_the_strategy_of_the_first_hour_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (block,) = blocks(ROOT / "docs" / "first-hour.md", "python")
    (tmp_path / "breath.py").write_text(block.text, "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    assert len(wavefront.testing.check(importlib.import_module("breath").Breath())) == 18


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_commands_named_in_passing_are_there(page: Path) -> None:
    known = {*typer.main.get_command(app).commands}  # pyright: ignore[reportAttributeAccessIssue]
    assert {*re.findall(r"`wavefront ([a-z][a-z-]*)", page.read_text("utf-8"))} <= known


@pytest.mark.parametrize("page", with_blocks("json"))
def test_json_is_json(page: Path) -> None:
    for block in blocks(page, "json"):
        assert json.loads(block.text)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_link_leads_somewhere(page: Path) -> None:
    for link in links(page):
        if link.startswith("https://"):
            continue
        file, _, anchor = link.partition("#")
        target = (page.parent / file) if file else page
        assert target.exists(), f"{name(page)}: {link}"
        if anchor:
            assert anchor in anchors(target), f"{name(page)}: {link}"


def test_the_reference_lists_every_public_name_and_no_other() -> None:
    text = (ROOT / "docs" / "api.md").read_text("utf-8")
    listed = re.findall(r"^::: wavefront\.(?:\w+\.)*(\w+)$", text, re.MULTILINE)
    public = {*wavefront.__all__} - {"__version__", "testing"}
    assert sorted(listed) == sorted([*public, "check", "LawBroken"])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('wavefront a "b c" # d', [["wavefront", "a", "b c"]]),
        ("wavefront a \\\n  b && wavefront c", [["wavefront", "a", "b"], ["wavefront", "c"]]),
        ('Q="x y"\nwavefront a "$Q"', [["wavefront", "a", "x y"]]),
        ('wavefront i "The <mask:4> dog."', [["wavefront", "i", "The <mask:4> dog."]]),
    ],
)
def test_shell_lines_are_read_as_a_shell_does(text: str, words: list[list[str]]) -> None:
    assert [command.words for command in commands(text, {})] == words


def test_a_redirection_is_understood() -> None:
    (command,) = commands("wavefront trace export a.npz > a.csv", {})
    assert (command.words[-1], command.into) == ("a.npz", "a.csv")


def test_a_wrong_option_of_an_exempt_command_is_noticed() -> None:
    with pytest.raises(Exception, match="No such option"):
        parses(["wavefront", "bench", "--no-such-option"])


def test_blocks_are_found_with_their_lines() -> None:
    (block, *_) = blocks(ROOT / "README.md", "python")
    lines = (ROOT / "README.md").read_text("utf-8").splitlines()
    assert isinstance(block, Block)
    assert lines[block.line - 1] == block.text.splitlines()[0]
