"""Case: one prompt under block and wave, at the same steps."""

from __future__ import annotations

from typing import Any

from wavefront.analysis import figures
from wavefront.analysis.figures.answer_arrays import answer_length, read_answer
from wavefront.analysis.figures.case import display_text
from wavefront.analysis.measures import order
from wavefront.evaluation.page import ResultsPage
from wavefront.evaluation.trials import Runner, Scale, model_name
from wavefront.paper.claims import TOO_FEW, Claim
from wavefront.paper.decoder import ItemDecoder
from wavefront.paper.experiment import LLADA, Measurement, measure_models
from wavefront.paper.tables import STRATEGIES
from wavefront.results.table import Table
from wavefront.traces.trace import Trace

NEEDS = "nothing; --paper: LLaDA-8B-Instruct, humaneval"
SMALL = Scale(tasks=("code",), items=1)
PAPER = Scale(models=(LLADA,), tasks=("humaneval",), items=1, length=1024, style="paper")
COMPARED = STRATEGIES[1:]
MASKED = "·"
TEXT = (
    "The same prompt under each strategy, after the same numbers of steps. Every position is as "
    "wide as its final token, so a gap is a position that is still masked."
)


def run(runner: Runner) -> ResultsPage:
    """Run the experiment on every model."""
    return measure_models(runner, measure)


def measure(decoder: ItemDecoder) -> Measurement:
    """Decode one item and take snapshots. One item decides no claim."""
    name = decoder.tasks[0]
    samples = decoder.draw(name, 1)
    decoder.expect_parts(len(decoder.strategies), count=1)
    decoded = {spec: decoder.decode(name, samples, spec) for spec in decoder.strategies}
    traces = {spec: one.traces[0] for spec, one in decoded.items()}
    answers = {spec: one.answers[0].text for spec, one in decoded.items()}
    moments = figures.moments(max(map(len, traces.values())))
    pieces = decoder.lm.tokenizer.pieces
    texts = {
        spec: [_snapshot(trace, step, pieces) for step in moments] for spec, trace in traces.items()
    }
    rows = [[step, *(texts[spec][n] for spec in texts)] for n, step in enumerate(moments)]
    note = f"{MASKED} is a masked position. Text after the end of the answer is left out."
    return Measurement(
        title=f"Case study: one item of {name}, step by step",
        text=f"{TEXT}\n\nThe prompt: {samples[0].prompt}",
        items=1,
        claims=_claims(model_name(decoder.lm.name), traces, answers),
        tables=[Table("Snapshots", ["step", *texts], rows, note=note)],
        numbers={
            "prompt": samples[0].prompt,
            "reference": samples[0].answer,
            "moments": moments,
            "snapshots": texts,
            "answers": answers,
            "right": {spec: one.correct[0] if one.correct else None
                      for spec, one in decoded.items()},
        },
        figures={"case": (figures.case(traces, pieces, at=moments), "Step by step")},
        traces={
            f"trace-{figures.kind(s)}-{n}": (t, s) for n, (s, t) in enumerate(traces.items(), 1)
        },
        configuration={"item": samples[0].id, "items of each task": 1},
    )  # fmt: skip


def _claims(model: str, traces: dict[str, Trace], answers: dict[str, str]) -> list[Claim]:
    taus = [float(order.measure(trace).tau[0]) for trace in traces.values()]
    text = "Block follows left-to-right order more strictly (Kendall's tau, wave minus block)"
    gap = taus[1] - taus[0] if len(taus) > 1 else None
    same = len({*answers.values()}) == 1
    return [
        Claim(text, model, gap, 1, None, TOO_FEW),
        Claim("Both end with the same text", model, same, 1, None, TOO_FEW),
    ]


def _snapshot(trace: Trace, step: int, pieces: Any) -> str:
    """Return the answer after this many steps, on one line."""
    seen = read_answer(trace, 0)
    known = seen.known[step] if step < len(seen.known) else seen.known[-1] | seen.commit[-1]
    tokens = seen.tokens[step] if step < len(seen.tokens) else seen.last
    end = answer_length(trace, seen)
    shown = [
        display_text(pieces([int(token)])[0]) if decided else MASKED
        for token, decided in zip(tokens[:end], known[:end], strict=True)
    ]
    return "".join(shown)
