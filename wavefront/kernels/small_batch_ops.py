"""Few: a block's work on a handful of rows, where reading the weights is all of the time.

A cached step computes a window of some 32 places. The libraries' kernels are made for more: some
products of so few rows leave a third of the memory's speed unused, and attention runs one program
a head where a GPU has four times as many processors. These operations stand in for them in a
compiled model on a GPU, in half precision. They are opaque to the compiler: it fuses around them.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

ROWS = 32  # of a product: with more of them the libraries' are as fast
QUERIES = 64  # of a head
TILE, DEEP = 64, 128  # entries of a weight that a program reads at a time: its rows, their depth
PROGRAMS = 128  # about as many as keep every processor of a GPU reading
PARTS = 8  # of a head's keys, at most: one program puts them together
LOG2_E = 1.4426950408889634  # the kernels raise 2, not e
HALF, DEVICE = (torch.bfloat16, torch.float16), "cuda"


@cache
def available(device: torch.device) -> bool:
    """Whether the kernels can be made for this device, by a Triton of 3.4 or later."""
    if device.type != "cuda" or torch.version.cuda is None or find_spec("triton") is None:
        return False
    if find_spec("triton.language.extra.cuda.gdc") is None:
        return False
    return torch.cuda.get_device_capability(device) >= (8, 0)


@cache
def _chain(device: torch.device) -> dict[str, Any]:
    """How to launch: beside the end of the kernel before, on GPUs that know how."""
    can = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)
    return {"CHAIN": True, "launch_pdl": True} if can else {"CHAIN": False}


def _launch(kernel: str, grid: tuple[int, int], *given: Any, like: Tensor, **fixed: Any) -> None:
    """Run a kernel where `like` is, which need not be torch's current device."""
    from wavefront.kernels import triton_kernels  # at first use: Triton needs a GPU

    with torch.cuda.device(like.device) if like.is_cuda else nullcontext():
        getattr(triton_kernels, kernel)[grid](*given, num_warps=4, **fixed, **_chain(like.device))


def parts(width: int) -> int:
    """Into how many parts a product is cut along its depth."""
    return 1 if width >= PROGRAMS * TILE else 2


def fits(x: Tensor, weight: Tensor) -> bool:
    """Whether x (B, S, D) is few rows, and the weight, or a gate and an up in it, whole tiles."""
    if x.device.type != DEVICE or x.dtype not in HALF or x.shape[0] * x.shape[1] > ROWS:
        return False
    width, depth = weight.shape
    return width % (2 * TILE) == 0 and depth % (DEEP * parts(width)) == 0


def attends(query: Tensor) -> bool:
    """Whether these queries (B, H, Q, d) are few, on heads too few for one program each."""
    rows, heads, queries, size = query.shape
    known = query.device.type == DEVICE and query.dtype in HALF and size in (64, 128)
    return known and queries <= QUERIES and 2 * rows * heads <= PROGRAMS


def _size(rows: int) -> int:
    """Of the tile that holds them."""
    return 16 if rows <= 16 else 32 if rows <= 32 else 64


def _reads(x: Tensor, count: int) -> int:
    """How many tiles of a product are on their way at once: with a program a processor, what it
    has room for; with more, what lets two of them stand beside each other.
    """
    room = torch.cuda.get_device_properties(x.device).shared_memory_per_block_optin
    return 5 if count > 1 and room >= 5 * 2 * (TILE + ROWS) * DEEP else 4


@torch.library.custom_op("wavefront::few_product", mutates_args=())
def product(x: Tensor, weight: Tensor) -> Tensor:
    """(P, B, S, width): x · weightᵀ in P parts that are to be added, in float32 if P is not 1."""
    width, depth = weight.shape
    count, rows = parts(width), x.shape[0] * x.shape[1]
    assert rows <= ROWS
    out = _parts_like(x, width)
    _launch(
        "product", (width // TILE, count),
        x.contiguous(), weight, out, rows, width, depth, depth // count,
        ROWS=_size(rows), TILE=TILE, DEEP=DEEP, num_stages=_reads(x, count), like=x,
    )  # fmt: skip
    return out


@product.register_fake
def _(x: Tensor, weight: Tensor) -> Tensor:
    return _parts_like(x, weight.shape[0])


def _parts_like(x: Tensor, width: int) -> Tensor:
    count = parts(width)
    dtype = x.dtype if count == 1 else torch.float32
    return x.new_empty((count, x.shape[0], x.shape[1], width), dtype=dtype)


@torch.library.custom_op("wavefront::few_gated", mutates_args=())
def gated(x: Tensor, weight: Tensor) -> Tensor:
    """(B, S, width / 2): the gated half of a SwiGLU, gate and up one weight."""
    width, depth = weight.shape[0] // 2, weight.shape[1]
    rows = x.shape[0] * x.shape[1]
    assert rows <= ROWS
    out = x.new_empty((x.shape[0], x.shape[1], width))
    _launch(
        "gated", (width // TILE, 1), x.contiguous(), weight, out, rows, width, depth,
        ROWS=_size(rows), TILE=TILE, DEEP=DEEP // 2, num_stages=4, like=x,
    )  # fmt: skip
    return out


@gated.register_fake
def _(x: Tensor, weight: Tensor) -> Tensor:
    return x.new_empty((x.shape[0], x.shape[1], weight.shape[0] // 2))


@torch.library.custom_op("wavefront::few_attend", mutates_args={"tally"})
def attend(
    query: Tensor, key: Tensor, value: Tensor, visible: Tensor | None, tally: Tensor
) -> Tensor:
    """(B, H, Q, d), laid out as (B, Q, H, d): every query over its visible keys.

    `tally`: (B·H,) int32 of zeros, which are zeros again afterwards.
    """
    rows, heads, queries, size = query.shape
    assert queries <= QUERIES
    keys = key.shape[2]
    tiles = -(-keys // TILE)
    count = min(PARTS, tiles, PROGRAMS // (rows * heads))
    share = -(-tiles // count) * TILE
    out = query.new_empty((rows, queries, heads, size))
    mixed = query.new_empty((rows * heads * count * queries, size), dtype=torch.float32)
    sums = query.new_empty((rows * heads * count * queries, 2), dtype=torch.float32)
    hidden = visible is not None
    _launch(
        "attend", (rows * heads, count),
        query, key, value, visible if hidden else query, out, mixed, sums, tally,
        *query.stride()[:3], *key.stride()[:3], *value.stride()[:3],
        visible.stride(0) if hidden else 0, queries, keys, share, size**-0.5 * LOG2_E,
        HEADS=heads, PARTS=count, QUERIES=_size(queries), TILE=TILE, SIZE=size, HIDDEN=hidden,
        num_stages=3 if queries <= 32 else 2, like=query,
    )  # fmt: skip
    return out.transpose(1, 2)


@attend.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, visible: Tensor | None, tally: Tensor) -> Tensor:
    rows, heads, queries, size = query.shape
    return query.new_empty((rows, queries, heads, size)).transpose(1, 2)
