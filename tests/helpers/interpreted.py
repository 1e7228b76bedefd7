"""Check the kernels in Triton's interpreter on the CPU; test_small_batch_ops.py runs this file.

It needs its own process: Triton chooses the interpreter at import, and GPU tests must not use it.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from wavefront.kernels import small_batch_ops
from wavefront.kernels.fp8_product import E4M3_LARGEST, quantize_rows
from wavefront.models.architecture import ExpertLayout
from wavefront.models.experts import Router
from wavefront.models.layer import MixtureOfExperts
from wavefront.models.quantize import QuantizedLinear, QuantizedWeight, quantize_model
from wavefront.models.toy import toy


def close(found: torch.Tensor, wanted: torch.Tensor, within: float = 2e-5) -> None:
    assert (found - wanted).abs().max() < within, (found - wanted).abs().max().item()


def products() -> None:
    for rows in ((1, 5), (2, 16), (1, 50)):
        x, weight = torch.randn(*rows, 512), torch.randn(128, 512) * 0.1
        assert small_batch_ops.fits(x, weight)
        made = small_batch_ops.product(x, weight)
        assert (len(made), made.dtype) == (4, torch.float32)
        close(made.sum(0), x @ weight.T)
        gate, up = (x @ weight.T).chunk(2, dim=-1)
        close(small_batch_ops.gated_product(x, weight), F.silu(gate) * up, 1e-4)
    wide = (
        torch.randn(small_batch_ops.PROGRAMS * small_batch_ops.TILE, 128) * 0.1
    )  # enough programs: not cut
    x = torch.randn(1, 3, 128)
    assert len(small_batch_ops.product(x, wide)) == 1
    close(small_batch_ops.product(x, wide)[0], x @ wide.T)


def quantized_products() -> None:
    """Compare products in 8 and 4 bits with those of the dequantised weight."""
    wide = 4 * small_batch_ops.PROGRAMS * small_batch_ops.TILE
    shapes = (((1, 5), 128, 512), ((2, 16), 256, 512), ((1, 3), wide, 256))
    for kind in ("int8", "int4"):
        for rows, width, depth in (*shapes, ((3, 40), 128, 256)):
            x, linear = torch.randn(*rows, depth), nn.Linear(depth, width, bias=width == 256)
            made = QuantizedLinear(kind, linear)
            made.weight.copy_(linear.weight.detach())
            made._kernels, made._fp8_scales = True, "rows"  # as on a GPU
            parts = made.parts(x)
            several = width == 128 and x.shape[0] * x.shape[1] <= small_batch_ops.ROWS
            assert len(parts) == (4 if several else 1)  # a bias adds the parts up
            plain = F.linear(x, made.weight.dequantize(torch.float32), linear.bias)
            # The numbers of a row are rounded to multiples of 1 / 32512 of the largest one.
            close(made(x), plain, 1e-3 if kind == "int8" else 3e-2)


def split_rows() -> None:
    """Compare the kernel with its definition. The interpreter rounds to fp8 less exactly."""
    x = torch.randn(7, 192) * torch.logspace(-9, 4, 7)[:, None]
    x[3] = 0
    largest = x.abs().amax(1, keepdim=True).clamp_min(1e-12)
    for dtype, times, within in ((torch.int8, 256, 4e-5), (torch.float8_e4m3fn, 1, 2e-2)):
        made = small_batch_ops.split_rows(x, dtype)
        small_batch_ops.DEVICE = "none"
        wanted = small_batch_ops.split_rows(x, dtype)
        small_batch_ops.DEVICE = "cpu"
        for one, other in zip(made, wanted, strict=True):
            assert (one.shape, one.dtype) == (other.shape, other.dtype)
        first, rest = made[0].float()
        close((first + rest / times) * made[1][:, None] / largest, x / largest, within)
        close(made[1], wanted[1], 1e-30)


def experts() -> None:
    """Compare mixtures with and without the kernels; most experts have no row, or all rows."""
    for count, shared, cases in (
        (8, 0, ((1, 1), (9, 3))),
        (8, 128, ((16, 2), (64, 3))),
        (8, 256, ((5, 2),)),  # its shared MLP is larger than an expert
        (256, 128, ((3, 8),)),
    ):
        for rows, top in cases:
            layout = ExpertLayout(
                count=count,
                per_token=top,
                width=128,
                router="grouped_sigmoid",
                groups=2,
                kept_groups=2,
                scale=2.5,
                shared_width=shared,
            )
            mixture = MixtureOfExperts(256, layout)
            for part in mixture.parameters():
                torch.nn.init.normal_(part, std=0.05)
            assert mixture.router.expert_bias is not None
            for bias in (0.0, 9.0):  # with a large bias, all rows choose the same experts
                mixture.router.expert_bias[-top:] = bias
                x = torch.randn(1, rows, 256)
                fitting = mixture.experts.gate_up, mixture.experts.down
                assert small_batch_ops.experts_fit(x[0], *fitting)
                made, plain = mixture(x, True), mixture(x, False)
                assert len(made) == (1 if shared == 256 else top + (shared > 0))
                close(made.sum(0), plain.sum(0), 1e-4)


def routers() -> None:
    """Compare the choices of every kind of router, whose product the kernels compute or not."""
    for count, width, kind, groups, kept in (
        (32, 64, "softmax", 1, 1),
        (32, 64, "normalized_softmax", 1, 1),
        (32, 64, "grouped_sigmoid", 4, 2),
        (128, 512, "normalized_softmax", 1, 1),
        (128, 512, "grouped_sigmoid", 4, 2),
    ):
        layout = ExpertLayout(
            count=count,
            per_token=5,
            width=64,
            router=kind,
            groups=groups,
            kept_groups=kept,
            scale=2.5,
        )
        router = Router(width, layout)
        torch.nn.init.normal_(router.weight, std=0.3)
        if router.expert_bias is not None:
            router.expert_bias.normal_(std=0.1)
        x = torch.randn(40, width)
        assert small_batch_ops.router_product_fits(x[None], router.weight) == (count == 128)
        (weights, chosen), (wanted, expected) = router(x, True), router(x)
        assert torch.equal(chosen, expected)
        close(weights, wanted, 1e-5)


def fp8_products() -> None:
    """Compare the product of rounded rows with that of the same numbers in float32.

    The interpreter rounds to fp8 less exactly than a GPU, so the codes are compared there.
    """
    for rows, width, depth in (((1, 5), 128, 512), ((2, 16), 256, 256)):
        x, matrix = torch.randn(*rows, depth), torch.randn(width, depth)
        weight = QuantizedWeight.of(matrix, "fp8")
        made, scale = small_batch_ops.round_rows(x.flatten(0, 1), E4M3_LARGEST)
        assert torch.equal(scale, quantize_rows(x.flatten(0, 1))[1])
        codes = weight.codes.view(torch.float8_e4m3fn)
        parts = small_batch_ops.fp8_product(
            made.view(x.shape), scale.flatten(), codes, weight.scale
        )
        plain = (made.float() * scale) @ weight.dequantize(torch.float32).T
        close(parts.sum(0).flatten(0, 1), plain, 1e-3)


def attention() -> None:
    # Partial tiles of keys, parts without a key, and parts without an attended key.
    shapes = ((1, 4, 4, 32, 200), (2, 2, 2, 7, 65), (1, 32, 8, 50, 130))
    for rows, heads, key_heads, queries, keys in shapes:
        query = torch.randn(rows, queries, heads, 64).transpose(1, 2)
        key = torch.randn(rows, key_heads, keys, 64)
        value = torch.randn(rows, keys, key_heads, 64).transpose(1, 2)
        for_all = torch.rand(rows, 1, 1, keys) < 0.3
        for_all[..., 0], for_all[..., 64:] = True, False
        by_query = torch.rand(1, 1, queries, keys) < 0.3
        by_query[..., 1] = True
        counters = torch.zeros(small_batch_ops.counter_count(rows, heads), dtype=torch.int32)
        assert small_batch_ops.attention_fits(query)
        for mask in (None, for_all, by_query):
            made = small_batch_ops.attend(query, key, value, mask, counters)
            plain = F.scaled_dot_product_attention(
                query, key, value, attn_mask=mask, enable_gqa=True
            )
            close(made, plain)
            assert not counters.any()


def models(kind: str | None = None) -> None:
    """Compare a window of positions on stored keys and values with and without these kernels."""
    for family in ("llada", "dream"):
        model = toy(family=family, width=256)
        if kind is not None:
            quantize_model(model, kind)
        quantized = [part for part in model.modules() if isinstance(part, QuantizedLinear)]
        tokens, window = torch.randint(0, 60, (1, 100)), torch.arange(60, 92)[None]
        found: list[list[torch.Tensor]] = []
        for lean in (False, True):
            for block in model.layers:
                block.use_small_batch_ops = lean
            for linear in quantized:
                linear._kernels, linear._fp8_scales = lean, "rows"
            kv = model.new_kv(1, 100)
            model.encode(tokens, kv=kv)
            made = model.encode(tokens.flip(1), None, window[:, :9], window=window, kv=kv)
            found.append([made, *kv.keys, *kv.values])
        for plain, other in zip(*found, strict=True):
            if kind is None:
                close(other, plain, 1e-4)
            else:  # the kernels round the inputs of products, as `split_rows` does
                error = float((other - plain).norm() / plain.norm())
                assert error < (1e-3 if kind == "int8" else 2e-2), (kind, error)
        with torch.enable_grad():  # the kernels have no gradient, so the libraries do it
            model(tokens[:, :9]).sum().backward()


if __name__ == "__main__":
    torch.manual_seed(0)
    small_batch_ops.HALF, small_batch_ops.DEVICE = (
        (torch.float32,),
        "cpu",
    )  # the interpreter has no bfloat16 of its own
    small_batch_ops._stages = lambda x, wanted, tile: 4  # and there is no GPU to ask
    with torch.no_grad():
        products()
        quantized_products()
        split_rows()
        experts()
        routers()
        fp8_products()
        attention()
        for chosen in (None, "int8", "int4"):
            models(chosen)
    print("as torch computes it")
