"""Products in float32 on a CPU, by the library that is faster on this processor.

torch uses MKL, which does not use the AVX-512 instructions of AMD processors. oneDNN, which is also
part of torch, uses them and takes less than half of the time. Both compute in float32.
"""

from __future__ import annotations

import platform
from functools import cache
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

AMD = "AuthenticAMD"


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x · weightᵀ + bias, as `torch.nn.functional.linear`."""
    if x.device.type == "cpu" and _fits(x, weight) and onednn_is_faster():
        return onednn_linear(x, weight, bias)
    return F.linear(x, weight, bias)


def onednn_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return x · weightᵀ + bias by oneDNN."""
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


def _fits(x: Tensor, weight: Tensor) -> bool:
    """Return whether this product has several rows of float32, and needs no gradient."""
    if torch.is_grad_enabled() or torch.compiler.is_compiling() or torch.is_autocast_enabled("cpu"):
        return False
    plain = type(x) is Tensor and type(weight) in (Tensor, torch.nn.Parameter)
    several = x.numel() > x.shape[-1]  # MKL is faster with one row
    return plain and several and x.dtype == weight.dtype == torch.float32


@cache
def onednn_is_faster() -> bool:
    """Return whether this is an AMD processor with AVX-512, and torch was built with oneDNN."""
    if not torch.backends.mkldnn.is_available() or not torch.backends.mkl.is_available():
        return False
    if torch.backends.cpu.get_cpu_capability() != "AVX512" or _vendor() != AMD:
        return False
    return hasattr(torch.ops.mkldnn, "_linear_pointwise")


def _vendor() -> str:
    """Return the vendor's name as the processor gives it, or other text that contains it."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return AMD if AMD in platform.processor() else ""
    return next((x.partition(":")[2].strip() for x in lines if x.startswith("vendor_id")), "")
