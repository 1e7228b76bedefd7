"""Run experiments of the paper, and copy their pages to docs/results.

    python runs/experiments.py                       # all, on ripple, at their default scale
    python runs/experiments.py decode-order parity   # some of them
    python runs/experiments.py main -- --items 200 --device cuda

Answers stay in scratch/experiments, so a second run continues. docs/results/NAME gets summary.md,
numbers.json and the light figures; docs/claims.md is written again.
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


def run_experiment(name: str, options: list[str]) -> bool:
    """Run an experiment, and copy its page; return False if it fails."""
    home, began = SCRATCH / name, time.monotonic()
    command = [sys.executable, "-m", "wavefront", "paper", "run", name]
    command += ["--out", str(home), *options]
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
    """Run the experiments named before `--`, with the options after it."""
    given = sys.argv[1:]
    cut = given.index("--") if "--" in given else len(given)
    names = given[:cut] or list(paper.NAMES)
    for name in names:
        paper.find(name)
    failed = [name for name in names if not run_experiment(name, given[cut + 1 :])]
    claims.write()
    if failed:
        sys.exit(f"These experiments failed: {', '.join(failed)}.")


if __name__ == "__main__":
    main()
