"""The console script as a process: streams, exit codes, signals and terminals."""

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

pytestmark = pytest.mark.slow  # every test starts a process

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
    """Return everything that a terminal receives from the program."""
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
        except OSError:  # Linux raises it when the other end is closed
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


def test_help_is_fast_and_imports_no_torch() -> None:
    def seconds() -> float:
        began = time.monotonic()
        program("--help")
        return time.monotonic() - began

    assert min(seconds() for _ in range(3)) < 1
    heavy = "import sys, wavefront.cli; print({'torch', 'tokenizers', 'numpy'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", heavy], capture_output=True, text=True)
    assert done.stdout == "set()\n", done.stderr


def test_error_is_one_sentence_without_traceback() -> None:
    done = program("generate", "", code=1)
    assert done.stdout == ""
    assert done.stderr == "error: The prompt is empty.\n"


def test_strategy_of_the_current_directory_writes_results_and_warnings_apart(
    tmp_path: Path,
) -> None:
    example = Path(__file__).parents[2] / "examples" / "new_strategy.py"
    warn = "\n    def validate(self, length, steps):\n        import warnings\n"
    warn += "        warnings.warn('Mind the gap.', wavefront.WavefrontWarning)\n"
    text = example.read_text().replace("\n    def _ends", warn + "\n    def _ends")
    (tmp_path / "mine.py").write_text(text)
    # A file here must not replace an installed module.
    (tmp_path / "rich.py").write_text("raise SystemExit('not this one')")
    args = ["-m", "toy", "-n", "8", "--json", "-s", "mine.OutsideIn(size=1)"]
    done = program("generate", *args, cwd=tmp_path, input="Hi\n")
    assert json.loads(done.stdout)["strategy"] == "mine.OutsideIn(size=1)"
    assert done.stderr == "warning: Mind the gap.\n"


def test_current_directory_is_searched_only_for_a_name_of_the_user(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import beside\nclass Mine: pass\n")
    (tmp_path / "beside.py").write_text("")
    (tmp_path / "optional_package.py").write_text("")
    code = """
import importlib.util, sys
from wavefront.cli import app
from wavefront.core import spec

def run(**_):
    print(importlib.util.find_spec("optional_package"))
    print(spec.import_name("mine", "Mine", shown="mine.Mine").__name__)
    print(importlib.util.find_spec("optional_package"))

sys.path.remove("")
app.app = run
app.main()
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.split() == ["None", "Mine", "None"], done.stderr


def test_closed_standard_output_is_not_an_error() -> None:
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
def test_interruption_has_its_exit_code_and_no_traceback(sent: signal.Signals, code: int) -> None:
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


def test_terminal_shows_an_animation_then_the_answer() -> None:
    args = ["generate", "Hi", "-m", "toy", "-n", "32", "--watch", "--delay", "0.02"]
    seen = on_terminal(*args, size=(40, 20))
    assert seen.count("step ") > 5
    assert re.search(r"\x1b\[[0-9;]*38;5;", seen)  # colours
    assert seen.rindex(f"{ESCAPE}[?25h") > seen.rindex(f"{ESCAPE}[?25l")  # the cursor is back
    assert "32/32" in seen  # the final canvas stays
    answer = seen.rpartition(f"{ESCAPE}[?25h")[2]
    assert answer.strip()
    assert not re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]", answer)


def test_no_color_keeps_styles_only() -> None:
    args = ["generate", "Hi", "-m", "toy", "-n", "16", "--watch", "--delay", "0.02"]
    seen = on_terminal(*args, NO_COLOR="1")
    styles = re.findall(r"\x1b\[([0-9;]*)m", seen)
    assert {"0", "1", "2"} & set(styles)
    assert not any(re.search(r"(^|;)[34][0-8](;|$)", style) for style in styles)


def test_chat_in_a_terminal_is_animated_and_continues_after_an_error(talker: str) -> None:
    typed = "/nope\nHello\n/quit\n"
    seen = on_terminal("chat", "-m", talker, "-n", "8", typed=typed, NO_COLOR="1")
    assert "There is no command '/nope'" in seen
    assert "step 8/8" in seen


@pytest.mark.slow
def test_built_in_model_says_what_it_is_on_a_terminal_only() -> None:
    args = ("generate", "Once upon a time", "-m", "tale", "-n", "4")
    seen = on_terminal(*args, size=(200, 24))
    assert "tale: a model with 7.3 M parameters that writes children's stories" in seen
    assert "children's stories" not in on_terminal(*args, "--quiet", size=(200, 24))
    done = program(*args)
    assert done.stderr == ""
