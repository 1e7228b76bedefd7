"""Parse and check `--model_args`.

In `strategy=wavefront(size=8, radius=2),steps=64`, only the second comma separates arguments:
commas inside brackets and quotes do not count. A JSON object works as well.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from wavefront.core.errors import OptionError, check_int, did_you_mean
from wavefront.engine.options import ALIASES, Options
from wavefront.integrations.lm_eval.likelihood import AT_ONCE, COPIES, LikelihoodSettings
from wavefront.models import builtin

NAMES = ("pretrained", "model", "path")  # names for the checkpoint that users of lm-eval know
LOAD_OPTIONS = (
    *("device", "dtype", "quantize", "revision", "offline"),
    *("mask_id", "attention", "block_size"),  # of the model; block_length is the strategy's
)
OWN = ("batch_size", "likelihood", "mc_num", "mc_batch", "is_check_greedy", "add_bos_token")
# lm-eval adds these. They have no effect: batches do not grow, and remote code is never run.
IGNORED = ("max_batch_size", "trust_remote_code")
AUTO_BATCH = 8  # rows for batch_size=auto
_WORDS = {"true": True, "false": False, "none": None}


class Arguments(NamedTuple):
    """The model arguments of lm-eval, checked."""

    path: str
    load_options: dict[str, Any]  # device, dtype and so on, for `wavefront.load`
    options: dict[str, Any]  # of `wavefront.Options`
    batch_size: int
    rule: str | None  # of log-likelihoods; None: that of the model's family
    copies: int
    at_once: int
    check_greedy: bool
    bos: bool | None  # None: as in the tokenizer's settings

    def likelihood_settings(self, family: str) -> LikelihoodSettings:
        """Return how log-likelihoods are estimated for a model of this family."""
        rule = self.rule or ("dream" if family == "dream" else "llada")
        scale, seed = self.options.get("cfg_scale", 0.0), self.options.get("seed", 0)
        return LikelihoodSettings(rule, self.copies, self.at_once, scale, seed).validate()


def parse(text: str) -> dict[str, Any]:
    """Parse `name=value,name=value` or a JSON object into a dictionary."""
    if text.strip().startswith("{"):
        try:
            found = json.loads(text)
        except ValueError as error:
            raise OptionError(f"model_args is not valid JSON: {error}.") from None
        return found
    pairs: dict[str, Any] = {}
    for part in _split(text):
        name, equals, value = part.partition("=")
        if not equals or not name.strip():
            raise OptionError(f"model_args must be written name=value, not {part.strip()!r}.")
        if name.strip() in pairs:
            raise OptionError(f"model_args contain {name.strip()!r} twice.")
        pairs[name.strip()] = _value(value.strip())
    return pairs


def _split(text: str) -> list[str]:
    """Split at the commas outside brackets and quotes."""
    parts, depth, quote = [""], 0, ""
    for char in text:
        if quote:
            quote = "" if char == quote else quote
        elif char in "\"'":
            quote = char
        elif char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
        if char == "," and depth == 0 and not quote:
            parts.append("")
        else:
            parts[-1] += char
    if depth or quote:
        raise OptionError(f"model_args have an unmatched bracket or quote: {text!r}.")
    return [part for part in parts if part.strip()]


def _value(text: str) -> Any:
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def parse_arguments(given: Mapping[str, Any]) -> Arguments:
    """Check the names of all arguments, and the values of those that are not decoding options."""
    known = [*NAMES, *LOAD_OPTIONS, *OWN, *IGNORED, *Options.__annotations__]
    for name in given:
        if name not in known:
            raise OptionError(f"There is no model argument {name!r}{did_you_mean(name, known)}.")
    named = [name for name in NAMES if given.get(name) is not None]
    if len(named) > 1:
        raise OptionError(f"{' and '.join(named)} mean the same: give only one of them.")
    values = {name: value for name, value in given.items() if value is not None}
    return Arguments(
        path=str(values[named[0]]) if named else builtin.DEFAULT,
        load_options={name: values[name] for name in LOAD_OPTIONS if name in values},
        options={
            name: values[name]
            for name in Options.__annotations__
            if name in values and name not in LOAD_OPTIONS
        },
        batch_size=_batch(values.get("batch_size", 1)),
        rule=values.get("likelihood"),
        copies=values.get("mc_num", COPIES),
        at_once=values.get("mc_batch", AT_ONCE),
        check_greedy=_flag("is_check_greedy", values.get("is_check_greedy", True)),
        bos=None
        if "add_bos_token" not in values
        else _flag("add_bos_token", values["add_bos_token"]),
    )


def merge_flags(given: Mapping[str, Any], flags: Mapping[str, Any] | None) -> dict[str, Any]:
    """Merge model_args with lm-eval's own flags; model_args take precedence.

    lm-eval passes cuda:0 by default on every machine. It is ignored, and the best device is used.
    """
    extra = {name: value for name, value in (flags or {}).items() if value is not None}
    if extra.get("device") == "cuda:0":
        del extra["device"]
    return extra | dict(given)


def length_of(options: Mapping[str, Any]) -> int | None:
    """Return the number of new tokens in the options, under any of its names."""
    names = ["max_new_tokens", *(a for a, name in ALIASES.items() if name == "max_new_tokens")]
    return next((options[name] for name in names if options.get(name) is not None), None)


def _batch(value: Any) -> int:
    text = str(value)
    if text.split(":")[0] == "auto":
        return AUTO_BATCH
    size = int(text) if text.isdecimal() else value
    check_int("batch_size", size, 1)
    return size


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise OptionError(f"{name} must be True or False, not {value!r}.")
    return value
