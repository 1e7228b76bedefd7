"""Shell completion: what a half-written word can become.

A shell calls this at every press of Tab, so nothing here imports torch. Where the library's own
list would import it, the words are written here, and a test compares them. Paths are completed by
the shell itself.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import wavefront
from wavefront.cli.command import shorten

Suggestions = list[tuple[str, str]]  # words, and what they mean
Complete = Callable[[str], Suggestions]

# Published checkpoints of each family.
PUBLISHED = {
    "llada": ("GSAI-ML/LLaDA-8B-Instruct", "GSAI-ML/LLaDA-1.5", "GSAI-ML/LLaDA-8B-Base"),
    "dream": ("Dream-org/Dream-v0-Instruct-7B", "Dream-org/Dream-v0-Base-7B"),
}


def words(*known: str) -> Complete:
    """Complete one of a few words."""
    return lambda incomplete: [(word, "") for word in known if word.startswith(incomplete)]


def modules(*folders: str) -> Complete:
    """Complete the name of a module in one of these folders of the package."""

    def complete(incomplete: str) -> Suggestions:
        root = Path(wavefront.__file__).parent
        files = [file for one in folders for file in sorted((root / one).glob("[!_]*.py"))]
        return [(file.stem, _summary(file)) for file in files if file.stem.startswith(incomplete)]

    return complete


def _summary(file: Path) -> str:
    """Return the first line of a module's docstring, short enough for one line of a shell."""
    with file.open(encoding="utf-8") as lines:
        first = lines.readline().strip().strip('"')
    name, _, rest = first.partition(": ")
    line = rest if name.lower().replace(" ", "_") == file.stem else first
    return shorten(line)


def experiments(incomplete: str) -> Suggestions:
    """Complete the name of an experiment of the paper."""
    from wavefront.paper import names

    folder = Path(wavefront.__file__).parent / "paper"
    known = [name for name in names() if name.startswith(incomplete)]
    return [(name, _summary(folder / f"{name.replace('-', '_')}.py")) for name in known]


def models(incomplete: str) -> Suggestions:
    """Complete a built-in model or a published checkpoint."""
    from wavefront.storage.hub import builtin_checkpoints

    known = [(name, "built in") for name in (*builtin_checkpoints(), "toy")]
    known += [(one, f"{family}, on the Hub") for family, ids in PUBLISHED.items() for one in ids]
    return [one for one in known if one[0].startswith(incomplete)]


def tasks(incomplete: str) -> Suggestions:
    """Complete the name of a task."""
    from wavefront import tasks as known

    return words(*known.names(), *known.benchmarks())(incomplete)


def presets(incomplete: str) -> Suggestions:
    """Complete the name of a preset."""
    from wavefront import tasks as known

    return words(*known.presets())(incomplete)


strategies = modules("strategies")
caches = modules("strategies/caches")
eos_policies = words(
    "stop", "keep", "defer", "suppress-logit", "suppress-confidence", "llada-confidence"
)
priorities = words("confidence", "probability", "margin", "entropy", "random")
algorithms = words("origin", "maskgit_plus", "topk_margin", "entropy")
