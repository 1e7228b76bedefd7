"""`wavefront generate` and `wavefront infill`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from wavefront.cli.decode import prepare, record, run
from wavefront.cli.option_groups import given
from wavefront.cli.options import (
    DecodingOptions,
    LengthOptions,
    ModelOptions,
    OutputOptions,
    Prompt,
    PromptFile,
    SourceOptions,
    UsageError,
)
from wavefront.cli.output import say, say_json
from wavefront.core.errors import PromptError, check_int

LARGEST = 1 << 26  # bytes of input: far beyond any context, and less than any memory

GENERATE_EXAMPLES = """\
Examples
wavefront generate "I have two figs and a pear. How many fruits?" --watch
wavefront generate -n 64 --json < question.txt
wavefront generate -f questions.txt --lines --json > answers.jsonl
wavefront generate -f question.txt -s "wavefront(size=8, radius=2)" -t 64

Larger models, from the hub
wavefront generate "Why is the sky blue?" -m GSAI-ML/LLaDA-8B-Instruct -w
wavefront generate "Hello" -m GSAI-ML/LLaDA-8B-Instruct -s "block(size=32)"
wavefront generate "Hello" -m Dream-org/Dream-v0-Instruct-7B --alg entropy
"""
INFILL_EXAMPLES = """\
Examples
wavefront infill "The <mask:4> jumps over the <mask:4> dog." --watch
wavefront infill -f draft.txt -s standard --json
Write \\<mask: where you mean these letters.
"""


def generate(
    prompt: Prompt = None,
    *,
    source: SourceOptions,
    length: LengthOptions,
    decoding: DecodingOptions,
    model: ModelOptions,
    output: OutputOptions,
) -> None:
    """Answer a prompt, or continue a text.

    The prompt is an argument, a file, or standard input (less its last line break). The answer goes
    to standard output and everything else to standard error.
    """
    check_int("batch_size", source.batch_size, 1)
    text = read(prompt, source.file)
    prompts = _split(text) if source.lines else [text]
    lm, options = prepare(model, decoding, output, length=given(length))
    size = 1 if output.watch else source.batch_size  # a picture has room for one
    for start in range(0, len(prompts), size):
        batch = prompts[start : start + size]
        stream = lm.stream(batch, raw=source.raw, **options)
        seconds = run(stream, output)
        for asked, answer in zip(batch, stream.completions, strict=True):
            if output.json:
                facts = {"seconds": seconds, "model": model, "prompt": asked, "raw": source.raw}
                say_json(record(lm, stream, answer, **facts))
            else:
                say(_one_line(answer.text) if source.lines else answer.text)


def infill(
    text: Annotated[
        str | None,
        typer.Argument(metavar="TEXT", help="The text; - or nothing reads standard input."),
    ] = None,
    *,
    file: PromptFile = None,
    decoding: DecodingOptions,
    model: ModelOptions,
    output: OutputOptions,
) -> None:
    """Fill the holes of a text: <mask:8> stands for eight tokens.

    The whole text is printed. Each hole is cut at the model's own end token, if it writes one.
    """
    from wavefront.text.chat_template import parse_holes

    given_text = read(text, file)
    places = sum(part for part in parse_holes(given_text) if isinstance(part, int))
    lm, options = prepare(model, decoding, output, length={"max_new_tokens": places})
    del options["max_new_tokens"]  # the holes say it
    stream = lm.stream_infill(given_text, **options)
    seconds = run(stream, output)
    answer = stream.completions[0]
    if not output.json:
        say(answer.text)
        return
    made = record(lm, stream, answer, seconds=seconds, model=model, prompt=given_text)
    del made["settings"]["max_new_tokens"]
    say_json(made)


def read(prompt: str | None, file: Path | None) -> str:
    """The text to work on, from where the user has put it."""
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
        raise PromptError("The prompt is empty: write something in it.")
    return text


def _read_file(file: Path) -> bytes:
    try:
        with file.open("rb") as handle:
            return handle.read(LARGEST + 1)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise PromptError(f"The file {str(file)!r} cannot be read: {reason}.") from error


def _decode(data: bytes, where: str) -> str:
    if len(data) > LARGEST:
        raise PromptError(f"The prompt from {where} is longer than {LARGEST >> 20} MiB.")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise PromptError(f"The prompt from {where} is not UTF-8 at byte {error.start}.") from error
    # An editor or `echo` put it there; in raw text it would be one token more.
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
