"""Triton kernels for a few rows; `wavefront.kernels.small_batch_ops` says when they are used.

Every weight is read once, so memory bandwidth sets the time. A weight's rows are the tall side of
a product (tensor cores need 64). A weight with too few rows to keep every processor busy is split
along its depth into parts. With CHAIN, a kernel starts while the previous one still runs, and its
first line waits for the previous results.
"""

# Triton is not installed everywhere, and its language is not Python.
# pyright: basic, reportMissingImports=false, reportInvalidTypeForm=false
# pyright: reportAttributeAccessIssue=false

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
def add_planes(x, TILE: tl.constexpr, ROWS: tl.constexpr):
    """Return (TILE, ROWS): the sum of the two halves of each row of x (TILE, 2 * ROWS)."""
    return tl.sum(tl.reshape(x, (TILE, 2, ROWS)), 1)


@triton.jit
def scaled_product(
    x, row_scale, codes, scale, out, rows, width, depth, share,
    INTEGER: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr, DEEP: tl.constexpr,
    CHAIN: tl.constexpr,
):  # fmt: skip
    """As `product`, for a weight and inputs in 8 bits, which tensor cores read as they are.

    `scale` (width,) multiplies the rows of the weight, and `row_scale` (rows,) those of x. If x is
    INTEGER, it is (2, rows, depth): the numbers, and 256 times what rounding them lost. The first
    axis of the grid goes over tiles of x, so that a weight is read from memory once.
    """
    begin(CHAIN)
    part = tl.program_id(2)
    at = tl.program_id(1) * TILE + tl.arange(0, TILE)
    kind: tl.constexpr = tl.int32 if INTEGER else tl.float32
    nothing: tl.constexpr = 0 if INTEGER else 0.0
    planes: tl.constexpr = 2 if INTEGER else 1
    both, deep = tl.arange(0, planes * ROWS), tl.arange(0, DEEP)
    row, plane = tl.program_id(0) * ROWS + both % ROWS, both // ROWS
    of_row = x + (plane * rows + row)[:, None].to(tl.int64) * depth
    total = tl.zeros((TILE, planes * ROWS), kind)
    for start in range(part * share, part * share + share, DEEP):
        of_codes = codes + at[:, None].to(tl.int64) * depth + (start + deep)[None, :]
        read = tl.load(of_row + (start + deep)[None, :], mask=row[:, None] < rows, other=nothing)
        total = tl.dot(tl.load(of_codes), tl.trans(read), total, out_dtype=kind)
    made = total.to(tl.float32)
    if INTEGER:
        made = add_planes(made * tl.where(plane > 0, 1 / 256, 1.0)[None, :], TILE, ROWS)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    made = made * tl.load(scale + at)[:, None]
    made = made * tl.load(row_scale + row, mask=row < rows, other=0.0)[None, :]
    here = out + (part * rows + row[:, None]).to(tl.int64) * width + at[None, :]
    tl.store(here, tl.trans(made).to(out.dtype.element_ty), mask=row[:, None] < rows)


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
def split_rows(
    x, out, scale, sums, rows, depth,
    LARGEST: tl.constexpr, GROUP: tl.constexpr, WIDE: tl.constexpr, CHAIN: tl.constexpr,
):  # fmt: skip
    """out (2, rows, depth) = x / scale and what rounding it lost, both in 8 bits.

    The scale of a row makes its largest number `LARGEST`. In int8, the second number is multiplied
    by 256. In fp8, `sums` are the sums of the numbers by GROUP.
    """
    begin(CHAIN)
    row, deep = tl.program_id(0).to(tl.int64), tl.arange(0, WIDE)
    kind: tl.constexpr = out.dtype.element_ty
    read = tl.load(x + row * depth + deep, mask=deep < depth, other=0.0).to(tl.float32)
    step = tl.div_rn(tl.maximum(tl.max(tl.abs(read), 0), 1e-12), LARGEST)
    scaled = tl.minimum(tl.maximum(tl.div_rn(read, step), -LARGEST), LARGEST)
    if kind == tl.int8:
        first = tl.floor(scaled + 0.5)
        rest = tl.minimum(tl.maximum(tl.floor((scaled - first) * 256 + 0.5), -127.0), 127.0)
    else:
        first = scaled.to(kind).to(tl.float32)
        rest = (scaled - first).to(kind).to(tl.float32)
        group = tl.arange(0, WIDE // GROUP)
        total = tl.sum(tl.reshape(first + rest, (WIDE // GROUP, GROUP)), 1)
        of_sums = sums + row * (depth // GROUP) + group
        tl.store(of_sums, total.to(tl.float16), mask=group < depth // GROUP)
    tl.store(scale + row, step)
    tl.store(out + row * depth + deep, first.to(kind), mask=deep < depth)
    tl.store(out + (row + rows) * depth + deep, rest.to(kind), mask=deep < depth)


@triton.jit
def codes_of(pairs, HIGH: tl.constexpr, PACKED: tl.constexpr):
    """Return the low or the high 4 bits of each byte in fp8: the bits of n are those of n / 512."""
    if PACKED:  # four bytes in one or two instructions
        if HIGH:
            code = tl.inline_asm_elementwise(
                "{ .reg .b32 t; shr.u32 t, $1, 4; and.b32 $0, t, 0x0f0f0f0f; }",
                "=r,r", [pairs], dtype=tl.uint8, is_pure=True, pack=4,
            )  # fmt: skip
        else:
            code = tl.inline_asm_elementwise(
                "and.b32 $0, $1, 0x0f0f0f0f;",
                "=r,r", [pairs], dtype=tl.uint8, is_pure=True, pack=4,
            )  # fmt: skip
    else:
        code = pairs >> 4 if HIGH else pairs & 15
    return code.to(tl.float8e4nv, bitcast=True)


@triton.jit
def int4_product(
    x, row_scale, sums, codes, scale, minimum, out, rows, width, depth, share,
    of_row, of_group,
    ROWS: tl.constexpr, TILE: tl.constexpr, GROUP: tl.constexpr, PACKED: tl.constexpr,
    CHAIN: tl.constexpr,
):  # fmt: skip
    """As `product`, for a weight in 4 bits and x as two numbers in fp8, from `split_rows`.

    A byte holds columns of two neighbouring groups. Each group has its own scale and minimum
    (strides: of_row, of_group), so it is summed by itself. The minimum is multiplied with the sum
    of the group's x afterwards.
    """
    begin(CHAIN)
    part = tl.program_id(1)
    at = tl.program_id(0) * TILE + tl.arange(0, TILE)
    both, deep = tl.arange(0, 2 * ROWS), tl.arange(0, GROUP)
    known = (both % ROWS < rows)[:, None]
    of_x = x + (both // ROWS * rows + both % ROWS)[:, None].to(tl.int64) * depth + deep[None, :]
    of_codes = codes + at[:, None].to(tl.int64) * (depth // 2) + deep[None, :]
    of_scale = scale + at.to(tl.int64) * of_row
    first, end = part * share // GROUP, (part * share + share) // GROUP
    total = tl.zeros((TILE, 2 * ROWS), tl.float32)
    step = tl.load(of_scale + first * of_group)
    next_step = tl.load(of_scale + (first + 1) * of_group)
    for group in range(first, end, 2):
        pairs = tl.load(of_codes + group * (GROUP // 2))
        # The scales of the next groups are loaded now, so that the sums need not wait for them.
        ahead = of_scale + tl.minimum(group + 2, end - 2) * of_group
        later, next_later = tl.load(ahead), tl.load(ahead + of_group)
        read = tl.trans(tl.load(of_x + group * GROUP, mask=known, other=0.0))
        next = tl.trans(tl.load(of_x + (group + 1) * GROUP, mask=known, other=0.0))
        total += step.to(tl.float32)[:, None] * tl.dot(codes_of(pairs, False, PACKED), read)
        total += next_step.to(tl.float32)[:, None] * tl.dot(codes_of(pairs, True, PACKED), next)
        step, next_step = later, next_later
    made = add_planes(total, TILE, ROWS) * 512
    row, some = tl.arange(0, ROWS), tl.arange(0, GROUP)
    there = row[:, None] < rows
    for start in range(first, end, GROUP):
        column = start + some
        where = at[:, None].to(tl.int64) * of_row + column[None, :] * of_group
        low = tl.load(minimum + where, mask=(column < end)[None, :], other=0.0)
        of_sums = sums + row[:, None] * (depth // GROUP) + column[None, :]
        sum = tl.load(of_sums, mask=there & (column < end)[None, :], other=0.0)
        made = tl.dot(low, tl.trans(sum), made)
    made = made * tl.load(row_scale + row, mask=row < rows, other=0.0)[None, :]
    here = out + (part * rows + row[:, None]).to(tl.int64) * width + at[None, :]
    tl.store(here, tl.trans(made).to(out.dtype.element_ty), mask=there)


@triton.jit
def dequantize_int4(
    codes, scale, minimum, out, depth, of_row, of_group,
    TILE: tl.constexpr, GROUP: tl.constexpr, CHAIN: tl.constexpr,
):  # fmt: skip
    """out (width, depth) = the weight whose codes, scales and minimums `int4_product` takes."""
    begin(CHAIN)
    at = (tl.program_id(1) * TILE + tl.arange(0, TILE)).to(tl.int64)
    start, deep = tl.program_id(0) * 2 * GROUP, tl.arange(0, GROUP)
    pairs = tl.load(codes + at[:, None] * (depth // 2) + (start // 2 + deep)[None, :])
    group = at * of_row + (start // GROUP) * of_group
    here = out + at[:, None] * depth + (start + deep)[None, :]
    for half in tl.static_range(2):
        step = tl.load(scale + group + half * of_group).to(tl.float32)[:, None]
        low = tl.load(minimum + group + half * of_group).to(tl.float32)[:, None]
        made = ((pairs >> (4 * half)) & 15).to(tl.float32) * step + low
        tl.store(here + half * GROUP, made.to(out.dtype.element_ty))


@triton.jit
def swiglu(gate, up, kind: tl.constexpr):
    """Return silu(gate) · up in `kind`, rounded as if gate and up were two products."""
    gate, up = gate.to(kind).to(tl.float32), up.to(kind).to(tl.float32)
    return (gate / (1 + tl.exp(-gate)) * up).to(kind)


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
    both = swiglu(gate, up, out.dtype.element_ty)
    here = out + row[:, None].to(tl.int64) * width + at[None, :]
    tl.store(here, tl.trans(both), mask=row[:, None] < rows)


@triton.jit
def route(
    logits, bias, weights, chosen, rows, count, scale,
    PARTS: tl.constexpr, GROUPED: tl.constexpr, NORMALIZED: tl.constexpr, EXPERTS: tl.constexpr,
    GROUPS: tl.constexpr, KEPT: tl.constexpr, TOP: tl.constexpr, CHAIN: tl.constexpr,
):  # fmt: skip
    """Choose `count` experts of a row; `wavefront.models.experts.Router` defines how.

    The logits are the sum of PARTS partial sums (PARTS, rows, EXPERTS).
    """
    begin(CHAIN)
    row, expert, slots = tl.program_id(0).to(tl.int64), tl.arange(0, EXPERTS), tl.arange(0, TOP)
    read = tl.load(logits + row * EXPERTS + expert)
    for part in tl.static_range(1, PARTS):
        read += tl.load(logits + (part * rows + row) * EXPERTS + expert)
    if GROUPED:
        scores = 1 / (1 + tl.exp(-read))
        groups = tl.reshape(scores + tl.load(bias + expert), (GROUPS, EXPERTS // GROUPS))
        within, group = tl.arange(0, EXPERTS // GROUPS), tl.arange(0, GROUPS)
        top = tl.argmax(groups, 1)
        others = tl.where(within[None, :] == top[:, None], float("-inf"), groups)
        best = tl.max(groups, 1) + tl.max(others, 1)
        kept = tl.zeros((GROUPS,), tl.int32)
        for _ in tl.static_range(KEPT):
            top = tl.argmax(best, 0)
            kept = tl.where(group == top, 1, kept)
            best = tl.where(group == top, float("-inf"), best)
        allowed = tl.reshape(tl.where(kept[:, None] > 0, groups, -1e30), (EXPERTS,))
    else:
        scores = tl.exp(read - tl.max(read, 0))
        scores = scores / tl.sum(scores, 0)
        allowed = scores
    index, share = tl.zeros((TOP,), tl.int32), tl.zeros((TOP,), tl.float32)
    for slot in range(count):
        top = tl.argmax(allowed, 0)
        index = tl.where(slots == slot, top, index)
        share = tl.where(slots == slot, tl.sum(tl.where(expert == top, scores, 0.0), 0), share)
        allowed = tl.where(expert == top, float("-inf"), allowed)
    if NORMALIZED:
        share = share / (tl.sum(share, 0) + 1e-20)
    tl.store(weights + row * count + slots, share * scale, mask=slots < count)
    tl.store(chosen + row * count + slots, index.to(tl.int64), mask=slots < count)


@triton.jit
def order_of_experts(
    chosen, rows, top, TOP: tl.constexpr, ROWS: tl.constexpr, EXPERTS: tl.constexpr
):  # fmt: skip
    """Return (EXPERTS,): 1, 2, ... for the experts that any row chose, and 0 for the others."""
    row, slot = tl.arange(0, ROWS), tl.arange(0, TOP)
    known = (row[:, None] < rows) & (slot[None, :] < top)
    picks = tl.load(chosen + row[:, None] * top + slot[None, :], mask=known, other=0)
    picks, known = tl.reshape(picks, (ROWS * TOP,)), tl.reshape(known, (ROWS * TOP,))
    used = (tl.histogram(picks.to(tl.int32), EXPERTS, mask=known) > 0).to(tl.int32)
    return tl.cumsum(used, 0) * used


@triton.jit
def expert_gated_product(
    x, chosen, weight, shared, out, rows, width, depth, top,
    SHARED: tl.constexpr, TOP: tl.constexpr, EXPERTS: tl.constexpr, ROWS: tl.constexpr,
    TILE: tl.constexpr, DEEP: tl.constexpr, CHAIN: tl.constexpr,
):  # fmt: skip
    """out (planes, rows, width) = `gated_product` of all rows with each expert that any row chose.

    With SHARED, the first plane is of one more expert, whose weight is `shared`. The programs share
    the tiles of all planes.
    """
    begin(CHAIN)
    order, index = order_of_experts(chosen, rows, top, TOP, ROWS, EXPERTS), tl.arange(0, EXPERTS)
    row, deep, tiles = tl.arange(0, ROWS), tl.arange(0, DEEP), width // TILE
    for tile in range(tl.program_id(0), (tl.max(order, 0) + SHARED) * tiles, tl.num_programs(0)):
        plane, at = tile // tiles, tile % tiles * TILE + tl.arange(0, TILE)
        expert = tl.sum(tl.where(order == plane + 1 - SHARED, index, 0), 0)
        base = weight + expert.to(tl.int64) * 2 * width * depth
        if SHARED:
            base = tl.where(plane == 0, shared, base)
        gate = tl.zeros((TILE, ROWS), tl.float32)
        up = tl.zeros((TILE, ROWS), tl.float32)
        for start in range(0, depth, DEEP):
            of_gate = base + at[:, None].to(tl.int64) * depth + (start + deep)[None, :]
            of_x = x + row[:, None] * depth + (start + deep)[None, :]
            read = tl.trans(tl.load(of_x, mask=row[:, None] < rows, other=0.0))
            gate = tl.dot(tl.load(of_gate), read, gate)
            up = tl.dot(tl.load(of_gate + width.to(tl.int64) * depth), read, up)
        both = swiglu(gate, up, out.dtype.element_ty)
        of_out = out + (plane * rows + row)[:, None].to(tl.int64) * width + at[None, :]
        tl.store(of_out, tl.trans(both), mask=row[:, None] < rows)


@triton.jit
def expert_product(
    x, chosen, shares, weight, shared, out, rows, width, depth, top,
    SHARED: tl.constexpr, TOP: tl.constexpr, EXPERTS: tl.constexpr, ROWS: tl.constexpr,
    TILE: tl.constexpr, DEEP: tl.constexpr, CHAIN: tl.constexpr,
):  # fmt: skip
    """out (top + SHARED, rows, width) = x (planes, rows, depth) · the expert of each plane.

    A row's results are those of its choices in order, each multiplied by one of its `shares` (rows,
    top), and of the shared expert. The planes are those of `expert_gated_product`.
    """
    begin(CHAIN)
    order, index = order_of_experts(chosen, rows, top, TOP, ROWS, EXPERTS), tl.arange(0, EXPERTS)
    row, deep, tiles = tl.arange(0, ROWS), tl.arange(0, DEEP), width // TILE
    slot = tl.arange(0, TOP)
    known = (row[:, None] < rows) & (slot[None, :] < top)
    choices = tl.load(chosen + row[:, None] * top + slot[None, :], mask=known, other=-1)
    for tile in range(tl.program_id(0), (tl.max(order, 0) + SHARED) * tiles, tl.num_programs(0)):
        plane, at = tile // tiles, tile % tiles * TILE + tl.arange(0, TILE)
        expert = tl.sum(tl.where(order == plane + 1 - SHARED, index, 0), 0)
        base = weight + expert.to(tl.int64) * width * depth
        if SHARED:
            base = tl.where(plane == 0, shared, base)
        total = tl.zeros((TILE, ROWS), tl.float32)
        for start in range(0, depth, DEEP):
            of_weight = base + at[:, None].to(tl.int64) * depth + (start + deep)[None, :]
            of_x = x + (plane * rows + row)[:, None].to(tl.int64) * depth + (start + deep)[None, :]
            read = tl.load(of_x, mask=row[:, None] < rows, other=0.0)
            total = tl.dot(tl.load(of_weight), tl.trans(read), total)
        mine = choices == expert
        here, part = tl.max(mine.to(tl.int32), 1) > 0, tl.max(tl.where(mine, slot[None, :], 0), 1)
        if SHARED:
            here, part = here | (plane == 0), tl.where(plane == 0, top, part)
        here = here & (row < rows)
        share = tl.load(shares + row * top + part, mask=here & (part < top), other=1.0)
        of_out = out + (part * rows + row)[:, None].to(tl.int64) * width + at[None, :]
        made = (total * share[None, :]).to(out.dtype.element_ty)
        tl.store(of_out, tl.trans(made), mask=here[:, None])


@triton.jit
def attend(
    query, key, value, attended, out, mixed, sums, counters,
    q_row, q_head, q_position, k_row, k_head, k_position, v_row, v_head, v_position,
    mask_row, mask_position, queries, keys, share, scale,
    HEADS: tl.constexpr, SHARING: tl.constexpr, PARTS: tl.constexpr, QUERIES: tl.constexpr,
    TILE: tl.constexpr, SIZE: tl.constexpr, MASKED: tl.constexpr, CHAIN: tl.constexpr,
):  # fmt: skip
    """out (B, Q, H, d): every query over the attended keys; each program reads `share` keys.

    The third axis of the grid goes over tiles of queries. SHARING query heads read one key head.
    With MASKED, `attended` is 1 for the attended keys, for all queries (MASKED = 1) or for each
    query (MASKED = 2).

    The last program of a head and tile to finish combines their parts in order. `counters` counts
    the finished programs and is reset to zero.
    """
    begin(CHAIN)
    head, part = tl.program_id(0), tl.program_id(1)
    b, h = (head // HEADS).to(tl.int64), (head % HEADS).to(tl.int64)
    shared = h // SHARING
    q = tl.program_id(2) * QUERIES + tl.arange(0, QUERIES)
    d, n = tl.arange(0, SIZE), tl.arange(0, TILE)
    counter = counters + head * tl.num_programs(2) + tl.program_id(2)
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
        of_key = key + b * k_row + shared * k_head + at[:, None] * k_position + d[None, :]
        of_value = value + b * v_row + shared * v_head + at[:, None] * v_position + d[None, :]
        score = tl.dot(loaded, tl.trans(tl.load(of_key, mask=there[:, None], other=0.0))) * scale
        seen = there[None, :]
        if MASKED == 1:
            seen = seen & (tl.load(attended + b * mask_row + at, mask=there, other=0) != 0)[None, :]
        if MASKED == 2:
            of_mask = attended + b * mask_row + q[:, None] * mask_position + at[None, :]
            seen = seen & (tl.load(of_mask, mask=valid & seen, other=0) != 0)
        score = tl.where(seen, score, float("-inf"))
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
    if tl.atomic_add(counter, 1, sem="acq_rel") == PARTS - 1:
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
        tl.store(counter, 0)
