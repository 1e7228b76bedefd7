"""Case: moments of one answer under two strategies, side by side (the paper's table 8)."""

from __future__ import annotations

from typing import Any

from wavefront.analysis import figures
from wavefront.analysis.figures.answer_arrays import answer_length, read_answer
from wavefront.analysis.figures.case import display_text
from wavefront.paper.studies._bench import STRATEGIES, Bench
from wavefront.paper.studies._findings import Findings
from wavefront.results.table import Table

DEFAULTS: dict[str, Any] = {"items": 1, "tasks": ("code",), "strategies": STRATEGIES[1:]}
MASKED = "·"
TEXT = (
    "The same prompt under each strategy, after the same numbers of steps. Every place keeps the "
    "room of its final token, so that a gap is a place still masked."
)


def run(bench: Bench) -> Findings:
    """Decode one item and take snapshots."""
    name = bench.tasks[0]
    samples = bench.draw(name, 1)
    bench.expect(len(bench.strategies), count=1)
    made = {spec: bench.decode(name, samples, spec) for spec in bench.strategies}
    traces = {spec: one.traces[0] for spec, one in made.items()}
    longest = max(map(len, traces.values()))
    moments = figures.moments(longest)
    pieces = bench.lm.tokenizer.pieces
    texts = {
        spec: [_snapshot(trace, step, pieces) for step in moments] for spec, trace in traces.items()
    }
    table = Table(
        "Snapshots",
        ["step", *bench.strategies],
        [[step, *(texts[spec][n] for spec in bench.strategies)] for n, step in enumerate(moments)],
        note=f"{MASKED} is a place still masked; what follows the end of the answer is left out.",
    )
    right = {spec: one.correct[0] if one.correct else None for spec, one in made.items()}
    return Findings(
        title=f"Case study: one item of {name}, moment by moment",
        text=f"{TEXT}\n\nThe prompt: {samples[0].prompt}",
        configuration=bench.configuration() | {"item": samples[0].id, "items of each task": 1},
        tables=[table],
        numbers={
            "n": 1,
            "prompt": samples[0].prompt,
            "reference": samples[0].answer,
            "moments": moments,
            "snapshots": texts,
            "answers": {spec: one.answers[0].text for spec, one in made.items()},
            "right": right,
        },
        figures={"case": (figures.case(traces, pieces, at=moments), "Moment by moment")},
        traces={
            f"trace-{figures.kind(s)}-{n}": (t, s) for n, (s, t) in enumerate(traces.items(), 1)
        },
    )


def _snapshot(trace: Any, step: int, pieces: Any) -> str:
    """The answer after so many steps, on one line."""
    seen = read_answer(trace, 0)
    known = seen.known[step] if step < len(seen.known) else seen.known[-1] | seen.commit[-1]
    tokens = seen.tokens[step] if step < len(seen.tokens) else seen.last
    end = answer_length(trace, seen)
    shown = [
        display_text(pieces([int(token)])[0]) if decided else MASKED
        for token, decided in zip(tokens[:end], known[:end], strict=True)
    ]
    return "".join(shown)
