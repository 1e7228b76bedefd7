"""The options that several commands share, each defined once.

A group of options is a dataclass. A command takes a group as one parameter, and `flatten_options`
replaces that parameter with the fields of the group, which typer then shows as options. The library
checks the values, so Python and the command line give the same error messages. An option without a
help text is an alias and does not appear on help pages.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import logging
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from wavefront.cli import completion
from wavefront.cli.command import UsageError as UsageError
from wavefront.core.bounds import DEFAULT_STRATEGY
from wavefront.core.errors import OptionError, WavefrontWarning, quote

if TYPE_CHECKING:
    from wavefront.lm import LM

# Options whose name differs from the library's.
LIBRARY_NAMES: dict[str, str] = {
    "stop_id": "stop_ids",
    "choice": "choices",
}
LARGEST_SCHEMA = 1 << 20  # bytes of a schema file


# Options that change how a checkpoint is read.
LOAD_OPTIONS = frozenset({"mask_id", "attention", "block_size"})


class Ids(tuple[int, ...]):
    """Integers in one value, such as 1,2. For a plain tuple, typer would expect several values."""


def _parse_int(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a whole number.") from None


def _parse_float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a number.") from None


def _parse_seconds(text: str) -> float:
    if not 0 <= _parse_float(text) <= 60:
        raise typer.BadParameter(f"{text!r} is not between 0 and 60.")
    return float(text)


def _parse_ids(text: str) -> Ids:
    return Ids(_parse_int(one) for one in text.split(",") if text.strip())


def _read_biases(text: str) -> dict[int, float]:
    """Return token ids with the numbers that are added to their logits."""
    found: dict[int, float] = {}
    for part in text.split(","):
        id, equals, value = part.partition("=")
        try:
            found[int(id)] = float(value)
        except ValueError:
            equals = ""
        if not equals:
            raise OptionError(
                f"logit_bias must be written as 11=5,12=-100, not {quote(text)}.",
                option="logit_bias",
                value=text,
            )
    return found


def _read_schema(text: str) -> str:
    """Return the content of a schema file. The library checks it."""
    try:
        with Path(text).open("rb") as file:
            data = file.read(LARGEST_SCHEMA + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        message = f"The schema file {text!r} cannot be read: {reason.lower()}."
        raise OptionError(message, option="schema", value=text) from error
    if len(data) > LARGEST_SCHEMA:
        raise OptionError(f"The schema file {text!r} is larger than 1 MiB.", option="schema")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        message = f"The schema file {text!r} is not UTF-8 at byte {error.start}."
        raise OptionError(message, option="schema", value=text) from error


EOS_HELP = (
    "How to handle a stop token. stop: end the decode when all positions before the stop token are "
    "decided. stop-block: end the decode at the end of the stop token's block. keep: decode every "
    "position (same text, but slower). defer: decode stop tokens after all other candidates. "
    "suppress-logit, suppress-confidence, llada-confidence: the rules of the published samplers. "
    "Default: stop, or keep with a fixed budget and in infilling."
)
# How to parse a value, by its metavar. The messages of typer's own parsers differ from version
# to version.
PARSERS: dict[str, Callable[[str], Any]] = {
    **dict.fromkeys(("N", "T", "K", "ID"), _parse_int),
    **dict.fromkeys(("X", "P"), _parse_float),
    **dict.fromkeys(("IDS", "N,N"), _parse_ids),
    "SECONDS": _parse_seconds,
}


def option(
    panel: str | None,
    metavar: str = "",
    help: str = "",
    *names: str,
    complete: completion.Complete | None = None,
    **settings: Any,
) -> Any:
    """Define a typer option in a panel of the help page. The help text states the default."""
    return typer.Option(
        *names,
        rich_help_panel=panel,
        metavar=metavar or None,
        parser=PARSERS.get(metavar),
        help=help,
        hidden=not help,
        show_default=False,
        autocompletion=complete,
        **settings,
    )


def flatten_options(command: Callable[..., None]) -> Callable[..., None]:
    """Replace each parameter that is an option group with the fields of the group."""
    hints = get_type_hints(command, include_extras=True)
    groups = {name: hint for name, hint in hints.items() if dataclasses.is_dataclass(hint)}
    parameters: list[inspect.Parameter] = []
    for name, one in inspect.signature(command).parameters.items():
        alone = one.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)
        parameters += _group_parameters(groups[name]) if name in groups else [alone]

    @functools.wraps(command)
    def flat(**values: Any) -> None:
        made = {name: _make_group(group, values) for name, group in groups.items()}
        command(**values, **made)

    flat.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportAttributeAccessIssue]
    flat.__annotations__ = {one.name: one.annotation for one in parameters}
    return flat


def _group_parameters(group: Any) -> list[inspect.Parameter]:
    """Return the fields of a group, and of the groups in it, as parameters."""
    found: list[inspect.Parameter] = []
    hints = get_type_hints(group, include_extras=True)
    for field in dataclasses.fields(group):
        hint = hints[field.name]
        if dataclasses.is_dataclass(hint):
            found += _group_parameters(hint)
        else:
            settings = {"default": field.default, "annotation": hint}
            found.append(inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, **settings))
    return found


def _make_group(group: Any, values: dict[str, Any]) -> Any:
    """Build a group from the values of its fields, which are removed from `values`."""
    hints = get_type_hints(group)
    return group(
        **{
            field.name: _make_group(hints[field.name], values)
            if dataclasses.is_dataclass(hints[field.name])
            else values.pop(field.name)
            for field in dataclasses.fields(group)
        }
    )


def options_set(*groups: Any) -> dict[str, Any]:
    """Return the options that the user set, by the library's names."""
    options: dict[str, Any] = {}
    first: dict[str, str] = {}
    for group in groups:
        for name, value in vars(group).items():
            if value is None or value is False or value == []:
                continue
            library = LIBRARY_NAMES.get(name) or name
            if name == "schema":
                value = _read_schema(value)
            if name == "logit_bias":
                value = _read_biases(value)
            if library in options:
                raise OptionError(f"{first[library]} is given twice, once as {name}.")
            options[library], first[library] = value, name
    return options


