"""`wavefront measure`: a study of the paper on held-out items, as figures, numbers and a run."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from wavefront.cli.options import (
    BatchSize,
    ItemsSeed,
    ModelOptions,
    Quiet,
    UsageError,
    flatten_options,
    option,
)
from wavefront.cli.output import ProgressBar, say
from wavefront.core.errors import did_you_mean

STUDIES = {
    "decode_order": "what is decided when, on one item: the paper's figure 1",
    "mhco": "how often a surer place near by had to wait: figure 2",
    "calibration": "right as often as sure? Table 15 and figure 3",
    "dynamics": "frontier, heat map and regret: figure 4",
    "gradient": "entropy by distance, where the surest lie: the theorem",
    "case": "moments of one answer under two strategies: table 8",
    "steps": "right answers against steps and forwards: table 11",
}
LISTED = "\n".join(f"{name:<12} {meaning}" for name, meaning in STUDIES.items())
EXAMPLES = f"""\
Studies
{LISTED}

Examples
wavefront paper measure decode_order
wavefront paper measure mhco --items 64 -o runs/mhco
wavefront paper measure calibration --task gsm --task navigate -n 128
wavefront paper measure gradient -s standard -s "wavefront(radius=4)"
wavefront paper measure mhco --items 512 -n 128 -b 128 --device cuda
wavefront report studies/mhco
"""


@flatten_options
def measure(
    name: Annotated[str, typer.Argument(metavar="STUDY", help="One of those listed below.")],
    *,
    strategy: Annotated[
        list[str] | None,
        option(
            None,
            "SPEC",
            "A strategy; may be given again. By default the paper's.",
            "--strategy",
            "-s",
        ),
    ] = None,
    task: Annotated[
        list[str] | None,
        option(None, "NAME", "Where items come from; may be given again. By default gsm."),
    ] = None,
    items: Annotated[
        int | None,
        option(None, "N", "Held-out items of each task; by default 16, or less.", "--items", "-i"),
    ] = None,
    places: Annotated[
        int | None,
        option(None, "N", "Of the canvas; by default 64.", "--max-new-tokens", "-n"),
    ] = None,
    steps: Annotated[
        int | None, option(None, "T", "To fill it in; by default N, a token each.", "--steps", "-t")
    ] = None,
    items_seed: ItemsSeed = 0,
    radius: Annotated[int, option(None, "N", "Of the measures; by default 2.")] = 2,
    batch_size: BatchSize = 8,
    out: Annotated[
        Path | None,
        option(None, "DIR", "Where files go; by default studies/STUDY.", "--out", "-o"),
    ] = None,
    quiet: Quiet = False,
    model: ModelOptions,
) -> None:
    """Measure strategies on held-out problems, one study of the paper at a time.

    Every study writes a run directory: figures (PNG and SVG, light and dark), numbers.json,
    summary.md and run.json, which `wavefront report` turns into a page. The summary is printed.

    By default a few minutes on two cores, which shows the method; more items make a measurement.
    """
    if name not in STUDIES:
        listed = ", ".join(STUDIES)
        raise UsageError(
            f"There is no study {name!r}{did_you_mean(name, STUDIES)}; there are: {listed}."
        )
    from wavefront.paper import studies

    study = studies.find(name)  # before the model: matplotlib may be missing
    asked = {
        "strategies": strategy,
        "tasks": task,
        "items": items,
        "length": places,
        "steps": steps,
    }
    chosen: dict[str, Any] = study.DEFAULTS | {
        k: v for k, v in asked.items() if v not in (None, [])
    }
    chosen |= {"seed": items_seed, "radius": radius, "batch": batch_size, "command": _command()}
    studies.check(**chosen)
    with ProgressBar(shown=not quiet) as bar:
        bar.set_share("loading the model", 0.0)
        found = study.run(studies.Bench(lm=model.load(), progress=bar.set_share, **chosen))
        bar.set_share("drawing", 1.0)
        home = out or Path("studies") / name
        written = found.write(home)
    say(found.markdown().rstrip())
    print(f"{len(written)} files in {home}", file=sys.stderr)


def _command() -> str:
    """The command line, to be repeated; what stands before the command is the program."""
    return shlex.join(["wavefront", *sys.argv[1:]])
