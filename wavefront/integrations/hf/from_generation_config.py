"""What a GenerationConfig asks for, as options of ours; what decoding cannot do is refused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from wavefront.core.errors import OptionError, did_you_mean
from wavefront.engine.options import Options

# A GenerationConfig says these; an option of the same meaning beside it would be a second word.
CONFIGURED = ("max_new_tokens", "gen_length", "max_tokens", "temperature", "top_p", "top_k")
NAMES = tuple(name for name in Options.__annotations__ if name not in CONFIGURED)
# What transformers prepares for the models it knows, and nothing here reads.
IGNORED = ("use_cache", "past_key_values", "logits_to_keep", "position_ids", "cache_position")
# The parts of a prepared call that say again what the GenerationConfig says.
WARPERS = {
    "TemperatureLogitsWarper": "temperature",
    "TopKLogitsWarper": "top_k",
    "TopPLogitsWarper": "top_p",
}
CRITERIA = ("MaxLengthCriteria", "EosTokenCriteria")
# Field -> the value at which it asks for nothing, and what to do instead.
REFUSED = {
    "num_beams": (1, "there are no beams over places filled in any order: leave out num_beams"),
    "num_beam_groups": (1, "there are no beams here: leave out num_beam_groups"),
    "constraints": (None, "leave out constraints"),
    "force_words_ids": (None, "leave out force_words_ids"),
    "penalty_alpha": (None, "leave out penalty_alpha"),
    "dola_layers": (None, "leave out dola_layers"),
    "prompt_lookup_num_tokens": (None, "use draft to compute steps ahead"),
    "guidance_scale": (1, "use cfg_scale, which is guidance_scale - 1"),
    "output_scores": (False, "use trace='full', which keeps what was likely at every step"),
    "output_logits": (False, "use trace='full', which keeps what was likely at every step"),
    "output_attentions": (False, "leave out output_attentions"),
    "output_hidden_states": (False, "leave out output_hidden_states"),
}


def wished(config: Any, given: Mapping[str, Any], *, places: int | None) -> dict[str, Any]:
    """The options of a call: those given by name, else those that the config has among its own."""
    for name, (nothing, instead) in REFUSED.items():
        value = getattr(config, name, nothing)
        if value is not None and value != nothing:
            raise OptionError(f"{name}={value!r} cannot be done by diffusion decoding: {instead}.")
    options = {name: getattr(config, name, None) for name in NAMES}
    options |= {name: value for name, value in given.items() if value is not None}
    options = {name: value for name, value in options.items() if value is not None}
    if places is not None:
        options["max_new_tokens"] = places
    if config.do_sample:
        options |= _sampled(config)
        # What governs drawing in transformers: torch.manual_seed, transformers.set_seed.
        options.setdefault("seed", int(torch.randint(1 << 62, ())))
    return options


def _sampled(config: Any) -> dict[str, Any]:
    temperature, top_p, top_k = config.temperature, config.top_p, config.top_k
    return {
        "temperature": 1.0 if temperature is None else float(temperature),
        "top_p": None if top_p is None or top_p >= 1 else float(top_p),
        "top_k": top_k or None,
    }


def stop_ids(config: Any, default: Iterable[int]) -> list[int]:
    """The ids that end a text: the config's, or the model's where it names none."""
    ids = config.eos_token_id
    if ids is None:
        return list(default)
    return torch.as_tensor(ids).flatten().tolist()


def check_processors(processors: Iterable[Any], config: Any) -> None:
    """Refuse every logits processor but the ones that repeat the config's own settings."""
    for processor in processors:
        name = type(processor).__name__
        field = WARPERS.get(name)
        if field is None or getattr(processor, field) != getattr(config, field):
            raise OptionError(
                f"{name} reads a text from the left and here places are filled in any order: "
                "leave out logits_processor and the option that asks for it."
            )


def check_criteria(criteria: Iterable[Any]) -> None:
    """Refuse every stopping criterion but the length and the end token."""
    for criterion in criteria:
        name = type(criterion).__name__
        if name not in CRITERIA:
            raise OptionError(
                f"{name} watches a text that grows from the left and here it is there at once: "
                "leave out stopping_criteria, max_time and stop_strings."
            )


def sort_out(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options among the keywords of a prepared call; what nobody would read is refused."""
    options = {}
    for name, value in given.items():
        if name in NAMES:
            options[name] = value
        elif name == "token_type_ids":
            check_types(value)
        elif name not in IGNORED and value is not None and value is not False:
            raise OptionError(f"There is no option {name!r}{did_you_mean(name, NAMES)}.")
    return options


def check_types(ids: Any) -> None:
    """Refuse token types that say anything; tokenizers send zeros along."""
    if ids is not None and bool(torch.as_tensor(ids).any()):
        raise OptionError("token_type_ids other than 0 are not kept: leave them out.")
