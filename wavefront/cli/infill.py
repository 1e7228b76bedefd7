"""`wavefront infill`."""

from __future__ import annotations

from typing import Annotated

import typer

from wavefront.cli.command import Command
from wavefront.cli.decode import prepare, record, run
from wavefront.cli.generate import read_prompt
from wavefront.cli.options import (
    DecodingOptions,
    ModelOptions,
    OutputOptions,
    PromptFile,
    flatten_options,
)
from wavefront.cli.output import say, say_json

EXAMPLES = """\
Examples
wavefront infill "The <mask:4> jumps over the <mask:4> dog." --watch
wavefront infill -f draft.txt -s standard --json
Write \\<mask: for the characters <mask: themselves.
"""
app = typer.Typer(add_completion=False)


@app.command(cls=Command, epilog=EXAMPLES)
@flatten_options
def infill(
    text: Annotated[
        str | None,
        typer.Argument(metavar="TEXT", help="The text. Omit it or write - to read stdin."),
    ] = None,
    *,
    file: PromptFile = None,
    decoding: DecodingOptions,
    model: ModelOptions,
    output: OutputOptions,
) -> None:
    """Fill the gaps in a text. <mask:8> marks a gap of eight tokens.

    The command prints the whole text. A gap ends early where the model writes its stop token.
    """
    from wavefront.text.chat_template import parse_holes

    template = read_prompt(text, file)
    count = sum(part for part in parse_holes(template) if isinstance(part, int))
    lm, options = prepare(model, decoding, output, length={"max_new_tokens": count})
    del options["max_new_tokens"]  # the gaps say it
    stream = lm.stream_infill(template, **options)
    seconds = run(stream, output)
    answer = stream.completions[0]
    if not output.json:
        say(answer.text)
        return
    result = record(lm, stream, answer, seconds=seconds, model=model, prompt=template)
    del result["settings"]["max_new_tokens"]
    say_json(result)
