"""A model outside the package, `module:factory`, works wherever a model's name does."""

from __future__ import annotations

import html
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.commands import refused, run
from helpers.servers import serving

import wavefront
from wavefront.core.errors import CheckpointError, OptionError, RunError
from wavefront.evaluation import (
    Loader,
    LocalExecutor,
    RunConfig,
    Worker,
    explain,
    generate_answers,
    open_run,
)
from wavefront.evaluation import grade as grade_run
from wavefront.lm import factory_tokenizer
from wavefront.tasks.base import Ask
from wavefront.traces import trace_file

MODEL = "examples.new_model:pairs"
ROOT = Path(wavefront.__file__).parents[1]


@pytest.fixture(autouse=True)
def from_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))


def test_factory_loads_generates_and_infills() -> None:
    lm = wavefront.load(MODEL)
    assert lm.name == MODEL
    answer = lm.generate("the c", raw=True, max_new_tokens=6, strategy="left_to_right")
    assert answer.text.startswith("at")  # the letters that follow in its text
    assert len(lm.infill("the <mask:3> sat").tokens) == 3
    assert lm.generate(["a", "bc"], max_new_tokens=4)[1].forwards <= 4


def test_model_without_windows_refuses_a_cache_with_one_sentence() -> None:
    lm = wavefront.load(MODEL)
    with pytest.raises(OptionError, match=r"can compute a window of positions.*leave out cache"):
        lm.generate("a", cache="wave()", max_new_tokens=4)
    assert lm.generate("a", speed="fast", max_new_tokens=4).finish_reason  # no cache, no error
    line = refused("generate", "-m", MODEL, "a", "-n", "4", "--cache", "dual")
    assert "leave out cache" in line


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("no_such_module:make", "Run from the directory that holds it"),
        ("examples.new_model:pears", "has no attribute 'pears'"),
        ("examples.new_model:TEXT", "is not a function that makes a model"),
        ("examples.new_model:byte_tokenizer", "must return a wavefront.LM"),
        ("examples.new_model:pairs", "has no parameter 'dtype'"),
        ("own_models:half", "lacks .*device.*head.*hidden"),
    ],
)
def test_wrong_factory_is_refused_with_one_sentence(
    name: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_models.py").write_text(
        "from wavefront.text.byte_tokenizer import byte_tokenizer\n"
        "def half():\n    return object(), byte_tokenizer()\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    options = {"dtype": "float16"} if name == MODEL else {}
    with pytest.raises(OptionError, match=words):
        wavefront.load(name, **options)


def test_name_of_a_file_is_refused_with_the_name_to_write() -> None:
    with pytest.raises(CheckpointError, match=r"or the function of your file .*, as pairs:NAME"):
        wavefront.load("pairs.py")


def test_tokenizer_of_a_factory_needs_no_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "large_models.py").write_text(
        "from wavefront.text.byte_tokenizer import byte_tokenizer\n"
        "def large(tokenizer_only=False):\n    assert tokenizer_only\n"
        "    return byte_tokenizer()\n"
        "def wrong(tokenizer_only=False):\n    return None\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert factory_tokenizer("large_models:large").encode("a")
    with pytest.raises(OptionError, match="must return a Tokenizer with tokenizer_only=True"):
        factory_tokenizer("large_models:wrong")
    assert factory_tokenizer("wavefront.bench.model_shapes:llada_8b").encode("a")


def test_no_file_imports_a_model(tmp_path: Path) -> None:
    loader = Loader(path=MODEL)
    config = RunConfig(
        task="boolean_expressions",
        ask=Ask(count=2, style="bare"),
        options={"max_new_tokens": 4, "strategy": "standard"},
        loader=loader,
    )
    executor = LocalExecutor(Worker(loader))
    for name in "ab":
        generate_answers(executor, config, tmp_path / name)
        grade_run(open_run(tmp_path / name))
    assert len(open_run(tmp_path / "a").decides["model"]["factory"]) == 32
    grades = tmp_path / "b" / "grades.jsonl"
    lines = [json.loads(line) for line in grades.read_text().splitlines()]
    right = [{**line, "correct": not line["correct"]} for line in lines]
    grades.write_text("".join(f"{json.dumps(line)}\n" for line in right))
    one, two = (open_run(tmp_path / name) for name in "ab")
    sys.modules.pop("examples.new_model")
    with pytest.raises(RunError, match=r"new_model:pairs.*not built in.*--model"):
        explain(one, two)
    trace = tmp_path / "a.npz"
    lm = wavefront.load(MODEL)
    made = lm.generate("a", max_new_tokens=4, trace=True).trace
    assert made is not None
    trace_file.save(made, trace)
    sys.modules.pop("examples.new_model")
    assert "--model" in refused("trace", "replay", str(trace))
    page = tmp_path / "a.html"
    run("report", str(trace), "-o", str(page))
    assert "examples.new_model" not in sys.modules
    assert explain(one, two, models=[MODEL])[0].comparison.count == 2
    about = {name: value for name, value in made.about.items() if name != "texts"}
    trace_file.save(replace(made, about=about), trace)  # only the tokenizer has the texts
    noted = run("report", str(trace), "-o", str(page)).stderr
    assert "shown as ids" in noted
    assert run("report", str(trace), "-o", str(page), "-m", MODEL).stderr == ""
    text = lm.text_of(made)
    assert text
    assert text in html.unescape(page.read_text("utf-8"))
    assert "has no attribute 'pears'" in refused(
        "report", str(trace), "-o", str(page), "-m", "examples.new_model:pears"
    )


def test_factory_works_in_generate_and_eval_on_the_command_line(tmp_path: Path) -> None:
    want = wavefront.load(MODEL).generate("the c", raw=True, max_new_tokens=8).text
    made = run("generate", "-m", MODEL, "the c", "--raw", "-n", "8", "--json")
    assert json.loads(made.stdout)["text"] == want
    options = ("--task", "boolean_expressions", "-i", "2", "-n", "4", "-q")
    run("eval", "run", "-m", MODEL, *options, "--out", str(tmp_path / "run"))
    assert len(open_run(tmp_path / "run").grades) == 2


@pytest.mark.slow
def test_factory_works_in_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    want = wavefront.load(MODEL).generate("the c", raw=True, max_new_tokens=8)
    with serving("-m", MODEL) as server:
        body = {"model": MODEL, "prompt": "the c", "max_tokens": 8}
        answer = server.post("/v1/completions", **body).json()
        assert answer["choices"][0]["text"] == want.text
        assert answer["usage"]["wavefront"]["forwards"] == want.forwards
        refusal = server.post("/v1/completions", **body, cache="wave()")
        assert refusal.status_code == 400
        assert "leave out cache" in refusal.json()["error"]["message"]


def test_unknown_model_names_the_way_to_an_own_one() -> None:
    assert "'module:factory'" in refused("generate", "Hi", "-m", "wave_model.waves")
    original = refused("train", "adapt", "--original", "none.bin", "--out", "x", "--steps", "2")
    assert "module:factory" not in original  # it cannot be adapted
