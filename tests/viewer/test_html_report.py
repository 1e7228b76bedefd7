"""The HTML report: inputs are checked, the page is complete, and no text in it can run."""

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
from wavefront.models.toy import toy
from wavefront.player.page import ASSETS, SCRIPTS, START
from wavefront.player.player_data import DecodeRecord, decode_record
from wavefront.player.token_text import TokenReaders
from wavefront.results import table as run_tables
from wavefront.results.table import Interval, Run, RunFile, Table
from wavefront.traces import trace_file
from wavefront.traces.trace import Trace
from wavefront.viewer import html_report, visible

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


def texts_of(html: str) -> list[str]:
    """Return every token text that the page embeds."""
    found: list[str] = []
    for decode in data(html)["decodes"]:
        start, *steps = decode["events"]
        found += start.get("texts", {}).values()
        found += [commit[2] for step in steps for commit in step["commits"]]
        found += [written[2] for step in steps for written in step.get("written", [])]
    return found


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


# The page is complete and safe.


def test_equal_inputs_make_equal_pages_of_a_sensible_size(trace, tmp_path):
    files = [saved(trace, tmp_path, "a.npz"), saved(trace, tmp_path, "b.npz")]
    first, second = (html_report.make(files).html for _ in range(2))
    assert first == second
    assert 30_000 < len(first) < 200_000


def test_page_loads_nothing_from_the_network(trace, tmp_path):
    page = html_report.make([saved(trace, tmp_path), make_run(tmp_path / "run")]).html
    assert not re.search(r"https?:|//\w", page.replace("// ", ""))
    for tag, attributes in Elements(page).found:
        assert tag not in ("link", "iframe", "object", "embed", "base", "form")
        assert attributes.get("src", "data:").startswith("data:")
        assert attributes.get("href", "#").startswith("#")
        assert not any(name.startswith("on") or name == "style" for name in attributes)
        assert tag in ("svg", "path", "line", "circle") or "xmlns" not in attributes


def test_policy_allows_only_its_own_script_and_style(trace, tmp_path):
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


def test_assets_cannot_end_their_element():
    for name in (*SCRIPTS, START, "player.css"):
        assert not re.search(r"</(script|style)|<!--", (ASSETS / name).read_text(), re.I)


def test_no_script_reads_text_as_html():
    for name in (*SCRIPTS, START):
        text = (ASSETS / name).read_text()
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|Function\(", text
        )


@pytest.mark.parametrize("words", HOSTILE)
def test_hostile_texts_are_shown_as_text(trace, tmp_path, words):
    """Use them as tokens, titles, names of models and options, cells and notes."""
    file = saved(hostile(trace, words), tmp_path)
    table = Table(words, [words, "n"], [[words, Interval(1, 0, 2)]], words)
    settings = {words: words, "nested": {words: [words]}}
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "a.svg").write_text(SVG)
    run_tables.save(Run(words, words, settings, [table], [RunFile("a.svg", words, words)]), folder)
    page = html_report.make([file, folder], title=words).html
    page.encode()  # a lone surrogate would fail
    plain = html_report.make([saved(trace, tmp_path, "p.npz"), make_run(tmp_path / "q")]).html
    assert tags(page) <= tags(plain)
    assert "\u2028" not in page.split('id="data">')[1]
    assert len(re.findall("<script", page)) == len(re.findall("<script", plain)) == 2
    assert not any(name.startswith("on") for _, found in Elements(page).found for name in found)
    texts = texts_of(page)
    assert texts
    assert all(not re.search("[\x00-\x09\x0b-\x1f\u202e\u2028]", text) for text in texts)


def tags(page: str) -> set[str]:
    return {tag for tag, _ in Elements(page).found}


def test_script_element_in_a_token_is_shown_as_text(trace, tmp_path):
    page = html_report.make([saved(hostile(trace, "</script><img onerror=x>"), tmp_path)]).html
    assert "</script><img onerror=x>" in texts_of(page)
    assert page.count("</script>") == 2


# The data of the player.


def record_of(trace: Trace, readers: TokenReaders | None = None) -> DecodeRecord:
    reader = (readers or TokenReaders()).reader(trace.about)
    return decode_record(trace, reader, title="t", file="f", trim=False)


