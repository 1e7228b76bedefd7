"""Write the lock files in `requirements/` from the ranges in pyproject.toml.

    make lock

`dev.txt` holds what development installs, `image.txt` what the container installs, and `build.txt`
what builds the wheel. The files are valid for every platform and for Python 3.11 to 3.13.

torch is apart, in `torch.txt`: each package index has its own files of one torch version, for CPU
or for a CUDA version, and so its own hashes. `torch.txt` has the hashes of PyPI, and the packages
that only PyPI's torch needs. Whoever uses another index installs the version in constraints.txt.
triton is in `dev.txt` too, because development needs it with any torch.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "requirements"
EXTRAS = {"dev": ("dev",), "image": ("serve", "hub")}
TORCH = re.compile(r"^(torch|triton|nvidia-[\w-]+|cuda-[\w-]+)==")
HEADER = "# Written by `make lock` from pyproject.toml. Do not edit.\n"


def compiled(uv: str, source: str, *options: str) -> list[str]:
    """Return one entry per package: its version, its hashes and what requires it."""
    command = [uv, "pip", "compile", "--no-config", "--quiet", "--no-header", "--universal"]
    command += ["--python-version", "3.11", "--generate-hashes", "--constraint", "constraints.txt"]
    done = subprocess.run(
        [*command, *options, source], cwd=ROOT, check=True, capture_output=True, text=True
    )
    return re.findall(r"^\S.*\n(?:[ ].*\n)*", done.stdout, re.MULTILINE)


def of_torch(entry: str) -> bool:
    """Return whether this is torch, or a package that we need only because torch needs it."""
    ours = "wavefront (pyproject.toml)" in entry and not entry.startswith("torch==")
    return not ours and TORCH.match(entry) is not None


def main(uv: str) -> None:
    """Write all lock files."""
    FOLDER.mkdir(exist_ok=True)
    for name, extras in EXTRAS.items():
        options = [word for extra in extras for word in ("--extra", extra)]
        entries = compiled(uv, "pyproject.toml", *options)
        if name == "dev":
            write("torch", [entry for entry in entries if TORCH.match(entry)])
        write(name, [entry for entry in entries if not of_torch(entry)])
    dev = (FOLDER / "dev.txt").read_text("utf-8")
    (hatchling,) = re.findall(r"^hatchling==[\w.]+", dev, re.MULTILINE)
    source = FOLDER / "build.in"  # deleted below
    source.write_text(f"{hatchling}\n", "utf-8")
    write("build", compiled(uv, str(source.relative_to(ROOT))))
    source.unlink()


def write(name: str, entries: list[str]) -> None:
    """Write one lock file."""
    (FOLDER / f"{name}.txt").write_text(HEADER + "".join(entries), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
