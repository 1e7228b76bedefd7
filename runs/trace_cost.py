"""Measure what recording a trace costs: the same decode with and without it, in turns.

    python runs/trace_cost.py                       on ripple, a minute or two of one core
    python runs/trace_cost.py --repeats 60 --strategy "block(size=16)" --device cuda

The kinds take turns, one decode each, and are compared by their fastest and median decode, so that
a busy machine affects all of them. Recording includes stacking the steps, moving them to the host
and the texts of the tokens. Writing the file is timed separately.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import torch

import wavefront
from wavefront.traces import trace_file

PROMPT = (
    "Ivy reads a book of 304 pages. After 9 days of 24 pages each, how many pages does she still "
    "have to read?"
)
KINDS: dict[str, bool | str] = {"none": False, "basic": True, "full": "full"}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model", default="ripple")
    parser.add_argument("--device")
    parser.add_argument("--strategy", default="wavefront")
    parser.add_argument("--places", type=int, default=64)
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=40)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    lm = wavefront.load(given.model, device=given.device)
    prompts = [PROMPT] * given.rows
    options = {"strategy": given.strategy, "max_new_tokens": given.places}
    spent: dict[str, list[float]] = {kind: [] for kind in KINDS}
    made = {
        kind: lm.generate(prompts, trace=trace, **options)[0].trace for kind, trace in KINDS.items()
    }
    for _ in range(given.repeats):
        for kind, trace in KINDS.items():
            began = time.perf_counter()
            lm.generate(prompts, trace=trace, **options)
            spent[kind].append(time.perf_counter() - began)
    print(
        f"{lm.name} on {lm.model.device}, {torch.get_num_threads()} threads, {given.rows} rows of "
        f"{given.places} places, {given.strategy}, {given.repeats} decodes of each"
    )
    form = "{:<6}  {:>7}  {:>8}  {:>7}  {:>7}  {:>7}  {:>8}"
    print(form.format("trace", "min s", "median s", "min", "median", "file", "writing"))
    for kind, seconds in spent.items():
        least, middle = min(seconds), statistics.median(seconds)
        shares = (least / min(spent["none"]) - 1, middle / statistics.median(spent["none"]) - 1)
        file, writing = "", ""
        if made[kind] is not None:
            with tempfile.TemporaryDirectory() as folder:
                began = time.perf_counter()
                path = trace_file.save(made[kind], Path(folder) / "trace")
                writing = f"{1000 * (time.perf_counter() - began):.0f} ms"
                file = f"{path.stat().st_size / 1000:.0f} kB"
        more = [f"{share:+.1%}" for share in shares]
        print(form.format(kind, f"{least:.4f}", f"{middle:.4f}", *more, file, writing))


if __name__ == "__main__":
    main()
