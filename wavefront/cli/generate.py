"""`wavefront generate`."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Annotated

import typer

from wavefront.cli.command import Command
from wavefront.cli.decode import prepare, record, run
from wavefront.cli.options import (
    DecodingOptions,
    LengthOptions,
    ModelOptions,
    OutputOptions,
    Prompt,
    PromptFile,
    Raw,
    UsageError,
    flatten_options,
    option,
    options_set,
)
from wavefront.cli.output import complain, say, say_json
from wavefront.core.errors import PromptError, check_int

LARGEST = 1 << 26  # bytes of input: more than any context needs, and little memory

EXAMPLES = """\
Examples
wavefront generate "I have two figs and a pear. How many fruits?" --watch
wavefront generate -n 64 --json < question.txt
wavefront generate -f questions.txt --lines --json > answers.jsonl
wavefront generate -f question.txt -s "wavefront(size=8, radius=2)" -t 64

Larger models, from the Hub
wavefront generate "Why is the sky blue?" -m GSAI-ML/LLaDA-8B-Instruct -w
wavefront generate "Hello" -m GSAI-ML/LLaDA-8B-Instruct -s "block(size=32)"
wavefront generate "Hello" -m Dream-org/Dream-v0-Instruct-7B --alg entropy
"""
app = typer.Typer(add_completion=False)


@app.command(cls=Command, epilog=EXAMPLES)
@flatten_options
def generate(
    prompt: Prompt = None,
    *,
    file: PromptFile = None,
    raw: Raw = False,
    lines: Annotated[
        bool,
        option(
            None,
            "",
            "Treat every line as a prompt. Print one line per answer, with line breaks as \\n.",
            "--lines",
        ),
    ] = False,
    batch_size: Annotated[
        int, option(None, "N", "Lines to decode at once. Default: 8.", "--batch-size", "-b")
    ] = 8,
    length: LengthOptions,
    decoding: DecodingOptions,
    model: ModelOptions,
    output: OutputOptions,
) -> None:
    """Answer a prompt, or continue a text.

    Pass the prompt as an argument, with --file, or on standard input; a final line break is
    removed. The answer goes to standard output, and everything else goes to standard error.
    """
    check_int("batch_size", batch_size, 1)
    text = read_prompt(prompt, file)
    prompts = _split(text) if lines else [text]
    if not output.quiet and (hole := re.search(r"(?<!\\)<mask:\d+>", text)):
        complain(
            "warning",
            f"{hole[0]} is plain text for `generate`; `wavefront infill` fills holes.",
        )
    lm, options = prepare(model, decoding, output, length=options_set(length))
    size = 1 if output.watch else batch_size  # an animation shows one row
    for start in range(0, len(prompts), size):
        batch = prompts[start : start + size]
        stream = lm.stream(batch, raw=raw, **options)
        seconds = run(stream, output)
        for one, answer in zip(batch, stream.completions, strict=True):
            if output.json:
                facts = {"seconds": seconds, "model": model, "prompt": one, "raw": raw}
                say_json(record(lm, stream, answer, **facts))
            else:
                say(_one_line(answer.text) if lines else answer.text)


def read_prompt(prompt: str | None, file: Path | None) -> str:
    """Return the prompt from the argument, the file or standard input."""
    if prompt not in (None, "-") and file is not None:
        raise UsageError("Give a prompt or --file, not both.")
    if prompt not in (None, "-"):
        text = prompt
    elif file is not None and str(file) != "-":
        text = _decode(_read_file(file), str(file))
    elif prompt is None and file is None and sys.stdin.isatty():
        raise UsageError("Give a prompt, --file, or text on standard input.")
    else:
        text = _decode(sys.stdin.buffer.read(LARGEST + 1), "standard input")
    if not text.strip():
        raise PromptError("The prompt is empty.")
    return text


def _read_file(file: Path) -> bytes:
    try:
        with file.open("rb") as handle:
            return handle.read(LARGEST + 1)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise PromptError(f"The file {str(file)!r} cannot be read: {reason}.") from error


def _decode(data: bytes, source: str) -> str:
    if len(data) > LARGEST:
        raise PromptError(f"The prompt from {source} is longer than {LARGEST >> 20} MiB.")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        message = f"The prompt from {source} is not UTF-8 at byte {error.start}."
        raise PromptError(message) from error
    # An editor or `echo` adds a line break, which would be one more token of raw text.
    return text.removesuffix("\n").removesuffix("\r")


def _split(text: str) -> list[str]:
    prompts = [line.removesuffix("\r") for line in text.split("\n")]
    for number, line in enumerate(prompts, 1):
        if not line.strip():
            raise PromptError(f"Line {number} is empty: with --lines every line is a prompt.")
    return prompts


def _one_line(text: str) -> str:
    escapes = {"\\": "\\\\", "\n": "\\n", "\r": "\\r"}
    return text.translate(str.maketrans(escapes))
