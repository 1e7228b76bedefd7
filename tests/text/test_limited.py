"""Code from a checkpoint runs in a child process with limits."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from wavefront.core.errors import PromptError
from wavefront.text import limited


def call(function: str, *, seconds: float = 0.3, **arguments: Any) -> Any:
    return limited.call(function, arguments, seconds=seconds, what="The test", error=PromptError)


def test_result_of_a_function_is_returned() -> None:
    found = call("wavefront.text.chat_template:parse_holes", text="a<mask:2>\ud800")
    assert found == ["a", 2, "\ud800"]


def test_child_stays_alive_between_calls() -> None:
    first = call("os:getpid")
    assert first != os.getpid()
    assert call("os:getpid") == first
    started = time.perf_counter()
    for _ in range(100):
        call("os:getpid")
    assert time.perf_counter() - started < 1.0


def test_exception_becomes_one_sentence() -> None:
    with pytest.raises(PromptError, match=r"^The test failed: .*No such file.*\.$"):
        call("os:listdir", path="/nowhere/at/all")
    assert call("os:getpid") > 0


def test_endless_function_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its computing time: the clock on the wall would stop it only after 60 seconds."""
    monkeypatch.setattr(limited, "WALL_FACTOR", 200)
    child, started = call("os:getpid"), time.monotonic()
    with pytest.raises(PromptError, match=r"^The test takes longer than 0\.3 seconds, .*\.$"):
        call("re:fullmatch", pattern="(a+)+b", string="a" * 100)
    assert time.monotonic() - started < 30
    assert call("os:getpid") != child


def test_function_that_waits_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limited, "WALL_FACTOR", 1)
    with pytest.raises(PromptError, match="takes longer than"):
        call("signal:pause")
    assert call("os:getpid") > 0


def test_function_that_fills_the_memory_is_stopped() -> None:
    # The machine itself could provide the smaller size: these pages are never used.
    for size in (3 << 30, 1 << 40):
        with pytest.raises(PromptError, match="it needs more than 2048 MiB of memory"):
            call("builtins:bytearray", source=size)
    assert call("os:getpid") > 0


@pytest.mark.slow
def test_large_output_is_refused() -> None:
    with pytest.raises(PromptError, match="output is larger than 64 MiB"):
        call("secrets:token_hex", nbytes=40 << 20, seconds=5)


def test_output_of_a_function_does_not_reach_the_parent(capfd: pytest.CaptureFixture[str]) -> None:
    assert call("builtins:print", sep="-") is None
    assert call("os:system", command="echo hello") == 0
    assert capfd.readouterr() == ("", "")


def test_forked_process_gets_its_own_child(tmp_path: Path) -> None:
    ours, file = call("os:getpid"), tmp_path / "child"
    if (forked := os.fork()) == 0:
        try:
            file.write_text(str(call("os:getpid")))
        finally:
            os._exit(0)
    os.waitpid(forked, 0)
    assert int(file.read_text()) != ours
    assert call("os:getpid") == ours


def test_child_works_under_a_lower_limit_of_memory() -> None:
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30));"
        "from wavefront.core.errors import PromptError; from wavefront.text import limited;"
        "given = {'seconds': 1, 'what': 'It', 'error': PromptError};"
        "print(limited.call('os:getpid', {}, **given) > 0)"
    )
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert made.stdout == "True\n", made.stderr
