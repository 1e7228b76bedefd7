"""Functions on trees: nested tuples and lists of tensors.

A step takes a tree of tensors and returns one. These functions map, join, select and overwrite
such trees without knowing what they hold.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

Tuple = TypeVar("Tuple", bound=tuple[Any, ...])


def replace_fields(value: Tuple, **changes: Any) -> Tuple:
    """Return a named tuple with some fields changed.

    Use this instead of `_replace`. If compiled code returns the result of `_replace`, torch 2.11
    returns an empty tuple.
    """
    names: Any = value
    return type(value)(*[changes.get(name, getattr(value, name)) for name in names._fields])


def leaves(tree: Any) -> list[Tensor]:
    """Return the tensors of a tree, in order."""
    if isinstance(tree, Tensor):
        return [tree]
    if isinstance(tree, tuple | list):
        return [leaf for part in tree for leaf in leaves(part)]
    return []


def map_tree(tree: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Return the tree with `change` applied to every tensor; other leaves stay the same."""
    if isinstance(tree, Tensor):
        return change(tree)
    if isinstance(tree, list):
        return [map_tree(part, change) for part in tree]
    if isinstance(tree, tuple):
        parts = [map_tree(part, change) for part in tree]
        return type(tree)(*parts) if hasattr(tree, "_fields") else tuple(parts)
    return tree


def short_repr(value: Any) -> str:
    """Return a line for a tree: the type and shape of a tensor, not its numbers."""
    if isinstance(value, Tensor):
        sizes = ", ".join(map(str, value.shape))
        return f"{str(value.dtype).removeprefix('torch.')}[{sizes}]"
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        given: Any = value
        fields = [f"{n}={short_repr(part)}" for n, part in zip(given._fields, value, strict=True)]
        return f"{type(value).__name__}({', '.join(fields)})"
    if isinstance(value, tuple | list) and leaves(value):
        return f"{len(value)} parts"
    return repr(value)


def count_true(mask: Tensor) -> int | str:
    """Return how many values of a mask are true, or "?" on the meta device."""
    return "?" if mask.is_meta else int(mask.sum())


def plural(count: int, noun: str) -> str:
    """Return a count with its noun, such as "1 row" or "2 rows"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}{'es' if noun[-1] == 's' else 's'}"


def choose(active: Tensor, new: Any, old: Any) -> Any:
    """Return a tree that takes active rows, (B,) bool, from `new` and the others from `old`."""
    if new is old:
        return old
    if isinstance(new, Tensor):
        return torch.where(active.view(-1, *[1] * (new.dim() - 1)), new, old)
    if isinstance(new, tuple):
        parts = [choose(active, a, b) for a, b in zip(new, old, strict=True)]
        return type(new)(*parts) if hasattr(new, "_fields") else tuple(parts)
    return new


def join(parts: Any) -> Any:
    """Concatenate trees of the same structure along the rows of their tensors."""
    first = parts[0]
    if isinstance(first, Tensor):
        return torch.cat(tuple(parts))
    if not isinstance(first, tuple):
        return first
    columns = [join(column) for column in zip(*parts, strict=True)]
    return type(first)(*columns) if hasattr(first, "_fields") else tuple(columns)


def scatter_rows(tree: Any, index: Tensor, part: Any) -> Any:
    """Return the tree with the rows `index` of every tensor replaced by the rows of `part`."""
    fresh = iter(leaves(part))
    return map_tree(tree, lambda old: old.index_copy(0, index, next(fresh).to(old.dtype)))
