"""The kernels for few rows: when they are used, and, where Triton is, that they compute."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from packaging.version import Version

from wavefront.kernels import small_batch_ops
from wavefront.kernels.compile import compile_model
from wavefront.models.toy import toy

HALF = torch.bfloat16
few_on = pytest.mark.usefixtures("on_meta")


def interprets() -> bool:
    """Before Triton 3.7, its interpreter uses an array of one number as a number.

    numpy 2.4 no longer allows this.
    """
    if find_spec("triton") is None:
        return False
    return Version(np.__version__) < Version("2.4") or Version(version("triton")) >= Version("3.7")


@pytest.fixture
def on_meta(monkeypatch):
    """As if tensors without memory were a GPU's."""
    monkeypatch.setattr(small_batch_ops, "DEVICE", "meta")


def meta(*shape: int, dtype: torch.dtype = HALF) -> torch.Tensor:
    return torch.empty(shape, device="meta", dtype=dtype)


@few_on
@pytest.mark.parametrize(
    ("x", "weight", "fits"),
    [
        (meta(1, 32, 4096), meta(12288, 4096), True),
        (meta(2, 16, 4096), meta(4096, 4096), True),
        (meta(2, 32, 4096), meta(4096, 4096), True),
        (meta(3, 32, 4096), meta(4096, 4096), False),  # many rows: the library's product
        (meta(1, 32, 4096, dtype=torch.float32), meta(4096, 4096), False),
        (meta(1, 32, 4096), meta(4100, 4096), False),  # no whole tiles
        (meta(1, 32, 4096), meta(4160, 4096), False),  # nor two halves of them
        (meta(1, 32, 384), meta(1536, 384), True),
        (meta(1, 32, 320), meta(1536, 320), False),
    ],
)
def test_product_fits_few_half_precision_rows_and_whole_tiles(x, weight, fits):
    assert small_batch_ops.fits(x, weight) is fits


@few_on
@pytest.mark.parametrize(
    ("query", "fits"),
    [
        (meta(1, 32, 32, 128), True),
        (meta(2, 32, 64, 128), True),
        (meta(1, 32, 65, 128), False),
        (meta(4, 32, 32, 128), False),  # as many heads as processors: one program each
        (meta(1, 32, 32, 96), False),
        (meta(1, 32, 32, 128, dtype=torch.float32), False),
    ],
)
def test_attention_fits_few_queries_on_few_heads(query, fits):
    assert small_batch_ops.attention_fits(query) is fits


def test_nothing_fits_without_a_gpu():
    assert not small_batch_ops.fits(
        torch.zeros(1, 2, 256, dtype=HALF), torch.zeros(256, 256, dtype=HALF)
    )
    assert not small_batch_ops.attention_fits(torch.zeros(1, 4, 2, 64, dtype=HALF))


def test_registered_shapes_equal_the_real_shapes():
    x, weight = meta(1, 30, 4096), meta(4096, 4096)
    assert small_batch_ops.product(x, weight).shape == (2, 1, 30, 4096)
    assert small_batch_ops.product(x, weight).dtype == torch.float32
    wide = small_batch_ops.product(x, meta(12288, 4096))
    assert (wide.shape, wide.dtype) == ((1, 1, 30, 12288), HALF)
    assert small_batch_ops.gated_product(x, meta(24576, 4096)).shape == (1, 30, 12288)
    codes, scale = meta(4096, 4096, dtype=torch.int8), meta(4096, dtype=torch.float32)
    pieces, row_scale, sums = small_batch_ops.split_rows(x[0], torch.int8)
    assert (pieces.shape, row_scale.shape, sums.shape) == ((2, 30, 4096), (30,), (30, 0))
    split = pieces[:, None]
    made = small_batch_ops.int8_product(split, row_scale, codes, scale, HALF)
    assert (made.shape, made.dtype) == ((2, 1, 30, 4096), torch.float32)
    many = split.expand(2, 3, 30, 4096)
    made = small_batch_ops.int8_product(many, meta(90, dtype=torch.float32), codes, scale, HALF)
    assert (made.shape, made.dtype) == ((1, 3, 30, 4096), HALF)
    packed, groups = meta(12288, 2048, dtype=torch.uint8), meta(12288, 64, dtype=torch.float16)
    pieces, row_scale, sums = small_batch_ops.split_rows(x[0], torch.float8_e4m3fn)
    assert (pieces.shape, row_scale.shape, sums.shape) == ((2, 30, 4096), (30,), (30, 64))
    split = pieces[:, None]
    made = small_batch_ops.int4_product(split, row_scale, sums, packed, groups, groups, HALF)
    assert made.shape == (2, 1, 30, 12288)
    made = small_batch_ops.dequantize_int4(packed, groups, groups, HALF)
    assert (made.shape, made.dtype) == ((12288, 4096), HALF)
    rounded, row_scale = small_batch_ops.round_rows(x[0], 448.0)
    assert (rounded.shape, row_scale.shape) == ((30, 4096), (30, 1))
    codes = meta(12288, 4096, dtype=torch.float8_e4m3fn)
    made = small_batch_ops.fp8_product(rounded[None], row_scale.flatten(), codes, scale)
    assert (made.shape, made.dtype) == ((1, 1, 30, 12288), HALF)
    chosen = torch.zeros(30, 8, dtype=torch.long, device="meta")
    weights = meta(30, 8, dtype=torch.float32)
    matrices = meta(16, 1024, 4096), meta(16, 4096, 512)
    assert small_batch_ops.experts(x[0], chosen, weights, *matrices).shape == (8, 30, 4096)
    shared = meta(1024, 4096), meta(4096, 512)
    made = small_batch_ops.experts(x[0], chosen, weights, *matrices, *shared)
    assert made.shape == (9, 30, 4096)
    query, store = meta(1, 30, 32, 128).transpose(1, 2), meta(1, 32, 100, 128)
    made = small_batch_ops.attend(query, store, store, None, meta(32, dtype=torch.int32))
    assert (made.shape, made.stride()) == (query.shape, query.stride())