def _hide_warnings(quiet: bool) -> bool:
    if quiet:
        warnings.simplefilter("ignore", WavefrontWarning)  # restored when the program returns
        logging.getLogger("wavefront").setLevel(logging.ERROR)
    return quiet


def _show_tracebacks(context: typer.Context, debug: bool) -> bool:
    context.meta["debug"] = debug
    return debug


Prompt = Annotated[
    str | None,
    typer.Argument(metavar="PROMPT", help="The prompt. Omit it or write - to read stdin."),
]
PromptFile = Annotated[
    Path | None,
    typer.Option("--file", "-f", metavar="PATH", help="Read the prompt from this file."),
]
Raw = Annotated[bool, option(None, "", "Continue the text without the chat template.", "--raw")]
Data = Annotated[
    str,
    option(
        "Items",
        "DIR",
        "Directory with data sets, or `hub` to download them. Default: $WAVEFRONT_DATA.",
        "--data",
    ),
]
ItemsSeed = Annotated[
    int, option("Items", "N", "Random seed for drawing items. Default: 0.", "--items-seed")
]
AllowUnsandboxed = Annotated[
    bool,
    option(
        "Items",
        "",
        "Run model-written code even if no sandbox is available. It can do anything that you can "
        "do on this machine.",
        "--allow-unsandboxed",
    ),
]
BatchSize = Annotated[
    int, option(None, "N", "Items to decode at once. Default: 8.", "--batch-size", "-b")
]
Json = Annotated[bool, option(None, "", "Print JSON.", "--json")]
Quiet = Annotated[
    bool,
    option("Output", "", "Hide progress and warnings.", "--quiet", "-q", callback=_hide_warnings),
]

_model = partial(option, "Model")
_decoding = partial(option, "Decoding")
_sampling = partial(option, "Sampling")
_constraint = partial(option, "Constraint")
_dream = partial(option, "Dream's own sampler")
_output = partial(option, "Output")
_alias = partial(option, None)


def model_option(default: str) -> Any:
    """Define `--model`. `default` says which model is loaded without it."""
    return _model(
        "NAME",
        "Built-in name, directory, Hub id such as org/name, or module:factory for your own. "
        f"Default: {default}.",
        "--model",
        "-m",
        complete=completion.models,
    )


