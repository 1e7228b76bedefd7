"""Draw training losses: one run after the other, and a few tasks separately.

    python runs/draw_training.py run1/log.jsonl run2/log.jsonl --out docs/results/ripple
    python runs/draw_training.py docs/results/ripple/training.jsonl --out docs/results/ripple

The input is the `log.jsonl` of each run of `wavefront train`, in order, or the `training.jsonl`
that this script writes: step, loss, losses of the drawn tasks, and held-out loss.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from wavefront.analysis import figures
from wavefront.analysis.figures.figure import lazy_figure
from wavefront.analysis.figures.style import TWO_COLUMNS

TASKS = {"gsm": "green", "code": "vermilion", "word_sorting": "blue", "dyck_languages": "purple"}
SMOOTH = 0.9  # of a moving average; the loss of one batch swings by a tenth
Line = dict[str, Any]


def slim(logs: Sequence[Path]) -> list[Line]:
    """Return the lines of every log, numbered by run and by steps since the first."""
    if len(logs) == 1 and logs[0].name == "training.jsonl":
        return [json.loads(line) for line in logs[0].read_text().splitlines()]
    lines: list[Line] = []
    before = 0
    for run, log in enumerate(logs, 1):
        for entry in map(json.loads, log.read_text().splitlines()):
            kept = {key: round(entry["tasks"][key], 4) for key in TASKS if key in entry["tasks"]}
            line = {"run": run, "step": before + entry["step"], "loss": round(entry["loss"], 4)}
            held = {"held_out": entry["held_out"]["ema"]["loss"]} if "held_out" in entry else {}
            lines.append(line | {"lr": entry["lr"], "tasks": kept} | held)
        before = lines[-1]["step"]
    return lines


def smooth(panel: Axes, lines: Sequence[Line], values: Sequence[float | None], **look: Any) -> None:
    """Return a moving average that restarts with every run, whose data or masks differ."""
    for run in dict.fromkeys(line["run"] for line in lines):
        steps, means, mean = [], [], None
        for line, value in zip(lines, values, strict=True):
            if line["run"] == run and value is not None:
                mean = value if mean is None else SMOOTH * mean + (1 - SMOOTH) * value
                steps.append(line["step"])
                means.append(mean)
        panel.plot(steps, means, **(look if run == 1 else {**look, "label": None}))


@lazy_figure
def curves(style: figures.Style, lines: Sequence[Line]) -> Figure:
    """Draw all tasks and held-out on the left, a few tasks on the right; lines mark new runs."""
    figure = Figure(figsize=(TWO_COLUMNS, 2.5))
    figure.set_layout_engine("constrained", w_pad=0.08)
    whole, apart = figure.subplots(1, 2)
    smooth(whole, lines, [line["loss"] for line in lines], color=style.ink, label="training")
    ends = [line for line in lines if "held_out" in line]
    points = ([line["step"] for line in ends], [line["held_out"] for line in ends])
    whole.plot(*points, "o", color=style.hues["vermilion"], label="held out, answers only")
    for name, hue in TASKS.items():
        values = [line["tasks"].get(name) for line in lines]
        smooth(apart, lines, values, color=style.hues[hue], label=name, linewidth=1)
    for panel, title in ((whole, "all tasks and English"), (apart, "tasks")):
        for line, before in zip(lines[1:], lines, strict=False):
            if line["run"] != before["run"]:
                panel.axvline(before["step"], color=style.soft, linewidth=0.6, linestyle=":")
        panel.set(title=title, xlabel="steps of 131,072 tokens", yscale="log")
        panel.legend(loc="upper right", frameon=True, facecolor=style.paper, edgecolor="none")
    whole.set_ylabel("nats, weighted 1/t")
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description="Draw how trainings went.")
    parser.add_argument("logs", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="folder")
    asked = parser.parse_args()
    lines = slim(asked.logs)
    asked.out.mkdir(parents=True, exist_ok=True)
    (asked.out / "training.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    print(*figures.save(curves(lines), asked.out, "training")[:1])


if __name__ == "__main__":
    main()
