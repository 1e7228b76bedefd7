"""The console script as a program: streams, exit codes, signals, terminals, and how fast it is."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest
from helpers.commands import save_talker

pytestmark = pytest.mark.slow  # every one starts a process of its own

SCRIPT = str(Path(sys.executable).parent / "wavefront")
ESCAPE = "\x1b"


def environment(**changes: str) -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES", "PYTHONPATH")
    }
    return kept | {"OMP_NUM_THREADS": "1", "TERM": "xterm-256color"} | changes


def program(*args: str, code: int = 0, **more: object) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [SCRIPT, *args],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=60,
        **{"stdin": subprocess.DEVNULL, **more} if "input" not in more else more,  # pyright: ignore[reportArgumentType, reportCallIssue]
    )
    assert done.returncode == code, done.stderr
    return done


def on_terminal(*args: str, typed: str = "", size: tuple[int, int] = (80, 24), **env: str) -> str:
    """Everything a terminal receives from the program, whose every stream it is."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
    process = subprocess.Popen(
        [SCRIPT, *args],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment(**env),
        start_new_session=True,
    )
    os.close(theirs)
    os.write(ours, typed.encode())
    received = b""
    while True:
        try:
            data = os.read(ours, 65536)
        except OSError:  # how Linux says that nobody holds the other end
            break
        if not data:
            break
        received += data
    os.close(ours)
    assert process.wait(timeout=30) == 0, received
    return received.decode(errors="replace")


@pytest.fixture(scope="module")
def talker(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_talker(tmp_path_factory.mktemp("talker"))


def test_help_answers_at_once_without_torch() -> None:
    def seconds() -> float:
        began = time.monotonic()
        program("--help")
        return time.monotonic() - began

    assert min(seconds() for _ in range(3)) < 1
    heavy = "import sys, wavefront.cli; print({'torch', 'tokenizers', 'numpy'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", heavy], capture_output=True, text=True)
    assert done.stdout == "set()\n", done.stderr


def test_an_error_is_a_sentence_without_a_traceback() -> None:
    done = program("generate", "", code=1)
    assert done.stdout == ""
    assert done.stderr == "error: The prompt is empty: write something in it.\n"


def test_results_and_the_rest_go_separate_ways_also_for_a_strategy_of_the_directory(
    tmp_path: Path,
) -> None:
    example = Path(__file__).parents[2] / "examples" / "new_strategy.py"
    warn = "\n    def validate(self, length, steps):\n        import warnings\n"
    warn += "        warnings.warn('Mind the gap.', wavefront.WavefrontWarning)\n"
    text = example.read_text().replace("\n    def _ends", warn + "\n    def _ends")
    (tmp_path / "mine.py").write_text(text)
    # It must not stand in the way of anything that is installed.
    (tmp_path / "rich.py").write_text("raise SystemExit('not this one')")
    args = ["-m", "toy", "-n", "8", "--json", "-s", "mine.OutsideIn(size=1)"]
    done = program("generate", *args, cwd=tmp_path, input="Hi\n")
    assert json.loads(done.stdout)["strategy"] == "mine.OutsideIn(size=1)"
    assert done.stderr == "warning: Mind the gap.\n"


def test_a_reader_who_has_left_is_no_error() -> None:
    process = subprocess.Popen(
        [SCRIPT, "generate", "-m", "toy", "-n", "64", "--lines", "-b", "1", "--json"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    )
    assert process.stdin and process.stdout and process.stderr  # noqa: PT018
    process.stdin.write(b"Hi\n" * 40)
    process.stdin.close()
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(timeout=60) == 141


@pytest.mark.parametrize(
    ("sent", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143)],
)
def test_an_interruption_has_its_code_and_no_traceback(sent: signal.Signals, code: int) -> None:
    process = subprocess.Popen(
        [SCRIPT, "generate", "Hi", "-m", "toy", "-n", "64", "--watch", "--delay", "1"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    )
    assert process.stderr and process.stdout  # noqa: PT018
    while b"step 0/64" not in process.stderr.readline():
        pass
    process.send_signal(sent)
    rest = process.stderr.read()
    assert process.stdout.read() == b""
    process.stdout.close()
    process.stderr.close()
    assert process.wait(timeout=30) == code
    assert b"Traceback" not in rest


def test_a_terminal_shows_the_moving_picture_then_the_answer() -> None:
    args = ["generate", "Hi", "-m", "toy", "-n", "32", "--watch", "--delay", "0.02"]
    seen = on_terminal(*args, size=(40, 20))
    assert seen.count("step ") > 5
    assert re.search(r"\x1b\[[0-9;]*38;5;", seen)  # colours
    assert seen.rindex(f"{ESCAPE}[?25h") > seen.rindex(f"{ESCAPE}[?25l")  # the cursor is back
    answer = seen[seen.rindex("32/32") :].partition("\n")[2]
    assert not re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]", answer)


def test_without_colour_a_terminal_gets_styles_only() -> None:
    args = ["generate", "Hi", "-m", "toy", "-n", "16", "--watch", "--delay", "0.02"]
    seen = on_terminal(*args, NO_COLOR="1")
    styles = re.findall(r"\x1b\[([0-9;]*)m", seen)
    assert {"0", "1", "2"} & set(styles)
    assert not any(re.search(r"(^|;)[34][0-8](;|$)", style) for style in styles)


def test_a_conversation_in_a_terminal_is_drawn_and_goes_on_after_an_error(talker: str) -> None:
    typed = "/nope\nHello\n/quit\n"
    seen = on_terminal("chat", "-m", talker, "-n", "8", typed=typed, NO_COLOR="1")
    assert "There is no command '/nope'" in seen
    assert "step 8/8" in seen
