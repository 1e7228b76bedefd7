"""The architecture that a checkpoint's config.json describes, checked key by key.

No key that changes the numbers has a default. The defaults of the published config classes do not
describe the published models, so a missing key is an error that names the key.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from wavefront.core.errors import CheckpointError

# The supported values of a key, the usual one first; None means that it may be absent.
Supported = Mapping[str, tuple[Any, ...]]
# The supported values in `rope_parameters`; any other key describes a different rotation.
PLAIN_ROTARY: Supported = {
    "rope_type": ("default", None),
    "type": ("default", None),
    "partial_rotary_factor": (1, None),
}


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """The sizes, numbers and ids of one model, under one set of names for all families."""

    vocab_size: int  # rows of the embedding and the head; may exceed the tokenizer's vocabulary
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
        """Return the config keys of `Keys.shared`, and the keys with one supported value."""
        return {key: values[0] for key, values in supported.items()} | {
            "vocab_size": self.vocab_size,
            "rope_theta": self.theta,
            "rms_norm_eps": self.eps,
            "mask_token_id": self.mask_id,
            "pad_token_id": self.pad_id,
            "eos_token_id": self.stop_ids[0] if len(self.stop_ids) == 1 else list(self.stop_ids),
        }


class Keys:
    """The keys of one config.json. Every error names the key and the value."""

    def __init__(self, values: Mapping[str, Any], supported: Supported | None = None) -> None:
        self.values = values
        for key, choices in (supported or {}).items():
            self.only(key, *choices)

    def shared(self, rows: int) -> dict[str, Any]:
        """Return the fields whose keys all families share; `rows` is the vocabulary size."""
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
        """Return `rope_theta`; newer files hold it inside `rope_parameters`, or in both places."""
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
        """Return a required positive integer."""
        value = self._required(key)
        if type(value) is not int or value < 1:
            raise CheckpointError(
                f"config.json: {key} must be a positive whole number, not {value!r}."
            )
        return value

    def optional_size(self, key: str) -> int | None:
        """Return a positive integer, or None if the key is absent."""
        return None if self.values.get(key) is None else self.size(key)

    def number(self, key: str) -> float:
        """Return a required number that is positive and finite."""
        value = self._required(key)
        if type(value) not in (int, float) or not 0 < value <= sys.float_info.max:
            raise CheckpointError(
                f"config.json: {key} must be a finite number above 0, not {value!r}."
            )
        return float(value)

    def flag(self, key: str) -> bool:
        """Return a required boolean."""
        value = self._required(key)
        if type(value) is not bool:
            raise CheckpointError(f"config.json: {key} must be true or false, not {value!r}.")
        return value

    def only(self, key: str, *supported: Any) -> None:
        """Raise unless the value is one of `supported`; None means that the key may be absent."""
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
        """Return a required token id that has a row in the embedding."""
        return self._token(key, self._required(key), below=below)

    def tokens(self, key: str, *, below: int) -> tuple[int, ...]:
        """Return zero, one or several token ids."""
        value = self.values.get(key)
        listed = value if isinstance(value, list) else [] if value is None else [value]
        return tuple(self._token(key, number, below=below) for number in listed)

    def divides(self, part: int, total: int, *, names: tuple[str, str]) -> None:
        """Raise unless `part` divides `total`; `names` are their keys."""
        if total % part:
            raise CheckpointError(
                f"config.json: {names[0]} = {part} does not divide {names[1]} = {total}; "
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
                f"config.json has no {key!r}, which the model needs; "
                "add the key from the published config."
            )
        return self.values[key]