@few_on
@pytest.mark.parametrize(
    ("width", "depth", "plain", "int8", "int4"),
    [
        (126464, 4096, 1, 1, 1),
        (24576, 4096, 1, 1, 1),
        (12288, 4096, 1, 2, 2),
        (4096, 4096, 2, 2, 8),
        (3072, 2048, 4, 4, 8),
        (1024, 2048, 8, 8, 8),
        (1024, 512, 4, 4, 4),  # no more parts than whole tiles
        (1024, 384, 1, 1, 1),
    ],
)
def test_narrow_weights_are_split_along_their_depth(width, depth, plain, int8, int4):
    assert small_batch_ops.int4_part_count(width, depth) == int4
    assert small_batch_ops.part_count(width, depth) == plain
    assert small_batch_ops.int8_part_count(width, depth) == int8


@few_on
def test_experts_fit_few_rows_and_whole_tiles():
    gate_up, down = meta(256, 1024, 2048), meta(256, 2048, 512)
    assert small_batch_ops.experts_fit(meta(64, 2048), gate_up, down)
    assert not small_batch_ops.experts_fit(meta(65, 2048), gate_up, down)
    assert not small_batch_ops.experts_fit(meta(8, 2048, dtype=torch.float32), gate_up, down)
    assert not small_batch_ops.experts_fit(meta(8, 2080), meta(4, 1024, 2080), meta(4, 2080, 512))


@pytest.mark.parametrize(("dtype", "times"), [(torch.int8, 256), (torch.float8_e4m3fn, 1)])
def test_split_rows_keeps_as_much_as_bfloat16(dtype, times):
    x = (torch.randn(9, 256) * torch.logspace(-9, 4, 9)[:, None]).to(HALF)
    x[4] = 0
    (first, rest), scale, sums = small_batch_ops.split_rows(x, dtype)
    found = first.float() + rest.float() / times
    error = (found * scale[:, None] - x.float()).norm(dim=1)
    assert (error <= 2e-3 * x.float().norm(dim=1)).all()
    if sums.shape[1]:
        wanted = found.unflatten(1, (4, 64)).sum(2)
        torch.testing.assert_close(sums.float(), wanted, rtol=1e-3, atol=1e-3)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, when it compiles
def test_model_on_a_cpu_does_not_use_the_kernels():
    model = toy(dtype="bfloat16", width=256)
    compile_model(model)
    assert not small_batch_ops.available(model.device)
    assert not any(block.use_small_batch_ops for block in model.layers)


@pytest.mark.slow
@pytest.mark.skipif(not interprets(), reason="Triton does not interpret here")
@pytest.mark.parametrize(
    ("script", "interpret", "printed"),
    [("interpreted.py", "1", "as torch computes it\n"), ("compiled.py", "0", "compiled\n")],
    ids=["compute", "compile"],
)
def test_kernels_compute_the_same_as_torch_and_compile(script, interpret, printed, tmp_path):
    done = subprocess.run(
        [sys.executable, str(Path(__file__).parents[1] / "helpers" / script)],
        env={**os.environ, "TRITON_INTERPRET": interpret, "TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == printed
