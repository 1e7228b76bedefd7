"""What a decode asks of the device, counted by the operations that torch dispatches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

# Operations whose result the host must wait for, because it is a number or decides a shape.
WAITING = (
    "aten._local_scalar_dense",  # item(), bool(), int(), float()
    "aten.nonzero",
    "aten.masked_select",
    "aten._unique2",
    "aten.equal",
    "aten.is_nonzero",
)


class Operations(TorchDispatchMode):
    """Counts operations by name, and keeps the largest result for each last dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.largest: Counter[int] = Counter()  # last dimension -> elements of a float tensor

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = str(func).rpartition(".")[0]
        self.counts[name] += 1
        masks = args[1] if name == "aten.index" else ()
        if any(isinstance(one, Tensor) and one.dtype == torch.bool for one in masks):
            self.counts["aten.nonzero"] += 1  # an index by a mask
        for one in result if isinstance(result, tuple | list) else (result,):
            if (
                isinstance(one, Tensor)
                and one.is_floating_point()
                and one.dim()
                and name != "aten.t"
            ):
                size = one.shape[-1]
                self.largest[size] = max(self.largest[size], one.numel())
        return result

    @property
    def waits(self) -> dict[str, int]:
        """The operations that wait for the device, and how often each ran."""
        return {name: self.counts[name] for name in WAITING if self.counts[name]}


@contextmanager
def count_lists(monkeypatch: Any) -> Iterator[list[tuple[int, ...]]]:
    """Collect the shapes of tensors that are copied into lists. torch does not dispatch that."""
    shapes: list[tuple[int, ...]] = []
    plain = Tensor.tolist

    def tolist(self: Tensor) -> Any:
        shapes.append(tuple(self.shape))
        return plain(self)

    with monkeypatch.context() as patch:
        patch.setattr(Tensor, "tolist", tolist)
        yield shapes
