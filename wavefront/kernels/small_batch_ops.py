"""Matrix products and attention for a few rows, where reading the weights takes all the time.

A cached step computes a window of about 32 positions. Library kernels are designed for more rows.
With so few rows, some products leave a third of the memory bandwidth unused. Attention runs one
program per head, but a GPU has four times as many processors. A model in half precision on a GPU
uses these operations instead. The compiler treats them as opaque and fuses around them.

Tensor cores multiply 8-bit numbers without a conversion, so quantised weights are read as they are.
The inputs are split into two 8-bit numbers each, which together are as exact as bfloat16.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import cache
from importlib.util import find_spec
from typing import Any, Protocol

import torch
from torch import Tensor

ROWS = 64  # the most rows of a product; with more, library kernels are as fast
QUERIES, QUERY_TILE = 64, 16  # the most queries per head; how many of them a program computes
TILE, DEEP = 64, 128  # rows and columns of a weight that a program reads at a time
PROGRAMS = 128  # about as many as keep every processor of a GPU busy
EXPERT_PROGRAMS = 2 * PROGRAMS  # which share the tiles of the experts in use
WIDEST = 1 << 14  # columns of a row that one program rounds to 8 bits
PARTS = 8  # the most parts that a product's depth or a head's keys are split into
GROUP, PAIRED = 64, 128  # columns of an int4 weight with one scale; columns that share bytes
LOG2_E = 1.4426950408889634  # the kernels use exp2
HALF, DEVICE = (torch.bfloat16, torch.float16), "cuda"
LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}


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
    grid: tuple[int, ...],
    *given: Any,
    like: Tensor,
    warps: int = 4,
    **fixed: Any,
) -> None:
    """Run a kernel on the device of `like`, which need not be torch's current device.

    It may start while the previous kernel still runs, on GPUs that support this.
    """
    from wavefront.kernels import triton_kernels  # on first use: Triton needs a GPU

    with torch.cuda.device(like.device) if like.is_cuda else nullcontext():
        getattr(triton_kernels, kernel)[grid](
            *given,
            num_warps=warps,
            **fixed,
            **_launch_options(like.device),
        )


def part_count(width: int, depth: int, *, programs: int = PROGRAMS) -> int:
    """Return into how many parts a product is split along its depth, to have so many programs."""
    count = 1
    while count < PARTS and count * width < programs * TILE and depth % (2 * count * DEEP) == 0:
        count *= 2
    return count


def int8_part_count(width: int, depth: int) -> int:
    """Return the parts for an int8 weight, whose programs read fewer bytes."""
    some = PROGRAMS * TILE <= width < 2 * PROGRAMS * TILE and depth % (2 * DEEP) == 0
    return 2 if some else part_count(width, depth)


def int4_part_count(width: int, depth: int) -> int:
    """Return the parts for an int4 weight, whose programs wait for the tensor cores."""
    return part_count(width, depth, programs=3 * PROGRAMS)


class Matrix(Protocol):
    """A weight, quantised or not."""

    @property
    def shape(self) -> tuple[int, ...]: ...


def fits(x: Tensor, weight: Matrix, *, most: int | None = ROWS) -> bool:
    """Return whether x (B, S, D) has at most `most` rows and the weight consists of whole tiles."""
    if x.device.type != DEVICE or x.dtype not in HALF:
        return False
    if most is not None and x.shape[0] * x.shape[1] > most:
        return False
    width, depth = weight.shape
    return width % (2 * TILE) == 0 and depth % DEEP == 0


def gated_product_fits(x: Tensor, weight: Matrix) -> bool:
    """Return whether `gated_product` computes this, and its programs keep the GPU busy."""
    return fits(x, weight) and weight.shape[0] >= PROGRAMS * TILE


def experts_fit(x: Tensor, gate_up: Tensor, down: Tensor) -> bool:
    """Return whether x (T, D) has few rows, and the experts' matrices consist of whole tiles."""
    if x.device.type != DEVICE or x.dtype not in HALF or len(x) > ROWS:
        return False
    return not any(side % (2 * TILE) for side in (*gate_up.shape[1:], *down.shape[1:]))


def attention_fits(query: Tensor) -> bool:
    """Return whether (B, H, Q, d) has few queries, and too few heads to fill the GPU."""
    rows, heads, queries, size = query.shape
    supported = query.device.type == DEVICE and query.dtype in HALF and size in (64, 128)
    return supported and queries <= QUERIES and 2 * rows * heads <= PROGRAMS


