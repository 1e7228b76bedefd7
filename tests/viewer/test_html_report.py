"""The report: what comes in is checked; what goes out is whole, and obeys no text in it."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from helpers.commands import refused, run
from helpers.recordings import HOSTILE, hostile, record

import wavefront
from wavefront.core.errors import CheckpointError, ReportError, TraceError
from wavefront.player.player_data import reel
from wavefront.player.token_text import Words
from wavefront.results import table as run_tables
from wavefront.results.table import Interval, Item, Run, Table
from wavefront.traces import trace_file
from wavefront.traces.trace import Trace
from wavefront.viewer import html_report, visible
from wavefront.viewer.html_assembly import ASSETS, SCRIPTS

SVG = '<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'
PNG = b"\x89PNG\r\n\x1a\n" + bytes(8)


@pytest.fixture(scope="module")
def trace() -> Trace:
    return record("wavefront(size=4, radius=2)")


def saved(trace: Trace, folder: Path, name: str = "one.npz") -> Path:
    return trace_file.save(trace, folder / name)


def data(html: str) -> dict:
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', html)
    return json.loads(text)


class Elements(HTMLParser):
    """Every tag with its attributes, and the text of scripts and styles."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict]] = []
        self.text: dict[str, list[str]] = {"script": [], "style": []}
        self.inside = ""
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        self.inside = tag

    def handle_endtag(self, tag):
        self.inside = ""

    def handle_data(self, data):
        if self.inside in self.text:
            self.text[self.inside].append(data)


# The page is whole, and safe.


def test_equal_inputs_make_equal_pages_of_a_sensible_size(trace, tmp_path):
    files = [saved(trace, tmp_path, "a.npz"), saved(trace, tmp_path, "b.npz")]
    first, second = (html_report.make(files).html for _ in range(2))
    assert first == second
    assert 30_000 < len(first) < 200_000


def test_the_page_asks_for_nothing(trace, tmp_path):
    page = html_report.make([saved(trace, tmp_path), make_run(tmp_path / "run")]).html
    assert not re.search(r"https?:|//\w", page.replace("// ", ""))
    for tag, attributes in Elements(page).found:
        assert tag not in ("link", "iframe", "object", "embed", "base", "form")
        assert attributes.get("src", "data:").startswith("data:")
        assert attributes.get("href", "#").startswith("#")
        assert not any(name.startswith("on") or name == "style" for name in attributes)
        assert tag in ("svg", "path", "line", "circle") or "xmlns" not in attributes


def test_the_policy_lets_the_page_s_own_script_and_style_run_and_nothing_else(trace, tmp_path):
    page = html_report.make([saved(trace, tmp_path)]).html
    elements = Elements(page)
    (policy,) = [a["content"] for t, a in elements.found if t == "meta" and "http-equiv" in a]
    parts = dict(part.split(" ", 1) for part in policy.split("; "))
    assert parts["default-src"] == "'none'"

    def digest(text: str) -> str:
        return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

    (style,), (_, script) = elements.text["style"], elements.text["script"]
    assert parts["style-src"] == digest(style)
    assert parts["script-src"] == digest(script)
    assert parts["img-src"] == "data:"
    assert page.index("Content-Security-Policy") < page.index("<style>")


def test_the_page_s_own_files_cannot_end_their_element():
    for name in (*SCRIPTS, "style.css"):
        assert not re.search(r"</(script|style)|<!--", (ASSETS / name).read_text(), re.I)


def test_no_script_reads_text_as_html():
    for name in SCRIPTS:
        text = (ASSETS / name).read_text()
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|Function\(", text
        )


@pytest.mark.parametrize("words", HOSTILE)
def test_hostile_texts_stay_texts(trace, tmp_path, words):
    """As tokens, as titles, as names of models and options, as cells and notes."""
    file = saved(hostile(trace, words), tmp_path)
    table = Table(words, [words, "n"], [[words, Interval(1, 0, 2)]], words)
    settings = {words: words, "nested": {words: [words]}}
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "a.svg").write_text(SVG)
    run_tables.save(Run(words, words, settings, [table], [Item("a.svg", words, words)]), folder)
    page = html_report.make([file, folder], title=words).html
    page.encode()  # half a character would not pass
    plain = html_report.make([saved(trace, tmp_path, "p.npz"), make_run(tmp_path / "q")]).html
    assert tags(page) <= tags(plain)
    assert "\u2028" not in page.split('id="data">')[1]
    assert len(re.findall("<script", page)) == len(re.findall("<script", plain)) == 2
    assert not any(name.startswith("on") for _, found in Elements(page).found for name in found)
    texts = data(page)["texts"]
    assert all(not re.search("[\x00-\x09\x0b-\x1f\u202e\u2028]", text) for text in texts)


