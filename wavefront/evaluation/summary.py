"""Summary: a run in the shape of lm-eval's results, so that its readers read it too."""

from __future__ import annotations

from typing import Any

from wavefront.evaluation.run import Run
from wavefront.results.interval import Share, wilson_share

# What we call a verdict, and what lm-eval calls the metric and its filter.
METRICS = {
    "correct": ("correct", "none"),
    "strict": ("exact_match", "strict-match"),
    "flexible": ("exact_match", "flexible-extract"),
}


def summarise(run: Run) -> dict[str, Any]:
    """Everything that a table needs, with what it takes to make it again."""
    decides, header = run.decides, run.header
    name, shares = run.task, shares_of(run)
    results: dict[str, Any] = {"alias": name}
    for verdict, found in shares.items():
        metric, filter = METRICS[verdict]
        results[f"{metric},{filter}"] = found.value
        results[f"{metric}_stderr,{filter}"] = found.error
        results[f"{metric}_interval,{filter}"] = [found.low, found.high]
    return {
        "results": {name: results | cost(run) | {"sandbox": layers_of(run)}},
        "configs": {name: {"task": name, **decides["ask"], "items": decides["task"]["items"]}},
        "versions": {name: decides["task"]["version"]},
        "n-shot": {name: decides["ask"]["shots"]},
        "higher_is_better": {name: {metric: True for metric, _ in METRICS.values()}},
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


def shares_of(run: Run) -> dict[str, Share]:
    """Right answers by every verdict."""
    graded = run.grades.values()
    return {
        verdict: wilson_share(sum(bool(line[verdict]) for line in graded), len(graded))
        for verdict in METRICS
    }


def cost(run: Run) -> dict[str, Any]:
    """What the answers took: forwards of an item, tokens that are seen, time."""
    asked = [one for one in run.answers.values() if not one.get("problem")]
    tokens = sum(len(one["tokens"]) for one in asked)
    forwards = sum(one["forwards"] for one in asked)
    # The batches that were timed; of one that crashed after its answers, the time is not known.
    timed = run.timings
    seconds = sum(one["seconds"] for one in timed)
    return {
        "forwards": forwards / len(asked) if asked else None,
        "tokens_per_forward": tokens / forwards if forwards else None,
        "tokens": tokens,
        "seconds": round(seconds, 3),
        "tokens_per_second": sum(one["tokens"] for one in timed) / seconds if seconds else None,
        "too_long": len(run.answers) - len(asked),
    }


def layers_of(run: Run) -> list[list[str]] | None:
    """What stood around the code that was run, in each of its kinds; None where none was run."""
    told = [line["layers"] for line in run.grades.values() if "layers" in line and _was_run(line)]
    kinds = {tuple(one) for one in told}
    return [list(one) for one in sorted(kinds)] if told else None


def _was_run(line: dict[str, Any]) -> bool:
    return line.get("how") != "not asked"
