"""One training step's arithmetic: corrupt, forward, loss; compiled block by block on a GPU.

Only the first transformer block, another and the head with its loss are compiled, once for each
bucket's shape: the other blocks share one code, so start-up costs seconds a bucket, not half a
minute.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from wavefront.models.transformer import Transformer
from wavefront.train.config import TrainConfig
from wavefront.train.corruption import bound, corrupt, draws, fronts, levels, normalised, surprise
from wavefront.train.data import Batch


class Rows(NamedTuple):
    """A batch on the device."""

    tokens: Tensor  # (B, L) long
    start: Tensor  # (B,) long
    task: Tensor  # (B,) long

    @property
    def maskable(self) -> Tensor:
        """(B, L) bool."""
        place = torch.arange(self.tokens.shape[1], device=self.tokens.device)
        return place >= self.start[:, None]


class Outcome(NamedTuple):
    """A step's loss, and what it is made of."""

    loss: Tensor  # scalar, with its graph
    bounds: Tensor  # (B,) detached
    lengths: Tensor  # (B,)


def upload(batch: Batch, device: torch.device) -> Rows:
    """To the device, without waiting for it where that is possible."""

    def move(array: np.ndarray) -> Tensor:
        tensor = torch.from_numpy(array.astype(np.int32))
        if device.type == "cuda":
            tensor = tensor.pin_memory()
        return tensor.to(device, non_blocking=True).long()

    return Rows(move(batch.tokens), move(batch.start), move(batch.task))


class Learner:
    """A model with its objective."""

    def __init__(self, model: Transformer, config: TrainConfig) -> None:
        self.model, self.config = model, config
        self._bounds: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor] = self._head

    def __call__(self, rows: Rows, step: int) -> Outcome:
        """The loss of this step; its masks depend on (seed, step) alone."""
        config, seed = self.config, self.config.data.seed
        tokens, maskable = rows.tokens, rows.maskable
        level = levels(seed, step, len(tokens), eps=config.eps, device=tokens.device)
        level = fronts(level, maskable, config.front_share, seed=seed, step=step)
        draw = draws(seed, step, tokens)
        noisy = corrupt(tokens, maskable, level, draw=draw, mask_id=self.model.mask_id)
        with self.precision():
            hidden = self.model.encode(noisy.tokens)
            bounds = self._bounds(hidden, tokens, noisy.masked, level)
        lengths = maskable.sum(1)
        loss = normalised(bounds, lengths, by=config.normalise)
        return Outcome(loss, bounds.detach(), lengths)

    def precision(self) -> AbstractContextManager[object]:
        """bfloat16 arithmetic on CUDA; the weights themselves are float32 always."""
        if self.model.device.type == "cuda":
            return torch.autocast("cuda", torch.bfloat16)
        return nullcontext()

    def _head(self, hidden: Tensor, tokens: Tensor, masked: Tensor, level: Tensor) -> Tensor:
        nats = surprise(self.model.head(hidden), tokens, self.model.mask_id)
        return bound(nats, masked, level)

    def compile(
        self, shapes: Iterable[tuple[int, int]], *, backend: str | Callable[..., Any] = "inductor"
    ) -> bool:
        """Compile for these (rows, length) shapes; False, and eager from then on, when it fails.

        A run that costs more is better than none: the reason goes to standard error.
        """
        # Two blocks' code serves all layers and buckets, each bucket being one specialisation.
        torch._dynamo.config.recompile_limit = 64
        for block in self.model.layers:
            block.compile(dynamic=False, backend=backend)
        self._bounds = torch.compile(self._head, dynamic=False, backend=backend)
        try:
            for rows, length in shapes:
                self._try(rows, length)
        except Exception as error:  # the compiler stack can raise anything
            reason = str(error).strip().splitlines() or [type(error).__name__]
            print(f"compilation failed, training without: {reason[0]}", file=sys.stderr)
            for block in self.model.layers:
                block._compiled_call_impl = None
            self._bounds = self._head
            return False
        finally:
            self.model.zero_grad(set_to_none=True)
        return True

    def _try(self, rows: int, length: int) -> None:
        tokens = torch.zeros(rows, length, dtype=torch.long, device=self.model.device)
        start = torch.zeros(rows, dtype=torch.long, device=self.model.device)
        self(Rows(tokens, start, start), 0).loss.backward()
