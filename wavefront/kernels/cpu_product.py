"""Products on a CPU: in float32 by the library that is faster there, and with int8 weights.

torch uses MKL for float32, which does not use the AVX-512 instructions of AMD processors. oneDNN,
which is also part of torch, uses them and takes less than half of the time.
"""

from __future__ import annotations

import platform
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

AMD = "AuthenticAMD"
FINER = 254  # the next int8 number of an input counts 1/254 of this one
INT8_ROWS = 64  # with more rows, weights are dequantised faster


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x · weightᵀ + bias, as `torch.nn.functional.linear`."""
    if x.device.type == "cpu" and ONEDNN_IS_FASTER and _fits(x, weight):
        return onednn_linear(x, weight, bias)
    return F.linear(x, weight, bias)


def onednn_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return x · weightᵀ + bias by oneDNN."""
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


def _fits(x: Tensor, weight: Tensor) -> bool:
    """Return whether this product has several rows of float32, and needs no gradient."""
    if torch.is_grad_enabled() or torch.is_autocast_enabled("cpu"):
        return False
    plain = type(x) is Tensor and type(weight) in (Tensor, torch.nn.Parameter)
    several = x.numel() > x.shape[-1]  # MKL is faster with one row
    return plain and several and x.dtype == weight.dtype == torch.float32


def onednn_is_faster() -> bool:
    """Return whether this is an AMD processor with AVX-512, and torch was built with oneDNN."""
    if not torch.backends.mkldnn.is_available() or not torch.backends.mkl.is_available():
        return False
    if torch.backends.cpu.get_cpu_capability() != "AVX512" or _vendor() != AMD:
        return False
    return hasattr(torch.ops.mkldnn, "_linear_pointwise")


def int8_fits(x: Tensor) -> bool:
    """Return whether `int8_linear` computes this, and is faster than to dequantise the weight."""
    if x.device.type != "cpu" or torch.is_grad_enabled() or not INT8_IS_FAST:
        return False
    return x.numel() <= INT8_ROWS * x.shape[-1]


def int8_linear(x: Tensor, codes: Tensor, scale: Tensor) -> Tensor:
    """Return x · weightᵀ for int8 codes (N, K) and the scales (N,) of the weight's rows.

    Each input becomes a sum of int8 numbers: three in float32, with an error like float32's own,
    and two in half precision. So no code is converted, and the sums are exact integers.
    """
    pieces, row_scale = _int8_pieces(x.flatten(0, -2), 3 if x.dtype == torch.float32 else 2)
    *others, last = torch.ops.aten._int_mm(pieces.flatten(0, 1), codes.t()).chunk(len(pieces))
    made = last.float()
    for one in reversed(others):
        made.mul_(1 / FINER).add_(one)
    return made.mul_(row_scale).mul_(scale).to(x.dtype).unflatten(0, x.shape[:-1])


def _int8_pieces(rows: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return int8 (count, M, K) and scales (M, 1).

    A row is scale · (first + second / FINER + third / FINER²).
    """
    scale = rows.abs().amax(1, keepdim=True).float().clamp_min(1e-12) / 127
    left = rows.float() / scale
    pieces = left.new_empty((count, *left.shape), dtype=torch.int8)
    for number, piece in enumerate(pieces):
        whole = left.round()
        piece.copy_(whole)
        if number < count - 1:
            left = (left - whole).mul_(FINER)
    return pieces, scale


def int8_is_fast() -> bool:
    """Return whether this processor multiplies int8 numbers with AVX-512 VNNI."""
    has_vnni = getattr(torch.cpu, "_is_vnni_supported", lambda: False)
    wide = torch.backends.cpu.get_cpu_capability() == "AVX512"
    return wide and torch.backends.mkldnn.is_available() and bool(has_vnni())


def _vendor() -> str:
    """Return the vendor's name as the processor gives it, or other text that contains it."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return AMD if AMD in platform.processor() else ""
    return next((x.partition(":")[2].strip() for x in lines if x.startswith("vendor_id")), "")


# Compiled models need these as constants.
ONEDNN_IS_FASTER = onednn_is_faster()
INT8_IS_FAST = int8_is_fast()
