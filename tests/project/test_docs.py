"""README and docs: code blocks run, quoted code is verbatim, and links resolve."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
import yaml
from helpers.commands import parses, run
from helpers.pages import PAGES, ROOT, Block, Command, anchors, blocks, commands, links, name

import wavefront
from wavefront.cli.app import app

LANGUAGES = {"python", "bash", "json", "text", "console", "bibtex"}
# Pages that take more than a few seconds, because a trained model decodes.
SLOW = {
    "python": {
        "README.md",
        "docs/concepts.md",
        "docs/constrain.md",
        "docs/extend.md",
        "docs/experiments.md",
        "docs/speed.md",
        "docs/traces.md",
    },
    "bash": {"README.md"},
}
# Pages whose code another test runs, because it needs a server or another package.
ELSEWHERE = {"docs/serve.md": "test_serve_doc.py", "docs/transformers.md": "test_hf_doc.py"}
# Commands that are not run, and the reason. Those of wavefront must still parse.
EXEMPT = {
    "make": "creates an environment; .ci/run does this",
    "pip install": "changes the environment",
    "source": "changes the shell",
    "srun": "needs Slurm",
    "python runs/qwen_texts.py": "samples a 0.5 B model; tests/train/test_qwen_texts.py runs it",
    "python runs/qwen_chain.py": "needs a GPU; tests/project/test_qwen_chain.py runs it",
    "python runs/experiments.py": "needs a GPU; tests/project/test_run_tables.py runs it",
    "torchrun": "needs several GPUs; tests/evaluation merges shards without it",
    "wavefront eval merge part*": "needs shards; tests/evaluation merges some",
    "wavefront eval grade runs/gsm": "needs the merged run",
    "wavefront lm-eval": "loads lm-eval; tests/integrations/test_lm_eval_process.py runs it",
    "wavefront eval bertscore": "needs an encoder; tests/analysis/test_bertscore.py runs it",
    "wavefront bench": "takes minutes; tests/bench/test_bench.py runs every row small",
    "wavefront paper run": "takes minutes; tests/paper/test_experiments.py runs each one small",
    "wavefront tune": "takes minutes; tests/evaluation/test_tune.py runs it",
    "wavefront report experiments/main": "needs the output of the experiment",
    "wavefront train adapt": "takes minutes; tests/train/test_adapt.py adapts a tiny model",
    "wavefront serve": "does not end; tests/server/test_server.py runs it",
    "wavefront report runs/main": "is an example of a directory; tests/viewer builds one",
    "wavefront report wave.npz": "is an example of a file; tests/viewer builds one",
}
NEEDS = {  # a part of any command
    "person.json": "needs a schema file; tests/cli/test_cli.py writes one",
    "GSAI-ML/": "needs a download",
    "dllm-hub/": "needs a download",
    "--device cuda": "needs a GPU",
    "--data": "needs the benchmark files",
    "runs/block runs/paper": "needs the runs above it",
}
# The toy model decodes. These options shrink commands whose settings are those of a measurement.
SMALLER = {
    "wavefront eval run": ["--items", "2", "-n", "8"],
    "wavefront eval generate": ["--items", "2", "-n", "8"],
}
# Names outside `wavefront.__all__` that the guides teach, so the reference lists them as public.
FOR_EXTENSIONS = {
    "check", "LawBroken",
    "distance", "near", "rank", "top", "first",
    "Quota", "Threshold", "Factor", "EntropyBound", "LocalLeap", "Dream", "Origin",
    "check_int", "check_float", "check_choice", "IntRange", "FloatRange", "TupleBounds",
}  # fmt: skip


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
def test_every_block_names_its_language(page: Path) -> None:
    """No test would run a block without a language."""
    text = page.read_text("utf-8")
    assert len(re.findall(r"^ *```", text, re.MULTILINE)) == 2 * len(blocks(page))
    assert {block.language for block in blocks(page)} <= LANGUAGES
    for block in blocks(page):
        assert "wavefront." not in block.text or block.language != "text"


@pytest.mark.parametrize("page", with_blocks("python"))
@pytest.mark.filterwarnings("ignore::wavefront.core.errors.WavefrontWarning")
def test_python_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run all blocks of a page in order in one namespace."""
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


def test_pages_tested_elsewhere_have_a_test() -> None:
    """The other test exists and names the page."""
    for page in PAGES:
        if other := ELSEWHERE.get(name(page)):
            assert page.name in (ROOT / "tests" / "project" / other).read_text("utf-8")


