"""Matrix products and attention for a few rows, where reading the weights takes all the time.

A cached step computes a window of about 32 positions. Library kernels are designed for more rows.
With so few rows, some products leave a third of the memory bandwidth unused. Attention runs one
program per head, but a GPU has four times as many processors. A compiled model on a GPU uses these
operations instead, in half precision. The compiler treats them as opaque and fuses around them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import cache
from importlib.util import find_spec
from typing import Any, Protocol

import torch
from torch import Tensor

ROWS = 32  # the most rows of a product; with more, library kernels are as fast
QUERIES = 64  # the most queries per head
TILE, DEEP = 64, 128  # rows and columns of a weight that a program reads at a time
PROGRAMS = 128  # about as many as keep every processor of a GPU busy
CONVERTING = 256  # the same for kernels that convert weights, which wait less with a neighbour
WIDEST = 1 << 14  # columns of a row that one program rounds to fp8
PARTS = 8  # the most parts that a head's keys are split into; one program combines them
GROUP, PAIRED = 64, 128  # columns of an int4 weight with one scale; columns that share bytes
LOG2_E = 1.4426950408889634  # the kernels use exp2
HALF, DEVICE = (torch.bfloat16, torch.float16), "cuda"


@cache
def available(device: torch.device) -> bool:
    """Return whether this device can run the kernels. They need Triton 3.4 or later."""
    if device.type != "cuda" or torch.version.cuda is None or find_spec("triton") is None:
        return False
    if find_spec("triton.language.extra.cuda.gdc") is None:
        return False
    return torch.cuda.get_device_capability(device) >= (8, 0)


@cache
def _launch_options(device: torch.device) -> dict[str, Any]:
    """Return launch options: programmatic dependent launch on GPUs that support it."""
    can = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)
    return {"CHAIN": True, "launch_pdl": True} if can else {"CHAIN": False}


def _launch(
    kernel: str,
    grid: tuple[int, int],
    *given: Any,
    like: Tensor,
    chain: bool = True,
    **fixed: Any,
) -> None:
    """Run a kernel on the device of `like`, which need not be torch's current device.

    With `chain`, it may start while the previous kernel still runs. A kernel that needs several
    programs on a processor is faster without, because those of the next kernel take their place.
    """
    from wavefront.kernels import triton_kernels  # on first use: Triton needs a GPU

    with torch.cuda.device(like.device) if like.is_cuda else nullcontext():
        getattr(triton_kernels, kernel)[grid](
            *given,
            num_warps=4,
            **fixed,
            **(_launch_options(like.device) if chain else {"CHAIN": False}),
        )


def part_count(width: int) -> int:
    """Return into how many parts a product is split along its depth."""
    return 1 if width >= PROGRAMS * TILE else 2


def quantized_part_count(width: int) -> int:
    """Return the same for a weight in int8 or int4, whose numbers the kernel converts."""
    tiles = width // TILE
    return next((count for count in (1, 2) if count * tiles >= CONVERTING), 4)


class Matrix(Protocol):
    """A weight, quantised or not."""

    @property
    def shape(self) -> tuple[int, ...]: ...


def fits(x: Tensor, weight: Matrix, *, parts: Callable[[int], int] = part_count) -> bool:
    """Return whether x (B, S, D) has few rows and the weight consists of whole tiles.

    Args:
        x: The input of the product.
        weight: Its weight.
        parts: `part_count`, or `quantized_part_count` for a weight in int8 or int4.
    """
    if x.device.type != DEVICE or x.dtype not in HALF or x.shape[0] * x.shape[1] > ROWS:
        return False
    width, depth = weight.shape
    return width % (2 * TILE) == 0 and depth % (DEEP * parts(width)) == 0


def attention_fits(query: Tensor) -> bool:
    """Return whether (B, H, Q, d) has few queries, and too few heads to fill the GPU."""
    rows, heads, queries, size = query.shape
    supported = query.device.type == DEVICE and query.dtype in HALF and size in (64, 128)
    return supported and queries <= QUERIES and 2 * rows * heads <= PROGRAMS


def _tile_size(rows: int) -> int:
    """Return the size of the tile that holds this many rows."""
    return 16 if rows <= 16 else 32 if rows <= 32 else 64


def _stages(x: Tensor, count: int) -> int:
    """Return how many tiles of a product are loaded at once.

    With one program per processor, this is as many as fit in shared memory. With more programs, it
    is small enough for two of them to share a processor.
    """
    room = torch.cuda.get_device_properties(x.device).shared_memory_per_block_optin
    return 5 if count > 1 and room >= 5 * 2 * (TILE + ROWS) * DEEP else 4


@torch.library.custom_op("wavefront::small_batch_product", mutates_args=())
def product(x: Tensor, weight: Tensor) -> Tensor:
    """Return (P, B, S, width): x · weightᵀ as P partial sums, in float32 unless P is 1."""
    width, depth = weight.shape
    count, rows = part_count(width), x.shape[0] * x.shape[1]
    assert rows <= ROWS
    out = _parts_like(x, width)
    _launch(
        "product", (width // TILE, count),
        x.contiguous(), weight, out, rows, width, depth, depth // count,
        ROWS=_tile_size(rows), TILE=TILE, DEEP=DEEP, num_stages=_stages(x, count), like=x,
    )  # fmt: skip
    return out


@product.register_fake
def _(x: Tensor, weight: Tensor) -> Tensor:
    return _parts_like(x, weight.shape[0])


def _parts_like(
    x: Tensor,
    width: int,
    *,
    parts: Callable[[int], int] = part_count,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Return an empty tensor for the result of `product`."""
    count = parts(width)
    dtype = (dtype or x.dtype) if count == 1 else torch.float32
    return x.new_empty((count, x.shape[0], x.shape[1], width), dtype=dtype)


