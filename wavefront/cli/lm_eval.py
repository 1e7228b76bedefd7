"""`wavefront lm-eval`: our models in lm-eval, EleutherAI's evaluation harness."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from wavefront.cli import completion
from wavefront.cli.command import Command, Group
from wavefront.cli.option_names import OPTION_NAMES
from wavefront.cli.options import AllowUnsandboxed, Data, ItemsSeed, option
from wavefront.cli.output import say

EXAMPLES = """\
Examples
wavefront lm-eval tasks gsm navigate --items 50 --out tasks
wavefront lm-eval run -- --tasks wavefront_gsm --include_path tasks \\
  --apply_chat_template --batch_size 8 --output_path out --log_samples \\
  --model_args "pretrained=ripple,strategy=wavefront(size=8, radius=2)"
"""
RUN_EXAMPLES = """\
Examples
wavefront lm-eval run -- --tasks wavefront_gsm --include_path tasks \\
  --apply_chat_template --batch_size 8 --output_path out --log_samples \\
  --model_args "pretrained=ripple,strategy=wavefront(size=8, radius=2)"
wavefront lm-eval run -- --tasks arc_easy \\
  --model_args pretrained=ripple,mc_num=32
wavefront lm-eval run -- run --help

Model arguments
pretrained=NAME                built-in name, directory or Hub id
device, dtype, revision        as for `wavefront generate`
quantize=KIND                  int8, fp8 or int4
strategy, steps, eos, seed, …  every decoding option by its own name
max_new_tokens=N               tokens per answer; default: from the task
likelihood=RULE                llada, dream or left_to_right
mc_num=128,mc_batch=32         noised copies of an answer, and at once
is_check_greedy, add_bos_token true or false
"""
TASKS_EXAMPLES = """\
Examples
wavefront lm-eval tasks --data data --out tasks
wavefront lm-eval tasks gsm8k math500 --data data --out tasks
wavefront lm-eval tasks gsm navigate --items 50 --out tasks
wavefront lm-eval tasks prompts.jsonl examples.new_task.Fruits --out tasks
"""
app = typer.Typer(
    cls=Group,
    help="Evaluate with lm-eval, EleutherAI's evaluation harness.",
    epilog=EXAMPLES,
    add_completion=False,
)


# From the first argument on, everything belongs to lm-eval.
@app.command(cls=Command, epilog=RUN_EXAMPLES, context_settings={"allow_interspersed_args": False})
def run(
    context: typer.Context,
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="-- ARGUMENTS", help="Arguments of lm-eval.")
    ] = None,
    *,
    task: Annotated[
        list[str] | None,
        option(
            None,
            "NAME",
            "Your own task, module.Class, if a task file uses one: a file never imports code. "
            "Repeat for several.",
            "--task",
        ),
    ] = None,
    allow_unsandboxed: AllowUnsandboxed = False,
) -> None:
    """Run lm-eval with our models. Everything after -- goes to lm-eval.

    The model is `wavefront` unless --model names another. The cache of --use_cache is used only
    with the same weights, strategy and options.
    """
    if not arguments:
        print(context.get_help(), end="")
        raise typer.Exit(2)
    from wavefront.integrations.lm_eval.command import run as run_lm_eval
    from wavefront.integrations.lm_eval.grading import trust

    context.meta[OPTION_NAMES] = {"model_args": "--model_args"}
    trust(task or [], allow_unsandboxed=allow_unsandboxed)
    run_lm_eval(arguments)


@app.command(cls=Command, epilog=TASKS_EXAMPLES)
def tasks(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TASK…",
            help="Tasks to write; module.Class or FILE.jsonl for your own. Default: the paper's "
            "five benchmarks.",
            autocompletion=completion.graded_tasks,
        ),
    ] = None,
    *,
    out: Annotated[Path, option(None, "DIR", "Directory to write the files to.", "--out", "-o")],
    data: Data = "",
    items: Annotated[
        int | None,
        option(
            None, "N", "Items per task. Default: all, or 100 for a generated task.", "--items", "-i"
        ),
    ] = None,
    items_seed: ItemsSeed = 0,
    style: Annotated[
        str,
        option(
            None,
            "WORD",
            "paper: the paper's prompts. bare: only the question. Default: paper.",
            complete=completion.words("bare", "paper"),
        ),
    ] = "paper",
    shots: Annotated[
        int, option(None, "N", "Worked examples before each question. Default: 0.")
    ] = 0,
    max_new_tokens: Annotated[
        int, option(None, "N", "Tokens per answer. Default: 1024.", "--max-new-tokens", "-n")
    ] = 1024,
    allow_unsandboxed: AllowUnsandboxed = False,
) -> None:
    """Write tasks as files that lm-eval reads offline.

    Each task is a YAML file and a JSONL file. Prompts and grading are the same as in
    `wavefront eval`: the paper's prompts, zero-shot. Model-written code runs in our sandbox. Pass
    the directory to lm-eval with --include_path.
    """
    from wavefront.core.errors import check_choice, check_int
    from wavefront.integrations.lm_eval import task_files
    from wavefront.tasks.base import STYLES, Ask

    check_choice("style", style, STYLES)
    check_int("max_new_tokens", max_new_tokens, 1)
    if items is not None:
        check_int("items", items, 1)
    ask = Ask(count=items, seed=items_seed, style=style, shots=shots, data=data)  # pyright: ignore[reportArgumentType]
    written = task_files.write(
        list(names or task_files.benchmarks()),
        out,
        ask=ask,
        length=max_new_tokens,
        allow_unsandboxed=allow_unsandboxed,
    )
    for one in written:
        say(f"{one.name}\t{one.items} items\t{one.yaml}")
    from wavefront.core.tree import plural

    many = plural(len(written), "task")
    print(f"{many} written. Add to lm-eval's command: --include_path {out}", file=sys.stderr)
