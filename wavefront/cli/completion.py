"""Shell completion: the possible endings of a partly typed word.

A shell runs this at every press of Tab, so nothing here imports torch. If the library's own list
needs torch, this module has a copy of it, and a test compares the two. Paths are completed by the
shell itself.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import wavefront
from wavefront.cli.command import shorten

Suggestions = list[tuple[str, str]]  # words and their meanings
Complete = Callable[[str], Suggestions]

# Published checkpoints of each family.
PUBLISHED = {
    "llada": ("GSAI-ML/LLaDA-8B-Instruct", "GSAI-ML/LLaDA-1.5", "GSAI-ML/LLaDA-8B-Base"),
    "dream": (
        "Dream-org/Dream-v0-Instruct-7B",
        "Dream-org/Dream-v0-Base-7B",
        "Dream-org/Dream-Coder-v0-Instruct-7B",
        "apple/DiffuCoder-7B-cpGRPO",
    ),
    "a2d": (
        "dllm-hub/Qwen3-0.6B-diffusion-mdlm-v0.1",
        "dllm-hub/Qwen3-0.6B-diffusion-bd3lm-v0.1",
    ),
    "fast_dllm_v2": (
        "Efficient-Large-Model/Fast_dLLM_v2_7B",
        "Efficient-Large-Model/Fast_dLLM_v2_1.5B",
    ),
    "illada": ("GSAI-ML/iLLaDA-8B-Instruct", "GSAI-ML/iLLaDA-8B-Base"),
    "llada2": ("inclusionAI/LLaDA2.0-mini", "inclusionAI/LLaDA2.1-mini"),
    "llada_moe": ("inclusionAI/LLaDA-MoE-7B-A1B-Instruct",),
    "sdar": ("JetLM/SDAR-8B-Chat", "JetLM/SDAR-4B-Chat", "JetLM/SDAR-1.7B-Chat"),
    "sdar_moe": ("JetLM/SDAR-30B-A3B-Chat",),
    "stable_diffcoder": ("ByteDance-Seed/Stable-DiffCoder-8B-Instruct",),
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

    return words(*known.names(), *known.benchmarks(), *known.judged_tasks())(incomplete)


def graded_tasks(incomplete: str) -> Suggestions:
    """Complete the name of a task that has right answers."""
    from wavefront import tasks as known

    return words(*known.names(), *known.benchmarks())(incomplete)


def presets(incomplete: str) -> Suggestions:
    """Complete the name of a preset."""
    from wavefront import tasks as known

    return words(*known.presets())(incomplete)


strategies = modules("strategies")
caches = modules("strategies/caches")
eos_policies = words(
    "stop",
    "stop-block",
    "keep",
    "defer",
    "suppress-logit",
    "suppress-confidence",
    "llada-confidence",
)
priorities = words("confidence", "probability", "margin", "entropy", "random")
algorithms = words("origin", "maskgit_plus", "topk_margin", "entropy")
