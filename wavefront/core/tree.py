"""Trees: nests of tuples, lists and tensors, walked by one set of functions.

A step takes a tree of tensors and returns one. These helpers map, join, select and overwrite such
trees without knowing what they hold.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

Whole = TypeVar("Whole", bound=tuple[Any, ...])


def replace_fields(whole: Whole, **changes: Any) -> Whole:
    """A named tuple with some fields changed: `_replace`, which torch 2.11 compiles into an empty
    tuple wherever the result is handed out.
    """
    fields: Any = whole
    return type(whole)(*[changes.get(name, getattr(whole, name)) for name in fields._fields])


def leaves(tree: Any) -> list[Tensor]:
    """The tensors of a nest of tuples and lists, in order."""
    if isinstance(tree, Tensor):
        return [tree]
    if isinstance(tree, tuple | list):
        return [leaf for part in tree for leaf in leaves(part)]
    return []


def map_tree(tree: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The same nest with every tensor changed; whatever is no tensor stays."""
    if isinstance(tree, Tensor):
        return change(tree)
    if isinstance(tree, list):
        return [map_tree(part, change) for part in tree]
    if isinstance(tree, tuple):
        parts = [map_tree(part, change) for part in tree]
        return type(tree)(*parts) if hasattr(tree, "_fields") else tuple(parts)
    return tree


def choose(active: Tensor, new: Any, old: Any) -> Any:
    """The new state for active rows, the old one for the others, whatever its structure."""
    if new is old:
        return old
    if isinstance(new, Tensor):
        return torch.where(active.view(-1, *[1] * (new.dim() - 1)), new, old)
    if isinstance(new, tuple):
        parts = [choose(active, a, b) for a, b in zip(new, old, strict=True)]
        return type(new)(*parts) if hasattr(new, "_fields") else tuple(parts)
    return new


def join(parts: Any) -> Any:
    """Nests of tensors of equal form, rows under rows."""
    one = parts[0]
    if isinstance(one, Tensor):
        return torch.cat(tuple(parts))
    if not isinstance(one, tuple):
        return one
    joined = [join(column) for column in zip(*parts, strict=True)]
    return type(one)(*joined) if hasattr(one, "_fields") else tuple(joined)


def scatter_rows(tree: Any, index: Tensor, part: Any) -> Any:
    """The tree with the rows `index` of every tensor replaced by those of `part`."""
    fresh = iter(leaves(part))
    return map_tree(tree, lambda old: old.index_copy(0, index, next(fresh).to(old.dtype)))