@torch.library.custom_op("wavefront::small_batch_int8_product", mutates_args=())
def int8_product(x: Tensor, codes: Tensor, scale: Tensor) -> Tensor:
    """Return (P, B, S, width) as `product` does, for a weight in int8.

    Args:
        x: (B, S, depth).
        codes: int8 (width, depth).
        scale: float32 (width,), which multiplies each row of the weight.
    """
    width, depth = codes.shape
    count, rows = quantized_part_count(width), x.shape[0] * x.shape[1]
    assert rows <= ROWS
    out = _parts_like(x, width, parts=quantized_part_count)
    _launch(
        "scaled_product", (width // TILE, count),
        x.contiguous(), scale, codes, scale, out, rows, width, depth, depth // count,
        ROUNDED=False, ROWS=_tile_size(rows), TILE=TILE, DEEP=DEEP,
        num_stages=3, chain=False, like=x,
    )  # fmt: skip
    return out


@int8_product.register_fake
def _(x: Tensor, codes: Tensor, scale: Tensor) -> Tensor:
    return _parts_like(x, codes.shape[0], parts=quantized_part_count)


@torch.library.custom_op("wavefront::small_batch_fp8_product", mutates_args=())
def fp8_product(x: Tensor, row_scale: Tensor, codes: Tensor, scale: Tensor) -> Tensor:
    """Return (P, B, S, width) as `product` does, for inputs and a weight in fp8.

    The result is in bfloat16 unless it has parts.

    Args:
        x: float8_e4m3fn (B, S, depth).
        row_scale: float32 (B * S,), which multiplies each row of x.
        codes: float8_e4m3fn (width, depth).
        scale: float32 (width,), which multiplies each row of the weight.
    """
    width, depth = codes.shape
    count, rows = part_count(width), x.shape[0] * x.shape[1]
    assert rows <= ROWS
    out = _parts_like(x, width, dtype=torch.bfloat16)
    _launch(
        "scaled_product", (width // TILE, count),
        x.contiguous(), row_scale, codes, scale, out, rows, width, depth, depth // count,
        ROUNDED=True, ROWS=_tile_size(rows), TILE=TILE, DEEP=DEEP, num_stages=6, like=x,
    )  # fmt: skip
    return out


@fp8_product.register_fake
def _(x: Tensor, row_scale: Tensor, codes: Tensor, scale: Tensor) -> Tensor:
    return _parts_like(x, codes.shape[0], dtype=torch.bfloat16)


@torch.library.custom_op("wavefront::round_rows", mutates_args=())
def round_rows(x: Tensor, largest: float) -> tuple[Tensor, Tensor]:
    """Return x (M, K) in fp8, and the float32 scales (M, 1) that make a row at most `largest`."""
    rows, depth = x.shape
    assert depth <= WIDEST
    out = torch.empty_like(x, dtype=torch.float8_e4m3fn)
    scale = x.new_empty((rows, 1), dtype=torch.float32)
    _launch(
        "round_rows", (rows, 1), x.contiguous(), out, scale, depth,
        LARGEST=largest, WIDE=1 << (depth - 1).bit_length(), like=x,
    )  # fmt: skip
    return out, scale


@round_rows.register_fake
def _(x: Tensor, largest: float) -> tuple[Tensor, Tensor]:
    made = torch.empty_like(x, dtype=torch.float8_e4m3fn)
    return made, x.new_empty((x.shape[0], 1), dtype=torch.float32)


@torch.library.custom_op("wavefront::small_batch_int4_product", mutates_args=())
def int4_product(x: Tensor, codes: Tensor, scale: Tensor, minimum: Tensor) -> Tensor:
    """Return (P, B, S, width) as `product` does, for a weight in int4.

    Args:
        x: (B, S, depth).
        codes: uint8 (width, depth / 2). A byte holds a column of the first 64 of 128 columns in its
            low bits and the column 64 further on in its high bits.
        scale: float16 (width, depth / 64), which multiplies each group of 64 columns.
        minimum: float16 (width, depth / 64), which is then added.
    """
    width, depth = codes.shape[0], 2 * codes.shape[1]
    count, rows = quantized_part_count(width), x.shape[0] * x.shape[1]
    assert rows <= ROWS
    assert depth == x.shape[-1]
    out = _parts_like(x, width, parts=quantized_part_count)
    _launch(
        "int4_product", (width // TILE, count),
        x.contiguous(), codes, scale, minimum, out, rows, width, depth, depth // count,
        ROWS=_tile_size(rows), TILE=TILE, GROUP=GROUP, num_stages=3, chain=False, like=x,
    )  # fmt: skip
    return out


@int4_product.register_fake
def _(x: Tensor, codes: Tensor, scale: Tensor, minimum: Tensor) -> Tensor:
    return _parts_like(x, codes.shape[0], parts=quantized_part_count)


@torch.library.custom_op("wavefront::small_batch_gated_product", mutates_args=())
def gated_product(x: Tensor, weight: Tensor) -> Tensor:
    """Return (B, S, width / 2): silu(gate) · up of a SwiGLU; gate and up are one weight."""
    width, depth = weight.shape[0] // 2, weight.shape[1]
    rows = x.shape[0] * x.shape[1]
    assert rows <= ROWS
    out = x.new_empty((x.shape[0], x.shape[1], width))
    _launch(
        "gated_product", (width // TILE, 1), x.contiguous(), weight, out, rows, width, depth,
        ROWS=_tile_size(rows), TILE=TILE, DEEP=DEEP // 2, num_stages=4, like=x,
    )  # fmt: skip
    return out


@gated_product.register_fake
def _(x: Tensor, weight: Tensor) -> Tensor:
    return x.new_empty((x.shape[0], x.shape[1], weight.shape[0] // 2))


@torch.library.custom_op("wavefront::small_batch_attend", mutates_args={"counters"})
def attend(
    query: Tensor, key: Tensor, value: Tensor, attended: Tensor | None, counters: Tensor
) -> Tensor:
    """Return (B, H, Q, d), laid out as (B, Q, H, d): every query over its attended keys.

    `counters` is (B·H,) int32 and must be zero; it is zero again afterwards.
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
    masked = attended is not None
    _launch(
        "attend", (rows * heads, count),
        query, key, value, attended if masked else query, out, mixed, sums, counters,
        *query.stride()[:3], *key.stride()[:3], *value.stride()[:3],
        attended.stride(0) if masked else 0, queries, keys, share, size**-0.5 * LOG2_E,
        HEADS=heads, PARTS=count, QUERIES=_tile_size(queries), TILE=TILE, SIZE=size, MASKED=masked,
        num_stages=3 if queries <= 32 else 2, like=query,
    )  # fmt: skip
    return out.transpose(1, 2)


@attend.register_fake
def _(
    query: Tensor, key: Tensor, value: Tensor, attended: Tensor | None, counters: Tensor
) -> Tensor:
    rows, heads, queries, size = query.shape
    return query.new_empty((rows, queries, heads, size)).transpose(1, 2)
