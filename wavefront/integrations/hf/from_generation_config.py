"""Translate a GenerationConfig into wavefront's options, and reject unsupported settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from wavefront.core.errors import OptionError, did_you_mean
from wavefront.engine.options import Options, resolve_builtin_specs

# Options that come from the GenerationConfig and are therefore not accepted by name.
FROM_CONFIG = ("max_new_tokens", "gen_length", "max_tokens", "temperature", "top_p", "top_k")
NAMES = tuple(name for name in Options.__annotations__ if name not in FROM_CONFIG)
# Arguments that transformers prepares for its own models and that have no effect here.
IGNORED = ("use_cache", "past_key_values", "logits_to_keep", "position_ids", "cache_position")
# Logits processors that repeat settings of the GenerationConfig.
WARPERS = {
    "TemperatureLogitsWarper": "temperature",
    "TopKLogitsWarper": "top_k",
    "TopPLogitsWarper": "top_p",
}
NOT_BUILT_IN = (
    "The generation config sets {option}={spec}, but it can name only built-in ones: pass your own "
    "{option} to generate."
)
CRITERIA = ("MaxLengthCriteria", "EosTokenCriteria")
# Field -> the value that turns it off, and what to do instead.
REFUSED = {
    "num_beams": (1, "positions are filled in any order, without beams: leave out num_beams"),
    "num_beam_groups": (1, "there is no beam search: leave out num_beam_groups"),
    "constraints": (None, "leave out constraints"),
    "force_words_ids": (None, "leave out force_words_ids"),
    "penalty_alpha": (None, "leave out penalty_alpha"),
    "dola_layers": (None, "leave out dola_layers"),
    "prompt_lookup_num_tokens": (None, "use speculate for speculative steps"),
    "guidance_scale": (1, "use cfg_scale, which is guidance_scale - 1"),
    "output_scores": (False, "use trace='full', which records the likely tokens of every step"),
    "output_logits": (False, "use trace='full', which records the likely tokens of every step"),
    "output_attentions": (False, "leave out output_attentions"),
    "output_hidden_states": (False, "leave out output_hidden_states"),
}


def options_from_config(
    config: Any, given: Mapping[str, Any], *, new_tokens: int | None
) -> dict[str, Any]:
    """Return the options of a call; options given by name override the config's."""
    for name, (off, instead) in REFUSED.items():
        value = getattr(config, name, off)
        if value is not None and value != off:
            raise OptionError(f"Diffusion decoding does not support {name}={value!r}: {instead}.")
    own = {name: value for name, value in given.items() if value is not None}
    options = {name: getattr(config, name, None) for name in NAMES if name not in own}
    # A generation config can come from a file, and a file must not import code.
    options = resolve_builtin_specs(options, where=NOT_BUILT_IN) | own
    options = {name: value for name, value in options.items() if value is not None}
    if new_tokens is not None:
        options["max_new_tokens"] = new_tokens
    if config.do_sample:
        options |= _sampling_options(config)
        # As in transformers, torch.manual_seed and transformers.set_seed control sampling.
        options.setdefault("seed", int(torch.randint(1 << 62, ())))
    return options


def _sampling_options(config: Any) -> dict[str, Any]:
    temperature, top_p, top_k = config.temperature, config.top_p, config.top_k
    return {
        "temperature": 1.0 if temperature is None else float(temperature),
        "top_p": None if top_p is None or top_p >= 1 else float(top_p),
        "top_k": top_k or None,
    }


def stop_ids(config: Any, default: Iterable[int]) -> list[int]:
    """Return the stop tokens of the config, or the model's if the config has none."""
    ids = config.eos_token_id
    if ids is None:
        return list(default)
    return torch.as_tensor(ids).flatten().tolist()


def check_processors(processors: Iterable[Any], config: Any) -> None:
    """Reject every logits processor except those that repeat the config's settings."""
    for processor in processors:
        name = type(processor).__name__
        field = WARPERS.get(name)
        if field is None or getattr(processor, field) != getattr(config, field):
            raise OptionError(
                f"{name} needs text that grows from the left, but diffusion fills any position: "
                "leave out logits_processor and the option that asks for it."
            )


def check_criteria(criteria: Iterable[Any]) -> None:
    """Reject every stopping criterion except the length and the stop tokens."""
    for criterion in criteria:
        name = type(criterion).__name__
        if name not in CRITERIA:
            raise OptionError(
                f"{name} needs text that grows from the left, but diffusion fills any position: "
                "leave out stopping_criteria, max_time and stop_strings."
            )


def select_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options among the keywords of a prepared call; reject unknown keywords."""
    options = {}
    for name, value in given.items():
        if name in NAMES:
            options[name] = value
        elif name == "token_type_ids":
            check_token_types(value)
        elif name not in IGNORED and value is not None and value is not False:
            raise OptionError(f"There is no option {name!r}{did_you_mean(name, NAMES)}.")
    return options


def check_token_types(ids: Any) -> None:
    """Reject token types other than 0. Some tokenizers always return zeros."""
    if ids is not None and bool(torch.as_tensor(ids).any()):
        raise OptionError("token_type_ids other than 0 are not supported: leave them out.")
