"""Run the tests of a module, or of this whole folder, where there is no pytest.

python tests/gpu/script.py                 # every module, several processes at a time
python tests/gpu/script.py --jobs 1        # one process at a time
python tests/gpu/script.py --timed skip    # without the tests that compare times
python tests/gpu/test_cuda.py              # one module
python tests/gpu/test_cuda.py test_name    # some tests of a module

Tests that a module lists in TIMED compare times. They run last, one process at a time.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
# What has changed most, or takes longest, comes first; other modules follow.
FIRST = ("test_bench_cuda", "test_quantize_cuda", "test_families_cuda", "test_cuda")
TESTS_PER_PROCESS = 4  # a process takes seconds to start
SECONDS = 300  # a process that takes longer is ended, and counts as failed


def run(module: Mapping[str, Any]) -> int:
    """Run the tests of a module that the command line names, or all; return the exit status."""
    failed, wanted = [], sys.argv[1:]
    for name, test in list(module.items()):
        if not name.startswith("test_") or (wanted and name not in wanted):
            continue
        began = time.monotonic()
        try:
            with tempfile.TemporaryDirectory() as folder:
                takes_path = "tmp_path" in inspect.signature(test).parameters
                test(**({"tmp_path": Path(folder)} if takes_path else {}))
        except Exception:  # an assertion, or whatever the device raises
            traceback.print_exc()
            failed.append(name)
        word = "FAIL" if name in failed[-1:] else "ok"
        print(f"{word:4} {name} ({time.monotonic() - began:.1f} s)", flush=True)
    if failed:
        print(f"{len(failed)} failed: {', '.join(failed)}", flush=True)
    return 1 if failed else 0


class Job(NamedTuple):
    """Some tests of a module, which run in one process."""

    file: Path
    tests: tuple[str, ...]


class JobResult(NamedTuple):
    """What a process printed, and which of its tests did not pass."""

    job: Job
    output: str
    failed: tuple[str, ...]
    seconds: float


def find_jobs(files: Sequence[Path]) -> tuple[list[Job], list[Job]]:
    """Return the jobs that may run at the same time, and those that compare times."""
    together, alone = [], []
    for file in files:
        names, timed = _tests_of(file)
        usual = [name for name in names if name not in timed]
        count = -(-len(usual) // TESTS_PER_PROCESS)
        together += [Job(file, tuple(usual[start::count])) for start in range(count)]
        if timed:
            alone.append(Job(file, timed))
    return together, alone


def _tests_of(file: Path) -> tuple[list[str], tuple[str, ...]]:
    """Return the names of a module's tests, and those in TIMED, without importing it."""
    names: list[str] = []
    timed: tuple[str, ...] = ()
    for part in ast.parse(file.read_text()).body:
        if isinstance(part, ast.FunctionDef) and part.name.startswith("test_"):
            names.append(part.name)
        if isinstance(part, ast.Assign) and ast.unparse(part.targets[0]) == "TIMED":
            timed = ast.literal_eval(part.value)
    unknown = set(timed) - set(names)
    if unknown:
        raise ValueError(f"TIMED of {file.name} names no tests: {', '.join(sorted(unknown))}.")
    return names, timed


def run_job(job: Job) -> JobResult:
    """Run a job in its own process."""
    paths = [str(HERE.parent), str(HERE.parent.parent), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    environment.setdefault("OMP_NUM_THREADS", "2")
    began, output = time.monotonic(), ""
    try:
        found = subprocess.run(
            [sys.executable, str(job.file), *job.tests],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        output = found.stdout
    except subprocess.TimeoutExpired as error:
        given = error.stdout or b""
        output = given.decode(errors="replace") if isinstance(given, bytes) else given
        output += f"\nEnded after {SECONDS} s.\n"
    passed = {line.split()[1] for line in output.splitlines() if line.startswith("ok ")}
    failed = tuple(name for name in job.tests if name not in passed)
    return JobResult(job, output, failed, time.monotonic() - began)


def run_folder(files: Sequence[Path], *, jobs: int, timed: str = "last") -> int:
    """Run the tests of these modules, print a summary, and return the exit status."""
    began = time.monotonic()
    together, alone = find_jobs(files)
    if timed == "only":
        together = []
    elif timed == "skip":
        alone = []
    results: list[JobResult] = []
    for group, count in ((together, jobs), (alone, 1)):
        with ThreadPoolExecutor(max_workers=count) as pool:
            for future in as_completed([pool.submit(run_job, job) for job in group]):
                result = future.result()
                results.append(result)
                print(f"== {result.job.file.name} ({result.seconds:.0f} s)", flush=True)
                print(result.output, end="", flush=True)
    total = sum(len(result.job.tests) for result in results)
    failed = [f"{one.job.file.name} {name}" for one in results for name in one.failed]
    print(f"\n{total - len(failed)} of {total} passed in {time.monotonic() - began:.0f} s.")
    for name in failed:
        print(f"FAIL {name}")
    return 1 if failed else 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the GPU tests.")
    parser.add_argument("modules", nargs="*", help="such as test_cuda; default: all")
    parser.add_argument("--jobs", type=int, default=6, help="processes at a time; default: 6")
    parser.add_argument(
        "--timed",
        choices=("last", "only", "skip"),
        default="last",
        help="when to run the tests that compare times; default: last",
    )
    options = parser.parse_args()
    order = {name: number for number, name in enumerate(FIRST)}
    files = sorted(
        HERE.glob("test_*.py"), key=lambda file: (order.get(file.stem, len(order)), file.stem)
    )
    if options.modules:
        files = [file for file in files if file.stem in options.modules]
    return run_folder(files, jobs=options.jobs, timed=options.timed)


if __name__ == "__main__":
    sys.exit(main())
