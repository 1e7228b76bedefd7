"""Memory: how much a step needs besides the weights, and how many logits exist at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from wavefront.bench.timing import synchronize
from wavefront.models.transformer import Transformer


class PeakMemory(NamedTuple):
    """The peak memory of one step that is not captured."""

    logits: int  # positions of the largest tensor of logits
    largest: int  # bytes of the largest new tensor
    bytes: int | None  # increase of the device's peak; CUDA only


class TensorWatch(TorchDispatchMode):
    """Observes every new tensor, except views of the weights."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.vocabulary = model.vocab_size
        self.logits = self.largest = 0
        self._weights = {_storage(one) for one in model.parameters()}
        self._head = _storage((model.output or model.embedding).weight)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for one in out if isinstance(out, tuple | list) else (out,):
            if isinstance(one, Tensor) and _storage(one) not in self._weights:
                self._observe(one, args)
        return out

    def _observe(self, tensor: Tensor, args: Any) -> None:
        self.largest = max(self.largest, tensor.untyped_storage().nbytes())
        # Only products with the head's matrix: other tensors may be as wide as the vocabulary.
        heads = any(isinstance(one, Tensor) and _storage(one) == self._head for one in args)
        if heads and tensor.dim() and tensor.shape[-1] == self.vocabulary:
            self.logits = max(self.logits, tensor.numel() // self.vocabulary)


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def peak_memory(model: Transformer, step: Callable[[], Any]) -> PeakMemory:
    """Measure `step`. It is called twice: for the device's peak, and to observe every tensor."""
    found = None
    device = model.device
    if device.type == "cuda":
        synchronize(device)
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        step()
        synchronize(device)
        found = torch.cuda.max_memory_allocated(device) - before
    with TensorWatch(model) as watch:
        step()
    return PeakMemory(watch.logits, watch.largest, found)
