"""`wavefront paper run stories`: the quality of stories, and a page of them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.commands import refused, run

from wavefront.analysis.quality import MEASURES, TextQuality, differences, estimates
from wavefront.evaluation import open_run
from wavefront.evaluation.judging import qualities
from wavefront.paper import stories
from wavefront.results import table

pytestmark = pytest.mark.slow

FEW = ("--items", "2", "-n", "8", "-b", "2", "-q")
TWO = ("-s", "standard", "-s", stories.WAVE)


def ask(home: Path, *more: str) -> tuple[str, ...]:
    return ("paper", "run", "stories", *FEW, *TWO, *more, "-o", str(home))


def rounded(value: float | None) -> float | None:
    """Return a measure as results.jsonl has it."""
    return float(f"{value:.6g}") if isinstance(value, float) else value


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of two stories, two strategies and two canvases."""
    folder = tmp_path_factory.mktemp("stories") / "out"
    run(*ask(folder))
    return folder


def test_page_has_a_line_for_every_cell_and_for_the_original(home: Path) -> None:
    found = table.read(home)
    first = found.tables[0]
    assert first.title == "8 positions"
    assert [row[:2] for row in first.rows] == [
        *([steps, spec] for steps in (8, 4, 2, 1) for spec in ("standard", stories.WAVE)),
        [None, "the original's own texts"],
    ]  # fmt: skip
    answered = open_run(home / "runs" / "tale" / "stories--standard--N=8-T=2")
    texts = qualities(answered).values()
    means = estimates([TextQuality(*map(rounded, text)) for text in texts])
    assert list(first.rows[4][2:9]) == [means[name] for name in MEASURES]
    assert [one.title for one in found.tables[1:]] == [
        f"8 positions: differences to {stories.WAVE}",
        "16 positions",
        f"16 positions: differences to {stories.WAVE}",
    ]
    gaps = found.tables[1].rows
    assert [row[:2] for row in gaps] == [[steps, "standard"] for steps in (8, 4, 2, 1)]
    assert {row[-1] for row in gaps} == {"not measurable here: fewer than 6 stories"}
    numbers = json.loads((home / "numbers.json").read_text())
    assert numbers["n"] == 2
    assert numbers["N=16"]["measured"][1]["steps"] == 16
    assert (home / "stories.svg").is_file()


def test_page_of_texts_has_every_story(home: Path) -> None:
    page = (home / "texts.md").read_text()
    assert page.count("## Opening") == 2
    assert page.count("**`standard`, T = 8** (8 tokens, ") == 2
    for answered in (home / "runs" / "tale").glob("*--N=8-*"):
        for answer in open_run(answered).answers.values():
            assert stories._escape(answer["text"].strip()) in page
    assert "T = 8 decides one token a step, and T = 1 decides 8 tokens a step." in page
    assert "](summary.md)" in page
    assert "](texts.md)" in (home / "summary.md").read_text()


def test_finished_run_makes_its_page_without_a_model(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wavefront.lm.load", lambda *_, **__: pytest.fail("loaded"))
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "results.jsonl").write_bytes((home / "results.jsonl").read_bytes())
    run(*ask(copy))
    for name in ("summary.md", "texts.md", "stories.svg", "numbers.json"):
        assert (copy / name).read_bytes() == (home / name).read_bytes()
    said = refused(*ask(copy, "--seed", "3"))
    assert "has a run with different settings: seed is 3 here and 0 there" in said


@pytest.mark.parametrize(
    "text",
    ["{}", "[]", "{", '{"key": "settings"}', '{"key": "settings", "value": {}}\n{"key": "a"}'],
)
def test_damaged_results_are_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "results.jsonl").write_text(f"{text}\n")
    assert "results.jsonl" in refused(*ask(tmp_path))


def test_damaged_record_is_named(home: Path, tmp_path: Path) -> None:
    lines = [json.loads(line) for line in (home / "results.jsonl").read_text().splitlines()]
    del lines[1]["value"]["texts"]
    text = "".join(f"{json.dumps(line)}\n" for line in lines)
    (tmp_path / "results.jsonl").write_text(text)
    assert "results.jsonl has a damaged record of tale/stories--standard" in refused(*ask(tmp_path))


@pytest.mark.slow
def test_machine_without_matplotlib_decodes_and_another_draws(tmp_path: Path) -> None:
    args = list(ask(tmp_path / "out"))
    code = f"import sys; sys.modules['matplotlib'] = None\nsys.argv[1:] = {args!r}\n"
    code += "from wavefront.cli.app import main\nmain()\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "The figures are missing, because matplotlib is not installed here" in done.stdout
    assert not (tmp_path / "out" / "stories.svg").exists()
    run(*args)
    assert (tmp_path / "out" / "stories.svg").is_file()
    assert "The figures are missing" not in (tmp_path / "out" / "summary.md").read_text()


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--task", "gsm"), "stories needs a task with a judge: leave out --task gsm."),
        (("-t", "4"), "stories uses T = N, N/2, N/4 and N/8: leave out --steps."),
        (("--canvas", "0"), "--canvas must be at least 1, not 0."),
        (("--canvas", "100"), "2 prompts and 800 positions exceed the model"),
        (("-m", "toy"), "The judge of tale cannot read the tokens of this model"),
    ],
)
def test_wrong_options_are_one_sentence(args: tuple[str, ...], said: str, tmp_path: Path) -> None:
    assert said in refused(*ask(tmp_path / "out", *args))


def judged(
    nats: float, *, length: int = 100, distinct: float = 0.9, premature: bool = False
) -> list[TextQuality]:
    """Return eight stories of this quality, with a little noise in the nats."""
    return [
        TextQuality(nats + 0.01 * n, length, distinct, nats + 0.01 * n, 64, distinct, premature)
        for n in range(8)
    ]


@pytest.mark.parametrize(
    ("wave", "other", "said"),
    [
        (judged(1.5), judged(3.0), "the wave"),
        (judged(3.0), judged(1.5), "block"),
        (
            judged(0.8),
            judged(0.9),
            "not measurable here: both are likelier than the original's own texts",
        ),
        (judged(1.5), judged(1.5), "no difference in nats above 0.000"),
        (
            judged(1.5, length=40),
            judged(3.0, length=90),
            "mixed: the wave has lower nats, but worse tokens",
        ),
        (
            judged(3.0),
            judged(1.5, distinct=0.5, premature=True),
            "mixed: block has lower nats, but worse distinct trigrams, first 64: distinct "
            "trigrams, ends within 64 tokens",
        ),
        (judged(1.5, distinct=0.9), judged(3.0, distinct=0.5, premature=True), "the wave"),
    ],
)
def test_better_strategy_must_not_be_worse_in_anything_else(
    wave: list[TextQuality], other: list[TextQuality], said: str
) -> None:
    found = stories.compare_texts(
        ("the wave", "block"),
        differences(wave, other),
        means=(estimates(wave), estimates(other)),
        original=estimates(judged(1.1)),
    )
    assert found == said


def test_text_is_escaped_for_markdown() -> None:
    text = "He said: *hi* [x](y) <b> & `c`\n# 1_2"
    assert stories._escape(text) == (r"He said: \*hi\* \[x\](y) &lt;b&gt; &amp; \`c\`<br>\# 1\_2")
