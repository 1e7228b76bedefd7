"""Triton kernels for a few rows; `wavefront.kernels.small_batch_ops` says when they are used.

Every weight is read once, so memory bandwidth sets the time. A weight's rows are the tall side of
a product (tensor cores need 64). A weight with too few rows to keep every processor busy is split
along its depth into parts. With CHAIN, a kernel starts while the previous one still runs, and its
first line waits for the previous results.
"""

# Triton is installed only on machines with a GPU, and its language is not Python.
# pyright: basic, reportMissingImports=false, reportInvalidTypeForm=false

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def begin(CHAIN: tl.constexpr):
    """Allow the next kernel to start, and wait for the results of the previous one."""
    if CHAIN:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()


@triton.jit
def product(
    x, weight, out, rows, width, depth, share,
    ROWS: tl.constexpr, TILE: tl.constexpr, DEEP: tl.constexpr, CHAIN: tl.constexpr,
):  # fmt: skip
    """out (parts, rows, width) = x (rows, depth) · weight (width, depth)ᵀ.

    Each part sums over `share` columns of the depth.
    """
    begin(CHAIN)
    part = tl.program_id(1)
    at = tl.program_id(0) * TILE + tl.arange(0, TILE)
    row, deep = tl.arange(0, ROWS), tl.arange(0, DEEP)
    total = tl.zeros((TILE, ROWS), tl.float32)
    for start in range(part * share, part * share + share, DEEP):
        of_weight = weight + at[:, None].to(tl.int64) * depth + (start + deep)[None, :]
        of_x = x + row[:, None] * depth + (start + deep)[None, :]
        read = tl.load(of_x, mask=row[:, None] < rows, other=0.0)
        total = tl.dot(tl.load(of_weight), tl.trans(read), total)
    here = out + (part * rows + row[:, None]).to(tl.int64) * width + at[None, :]
    tl.store(here, tl.trans(total).to(out.dtype.element_ty), mask=row[:, None] < rows)


@triton.jit
def scaled_product(
    x, row_scale, codes, scale, out, rows, width, depth, share,
    ROUNDED: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr, DEEP: tl.constexpr,
    CHAIN: tl.constexpr,
):  # fmt: skip
    """As `product`, for a weight in 8 bits: each row of the sum is multiplied by its scale.

    If x is ROUNDED, it is in 8 bits too, and row_scale (rows,) multiplies its rows.
    """
    begin(CHAIN)
    part = tl.program_id(1)
    at = tl.program_id(0) * TILE + tl.arange(0, TILE)
    row, deep = tl.arange(0, ROWS), tl.arange(0, DEEP)
    total = tl.zeros((TILE, ROWS), tl.float32)
    for start in range(part * share, part * share + share, DEEP):
        of_codes = codes + at[:, None].to(tl.int64) * depth + (start + deep)[None, :]
        of_x = x + row[:, None] * depth + (start + deep)[None, :]
        read = tl.load(of_x, mask=row[:, None] < rows, other=0.0)
        total = tl.dot(tl.load(of_codes).to(read.dtype), tl.trans(read), total)
    total = total * tl.load(scale + at)[:, None]
    if ROUNDED:
        total = total * tl.load(row_scale + row, mask=row < rows, other=0.0)[None, :]
    here = out + (part * rows + row[:, None]).to(tl.int64) * width + at[None, :]
    tl.store(here, tl.trans(total).to(out.dtype.element_ty), mask=row[:, None] < rows)


@triton.jit
def round_rows(x, out, scale, depth, LARGEST: tl.constexpr, WIDE: tl.constexpr,
               CHAIN: tl.constexpr):  # fmt: skip
    """out = x / scale in fp8, where the scale of a row makes its largest number `LARGEST`."""
    begin(CHAIN)
    row, deep = tl.program_id(0).to(tl.int64), tl.arange(0, WIDE)
    read = tl.load(x + row * depth + deep, mask=deep < depth, other=0.0).to(tl.float32)
    step = tl.div_rn(tl.maximum(tl.max(tl.abs(read), 0), 1e-12), LARGEST)
    made = tl.minimum(tl.maximum(tl.div_rn(read, step), -LARGEST), LARGEST)
    tl.store(scale + row, step)
    tl.store(out + row * depth + deep, made.to(out.dtype.element_ty), mask=deep < depth)


