"""The command line of training: `wavefront train {run,tokenizer,export,loss,speed}`."""

from __future__ import annotations

import argparse
import inspect
import json
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from wavefront.core.errors import OptionError, WavefrontError
from wavefront.train import TrainConfig, run
from wavefront.train.config import DataConfig


def mixture(text: str) -> dict[str, float]:
    """Parse `gsm=18,code=16`. A name alone has weight 1."""
    weights: dict[str, float] = {}
    for part in text.split(","):
        name, _, weight = part.strip().partition("=")
        try:
            weights[name] = float(weight or 1)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{part!r} is not of the form name=weight") from None
    return weights


def lengths(text: str) -> tuple[int, ...]:
    """Parse `96,128,256`."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list such as 96,128,256") from None


# How to parse an option, by the annotated type of its field.
READERS: dict[str, Any] = {"int": int, "float": float, "str": str, "Path": Path}
READERS |= {"Mapping[str, float]": mixture, "tuple[int, ...]": lengths}


def add_options(
    parser: argparse.ArgumentParser, kind: type[Any], *, without: Sequence[str] = ()
) -> None:
    """Add one option for every field of a config. The field's comment is the help text."""
    comments = dict(re.findall(r"^    (\w+):.*?  # (.+)$", inspect.getsource(kind), re.MULTILINE))
    for field in fields(kind):
        if field.name in ("data", *without):
            continue
        option = "--" + field.name.replace("_", "-")
        declared = str(field.type).removesuffix(" | None")
        if declared == "bool":
            action = argparse.BooleanOptionalAction
            text = _help(comments.get(field.name, ""), field.default)
            parser.add_argument(option, action=action, default=field.default, help=text)
            continue
        required = field.default is MISSING
        default = None if required else field.default
        parser.add_argument(
            option,
            type=READERS[declared],
            default=default,
            required=required,
            help=_help(comments.get(field.name, ""), default),
            metavar={"int": "N", "float": "X", "Path": "PATH"}.get(declared, "TEXT"),
        )


def _help(comment: str, default: Any) -> str:
    shown = default if not isinstance(default, tuple) else ",".join(str(part) for part in default)
    return (comment if default is None else f"{comment} [{shown}]").replace("%", "%%")


def pick(kind: type[Any], given: argparse.Namespace) -> dict[str, Any]:
    """Return the values of a config's fields."""
    return {
        field.name: getattr(given, field.name) for field in fields(kind) if field.name != "data"
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return the exit status: 2 for an error that the user can fix."""
    given = _parser().parse_args(arguments)
    try:
        given.act(given)
    except WavefrontError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="wavefront train", description="Train a diffusion model.")
    verbs = parser.add_subparsers(required=True)

    command = verbs.add_parser("run", help="train or resume training, and export the model")
    add_options(command, TrainConfig)
    add_options(command, DataConfig)
    command.set_defaults(act=_run)

    command = verbs.add_parser("tokenizer", help="train a tokenizer on the task mixture")
    command.add_argument("--out", type=Path, required=True)
    command.add_argument("--text", type=Path, help="plain text to train on as well")
    command.add_argument("--size", type=int, default=2048)
    command.add_argument("--samples", type=int, default=20_000)
    command.add_argument("--mixture", type=mixture)
    command.set_defaults(act=_tokenizer)

    command = verbs.add_parser("export", help="write the checkpoint of a run's saved state")
    command.add_argument("--run", type=Path, required=True)
    command.add_argument("--tokenizer", type=Path, required=True)
    command.add_argument("--out", type=Path, required=True)
    command.add_argument("--weights", default="ema")
    command.set_defaults(act=_export)

    command = verbs.add_parser("loss", help="compute a checkpoint's held-out loss at fixed levels")
    command.add_argument("--model", type=Path, required=True)
    command.add_argument("--device", default="auto")
    add_options(command, DataConfig, without=("tokenizer", "text", "text_share"))
    command.set_defaults(act=_loss)

    command = verbs.add_parser("speed", help="measure how fast one process makes data")
    command.add_argument("--groups", type=int, default=1)
    add_options(command, DataConfig)
    command.set_defaults(act=_speed)
    return parser


def _run(given: argparse.Namespace) -> None:
    data = DataConfig(**pick(DataConfig, given))
    run(TrainConfig(data=data, **pick(TrainConfig, given)))


def _tokenizer(given: argparse.Namespace) -> None:
    from wavefront.train.tokenizer import train_tokenizer, training_texts, write_tokenizer

    texts = training_texts(samples=given.samples, mixture=given.mixture, text=given.text)
    write_tokenizer(train_tokenizer(texts, given.size), given.out)
    print(f"{given.size} tokens in {given.out}")


def _export(given: argparse.Namespace) -> None:
    from wavefront.train.export import export_run

    folder = export_run(given.run, given.tokenizer, given.out, weights=given.weights)
    print(f"{given.weights} weights in {folder}")


def _loss(given: argparse.Namespace) -> None:
    from wavefront.models.loader import load_model, resolve_device
    from wavefront.models.transformer import Transformer
    from wavefront.train.validation import held_out_loss, held_out_rows

    device = resolve_device(given.device)
    model = load_model(given.model, device=device)
    if not isinstance(model, Transformer):
        raise OptionError(f"{given.model} is not a model that can be trained.")
    given.tokenizer, given.text, given.text_share = given.model, None, 0.0
    data = DataConfig(**pick(DataConfig, given))
    batches, source = held_out_rows(data, device)
    print(json.dumps(held_out_loss(model, batches, source), indent=2))


def _speed(given: argparse.Namespace) -> None:
    from wavefront.train.data import BatchSource

    data = DataConfig(**pick(DataConfig, given))
    source = BatchSource(data)
    begin = time.perf_counter()
    batches = [batch for group in range(given.groups) for batch in source.make_group(group)]
    seconds = time.perf_counter() - begin
    rows = sum(len(batch.tokens) for batch in batches)
    positions = sum(batch.tokens.size for batch in batches)
    shares = {
        length: sum(batch.tokens.shape[1] == length for batch in batches) for length in data.buckets
    }
    fill = sum(int((batch.tokens == source.encoder.special.eos).sum()) for batch in batches)
    print(
        f"{rows} rows in {seconds:.1f} s: {rows / seconds:.0f} rows/s, {positions / seconds:.0f} "
        f"tokens/s in one process; mean length {positions / rows:.0f}, "
        f"{fill / positions:.0%} fill; batches by bucket {shares}"
    )
