"""Run experiments of the paper, and copy their pages to docs/results.

    python runs/experiments.py                       # all, on ripple, at their default scale
    python runs/experiments.py decode-order parity   # some of them
    python runs/experiments.py main -- --items 200 --device cuda

Answers stay in scratch/experiments, so a second run continues. docs/results/NAME gets the pages,
numbers.json and the light figures; docs/claims.md is written again.

`--tables LIST` runs a list of runs/tables.toml instead, for a machine that is at hand for minutes:

    python runs/experiments.py --tables tale --minutes 9 --pack out -- --device cuda
    cat out/tale.tar.gz.* | tar xz                   # elsewhere: the results, in scratch/tables
    python runs/experiments.py --tables tale --pages # elsewhere: pages and figures, no decoding

Run the first command again to continue. It prints the minutes of every table. `--pack` writes the
results and the answers of all tables into files of at most 15 MiB. Where there is no model, the
first command grades answers that have no grades. Names before `--` choose some of the tables.
"""

from __future__ import annotations

import argparse
import io
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from wavefront import paper
from wavefront.results import table

ROOT = Path(__file__).parents[1]
SCRATCH, RESULTS = Path("scratch") / "experiments", ROOT / "docs" / "results"
LISTS, TABLES = ROOT / "runs" / "tables.toml", Path("scratch") / "tables"
KEPT, DONE = "results.jsonl", "done"  # of a table: its results, and the minutes that it took
ANSWERED = "runs"  # its answers and their grades; traces stay
PART = 15 << 20  # bytes of a packed file
PATIENCE = 30  # seconds that a stopped experiment has to end
STOPPED = -1  # instead of an exit code


class PlannedTable(NamedTuple):
    """A table of a list: its name, a command line of `wavefront paper run`, and an estimate."""

    name: str
    run: str
    minutes: float

    @property
    def home(self) -> Path:
        return TABLES / self.name


def read_list(name: str, chosen: Sequence[str] = ()) -> list[PlannedTable]:
    """Return the tables of a list, or those of them that were chosen."""
    lists = tomllib.loads(LISTS.read_text("utf-8"))
    if name not in lists:
        sys.exit(f"{LISTS.name} has no list {name!r}; there are: {', '.join(lists)}.")
    found = [PlannedTable(**one) for one in lists[name]]
    if missing := {*chosen} - {one.name for one in found}:
        sys.exit(f"The list {name} has no table {', '.join(sorted(missing))}.")
    return [one for one in found if not chosen or one.name in chosen]


def run_tables(tables: Sequence[PlannedTable], options: Sequence[str], *, minutes: float) -> bool:
    """Run the tables that are not done, until the time is up; return whether all are done."""
    until = time.monotonic() + 60 * minutes
    whole = True
    for one in tables:
        home = ROOT / one.home
        if (home / DONE).is_file():
            print(f"{one.name}: done, {(home / DONE).read_text().strip()} minutes", flush=True)
            continue
        left = until - time.monotonic()
        if left <= 0:
            print(f"{one.name}: not begun, estimated at {one.minutes:g} minutes", flush=True)
            whole = False
            continue
        began = time.monotonic()
        code = run_command([*shlex.split(one.run), "--out", str(one.home), *options], seconds=left)
        took = (time.monotonic() - began) / 60
        if code == 0:
            total = sum(line.get("seconds", 0.0) for line in table_lines(home)) / 60
            (home / DONE).write_text(f"{max(total, took):.2f}\n")
            said = f"done, {took:.2f} minutes now"
        else:
            whole = False
            said = f"stopped after {took:.2f} minutes" if code == STOPPED else f"exit code {code}"
        print(f"{one.name}: {said}, estimated at {one.minutes:g}", flush=True)
    return whole


def table_lines(home: Path) -> list[dict[str, float]]:
    """Return the results of a table."""
    from wavefront.storage import jsonl

    return jsonl.read(home / KEPT)


