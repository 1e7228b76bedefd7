"""The options of a decode: their names, their aliases, and how they become a `Plan`.

Python, the command line and HTTP share one list. It accepts the option names of the published
samplers. For an unknown name, the error suggests the closest known one.
"""

from __future__ import annotations

import inspect
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Literal, NamedTuple, TypedDict, TypeVar

from torch import Tensor

from wavefront.core import spec
from wavefront.core.bounds import ALIASES, DEFAULT_STRATEGY, MAX_BIASES, MAX_ITEMS, check_option
from wavefront.core.cache_policy import Cache
from wavefront.core.constraint import ANY, Constraint, TokenAutomaton, check_length
from wavefront.core.errors import (
    OptionError,
    SpecError,
    check_choice,
    check_int,
    did_you_mean,
    quote,
)
from wavefront.core.reading import Sampling
from wavefront.core.spec import Spec
from wavefront.core.state import Config
from wavefront.core.strategy import Strategy, most_steps
from wavefront.strategies.blockwise import Blockwise
from wavefront.strategies.caches.blocks import Blocks
from wavefront.text.constraint import check_constraint


class Options(TypedDict, total=False):
    """The keyword options of `generate`, `stream`, `infill` and `generate_ids`.

    An option that is None has its default value.

    Attributes:
        strategy: Spec string or `Strategy`. Default: `wavefront.core.bounds.DEFAULT_STRATEGY`.
        max_new_tokens: Positions to fill, N. Default: 128.
        steps: Maximum number of steps, T. Default: N.
        priority: Score that orders positions: confidence, probability, margin, entropy or random.
            Default: confidence.
        eos: What a stop token does: stop, stop-block, keep, defer, suppress-logit,
            suppress-confidence or llada-confidence. Default: stop; keep with a fixed budget and in
            infilling.
        temperature: Sampling temperature. Default: 0, which takes the most probable token.
        seed: Random seed. Default: 0.
        sampling: Sampling rule, llada or dream. Default: the rule of the model's family.
        top_p: Sample from the most probable tokens that add up to this probability. Default: all.
        top_k: Sample from this many of the most probable tokens. Default: all.
        cfg_scale: Scale of classifier-free guidance. Default: 0, which turns it off.
        order_noise: Gumbel noise on the scores that order positions, the paper's eta. Default: 0.
        fixed_budget: Run all T forward passes, even those that commit nothing. Default: False.
        speculate: Steps drafted per forward pass, at most 8; the same answer. Default: 0, none.
        stop_ids: Stop tokens: EOS first, then EoT. Default: the checkpoint's.
        cache: Cache policy, such as "wave(refresh=32)", or "none". Default: "blocks" for a
            block-causal model, otherwise set by `speed`.
        speed: exact, balanced or fast: trades exactness for time; see `SPEEDS`. Default: exact.
        logprobs: Report log-probabilities, and this many of the most probable tokens. Default: off.
        logit_bias: Numbers added to the logits of token ids. Default: none.
        schema: JSON schema of the answer: a dictionary, JSON text, or a pydantic model class. Give
            at most one of schema, regex and choices; see docs/constrain.md.
        regex: Regular expression that the whole answer must match.
        choices: The possible answers.
        alg: Dream's sampler instead of a strategy: origin, maskgit_plus, topk_margin or entropy.
        eps: Last timestep of Dream's sampler. Default: 0.001.
        alg_temp: Noise on the position scores in Dream's sampler. Default: none.
        gen_length: Alias of max_new_tokens.
        max_tokens: Alias of max_new_tokens.
        block_length: Selects the strategy `block` with this size.
        block_size: Alias of block_length.
        max_wave_size: Selects the strategy `wavefront` with this size.
        radius: Selects the strategy `wavefront` with this radius.
        remasking: LLaDA's name for priority: low_confidence or random.
        eos_policy: Alias of eos.
        logits_eos_inf: LLaDA's name for eos="suppress-logit".
        confidence_eos_eot_inf: LLaDA's name for eos="llada-confidence".
        mask_id: Must be the model's mask id, if it is given.
        output_history: Dream's name for trace=True.
    """

    strategy: str | Strategy
    max_new_tokens: int
    steps: int | None
    priority: str
    eos: str
    temperature: float
    seed: int
    sampling: str | None
    top_p: float | None
    top_k: int | None
    cfg_scale: float
    order_noise: float
    fixed_budget: bool
    speculate: int
    stop_ids: Sequence[int] | None
    cache: str | Cache | None
    speed: str
    logprobs: int | None
    logit_bias: Mapping[int, float] | None
    schema: Any
    regex: str | None
    choices: Sequence[str] | None
    # The options of Dream's sampler.
    alg: Literal["origin", "maskgit_plus", "topk_margin", "entropy"] | None
    eps: float
    alg_temp: float | None
    # Aliases.
    gen_length: int
    max_tokens: int
    block_length: int
    block_size: int
    max_wave_size: int
    radius: int
    remasking: str
    eos_policy: str
    logits_eos_inf: bool
    confidence_eos_eot_inf: bool
    mask_id: int
    output_history: bool