def test_skipped_blocks_are_few_and_give_a_reason() -> None:
    left = [block for page in PAGES for block in blocks(page, "python") if block.note]
    reasons = [block.note.removeprefix("not run: ") for block in left]
    assert all(reasons)
    assert len(reasons) <= 6, reasons


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_quoted_code_is_verbatim(page: Path) -> None:
    for block in blocks(page, "python"):
        if block.title:
            assert block.text in (ROOT / block.title).read_text("utf-8"), (block.title, block.line)


@pytest.mark.slow
@pytest.mark.parametrize("page", with_blocks("bash"))
@pytest.mark.filterwarnings("ignore::wavefront.core.errors.WavefrontWarning")
def test_commands_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the commands of a page in one folder, with the toy model."""
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
    assert command.words[0] == "wavefront", (
        f"not a wavefront command and not exempt: {command.text}"
    )
    smaller = [more for part, more in SMALLER.items() if command.text.startswith(part)]
    result = run(*command.words[1:], *(smaller[0] if smaller else []))
    assert result.stdout or result.stderr
    if command.into:
        Path(command.into).write_text(result.stdout, "utf-8")


def test_every_exemption_is_needed() -> None:
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
def test_console_output_of_traces_page_is_current(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run the console session of docs/traces.md with ripple and compare its output."""
    monkeypatch.chdir(tmp_path)
    (session,) = blocks(ROOT / "docs" / "traces.md", "console")
    script = blocks(ROOT / "docs" / "traces.md", "bash")[0]
    record = next(one for one in commands(script.text, {}) if "record" in one.words)
    question = re.search(r'Q="(.+)"', script.text)
    assert question is not None
    words = [question.group(1) if word == "$Q" else word for word in record.words[1:]]
    run(*words, "-m", "ripple")
    first, _, expected = session.text.partition("\n")
    assert run(*commands(first.removeprefix("$ "), {})[0].words[1:]).stdout == expected


def sessions(page: Path) -> list[tuple[str, str]]:
    """Return every command of the console blocks with its printed output."""
    typed = re.compile(r"^\$ (.+)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)
    return [pair for block in blocks(page, "console") for pair in typed.findall(block.text)]


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "console")], ids=name)
def test_console_commands_parse(page: Path) -> None:
    ours = [typed for typed, _ in sessions(page) if typed.startswith("wavefront ")]
    assert ours
    for typed in ours:
        parses(commands(typed, {})[0].words)


