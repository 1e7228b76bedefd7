"""`wavefront infill`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from wavefront.cli.command import Command
from wavefront.cli.decode import prepare, record, run
from wavefront.cli.generate import read_prompt
from wavefront.cli.options import (
    DecodingOptions,
    ModelOptions,
    OutputOptions,
    flatten_options,
    model_option,
)
from wavefront.cli.output import say, say_json

EXAMPLES = """\
Examples
wavefront infill "Once upon a time there was a <mask:6>. She <mask:12>."
wavefront infill "The dog was sad because <mask:8>. Then <mask:12>." --watch
wavefront infill -f draft.txt -s standard --json
Write \\<mask: for the characters <mask: themselves.
"""
app = typer.Typer(add_completion=False)


@dataclass(frozen=True, kw_only=True)
class InfillModel(ModelOptions):
    """Options that choose the model. The default is the story model."""

    model: Annotated[str | None, model_option("tale")] = None


@app.command(cls=Command, epilog=EXAMPLES)
@flatten_options
def infill(
    text: Annotated[
        str | None,
        typer.Argument(metavar="TEXT", help="The text. Omit it or write - to read stdin."),
    ] = None,
    *,
    file: Annotated[
        Path | None,
        typer.Option("--file", "-f", metavar="PATH", help="Read the text from this file."),
    ] = None,
    decoding: DecodingOptions,
    model: InfillModel,
    output: OutputOptions,
) -> None:
    """Fill the gaps in a text. <mask:8> marks a gap of eight tokens.

    The command prints the whole text. The default model is tale, which writes children's stories.
    The space before a gap is part of the gap. A gap ends early where the model writes its stop
    token.
    """
    from wavefront.models import builtin
    from wavefront.text.chat_template import parse_holes

    template = read_prompt(text, file)
    count = sum(part for part in parse_holes(template) if isinstance(part, int))
    lm, options = prepare(
        model, decoding, output, length={"max_new_tokens": count}, default=builtin.STORIES
    )
    del options["max_new_tokens"]  # the gaps determine the length
    stream = lm.stream_infill(template, **options)
    seconds = run(stream, output)
    answer = stream.completions[0]
    if not output.json:
        say(answer.text)
        return
    result = record(lm, stream, answer, seconds=seconds, model=model, prompt=template)
    del result["settings"]["max_new_tokens"]
    say_json(result)