def test_record_holds_the_events_of_the_trace(trace):
    first, *steps = record_of(trace).events
    count = int((trace.first.slot >= 0).sum())
    start = int((trace.first.slot[0] >= 0).nonzero()[0])
    committed = {(step, c[0]) for step, event in enumerate(steps) for c in event["commits"]}
    assert committed == {(s, p - start) for s, _, p in trace.commit.nonzero().tolist()}
    for step, event in enumerate(steps):
        assert event["forwards"] == int(trace.launched[step])
        for at, token, _, p in event["commits"]:
            assert token == int(trace.tokens[step, 0, at + start])
            assert p == pytest.approx(float(trace.logp[step, 0, at + start].exp()), abs=1e-4)
    assert [bits(event["scope"], count) for event in steps] == trace.candidates[
        :, 0, start:
    ].tolist()
    assert [bits(event["front"], count) for event in steps] == trace.front[:, 0, start:].tolist()
    assert first["places"] == count
    assert first["around"] is None
    assert first["given"] == []


def bits(text: str, width: int) -> list[bool]:
    raw = base64.b64decode(text)
    assert len(raw) == -(-width // 8)
    return [bool(raw[k // 8] >> (7 - k % 8) & 1) for k in range(width)]


def test_beliefs_are_the_alternatives_of_the_trace():
    trace = record("standard", full=True)
    first, *steps = record_of(trace).events
    start = int((trace.first.slot[0] >= 0).nonzero()[0])
    raw = b"".join(base64.b64decode(event["beliefs"]["tokens"]) for event in steps)
    numbers = torch.frombuffer(bytearray(raw), dtype=torch.int32).view(
        len(trace), -1, first["alternatives"]
    )
    masked = torch.stack([canvas.masked[0] for canvas in trace.before()])[:, start:]
    for step, position in masked.nonzero().tolist():
        ids = trace.alternatives.tokens[step, 0, position + start].tolist()
        assert numbers[step, position].tolist() == ids
        shown = [first["texts"][str(one)] for one in ids]
        assert shown == [visible(trace.about["texts"][str(one)]) for one in ids]
    commits = [commit for event in steps for commit in event["commits"]]
    assert [others[0][0] for *_, others in commits] == [token for _, token, *_ in commits]


def test_infilling_keeps_the_given_texts_and_the_sizes_of_the_holes():
    lm = wavefront.load("toy")
    trace = lm.infill("One <mask:3> two <mask:2>.", trace=True).trace
    first = record_of(trace).events[0]
    assert first["around"] == ["One ", 3, " two ", 2, "."]
    assert first["places"] == 5
    assert first["prompt"] == []


def test_rest_of_the_last_block_is_not_part_of_the_answer():
    found = wavefront.generate_ids(
        toy(family="sdar"), [[5, 6, 7]], max_new_tokens=6, eos="keep", trace=True
    )
    assert found.trace is not None
    forked = replace(found.trace, overrides=torch.tensor([[1, 0, 10, 9]]))
    made = record_of(forked)
    assert made.events[0]["places"] == made.summary.tokens == 6
    assert made.summary.text == "".join(map(str, found.tokens[0]))
    shown = [one[0] for event in made.events[1:] for one in event["commits"]]
    assert sorted(shown) == [*range(6)]


def test_fill_begins_at_the_first_stop_token_of_every_hole():
    from wavefront.player.player_data import _after_end

    stop = 9
    assert _after_end([0, 1, 2, 3], [1, stop, 2, None], [stop]) == [False, True, True, True]
    assert _after_end([0, 1, 4, 5], [stop, 1, 1, stop], [stop]) == [True, True, False, True]
    assert _after_end([3, 4], [1, None], [stop]) == [False, False]


def test_row_of_a_batch_ends_with_its_last_commit(tmp_path):
    lm = wavefront.load("toy")
    made = lm.generate(["abc", "d"], max_new_tokens=6, trace=True)[0].trace
    idle = torch.zeros_like(made.commit)
    idle[:4] = made.commit[:4]
    short = replace(made, commit=torch.stack([made.commit[:, 0], idle[:, 1]], 1))
    decodes = data(html_report.make([saved(short, tmp_path)]).html)["decodes"]
    assert [len(one["events"]) - 1 for one in decodes] == [6, 4]
    assert [one["file"] for one in decodes] == ["one.npz, row 0", "one.npz, row 1"]


def test_tokens_written_by_hand_are_in_the_record(trace, tmp_path):
    start = int((trace.first.slot[0] >= 0).nonzero()[0])
    forked = replace(trace, overrides=torch.tensor([[2, 0, start + 1, 65]]))
    (made,) = data(html_report.make([saved(forked, tmp_path)]).html)["decodes"]
    steps = made["events"][1:]
    written = [(n, *one[:2]) for n, step in enumerate(steps) for one in step.get("written", [])]
    assert written == [(2, 1, 65)]


# Texts.


def test_texts_of_the_trace_come_first(trace, tmp_path):
    told = {name: f"<{name}>" for name in trace.about["texts"]}
    file = saved(
        replace(trace, about={**trace.about, "texts": told, "model": "no/where"}), tmp_path
    )
    made = html_report.make([file])
    assert made.notes == []
    assert all(text.startswith("<") for text in texts_of(made.html))


def test_named_model_s_tokenizer_reads_a_trace_without_texts(trace, tmp_path):
    about = {name: value for name, value in trace.about.items() if name != "texts"}
    file = saved(replace(trace, about=about), tmp_path)
    made = html_report.make([file])
    assert made.notes == []
    (one,) = data(made.html)["decodes"]
    assert one["events"][0]["prompt"][0][1] == "Hi"


@pytest.mark.parametrize("model", ["no/where", "", None, 7])
def test_ids_are_shown_with_a_note_when_there_is_no_tokenizer(trace, tmp_path, model):
    file = saved(replace(trace, about={"model": model}), tmp_path)
    made = html_report.make([file])
    assert "shown as ids" in made.notes[0]
    assert "shown as ids" in made.html
    assert all(text.isdecimal() for text in texts_of(made.html))
    chosen = html_report.make([file], model="toy")
    assert chosen.notes == []
    with pytest.raises(CheckpointError):
        html_report.make([file], model="nowhere")


def test_tokens_of_one_character_are_joined(trace):
    lm = wavefront.load("toy")
    reader = TokenReaders("toy").reader({})
    ids = lm.tokenizer.encode("né日x")
    assert reader.joins(ids) == [(1, 2, "é"), (3, 3, "日")]
    assert reader.joins(ids[:5]) == [(1, 2, "é")]  # its last byte is missing


def test_prompt_is_split_into_turns():
    lm = wavefront.load("ripple")
    reader = TokenReaders("ripple").reader({})
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


def test_run_shows_its_tables_figures_and_settings(tmp_path):
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


def test_page_says_its_title_once(tmp_path):
    folder = make_run(tmp_path / "run")
    assert html_report.make([folder]).html.count("A run</h") == 1
    assert "<h2>A run</h2>" in html_report.make([folder], title="Another").html
    twice = html_report.make([folder, folder]).html
    assert twice.count("<h2>A run</h2>") == 2


def test_run_is_shown_as_a_person_would_write_it(tmp_path):
    verdict = "not measurable here: fewer than 6 stories"
    table = {"title": "T", "columns": ["a", "verdict"], "rows": [["x", verdict]]}
    folder = make_run(
        tmp_path / "run",
        text="[Some <b> stories](texts.md) and [1, 2](javascript:x).",
        tables=[table],
        configuration={"tasks": ["gsm", "code"], "sizes": [1, 2]},
    )
    page = html_report.make([folder]).html
    assert "<p>Some &lt;b&gt; stories (<code>texts.md</code>) and [1, 2](javascript:x).</p>" in page
    assert f'<td class="long">{verdict}</td>' in page
    assert "<td>x</td>" in page
    assert "<td>gsm, code</td>" in page
    assert "<td>[1, 2]</td>" in page


def test_listed_files_come_first_with_their_titles(trace, tmp_path):
    folder = make_run(tmp_path / "run", figures=[{"file": "b.png", "title": "Bees"}])
    saved(trace, folder, "z.npz")
    saved(trace, folder, "y.npz")
    found = run_tables.read(folder)
    assert [one.file for one in found.figures] == ["b.png", "a.png"]
    assert [one.file for one in found.traces] == ["y.npz", "z.npz"]
    assert html_report.make([folder]).decodes == 2


def test_title_of_a_single_run_is_shown_once(tmp_path):
    for name in ("a", "b"):
        run_tables.save(Run(f"Run {name}", "text"), tmp_path / name)
    one = html_report.make([tmp_path / "a"]).html
    assert (one.count("<h1>Run a</h1>"), one.count("<h2>Run a</h2>")) == (1, 0)
    both = html_report.make([tmp_path / "a", tmp_path / "b"]).html
    assert (both.count("<h2>Run a</h2>"), both.count("<h2>Run b</h2>")) == (1, 1)


def test_saved_run_can_be_read(tmp_path):
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
        ({"format": "other"}, "is not the file of a run"),
        ({"version": 2}, "version 2"),
        ({"title": " "}, "has no title"),
        ({"title": 3}, '"title" must be a string'),
        ({"titel": "x"}, "did you mean 'title'"),
        ({"configuration": []}, '"configuration" must be'),
        ({"tables": {}}, '"tables" must be a list'),
        ({"tables": [3]}, '"tables" must be a list'),
        ({"tables": [TABLE | {"columns": []}]}, "at least one column"),
        ({"tables": [TABLE | {"columns": [1]}]}, "list of strings"),
        ({"tables": [TABLE | {"rows": [[1], [1, 2]]}]}, "table 1, row 2 must have 1 cells"),
        ({"tables": [TABLE | {"rows": [[[1]]]}]}, "a cell is"),
        ({"tables": [TABLE | {"rows": [[{"value": 1}]]}]}, "an interval has"),
        ({"tables": [TABLE | {"rows": [[{"value": 5, "low": 1, "high": 2}]]}]}, "is not between"),
        ({"tables": [TABLE | {"rows": [[{"value": "5", "low": 1, "high": 2}]]}]}, "an interval"),
        ({"tables": [TABLE | {"rows": [[10**400]]}]}, "a cell is"),
        ({"tables": [TABLE | {"row": []}]}, "did you mean 'rows'"),
        ({"figures": [{"file": "../b.svg"}]}, "in the same directory"),
        ({"figures": [{"file": "/etc/b.svg"}]}, "in the same directory"),
        ({"figures": [{"file": "b.gif"}]}, "in the same directory"),
        ({"figures": [{"file": "c.svg"}]}, "not in the directory"),
        ({"traces": [{"file": "c.npz"}]}, "not in the directory"),
    ],
)
def test_invalid_run_raises_a_one_line_error(tmp_path, changes, words):
    with pytest.raises(ReportError) as error:
        html_report.make([make_run(tmp_path / "run", **changes)])
    assert words in str(error.value)
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"title": NaN}', "null", "\ud800"])
def test_invalid_json_raises(tmp_path, text):
    folder = make_run(tmp_path / "run")
    (folder / "run.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(ReportError, match=r"run\.json"):
        html_report.make([folder])


def test_invalid_figure_raises(tmp_path):
    folder = make_run(tmp_path / "run")
    (folder / "a.png").write_text("<html>")
    with pytest.raises(ReportError, match=r"a\.png is not a valid \.png figure"):
        html_report.make([folder])
    (folder / "a.png").unlink()
    (folder / "b.svg").write_text("no picture")
    with pytest.raises(ReportError, match=r"b\.svg is not a valid \.svg figure"):
        html_report.make([folder])


def test_directory_without_run_json_and_foreign_file_raise(tmp_path):
    with pytest.raises(ReportError, match=r"no run\.json"):
        html_report.make([tmp_path])
    (tmp_path / "x.npz").write_bytes(b"nothing")
    with pytest.raises(TraceError):
        html_report.make([tmp_path / "x.npz"])
    with pytest.raises(ReportError, match="nothing to report"):
        html_report.make([])


# The command.


def test_command_writes_the_page_and_prints_its_path(trace, tmp_path):
    file, page = saved(trace, tmp_path), tmp_path / "new" / "page.html"
    result = run("report", str(file), str(file), "-o", str(page), "--title", "Ours & theirs")
    assert result.stdout == f"{page}\n"
    assert result.stderr == ""
    assert "<title>Ours &amp; theirs</title>" in page.read_text(encoding="utf-8")


def test_rows_option_chooses_rows(tmp_path):
    made = wavefront.load("toy").generate(["a"] * 10, max_new_tokens=2, trace=True)[0].trace
    file, page = str(saved(made, tmp_path)), tmp_path / "page.html"
    result = run("report", file, "-o", str(page))
    assert "the first 8 are shown" in result.stderr
    assert len(data(page.read_text())["decodes"]) == 8
    run("report", file, "-o", str(page), "--rows", "9,1")
    assert [one["file"] for one in data(page.read_text())["decodes"]] == [
        "one.npz, row 9",
        "one.npz, row 1",
    ]
    assert "has rows 0 to 9" in refused("report", file, "-o", str(page), "--rows", "10")


def test_command_errors_are_one_sentence(trace, tmp_path):
    file = str(saved(trace, tmp_path))
    assert "does not exist" in refused("report", str(tmp_path / "none.npz"))
    assert "cannot be written" in refused("report", file, "-o", str(tmp_path))
    assert "give another -o" in refused("report", file, "-o", file)
    page = run("report", "--help").stdout
    assert all(len(line) <= 80 for line in page.splitlines())
    assert "wavefront report wave.npz block.npz" in page
