"""The options that several commands share, each written once.

Nothing is checked here that the library checks: its sentences serve Python and the command line.
An option without a help text is an alias, and stays off the help page.
"""

from __future__ import annotations

import ast
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass, field, fields, make_dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from wavefront.cli.usage import UsageError as UsageError

if TYPE_CHECKING:
    from wavefront.lm import LM

Group = TypeVar("Group")


class Ids(tuple[int, ...]):
    """Token ids in one value: 1,2. (A bare tuple would ask typer for several values.)"""


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a whole number.") from None


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a number.") from None


def _ids(text: str) -> Ids:
    return Ids(_whole(one) for one in text.split(",") if text.strip())


def _seconds(text: str) -> float:
    if not 0 <= _number(text) <= 60:
        raise typer.BadParameter(f"{text!r} is not between 0 and 60.")
    return float(text)


# The help of --data, wherever it is.
DATA = "Where data sets lie, or hub; by default $WAVEFRONT_DATA."

# What the help page calls a value is how it is read; the others are text.
READERS: dict[str, Callable[[str], Any]] = {
    **dict.fromkeys(("N", "T", "K", "ID"), _whole),
    **dict.fromkeys(("X", "P"), _number),
    "SECONDS": _seconds,
    **dict.fromkeys(("IDS", "N,N"), _ids),
}


def option(panel: str | None, metavar: str = "", help: str = "", *names: str) -> Any:
    """A typer option in a panel of the help page."""
    return typer.Option(
        *names,
        rich_help_panel=panel,
        metavar=metavar or None,
        parser=READERS.get(metavar),
        help=help,
        hidden=not help,
        show_default=False,
    )


# The types of the library's options: what they are here, and what the value is called.
_KINDS: dict[str, tuple[type, str]] = {
    "bool": (bool, ""),
    "int": (int, "N"),
    "float": (float, "X"),
    "Sequence[int]": (Ids, "IDS"),
}


def library_options() -> dict[str, str]:
    """Every name of `wavefront.engine.options.Options` and its type, as written there.

    The text is read because an import brings torch along, and no help page should wait for that.
    """
    tree = ast.parse(pkgutil.get_data("wavefront", "engine/options.py") or b"")
    (made,) = (one for one in tree.body if isinstance(one, ast.ClassDef) and one.name == "Options")
    return {
        ast.unparse(one.target): ast.unparse(one.annotation)
        for one in made.body
        if isinstance(one, ast.AnnAssign)
    }


def _with_aliases(group: type[Group]) -> type[Group]:
    """The group, and hidden in it the options of the library that no group writes out.

    So whatever Python takes by name is taken here by the same name.
    """
    written = {one.name for owner in (LengthOptions, group) for one in fields(owner)}  # pyright: ignore[reportArgumentType]
    added: list[tuple[str, Any, Any]] = []
    for name, text in library_options().items():
        if name not in written:
            kind, metavar = _KINDS.get(text.removesuffix(" | None"), (str, ""))
            spelling = option(None, metavar, "", f"--{name.replace('_', '-')}")
            # A flag has no third state.
            hint, default = (bool, False) if kind is bool else (kind | None, None)
            added.append((name, Annotated[hint, spelling], field(default=default)))
    return make_dataclass(group.__name__, added, bases=(group,), frozen=True, kw_only=True)


_model = partial(option, "Model")
_decoding = partial(option, "Decoding")
_sampling = partial(option, "Sampling")
_dream = partial(option, "Dream's own sampler")
_output = partial(option, "Output")


Prompt = Annotated[
    str | None,
    typer.Argument(metavar="PROMPT", help="The prompt; - or nothing reads standard input."),
]
PromptFile = Annotated[
    Path | None,
    typer.Option("--file", "-f", metavar="PATH", help="Read the prompt from a file."),
]


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """Where prompts come from, and how they are meant."""

    file: PromptFile = None
    raw: Annotated[
        bool, option(None, "", "Continue the text as it is, past the chat template.", "--raw")
    ] = False
    lines: Annotated[
        bool,
        option(
            None,
            "",
            "Every line is a prompt. Answers take a line each, their line breaks written \\n.",
            "--lines",
        ),
    ] = False
    batch_size: Annotated[
        int,
        option(None, "N", "Lines to decode at once; by default 8.", "--batch-size", "-b"),
    ] = 8


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """Which model, and where it runs."""

    model: Annotated[
        str | None,
        _model(
            "NAME",
            "A built-in name, a directory, or a hub id such as org/name; "
            "by default the first of `wavefront models`.",
            "--model",
            "-m",
        ),
    ] = None
    device: Annotated[
        str | None, _model("NAME", "cpu, cuda, cuda:1 or mps; by default the best there is.")
    ] = None
    dtype: Annotated[
        str | None,
        _model(
            "NAME",
            "float32, bfloat16 or float16; by default as stored on CUDA, float32 elsewhere.",
        ),
    ] = None
    revision: Annotated[str | None, _model("NAME", "Commit, tag or branch of a hub id.")] = None
    offline: Annotated[
        bool, _model("", "Use only what is on this machine already.", "--offline")
    ] = False
    capture: Annotated[bool, _model("", "On CUDA, replay recorded steps.", "--capture")] = False
    compile: Annotated[bool, _model("", "Slow start, fast steps.", "--compile")] = False

    def load(self) -> LM:
        from wavefront import lm
        from wavefront.models import builtin

        return lm.load(
            builtin.DEFAULT if self.model is None else self.model,
            device=self.device,
            dtype=self.dtype,
            revision=self.revision,
            offline=self.offline,
            capture=self.capture,
            compile=self.compile,
        )