def counter_count(rows: int, heads: int) -> int:
    """Return how many counters `attend` needs at most, for a batch of rows with so many heads."""
    return QUERIES // QUERY_TILE * rows * heads


def _tile_size(rows: int) -> int:
    """Return the size of the tile that holds this many rows."""
    return 16 if rows <= 16 else 32 if rows <= 32 else 64


def _stages(x: Tensor, wanted: int, tile: int) -> int:
    """Return how many tiles of this many bytes are loaded at once: `wanted`, if they fit."""
    room = torch.cuda.get_device_properties(x.device).shared_memory_per_block_optin
    return max(2, min(wanted, room // tile))


@torch.library.custom_op("wavefront::small_batch_product", mutates_args=())
def product(x: Tensor, weight: Tensor) -> Tensor:
    """Return (P, B, S, width): x · weightᵀ as P partial sums, in float32 unless P is 1."""
    width, depth = weight.shape
    count, rows = part_count(width, depth), x.shape[0] * x.shape[1]
    assert rows <= ROWS
    out = _parts_like(x, width, count)
    row_tile = _tile_size(rows)
    # Six stages leave room for one program per processor, which is too few for a larger grid.
    deeper = count > 1 and width // TILE * count <= PROGRAMS
    stages = _stages(x, 6 if deeper else 3, 2 * (TILE + row_tile) * DEEP)
    _launch(
        "product", (width // TILE, count),
        x.contiguous(), weight, out, rows, width, depth, depth // count,
        ROWS=row_tile, TILE=TILE, DEEP=DEEP, num_stages=stages, like=x,
    )  # fmt: skip
    return out


@product.register_fake
def _(x: Tensor, weight: Tensor) -> Tensor:
    return _parts_like(x, weight.shape[0], part_count(*weight.shape))


def _parts_like(x: Tensor, width: int, count: int, *, dtype: torch.dtype | None = None) -> Tensor:
    """Return an empty tensor for the result of `product`."""
    kind = (dtype or x.dtype) if count == 1 else torch.float32
    return x.new_empty((count, x.shape[0], x.shape[1], width), dtype=kind)


@torch.library.custom_op("wavefront::small_batch_int8_product", mutates_args=())
def int8_product(
    x: Tensor, row_scale: Tensor, codes: Tensor, scale: Tensor, dtype: torch.dtype
) -> Tensor:
    """Return (P, B, S, width) as `product` does, for a weight in int8.

    Args:
        x: int8 (2, B, S, depth), from `split_rows`.
        row_scale: float32 (B * S,), which multiplies each row of x.
        codes: int8 (width, depth).
        scale: float32 (width,), which multiplies each row of the weight.
        dtype: The dtype of the result, unless it has parts.
    """
    width, depth = codes.shape
    rows = x.shape[1] * x.shape[2]
    count = _int8_parts(rows, codes)
    out = _parts_like(x[0], width, count, dtype=dtype)
    if rows <= ROWS:
        tile, row_tile, warps = TILE, _tile_size(rows), 4
        wanted = 4 if width >= PROGRAMS * TILE else 8
    else:
        tile, row_tile, warps, wanted = 2 * TILE, 64, 8, 3
    stages = _stages(x, wanted, (tile + 2 * row_tile) * DEEP)
    _launch(
        "scaled_product", (-(-rows // row_tile), width // tile, count),
        x.contiguous(), row_scale, codes, scale, out, rows, width, depth, depth // count,
        INTEGER=True, ROWS=row_tile, TILE=tile, DEEP=DEEP, num_stages=stages, warps=warps, like=x,
    )  # fmt: skip
    return out


@int8_product.register_fake
def _(x: Tensor, row_scale: Tensor, codes: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    count = _int8_parts(x.shape[1] * x.shape[2], codes)
    return _parts_like(x[0], len(codes), count, dtype=dtype)


def _int8_parts(rows: int, codes: Tensor) -> int:
    return int8_part_count(*codes.shape) if rows <= ROWS else 1


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
    count, rows = part_count(width, depth), x.shape[0] * x.shape[1]
    assert rows <= ROWS
    out = _parts_like(x, width, count, dtype=torch.bfloat16)
    deep, row_tile = 2 * DEEP if depth % (2 * DEEP * count) == 0 else DEEP, _tile_size(rows)
    stages = _stages(x, 3 if count == 1 else 6, (TILE + row_tile) * deep)
    _launch(
        "scaled_product", (1, width // TILE, count),
        x.contiguous(), row_scale, codes, scale, out, rows, width, depth, depth // count,
        INTEGER=False, ROWS=row_tile, TILE=TILE, DEEP=deep, num_stages=stages, like=x,
    )  # fmt: skip
    return out


@fp8_product.register_fake
def _(x: Tensor, row_scale: Tensor, codes: Tensor, scale: Tensor) -> Tensor:
    return _parts_like(x, len(codes), part_count(*codes.shape), dtype=torch.bfloat16)


@torch.library.custom_op("wavefront::round_rows", mutates_args=())
def round_rows(x: Tensor, largest: float) -> tuple[Tensor, Tensor]:
    """Return x (M, K) in fp8, and the float32 scales (M, 1) that make a row at most `largest`."""
    rows, depth = x.shape
    assert depth <= WIDEST
    out = torch.empty_like(x, dtype=torch.float8_e4m3fn)
    scale = x.new_empty((rows, 1), dtype=torch.float32)
    _launch(
        "round_rows", (rows, 1), x.contiguous(), out, scale, depth,
        LARGEST=largest, WIDE=1 << (depth - 1).bit_length(),
        warps=8 if depth <= 4096 else 16, like=x,
    )  # fmt: skip
    return out, scale


@round_rows.register_fake
def _(x: Tensor, largest: float) -> tuple[Tensor, Tensor]:
    made = torch.empty_like(x, dtype=torch.float8_e4m3fn)
    return made, x.new_empty((x.shape[0], 1), dtype=torch.float32)


def split_rows(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Return x / scale as the sum of two numbers in 8 bits, which are the inputs of products.

    The second number is what rounding to the first one lost; in int8 it is multiplied by 256. Both
    together are more exact than bfloat16, relative to the largest number of the row.

    Args:
        x: (M, K) in half precision.
        dtype: int8 for `int8_product`, or float8_e4m3fn for `int4_product`.

    Returns:
        (2, M, K) in `dtype`, the scales float32 (M,), and for fp8 the sums of groups of 64 numbers,
        float16 (M, K / 64); otherwise (M, 0).
    """
    # The compiler would make up to four kernels of these operations.
    if x.device.type == DEVICE and x.shape[1] <= WIDEST:
        return _split_rows(x, dtype)
    largest = LARGEST[dtype]
    scale = x.abs().amax(1, keepdim=True).float().clamp_min(1e-12) / largest
    scaled = (x.float() / scale).clamp(-largest, largest)
    if dtype == torch.int8:
        first = (scaled + 0.5).floor()
        rest = ((scaled - first) * 256 + 0.5).floor().clamp(-127, 127)
        sums = scale.new_empty((len(x), 0), dtype=torch.float16)
    else:
        first = scaled.to(dtype).float()
        rest = (scaled - first).to(dtype).float()
        sums = (first + rest).unflatten(1, (-1, GROUP)).sum(2).to(torch.float16)
    return torch.stack((first, rest)).to(dtype), scale.flatten(), sums


@torch.library.custom_op("wavefront::split_rows", mutates_args=())
def _split_rows(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Compute `split_rows` in one kernel."""
    rows, depth = x.shape
    made = _pieces_like(x, dtype)
    _launch(
        "split_rows", (rows, 1), x.contiguous(), *made, rows, depth,
        LARGEST=LARGEST[dtype], GROUP=GROUP, WIDE=1 << (depth - 1).bit_length(),
        warps=8 if depth <= 4096 else 16, like=x,
    )  # fmt: skip
    return made


@_split_rows.register_fake
def _pieces_like(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Return empty tensors for the result of `split_rows`."""
    rows, depth = x.shape
    return (
        x.new_empty((2, rows, depth), dtype=dtype),
        x.new_empty(rows, dtype=torch.float32),
        x.new_empty((rows, 0 if dtype == torch.int8 else depth // GROUP), dtype=torch.float16),
    )


@torch.library.custom_op("wavefront::small_batch_int4_product", mutates_args=())
def int4_product(
    x: Tensor,
    row_scale: Tensor,
    sums: Tensor,
    codes: Tensor,
    scale: Tensor,
    minimum: Tensor,
    dtype: torch.dtype,
) -> Tensor:
    """Return (P, B, S, width) as `product` does, for a weight in int4.

    Args:
        x: float8_e4m3fn (2, B, S, depth), from `split_rows`.
        row_scale: float32 (B * S,), which multiplies each row of x.
        sums: float16 (B * S, depth / 64), from `split_rows`.
        codes: uint8 (width, depth / 2). A byte holds a column of the first 64 of 128 columns in its
            low bits and the column 64 further on in its high bits.
        scale: float16 (width, depth / 64), which multiplies each group of 64 columns.
        minimum: float16 (width, depth / 64), which is then added; with the strides of `scale`.
        dtype: The dtype of the result, unless it has parts.
    """
    width, depth = codes.shape[0], 2 * codes.shape[1]
    count, rows = int4_part_count(width, depth), x.shape[1] * x.shape[2]
    assert rows <= ROWS
    assert depth == x.shape[-1]
    assert scale.stride() == minimum.stride()
    out = _parts_like(x[0], width, count, dtype=dtype)
    _launch(
        "int4_product", (width // TILE, count),
        x.contiguous(), row_scale, sums, codes, scale, minimum, out,
        rows, width, depth, depth // count, *scale.stride(),
        ROWS=_tile_size(rows), TILE=TILE, GROUP=GROUP, PACKED=x.is_cuda, num_stages=3, like=x,
    )  # fmt: skip
    return out


@int4_product.register_fake
def _(
    x: Tensor,
    row_scale: Tensor,
    sums: Tensor,
    codes: Tensor,
    scale: Tensor,
    minimum: Tensor,
    dtype: torch.dtype,
) -> Tensor:
    return _parts_like(x[0], len(codes), int4_part_count(len(codes), x.shape[-1]), dtype=dtype)


@torch.library.custom_op("wavefront::dequantize_int4", mutates_args=())
def dequantize_int4(codes: Tensor, scale: Tensor, minimum: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the weight (width, depth) that `int4_product` takes; see there for its parts."""
    width, depth = codes.shape[0], 2 * codes.shape[1]
    assert scale.stride() == minimum.stride()
    out = codes.new_empty((width, depth), dtype=dtype)
    _launch(
        "dequantize_int4", (depth // PAIRED, width // TILE),
        codes, scale, minimum, out, depth, *scale.stride(), TILE=TILE, GROUP=GROUP, like=codes,
    )  # fmt: skip
    return out


@dequantize_int4.register_fake
def _(codes: Tensor, scale: Tensor, minimum: Tensor, dtype: torch.dtype) -> Tensor:
    return codes.new_empty((codes.shape[0], 2 * codes.shape[1]), dtype=dtype)


def router_product_fits(x: Tensor, weight: Tensor) -> bool:
    """Return whether `product` computes the logits of a router in float32, from x (1, T, D)."""
    if x.dtype != weight.dtype or not fits(x, weight):
        return False
    return part_count(*weight.shape) > 1 or x.dtype == torch.float32


def route_fits(logits: Tensor, groups: int) -> bool:
    """Return whether `route` takes these logits (P, T, E), whose experts form `groups` groups."""
    _, rows, experts = logits.shape
    if logits.device.type != DEVICE or logits.dtype != torch.float32 or rows > ROWS:
        return False
    sides = (experts, groups)
    return all(side & (side - 1) == 0 for side in sides) and experts >= 2 * groups


@torch.library.custom_op("wavefront::route", mutates_args=())
def route(
    logits: Tensor,
    bias: Tensor | None,
    *,
    count: int,
    groups: int,
    kept_groups: int,
    normalized: bool,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """Return the weights (T, K) float32 and the chosen experts (T, K) long, in one kernel.

    Args:
        logits: float32 (P, T, E), P partial sums, which are added up.
        bias: float32 (E,), which is added to the sigmoid of the logits for the choice; None chooses
            by the softmax, without groups.
        count: K, the number of experts of a row.
        groups: How many groups the experts form.
        kept_groups: From how many of the best groups the experts are chosen.
        normalized: Whether the weights of a row add up to `scale`.
        scale: What multiplies the weights.
    """
    parts, rows, total = logits.shape
    weights = logits.new_empty((rows, count))
    chosen = logits.new_empty((rows, count), dtype=torch.int64)
    _launch(
        "route", (rows, 1),
        logits.contiguous(), logits if bias is None else bias, weights, chosen, rows, count, scale,
        PARTS=parts, GROUPED=bias is not None, NORMALIZED=normalized, EXPERTS=total, GROUPS=groups,
        KEPT=kept_groups, TOP=1 << (count - 1).bit_length(), warps=1, like=logits,
    )  # fmt: skip
    return weights, chosen


@route.register_fake
def _(
    logits: Tensor,
    bias: Tensor | None,
    *,
    count: int,
    groups: int,
    kept_groups: int,
    normalized: bool,
    scale: float,
) -> tuple[Tensor, Tensor]:
    made = logits.new_empty((logits.shape[1], count))
    return made, torch.empty_like(made, dtype=torch.int64)


@torch.library.custom_op("wavefront::small_batch_experts", mutates_args=())
def experts(
    x: Tensor,
    chosen: Tensor,
    weights: Tensor,
    gate_up: Tensor,
    down: Tensor,
    shared_gate_up: Tensor | None = None,
    shared_down: Tensor | None = None,
) -> Tensor:
    """Return (P, T, D): the weighted output of every chosen expert, reading only the chosen ones.

    P is K, or K + 1 with a shared expert, whose output comes last.

    Args:
        x: (T, D).
        chosen: int64 (T, K), the experts of each row, each once.
        weights: float32 (T, K), which multiply the outputs.
        gate_up: (E, 2 * inner, D), gate first.
        down: (E, D, inner).
        shared_gate_up: (2 * inner, D), the expert of all rows; None if there is none.
        shared_down: (D, inner).
    """
    (rows, depth), top, (count, _, inner) = x.shape, chosen.shape[1], down.shape
    assert rows <= ROWS
    shared = int(shared_down is not None)
    planes, picks = min(count, rows * top) + shared, chosen.contiguous()
    gated, out = x.new_empty((planes, rows, inner)), x.new_empty((top + shared, rows, depth))
    fixed: dict[str, Any] = {
        "SHARED": shared,
        "TOP": 1 << (top - 1).bit_length(),
        "EXPERTS": 1 << (count - 1).bit_length(),
        "ROWS": _tile_size(rows),
        "DEEP": DEEP // 2,
    }
    _launch(
        "expert_gated_product", (min(EXPERT_PROGRAMS, inner // TILE * planes), 1),
        x.contiguous(), picks, gate_up, gate_up if shared_gate_up is None else shared_gate_up,
        gated, rows, inner, depth, top,
        TILE=TILE, num_stages=4 if rows <= 32 else 3, like=x, **fixed,
    )  # fmt: skip
    _launch(
        "expert_product", (min(EXPERT_PROGRAMS, depth // (2 * TILE) * planes), 1),
        gated, picks, weights.contiguous(), down, down if shared_down is None else shared_down,
        out, rows, depth, inner, top,
        TILE=2 * TILE, num_stages=_stages(x, 4, (2 * TILE + _tile_size(rows)) * DEEP), like=x,
        **fixed,
    )  # fmt: skip
    return out


@experts.register_fake
def _(
    x: Tensor,
    chosen: Tensor,
    weights: Tensor,
    gate_up: Tensor,
    down: Tensor,
    shared_gate_up: Tensor | None = None,
    shared_down: Tensor | None = None,
) -> Tensor:
    return x.new_empty((chosen.shape[1] + (shared_down is not None), *x.shape))


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

    Args:
        query: (B, H, Q, d).
        key: (B, Hkv, L, d), where H / Hkv consecutive heads share a key head.
        value: (B, Hkv, L, d).
        attended: bool (B, 1, 1, L), the keys to attend to, or (B, 1, Q, L); None means all.
        counters: int32 (`counter_count`,) of zeros, which are zeros again afterwards.
    """
    rows, heads, queries, size = query.shape
    assert queries <= QUERIES
    keys = key.shape[2]
    tiles = -(-keys // TILE)
    each = -(-tiles // min(PARTS, PROGRAMS // (rows * heads)))
    count, share = -(-tiles // each), each * TILE
    out = query.new_empty((rows, queries, heads, size))
    mixed = query.new_empty((rows * heads * count * queries, size), dtype=torch.float32)
    sums = query.new_empty((rows * heads * count * queries, 2), dtype=torch.float32)
    masked, mask_strides = 0, (0, 0)
    if attended is not None:
        attended = attended.contiguous()
        masked = 1 + (attended.shape[2] > 1)
        mask_strides = tuple(0 if attended.shape[n] == 1 else attended.stride(n) for n in (0, 2))
    _launch(
        "attend", (rows * heads, count, -(-queries // QUERY_TILE)),
        query, key, value, query if attended is None else attended, out, mixed, sums, counters,
        *query.stride()[:3], *key.stride()[:3], *value.stride()[:3], *mask_strides,
        queries, keys, share, size**-0.5 * LOG2_E,
        HEADS=heads, SHARING=heads // key.shape[1], PARTS=count, QUERIES=QUERY_TILE,
        TILE=TILE, SIZE=size, MASKED=masked, num_stages=3, like=query,
    )  # fmt: skip
    return out.transpose(1, 2)


@attend.register_fake
def _(
    query: Tensor, key: Tensor, value: Tensor, attended: Tensor | None, counters: Tensor
) -> Tensor:
    rows, heads, queries, size = query.shape
    return query.new_empty((rows, queries, heads, size)).transpose(1, 2)
