"""The model protocol: what the engine needs from a language model.

Nothing here reads files or the Hub. `loader` loads and saves models; `transformer` implements the
protocol for every built-in family.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor


class KV(NamedTuple):
    """Stored keys and values: one (B, Hkv, L, head_dim) buffer of each per layer.

    Each layer has its own tensors, so a compiled pass that writes one tensor need not copy the
    others. Only `Model.hidden` writes them, in place.
    """

    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]


class Model(Protocol):
    """A masked diffusion language model over a canvas of positions.

    Attention is bidirectional or block-causal. In the second case, a position attends to its own
    block and to earlier blocks. Blocks are counted from the first token of a row.

    The rows of a batch never influence each other.
    """

    family: str  # the family's name, such as "llada"
    vocab_size: int
    mask_id: int
    pad_id: int
    stop_ids: tuple[int, ...]  # end of sequence first; a tokenizer may add its end-of-turn token
    max_length: int  # the longest canvas, in positions
    block_size: int | None  # positions in an attention block; None: bidirectional
    # Count blocks from the first column of the canvas, padding included. A prompt must then be
    # left-padded so that it ends where a block ends.
    padded_blocks: bool
    whole_blocks: bool  # the last block of a canvas is filled up with masks
    shifted: bool  # the output at a position predicts the next position's token
    masked_copies: bool  # True if `hidden` accepts `copies`; without it, it does not
    windows: bool  # True if `hidden` accepts a window and stored keys; False disables caches
    compiled: bool  # True after `kernels.compile.compile_model`; a step then compiles its own work

    @property
    def device(self) -> torch.device:
        """The device that holds the weights."""
        ...

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights and of the logits."""
        ...

    def hidden(
        self,
        tokens: Tensor,
        attend: Tensor | None,
        at: Tensor,
        *,
        window: Tensor | None = None,
        kv: KV | None = None,
        copies: Tensor | None = None,
    ) -> Tensor:
        """Return hidden states (B, Q, D); `head` of [b, q] predicts the token AT position at[b, q].

        With neither `window` nor `kv`, the whole canvas is computed.
        With `kv` alone, the whole canvas is computed and `kv` is filled.
        With `kv` and `window`, only the window's positions are computed and written to `kv`. The
        keys and values of all other positions are read from `kv`. The window must hold every
        position of `at`, and may hold a position twice.
        With `window` alone, its positions attend only to one another. The window holds each
        position once, and every position that `at` is read from.

        Args:
            tokens: (B, L) long.
            attend: (B, L) bool, the positions to attend to; None means all of them.
            at: (B, Q) long, the positions to read.
            window: (B, W) long, the positions to compute.
            kv: Stored keys and values, from `new_kv`.
            copies: (B, Q) bool, which of the positions `at` get a masked copy; see
                `Strategy.copied`. It is passed only if `masked_copies` is true.
        """
        ...

    def head(self, hidden: Tensor) -> Tensor:
        """Return logits (..., V) in the model's dtype, as trained; the mask token is not excluded.

        This is separate from `hidden`, so that logits can be reduced in chunks and never exist all
        at once.
        """
        ...

    def raw_logits(
        self,
        ids: Tensor | Sequence[Sequence[int]],
        attend: Tensor | Sequence[Sequence[int]] | None = None,
    ) -> Tensor:
        """Return (B, L, V): the published model's own output, unshifted, mask token included."""
        ...

    def new_kv(self, batch: int, length: int) -> KV:
        """Return zeroed buffers for `batch` rows of `length` positions."""
        ...


@runtime_checkable
class Publishable(Protocol):
    """A model that can name its weights as its family publishes them."""

    config: Any

    def published_weights(self) -> dict[str, Tensor]:
        """Return every weight under its published name."""
        ...
