"""Check the kernels in Triton's interpreter on the CPU; test_small_batch_ops.py runs this file.

It needs its own process: Triton chooses the interpreter at import, and GPU tests must not use it.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from wavefront.kernels import small_batch_ops
from wavefront.kernels.fp8_product import E4M3_LARGEST, quantize_rows
from wavefront.models.quantize import QuantizedLinear, QuantizedWeight, quantize_model
from wavefront.models.toy import toy


def close(found: torch.Tensor, wanted: torch.Tensor, within: float = 2e-5) -> None:
    assert (found - wanted).abs().max() < within, (found - wanted).abs().max().item()


def products() -> None:
    for rows in ((1, 5), (2, 16), (1, 30)):
        x, weight = torch.randn(*rows, 512), torch.randn(128, 512) * 0.1
        assert small_batch_ops.fits(x, weight)
        made = small_batch_ops.product(x, weight)
        assert (len(made), made.dtype) == (2, torch.float32)
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
    wide = small_batch_ops.CONVERTING * small_batch_ops.TILE
    for kind in ("int8", "int4"):
        for rows, width, depth in (((1, 5), 128, 512), ((2, 16), 256, 512), ((1, 3), wide, 128)):
            x, linear = torch.randn(*rows, depth), nn.Linear(depth, width, bias=width == 256)
            made = QuantizedLinear(kind, linear)
            made.weight.copy_(linear.weight.detach())
            made._kernels = True  # as on a GPU
            assert small_batch_ops.fits(x, made.weight, parts=small_batch_ops.quantized_part_count)
            parts = made.parts(x)
            assert len(parts) == (1 if width in (256, wide) else 4)  # a bias adds the parts up
            plain = F.linear(x, made.weight.dequantize(torch.float32), linear.bias)
            close(made(x), plain, 1e-4)


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
    # Partial tiles of keys, parts without a key, and parts without a visible key.
    for rows, heads, queries, keys in ((1, 4, 32, 200), (2, 2, 7, 65), (1, 32, 50, 130)):
        query = torch.randn(rows, queries, heads, 64).transpose(1, 2)
        key = torch.randn(rows, heads, keys, 64)
        value = torch.randn(rows, keys, heads, 64).transpose(1, 2)
        visible = torch.rand(rows, 1, 1, keys) < 0.3
        visible[..., 0], visible[..., 64:] = True, False
        tally = torch.zeros(rows * heads, dtype=torch.int32)
        assert small_batch_ops.attention_fits(query)
        for mask in (None, visible):
            made = small_batch_ops.attend(query, key, value, mask, tally)
            close(made, F.scaled_dot_product_attention(query, key, value, attn_mask=mask))
            assert not tally.any()


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
                linear._kernels = lean
            kv = model.new_kv(1, 100)
            model.encode(tokens, kv=kv)
            made = model.encode(tokens.flip(1), None, window[:, :9], window=window, kv=kv)
            found.append([made, *kv.keys, *kv.values])
        for plain, other in zip(*found, strict=True):
            close(other, plain, 1e-4 if kind is None else 5e-4)
        with torch.enable_grad():  # the kernels have no gradient, so the libraries do it
            model(tokens[:, :9]).sum().backward()


if __name__ == "__main__":
    torch.manual_seed(0)
    small_batch_ops.HALF, small_batch_ops.DEVICE = (
        (torch.float32,),
        "cpu",
    )  # the interpreter has no bfloat16 of its own
    small_batch_ops._stages = lambda x, count: 4  # and there is no GPU to ask
    with torch.no_grad():
        products()
        quantized_products()
        fp8_products()
        attention()
        for chosen in (None, "int8", "int4"):
            models(chosen)
    print("as torch computes it")
