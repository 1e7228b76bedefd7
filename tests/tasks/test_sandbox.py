"""Model-written code cannot escape the sandbox, outlive it, or forge a verdict."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers.processes import kill_and_count_survivors

from wavefront.core.errors import OptionError
from wavefront.tasks import sandbox
from wavefront.tasks.sandbox import check, check_cases, protocol

try:
    LAYERS = sandbox.layers()
except OptionError:
    LAYERS = ()
isolated = pytest.mark.skipif(not LAYERS, reason="no user namespaces on this machine")
HOME = Path.home()
SOLUTION = "def f(x):\n    return x + 1"


def verdict(code: str, tests: str = "assert f(1) == 2", **options) -> sandbox.Verdict:
    return check(code, tests, names=["f"], allow_unsandboxed=True, **options)


def body(*lines: str) -> str:
    return "def f(x):\n" + "".join(f"    {line}\n" for line in lines)


def test_right_code_passes_and_wrong_code_does_not() -> None:
    assert verdict(SOLUTION)[:2] == (True, "passed")
    assert verdict(body("return x"))[:2] == (False, "wrong value")
    assert verdict("def g(x): return 2").reason == "NameError"
    assert verdict("def f(x:").reason == "SyntaxError"
    assert verdict(body("assert False")).reason == "AssertionError"
    assert verdict(body("raise KeyError('a')")).reason == "KeyError"
    assert verdict("").reason == "NameError"
    assert verdict(SOLUTION, "assert f('a')").reason == "TypeError"


def test_tests_can_catch_an_exception_of_the_solution() -> None:
    tests = "try:\n    f(0)\nexcept ZeroDivisionError:\n    pass\nelse:\n    assert False"
    assert verdict(body("return 1 / x"), tests).passed
    assert verdict(body("return 1"), tests).reason == "wrong value"


CATCH = "try:\n    f(1)\nexcept {0}:\n    pass\nelse:\n    assert False, 'no exception'"


@pytest.mark.parametrize("name", ["ValueError", "KeyError", "AssertionError", "StopIteration"])
def test_solution_cannot_replace_a_built_in_exception(name: str) -> None:
    own = f"class {name}(Exception): pass\n" + body(f"raise {name}('own')")
    assert verdict(own, CATCH.format(name))[:2] == (False, name)
    assert verdict(own, CATCH.format("Exception")).passed
    assert verdict(body(f"raise {name}('own')"), CATCH.format(name)).passed
    derived = f"class {name}({name}): pass\n" + body(f"raise {name}('own')")
    assert verdict(derived, CATCH.format(name)).passed


def test_tests_catch_a_subclass_of_a_built_in_exception() -> None:
    own = "class Wrong(LookupError): pass\n" + body("raise Wrong('own')")
    assert verdict(own, CATCH.format("LookupError")).passed
    assert verdict(own, CATCH.format("KeyError")).reason == "Wrong"
    assert verdict(body("import json", "json.loads('{')"), CATCH.format("ValueError")).passed
    decode = body("b'\\xff'.decode()")
    assert verdict(decode, CATCH.format("UnicodeDecodeError")).passed
    assert verdict(body("raise SystemExit"), CATCH.format("Exception")).reason == "SystemExit"
    lying = "class M(type):\n    __mro__ = property(lambda c: 1 / 0)\n"
    lying += "class E(Exception, metaclass=M): pass\n" + body("raise E")
    assert verdict(lying, CATCH.format("ValueError")).reason == "E"


@pytest.mark.parametrize("entry", ["type", "repr", "isinstance", "set", "list", "f"])
def test_tested_function_does_not_replace_what_the_tests_use(entry: str) -> None:
    def passed(returned: str) -> bool:
        code = f"def {entry}(x, *more): return {returned}"
        return check_cases(code, entry, [((1,), 2)], allow_unsandboxed=True).passed

    assert passed("x + 1")
    assert not passed("3")
    assert not passed("True")


@pytest.mark.parametrize("name", ["len", "abs", "isinstance", "sorted", "AssertionError", "math"])
def test_solution_may_use_a_built_in_name_and_tests_do_not_see_it(name: str) -> None:
    code = f"def {name}(*a): return 2\n" + body(f"return {name}(x)")
    tests = "import math\nassert f(1) == 2 and isinstance(f(1), int) and len([f(1)]) == 1\n"
    tests += "assert abs(math.sqrt(4) - f(1)) < 1e-9 and sorted([2, f(1)]) == [2, 2]"
    assert verdict(code, tests).passed
    assert not verdict(f"def {name}(*a): return True\n" + body("return 3"), tests).passed


def test_cases_distinguish_types() -> None:
    def reason(value: str, expected: object) -> str:
        done = check_cases(body(f"return {value}"), "f", [((1,), expected)], allow_unsandboxed=True)
        return done.reason

    assert reason("2", 2) == reason("{1: (2, {3})}", {1: (2, {3})}) == "passed"
    assert reason("2.0", 2) == reason("True", 1) == reason("[1]", (1,)) == "wrong value"


def test_changed_arguments_are_visible_to_the_tests() -> None:
    code = body("x.sort()", "x[0].append(9)")
    tests = "a = [[3], [1]]\nf(a)\nassert a == [[1, 9], [3]]"
    assert verdict(code, tests).passed
    assert verdict(body("return sorted(x)"), tests).reason == "wrong value"
    assert verdict(body("x.clear()"), "d, s = {1: 2}, {1}\nf(d), f(s)\nassert not d | {} and not s")
    same = "inner = []\nouter = [inner]\nf(outer)\nassert inner == [1] and outer == [[1]]"
    assert verdict(body("x[0].append(1)"), same).passed


def test_tests_can_use_objects_of_the_solution() -> None:
    code = (
        "class Node:\n    def __init__(self, v): self.v, self.next = v, None\n"
        "def f(node): return node.v + (f(node.next) if node.next else 0)\n"
        "def count(n):\n    while True:\n        yield n\n        n += 1\n"
    )
    tests = (
        "a = Node(1)\na.next = Node(2)\na.next.v = 5\nassert f(a) == 6\nassert a.next.v == 5\n"
        "c = count(3)\nassert next(c) == 3 and next(c) == 4\nassert a != Node(1) and a == a\n"
        "assert a and c and not Node(0).next\n"
    )
    assert check(code, tests, names=["Node", "f", "count"], allow_unsandboxed=True).passed


@pytest.mark.parametrize(
    "value",
    [
        None, True, -(2**900), 0.1, float("inf"), "é\ud800\0", b"\xff", (1, [2, {3: {4}}]), 1j,
        frozenset({1}), range(3), int,
    ],
)  # fmt: skip
def test_plain_values_survive_packing(value: object) -> None:
    held: list[object] = []
    packed = protocol.pack(value, lambda thing: held.append(thing) or 0)
    again = protocol.unpack(packed, held.__getitem__)
    assert (again, type(again), held) == (value, type(value), [])


@pytest.mark.parametrize(
    "data", [1, "a", [], ["int"], ["int", "zz"], ["instance", ["os", "system", []]],
             ["reference", "x"], ["type", "object"], ["list", 3], ["dict", [[1]]], ["str", [], 1],
             {"int": 1}, ["instance", ["builtins", "range", [["str", "a"]]]]],
)  # fmt: skip
def test_invalid_packed_values_are_rejected(data: object) -> None:
    with pytest.raises((protocol.ProtocolError, TypeError)):
        protocol.unpack(data, [].__getitem__)


COMPARE = ("eq", "ne", "lt", "gt", "le", "ge", "contains", "bool")
CALCULATE = ("sub", "rsub", "add", "abs", "getitem", "call", "round")
ALWAYS = "class A(object):\n    def yes(self, *a): return True\n    "
ALWAYS += " = ".join(f"__{op}__" for op in COMPARE) + " = yes\n"
ALWAYS += "    def me(self, *a): return self\n    "
ALWAYS += " = ".join(f"__{op}__" for op in CALCULATE) + " = me\n"
FORGERIES = {
    "an early exit": "import sys\nsys.exit(0)",
    "a hard exit": "import os\nos._exit(0)",
    "an exit in the call": body("import os", "os._exit(0)"),
    "a raised exit": body("raise SystemExit(0)"),
    "an object that equals all": ALWAYS + "def f(x): return A()",
    "a number that equals all": "class I(int):\n    __eq__ = lambda s, o: True\n"
    "    __hash__ = int.__hash__\ndef f(x): return I(7)",
    "a list that equals all": "class L(list):\n"
    "    __eq__ = lambda s, o: True\ndef f(x): return L()",
    "a patched comparison": "import builtins, operator\n"
    "builtins.AssertionError = type('A', (BaseException,), {})\n"
    "operator.eq = lambda a, b: True\ndef f(x): return 3",
    "patched builtins": "import builtins\nbuiltins.exec = builtins.compile = lambda *a: None\n"
    "builtins.type = lambda x: int\nbuiltins.isinstance = lambda a, b: True\ndef f(x): return 3",
    "a patched reader": "import json\njson.dumps = lambda *a, **k: '[\"value\", true, null]'\n"
    "def f(x): return 3",
    "an exit handler": "import atexit, os\natexit.register(lambda: os.write(1, b'passed'))\n"
    "def f(x): return 3",
    "an exception called passed": "class passed(Exception): pass\ndef f(x): raise passed('passed')",
    "a verdict on every descriptor": body(
        "import os",
        "for fd in range(256):",
        '    try: os.write(fd, b\'{"passed": true, "reason": "passed", "layers": []}\\n\')',
        "    except OSError: pass",
        "os._exit(0)",
    ),
    "an answer ahead of the question": "import os\n"
    "os.write(11, b'[\"value\", null, null]\\n' * 9)\ndef f(x): return 3",
    "too long an answer": body("return 'a' * (1 << 24)"),
    "too deep an answer": body("a = []", "for _ in range(10 ** 5): a = [a]", "return a"),
    "an answer in a circle": body("a = []", "a.append(a)", "return a"),
    "the parent's death": body("import os, signal", "os.kill(os.getppid(), signal.SIGKILL)"),
    "the group's death": body("import os, signal", "os.killpg(0, signal.SIGKILL)"),
    "everybody's death": body("import os, signal", "os.kill(-1, signal.SIGKILL)"),
    "its own death": body("import os", "os.abort()"),
    "a crash": body("import ctypes", "ctypes.string_at(0)"),
    "the tests read from the frames": body(
        "import gc, sys",
        "found = [o for o in gc.get_objects() if isinstance(o, dict) and 'tests' in o]",
        "frame = sys._getframe()",
        "while frame:",
        "    found += [v for v in frame.f_locals.values() if isinstance(v, str) and 'assert' in v]",
        "    frame = frame.f_back",
        "return 2 if found else 3",
    ),
    "the tests read from memory": body(
        "import os",
        "for pid in (os.getppid(), 1, 2, 3):",
        "    try: data = open(f'/proc/{pid}/mem', 'rb'); return 2",
        "    except OSError: pass",
        "return 3",
    ),
}


@pytest.mark.parametrize("trick", FORGERIES)
def test_forged_verdict_does_not_pass(trick: str) -> None:
    tests = "assert f(1) == 2\nassert abs(f(1) - 2) < 1e-6\nassert 2 in [f(1)]\n"
    done = verdict(FORGERIES[trick], tests, timeout=5)
    assert not done.passed, done
    assert done.reason != "passed"


@pytest.mark.slow
@pytest.mark.parametrize("test", ["assert f(1) == 2", "assert abs(f(1) - 2) < 1e-6",
                                  "assert 2 in f(1)", "assert not f(1) != 2",
                                  "import math\nassert math.isclose(f(1), 2)"])  # fmt: skip
def test_object_of_the_solution_cannot_decide_a_comparison(test: str) -> None:
    assert not verdict(ALWAYS + "def f(x): return A()", test).passed


def test_killing_the_parent_process_does_not_pass() -> None:
    """Without isolation the code can kill the checker. That is a crash, not a verdict."""
    assert verdict(body("import os", "os.kill(os.getppid(), 9)")).reason != "passed"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "reasons"),
    [
        (body("while True: pass"), {"timeout"}),
        ("while True: pass", {"timeout"}),
        (body("while True: print('a' * 10 ** 6)"), {"timeout"}),
        (body("import sys", "while True: sys.stderr.write('a' * 10 ** 6)"), {"timeout"}),
        (body("import time", "time.sleep(60)"), {"timeout"}),
        (body("return bytearray(8 << 30)"), {"MemoryError"}),
        (body("a = []", "while True: a.append(bytearray(1 << 20))"), {"MemoryError"}),
        (body("import os", "while True: os.fork()"), {"PermissionError", "BlockingIOError"}),
        (
            body("import subprocess", "return subprocess.run(['/bin/true']).returncode + 2"),
            {"PermissionError", "FileNotFoundError"},
        ),
        (
            body(
                "import threading, time",
                "while True: threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
            ),
            {"RuntimeError", "MemoryError"},
        ),
        (body("import signal", "signal.signal(15, signal.SIG_IGN)", "while 1: pass"), {"timeout"}),
    ],
)
def test_resources_are_limited(code: str, reasons: set[str]) -> None:
    start = time.perf_counter()
    timeout = 2 if reasons == {"timeout"} else 30  # long enough to start on a busy machine
    assert verdict(code, timeout=timeout).reason in reasons
    assert time.perf_counter() - start < sandbox.WALL_CLOCK_FACTOR * timeout + 30


def test_disk_space_is_limited(tmp_path: Path) -> None:
    code = body(
        f"import os; os.chdir({str(tmp_path)!r}) if os.path.isdir({str(tmp_path)!r}) else 0",
        "size = 0",
        "try:",
        "    for n in range(100):",
        "        size += open(f'fill{n}', 'wb').write(bytes(1 << 20))",
        "except OSError: pass",
        "return size >> 20",
    )
    if LAYERS:
        assert verdict(code, "assert 0 < f(1) <= 16").passed
        assert list(tmp_path.iterdir()) == []
    one = body("open('/tmp/wavefront-test-file', 'wb').write(bytes(1 << 26))")
    assert verdict(one).reason in {"OSError", "crash"}
    Path("/tmp/wavefront-test-file").unlink(missing_ok=True)


@pytest.mark.slow
def test_threads_and_children_do_not_outlive_the_check(tmp_path: Path) -> None:
    mark = tmp_path / "alive"
    late = f"import time; time.sleep(1.5); open({str(mark)!r}, 'w').write('x')"
    code = (
        f"import threading, os\nthreading.Thread(target=exec, args=({late!r},)).start()\n"
        "try:\n    if os.fork() == 0:\n        os.setsid()\n"
        f"        exec({late!r})\nexcept OSError: pass\n" + SOLUTION
    )
    verdict(code, timeout=1)
    time.sleep(2)
    assert not mark.exists()


SLEEPING_CHECK = """
import threading
from wavefront.tasks import sandbox
def check():
    sandbox.check("import time; time.sleep(60)", "", names=[], allow_unsandboxed=True, timeout=60)
{call}
"""


@pytest.mark.parametrize("broken", ["", "enter_namespaces"])
@pytest.mark.parametrize(
    "call", ["check()", "t = threading.Thread(target=check); t.start(); t.join()"]
)
def test_sandbox_ends_with_a_killed_caller(call: str, broken: str, tmp_path: Path) -> None:
    script = SLEEPING_CHECK.format(call=call)
    if broken:  # as on a machine without user namespaces
        entry_point = broken_entry_point(tmp_path, broken)
        script = script.replace("def check", f"sandbox.ENTRY_POINT = {entry_point!r}\ndef check")
    assert kill_and_count_survivors(["-c", script], children=3) == 0


def test_environment_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WAVEFRONT_SECRET", "hunter2")
    code = body("import os", "return sorted(os.environ)")
    assert verdict(code, "assert 'WAVEFRONT_SECRET' not in f(1) and len(f(1)) < 3").passed


@isolated
def test_every_active_layer_is_listed() -> None:
    for name in ("user", "net", "pid", "mount", "ipc"):
        assert f"{name} namespace" in LAYERS
    assert any("root" in layer for layer in LAYERS)
    assert any(layer.startswith("limits: AS CPU NPROC") for layer in LAYERS)
    assert verdict(SOLUTION).layers == verdict(body("while True: pass"), timeout=1).layers == LAYERS


@isolated
def test_files_of_the_machine_are_not_visible(tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("hunter2")
    paths = [str(secret), str(Path(__file__)), "/etc/passwd", "/proc/1/environ", "/proc/self/mem",
             "/sys", "/usr/bin", "/bin/sh", str(HOME / ".ssh"), str(HOME / ".bashrc"),
             str(Path(protocol.__file__)), os.path.dirname(pytest.__file__)]  # fmt: skip
    code = body("import os", "return [p for p in x if os.path.exists(p) and p not in ('/sys',)]")
    assert verdict(code, f"assert f({[p for p in paths if p]!r}) == []").passed
    writes = body(
        "import os",
        "for p in ('/a', '/lib/a', '/usr/lib/a', os.__file__, '/dev/a'):",
        "    try: open(p, 'a'); return p",
        "    except OSError: pass",
        "open('/tmp/mine', 'w').write('x')",
        "return 2",
    )
    assert verdict(writes).passed
    assert verdict(body("import os", "return os.listdir('/tmp')"), "assert f(1) == []").passed


@isolated
def test_symbolic_links_do_not_leave_the_sandbox(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("hunter2")
    code = body(
        "import os",
        f"os.symlink({str(tmp_path)!r}, '/tmp/out')",
        "os.symlink('../' * 20, '/tmp/up')",
        "return os.path.exists('/tmp/out/secret'), sorted(os.listdir('/tmp/up')), "
        "os.path.exists('/proc')",
    )
    tests = "out, up, proc = f(1)\nassert not out and not proc and 'etc' not in up"
    assert verdict(code, tests).passed
    assert not (Path("/tmp") / "up").is_symlink()


@isolated
@pytest.mark.parametrize(
    "line",
    [
        "import socket; socket.socket(); return 2",
        "import socket; socket.create_connection(('127.0.0.1', x), 1); return 2",
        "import ctypes; return 2 if ctypes.CDLL(None).unshare(0x10000000) == 0 else 3",
        "import ctypes as c; return c.CDLL(None).mount(b'a', b'/tmp', b'tmpfs', 0, 0) + 2",
        "import ctypes; return 2 if ctypes.CDLL(None).ptrace(16, 1, 0, 0) == 0 else 3",
        "import os; os.chroot('/tmp'); return 2",
        "import os; os.setuid(1); return 2",
        "import socket; socket.sethostname('x'); return 2",
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (1 << 40, 1 << 40)); return 2",
        "import os; os.mknod('/tmp/disk', 0o60600, 0x800); return 2",
    ],
)
def test_privileged_operations_fail(line: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        done = verdict(body(line), f"assert f({port}) == 2")
    assert not done.passed
    assert done.reason != "timeout"


@isolated
def test_namespaces_isolate_without_the_system_call_filter() -> None:
    """Test the namespaces and the limits on their own, with no filter installed."""
    script = """