def tags(page: str) -> set[str]:
    return {tag for tag, _ in Elements(page).found}


def test_a_script_element_in_a_token_is_the_token_that_is_shown(trace, tmp_path):
    page = html_report.make([saved(hostile(trace, "</script><img onerror=x>"), tmp_path)]).html
    assert "</script><img onerror=x>" in data(page)["texts"]
    assert page.count("</script>") == 2


# What the player is told.


def test_a_reel_tells_what_the_trace_tells(trace):
    made = reel(trace, Words().reader(trace.about), title="t", place="p", cut=False)
    places = int((trace.first.slot >= 0).sum())
    start = int((trace.first.slot[0] >= 0).nonzero()[0])
    told = {(step, at) for step, at, _, _ in made["commits"]}
    assert told == {(s, p - start) for s, _, p in trace.commit.nonzero().tolist()}
    for step, at, _, p in made["commits"]:
        assert p == pytest.approx(float(trace.logp[step, 0, at + start].exp()), abs=1e-4)
    scope = bits(made["scope"], places)
    assert scope == trace.scope[:, 0, start:].tolist()
    assert bits(made["front"], places) == trace.front[:, 0, start:].tolist()
    assert len(made["final"]) == places
    assert made["board"] == [-1] * places


def bits(text: str, width: int) -> list[list[bool]]:
    raw, stride = base64.b64decode(text), -(-width // 8)
    rows = [raw[at : at + stride] for at in range(0, len(raw), stride)]
    return [[bool(row[k // 8] >> (7 - k % 8) & 1) for k in range(width)] for row in rows]


def test_beliefs_are_the_alternatives_of_the_trace():
    trace = record("standard", full=True)
    words = Words()
    made = reel(trace, words.reader(trace.about), title="t", place="p", cut=False)
    start = int((trace.first.slot[0] >= 0).nonzero()[0])
    found = made["beliefs"]
    raw = base64.b64decode(found["tokens"])
    numbers = torch.frombuffer(bytearray(raw), dtype=torch.int32).view(
        len(trace), -1, found["count"]
    )
    masked = torch.stack([canvas.masked[0] for canvas in trace.before()])[:, start:]
    for step, place in masked.nonzero().tolist():
        ids = trace.alternatives.tokens[step, 0, place + start].tolist()
        shown = [words.texts[number] for number in numbers[step, place].tolist()]
        assert shown == [visible(trace.about["texts"][str(one)]) for one in ids]
    assert [others[0][0] for others in made["others"]] == [
        text for _, _, text, _ in made["commits"]
    ]


def test_fill_begins_at_the_first_stop_token_of_every_hole():
    from wavefront.player.player_data import _fill

    stop = 9
    assert _fill([0, 1, 2, 3], [1, stop, 2, None], [stop]) == [False, True, True, True]
    assert _fill([0, 1, 4, 5], [stop, 1, 1, stop], [stop]) == [True, True, False, True]
    assert _fill([3, 4], [1, None], [stop]) == [False, False]


def test_a_row_of_a_batch_ends_with_its_last_commit(tmp_path):
    lm = wavefront.load("toy")
    made = lm.generate(["abc", "d"], max_new_tokens=6, trace=True)[0].trace
    idle = torch.zeros_like(made.commit)
    idle[:4] = made.commit[:4]
    short = replace(made, commit=torch.stack([made.commit[:, 0], idle[:, 1]], 1))
    reels = data(html_report.make([saved(short, tmp_path)]).html)["reels"]
    assert [len(one["launched"]) for one in reels] == [6, 4]
    assert [one["place"] for one in reels] == ["one.npz, row 0", "one.npz, row 1"]


def test_what_was_written_by_hand_is_told(trace, tmp_path):
    start = int((trace.first.slot[0] >= 0).nonzero()[0])
    forked = replace(trace, overrides=torch.tensor([[2, 0, start + 1, 65]]))
    (made,) = data(html_report.make([saved(forked, tmp_path)]).html)["reels"]
    assert [one[:2] for one in made["by_hand"]] == [[2, 1]]


# Texts.


def test_the_texts_of_the_trace_come_first(trace, tmp_path):
    told = {name: f"<{name}>" for name in trace.about["texts"]}
    file = saved(
        replace(trace, about={**trace.about, "texts": told, "model": "no/where"}), tmp_path
    )
    made = html_report.make([file])
    assert made.notes == []
    assert all(text.startswith("<") for text in data(made.html)["texts"])


def test_without_texts_the_named_model_s_tokenizer_reads(trace, tmp_path):
    about = {name: value for name, value in trace.about.items() if name != "texts"}
    file = saved(replace(trace, about=about), tmp_path)
    made = html_report.make([file])
    assert made.notes == []
    (one,) = data(made.html)["reels"]
    assert one["lead"][0][1] == "Hi"


@pytest.mark.parametrize("model", ["no/where", "", None, 7])
def test_without_any_tokenizer_ids_are_shown_and_it_is_said(trace, tmp_path, model):
    file = saved(replace(trace, about={"model": model}), tmp_path)
    made = html_report.make([file])
    assert "shown as ids" in made.notes[0]
    assert "shown as ids" in made.html
    assert all(text.isdecimal() for text in data(made.html)["texts"])
    chosen = html_report.make([file], model="toy")
    assert chosen.notes == []
    with pytest.raises(CheckpointError):
        html_report.make([file], model="nowhere")


def test_a_character_in_several_tokens_is_put_together(trace):
    lm = wavefront.load("toy")
    reader = Words("toy").reader({})
    ids = lm.tokenizer.encode("né日x")
    assert reader.joins(ids) == [(1, 2, "é"), (3, 3, "日")]
    assert reader.joins(ids[:5]) == [(1, 2, "é")]  # its last byte is missing


def test_a_prompt_is_told_by_its_turns():
    lm = wavefront.load("ripple")
    reader = Words("ripple").reader({})
    said = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "user\nHow?"}]
    ids = lm.generate(said, max_new_tokens=1, trace=True).trace.first.tokens[0].tolist()
    assert reader.turns(ids[:-1]) == [("system", "Be brief."), ("user", "user\nHow?")]


# Run directories.


def make_run(folder: Path, **changes: object) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "b.svg").write_text(SVG)
    (folder / "b.png").write_bytes(PNG)
    (folder / "b-dark.svg").write_text(SVG)
    (folder / "a.png").write_bytes(PNG)
    found = {
        "format": "wavefront-run",
        "version": 1,
        "title": "A run",
        "text": "One.\n\nTwo.",
        "configuration": {"model": "toy", "options": {"seed": 1}},
        "tables": [
            {
                "title": "Accuracy",
                "columns": ["strategy", "accuracy", "steps"],
                "rows": [
                    ["block", {"value": 0.655, "low": 0.585, "high": 0.72}, 64],
                    ["wave", {"value": 0.69, "low": 0.62, "high": 0.75}, None],
                ],
                "note": "Wilson.",
            }
        ],
    }
    (folder / "run.json").write_text(json.dumps(found | changes))
    return folder


def test_a_run_shows_its_tables_figures_and_settings(tmp_path):
    made = html_report.make([make_run(tmp_path / "run")])
    assert (made.decodes, made.tables, made.figures) == (0, 1, 2)
    page = made.html
    assert "<h1>A run</h1>" in page
    assert '<b>0.66</b> <span class="range">[0.58, 0.72]</span>' in page
    assert page.count('class="whisker"') == 2
    assert '<th scope="row">options.seed</th>' not in page  # options are known by bare names
    assert '<th scope="row">seed</th><td>1</td>' in page
    images = [a for tag, a in Elements(page).found if tag == "img"]
    assert [(one["alt"], one["class"]) for one in images] == [
        ("a", "both"),
        ("b", "light"),
        ("b", "dark"),
    ]
    assert images[1]["src"].startswith("data:image/svg+xml;base64,")
    assert 'id="player"' not in page


def test_listed_files_come_first_with_their_titles(trace, tmp_path):
    folder = make_run(tmp_path / "run", figures=[{"file": "b.png", "title": "Bees"}])
    saved(trace, folder, "z.npz")
    saved(trace, folder, "y.npz")
    found = run_tables.read(folder)
    assert [one.file for one in found.figures] == ["b.png", "a.png"]
    assert [one.file for one in found.traces] == ["y.npz", "z.npz"]
    assert html_report.make([folder]).decodes == 2


def test_what_is_saved_is_read(tmp_path):
    table = Table("T", ["a", "b"], [["x", Interval(0.5, 0.25, 1)], [None, 3], [True, 0.5]])
    run_tables.save(Run("R", "text", {"a": 1}, [table]), tmp_path)
    found = run_tables.read(tmp_path)
    assert found.title == "R"
    assert [list(row) for row in found.tables[0].rows] == [list(row) for row in table.rows]
    with pytest.raises(ReportError, match="cells"):
        run_tables.save(Run("R", tables=[Table("T", ["a"], [[1, 2]])]), tmp_path)


TABLE = {"columns": ["a"], "rows": [[1]]}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"format": "other"}, "is not of a run"),
        ({"version": 2}, "version 2"),
        ({"title": " "}, "has no title"),
        ({"title": 3}, '"title" must be a text'),
        ({"titel": "x"}, "did you mean 'title'"),
        ({"configuration": []}, '"configuration" must be'),
        ({"tables": {}}, '"tables" must be a list'),
        ({"tables": [3]}, '"tables" must be a list'),
        ({"tables": [TABLE | {"columns": []}]}, "at least one column"),
        ({"tables": [TABLE | {"columns": [1]}]}, "list of texts"),
        ({"tables": [TABLE | {"rows": [[1], [1, 2]]}]}, "table 1, row 2 must have 1 cells"),
        ({"tables": [TABLE | {"rows": [[[1]]]}]}, "a cell is"),
        ({"tables": [TABLE | {"rows": [[{"value": 1}]]}]}, "an interval has"),
        ({"tables": [TABLE | {"rows": [[{"value": 5, "low": 1, "high": 2}]]}]}, "is not between"),
        ({"tables": [TABLE | {"rows": [[{"value": "5", "low": 1, "high": 2}]]}]}, "an interval"),
        ({"tables": [TABLE | {"rows": [[10**400]]}]}, "a cell is"),
        ({"tables": [TABLE | {"row": []}]}, "did you mean 'rows'"),
        ({"figures": [{"file": "../b.svg"}]}, "beside it"),
        ({"figures": [{"file": "/etc/b.svg"}]}, "beside it"),
        ({"figures": [{"file": "b.gif"}]}, "beside it"),
        ({"figures": [{"file": "c.svg"}]}, "not in the directory"),
        ({"traces": [{"file": "c.npz"}]}, "not in the directory"),
    ],
)
def test_a_wrong_run_is_refused_in_a_sentence(tmp_path, changes, words):
    with pytest.raises(ReportError) as error:
        html_report.make([make_run(tmp_path / "run", **changes)])
    assert words in str(error.value)
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"title": NaN}', "null", "\ud800"])
def test_what_is_not_json_is_refused(tmp_path, text):
    folder = make_run(tmp_path / "run")
    (folder / "run.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(ReportError, match=r"run\.json"):
        html_report.make([folder])


def test_a_figure_that_is_none_is_refused(tmp_path):
    folder = make_run(tmp_path / "run")
    (folder / "a.png").write_text("<html>")
    with pytest.raises(ReportError, match=r"a\.png is not a figure"):
        html_report.make([folder])
    (folder / "a.png").unlink()
    (folder / "b.svg").write_text("no picture")
    with pytest.raises(ReportError, match=r"b\.svg is not a figure"):
        html_report.make([folder])


def test_a_directory_without_a_run_and_a_foreign_file_are_refused(tmp_path):
    with pytest.raises(ReportError, match=r"no run\.json"):
        html_report.make([tmp_path])
    (tmp_path / "x.npz").write_bytes(b"nothing")
    with pytest.raises(TraceError):
        html_report.make([tmp_path / "x.npz"])
    with pytest.raises(ReportError, match="nothing to report"):
        html_report.make([])


# The command.


def test_the_command_writes_the_page_and_says_where(trace, tmp_path):
    file, page = saved(trace, tmp_path), tmp_path / "new" / "page.html"
    result = run("report", str(file), str(file), "-o", str(page), "--title", "Ours & theirs")
    assert result.stdout == f"{page}\n"
    assert result.stderr == ""
    assert "<title>Ours &amp; theirs</title>" in page.read_text(encoding="utf-8")


def test_rows_are_chosen(tmp_path):
    made = wavefront.load("toy").generate(["a"] * 10, max_new_tokens=2, trace=True)[0].trace
    file, page = str(saved(made, tmp_path)), tmp_path / "page.html"
    result = run("report", file, "-o", str(page))
    assert "the first 8 are shown" in result.stderr
    assert len(data(page.read_text())["reels"]) == 8
    run("report", file, "-o", str(page), "--rows", "9,1")
    assert [one["place"] for one in data(page.read_text())["reels"]] == [
        "one.npz, row 9",
        "one.npz, row 1",
    ]
    assert "has the rows 0 to 9" in refused("report", file, "-o", str(page), "--rows", "10")


def test_the_command_refuses_in_a_sentence(trace, tmp_path):
    file = str(saved(trace, tmp_path))
    assert "does not exist" in refused("report", str(tmp_path / "none.npz"))
    assert "cannot be written" in refused("report", file, "-o", str(tmp_path))
    assert "give another -o" in refused("report", file, "-o", file)
    page = run("report", "--help").stdout
    assert all(len(line) <= 80 for line in page.splitlines())
    assert "wavefront report wave.npz block.npz" in page
