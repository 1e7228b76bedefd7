"""The options of a decode: their names, their aliases, and how they become a `Plan`.

Python, the command line and HTTP share one list. It accepts the option names of the published
samplers. For an unknown name, the error suggests the closest known one.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, TypedDict

from wavefront.core import spec
from wavefront.core.cache_policy import Cache
from wavefront.core.errors import (
    OptionError,
    SpecError,
    check_choice,
    check_float,
    check_int,
    did_you_mean,
)
from wavefront.core.reading import Sampling
from wavefront.core.state import Config
from wavefront.core.strategy import Strategy


class Options(TypedDict, total=False):
    """The keyword options of `generate`, `stream` and `generate_ids`. `None` means the default."""

    strategy: str | Strategy  # spec string or object; default wavefront()
    max_new_tokens: int  # positions to fill, N; default 128
    steps: int | None  # budget of forward passes, T; default N
    priority: str  # confidence, probability, margin, entropy, random
    eos: str  # keep, stop, defer, suppress-logit, suppress-confidence, llada-confidence
    temperature: float  # 0 always picks the most probable token
    seed: int
    sampling: str | None  # confidence rule, llada or dream; default: the model's family
    top_p: float | None
    top_k: int | None
    cfg_scale: float  # classifier-free guidance; 0 turns it off
    order_noise: float  # Gumbel noise on the order, the paper's eta; default 0
    fixed_budget: bool  # run all T forward passes, even those that commit nothing
    speculate: int  # steps drafted per forward pass, with the same answer; 0 turns it off
    stop_ids: Sequence[int] | None  # EOS first, then EoT; default: the checkpoint's
    cache: str | Cache | None  # such as "wave(refresh=32)"; default: no cache
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
    output_history: bool  # Dream's name for `trace`


ALIASES = {
    "gen_length": "max_new_tokens",
    "max_tokens": "max_new_tokens",
    "block_size": "block_length",
    "eos_policy": "eos",
}
_REMASKING = {"low_confidence": "confidence", "random": "random"}
_ALGORITHMS = {
    "maskgit_plus": "probability",
    "topk_margin": "margin",
    "entropy": "entropy",
    "origin": "confidence",  # unused: the selector picks positions at random
}
DEFAULT_STRATEGY = "wavefront"
DEFAULT_LENGTH = 128
_LONGEST = 1 << 20  # far beyond any context; a typo cannot fill the memory
_MAX_SPECULATED = 64  # no draft stays correct for longer


@dataclass(frozen=True)
class Plan:
    """Options resolved for one model."""

    config: Config
    length: int
    steps: int
    seed: int
    speculate: int = 0
    cache: Cache | None = None

    def options(self) -> dict[str, Any]:
        """Return every option by name. `plan` makes the same plan from them for any model."""
        config, sampling = self.config, self.config.sampling
        return {
            "strategy": repr(config.strategy),
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
            "cache": None if self.cache is None else repr(self.cache),
            "stop_ids": list(sampling.stop_ids),
        }


class Source(NamedTuple):
    """The properties of a model and its tokenizer that the options depend on."""

    mask_id: int
    stop_ids: tuple[int, ...]
    family: str
    vocab_size: int
    id_of: Callable[[str], int] | None = None  # the token id of a text; needs a tokenizer


def plan(options: Mapping[str, Any], model: Source, *, length: int | None = None) -> Plan:
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
    check_int("max_new_tokens", positions, 1, _LONGEST)
    steps = given.get("steps", positions)
    check_int("steps", steps, 1, _LONGEST)
    seed = given.get("seed", 0)
    check_int("seed", seed, 0, (1 << 63) - 1)
    config = _config(given, model)
    config.strategy.validate(positions, steps)
    speculate = given.get("speculate", 0)
    check_int("speculate", speculate, 0, _MAX_SPECULATED)
    if speculate > 1 and config.fixed_budget:
        raise OptionError(
            "speculate saves forward passes and fixed_budget runs them all: use one of them.",
            option="speculate",
            value=speculate,
        )
    cache = _cache(given.get("cache"))
    if speculate > 1 and cache is not None:
        raise OptionError(
            "speculate does not work with a cache: leave out one of them.",
            option="speculate",
            value=speculate,
        )
    return Plan(config, positions, steps, seed, speculate, cache)


def resolve_strategy(strategy: str | Strategy) -> Strategy:
    """Return the strategy that a spec string describes, or the object itself.

    Raises:
        OptionError: `strategy` is neither a valid spec string nor a `Strategy`.
    """
    found = _resolve("strategy", strategy) if isinstance(strategy, str) else strategy
    if not isinstance(found, Strategy):
        raise OptionError(
            f"strategy must be a spec string or a Strategy, not {found!r}.",
            option="strategy",
            value=found,
        )
    return found


def _resolve(option: str, text: str) -> Any:
    """Return the object of a spec string. Errors name `option`, or the option inside the spec."""
    try:
        return spec.resolve(text, {"strategy": "strategies", "cache": "caches"}[option])
    except SpecError as error:
        error.option = error.option or option
        raise


def _cache(given: object) -> Cache | None:
    if given is None or given == "none":
        return None
    if isinstance(given, Cache):
        return given
    if not isinstance(given, str):
        raise OptionError(
            f"cache must be a spec such as 'wave(refresh=32)', not {given!r}.",
            option="cache",
            value=given,
        )
    return _resolve("cache", given)


def wants_trace(options: Mapping[str, Any], trace: bool | str) -> str:
    """Return the kind of trace to record: "", "basic" or "full".

    Args:
        options: The options of the decode; Dream's `output_history` asks for a basic trace.
        trace: True or "basic", "full", or False for none.

    Raises:
        OptionError: `trace` or `output_history` has another value.
    """
    history = options.get("output_history") or False
    if not isinstance(history, bool):
        raise OptionError(
            f"output_history must be True or False, not {history!r}.",
            option="output_history",
            value=history,
        )
    if trace not in (True, False, "basic", "full"):
        raise OptionError(
            f"trace must be True, False, 'basic' or 'full', not {trace!r}.",
            option="trace",
            value=trace,
        )
    if isinstance(trace, str):
        return trace
    return "basic" if trace or history else ""


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
            raise OptionError(
                f"{target!r} is given twice, once as {name!r}.", option=name, value=value
            )
        given[target] = _to_int(value)
    return given


def _to_int(value: Any) -> Any:
    """Convert an integer of another library (numpy, a tensor) to int; return others as they are."""
    if isinstance(value, int) or not hasattr(value, "__index__"):
        return value
    try:
        return operator.index(value)
    except TypeError:
        return value


def _check_mask(given: dict[str, Any], model: Source) -> None:
    mask_id = given.get("mask_id", model.mask_id)
    if mask_id != model.mask_id:
        raise OptionError(
            f"mask_id={mask_id} is not this model's mask id, {model.mask_id}.",
            option="mask_id",
            value=mask_id,
        )


def _config(given: dict[str, Any], model: Source) -> Config:
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
    fixed = given.get("fixed_budget", False)
    if not isinstance(fixed, bool):
        raise OptionError(
            f"fixed_budget must be True or False, not {fixed!r}.",
            option="fixed_budget",
            value=fixed,
        )
    return Config(
        strategy=_strategy(given).with_ids(model.id_of),
        priority=_priority(given),
        sampling=_sampling(given, model),
        cfg_scale=given.get("cfg_scale", 0.0),
        order_noise=_order_noise(given),
        fixed_budget=fixed,
    )


def _strategy(given: dict[str, Any]) -> Strategy:
    shape = {name: given[name] for name in ("max_wave_size", "radius") if name in given}
    block = given.get("block_length")
    asked = given.get("strategy")
    for name in ("block_length", "max_wave_size", "radius"):
        if name in given:
            check_int(name, given[name], 1)
    if given.get("alg") is not None:
        if asked is not None or block is not None or shape:
            raise OptionError(
                "alg= selects Dream's whole sampler: leave out the strategy and its options.",
                option="alg",
                value=given["alg"],
            )
        selector = "origin" if given["alg"] == "origin" else "dream"
        eps = given.get("eps", 1e-3)
        check_float("eps", eps, 1e-12, 0.999)
        return spec.resolve(f"standard(selector={selector}(eps={eps!r}))", "strategies")
    if asked is None:
        asked = "block" if block is not None else DEFAULT_STRATEGY
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
        check_float("alg_temp", given["alg_temp"], 0)
        return given["alg_temp"]
    return given.get("order_noise", 0.0)


def _eos(given: dict[str, Any]) -> str:
    flags = [name for name in ("logits_eos_inf", "confidence_eos_eot_inf") if given.get(name)]
    if len(flags) + ("eos" in given) > 1:
        raise OptionError(
            "Give one EOS policy: eos=, logits_eos_inf or confidence_eos_eot_inf.",
            option="eos" if "eos" in given else flags[0],
            value=given.get("eos", True),
        )
    if flags:
        return "suppress-logit" if flags[0] == "logits_eos_inf" else "llada-confidence"
    return given.get("eos", "keep")


def _sampling(given: dict[str, Any], model: Source) -> Sampling:
    ids = given.get("stop_ids", model.stop_ids)
    if not isinstance(ids, Iterable) or isinstance(ids, str):
        raise OptionError(
            f"stop_ids must be a list of token ids, not {ids!r}.", option="stop_ids", value=ids
        )
    ids = tuple(_to_int(id) for id in ids)
    for id in ids:
        check_int("stop_ids", id, 0, model.vocab_size - 1)
    # The default is the published rule of the model's family.
    default_rule = "dream" if model.family == "dream" or given.get("alg") else "llada"
    return Sampling(
        rule=given.get("sampling", default_rule),
        temperature=given.get("temperature", 0.0),
        top_p=given.get("top_p"),
        top_k=given.get("top_k"),
        eos=_eos(given),
        stop_ids=ids,
    )
