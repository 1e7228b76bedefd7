"""What a checkpoint's config.json says, checked key by key and put into one vocabulary.

Nothing that shapes the numbers has a default: the defaults of the published config classes do not
describe the published models, so a missing key is refused by name.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from wavefront.core.errors import CheckpointError

# The values of a key that the backbone computes, the usual one first; None: it may be absent.
Supported = Mapping[str, tuple[Any, ...]]
# What `rope_parameters` may hold beside the base: all else is another rotation than the plain one.
PLAIN_ROTARY: Supported = {
    "rope_type": ("default", None),
    "type": ("default", None),
    "partial_rotary_factor": (1, None),
}


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """The sizes, numbers and ids of one model, whatever its family calls them."""

    vocab_size: int  # rows of the embedding and of the head, which may exceed the tokenizer's ids
    width: int
    layers: int
    heads: int
    kv_heads: int
    mlp_width: int
    theta: float
    eps: float
    qkv_bias: bool
    tied: bool
    rotary_float32: bool  # rotate queries and keys in float32, or in the activations' own dtype
    mask_id: int
    pad_id: int
    stop_ids: tuple[int, ...]
    max_length: int

    @property
    def head_dim(self) -> int:
        return self.width // self.heads

    def shared_json(self, supported: Supported) -> dict[str, Any]:
        """The keys of `Keys.shared`, and those that have one supported value."""
        return {key: values[0] for key, values in supported.items()} | {
            "vocab_size": self.vocab_size,
            "rope_theta": self.theta,
            "rms_norm_eps": self.eps,
            "mask_token_id": self.mask_id,
            "pad_token_id": self.pad_id,
            "eos_token_id": self.stop_ids[0] if len(self.stop_ids) == 1 else list(self.stop_ids),
        }


class Keys:
    """The keys of one config.json; every reading names the key and value it refuses."""

    def __init__(self, values: Mapping[str, Any], supported: Supported | None = None) -> None:
        self.values = values
        for key, choices in (supported or {}).items():
            self.only(key, *choices)

    def shared(self, rows: int) -> dict[str, Any]:
        """The fields whose keys have one name in all families; `rows` is the vocabulary's size."""
        stops = self.tokens("eos_token_id", below=rows)
        pad = self.tokens("pad_token_id", below=rows)
        return {
            "vocab_size": rows,
            "theta": self.rotary_base(),
            "eps": self.number("rms_norm_eps"),
            "mask_id": self.token("mask_token_id", below=rows),
            "pad_id": (*pad, *stops, 0)[0],
            "stop_ids": stops,
        }

    def rotary_base(self) -> float:
        """`rope_theta`, which newer files hold inside `rope_parameters`: it may stand in both."""
        self.only("partial_rotary_factor", *PLAIN_ROTARY["partial_rotary_factor"])
        nested = self.values.get("rope_parameters")
        if nested is None:
            return self.number("rope_theta")
        if not isinstance(nested, Mapping):
            self.only("rope_parameters", None)
        inner = Keys(nested)
        for key in nested:
            if key != "rope_theta":
                inner.only(key, *PLAIN_ROTARY.get(key, (None,)))
        holders = [keys for keys in (self, inner) if keys.values.get("rope_theta") is not None]
        bases = [keys.number("rope_theta") for keys in holders or (self,)]
        if bases[0] != bases[-1]:
            raise CheckpointError(
                f"config.json: rope_theta is {bases[0]!r}, but {bases[-1]!r} inside "
                "rope_parameters; keep the one the model was trained with."
            )
        return bases[0]

    def size(self, key: str) -> int:
        """A required whole number, at least 1."""
        value = self._required(key)
        if type(value) is not int or value < 1:
            raise CheckpointError(
                f"config.json: {key} must be a positive whole number, not {value!r}."
            )
        return value

    def optional_size(self, key: str) -> int | None:
        return None if self.values.get(key) is None else self.size(key)

    def number(self, key: str) -> float:
        """A required number above 0, and finite."""
        value = self._required(key)
        if type(value) not in (int, float) or not 0 < value <= sys.float_info.max:
            raise CheckpointError(
                f"config.json: {key} must be a finite number above 0, not {value!r}."
            )
        return float(value)

    def flag(self, key: str) -> bool:
        """A required true or false."""
        value = self._required(key)
        if type(value) is not bool:
            raise CheckpointError(f"config.json: {key} must be true or false, not {value!r}.")
        return value

    def only(self, key: str, *supported: Any) -> None:
        """Refuse any value but these; None among them means that the key may be absent."""
        value = self.values.get(key)
        if value in supported:
            return
        if key not in self.values:
            self._required(key)
        names = " or ".join(repr(choice) for choice in supported if choice is not None)
        raise CheckpointError(
            f"config.json: {key} = {value!r} is not supported, only {names or 'null'}; "
            "this is another architecture."
        )

    def token(self, key: str, *, below: int) -> int:
        """A required token id with a row in the embedding."""
        return self._token(key, self._required(key), below=below)

    def tokens(self, key: str, *, below: int) -> tuple[int, ...]:
        """None, one or several token ids."""
        value = self.values.get(key)
        listed = value if isinstance(value, list) else [] if value is None else [value]
        return tuple(self._token(key, number, below=below) for number in listed)

    def divides(self, part: int, whole: int, *, names: tuple[str, str]) -> None:
        if whole % part:
            raise CheckpointError(
                f"config.json: {names[0]} = {part} does not divide {names[1]} = {whole}; "
                "correct the config."
            )

    def _token(self, key: str, value: Any, *, below: int) -> int:
        if type(value) is not int or not 0 <= value < below:
            raise CheckpointError(
                f"config.json: {key} = {value!r} is not a token id from 0 to {below - 1}."
            )
        return value

    def _required(self, key: str) -> Any:
        if self.values.get(key) is None:
            raise CheckpointError(
                f"config.json has no {key!r}, without which the model is not defined; "
                "add the key from the published config."
            )
        return self.values[key]