Method = TypeVar("Method", bound=Callable[..., Any])


def show_options(method: Method) -> Method:
    """Show every option in `help(method)`, from `Options`: in the signature and in the text.

    The docstring of the method has a line `**options: ...`, which the list of options replaces.
    """
    listed = (Options.__doc__ or "").partition("Attributes:\n")[2].rstrip()
    text, signature = inspect.getdoc(method) or "", inspect.signature(method)
    lines = inspect.cleandoc(listed).splitlines()
    options = "\n".join(f"    {line}" for line in lines)
    options = options.replace("wavefront.core.bounds.DEFAULT_STRATEGY", DEFAULT_STRATEGY)
    method.__doc__ = re.sub(r"    \*\*options:.*", lambda _: options, text)
    given = [one for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
    given += [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=hint.__forward_arg__
        )
        for name, hint in Options.__annotations__.items()
        if name not in signature.parameters
    ]
    method.__signature__ = signature.replace(parameters=given)  # pyright: ignore[reportFunctionMemberAccess]
    return method


_REMASKING = {"low_confidence": "confidence", "random": "random"}
_ALGORITHMS = {
    "maskgit_plus": "probability",
    "topk_margin": "margin",
    "entropy": "entropy",
    "origin": "confidence",  # unused: the selector picks positions at random
}
DEFAULT_LENGTH = 128
# Sizes are rounded up to one of these, so that a batch has few configs and a server few shapes.
ALTERNATIVES = (6, 21)  # likeliest tokens to read for `logprobs`; one of them may be the mask token
BIAS_WIDTHS = (16, 128, MAX_BIASES)
# Compiles a constraint. The second argument says that the answer is a separate text.
AutomatonOf = Callable[[Constraint, bool], TokenAutomaton]
CONSTRAINTS = ("schema", "regex", "choices")
SPEC_OPTIONS = {"strategy": "strategies", "cache": "caches"}  # option: the registry of its specs


class SpeedOptions(NamedTuple):
    """The options that one value of `speed` sets, unless they are set explicitly."""

    cache: str | None = None  # of every decode; None: no cache
    cpu_dtype: str | None = None  # precision to load in, on a CPU that computes in it


DEFAULT_SPEED = "exact"
# docs/speed.md gives the measured quality and cost of each speed.
SPEEDS: dict[str, SpeedOptions] = {
    "exact": SpeedOptions(),
    "balanced": SpeedOptions(cache="wave(refresh=8, size=32, near=4)"),
    "fast": SpeedOptions(cache="wave(refresh=32, size=32, near=4)", cpu_dtype="bfloat16"),
}


