"""Draw docs/pictures/wave.svg: an animation of one problem under four strategies.

python runs/draw_wave.py            (a minute on two cores)
"""

from __future__ import annotations

from pathlib import Path

import wavefront
from wavefront.cli.demo_compare import STRATEGIES
from wavefront.viewer.svg_animation import animation

OUT = Path(__file__).parent.parent / "docs" / "pictures" / "wave.svg"
QUESTION = (
    "Ivy reads a book of 304 pages. After 9 days of 24 pages each, how many pages does she still "
    "have to read?"
)


def main() -> None:
    lm = wavefront.load("ripple", dtype="float64")  # all but tied places keep their turn anywhere
    traces = []
    for name, strategy in STRATEGIES.items():
        made = lm.generate(QUESTION, strategy=strategy, max_new_tokens=64, eos="stop", trace=True)
        assert made.trace is not None
        traces.append(made.trace)
        print(f"{name}: {made.forwards} forwards: {made.text!r}")
    OUT.write_text(animation(traces, names=list(STRATEGIES), seconds=12), encoding="utf-8")


if __name__ == "__main__":
    main()