import os, sys, socket
sys.argv[1:] = []
path = sys.argv[0] = %r
exec(open(path).read().partition("if __name__")[0], {"__file__": path, "__name__": "entry_point"})
from wavefront.tasks.sandbox import isolation
isolation.enter_namespaces()
pid = os.fork()
if pid:
    sys.exit(os.waitpid(pid, 0)[1])
print(os.getpid() == 1, [name for _, name in socket.if_nameindex()])
try:
    socket.create_connection(("127.0.0.1", %d), 1)
except OSError as error:
    print("no network")
isolation.enter_root()
print(sorted(os.listdir("/")), os.getuid())
isolation.limit_resources(5, 1 << 30)
for n in range(40):
    try:
        if os.fork() == 0:
            import time; time.sleep(5); os._exit(0)
    except BlockingIOError:
        print("few processes", n < 20)
        break
os._exit(0)
"""
    with socket.create_server(("127.0.0.1", 0)) as server:
        text = script % (str(sandbox.ENTRY_POINT), server.getsockname()[1])
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-u", "-c", text],
            capture_output=True, text=True, timeout=20, start_new_session=True,
        )  # fmt: skip
    lines = done.stdout.splitlines()
    assert lines[:2] == ["True ['lo']", "no network"], done
    assert "etc" not in lines[2]
    assert "home" not in lines[2]
    assert lines[2].endswith(" 0")
    assert lines[3] == "few processes True"


def broken_entry_point(folder: Path, function: str) -> str:
    """Write an entry point with one function of `isolation` that fails; return its path."""
    start, found, end = sandbox.ENTRY_POINT.read_text().partition("    supervisor.main(")
    assert found
    start = start.replace("os.path.abspath(__file__)", repr(str(sandbox.ENTRY_POINT)))
    broken = "    def fail(): raise OSError('not permitted')\n"
    broken += f"    supervisor.isolation.{function} = fail\n"
    (folder / "entry_point.py").write_text(f"{start}{broken}    supervisor.main({end}")
    return str(folder / "entry_point.py")


def break_isolation(monkeypatch: pytest.MonkeyPatch, folder: Path, function: str) -> None:
    """Make one function of `isolation` fail, as on a machine that forbids it."""
    monkeypatch.setattr(sandbox, "ENTRY_POINT", broken_entry_point(folder, function))


def test_without_isolation_code_runs_only_if_allowed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    break_isolation(monkeypatch, tmp_path, "enter_namespaces")
    with pytest.raises(OptionError, match=r"not permitted.*allow_unsandboxed=True"):
        check(SOLUTION, "assert f(1) == 2", names=["f"])
    done = check(SOLUTION, "assert f(1) == 2", names=["f"], allow_unsandboxed=True)
    assert done.passed
    assert not any("namespace" in layer for layer in done.layers)
    for trick in ("an early exit", "a hard exit", "an object that equals all", "the parent's death",
                  "a verdict on every descriptor", "everybody's death"):  # fmt: skip
        cheat = check(FORGERIES[trick], "assert f(1) == 2", names=["f"], allow_unsandboxed=True)
        assert not cheat.passed


def test_sandbox_that_does_not_start_raises(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Otherwise every answer would be graded as wrong, and nothing would say why."""
    (tmp_path / "entry_point.py").write_text("import nothing_of_this_name")
    monkeypatch.setattr(sandbox, "ENTRY_POINT", tmp_path / "entry_point.py")
    sandbox.layers.cache_clear()
    with pytest.raises(OptionError, match="does not start"):
        check(SOLUTION, "assert f(1) == 2", names=["f"], allow_unsandboxed=True)
    sandbox.layers.cache_clear()


def test_partial_isolation_is_refused_even_if_unsandboxed_is_allowed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    break_isolation(monkeypatch, tmp_path, "enter_root")
    if LAYERS:
        with pytest.raises(OptionError, match="not permitted"):
            check(SOLUTION, "", names=["f"], allow_unsandboxed=True)


def test_invalid_timeouts_raise() -> None:
    for timeout in (0, -1, float("inf"), True):
        with pytest.raises(OptionError, match="timeout"):
            check(SOLUTION, "", names=["f"], timeout=timeout)


@isolated
@pytest.mark.slow
def test_check_is_fast() -> None:
    """Measure CPU time, which a busy machine does not lengthen much."""

    def used() -> float:
        spent = resource.getrusage(resource.RUSAGE_CHILDREN)
        return spent.ru_utime + spent.ru_stime

    start = used()
    for _ in range(30):
        assert verdict(SOLUTION).passed
    assert (used() - start) / 30 < 0.12
