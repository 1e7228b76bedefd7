"""`runs/qwen_chain.py`: steps that wait, fail, stop, are skipped and continue."""

from __future__ import annotations

import gzip
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest
from helpers.pages import load_script

chain: Any = load_script("qwen_chain")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(chain, "ROOT", tmp_path)
    monkeypatch.setattr(chain.experiments, "ROOT", tmp_path)
    monkeypatch.setattr(chain, "POLL", 0.02)
    monkeypatch.setattr(chain, "GRACE", 5.0)
    return tmp_path


def step(name: str, code: str, **changes: Any) -> Any:
    given: dict[str, Any] = {"command": [sys.executable, "-c", code], "minutes": 1.0} | changes
    return chain.Step(name, **given)


def status(home: Path) -> str:
    return (home / chain.HOME / "status").read_text()


def test_steps_run_in_order_and_only_once(home: Path) -> None:
    write = "import sys, time; time.sleep(0.2); open('log', 'a').write('{}'); print('said {}')"
    steps = [
        step("second", write.format("b", "b"), after=("first",), needs=Path("log")),
        step("first", write.format("a", "a")),
        step("always", write.format("{left}", ""), after=("second",), again=True),
    ]
    assert chain.Chain(steps, minutes=1).run()
    text = (home / "log").read_text()
    assert text.startswith("ab")
    assert 0.5 < float(text[2:]) <= 1
    assert "first: done, 0.0 minutes | ['said a']" in status(home)
    assert "all steps have run" in status(home)
    assert chain.Chain(steps, minutes=1).run()
    assert (home / "log").read_text().startswith(text)
    assert len((home / "log").read_text()) > len(text)
    assert "first: was done before" in status(home)


def test_failed_step_does_not_stop_the_others(home: Path) -> None:
    steps = [
        step("fails", "raise SystemExit(3)"),
        step("lacks", "", after=("fails",), needs=Path("missing")),
        step("runs", "", after=("fails", "lacks")),
    ]
    assert not chain.Chain(steps, minutes=1).run()
    said = status(home)
    assert "fails: exit code 3" in said
    assert "lacks: skipped, missing is missing" in said
    assert "runs: done" in said
    assert "run it again to continue" in said


def test_step_that_takes_too_long_is_stopped(home: Path) -> None:
    steps = [
        step("hangs", "import time; time.sleep(60)", minutes=0.005),
        step("late", "", after=("hangs",)),
    ]
    began = time.monotonic()
    chain.Chain(steps, minutes=0.01).run()
    assert time.monotonic() - began < 20
    assert "hangs: stopped" in status(home)


def test_no_step_begins_when_the_time_is_up(home: Path) -> None:
    steps = [step("late", "", delay=9.0)]
    assert not chain.Chain(steps, minutes=0).run()
    assert "late: skipped, the time is up" in status(home)


def test_wait_packs_what_there_is(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chain.main(["wait", "--minutes", "0", "--pack", str(home / "out")])
    assert "The chain has not begun" in capsys.readouterr().out
    chain.Chain([step("train", "print('a loss')")], minutes=1).run()
    (home / "texts").mkdir()
    (home / "texts" / "pairs.jsonl").write_text('{"prompt": "a"}\n' * 900)
    chain.main(["wait", "--minutes", "1", "--pack", str(home / "out")])
    said = capsys.readouterr().out
    assert "a loss" in said
    assert "The chain has ended." in said
    with tarfile.open(home / "out" / "training.tar.gz") as archive:
        names = archive.getnames()
    assert {"scratch/chain/status", "scratch/chain/train.log"} <= {*names}
    texts = gzip.decompress((home / "out" / "pairs.jsonl.gz").read_bytes())
    assert len(texts.splitlines()) == 900


@pytest.mark.parametrize(
    "given", [["--small"], [], ["--texts", "pairs.jsonl.gz", "--start-from", "first/model"]]
)
def test_commands_of_the_plan_are_valid(
    given: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    from wavefront.train import command

    command_line = ["run", "--original", "some.gguf", *given, "--", "--device", "cuda"]
    steps = chain.plan(chain.parse(command_line))
    names = [one.name for one in steps]
    assert all({*one.after} <= {*names} for one in steps)
    for one in steps:
        if "adapt" in one.command:
            adapted = command._parse(one.command[one.command.index("adapt") :])
            assert adapted.save_every == 0
            assert adapted.held_out <= 256
        elif "runs/qwen_texts.py" in one.command:
            with pytest.raises(SystemExit) as ended:
                load_script("qwen_texts").main([*one.command[2:], "--help"])
            assert ended.value.code == 0
    assert steps[-1].command[-1] == ("4" if "--small" in given else "cuda")


def test_second_part_of_training_starts_from_the_first_and_writes_no_texts() -> None:
    command_line = ["run", "--original", "some.gguf", "--train-minutes", "12"]
    command_line += ["--texts", "pairs.jsonl.gz", "--start-from", "first/model"]
    rows, train, tables = chain.plan(chain.parse(command_line))
    assert (rows.name, train.name, tables.name) == ("rows", "train", "tables")
    line = " ".join(train.command)
    assert "--original some.gguf" in line
    assert "--texts-from pairs.jsonl.gz" in line
    assert "--train-minutes 12.0" in line
    assert "--start-from first/model" in line


def test_functions_of_packages_are_collected_before_the_pairs_are_written() -> None:
    steps = {one.name: one for one in chain.plan(chain.parse(["run", "--original", "some.gguf"]))}
    assert "collect" in steps["check"].after
    assert not steps["collect"].after
    assert steps["collect"].needs is None  # it runs while the original is read
    assert "collect" in steps["collect"].command
