"""Matrix products in fp8: weights and inputs in 8 bits, sums in float32.

Tensor cores compute fp8 products at about twice the rate of bfloat16, and without converting the
weights. Every row of the input gets its own scale, so the rows of a batch do not influence each
other. Inputs are rounded for any number of rows, so that a request gets the same numbers alone and
in a batch.
"""

from __future__ import annotations

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from wavefront.kernels import small_batch_ops

E4M3 = torch.float8_e4m3fn
E4M3_LARGEST = small_batch_ops.LARGEST[E4M3]
MULTIPLE = 16  # the sides of a weight must be multiples of this
_scaled_mm = torch._scaled_mm  # pyright: ignore[reportPrivateImportUsage]


@cache
def hardware_scales(device: torch.device) -> str | None:
    """Return which scales the device's fp8 products take: "rows", "matrix", or None without fp8."""
    if device.type != "cuda" or torch.version.cuda is None:
        return None
    capability = torch.cuda.get_device_capability(device)
    return "rows" if capability >= (9, 0) else "matrix" if capability >= (8, 9) else None


def fits(x: Tensor, codes: Tensor) -> bool:
    """Return whether x (B, S, K) is in bfloat16, and the weight (N, K) has whole tiles."""
    if x.dtype != torch.bfloat16 or x.dim() != 3:
        return False
    return not any(side % MULTIPLE for side in codes.shape)


def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rows of x (M, K) in fp8, and their float32 scales (M, 1)."""
    # The compiler fuses these operations with those around them. Without it, one kernel is faster.
    eager = not torch.compiler.is_compiling() and x.shape[1] <= small_batch_ops.WIDEST
    if eager and small_batch_ops.available(x.device):
        return small_batch_ops.round_rows(x, E4M3_LARGEST)
    scale = x.abs().amax(1, keepdim=True).float().clamp_min(1e-12) / E4M3_LARGEST
    scaled = (x.float() / scale).clamp(-E4M3_LARGEST, E4M3_LARGEST)
    return scaled.to(E4M3), scale


def parts(
    x: Tensor, codes: Tensor, scale: Tensor, *, scales: str | None, kernels: bool = False
) -> Tensor:
    """Return x · weightᵀ with both sides in fp8, as (P, B, S, N): P partial sums, to be added up.

    Args:
        x: (B, S, K).
        codes: uint8 (N, K), the bits of the weight in fp8.
        scale: float32 (N,), the scales of the weight's rows.
        scales: From `hardware_scales`; None computes the same product in float32.
        kernels: Whether to use `small_batch_ops`, which compute few rows faster, without gradients.
    """
    rows, row_scale = quantize_rows(x.flatten(0, -2))
    weight = codes.view(E4M3)
    if kernels and small_batch_ops.fits(x, codes):
        return small_batch_ops.fp8_product(rows.view(x.shape), row_scale.flatten(), weight, scale)
    made = scaled_product(rows, weight, row_scale=row_scale, scale=scale, scales=scales)
    return made.to(x.dtype).unflatten(0, x.shape[:-1])[None]


def scaled_product(
    rows: Tensor, weight: Tensor, *, row_scale: Tensor, scale: Tensor, scales: str | None
) -> Tensor:
    """Return (M, N), the product of rows (M, K) and a weight (N, K) in fp8, with their scales.

    The result is in bfloat16 with scales by row, and in float32 otherwise.
    """
    if scales == "rows":
        return _scaled_mm(
            rows,
            weight.t(),
            row_scale,
            scale[None],
            out_dtype=torch.bfloat16,
            use_fast_accum=True,
        )
    if scales == "matrix":
        one = scale.new_ones(())
        made = _scaled_mm(rows, weight.t(), one, one, out_dtype=torch.float32)
    else:
        made = F.linear(rows.float(), weight.float())
    return made * row_scale * scale