@pytest.mark.slow
def test_console_output_of_first_page_is_current(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run the console commands of docs/index.md and compare their output."""
    monkeypatch.chdir(tmp_path)
    tried = 0
    for typed, printed in sessions(ROOT / "docs" / "index.md"):
        words = commands(typed, {})[0].words[1:]
        if words[:1] != ["generate"] and words[:2] != ["trace", "record"]:
            continue
        code = 1 if printed.startswith("error: ") else 0
        if "cuda" in words and torch.cuda.is_available():
            continue
        model = [] if "-m" in words else ["-m", "ripple"]
        made = run(*words, *model, code=code)
        found = made.stderr if code else made.stdout
        start = printed.partition("…")[0]
        assert found.startswith(start) if "…" in printed else start.endswith(found)
        tried += 1
    assert tried >= 4


@pytest.mark.slow
def test_console_output_of_infill_page_is_current() -> None:
    """Run the console commands of docs/infill.md and compare their output."""
    examples = sessions(ROOT / "docs" / "infill.md")
    assert len(examples) >= 2
    for typed, printed in examples:
        assert run(*commands(typed, {})[0].words[1:]).stdout == printed


@pytest.mark.slow
def test_example_strategy_passes_all_laws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT)
    strategy = importlib.import_module("examples.new_strategy").OutsideIn(size=2)
    assert len(wavefront.testing.check(strategy)) == len(wavefront.testing.LAWS)


def test_readme_names_the_number_of_laws() -> None:
    text = (ROOT / "README.md").read_text()
    assert f"| {len(wavefront.testing.LAWS)} laws run on every strategy file" in text


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_commands_in_the_text_exist(page: Path) -> None:
    group: Any = typer.main.get_command(app)
    context = group.make_context("wavefront", [], resilient_parsing=True)
    named = re.findall(r"`wavefront ([a-z][a-z-]*)(?: ([a-z][a-z-]*))?", page.read_text("utf-8"))
    for first, second in named:
        command = group.get_command(context, first)
        assert command is not None, first
        if second and hasattr(command, "list_commands"):
            assert second in command.list_commands(context), f"{first} {second}"


@pytest.mark.parametrize("page", with_blocks("json"))
def test_json_blocks_parse(page: Path) -> None:
    for block in blocks(page, "json"):
        assert json.loads(block.text)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_headings_are_unique(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    titles = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert len(titles) == len({*titles})


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_resolve(page: Path) -> None:
    for link in links(page):
        if link.startswith("https://"):
            continue
        file, _, anchor = link.partition("#")
        target = (page.parent / file) if file else page
        assert target.exists(), f"{name(page)}: {link}"
        if anchor:
            assert anchor in anchors(target), f"{name(page)}: {link}"


def test_folded_headings_exist() -> None:
    """Every entry of `extra.fold` in mkdocs.yml folds something: an id, a level or objects."""
    listed = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))["extra"]["fold"]
    for pattern, entries in listed.items():
        found = [page for page in (ROOT / "docs").glob(pattern) if page.name != "changelog.md"]
        assert found or pattern == "changelog.md"
        for entry in entries:
            names = {name for page in found for name in anchors(page)}
            level = re.fullmatch(r"h\d|objects", entry)
            assert level or any(fnmatch(name, entry) for name in names), (pattern, entry)


def test_reference_lists_exactly_the_public_names() -> None:
    text = (ROOT / "docs" / "api.md").read_text("utf-8")
    listed = re.findall(r"^::: wavefront\.(?:\w+\.)*(\w+)$", text, re.MULTILINE)
    public = {*wavefront.__all__} - {"__version__", "testing"}
    assert sorted(listed) == sorted(public | FOR_EXTENSIONS)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('wavefront a "b c" # d', [["wavefront", "a", "b c"]]),
        ("wavefront a \\\n  b && wavefront c", [["wavefront", "a", "b"], ["wavefront", "c"]]),
        ('Q="x y"\nwavefront a "$Q"', [["wavefront", "a", "x y"]]),
        ('wavefront i "The <mask:4> dog."', [["wavefront", "i", "The <mask:4> dog."]]),
    ],
)
def test_shell_lines_parse_as_in_a_shell(text: str, words: list[list[str]]) -> None:
    assert [command.words for command in commands(text, {})] == words


def test_redirection_is_parsed() -> None:
    (command,) = commands("wavefront trace export a.npz > a.csv", {})
    assert (command.words[-1], command.into) == ("a.npz", "a.csv")


def test_wrong_option_of_an_exempt_command_is_reported() -> None:
    with pytest.raises(Exception, match="No such option"):
        parses(["wavefront", "bench", "--no-such-option"])


def test_blocks_have_their_line_numbers() -> None:
    (block, *_) = blocks(ROOT / "README.md", "python")
    lines = (ROOT / "README.md").read_text("utf-8").splitlines()
    assert isinstance(block, Block)
    assert lines[block.line - 1] == block.text.splitlines()[0]


HASH = re.compile(r"\b(?=[0-9a-f]*[0-9])(?=[0-9a-f]*[a-f])[0-9a-f]{7,40}\b")


def cited_commits(text: str) -> set[str]:
    """Return the hashes in lines that speak of a commit."""
    lines = [line for line in text.splitlines() if "commit" in line.lower()]
    return {found for line in lines for found in HASH.findall(line)}


def test_cited_commits_are_in_the_repository() -> None:
    git = ["git", "-C", str(ROOT)]
    shallow = subprocess.run(
        [*git, "rev-parse", "--is-shallow-repository"], capture_output=True, text=True, check=False
    )
    if shallow.stdout.strip() != "false":
        pytest.skip("the history is not here")
    pages = [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")]
    cited = {
        (str(page.relative_to(ROOT)), found)
        for page in pages
        for found in cited_commits(page.read_text("utf-8"))
    }
    assert len(cited) > 10, "the pattern finds commits"
    names = sorted({found for _, found in cited})
    given = "\n".join(f"{name}^{{commit}}" for name in names)
    answer = subprocess.run(
        [*git, "cat-file", "--batch-check"], input=given, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    missing = {name for name, line in zip(names, answer, strict=True) if " commit " not in line}
    assert sorted(one for one in cited if one[1] in missing) == []


def test_commits_are_found_in_sentences_and_settings() -> None:
    text = (
        "ran at commit `a95f1e2` and commit 2bb516b-dirty\n* commit: `a4e83eaed383`\n1234567 ms\n"
    )
    assert cited_commits(text) == {"a95f1e2", "2bb516b", "a4e83eaed383"}