def run_command(arguments: Sequence[str], *, seconds: float | None = None) -> int:
    """Run an experiment; return its exit code, or `STOPPED` if the time was up."""
    command = [sys.executable, "-m", "wavefront", "paper", "run", *arguments, "--quiet"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
    try:
        return process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        return STOPPED


def pack_results(name: str, tables: Sequence[PlannedTable], folder: Path) -> list[Path]:
    """Write the results of the tables as one archive, cut into parts; return the parts."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w:gz") as archive:
        for one in tables:
            for file in (one.home / KEPT, one.home / DONE, *answer_files(one)):
                if (ROOT / file).is_file():
                    archive.add(ROOT / file, str(file))
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob(f"{name}.tar.gz.*"):
        old.unlink()
    data, parts = raw.getvalue(), []
    for number, at in enumerate(range(0, len(data), PART)):
        parts.append(folder / f"{name}.tar.gz.{number:02d}")
        parts[-1].write_bytes(data[at : at + PART])
    print(f"packed {len(data) / 1e6:.1f} MB into {len(parts)} files of {folder}", flush=True)
    return parts


def answer_files(table: PlannedTable) -> list[Path]:
    """Return the files of a table's answers, relative to the root."""
    found = (ROOT / table.home / ANSWERED).rglob("*.json*")
    return sorted(table.home / file.relative_to(ROOT / table.home) for file in found)


def make_pages(tables: Sequence[PlannedTable]) -> bool:
    """Make the pages of the tables that are done, and copy them; return whether all succeeded."""
    made = True
    for one in tables:
        if not (ROOT / one.home / DONE).is_file():
            print(f"{one.name}: not done, so it has no page", flush=True)
            continue
        code = run_command([*shlex.split(one.run), "--out", str(one.home)])
        print(f"{one.name}: {'page made' if code == 0 else f'exit code {code}'}", flush=True)
        made = made and code == 0
        if code == 0:
            copy_page(ROOT / one.home, RESULTS / one.name)
    return made


def run_experiment(name: str, options: list[str]) -> bool:
    """Run an experiment, and copy its page; return False if it fails."""
    home, began = SCRATCH / name, time.monotonic()
    code = run_command([name, "--out", str(home), *options])
    print(f"{name}: {time.monotonic() - began:.0f} s, exit code {code}", flush=True)
    if code:
        return False
    copy_page(ROOT / home, RESULTS / name)
    return True


def copy_page(home: Path, target: Path) -> None:
    """Copy the page, its numbers and its light figures."""
    target.mkdir(parents=True, exist_ok=True)
    for file in (*home.glob("*.md"), home / "numbers.json"):
        shutil.copy(file, target)
    for item in table.read(home).figures:
        shutil.copy(home / Path(item.file).with_suffix(".svg"), target)


def parse(arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Return the options of this script, and those of the experiments, which follow `--`."""
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="experiments, or tables of the list")
    parser.add_argument("--tables", metavar="LIST", help="run a list of runs/tables.toml")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop after this")
    parser.add_argument("--pack", type=Path, metavar="DIR", help="write the results there")
    parser.add_argument("--pages", action="store_true", help="only make pages from the results")
    return parser.parse_args(arguments[:cut]), list(arguments[cut + 1 :])


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the experiments named before `--`, with the options after it."""
    given, options = parse(sys.argv[1:] if arguments is None else arguments)
    if given.tables:
        tables = read_list(given.tables, given.names)
        if given.pages:
            sys.exit(0 if make_pages(tables) else 1)
        whole = run_tables(tables, options, minutes=given.minutes)
        if given.pack:
            pack_results(given.tables, read_list(given.tables), given.pack)
        print("All tables are done." if whole else "Run the same command again to continue.")
        return
    names = given.names or list(paper.NAMES)
    for name in names:
        paper.find(name)
    import claims

    failed = [name for name in names if not run_experiment(name, options)]
    claims.write()
    if failed:
        sys.exit(f"These experiments failed: {', '.join(failed)}.")


if __name__ == "__main__":
    main()
