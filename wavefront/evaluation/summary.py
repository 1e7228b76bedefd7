"""Summary: a run in the format of lm-eval's results, so that tools for lm-eval can read it."""

from __future__ import annotations

from typing import Any

from wavefront.analysis import quality
from wavefront.evaluation.judging import qualities
from wavefront.evaluation.run import Run
from wavefront.results.interval import Proportion, bounds, wilson_share

# Our verdict -> lm-eval's metric and filter.
METRICS = {
    "correct": ("correct", "none"),
    "strict": ("exact_match", "strict-match"),
    "flexible": ("exact_match", "flexible-extract"),
}


def summarise(run: Run) -> dict[str, Any]:
    """Return everything that a table needs, and what you need to repeat the run."""
    decides, header = run.decides, run.header
    name = run.task
    results = {"alias": name, **(_quality_results(run) if run.judged else _share_results(run))}
    better = {"nats": False} if run.judged else {metric: True for metric, _ in METRICS.values()}
    return {
        "results": {name: results | cost(run) | {"sandbox": layers_of(run)}},
        "configs": {
            name: {
                "task": name,
                **decides["ask"],
                "items": decides["task"]["items"],
                "grader": run.grader,
            }
        },
        "versions": {name: decides["task"]["version"]},
        "n-shot": {name: decides["ask"]["shots"]},
        "higher_is_better": {name: better},
        "n-samples": {name: {"original": decides["task"]["count"], "effective": len(run.grades)}},
        "config": {
            "model": header["model"]["path"],
            "model_args": header["model"],
            "fingerprints": decides["model"],
            "batch_size": decides["batch"]["rows"],
            "gen_kwargs": decides["options"],
            "device": run.environments[-1].get("device") if run.environments else None,
            "command": header.get("command", ""),
        },
        "environment": run.environments,
        "git_hash": header.get("commit"),
        "wavefront_version": decides["wavefront"],
    }


def _share_results(run: Run) -> dict[str, Any]:
    results: dict[str, Any] = {}
    for verdict, found in shares_of(run).items():
        metric, filter = METRICS[verdict]
        results[f"{metric},{filter}"] = found.value
        results[f"{metric}_stderr,{filter}"] = found.error
        results[f"{metric}_interval,{filter}"] = [found.low, found.high]
    return results


def _quality_results(run: Run) -> dict[str, Any]:
    """Return the mean of every measure: of the answers, and of the original's own texts."""
    results: dict[str, Any] = {}
    for filter, which in (("none", "quality"), ("original", "original")):
        for metric, found in quality.estimates([*qualities(run, which).values()]).items():
            value, low, high = bounds(found)
            results[f"{metric},{filter}"] = None if found is None else value
            results[f"{metric}_interval,{filter}"] = None if found is None else [low, high]
    return results


def shares_of(run: Run) -> dict[str, Proportion]:
    """Return the share of correct answers for every verdict."""
    graded = run.grades.values()
    return {
        verdict: wilson_share(sum(bool(line[verdict]) for line in graded), len(graded))
        for verdict in METRICS
    }


def cost(run: Run) -> dict[str, Any]:
    """Return the cost of the answers: forward passes per item, positions, tokens, and time."""
    answered = [answer for answer in run.answers.values() if not answer.get("problem")]
    tokens = sum(len(answer["tokens"]) for answer in answered)
    forwards = sum(answer["forwards"] for answer in answered)
    positions = [answer["positions"] for answer in answered if "positions" in answer]
    # A batch that crashed between its answers and its timing is missing here.
    timings = run.timings
    seconds = sum(timing["seconds"] for timing in timings)
    return {
        "forwards": forwards / len(answered) if answered else None,
        "positions": sum(positions) / len(positions) if positions else None,
        "tokens_per_forward": tokens / forwards if forwards else None,
        "tokens": tokens,
        "seconds": round(seconds, 3),
        "tokens_per_second": sum(t["tokens"] for t in timings) / seconds if seconds else None,
        "too_long": len(run.answers) - len(answered),
    }


def layers_of(run: Run) -> list[list[str]] | None:
    """Return each distinct set of sandbox layers around executed code; None if none was run."""
    executed = [
        line["layers"]
        for line in run.grades.values()
        if "layers" in line and line.get("how") != "not asked"
    ]
    kinds = {tuple(layers) for layers in executed}
    return [list(layers) for layers in sorted(kinds)] if executed else None
