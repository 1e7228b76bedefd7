"""`wavefront trace` and `wavefront compare`."""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from cli.test_cli_process import on_terminal
from helpers.commands import records, run
from rich.cells import cell_len
from rich.console import Console

import wavefront
from wavefront.engine.replay import difference
from wavefront.traces import trace_file
from wavefront.viewer import Board, TraceStream, side_by_side_view

pytestmark = pytest.mark.filterwarnings("ignore::wavefront.core.errors.WavefrontWarning")

ESCAPE = "\x1b"
COMMANDS = [
    "trace",
    *(f"trace {n}" for n in ("record", "show", "draw", "replay", "export", "fork")),
]


@pytest.fixture(scope="module")
def lm() -> wavefront.LM:
    return wavefront.load("toy")


@pytest.fixture(scope="module")
def file(lm: wavefront.LM, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recorded decode of twelve places."""
    made = lm.generate("Hi", max_new_tokens=12, strategy="wavefront(size=4)", trace=True)
    return trace_file.save(made.trace, tmp_path_factory.mktemp("traces") / "hi.npz")


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """What a terminal of 80 columns would receive on standard output."""
    seen = io.StringIO()

    def console(**settings: Any) -> Console:
        size = {"width": 80, "height": 24, "color_system": "truecolor"}
        return Console(file=seen, force_terminal=True, **size, **settings)

    for module in ("trace", "compare"):
        monkeypatch.setattr(f"wavefront.cli.{module}.Console", console)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    return seen


def refused(*args: str, code: int = 1) -> str:
    """Run a command line that fails, and return its error message."""
    result = run(*args, code=code)
    assert result.stdout == ""
    first, *rest = result.stderr.splitlines()
    assert first.startswith("error: ")
    assert len(rest) == (1 if code == 2 else 0)
    return first


# Help.


@pytest.mark.parametrize("command", [*COMMANDS, "compare"])
def test_help_ends_with_examples(command):
    page = run(*command.split(), "--help").stdout
    assert f"Usage: wavefront {command}" in page
    assert all(len(line) <= 80 for line in page.splitlines())
    assert f"   wavefront {command} " in page.partition("Examples")[2]


def test_group_without_a_command_prints_help():
    assert "Commands" in run("trace", code=2).stdout
    assert "Did you mean 'replay'" in run("trace", "repaly", code=2).stderr


# Recording.


def test_record_answers_like_generate(lm, tmp_path):
    target = tmp_path / "new" / "hi"
    args = ["-n", "9", "-t", "5", "-s", "rcr(size=4)", "--seed", "3", "--temperature", "0.5"]
    result = run("trace", "record", "Hi", *args, "-o", str(target))
    assert result.stdout == run("generate", "Hi", *args).stdout
    assert re.fullmatch(rf"{target}\.npz: trace of \d+ steps, \d+ kB\n", result.stderr)
    trace = trace_file.load(f"{target}.npz")
    assert lm.text_of(trace) + "\n" == result.stdout
    assert trace.about["prompt"] == "Hi"
    assert trace.about["options"]["strategy"] == "rcr(size=4, stat='last')"
    assert trace.about["seconds"] > 0
    assert not trace.full


def test_full_trace_and_its_json(tmp_path):
    target = tmp_path / "hi.npz"
    result = run("trace", "record", "Hi", "-n", "6", "--full", "--json", "-q", "-o", str(target))
    (made,) = records(result)
    assert result.stderr == ""
    assert made["trace"] == str(target)
    assert made["prompt"] == "Hi"
    trace = trace_file.load(target)
    assert trace.full
    assert trace.alternatives is not None


def test_infill_is_recorded(lm, tmp_path):
    text = "The <mask:4> and <mask:2>."
    target = str(tmp_path / "fox.npz")
    options = ("-m", "toy", "-s", "standard")
    result = run("trace", "record", text, "--infill", *options, "-o", target)
    assert result.stdout == run("infill", text, *options).stdout
    trace = trace_file.load(target)
    assert trace.about["infilling"] is True
    assert lm.text_of(trace) + "\n" == result.stdout
    assert lm.replay(trace) is None
    args = ["trace", "record", text, "--infill", "-o", target]
    assert "leave out" in refused(*args, "-n", "3", code=2)
    assert "no hole" in refused("trace", "record", "none", "--infill", "-o", target)
    run("trace", "record", "A dog saw a <mask:2>.", "--infill", "-o", target)
    assert trace_file.load(target).about["model"] == "tale"


def test_nothing_is_decoded_if_the_file_cannot_be_written(tmp_path, monkeypatch):
    monkeypatch.setattr("wavefront.lm.load", lambda *_, **__: pytest.fail("loaded"))
    assert "cannot be written" in refused("trace", "record", "Hi", "-o", str(tmp_path))
    assert "'-o'" in refused("trace", "record", "Hi", code=2)
    assert "did you mean 'wavefront'" in refused(
        "trace", "record", "Hi", "-o", str(tmp_path / "x"), "-s", "wavefrnt"
    )


# Showing.


def test_show_prints_steps_without_a_terminal(file):
    result = run("trace", "show", str(file))
    assert result.stderr == ""
    assert ESCAPE not in result.stdout
    assert result.stdout.startswith("wavefront(size=4, radius=2, grow='rebuild')\n")
    assert re.findall(r"^step (\d+)/12 ", result.stdout, re.MULTILINE) == ["0", "3", "6", "9", "12"]
    assert all(line == line.rstrip() for line in result.stdout.splitlines() if "step" in line)
    assert (
        " s\n" not in result.stdout
    )  # no seconds: the decode's are not known, the show's mean nothing


def test_shown_steps_are_those_of_the_decode(lm, file):
    """What is drawn of a file is what was drawn of the decode itself."""
    trace = trace_file.load(file)
    stream = lm.stream("Hi", max_new_tokens=12, strategy="wavefront(size=4)")
    replayed = TraceStream(trace)
    live, again = Board(stream, glow=0.0, timed=False), Board(replayed, glow=0.0, timed=False)
    assert live.frame() == again.frame()
    for step, shown in zip(stream, replayed, strict=True):
        live.add(step)
        again.add(shown)
        assert live.frame() == again.frame()
        assert torch.equal(step.canvas.tokens, shown.canvas.tokens)


def test_show_prints_one_step(file):
    result = run("trace", "show", str(file), "--step", "4", "--step", "0")
    assert re.findall(r"^step (\d+)/12 ", result.stdout, re.MULTILINE) == ["4", "0"]
    first = result.stdout.partition("step 0/12")[0]
    assert first.count("[") == 1  # only what the fourth step committed is marked
    assert (
        "step must be between 0 and 12"
        in run("trace", "show", str(file), "--step", "13", code=1).stderr
    )


def test_show_is_animated_in_a_terminal(file, terminal, monkeypatch):
    monkeypatch.setattr("wavefront.viewer.screen.PAUSE", 0)
    run("trace", "show", str(file))
    seen = terminal.getvalue()
    assert [f"step {n}/12" in seen for n in range(13)] == [True] * 13
    assert f"{ESCAPE}[?25h" in seen  # the cursor is back
    assert "38;2;" in seen


def test_speed_sets_the_time_between_steps(file, terminal, monkeypatch):
    waited: list[float] = []
    monkeypatch.setattr("time.sleep", waited.append)
    run("trace", "show", str(file), "--speed", "4")
    assert waited == [0.25] * 12
    assert "above 0 steps" in run("trace", "show", str(file), "--speed", "0", code=2).stderr
    assert "is not a number" in run("trace", "show", str(file), "--speed", "fast", code=2).stderr


def test_show_takes_one_row_of_a_batch(lm, tmp_path):
    made = lm.generate(["Hi", "Hello"], max_new_tokens=4, trace=True)
    target = str(trace_file.save(made[0].trace, tmp_path / "two"))
    shown = [run("trace", "show", target, "--row", row).stdout for row in ("0", "1")]
    assert "\nHi·" in shown[0]
    assert "\nHello·" in shown[1]
    assert "row must be between 0 and 1" in refused("trace", "show", target, "--row", "2")


def test_control_characters_of_a_file_do_not_reach_the_terminal(file, tmp_path, terminal):
    trace = trace_file.load(file)
    attack = "\x1b]0;owned\x07\x9b31m\n"
    texts = dict.fromkeys(trace.about["texts"], attack)
    options = {**trace.about["options"], "strategy": f"wavefront{attack}", "steps": attack}
    about = {**trace.about, "texts": texts, "special_ids": attack, "options": options}
    target = trace_file.save(replace(trace, about=about), tmp_path / "evil.npz")
    run("trace", "show", str(target))
    run("trace", "show", str(target), str(target))
    seen = terminal.getvalue()
    assert "owned" in seen
    assert not re.search(r"\x1b\]|\x07|\x9b", seen)
    assert "\x1b" not in run("trace", "replay", str(target), code=1).stderr


@pytest.mark.parametrize(
    "about", [{}, {"options": 3, "texts": [1], "fork": "x"}, {"options": {"stop_ids": "a"}}]
)
def test_trace_without_metadata_is_shown(file, tmp_path, about):
    target = str(trace_file.save(replace(trace_file.load(file), about=about), tmp_path / "bare"))
    shown = run("trace", "show", target, "--step", "2").stdout
    assert shown.startswith("unknown strategy\nstep 2/12")
    assert len(run("trace", "export", target).stdout.splitlines()) == 13


# Replaying.


def test_replay_reports_an_identical_decode(file):
    assert run("trace", "replay", str(file)).stdout == "Identical: 12 commits in 12 steps.\n"
    (said,) = records(run("trace", "replay", str(file), "--json"))
    assert said == {"same": True, "commits": 12, "differs": None}


def test_replay_loads_the_model_with_the_recorded_attention(tmp_path):
    target = str(tmp_path / "blocks.npz")
    options = ("--attention", "block", "--block-size", "4")
    run("trace", "record", "Hi", "-m", "toy", "-n", "8", "-o", target, *options)
    about = trace_file.load(target).about
    assert about["load_options"] == {"attention": "block", "block_size": 4}
    assert run("trace", "replay", target).stdout.startswith("Identical: ")
    other = run("trace", "replay", target, "--attention", "bidirectional", code=1)
    assert "Identical" not in other.stdout


def test_replay_reports_a_difference_in_its_exit_status(file, tmp_path):
    trace = trace_file.load(file)
    tokens = trace.tokens.clone()
    tokens[7][trace.commit[7]] += 1
    target = str(trace_file.save(replace(trace, tokens=tokens), tmp_path / "other"))
    result = run("trace", "replay", target, code=1)
    assert result.stdout == "The commits differ from step 7 on.\n"
    assert result.stderr == ""
    (said,) = records(run("trace", "replay", target, "--json", code=1))
    assert said["differs"] == {"row": 0, "step": 7}


def test_model_of_a_trace_is_never_downloaded(file, tmp_path, monkeypatch):
    asked: list[dict[str, Any]] = []
    load = wavefront.lm.load  # pyright: ignore[reportAttributeAccessIssue]

    def note(path: Any, **how: Any) -> Any:
        asked.append({"path": path, **how})
        return load("toy")

    monkeypatch.setattr("wavefront.lm.load", note)
    trace = trace_file.load(file)
    about = {**trace.about, "model": "org/name", "dtype": "float32", "revision": "v1"}
    about["quantize"] = "int8"
    target = str(trace_file.save(replace(trace, about=about), tmp_path / "hub"))
    run("trace", "replay", target)
    assert asked[-1]["offline"] is True
    assert (asked[-1]["path"], asked[-1]["revision"]) == ("org/name", "v1")
    assert (asked[-1]["device"], asked[-1]["dtype"]) == ("cpu", "float32")
    assert asked[-1]["quantize"] == "int8"
    run("trace", "replay", target, "--dtype", "bfloat16")
    assert asked[-1]["dtype"] == "bfloat16"
    run("trace", "replay", target, "-m", "org/other")
    assert (asked[-1]["path"], asked[-1]["offline"]) == ("org/other", False)
    nameless = str(trace_file.save(replace(trace, about={}), tmp_path / "nameless"))
    assert "give one with -m" in refused("trace", "replay", nameless)


def test_own_strategy_of_a_trace_must_be_named(lm, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2])
    name = "examples.new_strategy.OutsideIn(size=2)"
    target = str(tmp_path / "mine.npz")
    run("trace", "record", "Hi", "-n", "8", "-s", name, "-o", target)
    assert "--strategy" in refused("trace", "replay", target)
    assert "Identical" in run("trace", "replay", target, "--strategy", name).stdout


# Exporting.


def test_export_writes_one_line_per_event(lm, tmp_path):
    made = lm.generate(["Hi", "Hello"], max_new_tokens=8, strategy="rcr(size=4)", trace=True)
    trace = made[0].trace
    target = str(trace_file.save(trace, tmp_path / "rcr"))
    lines = list(csv.DictReader(io.StringIO(run("trace", "export", target).stdout)))
    assert sum(line["event"] == "commit" for line in lines) == int(trace.commit.sum())
    assert sum(line["event"] == "remask" for line in lines) == int(trace.remask.sum()) > 0
    assert [int(line["step"]) for line in lines] == sorted(int(line["step"]) for line in lines)
    boards = [trace.first.tokens[row].tolist() for row in range(2)]
    for line in lines:
        row, position = int(line["row"]), int(line["position"])
        assert int(line["place"]) == trace.first.slot[row, position]
        boards[row][position] = int(line["token"]) if line["event"] == "commit" else trace.mask_id
        if line["event"] == "commit":
            chance = trace.logp[int(line["step"]), row, position].exp()
            assert float(line["probability"]) == pytest.approx(float(chance), abs=1e-5)
            assert line["text"] == lm.tokenizer.pieces([int(line["token"])])[0]
    *_, last = trace.replay()
    assert boards == last.tokens.tolist()
    only = list(csv.DictReader(io.StringIO(run("trace", "export", target, "--row", "1").stdout)))
    assert len(only) == sum(line["row"] == "1" for line in lines)


def test_json_export_has_the_same_events(file, tmp_path):
    target = tmp_path / "hi.json"
    assert run("trace", "export", str(file), "--format", "json", "-o", str(target)).stdout == ""
    made = json.loads(target.read_text())
    assert (made["steps"], made["rows"], made["forwards"]) == (12, 1, 12)
    assert made["about"]["model"] == "toy"
    table = csv.DictReader(io.StringIO(run("trace", "export", str(file)).stdout))
    assert [(e["step"], e["token"]) for e in made["events"]] == [
        (int(line["step"]), int(line["token"])) for line in table
    ]
    assert json.loads(run("trace", "export", str(file), "-F", "json").stdout) == made
    assert "did you mean 'json'" in refused("trace", "export", str(file), "-F", "jsn")
    assert "cannot be written" in refused("trace", "export", str(file), "-o", str(tmp_path))


# Forking.


def test_fork_without_a_change_changes_nothing(file, tmp_path):
    target = tmp_path / "fork.npz"
    result = run("trace", "fork", str(file), "--at", "5", "-o", str(target))
    assert result.stdout.endswith("\nNo token differs.\n")
    assert result.stdout.count("12 forward passes") == 2
    assert f"{target}: trace of 12 steps" in result.stderr
    assert difference(trace_file.load(file), trace_file.load(target)) is None


def test_fork_with_another_strategy(lm, file, tmp_path):
    target = tmp_path / "fork.npz"
    run("trace", "fork", str(file), "--at", "4", "-s", "left_to_right", "-o", str(target), "-q")
    made = trace_file.load(target)
    assert [int(place) for place in made.commit[4:].nonzero()[:, 2]] == sorted(
        int(place) for place in made.commit[4:].nonzero()[:, 2]
    )
    assert run("trace", "replay", str(target)).stdout.startswith("Identical")
    shown = run("trace", "show", str(target), "--step", "3", "--step", "8").stdout
    assert shown.startswith("wavefront(size=4")
    page = run("trace", "show", str(target)).stdout
    assert "step 12/12" in page


def test_fork_with_a_text_set_by_hand(lm, file, tmp_path):
    target = tmp_path / "fork.npz"
    args = ["--at", "5", "--set", "10=ok", "-o", str(target)]
    result = run("trace", "fork", str(file), *args)
    made = trace_file.load(target)
    *_, last = made.replay()
    assert lm.tokenizer.decode(last.tokens[0, -2:].tolist()) == "ok"
    before = lm.text_of(trace_file.load(file))
    assert result.stdout.startswith(
        f"recorded: 12 forward passes of wavefront(size=4, radius=2, grow='rebuild')\n{before}\n"
    )
    assert re.search(r"^    10  .* -> 'o'$", result.stdout, re.MULTILINE)
    table = list(csv.DictReader(io.StringIO(run("trace", "export", str(target)).stdout)))
    by_hand = [(e["step"], e["place"], e["text"]) for e in table if e["event"] == "by hand"]
    assert by_hand == [("5", "10", "o"), ("5", "11", "k")]
    (said,) = records(run("trace", "fork", str(file), *args, "--json", "-q"))
    assert said["fork"] == {"at": 5, "put": {"10": "ok"}}
    assert {"place": 11, "before": said["differences"][-1]["before"], "after": "k"} in said[
        "differences"
    ]


def test_fork_can_be_watched(file):
    result = run("trace", "fork", str(file), "--at", "6", "-s", "standard", "--watch")
    steps = re.findall(r"^step (\d+)/12 ", result.stderr, re.MULTILINE)
    assert steps[0] == "6"
    assert steps[-1] == "12"
    first = result.stderr.partition("step 7")[0]
    assert "[" not in first  # what was decided before is not new


@pytest.mark.parametrize(
    ("args", "words", "code"),
    [
        (["--at", "12"], "at must be between 0 and 11", 1),
        (["--at", "-1"], "at must be between 0 and 11", 1),
        (["--at", "x"], "'x' is not a whole number", 2),
        ([], "'--at'", 2),
        (["--at", "3", "-s", "blok"], "did you mean 'block'", 1),
        (["--at", "3", "--set", "four"], "POSITION=TEXT", 2),
        (["--at", "3", "--set", "-1=x"], "POSITION=TEXT", 2),
        (["--at", "3", "--set", "99=x"], "between 0 and 11", 1),
        (["--at", "3", "--set", "3="], "nothing to write", 1),
        (["--at", "3", "--set", "3=x", "--set", "3=y"], "twice", 2),
        (["--at", "3", "--set", "3=xy", "--set", "4=y"], "twice", 1),
        (["--at", "3", "--row", "1"], "row must be between 0 and 0", 1),
        (["--at", "3", "-m", "nowhere"], "There is no model", 1),
    ],
)
def test_wrong_forks_are_refused(file, args, words, code):
    assert words in refused("trace", "fork", str(file), *args, code=code)


@pytest.mark.parametrize("command", ["show", "replay", "export", "fork --at 1"])
def test_every_command_refuses_files_that_are_not_traces(command, tmp_path, file):
    name, *args = command.split()
    assert "does not exist" in refused("trace", name, str(tmp_path / "no.npz"), *args)
    assert "is a directory" in refused("trace", name, str(tmp_path), *args)
    (tmp_path / "text.npz").write_text("hello")
    assert "is not a trace" in refused("trace", name, str(tmp_path / "text.npz"), *args)
    (tmp_path / "cut.npz").write_bytes(file.read_bytes()[:900])
    assert "cut short" in refused("trace", name, str(tmp_path / "cut.npz"), *args)


# In a real terminal.


@pytest.mark.slow
def test_animations_work_in_a_terminal_with_and_without_colour(file, monkeypatch):
    monkeypatch.setattr("cli.test_cli_process.SCRIPT", sys.executable)
    compared = ["compare", "Hi", "-m", "toy", "-n", "24", "-s", "standard", "-s", "block"]
    for args in (compared, ["trace", "show", str(file)], ["trace", "show", *[str(file)] * 2]):
        seen = on_terminal("-m", "wavefront", *args)
        assert seen.count("step ") > 5
        assert re.search(r"\x1b\[[0-9;]*38;5;", seen)
        assert seen.rindex(f"{ESCAPE}[?25h") > seen.rindex(f"{ESCAPE}[?25l")  # the cursor is back
        styles = re.findall(
            r"\x1b\[([0-9;]*)m", on_terminal("-m", "wavefront", *args, NO_COLOR="1")
        )
        assert {"0", "1", "2"} & set(styles)
        assert not any(re.search(r"(^|;)[34][0-8](;|$)", style) for style in styles)


# Comparing.


def test_strategies_are_compared(lm):
    args = ["-n", "12", "-t", "6", "-s", "standard", "-s", "block(size=4)", "-s", "wavefront"]
    result = run("compare", "Hi", *args)
    assert result.stderr == ""
    assert ESCAPE not in result.stdout
    lines = result.stdout.splitlines()
    table = lines[next(n for n, line in enumerate(lines) if line.startswith("strategy")) + 1 :]
    for name, line in zip(("standard", "block(size=4)", "wavefront"), table, strict=True):
        options = {"max_new_tokens": 12, "steps": 6, "strategy": name, "eos": "stop"}
        made = lm.generate("Hi", **options)
        rate = len(made.tokens) / made.forwards
        cells = line.split()
        assert cells[:3] == [name, str(made.forwards), f"{rate:.2f}"]
        assert re.fullmatch(r"\d+\.\d\d", cells[3])
    assert len(re.findall(r"^step \d/6 ", result.stdout, re.MULTILINE)) == 3


def test_compare_uses_the_papers_three_strategies_by_default():
    lines = run("compare", "Hi", "-n", "4", "--no-watch").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["strategy", "standard", "block", "wavefront"]


def test_compare_shows_the_quality_of_a_model_with_a_judge() -> None:
    asked = ("compare", "One day, Tom saw a dog. Tom", "-m", "tale", "-n", "8", "-t", "4")
    title, *lines = run(*asked, "--no-watch").stdout.splitlines()
    assert title.split()[-3:] == ["nats", "tokens", "distinct"]
    made = records(run(*asked, "--json"))
    for line, one in zip(lines[::2], made, strict=True):
        nats, tokens, _ = line.split()[-3:]
        assert float(nats) == pytest.approx(one["quality"]["nats"], abs=0.001)
        assert int(tokens) == one["quality"]["length"] == len(one["tokens"])
    plain = run("compare", "Hi", "-n", "4", "--no-watch").stdout
    assert "nats" not in plain, "the toy has no judge"


def test_json_of_compare_repeats_it(lm):
    made = records(run("compare", "Hi", "-n", "6", "--json", "-s", "standard", "-s", "rcr"))
    assert [one["strategy"] for one in made] == ["standard()", "rcr(size=128, stat='last')"]
    for one in made:
        assert lm.generate(one["prompt"], **one["settings"]).text == one["text"]
        assert one["seconds"] > 0


@pytest.mark.parametrize(
    ("args", "words", "code"),
    [
        (["-s", "block"], "2 to 4 strategies", 2),
        (["-s", "block"] * 1 + ["-s", "standard"] * 4, "2 to 4 strategies", 2),
        (["-s", "block", "-s", "blok"], "did you mean 'block'", 1),
        (["-s", "block", "-s", "standard", "--alg", "entropy"], "leave out the strategy", 1),
        (["--file", "nowhere.txt"], "not both", 2),
        (["-n", "0"], "--max-new-tokens", 1),
    ],
)
def test_wrong_comparisons_are_refused_before_a_model_is_loaded(args, words, code, monkeypatch):
    monkeypatch.setattr("wavefront.lm.load", lambda *_, **__: pytest.fail("loaded"))
    assert words in refused("compare", "Hi", *args, code=code)


def test_compare_is_animated_side_by_side(terminal, monkeypatch):
    monkeypatch.setattr("wavefront.viewer.screen.PAUSE", 0)
    run("compare", "Hi", "-n", "8", "--eos", "keep", "-s", "standard", "-s", "left_to_right")
    seen = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.getvalue())
    together = [line for line in seen.splitlines() if line.count("step ") == 2]
    assert [re.findall(r"step (\d)/8", line) for line in together][:9] == [
        [str(n)] * 2 for n in range(9)
    ]
    assert any(re.fullmatch(r"standard +left_to_right *", line) for line in seen.splitlines())
    assert f"{ESCAPE}[?25h" in terminal.getvalue()


def test_show_plays_traces_side_by_side(file, terminal, tmp_path):
    target = tmp_path / "fork.npz"
    run("trace", "fork", str(file), "--at", "6", "-s", "standard", "-o", str(target), "-q")
    run("trace", "show", str(file), str(target))
    seen = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.getvalue())
    assert any(line.count("step 12/12") == 2 for line in seen.splitlines())
    assert "standard()" in seen
    assert "at most 4" in run("trace", "show", *[str(file)] * 5, code=2).stderr
    assert "one trace only" in run("trace", "show", *[str(file)] * 2, "--step", "1", code=2).stderr
    assert "does not exist" in run("trace", "show", str(file), "no.npz", code=1).stderr


@pytest.mark.parametrize(
    ("count", "width", "expected"),
    [
        (2, 80, 2),
        (3, 80, 2),
        (4, 80, 2),
        (3, 120, 3),
        (4, 120, 2),
        (4, 150, 4),
        (3, 60, 1),
        (4, 20, 1),
    ],
)
def test_panels_are_arranged_evenly(count, width, expected):
    across, column = side_by_side_view.layout(count, width)
    assert across == expected
    assert across * column + side_by_side_view.GAP * (across - 1) <= width


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (36, 12), (200, 60)])
def test_panels_fit_the_screen(lm, size):
    width, height = size
    boards = [
        Board(lm.stream("Hi", max_new_tokens=300, strategy=s), prompt=False)
        for s in ("standard", "block", "rcr")
    ]
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    console.print(
        side_by_side_view.draw_side_by_side(
            [b.frame() for b in boards], width, height, tops=[0] * 3
        )
    )
    lines = console.file.getvalue().splitlines()  # pyright: ignore[reportAttributeAccessIssue]
    assert all(cell_len(line) <= width for line in lines)
    assert len(lines) <= max(height, 3 * (side_by_side_view.MIN_LINES + 1))
    assert "masked" in lines[-1] or "front" in lines[-1]


@pytest.mark.parametrize("width", [30, 44, 80, 120])
def test_table_fits_and_shows_the_end_of_each_answer(width, monkeypatch):
    from wavefront.cli import compare

    answer = wavefront.Completion(
        "x " * 90 + "#### 漢字 88\x1b[31m", [1] * 30, "stop", 12, 0, 3, 12
    )
    console = Console(file=io.StringIO(), width=width, highlight=False)
    compare._print_table(
        console,
        ["standard", "wavefront(size=8, radius=2, grow='rebuild')"],
        [answer] * 2,
        seconds=[1.5, 2.0],
        qualities=[None, None],
    )
    lines = console.file.getvalue().splitlines()  # pyright: ignore[reportAttributeAccessIssue]
    assert ESCAPE not in console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]
    ends = [line for line in lines if "88" in line]
    assert len(ends) == 2
    assert all(cell_len(line) <= max(width, 71) for line in lines)
    assert all("…" in line for line in ends)
    assert [line.startswith("  …") for line in ends] == [width < 120] * 2


# Hostile headers.

BREAKS = ("a\rb", "a\nb", "a\r\nb", 'a"b', "a,b", "\r", "=1+1", "a\u2028b", "\x1b[2J", "\ud800")


def with_texts(file: Path, folder: Path, texts: tuple[str, ...]) -> tuple[Path, dict[int, str]]:
    """Write the trace with other token texts, and return these by id."""
    trace = trace_file.load(file)
    tokens = sorted({int(token) for token in trace.tokens[trace.commit]})
    given = {token: texts[number % len(texts)] for number, token in enumerate(tokens)}
    about = dict(trace.about) | {"texts": {str(token): text for token, text in given.items()}}
    return trace_file.save(replace(trace, about=about), folder / "texts.npz"), given


@pytest.mark.parametrize("text", BREAKS)
def test_every_event_is_one_row_of_the_csv(file, tmp_path, text):
    changed, texts = with_texts(file, tmp_path, (text,))
    target = tmp_path / "events.csv"
    run("trace", "export", str(changed), "-o", str(target))
    with target.open(encoding="utf-8", newline="") as opened:
        lines = list(csv.DictReader(opened, strict=True))
    trace = trace_file.load(file)
    assert len(lines) == int(trace.commit.sum())
    assert None not in {name for line in lines for name in line}
    for line in lines:
        assert line["text"] == texts[int(line["token"])].replace("\ud800", "?")
    # Readers that take a lone carriage return for the end of a line must find it in quotes.
    assert target.read_bytes().count(b"\r") == 0 or b'"' in target.read_bytes()


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    "changes",
    [
        {"options": {"steps": 10**30, "stop_ids": [10**30], "strategy": "\x1b[2J\x9b31m"}},
        {"options": {"steps": True, "stop_ids": [True, -1]}},
        {"options": {"strategy": "x" * 1_000_000}},
        {"texts": {"9" * 5000: "x", "7": "\x1b]0;title\x07"}},
        {"texts": {"7": deep(150)}, "model": "\x1b[2J"},
        {"special_ids": [10**30, "x"], "prompt": "\ud800\x1b[2J"},
        {"fork": {"at": 10**30, "of": {"fork": {"at": -1}}}},
        {"deep": deep(190)},
    ],
)
@pytest.mark.parametrize("command", ["show", "export", "json", "draw", "report"])
def test_hostile_metadata_gives_output_or_one_sentence(file, tmp_path, changes, command):
    trace = trace_file.load(file)
    made = trace_file.save(replace(trace, about=trace.about | changes), tmp_path / "made.npz")
    args = {
        "show": ["trace", "show", str(made)],
        "export": ["trace", "export", str(made)],
        "json": ["trace", "export", str(made), "-F", "json"],
        "draw": ["trace", "draw", str(made), "-o", str(tmp_path / "made.svg")],
        "report": ["report", str(made), "-o", str(tmp_path / "made.html")],
    }[command]
    result = run(*args, code=None)
    assert result.exit_code in (0, 1)
    assert "Traceback" not in result.stderr
    if command != "export":  # a file of data has its texts as they are
        assert ESCAPE not in result.stdout
    if command == "draw" and result.exit_code == 0:
        ElementTree.parse(tmp_path / "made.svg")


def test_header_that_is_nested_too_deeply_is_refused(file, tmp_path):
    trace = trace_file.load(file)
    made = trace_file.save(replace(trace, about={"deep": deep(500)}), tmp_path / "made.npz")
    assert "nested too deeply" in refused("trace", "export", str(made), "-F", "json")


def test_noncharacters_do_not_break_the_svg(file, tmp_path):
    changed, _ = with_texts(file, tmp_path, ("\ufffe", "\uffff", "\U0001fffe", "\x00", "]]>", "&"))
    run("trace", "draw", str(changed), "-o", str(tmp_path / "made.svg"))
    ElementTree.parse(tmp_path / "made.svg")


def test_trace_commands_never_import_what_a_file_names(planted_module: Any, tmp_path: Path) -> None:
    made = wavefront.load("toy").generate("Hello", max_new_tokens=8, trace=True).trace
    for option, spec in (("cache", "planted.Mine()"), ("strategy", "planted.Mine()")):
        about = {**made.about, "options": made.about["options"] | {option: spec}}
        file = str(trace_file.save(replace(made, about=about), tmp_path / f"{option}.npz"))
        for command in (["replay", file], ["fork", file, "--at", "3"]):
            assert "planted.Mine" in refused("trace", *command, "--model", "toy")
        for command in (["show", file], ["draw", file, "--out", str(tmp_path / "wave.svg")]):
            run("trace", *command)
    assert not planted_module()
