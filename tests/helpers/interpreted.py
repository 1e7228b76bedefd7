"""Check the kernels in Triton's interpreter on the CPU; test_small_batch_ops.py runs this file.

It needs its own process: Triton chooses the interpreter at import, and GPU tests must not use it.
Every check compares with a definition in torch, which knows no tiles, parts or masks.
"""

# Triton is not installed everywhere, and its language is not Python.
# pyright: basic, reportMissingImports=false, reportInvalidTypeForm=false, reportIndexIssue=false

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast
from unittest.mock import patch

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from interpreter import install, run_backwards, watch
from torch import Tensor, nn
from triton.runtime.errors import InterpreterError

from wavefront.kernels import small_batch_ops
from wavefront.kernels.fp8_product import E4M3, E4M3_LARGEST, quantize_rows
from wavefront.models import quantize
from wavefront.models.architecture import ExpertLayout
from wavefront.models.experts import Router
from wavefront.models.layer import MixtureOfExperts
from wavefront.models.quantize import QuantizedLinear, QuantizedWeight, quantize_model
from wavefront.models.toy import toy

FLOAT, HALF = torch.float32, torch.bfloat16
ROUNDED = 2**-8  # the largest relative error of one rounding to bfloat16
WIDE = small_batch_ops.PROGRAMS * small_batch_ops.TILE  # rows of a weight that is not cut


def close(found: Tensor, wanted: Tensor, within: float = 2e-6) -> None:
    """Check that the errors are small, relative to the largest number."""
    assert found.shape == wanted.shape, (found.shape, wanted.shape)
    error = (found.double() - wanted.double()).abs().max() / wanted.double().abs().max()
    assert error < within, error.item()  # NaN is close to nothing


@triton.jit
def copy_rows(x, out, SHIFT: tl.constexpr, STEP: tl.constexpr, WIDTH: tl.constexpr):
    row, at = tl.program_id(0) * STEP, tl.arange(0, 8)
    tl.store(out + row + at % WIDTH, tl.load(x + row + at + SHIFT))


def mistake(x: Tensor, out: Tensor, **fixed: Any) -> str:
    """Return the message of `copy_rows` in four programs; empty if nothing is wrong."""
    try:
        with watch([x, out], (4,)):
            copy_rows[(4,)](x, out, **fixed)
    except InterpreterError as error:
        return str(error)
    return ""


def mistakes() -> None:
    """A kernel that leaves its tensors fails, and so do programs that depend on each other."""
    x, out, both = torch.arange(32.0), torch.empty(32), torch.arange(40.0)
    assert mistake(x, out, SHIFT=0, STEP=8, WIDTH=8) == ""
    assert torch.equal(out, x)
    outside = "outside of all tensors"
    assert outside in mistake(x, out, SHIFT=1, STEP=8, WIDTH=8)
    assert outside in mistake(x, out, SHIFT=-1, STEP=8, WIDTH=8)
    assert "two programs write" in mistake(x, out, SHIFT=0, STEP=4, WIDTH=8)
    assert "written twice at once" in mistake(x, out, SHIFT=0, STEP=8, WIDTH=4)
    assert "reads what" in mistake(both[:32], both[8:], SHIFT=0, STEP=8, WIDTH=8)
    assert "writes what" in mistake(both[8:], both[:32], SHIFT=0, STEP=8, WIDTH=8)
    assert torch.empty(3).isnan().all()  # what no program writes is NaN


