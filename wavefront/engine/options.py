"""The options of a decode: their names, their aliases, and how they become a Config.

One list serves Python, the command line and HTTP. Names that users know from the published
samplers are accepted; an unknown one is refused with the nearest that we have.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, TypedDict

from wavefront.core import spec
from wavefront.core.cache_policy import Cache
from wavefront.core.errors import OptionError, check_choice, check_float, check_int, did_you_mean
from wavefront.core.reading import Sampling
from wavefront.core.state import Config
from wavefront.core.strategy import Strategy


class Options(TypedDict, total=False):
    """Everything that `generate`, `stream` and `generate_ids` take by name."""

    strategy: str | Strategy  # spec string or object; wavefront()
    max_new_tokens: int  # places to fill, N; 128
    steps: int | None  # forward budget, T; N
    priority: str  # confidence, probability, margin, entropy, random
    eos: str  # keep, stop, defer, suppress-logit, suppress-confidence, llada-confidence
    temperature: float  # 0 = always the most probable token
    seed: int
    sampling: str | None  # llada or dream: what confidence is taken from; the model's own
    top_p: float | None
    top_k: int | None
    cfg_scale: float  # classifier-free guidance; 0 = off
    order_noise: float  # Gumbel noise on the order, the paper's eta; 0
    fixed_budget: bool  # run all T forwards, also those that commit nothing
    speculate: int  # steps drafted per forward pass, the answer stays the same; 0 = off
    stop_ids: Sequence[int] | None  # EOS first, then EoT; the checkpoint's
    cache: (
        str | Cache | None
    )  # a spec string such as "wave(refresh=32)"; None = every place, every step
    # Dream's sampler, by its own names
    alg: Literal["origin", "maskgit_plus", "topk_margin", "entropy"] | None
    eps: float
    alg_temp: float | None
    # aliases
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
    "origin": "confidence",  # unused: places are settled by chance
}
DEFAULT_STRATEGY = "wavefront"
DEFAULT_LENGTH = 128
_LONGEST = 1 << 20  # far beyond any model's context; keeps a typing slip from filling memory
_MAX_SPECULATED = 64  # no draft was ever right for so long


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
        """The same by name, everything said: `plan` makes the same of it for any model."""
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
    """What the model contributes."""

    mask_id: int
    stop_ids: tuple[int, ...]
    family: str
    vocab_size: int
    id_of: Callable[[str], int] | None = None  # the token that a text is; with a tokenizer only


def plan(options: Mapping[str, Any], model: Source, *, length: int | None = None) -> Plan:
    """Check every option and build the Config. `length` is given when holes decide it."""
    given = _renamed(options)
    _check_mask(given, model)
    places = length if length is not None else given.get("max_new_tokens", DEFAULT_LENGTH)
    check_int("max_new_tokens", places, 1, _LONGEST)
    steps = given.get("steps", places)
    check_int("steps", steps, 1, _LONGEST)
    seed = given.get("seed", 0)
    check_int("seed", seed, 0, (1 << 63) - 1)
    config = _config(given, model)
    config.strategy.validate(places, steps)
    speculate = given.get("speculate", 0)
    check_int("speculate", speculate, 0, _MAX_SPECULATED)
    if speculate > 1 and config.fixed_budget:
        raise OptionError(
            "speculate saves forward passes and fixed_budget runs them all: use one of them."
        )
    cache = _cache(given.get("cache"))
    if speculate > 1 and cache is not None:
        raise OptionError("speculate computes whole canvases: leave out the cache.")
    return Plan(config, places, steps, seed, speculate, cache)


def _cache(given: object) -> Cache | None:
    if given is None or given == "none":
        return None
    if isinstance(given, Cache):
        return given
    if not isinstance(given, str):
        raise OptionError(f"cache is a spec such as 'wave(refresh=32)', not {given!r}.")
    return spec.resolve(given, "caches")


def wants_trace(options: Mapping[str, Any], trace: bool | str) -> str:
    """Which trace to record, if any: "", "basic" or "full"; Dream calls a trace output_history."""
    asked = options.get("output_history") or False
    if not isinstance(asked, bool) or trace not in (True, False, "basic", "full"):
        raise OptionError("trace is True, False or 'full'; output_history is True or False.")
    if isinstance(trace, str):
        return trace
    return "basic" if trace or asked else ""


def _renamed(options: Mapping[str, Any]) -> dict[str, Any]:
    known = Options.__annotations__
    given: dict[str, Any] = {}
    for name, value in options.items():
        if name not in known:
            raise OptionError(f"There is no option {name!r}{did_you_mean(name, known)}.")
        if value is None:
            continue  # None is the default, whatever the option
        target = ALIASES.get(name, name)
        if target in given:
            raise OptionError(f"{target!r} is given twice, once as {name!r}.")
        given[target] = _plain(value)
    return given


def _plain(value: Any) -> Any:
    """A whole number of any library (numpy, a tensor of one element) as Python's own."""
    if isinstance(value, int) or not hasattr(value, "__index__"):
        return value
    try:
        return operator.index(value)
    except TypeError:
        return value


