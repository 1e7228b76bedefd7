"""Compile the kernels for GPUs, without a GPU; test_small_batch_ops.py runs this file.

The shapes are like those of real models. A program must fit into the shared memory of a GPU.
"""

# Triton is not installed everywhere.
# pyright: basic, reportMissingImports=false

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile

from wavefront.kernels import small_batch_ops as ops
from wavefront.kernels import triton_kernels

# Compute capabilities, and the bytes of shared memory that a program may use.
GPUS = {89: 99 << 10, 90: 227 << 10}
E4M3, HALF = torch.float8_e4m3fn, torch.bfloat16
TYPES = {
    torch.float32: "fp32", torch.float16: "fp16", HALF: "bf16", E4M3: "fp8e4nv", torch.bool: "i1",
    torch.int64: "i64", torch.int32: "i32", torch.int8: "i8", torch.uint8: "u8",
}  # fmt: skip


class Compiler:
    """Takes the place of `_launch`."""

    def __init__(self, capability: int) -> None:
        self.capability, self.compiled = capability, set[str]()

    def launch(
        self, kernel: str, grid: Any, *given: Any, like: Tensor, warps: int = 4, **fixed: Any
    ) -> None:
        """Compile the kernel as Triton does for these arguments, and check its shared memory."""
        function = getattr(triton_kernels, kernel)
        options: dict[str, Any] = {"num_warps": warps}
        if "num_stages" in fixed:
            options["num_stages"] = fixed.pop("num_stages")
        if "PACKED" in fixed:
            fixed["PACKED"] = True  # as on a GPU
        if self.capability >= 90:
            options["launch_pdl"] = True
        fixed["CHAIN"] = self.capability >= 90
        types, hints = dict.fromkeys(fixed, "constexpr"), {}
        for number, (name, value) in enumerate(zip(function.arg_names, given, strict=False)):
            if isinstance(value, Tensor):
                types[name] = "*" + TYPES[value.dtype]
            elif value == 1:
                types[name], fixed[name] = "constexpr", 1
            else:
                types[name] = "fp32" if isinstance(value, float) else "i32"
            if isinstance(value, Tensor) or value % 16 == 0:
                hints[number,] = [["tt.divisibility", 16]]
        source = ASTSource(function, types, constexprs=fixed, attrs=hints)
        made = compile(source, GPUTarget("cuda", self.capability, 32), options)
        assert made.asm["cubin"]
        assert made.metadata.shared <= GPUS[self.capability], (kernel, made.metadata.shared)
        self.compiled.add(kernel)


def empty(*shape: int, dtype: torch.dtype = HALF) -> Tensor:
    return torch.empty(shape, dtype=dtype)


def products(rows: int) -> None:
    x, scale = empty(1, rows, 2048), empty(rows, dtype=torch.float32)
    pair = empty(2, 1, rows, 2048, dtype=torch.int8)
    for width in (2048, 8192):
        codes, of_codes = empty(width, 2048, dtype=torch.int8), empty(width, dtype=torch.float32)
        ops.int8_product(pair, scale, codes, of_codes, HALF)
        if rows <= ops.ROWS:
            ops.product(x, empty(width, 2048))
            ops.fp8_product(x.to(E4M3), scale, codes.view(E4M3), of_codes)
    if rows <= ops.ROWS:
        ops.gated_product(x, empty(16384, 2048))
        of_groups = empty(32, 2048, dtype=torch.float16).t()
        codes, sums = empty(2048, 1024, dtype=torch.uint8), empty(rows, 32, dtype=torch.float16)
        ops.int4_product(pair.view(E4M3), scale, sums, codes, of_groups, of_groups, HALF)
        ops.dequantize_int4(codes, of_groups, of_groups, HALF)


def rounding() -> None:
    for dtype in (torch.int8, E4M3):
        ops.split_rows(empty(8, 2048), dtype)
    ops.round_rows(empty(8, 2048), 448.0)


def experts(rows: int) -> None:
    matrices, own = (
        (empty(9, 1024, 2048), empty(9, 2048, 512)),
        (empty(1024, 2048), empty(2048, 512)),
    )
    chosen, weights = empty(rows, 8, dtype=torch.int64), empty(rows, 8, dtype=torch.float32)
    for shared in ((), own):
        ops.experts(empty(rows, 2048), chosen, weights, *matrices, *shared)


def routers() -> None:
    logits, bias = empty(4, 8, 256, dtype=torch.float32), empty(256, dtype=torch.float32)
    options: dict[str, Any] = {"count": 8, "normalized": True, "scale": 2.5}
    ops.route(logits, bias, groups=8, kept_groups=4, **options)
    ops.route(logits, None, groups=1, kept_groups=1, **options)


def attention(rows: int, heads: int) -> None:
    query, keys = empty(1, rows, heads, 128).transpose(1, 2), empty(1, 4, 300, 128)
    counters = empty(ops.counter_count(1, heads), dtype=torch.int32)
    for queries in (1, rows):
        ops.attend(query, keys, keys, empty(1, 1, queries, 300, dtype=torch.bool), counters)
    ops.attend(query, keys, keys, None, counters)


if __name__ == "__main__":
    ops.DEVICE = "cpu"
    kernels = {
        name
        for name, function in vars(triton_kernels).items()
        if "CHAIN" in getattr(function, "arg_names", ()) and name != "begin"
    }
    for capability, shared in GPUS.items():
        gpu = SimpleNamespace(shared_memory_per_block_optin=shared)
        torch.cuda.get_device_properties = lambda _, gpu=gpu: gpu
        compiler = Compiler(capability)
        ops._launch = compiler.launch
        for rows in (8, 32, 64):  # every tile
            products(rows)
            experts(rows)
            attention(rows, 16)
        products(200)
        attention(64, 64)
        rounding()
        routers()
        assert compiler.compiled == kernels, kernels - compiler.compiled
    print("compiled")