@dataclass(frozen=True, kw_only=True)
class LengthOptions:
    """How much to write."""

    max_new_tokens: Annotated[
        int | None, _decoding("N", "Places to fill; by default 128.", "--max-new-tokens", "-n")
    ] = None
    # Here, and not among the derived ones: infilling takes no length under any name.
    gen_length: Annotated[int | None, _decoding("N")] = None
    max_tokens: Annotated[int | None, _decoding("N")] = None


@_with_aliases
@dataclass(frozen=True, kw_only=True)
class DecodingOptions:
    """Which places first, and how many at a time; how tokens are drawn."""

    steps: Annotated[
        int | None,
        _decoding(
            "T",
            "Forward passes to fill them in; by default N, a token each. Fewer are quicker.",
            "--steps",
            "-t",
        ),
    ] = None
    strategy: Annotated[
        str | None,
        _decoding(
            "SPEC",
            'The strategy: block, "wavefront(size=8, radius=2)", ...; see `wavefront strategies`. '
            "A class of your own goes by module.Class.",
            "--strategy",
            "-s",
        ),
    ] = None
    priority: Annotated[
        str | None,
        _decoding("WORD", "What goes first: confidence, probability, margin, entropy or random."),
    ] = None
    eos: Annotated[
        str | None,
        _decoding(
            "WORD",
            "What an end token does. stop (the default here; keep in Python): decoding ends once "
            "all before it is decided; the same text as with keep, only sooner. keep: every place "
            "is filled. defer: it comes after all else in the scope, and then ends the answer. "
            "suppress-logit, suppress-confidence, llada-confidence: it is held back.",
        ),
    ] = None
    stop_id: Annotated[
        list[int] | None,
        _decoding("ID", "An end token, in place of the model's own; may be given again."),
    ] = None
    order_noise: Annotated[
        float | None, _decoding("X", "Gumbel noise on the order; by default 0.")
    ] = None
    fixed_budget: Annotated[
        bool,
        _decoding("", "Run all T passes, also those that commit nothing.", "--fixed-budget"),
    ] = False
    draft: Annotated[
        int | None,
        _decoding("N", "Steps to try in each, larger, pass: same answer, fewer passes. Off: 0."),
    ] = None

    cache: Annotated[
        str | None,
        _decoding(
            "SPEC",
            'Compute some places, keep the others: prefix, dual, "wave(refresh=32)". Off: none.',
        ),
    ] = None

    temperature: Annotated[
        float | None, _sampling("X", "By default 0: the most probable token, every time.")
    ] = None
    seed: Annotated[int | None, _sampling("N", "Of all that is random; by default 0.")] = None
    top_p: Annotated[float | None, _sampling("P", "Draw from the first P of the mass.")] = None
    top_k: Annotated[int | None, _sampling("K", "Draw from the first K tokens.")] = None
    sampling: Annotated[
        str | None, _sampling("WORD", "llada or dream: whose rule; by default the model's.")
    ] = None
    cfg_scale: Annotated[
        float | None, _sampling("X", "Classifier-free guidance; by default 0, off.")
    ] = None

    alg: Annotated[
        str | None,
        _dream("WORD", "origin, maskgit_plus, topk_margin or entropy; in place of --strategy."),
    ] = None
    eps: Annotated[float | None, _dream("X", "Where its time ends; by default 0.001.")] = None
    alg_temp: Annotated[float | None, _dream("X", "Noise on its order; by default none.")] = None


@dataclass(frozen=True, kw_only=True)
class PlainOptions:
    """What is said, where there is nothing to watch."""

    json: Annotated[
        bool, _output("", "A JSON object per answer, with all it takes to repeat it.", "--json")
    ] = False
    quiet: Annotated[bool, _output("", "No progress, no warnings.", "--quiet", "-q")] = False
    debug: Annotated[bool, _output("", "Show the traceback of an error.", "--debug")] = False


@dataclass(frozen=True, kw_only=True)
class OutputOptions(PlainOptions):
    """What is shown, and where."""

    watch: Annotated[
        bool | None,
        _output("", "Show the canvas while it is filled, on stderr.", "--watch/--no-watch", "-w"),
    ] = None
    delay: Annotated[float, _output("SECONDS", "Wait after each step, to see it better.")] = 0.0
