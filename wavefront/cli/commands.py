"""The commands by name, and the line of each on a page that lists them.

The module of a command is imported when the command is called. So the first help page, and the
completion of a word, cost the same however many commands there are. The lines are the first
paragraphs of the docstrings, which a test sees to.
"""

from __future__ import annotations

from typing import NamedTuple


class Entry(NamedTuple):
    """Where a command is found: `module.function` in this package, and names in that module."""

    where: str
    line: str
    examples: str = "EXAMPLES"
    settings: str = ""


COMMANDS = {
    "generate": Entry(
        "generate.generate", "Answer a prompt, or continue a text.", "GENERATE_EXAMPLES"
    ),
    "chat": Entry("chat.chat", "Talk to a model that has a chat template."),
    "infill": Entry(
        "generate.infill",
        "Fill the holes of a text: <mask:8> stands for eight tokens.",
        "INFILL_EXAMPLES",
    ),
    "strategies": Entry(
        "list_strategies.strategies",
        "List the strategies and their options, or explain one of them.",
        "",
    ),
    "models": Entry(
        "list_models.models",
        "List the built-in models, and the families whose checkpoints can be loaded.",
        "",
    ),
    "demo": Entry(
        "demo.demo",
        "Watch the built-in model solve a problem, then see four strategies side by side.",
    ),
    "compare": Entry(
        "compare.compare",
        "Watch strategies decode the same prompt side by side, and count what it took.",
    ),
    "paper": Entry("paper.app", "Reproduce the experiments of the paper."),
    "tune": Entry(
        "tune.tune", "Find the strategy that suits your prompts, and see what it is worth."
    ),
    "report": Entry(
        "report.report",
        "Make one HTML page of recorded decodes and of runs: tables, figures, and a player.",
    ),
    "lm-eval": Entry(
        "lm_eval.lm_eval",
        "Run lm-eval with our models: everything after -- is its own command line.",
        "LM_EVAL_EXAMPLES",
        "SETTINGS",
    ),
    "lm-eval-tasks": Entry(
        "lm_eval.lm_eval_tasks",
        "Write tasks as files that lm-eval reads offline: a YAML and a JSONL each.",
        "TASKS_EXAMPLES",
    ),
    "bertscore": Entry(
        "lm_eval.bertscore",
        "Compare texts with references by BERTScore: precision, recall and F1.",
        "BERTSCORE_EXAMPLES",
    ),
    "eval": Entry(
        "evaluate.evaluate",
        "Ask, grade and sum up, in one go: `wavefront answers`, then `wavefront grade`.",
        "EVAL_EXAMPLES",
    ),
    "answers": Entry(
        "evaluate.answers",
        "Ask a model the items of a task, and write down its answers; nothing is graded.",
        "ANSWERS_EXAMPLES",
    ),
    "grade": Entry(
        "evaluate.grade", "Grade the answers of a run, and sum it up.", "GRADE_EXAMPLES"
    ),
    "diff": Entry(
        "eval_compare.diff",
        "Compare two runs item by item: is B better than A, and which answers changed?",
        "DIFF_EXAMPLES",
    ),
    "explain": Entry(
        "eval_compare.explain",
        "Say of every changed answer where the two decodes went different ways, and what each saw.",
        "EXPLAIN_EXAMPLES",
    ),
    "merge": Entry(
        "eval_compare.merge",
        "Join the shards of a run, made with --shard, into the run that one process had made.",
        "MERGE_EXAMPLES",
    ),
    "bench": Entry(
        "bench.bench",
        "Measure what a step costs on this machine, beside two published ways to decode.",
    ),
    "serve": Entry(
        "serve.serve", "Serve a model behind OpenAI's API, with a page where the wave moves."
    ),
    "train": Entry(
        "train.train",
        "Train a diffusion language model on the procedural tasks, as ripple was trained.",
        settings="SETTINGS",
    ),
    "version": Entry("list_models.version", "Print the versions that a report should name.", ""),
    "trace": Entry(
        "trace_group.traces",
        "Decodes in files: recorded, shown, drawn, repeated, exported, forked.",
    ),
}

TRACE = {
    "record": Entry(
        "trace.record_trace", "Answer a prompt, and keep how it came about.", "RECORD_EXAMPLES"
    ),
    "show": Entry("trace.show", "Play recorded decodes, several side by side.", "SHOW_EXAMPLES"),
    "draw": Entry(
        "trace.draw",
        "Draw decodes as a film, an SVG file that plays by itself in a browser or a README.",
        "DRAW_EXAMPLES",
    ),
    "replay": Entry(
        "trace_fork.replay",
        "Decode again what was recorded, and say whether every commit is the same.",
        "REPLAY_EXAMPLES",
    ),
    "export": Entry(
        "trace.export",
        "List what happened: what was committed, taken back and written by hand, and when.",
        "EXPORT_EXAMPLES",
    ),
    "fork": Entry(
        "trace_fork.fork",
        "Go on from a recorded decode in another way: what would have happened?",
        "FORK_EXAMPLES",
    ),
}