def products() -> None:
    for dtype in (FLOAT, HALF):
        for rows in ((1, 1), (2, 8), (1, 17), (4, 16)):
            x, weight = torch.randn(*rows, 512).to(dtype), torch.randn(128, 512).to(dtype)
            assert small_batch_ops.fits(x, weight)
            made, wanted = small_batch_ops.product(x, weight), x.double() @ weight.double().T
            assert (len(made), made.dtype) == (4, FLOAT)
            close(made.sum(0), wanted)
            gate, up = wanted.chunk(2, dim=-1)
            made = small_batch_ops.gated_product(x, weight)
            assert made.dtype == dtype
            close(made, F.silu(gate) * up, 2e-6 if dtype == FLOAT else 3 * ROUNDED)
        x, weight = torch.randn(1, 3, 128).to(dtype), torch.randn(WIDE, 128).to(dtype)
        made = small_batch_ops.product(x, weight)
        assert (len(made), made.dtype) == (1, dtype)
        close(made[0], x.double() @ weight.double().T, 2e-6 if dtype == FLOAT else ROUNDED)
    assert not small_batch_ops.fits(torch.randn(1, 65, 512), torch.randn(128, 512))


@contextmanager
def definitions() -> Iterator[None]:
    """Use torch where a function chooses between torch and a kernel."""
    small_batch_ops.DEVICE = "none"
    yield
    small_batch_ops.DEVICE = "cpu"


def rounded_product(x: Tensor, weight: QuantizedWeight, **_: Any) -> Tensor:
    """Return (1, B, S, N): the product of `split_rows` of x and the weight, without a kernel."""
    rows, minimum = x.flatten(0, 1), weight.minimum
    if minimum is not None and len(rows) > small_batch_ops.ROWS:  # then x is not rounded
        made = rows.double() @ weight.dequantize(torch.float64).T
        return made.to(x.dtype).unflatten(0, x.shape[:2])[None]
    with definitions():
        dtype = torch.int8 if minimum is None else E4M3
        pieces, scale, sums = small_batch_ops.split_rows(rows, dtype)
    first, rest = pieces.double()
    if minimum is None:
        made = (first + rest / 256) @ weight.dequantize(torch.float64).T
    else:
        steps = weight._replace(minimum=torch.zeros_like(minimum)).dequantize(torch.float64)
        made = (first + rest) @ steps.T + sums.double() @ minimum.double().T
    return (made * scale[:, None]).to(x.dtype).unflatten(0, x.shape[:2])[None]


