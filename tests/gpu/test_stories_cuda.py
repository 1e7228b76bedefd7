"""Stories on a GPU: the judge agrees with the CPU's, and the experiment runs in a large batch."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import torch
from helpers.commands import run

from wavefront import tasks
from wavefront.analysis.quality import QualityJudge
from wavefront.tasks.base import Ask


def test_judge_on_a_gpu_agrees_with_the_cpu() -> None:
    stories = tasks.load("stories").items(Ask(count=64))
    found = []
    for device in ("cpu", "cuda"):
        judge = QualityJudge.load("tale", device=device)
        texts = [judge.original(one.prompt, one.extra["text"], length=640) for one in stories]
        found.append(judge.measure_texts(texts))
    for cpu, cuda in zip(*found, strict=True):
        for mine, other in zip(cuda, cpu, strict=True):
            assert mine == other or math.isclose(mine, other, rel_tol=1e-6, abs_tol=2e-3)


def test_stories_of_a_long_canvas_fit_the_memory(tmp_path: Path) -> None:
    torch.cuda.reset_peak_memory_stats()
    few = ("--items", "256", "-n", "160", "--canvas", "4", "-b", "256")
    run("paper", "run", "stories", *few, "-s", "standard", "--device", "cuda", "-q",
        "-o", str(tmp_path))  # fmt: skip
    # The logits of the whole canvas alone would take 256 x 640 x 4,608 x 4 bytes: 2.8 GiB.
    assert torch.cuda.max_memory_allocated() < 3 << 30
    assert json.loads((tmp_path / "numbers.json").read_text())["n"] == 256


if __name__ == "__main__":
    import script

    sys.exit(script.run(globals()))
