"""The command line of training: `wavefront train {run,adapt,tokenizer,export,loss,speed}`."""

from __future__ import annotations

import argparse
import inspect
import json
import re
import sys
import time
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any

from wavefront.core.errors import OptionError, WavefrontError, did_you_mean
from wavefront.train import TrainConfig, run
from wavefront.train.config import AdaptConfig, DataConfig, RowConfig


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


def shares(text: str) -> tuple[float, ...]:
    """Parse `0.5,0.3,0.2`."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list such as 0.5,0.3,0.2") from None


ADAPT = (AdaptConfig, RowConfig, TrainConfig)
# What `adapt` sets by itself: the files, the shape of the original, and how to continue.
ADAPT_SETS = {"tokenizer", "rows_path", "data", "init", "resume", "stop_after", "minutes"}
ADAPT_SETS |= {"width", "layers", "heads", "mlp_width", "max_length", "front_share"}

# How to parse an option, by the annotated type of its field.
READERS: dict[str, Any] = {"int": int, "float": float, "str": str, "Path": Path}
READERS |= {"Mapping[str, float]": mixture, "tuple[int, ...]": lengths}
READERS |= {"tuple[int, int]": lengths, "tuple[float, ...]": shares}


def add_options(
    parser: argparse.ArgumentParser, kind: type[Any], *, without: Sequence[str] = ()
) -> None:
    """Add one option for every field of a config. The field's comment is the help text."""
    sources = [inspect.getsource(part) for part in reversed(kind.__mro__) if is_dataclass(part)]
    pattern = re.compile(r"^    (\w+):.*?  # (.+(?:\n    # .+)*)$", re.MULTILINE)
    comments = {
        name: text.replace("\n    # ", " ") for name, text in pattern.findall("\n".join(sources))
    }
    for field in fields(kind):
        if field.name in ("data", *without):
            continue
        option = "--" + field.name.replace("_", "-")
        declared = str(field.type).removesuffix(" | None")
        if declared == "bool":
            action = argparse.BooleanOptionalAction
            text = _help(comments[field.name], field.default)
            # Some versions of argparse add a default that is given here to the help text.
            parser.add_argument(option, action=action, help=text)
            parser.set_defaults(**{field.name: field.default})
            continue
        required = field.default is MISSING
        default = None if required else field.default
        _add(
            parser,
            option,
            READERS[declared],
            comment=comments[field.name],
            default=default,
            required=required,
        )


def _add(
    parser: argparse.ArgumentParser,
    option: str,
    reader: Any,
    *,
    comment: str,
    default: Any = None,
    required: bool = False,
) -> None:
    """Add an option that takes a value."""
    parser.add_argument(
        option,
        type=reader,
        default=default,
        required=required,
        help=_help(comment, default, required=required),
        metavar={int: "N", float: "X", Path: "PATH"}.get(reader, "TEXT"),
    )


def _help(comment: str, default: Any = None, *, required: bool = False) -> str:
    """Return a help text in sentences from a comment such as `directory; default: here`."""
    text = comment[0].upper() + comment[1:].replace("; default: ", ". Default: ") + "."
    if isinstance(default, bool):
        default = "on" if default else "off"
    if isinstance(default, tuple):
        default = ",".join(str(part) for part in default)
    if required:
        text += " Required."
    elif default not in (None, "") and "Default:" not in text:
        text += f" Default: {default}."
    return text.replace("%", "%%")


class HelpFormatter(argparse.HelpFormatter):
    """Help pages in 80 columns, with sentences as on the other commands' pages."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28, width=80)

    def add_usage(
        self, usage: str | None, actions: Any, groups: Any, prefix: str | None = None
    ) -> None:
        super().add_usage(usage, actions, groups, "Usage: ")

    def start_section(self, heading: str | None) -> None:
        super().start_section(heading and heading.capitalize())


class Parser(argparse.ArgumentParser):
    """A parser whose help page looks like the other commands' pages."""

    def __init__(self, *, usage: str = "%(prog)s [OPTIONS]", **settings: Any) -> None:
        super().__init__(usage=usage, formatter_class=HelpFormatter, add_help=False, **settings)
        self.add_argument("--help", action="help", help="Show this message and exit.")