@dataclass(frozen=True, kw_only=True)
class CheckpointOptions:
    """Which model to load, and where it runs."""

    model: Annotated[str | None, model_option("the first model in `wavefront list models`")] = None
    device: Annotated[
        str | None,
        _model(
            "NAME",
            "cpu, cuda, cuda:1 or mps; a model is never split over several GPUs. Default: the best "
            "available.",
            complete=completion.words("cpu", "cuda", "mps"),
        ),
    ] = None
    dtype: Annotated[
        str | None,
        _model(
            "NAME",
            "float32, bfloat16 or float16. Default: as stored on CUDA, float32 elsewhere.",
            complete=completion.words("float32", "bfloat16", "float16"),
        ),
    ] = None
    quantize: Annotated[
        str | None,
        _model(
            "NAME",
            "Quantise the weights while loading: int8, fp8 or int4. Default: as stored.",
            complete=completion.words("int8", "fp8", "int4"),
        ),
    ] = None
    revision: Annotated[
        str | None, _model("NAME", "Commit, tag or branch of a Hub id. Default: main.")
    ] = None
    offline: Annotated[
        bool, _model("", "Use only files that are already on this machine.", "--offline")
    ] = False
    mask_id: Annotated[
        int | None,
        _model("N", "Id of the mask token, for a checkpoint that does not name it."),
    ] = None
    attention: Annotated[
        str | None,
        _model(
            "WORD",
            "bidirectional, or block: each block attends to itself and to earlier blocks. Default: "
            "the family's; see `wavefront list models`.",
            complete=completion.words("bidirectional", "block"),
        ),
    ] = None
    block_size: Annotated[
        int | None,
        _model("N", "Positions in an attention block. Default: the checkpoint's."),
    ] = None

    def load_options(self) -> dict[str, Any]:
        """Return the options that change how the checkpoint is read, if they are set."""
        given = {name: getattr(self, name) for name in sorted(LOAD_OPTIONS)}
        return {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class ModelOptions(CheckpointOptions):
    """Which model to load, where it runs, and how to make it faster."""

    cuda_graphs: Annotated[
        bool | None,
        _model(
            "",
            "Capture steps as CUDA graphs and replay them. Default: enabled on CUDA if supported.",
            "--cuda-graphs/--no-cuda-graphs",
        ),
    ] = None
    compile: Annotated[
        bool,
        _model(
            "",
            "Compile the model with torch.compile. The first start takes a minute or two. "
            "Default: off.",
            "--compile",
        ),
    ] = False

    def load(self, default: str | None = None, *, speed: str | None = None) -> LM:
        """Load the model.

        Args:
            default: The model if the user names none.
            speed: exact, balanced or fast. It also sets the precision.
        """
        from wavefront import lm
        from wavefront.models import builtin

        settings = {LIBRARY_NAMES.get(name, name): value for name, value in vars(self).items()}
        if speed is not None:
            settings["speed"] = speed
        return lm.load(settings.pop("model") or default or builtin.DEFAULT, **settings)


@dataclass(frozen=True, kw_only=True)
class LengthOptions:
    """How many tokens to generate. Infilling does not use this: the text marks its gaps."""

    max_new_tokens: Annotated[
        int | None, _decoding("N", "Tokens to generate. Default: 128.", "--max-new-tokens", "-n")
    ] = None
    gen_length: Annotated[int | None, _alias("N")] = None
    max_tokens: Annotated[int | None, _alias("N")] = None


@dataclass(frozen=True, kw_only=True)
class DecodingOptions:
    """Which positions to decode first, how many at a time, and how to draw their tokens."""

    steps: Annotated[
        int | None,
        _decoding(
            "T",
            "Maximum number of steps. The strategy `edit` may add some. Fewer steps are faster. "
            "Default: one per token.",
            "--steps",
            "-t",
        ),
    ] = None
    strategy: Annotated[
        str | None,
        _decoding(
            "SPEC",
            'Decoding strategy: block, "wavefront(size=8, radius=2)", ..., or module.Class for '
            f"your own. See `wavefront list strategies`. Default: {DEFAULT_STRATEGY}.",
            "--strategy",
            "-s",
            complete=completion.strategies,
        ),
    ] = None
    priority: Annotated[
        str | None,
        _decoding(
            "WORD",
            "Score that orders positions: confidence, probability, margin, entropy or random. "
            "Default: confidence.",
            complete=completion.priorities,
        ),
    ] = None
    eos: Annotated[
        str | None,
        _decoding(
            "WORD",
            EOS_HELP,
            complete=completion.eos_policies,
        ),
    ] = None
    stop_id: Annotated[
        list[int] | None,
        _decoding("ID", "Stop token; repeat for several. Default: the model's stop tokens."),
    ] = None
    logit_bias: Annotated[
        str | None,
        _decoding(
            "ID=X,ID=X",
            "Numbers added to the logits of these tokens, such as 11=5,12=-100. Default: none.",
        ),
    ] = None
    logprobs: Annotated[
        int | None,
        _decoding(
            "K",
            "With --json, add the log-probability of each token at the step that committed it, and "
            "the K most probable tokens at that step, 0 to 20. Default: off.",
        ),
    ] = None
    order_noise: Annotated[
        float | None,
        _decoding("X", "Gumbel noise added to the scores that order positions. Default: 0."),
    ] = None
    fixed_budget: Annotated[
        bool,
        _decoding("", "Run all T forward passes, even if they commit nothing.", "--fixed-budget"),
    ] = False
    speculate: Annotated[
        int | None,
        _decoding(
            "N",
            "Number of steps to try per forward pass. This saves forward passes and does not "
            "change the text. At most 8. Default: 0 (off).",
        ),
    ] = None
    cache: Annotated[
        str | None,
        _decoding(
            "SPEC",
            'Reuse keys and values between steps: prefix, dual, "wave(refresh=32)", none. '
            "Default: set by --speed.",
            complete=completion.caches,
        ),
    ] = None
    speed: Annotated[
        str | None,
        _decoding(
            "WORD",
            "exact: no approximation. balanced, fast: reuse keys and values between steps; "
            "docs/speed.md says what each sets. Options that you set take precedence. "
            "Default: exact.",
            complete=completion.words("exact", "balanced", "fast"),
        ),
    ] = None

    schema: Annotated[
        str | None,
        _constraint("FILE.json", "JSON schema that the answer must satisfy. Default: none."),
    ] = None
    regex: Annotated[
        str | None,
        _constraint(
            "PATTERN", "Regular expression that the whole answer must match. Default: none."
        ),
    ] = None
    choice: Annotated[
        list[str] | None,
        _constraint("TEXT", "Possible answer; repeat for several. Default: any answer."),
    ] = None

    temperature: Annotated[
        float | None,
        _sampling("X", "Sampling temperature. 0 takes the most probable token. Default: 0."),
    ] = None
    seed: Annotated[int | None, _sampling("N", "Random seed for sampling. Default: 0.")] = None
    top_p: Annotated[
        float | None,
        _sampling(
            "P",
            "Sample from the most probable tokens whose probabilities add up to P. Default: all "
            "tokens.",
        ),
    ] = None
    top_k: Annotated[
        int | None, _sampling("K", "Sample from the K most probable tokens. Default: all tokens.")
    ] = None
    sampling: Annotated[
        str | None,
        _sampling(
            "WORD",
            "Sampling rule: llada or dream. Default: the model's own.",
            complete=completion.words("llada", "dream"),
        ),
    ] = None
    cfg_scale: Annotated[
        float | None, _sampling("X", "Scale of classifier-free guidance. Default: 0 (off).")
    ] = None

    alg: Annotated[
        str | None,
        _dream(
            "WORD",
            "Use Dream's sampler instead of --strategy: origin, maskgit_plus, topk_margin or "
            "entropy. Default: off.",
            complete=completion.algorithms,
        ),
    ] = None
    eps: Annotated[
        float | None, _dream("X", "Last timestep of Dream's sampler. Default: 0.001.")
    ] = None
    alg_temp: Annotated[
        float | None,
        _dream("X", "Noise added to the position scores in Dream's sampler. Default: none."),
    ] = None

    # Names from the published samplers, and Python's name for --stop-id.
    block_length: Annotated[int | None, _alias("N")] = None
    max_wave_size: Annotated[int | None, _alias("N")] = None
    radius: Annotated[int | None, _alias("N")] = None
    remasking: Annotated[
        str | None, _alias(complete=completion.words("low_confidence", "random"))
    ] = None
    eos_policy: Annotated[str | None, _alias()] = None
    logits_eos_inf: Annotated[bool, _alias("", "", "--logits-eos-inf")] = False
    confidence_eos_eot_inf: Annotated[bool, _alias("", "", "--confidence-eos-eot-inf")] = False
    stop_ids: Annotated[Ids | None, _alias("IDS")] = None
    output_history: Annotated[bool, _alias("", "", "--output-history")] = False


@dataclass(frozen=True, kw_only=True)
class SeveralStrategies(DecodingOptions):
    """Decoding options for commands that accept several strategies."""

    strategy: Annotated[  # pyright: ignore[reportIncompatibleVariableOverride]
        list[str] | None,
        _decoding(
            "SPEC",
            'Decoding strategy: block, "wavefront(size=8, radius=2)", ...; repeat for several. '
            f"See `wavefront list strategies`. Default: {DEFAULT_STRATEGY}.",
            "--strategy",
            "-s",
            complete=completion.strategies,
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class PlainOptions:
    """What to print, for commands without an animation."""

    json: Annotated[
        bool,
        _output(
            "", "Print JSON, one object per line. Each object includes all settings.", "--json"
        ),
    ] = False
    quiet: Quiet = False
    debug: Annotated[
        bool, _output("", "Show the traceback of an error.", "--debug", callback=_show_tracebacks)
    ] = False


@dataclass(frozen=True, kw_only=True)
class OutputOptions(PlainOptions):
    """What to print and whether to animate it."""

    watch: Annotated[
        bool | None,
        _output(
            "", "Show each step on stderr. Default: off (on in chat).", "--watch/--no-watch", "-w"
        ),
    ] = None
    delay: Annotated[float, _output("SECONDS", "Wait after each step. Default: 0.")] = 0.0
