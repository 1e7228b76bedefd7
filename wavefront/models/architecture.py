"""What a checkpoint's config.json says, checked key by key and put into one vocabulary.

Nothing that shapes the numbers has a default: the defaults of the published config classes do not
describe the published models, so a missing key is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from wavefront.errors import CheckpointError


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


class Keys:
    """The keys of one config.json; every reading names the key and value it refuses."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values

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
        """A required number above 0."""
        value = self._required(key)
        if type(value) not in (int, float) or not value > 0:
            raise CheckpointError(f"config.json: {key} must be a number above 0, not {value!r}.")
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