@dataclass(frozen=True)
class Plan:
    """Options resolved for one model."""

    config: Config
    length: int
    steps: int
    seed: int
    speculate: int = 0
    cache: Cache | None = None
    logprobs: int | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()
    constraint: Constraint | None = None
    by_block: bool = False  # the model is block-causal: the strategy works inside its blocks

    @property
    def strategy(self) -> Strategy:
        """The requested strategy. A block-causal model uses it inside its blocks."""
        strategy = self.config.strategy
        return strategy.strategy if self.by_block and isinstance(strategy, Blockwise) else strategy

    @property
    def budget(self) -> int:
        """The maximum number of steps of a row. A strategy may add steps to `steps`."""
        return most_steps(self.config.strategy, self.length, self.steps)

    def answer_of(self, slot: Tensor) -> Tensor | None:
        """Return (B, L) bool: the positions of the answer; None if it is every position to fill.

        `slot` is that of the canvas. A block-causal model also fills the rest of the last block.
        """
        return (slot >= 0) & (slot < self.length) if self.by_block else None

    def options(self) -> dict[str, Any]:
        """Return every option by name. `plan` makes the same plan from them for any model."""
        config, sampling = self.config, self.config.sampling
        constraint: dict[str, Any] = {}
        if self.constraint is not None:
            value = self.constraint.value
            constraint[self.constraint.kind] = list(value) if isinstance(value, tuple) else value
        return {
            "strategy": repr(self.strategy),
            "max_new_tokens": self.length,
            "steps": self.steps,
            "priority": config.priority,
            "eos": sampling.eos,
            "temperature": sampling.temperature,
            "seed": self.seed,
            "sampling": sampling.rule,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "cfg_scale": config.cfg_scale,
            "order_noise": config.order_noise,
            "fixed_budget": config.fixed_budget,
            "speculate": self.speculate,
            "cache": ("none" if self.by_block else None)
            if self.cache is None
            else repr(self.cache),
            "stop_ids": list(sampling.stop_ids),
            "logprobs": self.logprobs,
            "logit_bias": {str(id): bias for id, bias in self.logit_bias} or None,
            **constraint,
        }


class BlockRules(NamedTuple):
    """How a block-causal model divides a canvas into blocks."""

    size: int
    padded: bool = False  # the prompt is padded, so that the answer starts with a block
    shifted: bool = False  # the first position of a block must be decided before the others


class ModelProperties(NamedTuple):
    """The properties of a model and its tokenizer that the options depend on."""

    mask_id: int
    stop_ids: tuple[int, ...]
    family: str
    vocab_size: int
    id_of: Callable[[str], int] | None = None  # the token id of a text; needs a tokenizer
    windows: bool = True  # a cache can be used
    automaton_of: AutomatonOf | None = None
    blocks: BlockRules | None = None  # None: the model attends to all positions
    masked_copies: bool = True  # a strategy may read tokens at masked copies


