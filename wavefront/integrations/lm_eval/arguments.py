"""What `--model_args` says: read without breaking specs apart, and sorted by whom it concerns.

`strategy=wavefront(size=8, radius=2),steps=64` has a comma that separates nothing. A comma counts
only outside brackets and quotes; a JSON object is taken as well.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from wavefront.core.errors import OptionError, check_int, did_you_mean
from wavefront.engine.options import ALIASES, Options
from wavefront.integrations.lm_eval.likelihood import AT_ONCE, COPIES, Setting
from wavefront.models import builtin

NAMES = ("pretrained", "model", "path")  # of the checkpoint, as users of lm-eval write it
PLACE = ("device", "dtype", "revision", "offline")
OWN = ("batch_size", "likelihood", "mc_num", "mc_batch", "is_check_greedy", "add_bos_token")
# lm-eval adds them by itself; neither has a meaning here: batches do not grow, and no checkpoint
# brings code.
WITHOUT_MEANING = ("max_batch_size", "trust_remote_code")
AUTOMATIC = 8  # rows when lm-eval is told to find a batch size
_WORDS = {"true": True, "false": False, "none": None}


class Arguments(NamedTuple):
    """The arguments of the model."""

    path: str
    place: dict[str, Any]  # where and how it is loaded
    options: dict[str, Any]  # of `wavefront.Options`
    batch_size: int
    rule: str | None  # of log-likelihoods; None = that of the model's family
    copies: int
    at_once: int
    check_greedy: bool
    bos: bool | None  # None = as the tokenizer's settings have it

    def setting(self, family: str) -> Setting:
        """How log-likelihoods are estimated for a model of this family."""
        rule = self.rule or ("dream" if family == "dream" else "llada")
        scale, seed = self.options.get("cfg_scale", 0.0), self.options.get("seed", 0)
        return Setting(rule, self.copies, self.at_once, scale, seed).checked()


def parse(text: str) -> dict[str, Any]:
    """`name=value,name=value` or a JSON object, as a dictionary."""
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
            raise OptionError(f"model_args are written name=value; {part.strip()!r} is not.")
        if name.strip() in pairs:
            raise OptionError(f"model_args give {name.strip()!r} twice.")
        pairs[name.strip()] = _value(value.strip())
    return pairs


def _split(text: str) -> list[str]:
    """The parts between the commas that stand outside brackets and quotes."""
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
        raise OptionError(f"model_args have a bracket or a quote without its partner: {text!r}.")
    return [part for part in parts if part.strip()]


def _value(text: str) -> Any:
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def read(given: Mapping[str, Any]) -> Arguments:
    """Every argument checked by name, and those of our own by value."""
    known = [*NAMES, *PLACE, *OWN, *WITHOUT_MEANING, *Options.__annotations__]
    for name in given:
        if name not in known:
            raise OptionError(f"There is no model argument {name!r}{did_you_mean(name, known)}.")
    named = [name for name in NAMES if given.get(name) is not None]
    if len(named) > 1:
        raise OptionError(f"{' and '.join(named)} say the same thing: give one of them.")
    values = {name: value for name, value in given.items() if value is not None}
    return Arguments(
        path=str(values[named[0]]) if named else builtin.DEFAULT,
        place={name: values[name] for name in PLACE if name in values},
        options={name: values[name] for name in Options.__annotations__ if name in values},
        batch_size=_batch(values.get("batch_size", 1)),
        rule=values.get("likelihood"),
        copies=values.get("mc_num", COPIES),
        at_once=values.get("mc_batch", AT_ONCE),
        check_greedy=_flag("is_check_greedy", values.get("is_check_greedy", True)),
        bos=None
        if "add_bos_token" not in values
        else _flag("add_bos_token", values["add_bos_token"]),
    )


def merged(given: Mapping[str, Any], beside: Mapping[str, Any] | None) -> dict[str, Any]:
    """model_args, and beside them what lm-eval's own flags say; model_args win.

    lm-eval says cuda:0 on every machine when nobody asked; ours is the best device there is.
    """
    extra = {name: value for name, value in (beside or {}).items() if value is not None}
    if extra.get("device") == "cuda:0":
        del extra["device"]
    return extra | dict(given)


def length_of(options: Mapping[str, Any]) -> int | None:
    """How many places the options ask for, under whichever name."""
    names = ["max_new_tokens", *(a for a, name in ALIASES.items() if name == "max_new_tokens")]
    return next((options[name] for name in names if options.get(name) is not None), None)


def _batch(value: Any) -> int:
    text = str(value)
    if text.split(":")[0] == "auto":
        return AUTOMATIC
    size = int(text) if text.isdecimal() else value
    check_int("batch_size", size, 1)
    return size


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise OptionError(f"{name} must be True or False, not {value!r}.")
    return value