def _check_mask(given: dict[str, Any], model: Source) -> None:
    if given.get("mask_id", model.mask_id) != model.mask_id:
        raise OptionError(f"mask_id={given['mask_id']} is not this model's, {model.mask_id}.")


def _config(given: dict[str, Any], model: Source) -> Config:
    alg = given.get("alg")
    if alg is not None:
        check_choice("alg", alg, _ALGORITHMS)
    for name in ("eps", "alg_temp"):
        if name in given and alg is None:
            raise OptionError(f"{name} belongs to Dream's sampler: give alg= as well.")
    fixed = given.get("fixed_budget", False)
    if not isinstance(fixed, bool):
        raise OptionError(f"fixed_budget must be True or False, not {fixed!r}.")
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
                "alg= is Dream's whole sampler: leave out the strategy and its options."
            )
        selector = "origin" if given["alg"] == "origin" else "dream"
        eps = given.get("eps", 1e-3)
        check_float("eps", eps, 1e-12, 0.999)
        return spec.resolve(f"standard(selector={selector}(eps={eps!r}))", "strategies")
    if asked is None:
        asked = "block" if block is not None else DEFAULT_STRATEGY
    made = spec.resolve(asked, "strategies") if isinstance(asked, str) else asked
    if not isinstance(made, Strategy):
        raise OptionError(f"strategy must be a spec string or a Strategy, not {made!r}.")
    changes = {"size": block} if block is not None else {}
    changes |= {{"max_wave_size": "size"}.get(name, name): v for name, v in shape.items()}
    owner = "block" if block is not None else "wavefront"
    if changes and made.spec_name() != owner:
        raise OptionError(f"{', '.join(changes)} belongs to {owner}, and the strategy is {made!r}.")
    return replace(made, **changes) if changes else made  # pyright: ignore[reportArgumentType]


def _priority(given: dict[str, Any]) -> str:
    named = [name for name in ("priority", "remasking", "alg") if name in given]
    if len(named) > 1:
        raise OptionError(f"{' and '.join(named)} say the same thing: give one of them.")
    if named == ["remasking"]:
        check_choice("remasking", given["remasking"], _REMASKING)
        return _REMASKING[given["remasking"]]
    if named == ["alg"]:
        return _ALGORITHMS[given["alg"]]
    return given.get("priority", "confidence")


def _order_noise(given: dict[str, Any]) -> float:
    # Drawing k places without replacement from softmax(score / alg_temp) is taking the k best of
    # score + alg_temp * Gumbel noise: Dream's alg_temp is our order noise.
    if "alg_temp" in given:
        if "order_noise" in given:
            raise OptionError("alg_temp and order_noise say the same thing: give one of them.")
        check_float("alg_temp", given["alg_temp"], 0)
        return given["alg_temp"]
    return given.get("order_noise", 0.0)


def _eos(given: dict[str, Any]) -> str:
    flags = [name for name in ("logits_eos_inf", "confidence_eos_eot_inf") if given.get(name)]
    if len(flags) + ("eos" in given) > 1:
        raise OptionError("Give one EOS policy: eos=, logits_eos_inf or confidence_eos_eot_inf.")
    if flags:
        return "suppress-logit" if flags[0] == "logits_eos_inf" else "llada-confidence"
    return given.get("eos", "keep")


def _sampling(given: dict[str, Any], model: Source) -> Sampling:
    ids = given.get("stop_ids", model.stop_ids)
    if not isinstance(ids, Iterable) or isinstance(ids, str):
        raise OptionError(f"stop_ids must be a list of token ids, not {ids!r}.")
    ids = tuple(_plain(one) for one in ids)
    for one in ids:
        check_int("stop_ids", one, 0, model.vocab_size - 1)
    # Each family's published rule, unless told otherwise.
    own = "dream" if model.family == "dream" or given.get("alg") else "llada"
    return Sampling(
        rule=given.get("sampling", own),
        temperature=given.get("temperature", 0.0),
        top_p=given.get("top_p"),
        top_k=given.get("top_k"),
        eos=_eos(given),
        stop_ids=ids,
    )