def plan(options: Mapping[str, Any], model: ModelProperties, *, length: int | None = None) -> Plan:
    """Check every option and build the plan of a decode.

    Args:
        options: The options by name; see `Options`.
        model: The properties of the model to decode with.
        length: The number of positions to fill, if the holes of a text decide it.

    Returns:
        The plan, with a value for every option.

    Raises:
        OptionError: An option is unknown, out of range, or conflicts with another option.
    """
    given = _rename_aliases(options)
    _check_mask(given, model)
    positions = length if length is not None else given.get("max_new_tokens", DEFAULT_LENGTH)
    check_option("max_new_tokens", positions)
    steps = given.get("steps", positions if model.blocks is None else _fill_up(positions, model))
    check_option("steps", steps)
    seed = given.get("seed", 0)
    check_option("seed", seed)
    logprobs, logit_bias = given.get("logprobs"), _logit_bias(given, model)
    if logprobs is not None:
        check_option("logprobs", logprobs)
    config = replace(
        _config(given, model, infilling=length is not None),
        alternatives=min(
            _round_up(logprobs + 1, ALTERNATIVES) if logprobs else 0, model.vocab_size
        ),
        bias_width=_round_up(len(logit_bias), BIAS_WIDTHS),
    )
    asked = config.strategy  # a block-causal model uses it inside its blocks
    if model.blocks is not None:
        if config.fixed_budget:
            raise OptionError(
                "fixed_budget does not work with a block-causal model: each block ends when it is "
                "filled.",
                option="fixed_budget",
                value=True,
            )
        config = replace(
            config, strategy=by_block(config.strategy, model.blocks, positions, steps=steps)
        )
    if config.sampling.eos == "stop-block" and not isinstance(config.strategy, Blockwise):
        raise OptionError(
            "eos='stop-block' ends an answer after a block, but this decode has no blocks: use "
            "eos='stop'.",
            option="eos",
            value="stop-block",
        )
    config.strategy.validate(positions, steps)
    if not model.masked_copies and asked.reads_copies:
        raise OptionError(
            f"{asked!r} reads committed tokens at masked copies, which models of "
            f"family {model.family!r} do not support: choose another strategy, such as edit().",
            option="strategy",
            value=repr(asked),
        )
    constraint = check_constraint(**{name: given.get(name) for name in CONSTRAINTS})
    if constraint is not None:
        inside = length is not None
        config = _constrain(config, constraint, model, positions=positions, infilling=inside)
    speculate = given.get("speculate", 0)
    check_option("speculate", speculate)
    if speculate > 1 and config.fixed_budget:
        raise OptionError(
            "speculate and fixed_budget cannot be combined: use one of them.",
            option="speculate",
            value=speculate,
        )
    cache = resolve_cache(given.get("cache"))
    if cache is not None and cache.exact != (model.blocks is not None):
        known = "blocks()" if model.blocks is not None else "wave()"
        kind = "block-causal" if model.blocks is not None else "not block-causal"
        raise OptionError(
            f"The cache {cache!r} does not fit this model, which is {kind}: use {known}.",
            option="cache",
            value=repr(cache),
        )
    if cache is not None and not model.windows:
        raise OptionError(
            f"The cache {cache!r} needs a model that can compute a window of positions: "
            "leave out cache.",
            option="cache",
            value=repr(cache),
        )
    if speculate > 1 and cache is not None:
        raise OptionError(
            "speculate and cache cannot be combined: use one of them.",
            option="speculate",
            value=speculate,
        )
    speed = given.get("speed", DEFAULT_SPEED)
    check_choice("speed", speed, SPEEDS)
    # Speculation is an explicit option that no cache can be combined with, so it wins over `speed`.
    if "cache" not in given and speculate <= 1 and model.windows:
        cache = resolve_cache(SPEEDS[speed].cache) if model.blocks is None else Blocks()
    if speculate > 1 and constraint is not None:
        raise OptionError(
            f"speculate cannot be combined with {constraint.noun}: leave out one of them.",
            option="speculate",
            value=speculate,
        )
    return Plan(
        config,
        positions,
        steps,
        seed,
        speculate,
        cache,
        logprobs=logprobs,
        logit_bias=logit_bias,
        constraint=constraint,
        by_block=model.blocks is not None,
    )


def _round_up(count: int, sizes: Sequence[int]) -> int:
    """Return 0 for 0, otherwise the first size that has room for `count`."""
    return next(size for size in sizes if size >= count) if count else 0


def _logit_bias(given: dict[str, Any], model: ModelProperties) -> tuple[tuple[int, float], ...]:
    """Return the logit bias as pairs of a token id and a number, in order."""
    bias = given.get("logit_bias", {})
    if not isinstance(bias, Mapping):
        raise OptionError(
            f"logit_bias must map token ids to numbers, not {quote(bias)}.",
            option="logit_bias",
            value=bias,
        )
    if len(bias) > MAX_BIASES:
        raise OptionError(
            f"logit_bias has {len(bias)} entries; the limit is {MAX_BIASES}.",
            option="logit_bias",
            value=bias,
        )
    found: dict[int, float] = {}
    for key, value in bias.items():
        # JSON has only strings as keys.
        text = isinstance(key, str) and key.isascii() and key.isdecimal() and len(key) < 12
        id = int(key) if text else _to_int(key)
        check_int("logit_bias", id, 0, high=model.vocab_size - 1)
        check_option("logit_bias", value)
        if id == model.mask_id:
            raise OptionError(
                f"logit_bias must not contain the mask id, {id}: it is never proposed.",
                option="logit_bias",
                value=key,
            )
        if id in found:
            raise OptionError(
                f"logit_bias names the token {id} twice.", option="logit_bias", value=key
            )
        found[id] = float(value)
    return tuple(sorted(found.items()))


