"""Pages of the experiments for docs/results: each is run where it was left, and its page copied.

    python runs/experiments.py                     # all, on ripple, at their default scale
    python runs/experiments.py decode-order parity    # some of them
    python runs/experiments.py main -- --items 200 --device cuda

Answers stay in scratch/experiments; docs/results/NAME gets summary.md, numbers.json and the
light figures, and docs/claims.md is made anew.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

import claims

from wavefront import paper
from wavefront.results import table

ROOT = Path(__file__).parents[1]
SCRATCH, RESULTS = Path("scratch") / "experiments", ROOT / "docs" / "results"


def page(name: str, more: list[str]) -> bool:
    """Run one to its end, and copy its page; False when it says that it cannot run."""
    home, began = SCRATCH / name, time.monotonic()
    command = [sys.executable, "-m", "wavefront", "experiment", name, "--out", str(home), *more]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL)
    print(f"{name}: {time.monotonic() - began:.0f} s, exit code {done.returncode}", flush=True)
    if done.returncode:
        return False
    target = RESULTS / name
    target.mkdir(parents=True, exist_ok=True)
    for file in ("summary.md", "numbers.json"):
        shutil.copy(ROOT / home / file, target)
    for item in table.read(ROOT / home).figures:
        stem = Path(item.file).stem
        for kind in table.KINDS:
            shutil.copy(ROOT / home / f"{stem}{kind}", target)
    return True


def main() -> None:
    """Arguments before `--` are experiments, those after it their options."""
    given = sys.argv[1:]
    cut = given.index("--") if "--" in given else len(given)
    names = given[:cut] or paper.names()
    for name in names:
        paper.find(name)
    failed = [name for name in names if not page(name, given[cut + 1 :])]
    claims.write()
    if failed:
        sys.exit(f"Not run to the end: {', '.join(failed)}.")


if __name__ == "__main__":
    main()
