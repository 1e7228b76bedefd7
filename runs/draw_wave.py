"""Draw docs/pictures/wave.svg: an animation of one story under three strategies.

python runs/draw_wave.py            (a minute on two cores)
"""

from __future__ import annotations

from pathlib import Path

import wavefront
from wavefront.cli.demo_stories import PAPER, draw_opening
from wavefront.models import builtin
from wavefront.viewer.svg_animation import animation

OUT = Path(__file__).parent.parent / "docs" / "pictures" / "wave.svg"
LENGTH = 64


def main() -> None:
    lm = wavefront.load(builtin.STORIES, dtype="float64")  # so that ties break the same anywhere
    opening = draw_opening(0).prompt  # the opening of `wavefront demo`
    print(opening)
    traces = []
    for name in PAPER:
        made = lm.generate(opening, strategy=name, max_new_tokens=LENGTH, trace=True)
        assert made.trace is not None
        traces.append(made.trace)
        print(f"{name}: {made.forwards} forwards: {made.text!r}")
    OUT.write_text(animation(traces, names=PAPER, seconds=12), encoding="utf-8")


if __name__ == "__main__":
    main()
