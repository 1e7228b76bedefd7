"""Memory: what a step needs beyond the weights, and how many logits exist at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from wavefront.bench.timing import settle
from wavefront.models.transformer import Transformer


class Peak(NamedTuple):
    """Of one step, run as it stands."""

    logits: int  # places of the largest float tensor over the vocabulary
    largest: int  # bytes of the largest tensor made
    bytes: int | None  # the device's peak beyond what was there before; CUDA only


class Watch(TorchDispatchMode):
    """Sees every tensor that is made; views of the weights are none of them."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.vocabulary = model.vocab_size
        self.logits = self.largest = 0
        self._weights = {_memory(one) for one in model.parameters()}
        self._head = _memory((model.output or model.embedding).weight)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for one in out if isinstance(out, tuple | list) else (out,):
            if isinstance(one, Tensor) and _memory(one) not in self._weights:
                self._see(one, args)
        return out

    def _see(self, made: Tensor, args: Any) -> None:
        self.largest = max(self.largest, made.untyped_storage().nbytes())
        # A product with the head's matrix: other tensors may be as wide as the vocabulary.
        heads = any(isinstance(one, Tensor) and _memory(one) == self._head for one in args)
        if heads and made.dim() and made.shape[-1] == self.vocabulary:
            self.logits = max(self.logits, made.numel() // self.vocabulary)


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def peak(model: Transformer, step: Callable[[], Any]) -> Peak:
    """Of `step`, called twice: once to measure the device, once to look at every tensor."""
    found = None
    device = model.device
    if device.type == "cuda":
        settle(device)
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        step()
        settle(device)
        found = torch.cuda.max_memory_allocated(device) - before
    with Watch(model) as watch:
        step()
    return Peak(watch.logits, watch.largest, found)