def _constrain(
    config: Config,
    constraint: Constraint,
    model: ModelProperties,
    *,
    positions: int,
    infilling: bool,
) -> Config:
    """Return the config with the automaton of the constraint, if there is a tokenizer."""
    if model.automaton_of is None:
        raise OptionError(
            f"{constraint.kind} needs a tokenizer: use an LM, not token ids.",
            option=constraint.kind,
        )
    automaton = model.automaton_of(constraint, not infilling)
    stops = config.sampling.stop_ids
    # EOS can never be chosen, not even if the answer could have it as an ordinary token.
    never = 1 if config.sampling.eos == "suppress-logit" else 0
    automaton = automaton.with_end_tokens(stops[never:], without=stops[:never])
    if not infilling:  # the holes of a text are checked with the text
        check_length(automaton, [ANY] * positions)
    return replace(config, constraint=automaton)


def _fill_up(positions: int, model: ModelProperties) -> int:
    """Return the number of positions rounded up to whole blocks."""
    assert model.blocks is not None
    return -(-positions // model.blocks.size) * model.blocks.size


def by_block(strategy: Strategy, rules: BlockRules, positions: int, *, steps: int) -> Strategy:
    """Return the strategy inside the blocks of a model; every block gets an equal share of steps.

    Blocks are counted from the first token of a prompt. So an answer may touch one more block than
    its length says, and that block gets as many steps as the others.
    """
    blocks = -(-positions // rules.size)
    return Blockwise(
        size=rules.size,
        strategy=strategy,
        steps=-(-steps // blocks),
        origin="canvas" if rules.padded else "row",
        lead=rules.shifted,
    )


def resolve_strategy(strategy: str | Strategy) -> Strategy:
    """Return the strategy that a spec string describes, or the object itself.

    Raises:
        OptionError: `strategy` is neither a valid spec string nor a `Strategy`.
    """
    found = _resolve("strategy", strategy) if isinstance(strategy, str) else strategy
    if not isinstance(found, Strategy):
        raise OptionError(
            f"strategy must be a spec string or a Strategy, not {quote(found)}.",
            option="strategy",
            value=found,
        )
    return found


def _resolve(option: str, text: str) -> Any:
    """Return the object of a spec string. Errors name `option`, or the option inside the spec."""
    try:
        return spec.resolve(text, SPEC_OPTIONS[option])
    except SpecError as error:
        error.option = error.option or option
        raise


def resolve_builtin_specs(
    options: Mapping[str, Any], trusted: Sequence[Spec] = (), *, where: str
) -> dict[str, Any]:
    """Return options that come from a file, with their specs as objects. Nothing is imported.

    Args:
        options: The options by name; see `Options`.
        trusted: Objects that the user named. A spec that equals the repr of one is that object.
        where: What error messages say first; {option} and {spec} are replaced.

    Raises:
        SpecError: A spec is wrong, or names a class that is neither built in nor trusted.
    """
    found, known = dict(options), {repr(spec): spec for spec in trusted}
    for option, registry in SPEC_OPTIONS.items():
        text = found.get(option)
        if not isinstance(text, str) or text == "none":
            continue  # `plan` rejects what is neither a string nor an object
        if text in known:
            found[option] = known[text]
        else:
            try:
                found[option] = spec.resolve_builtin(text, registry)
            except SpecError as error:
                message = f"{where.format(option=option, spec=text[:80])} ({error})"
                raise SpecError(message, option=option, value=text) from None
    return found


def resolve_cache(given: object) -> Cache | None:
    """Return the cache policy that a spec string describes, or the object itself.

    Raises:
        OptionError: `given` is neither a valid spec string, nor a `Cache`, nor None.
    """
    if given is None or given == "none":
        return None
    found = _resolve("cache", given) if isinstance(given, str) else given
    if not isinstance(found, Cache):
        raise OptionError(
            f"cache must be a spec such as 'wave(refresh=32)', not {quote(found)}.",
            option="cache",
            value=found,
        )
    return found


def wants_trace(options: Mapping[str, Any], trace: bool | str) -> str:
    """Return the kind of trace to record: "", "basic" or "full".

    Args:
        options: The options of the decode; Dream's `output_history` asks for a basic trace.
        trace: True or "basic", "full", or False for none.

    Raises:
        OptionError: `trace` or `output_history` has another value.
    """
    history = options.get("output_history")
    history = False if history is None else history
    _check_flag("output_history", history)
    if not isinstance(trace, bool) and trace not in ("basic", "full"):
        raise OptionError(
            f"trace must be True, False, 'basic' or 'full', not {quote(trace)}.",
            option="trace",
            value=trace,
        )
    if isinstance(trace, str):
        return trace
    return "basic" if trace or history else ""


def _check_flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise OptionError(
            f"{name} must be True or False, not {quote(value)}.", option=name, value=value
        )


def _rename_aliases(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options by their own names, without those that are None."""
    known = Options.__annotations__
    given: dict[str, Any] = {}
    for name, value in options.items():
        if name not in known:
            raise OptionError(
                f"There is no option {name!r}{did_you_mean(name, known)}.", option=name, value=value
            )
        if value is None:
            continue  # None is the default of every option
        target = ALIASES.get(name, name)
        if target in given:
            raise OptionError(f"{target} is given twice, once as {name}.", option=name, value=value)
        given[target] = _to_int(value)
    return given


def _to_int(value: Any) -> Any:
    """Convert a numpy or torch integer to int; return other values unchanged."""
    if isinstance(value, int) or not hasattr(value, "__index__"):
        return value
    try:
        return operator.index(value)
    except TypeError:
        return value


def _check_mask(given: dict[str, Any], model: ModelProperties) -> None:
    mask_id = given.get("mask_id", model.mask_id)
    if not isinstance(mask_id, int) or mask_id != model.mask_id:
        raise OptionError(
            f"mask_id={quote(mask_id)} is not this model's mask id, {model.mask_id}.",
            option="mask_id",
            value=mask_id,
        )


def _config(given: dict[str, Any], model: ModelProperties, *, infilling: bool) -> Config:
    alg = given.get("alg")
    if alg is not None:
        check_choice("alg", alg, _ALGORITHMS)
    for name in ("eps", "alg_temp"):
        if name in given and alg is None:
            raise OptionError(
                f"{name} belongs to Dream's sampler: give alg= as well.",
                option=name,
                value=given[name],
            )
    for name in ("fixed_budget", "logits_eos_inf", "confidence_eos_eot_inf"):
        _check_flag(name, given.get(name, False))
    return Config(
        strategy=_strategy(given).with_ids(model.id_of),
        priority=_priority(given),
        sampling=_sampling(given, model, infilling=infilling),
        cfg_scale=given.get("cfg_scale", 0.0),
        order_noise=_order_noise(given),
        fixed_budget=given.get("fixed_budget", False),
    )


def _strategy(given: dict[str, Any]) -> Strategy:
    shape = {name: given[name] for name in ("max_wave_size", "radius") if name in given}
    block = given.get("block_length")
    asked = given.get("strategy")
    for name in ("block_length", "max_wave_size", "radius"):
        if name in given:
            check_option(name, given[name])
    if given.get("alg") is not None:
        if asked is not None or block is not None or shape:
            raise OptionError(
                "alg= selects Dream's whole sampler: leave out the strategy and its options.",
                option="alg",
                value=given["alg"],
            )
        selector = "origin" if given["alg"] == "origin" else "dream"
        eps = given.get("eps", 1e-3)
        check_option("eps", eps)
        return spec.resolve(f"standard(selector={selector}(eps={eps!r}))", "strategies")
    if asked is None:
        # An option that belongs to one strategy selects it.
        asked = "block" if block is not None else "wavefront" if shape else DEFAULT_STRATEGY
    strategy = resolve_strategy(asked)
    changes = ({} if block is None else {"block_length": block}) | shape
    for name, value in changes.items():
        owner = "block" if name == "block_length" else "wavefront"
        if strategy.spec_name() != owner:
            raise OptionError(
                f"{name} belongs to {owner}, but the strategy is {strategy!r}.",
                option=name,
                value=value,
            )
    fields = {"block_length": "size", "max_wave_size": "size"}
    values = {fields.get(name, name): value for name, value in changes.items()}
    return replace(strategy, **values) if values else strategy  # pyright: ignore[reportArgumentType]


def _priority(given: dict[str, Any]) -> str:
    named = [name for name in ("priority", "remasking", "alg") if name in given]
    if len(named) > 1:
        raise OptionError(
            f"{' and '.join(named)} set the same thing: give one of them.",
            option=named[-1],
            value=given[named[-1]],
        )
    if named == ["remasking"]:
        check_choice("remasking", given["remasking"], _REMASKING)
        return _REMASKING[given["remasking"]]
    if named == ["alg"]:
        return _ALGORITHMS[given["alg"]]
    return given.get("priority", "confidence")


def _order_noise(given: dict[str, Any]) -> float:
    # Dream's alg_temp is our order noise: to draw k positions without replacement from
    # softmax(score / alg_temp), take the k best of score + alg_temp * Gumbel noise.
    if "alg_temp" in given:
        if "order_noise" in given:
            raise OptionError(
                "alg_temp and order_noise set the same thing: give one of them.",
                option="alg_temp",
                value=given["alg_temp"],
            )
        check_option("alg_temp", given["alg_temp"])
        return given["alg_temp"]
    return given.get("order_noise", 0.0)


def _eos(given: dict[str, Any], *, may_stop: bool) -> str:
    """Return the EOS policy: by default `stop` if the decode may end early, else `keep`.

    A fixed budget fills the canvas, as the paper does. A stop token in one hole of a text does not
    end the others.
    """
    flags = [name for name in ("logits_eos_inf", "confidence_eos_eot_inf") if given.get(name)]
    if len(flags) + ("eos" in given) > 1:
        raise OptionError(
            "Give one EOS policy: eos=, logits_eos_inf or confidence_eos_eot_inf.",
            option="eos" if "eos" in given else flags[0],
            value=given.get("eos", True),
        )
    if flags:
        return "suppress-logit" if flags[0] == "logits_eos_inf" else "llada-confidence"
    return given.get("eos", "stop" if may_stop and not given.get("fixed_budget") else "keep")


def _sampling(given: dict[str, Any], model: ModelProperties, *, infilling: bool) -> Sampling:
    ids = given.get("stop_ids", model.stop_ids)
    if not isinstance(ids, Iterable) or isinstance(ids, str):
        raise OptionError(
            f"stop_ids must be a list of token ids, not {quote(ids)}.",
            option="stop_ids",
            value=ids,
        )
    ids = tuple(_to_int(id) for id in islice(ids, MAX_ITEMS + 1))
    check_option("stop_ids", ids)
    for id in ids:
        check_int("stop_ids", id, 0, high=model.vocab_size - 1)
    if model.mask_id in ids:
        raise OptionError(
            f"stop_ids must not contain the mask id, {model.mask_id}: it is never proposed.",
            option="stop_ids",
            value=ids,
        )
    # The default is the published rule of the model's family.
    default_rule = "dream" if model.family == "dream" or given.get("alg") else "llada"
    return Sampling(
        rule=given.get("sampling", default_rule),
        temperature=given.get("temperature", 0.0),
        top_p=given.get("top_p"),
        top_k=given.get("top_k"),
        eos=_eos(given, may_stop=bool(ids) and not infilling),
        stop_ids=ids,
    )
