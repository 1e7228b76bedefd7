"""The arithmetic of one training step: corrupt, forward pass, loss.

On a GPU the step is compiled block by block, once per bucket's shape. All blocks share the same
compiled code, so start-up takes seconds per bucket, not half a minute.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from wavefront.models.transformer import Transformer
from wavefront.train.config import TrainConfig
from wavefront.train.corruption import (
    corrupt,
    draw_levels,
    front_levels,
    likelihood_bound,
    normalise_loss,
    token_nll,
    uniform_draws,
)
from wavefront.train.data import TrainingBatch

# Logits that exist at once. With a large vocabulary, the loss is computed in parts, and only where
# a token is masked.
MAX_LOGITS = 1 << 30
MAX_PART = 8192  # positions of such a part


class DeviceBatch(NamedTuple):
    """A batch on the device."""

    tokens: Tensor  # (B, L) long
    start: Tensor  # (B,) long
    task: Tensor  # (B,) long

    @property
    def maskable(self) -> Tensor:
        """The positions that may be masked, (B, L) bool."""
        position = torch.arange(self.tokens.shape[1], device=self.tokens.device)
        return position >= self.start[:, None]


class StepLoss(NamedTuple):
    """A step's loss, and each row's bound and length."""

    loss: Tensor  # scalar, with its graph
    bounds: Tensor  # (B,) detached
    lengths: Tensor  # (B,)


def upload(batch: TrainingBatch, device: torch.device) -> DeviceBatch:
    """Copy a batch to the device, asynchronously if possible."""

    def move(array: np.ndarray) -> Tensor:
        tensor = torch.from_numpy(array.astype(np.int32))
        if device.type == "cuda":
            tensor = tensor.pin_memory()
        return tensor.to(device, non_blocking=True).long()

    return DeviceBatch(move(batch.tokens), move(batch.start), move(batch.task))


class TrainStep:
    """Compute the loss of a model on one batch."""

    def __init__(self, model: Transformer, config: TrainConfig) -> None:
        self.model, self.config = model, config
        self._bounds: Callable[..., Tensor] = self._head
        self._part_nats: Callable[[Tensor, Tensor], Tensor] = self._nats

    def __call__(self, rows: DeviceBatch, step: int) -> StepLoss:
        """Return the loss of this step. The masks depend only on (seed, step)."""
        config, seed = self.config, self.config.data.seed
        tokens, maskable = rows.tokens, rows.maskable
        level = draw_levels(seed, step, len(tokens), eps=config.eps, device=tokens.device)
        level = front_levels(level, maskable, config.front_share, seed=seed, step=step)
        draw = uniform_draws(seed, step, tokens)
        noisy = corrupt(tokens, maskable, level, draw=draw, mask_id=self.model.mask_id)
        with self.precision():
            hidden = self.model.predictors(noisy.tokens)
            bounds = self._bounds(hidden, tokens, noisy.masked, level=level)
        lengths = maskable.sum(1)
        loss = normalise_loss(bounds, lengths, by=config.normalise)
        return StepLoss(loss, bounds.detach(), lengths)

    def precision(self) -> AbstractContextManager[object]:
        """Use bfloat16 arithmetic on CUDA. The weights stay float32."""
        if self.model.device.type == "cuda":
            return torch.autocast("cuda", torch.bfloat16)
        return nullcontext()

    def _head(self, hidden: Tensor, tokens: Tensor, masked: Tensor, *, level: Tensor) -> Tensor:
        if self._fits(*tokens.shape):
            nats = self._nats(hidden, tokens)
        else:
            nats = self._masked_nats(hidden, tokens, masked)
        return likelihood_bound(nats, masked, level)

    def _fits(self, rows: int, length: int) -> bool:
        """Return whether the logits of a batch may exist at once."""
        return rows * length * self.model.vocab_size <= MAX_LOGITS

    def _masked_nats(self, hidden: Tensor, tokens: Tensor, masked: Tensor) -> Tensor:
        """Return the nats of masked positions, and 0 at the others, in parts of one size.

        The logits of a part are computed again for its gradient.
        """
        at = masked.flatten().nonzero()[:, 0]
        size = max(1, min(MAX_PART, MAX_LOGITS // self.model.vocab_size))
        filled = F.pad(at, (0, -len(at) % size))  # the last part repeats position 0
        states, targets = hidden.flatten(0, 1)[filled], tokens.flatten()[filled]
        parts = zip(states.split(size), targets.split(size), strict=True)
        found = [checkpoint(self._part_nats, *part, use_reentrant=False) for part in parts]
        every = torch.cat([hidden.new_zeros(0, dtype=torch.float32), *found])
        nats = every.new_zeros(tokens.numel()).index_put((at,), every[: len(at)])
        return nats.view(tokens.shape)

    def _nats(self, hidden: Tensor, tokens: Tensor) -> Tensor:
        return token_nll(self._logits(hidden), tokens, self.model.mask_id)

    def _logits(self, hidden: Tensor) -> Tensor:
        """Return the logits. A tied head that is not trained needs no gradient of its matrix.

        The mask token's row, which is trained, gets no gradient from the head in any case: the
        mask token is not a class.
        """
        model = self.model
        if self.config.embeddings or model.output is not None:
            return model.head(hidden)
        return F.linear(hidden, model.embedding.weight.detach())

    def compile(
        self, shapes: Iterable[tuple[int, int]], *, backend: str | Callable[..., Any] = "inductor"
    ) -> bool:
        """Compile for these (rows, length) shapes. Return whether it succeeded.

        If compilation fails, print the reason to standard error and train without it, because a
        slow run is better than none.
        """
        # All layers share the compiled code, with one specialisation per bucket.
        torch._dynamo.config.recompile_limit = 64
        for block in self.model.layers:
            block.compile(dynamic=False, backend=backend)
        # The number of masked positions changes, so only the parts of a large head are compiled.
        self._part_nats = torch.compile(self._nats, dynamic=False, backend=backend)
        shapes = list(shapes)
        if all(self._fits(*shape) for shape in shapes):
            self._bounds = torch.compile(self._head, dynamic=False, backend=backend)
        try:
            for rows, length in shapes:
                self._run_once(rows, length)
        except Exception as error:  # the compiler stack can raise anything
            reason = str(error).strip().splitlines() or [type(error).__name__]
            print(f"compilation failed, training without it: {reason[0]}", file=sys.stderr)
            for block in self.model.layers:
                block._compiled_call_impl = None
            self._bounds, self._part_nats = self._head, self._nats
            return False
        finally:
            self.model.zero_grad(set_to_none=True)
        return True

    def _run_once(self, rows: int, length: int) -> None:
        tokens = torch.zeros(rows, length, dtype=torch.long, device=self.model.device)
        start = torch.zeros(rows, dtype=torch.long, device=self.model.device)
        self(DeviceBatch(tokens, start, start), 0).loss.backward()