def quantized_products() -> None:
    """Compare products in 8 and 4 bits with the same numbers' and with those of x unrounded."""
    for kind, within in (("int8", 5e-5), ("int4", 2e-3)):
        for rows, width, depth in (
            ((1, 1), 128, 512),
            ((2, 16), 256, 512),
            ((4, 16), 128, 256),
            ((1, 17), WIDE, 256),
            ((3, 40), 128, 256),  # more rows than a tile
        ):
            x, linear = torch.randn(*rows, depth), nn.Linear(depth, width, bias=width == 256)
            made = QuantizedLinear(kind, linear)
            made.weight.copy_(linear.weight.detach())
            made._kernels, made._fp8_scales = True, "rows"  # as on a GPU
            parts = made.parts(x)
            few = x.shape[0] * x.shape[1] <= small_batch_ops.ROWS
            cut = few and linear.bias is None  # a bias adds the parts up
            assert len(parts) == (depth // 128 if cut else 1)
            bias = 0 if linear.bias is None else linear.bias
            close(made(x), rounded_product(x, made.weight)[0] + bias)
            plain = F.linear(x, made.weight.dequantize(FLOAT), linear.bias)
            close(made(x), plain, within)
            if kind == "int4":
                codes = made.codes, made.scale, made.minimum
                found = small_batch_ops.dequantize_int4(*codes, FLOAT)
                assert torch.equal(found, made.weight.dequantize(FLOAT))


def rounding() -> None:
    """Compare rounded rows with their definition, bit by bit."""
    x = torch.randn(7, 192) * torch.logspace(-9, 4, 7)[:, None]
    x[3] = 0
    largest = x.abs().amax(1, keepdim=True).clamp_min(1e-12)
    for dtype, times, within in ((torch.int8, 256, 3.2e-5), (E4M3, 1, 1.2e-3)):
        made = small_batch_ops.split_rows(x, dtype)
        with definitions():
            wanted = small_batch_ops.split_rows(x, dtype)
        for one, other in zip(made, wanted, strict=True):
            assert (one.shape, one.dtype) == (other.shape, other.dtype)
            assert torch.equal(one.float(), other.float())
        first, rest = made[0].float()
        close((first + rest / times) * made[1][:, None] / largest, x / largest, within)
    for one, other in zip(
        small_batch_ops.round_rows(x, E4M3_LARGEST), quantize_rows(x), strict=True
    ):
        assert torch.equal(one.float(), other.float())


def fp8_products() -> None:
    """Compare the product of rounded rows with that of the same numbers."""
    for rows, width, depth in (
        ((1, 1), 128, 512),
        ((2, 16), 256, 128),
        ((4, 16), 128, 256),
        ((1, 3), WIDE, 256),
    ):
        x, weight = torch.randn(*rows, depth), QuantizedWeight.of(torch.randn(width, depth), "fp8")
        made, scale = small_batch_ops.round_rows(x.flatten(0, 1), E4M3_LARGEST)
        parts = small_batch_ops.fp8_product(
            made.view(x.shape), scale.flatten(), weight.codes.view(E4M3), weight.scale
        )
        assert parts.dtype == (HALF if len(parts) == 1 else FLOAT)
        plain = (made.double() * scale) @ weight.dequantize(torch.float64).T
        within = ROUNDED if len(parts) == 1 else 2e-6
        close(parts.sum(0).flatten(0, 1), plain, within)


def one_expert(x: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    gate, up = (gate_up.double() @ x.double()).chunk(2)
    return down.double() @ (F.silu(gate) * up)


def experts() -> None:
    """Compare with every choice by itself; experts have no row, one, some or all of them."""
    for dtype, rows, count, top, shared in (
        (FLOAT, 1, 8, 1, False),
        (FLOAT, 1, 8, 1, True),
        (FLOAT, 9, 8, 3, False),
        (FLOAT, 16, 5, 5, True),  # every row chooses every expert
        (FLOAT, 17, 8, 2, True),
        (FLOAT, 64, 8, 3, True),
        (FLOAT, 3, 32, 8, True),
        (HALF, 33, 4, 2, True),
    ):
        x = torch.randn(rows, 256).to(dtype)
        gate_up, down, shared_gate_up, shared_down = (
            (torch.randn(*sides) * 0.1).to(dtype)
            for sides in ((count, 256, 256), (count, 256, 128), (256, 256), (256, 128))
        )
        own = (shared_gate_up, shared_down) if shared else ()
        weights = torch.rand(rows, top)
        spread = torch.stack([torch.randperm(count)[:top] for _ in range(rows)])
        same = torch.arange(count - top, count).expand(rows, top)  # in a tensor that is not whole
        for chosen in (spread, same):
            wanted = torch.empty((top + shared, rows, 256), dtype=torch.float64)
            for row in range(rows):
                for slot, expert in enumerate(chosen[row].tolist()):
                    result = one_expert(x[row], gate_up[expert], down[expert])
                    wanted[slot, row] = result * weights[row, slot]
                if shared:
                    wanted[top, row] = one_expert(x[row], *own)
            assert small_batch_ops.experts_fit(x, gate_up, down) == (dtype in small_batch_ops.HALF)
            few = [3] if chosen is spread else []  # each of 3 programs has several tiles
            for programs in (*few, small_batch_ops.EXPERT_PROGRAMS):
                with patch.object(small_batch_ops, "EXPERT_PROGRAMS", programs):
                    made = small_batch_ops.experts(x, chosen, weights, gate_up, down, *own)
                assert made.dtype == dtype
                close(made, wanted, 2e-6 if dtype == FLOAT else 3 * ROUNDED)
    assert not small_batch_ops.experts_fit(torch.randn(65, 256), gate_up, down)


def mixtures() -> None:
    """Compare mixtures with and without the kernels: the router, its experts and the shared MLP."""
    for rows, shared in (((1, 5), 0), ((2, 8), 128), ((1, 5), 256), ((13, 5), 128)):
        layout = ExpertLayout(
            count=8,
            per_token=2,
            width=128,
            router="grouped_sigmoid",
            groups=2,
            kept_groups=2,
            scale=2.5,
            shared_width=shared,
        )
        mixture = MixtureOfExperts(256, layout)
        for part in mixture.parameters():
            nn.init.normal_(part, std=0.05)
        x = torch.randn(*rows, 256)
        made, plain = mixture(x, True), mixture(x, False)
        # A larger shared MLP is not in the kernel, and the kernel does not take so many rows.
        assert len(made) == (1 if shared == 256 or len(x) == 13 else 2 + (shared > 0))
        close(made.sum(0), plain.sum(0), 5e-6)


def routers() -> None:
    """Compare the choices of every kind of router, whose product the kernels compute or not."""
    for rows, top, count, width, kind, groups, kept in (
        (1, 5, 32, 64, "softmax", 1, 1),
        (40, 5, 32, 64, "normalized_softmax", 1, 1),
        (40, 1, 32, 64, "grouped_sigmoid", 4, 2),
        (64, 8, 256, 64, "grouped_sigmoid", 8, 4),
        (3, 4, 8, 64, "grouped_sigmoid", 4, 2),  # groups of two; all of the kept ones are chosen
        (17, 1, 128, 512, "normalized_softmax", 1, 1),
        (40, 5, 128, 512, "grouped_sigmoid", 4, 2),
    ):
        layout = ExpertLayout(
            count=count,
            per_token=top,
            width=64,
            router=cast(Any, kind),
            groups=groups,
            kept_groups=kept,
            scale=2.5,
        )
        router = Router(width, layout)
        nn.init.normal_(router.weight, std=0.3 if width == 64 else 0.1)
        if router.expert_bias is not None:
            router.expert_bias.normal_(std=0.1)
        x = torch.randn(rows, width)
        assert small_batch_ops.router_product_fits(x[None], router.weight) == (count == 128)
        assert small_batch_ops.route_fits(torch.empty(1, rows, count), groups)
        (weights, chosen), (wanted, expected) = router(x, True), router(x)
        assert torch.equal(chosen, expected)
        close(weights, wanted, 5e-6)


def attention() -> None:
    """Compare with torch; parts and tiles have some, all or no attended keys."""
    for dtype, rows, heads, key_heads, queries, keys, size in (
        (FLOAT, 1, 2, 1, 1, 5, 64),  # one query, and fewer keys than a tile
        (FLOAT, 2, 2, 2, 7, 65, 64),
        (FLOAT, 1, 4, 2, 16, 128, 128),  # whole tiles
        (FLOAT, 1, 2, 2, 17, 600, 64),  # more tiles than parts, and two tiles of queries
        (FLOAT, 1, 4, 2, 32, 1, 64),
        (FLOAT, 2, 4, 1, 33, 130, 128),
        (FLOAT, 2, 32, 8, 64, 70, 64),  # enough programs for one tile of queries
        (HALF, 2, 4, 2, 20, 100, 64),
    ):
        query = torch.randn(rows, queries, heads, size).to(dtype).transpose(1, 2)
        key = torch.randn(rows, key_heads, keys, size).to(dtype)
        value = torch.randn(rows, keys, key_heads, size).to(dtype).transpose(1, 2)
        for_all = torch.rand(rows, 1, 1, keys) < 0.3
        for_all[..., 64:] = False  # some parts have no attended key
        by_query = torch.rand(1, 1, queries, keys) < 0.3
        by_row = torch.rand(rows, 1, queries, keys) < 0.3
        by_row[:, :, ::2, : keys // 2] = False
        masks = [for_all, by_query, by_row]
        for mask in masks:
            mask[..., -1 if mask is by_row else 0] = True
        counters = torch.zeros(small_batch_ops.counter_count(rows, heads), dtype=torch.int32)
        assert small_batch_ops.attention_fits(query)
        for mask in (None, *masks) if heads < 32 else (by_row,):
            made = small_batch_ops.attend(query, key, value, mask, counters)
            plain = F.scaled_dot_product_attention(
                query.double(), key.double(), value.double(), attn_mask=mask, enable_gqa=True
            )
            assert made.dtype == dtype
            close(made, plain, 2e-6 if dtype == FLOAT else 2 * ROUNDED)
            assert not counters.any()
        with run_backwards():  # another program is the last one, which combines the parts
            again = small_batch_ops.attend(query, key, value, by_row, counters)
        assert torch.equal(again, made)
        assert not counters.any()
    assert not small_batch_ops.attention_fits(torch.randn(1, 2, 65, 64))


def models(kind: str | None) -> None:
    """Compare a window of positions on stored keys and values with and without these kernels.

    Quantised models are also compared with the definition of their rounded products.
    """
    kernels = quantize._int8_product, quantize._int4_product
    definition = rounded_product, rounded_product
    for family in ("llada", "dream"):
        model = toy(family=family, width=256)
        if kind is not None:
            quantize_model(model, kind)
        quantized = [part for part in model.modules() if isinstance(part, QuantizedLinear)]
        tokens, window = torch.randint(0, 60, (1, 100)), torch.arange(60, 92)[None]
        found: list[list[Tensor]] = []
        for use, rounds, made_by in (
            (False, False, definition),
            (False, True, definition),
            (True, True, kernels),
        ):
            for block in model.layers:
                block.use_small_batch_ops = use
            for linear in quantized:
                linear._kernels, linear._fp8_scales = rounds, "rows"
            quantize._int8_product, quantize._int4_product = made_by
            kv = model.new_kv(1, 100)
            model.encode(tokens, kv=kv)
            made = model.encode(tokens.flip(1), None, window[:, :9], window=window, kv=kv)
            found.append([made, *kv.keys, *kv.values])
        for plain, rounded, other in zip(*found, strict=True):
            # A difference in the last bit of x may round to another number in 8 bits.
            for wanted, within in (
                (rounded, {None: 5e-6, "int8": 3e-4, "int4": 4e-3}[kind]),
                (plain, {None: 5e-6, "int8": 1e-3, "int4": 2e-2}[kind]),
            ):
                error = (other - wanted).norm() / wanted.norm()
                assert error < within, (kind, error.item(), within)
        with torch.enable_grad():  # the kernels have no gradient, so the libraries do it
            model(tokens[:, :9]).sum().backward()


def plain_models() -> None:
    models(None)


def int8_models() -> None:
    models("int8")


def int4_models() -> None:
    models("int4")


if __name__ == "__main__":
    install()
    launch = small_batch_ops._launch

    def watched_launch(kernel: str, grid: tuple[int, ...], *given: Any, **fixed: Any) -> None:
        with watch([part for part in given if isinstance(part, Tensor)], grid):
            launch(kernel, grid, *given, **fixed)

    small_batch_ops._launch = watched_launch
    small_batch_ops.HALF, small_batch_ops.DEVICE = (FLOAT, HALF), "cpu"
    small_batch_ops._stages = lambda x, wanted, tile: 4  # there is no GPU to ask
    wanted = sys.argv[1:]  # the names of some checks; all of them by default
    checks: list[Callable[[], None]] = [
        mistakes, products, rounding, quantized_products, fp8_products, experts, mixtures, routers,
        attention, plain_models, int8_models, int4_models,
    ]  # fmt: skip
    with torch.no_grad():
        for check in checks:
            if not wanted or check.__name__ in wanted:
                torch.manual_seed(0)
                check()
    print("as torch computes it")