@triton.jit
def int4_product(
    x, codes, scale, minimum, out, rows, width, depth, share,
    ROWS: tl.constexpr, TILE: tl.constexpr, GROUP: tl.constexpr, CHAIN: tl.constexpr,
):  # fmt: skip
    """As `product`, for a weight in 4 bits; a byte holds columns of two neighbouring groups.

    The product of a group uses the codes, and the scale and minimum are applied to its sum. A code
    becomes a bfloat16 by setting the bits of 128 around it, without a conversion; the 128 is
    subtracted with the minimum.
    """
    begin(CHAIN)
    part = tl.program_id(1)
    at = tl.program_id(0) * TILE + tl.arange(0, TILE)
    row, deep = tl.arange(0, ROWS), tl.arange(0, GROUP)
    total = tl.zeros((TILE, ROWS), tl.float32)
    for start in range(part * share, part * share + share, 2 * GROUP):
        of_codes = codes + at[:, None].to(tl.int64) * (depth // 2) + (start // 2 + deep)[None, :]
        pair = tl.load(of_codes)
        group = at.to(tl.int64) * (depth // GROUP) + start // GROUP
        of_x = x + row[:, None] * depth + (start + deep)[None, :]
        read = tl.load(of_x, mask=row[:, None] < rows, other=0.0)
        step = tl.load(scale + group).to(tl.float32)
        low = tl.load(minimum + group).to(tl.float32) - 128 * step
        code = ((pair & 15).to(tl.int16) | 0x4300).to(tl.bfloat16, bitcast=True)
        made = tl.dot(code.to(read.dtype), tl.trans(read))
        total += step[:, None] * made + low[:, None] * tl.sum(read.to(tl.float32), 1)[None, :]
        read = tl.load(of_x + GROUP, mask=row[:, None] < rows, other=0.0)
        step = tl.load(scale + group + 1).to(tl.float32)
        low = tl.load(minimum + group + 1).to(tl.float32) - 128 * step
        code = ((pair >> 4).to(tl.int16) | 0x4300).to(tl.bfloat16, bitcast=True)
        made = tl.dot(code.to(read.dtype), tl.trans(read))
        total += step[:, None] * made + low[:, None] * tl.sum(read.to(tl.float32), 1)[None, :]
    here = out + (part * rows + row[:, None]).to(tl.int64) * width + at[None, :]
    tl.store(here, tl.trans(total).to(out.dtype.element_ty), mask=row[:, None] < rows)


@triton.jit
def gated_product(
    x, weight, out, rows, width, depth,
    ROWS: tl.constexpr, TILE: tl.constexpr, DEEP: tl.constexpr, CHAIN: tl.constexpr,
):  # fmt: skip
    """out (rows, width) = silu(x · gateᵀ) · (x · upᵀ); gate and up are one weight, gate first."""
    begin(CHAIN)
    at = tl.program_id(0) * TILE + tl.arange(0, TILE)
    row, deep = tl.arange(0, ROWS), tl.arange(0, DEEP)
    gate = tl.zeros((TILE, ROWS), tl.float32)
    up = tl.zeros((TILE, ROWS), tl.float32)
    for start in range(0, depth, DEEP):
        of_gate = weight + at[:, None].to(tl.int64) * depth + (start + deep)[None, :]
        of_x = x + row[:, None] * depth + (start + deep)[None, :]
        read = tl.trans(tl.load(of_x, mask=row[:, None] < rows, other=0.0))
        gate = tl.dot(tl.load(of_gate), read, gate)
        up = tl.dot(tl.load(of_gate + width.to(tl.int64) * depth), read, up)
    kind = out.dtype.element_ty
    gate, up = (
        gate.to(kind).to(tl.float32),
        up.to(kind).to(tl.float32),
    )  # round as two products would
    both = gate / (1 + tl.exp(-gate)) * up
    here = out + row[:, None].to(tl.int64) * width + at[None, :]
    tl.store(here, tl.trans(both).to(kind), mask=row[:, None] < rows)


@triton.jit
def attend(
    query, key, value, attended, out, mixed, sums, counters,
    q_row, q_head, q_position, k_row, k_head, k_position, v_row, v_head, v_position, mask_row,
    queries, keys, share, scale,
    HEADS: tl.constexpr, PARTS: tl.constexpr, QUERIES: tl.constexpr, TILE: tl.constexpr,
    SIZE: tl.constexpr, MASKED: tl.constexpr, CHAIN: tl.constexpr,
):  # fmt: skip
    """out (B, Q, H, d): every query over the attended keys; each program reads `share` keys.

    The last program of a head to finish combines the head's parts. `counters` counts the finished
    programs and is reset to zero.
    """
    begin(CHAIN)
    head, part = tl.program_id(0), tl.program_id(1)
    b, h = (head // HEADS).to(tl.int64), (head % HEADS).to(tl.int64)
    q, d, n = tl.arange(0, QUERIES), tl.arange(0, SIZE), tl.arange(0, TILE)
    valid = q[:, None] < queries
    of_query = query + b * q_row + h * q_head + q[:, None] * q_position + d[None, :]
    loaded = tl.load(of_query, mask=valid, other=0.0)
    top = tl.full((QUERIES,), float("-inf"), tl.float32)
    weight = tl.zeros((QUERIES,), tl.float32)
    total = tl.zeros((QUERIES, SIZE), tl.float32)
    end = tl.minimum(part * share + share, keys)
    for start in range(part * share, end, TILE):
        at = start + n
        there = at < end
        of_key = key + b * k_row + h * k_head + at[:, None] * k_position + d[None, :]
        of_value = value + b * v_row + h * v_head + at[:, None] * v_position + d[None, :]
        score = tl.dot(loaded, tl.trans(tl.load(of_key, mask=there[:, None], other=0.0))) * scale
        if MASKED:
            there = there & (tl.load(attended + b * mask_row + at, mask=there, other=0) != 0)
        score = tl.where(there[None, :], score, float("-inf"))
        higher = tl.maximum(top, tl.max(score, 1))
        base = tl.where(higher == float("-inf"), 0.0, higher)  # no attended key yet: avoid NaN
        chance, fade = tl.exp2(score - base[:, None]), tl.exp2(top - base)
        read = tl.load(of_value, mask=(at < end)[:, None], other=0.0)
        weight = weight * fade + tl.sum(chance, 1)
        total = total * fade[:, None] + tl.dot(chance.to(read.dtype), read)
        top = higher
    mine = (head * PARTS + part) * queries + q
    tl.store(mixed + mine[:, None] * SIZE + d[None, :], total, mask=valid)
    tl.store(sums + 2 * mine, top, mask=q < queries)
    tl.store(sums + 2 * mine + 1, weight, mask=q < queries)
    tl.debug_barrier()  # everything is written before this program is counted
    if tl.atomic_add(counters + head, 1, sem="acq_rel") == PARTS - 1:
        best = tl.full((QUERIES,), float("-inf"), tl.float32)
        for other in tl.static_range(PARTS):
            at = (head * PARTS + other) * queries + q
            best = tl.maximum(best, tl.load(sums + 2 * at, mask=q < queries, cache_modifier=".cg"))
        weight = tl.zeros((QUERIES,), tl.float32)
        total = tl.zeros((QUERIES, SIZE), tl.float32)
        for other in tl.static_range(PARTS):
            at = (head * PARTS + other) * queries + q
            fade = tl.exp2(tl.load(sums + 2 * at, mask=q < queries, cache_modifier=".cg") - best)
            weight += fade * tl.load(sums + 2 * at + 1, mask=q < queries, cache_modifier=".cg")
            of_part = mixed + at[:, None] * SIZE + d[None, :]
            total += fade[:, None] * tl.load(of_part, mask=valid, cache_modifier=".cg")
        here = out + ((b * queries + q[:, None]) * HEADS + h) * SIZE + d[None, :]
        tl.store(here, (total / weight[:, None]).to(out.dtype.element_ty), mask=valid)
        tl.store(counters + head, 0)