def pick(kind: type[Any], given: argparse.Namespace) -> dict[str, Any]:
    """Return the values of a config's fields."""
    return {
        field.name: getattr(given, field.name) for field in fields(kind) if field.name != "data"
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return the exit status: 2 for an error that the user can fix."""
    try:
        run_action(sys.argv[1:] if arguments is None else arguments)
    except WavefrontError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def run_action(arguments: Sequence[str]) -> None:
    """Run a command.

    Raises:
        WavefrontError: An option is wrong, or a file could not be read or written.
    """
    try:
        given = _parse(arguments)
        given.act(given)
    except OSError as error:
        where = f" {error.filename}" if error.filename else ""
        reason = error.strerror or str(error)
        raise WavefrontError(
            f"A file could not be read or written:{where} ({reason}); what was saved before is "
            "kept."
        ) from error


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the arguments. A `--config` file gives the values that the command line leaves out."""
    early = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    early.add_argument("--config", type=Path)
    path = early.parse_known_args(arguments)[0].config
    if not arguments or arguments[0] != "adapt" or path is None:
        return _parser({}).parse_args(arguments)
    return _parser(read_settings(path)).parse_args(arguments)


def read_settings(path: Path) -> dict[str, Any]:
    """Read a TOML file of options, with underscores in their names and no tables.

    Raises:
        OptionError: The file cannot be read, or an option is unknown.
    """
    try:
        settings = tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise OptionError(
            f"config {str(path)!r} cannot be read: {error}.", option="config"
        ) from None
    known = {field.name for kind in ADAPT for field in fields(kind)} - ADAPT_SETS
    for name, value in settings.items():
        if name not in known:
            raise OptionError(
                f"config {str(path)!r} has an unknown option {name!r}{did_you_mean(name, known)}.",
                option="config",
            )
        if isinstance(value, list):
            settings[name] = tuple(value)
    return settings


def actions() -> dict[str, Any]:
    """Return the parser of every action, by its name."""
    return _parser({})._subparsers._group_actions[0].choices  # pyright: ignore


def _parser(settings: dict[str, Any]) -> argparse.ArgumentParser:
    usage = "%(prog)s ACTION [OPTIONS]"
    parser = Parser(prog="wavefront train", description="Train a diffusion model.", usage=usage)
    verbs = parser.add_subparsers(required=True, title="actions")

    def add(verb: str, help: str, act: Callable[[argparse.Namespace], None]) -> Parser:
        prog = f"wavefront train {verb}"
        command = verbs.add_parser(verb, help=help, description=help, prog=prog)
        command.set_defaults(act=act)
        return command

    command = add("run", "Train or resume training, and export the model.", _run)
    add_options(command, TrainConfig)
    add_options(command, DataConfig)

    command = add("adapt", "Turn an autoregressive model into a diffusion model.", _adapt)
    command.add_argument("--config", type=Path, metavar="PATH", help="TOML file of options.")
    add_options(command, AdaptConfig)
    add_options(command, RowConfig, without=("tokenizer", "rows_path"))
    add_options(command, TrainConfig, without=tuple(ADAPT_SETS | {"out"}))
    command.set_defaults(**settings)

    command = add("tokenizer", "Train a tokenizer on the task mixture.", _tokenizer)
    _add(command, "--out", Path, comment="directory to write the tokenizer to", required=True)
    _add(command, "--text", Path, comment="plain text to train on as well; default: none")
    _add(command, "--size", int, comment="number of tokens", default=2048)
    _add(command, "--samples", int, comment="examples to draw from the tasks", default=20_000)
    _add(
        command, "--mixture", mixture, comment="weights such as gsm=18,code=16; default: all tasks"
    )

    command = add("export", "Write the checkpoint of a run's saved state.", _export)
    _add(command, "--run", Path, comment="directory of the run", required=True)
    _add(command, "--tokenizer", Path, comment="directory with tokenizer.json", required=True)
    _add(command, "--out", Path, comment="directory to write the model to", required=True)
    _add(command, "--weights", str, comment="weights to export: ema or raw", default="ema")
    _add(
        command,
        "--storage",
        str,
        comment="store the matrices in int8, fp8 or int4; default: as trained",
    )

    command = add("loss", "Compute a checkpoint's held-out loss at fixed levels.", _loss)
    _add(command, "--model", Path, comment="directory of the checkpoint", required=True)
    _add(command, "--device", str, comment="device: cuda, mps, cpu or auto", default="auto")
    add_options(command, DataConfig, without=("tokenizer", "text", "text_share"))

    command = add("speed", "Measure how fast one process makes data.", _speed)
    _add(command, "--groups", int, comment="groups of batches to make", default=1)
    add_options(command, DataConfig)
    return parser


def _run(given: argparse.Namespace) -> None:
    data = DataConfig(**pick(DataConfig, given))
    run(TrainConfig(data=data, **pick(TrainConfig, given)))


def _adapt(given: argparse.Namespace) -> None:
    from wavefront.train.adapt import adapt

    if given.steps is None and given.train_minutes is None:
        raise OptionError(
            "adapt needs --steps or --train-minutes, the length of training; --minutes only "
            "limits how long this command runs."
        )
    folder = {"tokenizer": given.out / "original", "rows_path": given.out / "rows"}
    data = RowConfig(**(_present(RowConfig, given) | folder))
    values: dict[str, Any] = _present(TrainConfig, given) | {"minutes": None}
    adapt(AdaptConfig(**pick(AdaptConfig, given)), TrainConfig(data=data, **values))


def _present(kind: type[Any], given: argparse.Namespace) -> dict[str, Any]:
    """Return the values of those fields that the command has as options."""
    names = [field.name for field in fields(kind) if hasattr(given, field.name)]
    return {name: getattr(given, name) for name in names}


def _tokenizer(given: argparse.Namespace) -> None:
    from wavefront.train.tokenizer import train_tokenizer, training_texts, write_tokenizer

    texts = training_texts(samples=given.samples, mixture=given.mixture, text=given.text)
    write_tokenizer(train_tokenizer(texts, given.size), given.out)
    print(f"{given.size} tokens in {given.out}")


def _export(given: argparse.Namespace) -> None:
    from wavefront.train.export import export_run

    folder = export_run(
        given.run, given.tokenizer, given.out, weights=given.weights, storage=given.storage
    )
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
    padding = sum(int((batch.tokens == source.encoder.special.eos).sum()) for batch in batches)
    print(
        f"{rows} rows in {seconds:.1f} s: {rows / seconds:.0f} rows/s, {positions / seconds:.0f} "
        f"tokens/s in one process; mean length {positions / rows:.0f}, "
        f"{padding / positions:.0%} padding; batches by bucket {shares}"
    )
