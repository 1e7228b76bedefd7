"""Products on a CPU: the same numbers by whichever way is faster."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from wavefront.kernels import cpu_product
from wavefront.models.quantize import QuantizedLinear
from wavefront.models.toy import toy

needs_onednn = pytest.mark.skipif(
    not (torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")),
    reason="torch has no oneDNN here",
)


@pytest.fixture
def onednn(monkeypatch):
    """Use oneDNN on every processor, and count its products."""
    calls = []
    product = cpu_product.onednn_linear
    monkeypatch.setattr(cpu_product, "ONEDNN_IS_FASTER", True)
    monkeypatch.setattr(
        cpu_product, "onednn_linear", lambda *arguments: calls.append(1) or product(*arguments)
    )
    return calls


@needs_onednn
@torch.no_grad()
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(2, 64), (1, 7, 64), (3, 5, 64), (65, 64)])
def test_product_is_that_of_torch(onednn, shape, bias):
    torch.manual_seed(0)
    x, weight = torch.randn(shape), torch.randn(48, 64)
    add = torch.randn(48) if bias else None
    wanted = F.linear(x.double(), weight.double(), None if add is None else add.double())
    found = cpu_product.linear(x, weight, add)
    assert onednn
    assert found.shape == wanted.shape
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-4)


@needs_onednn
@torch.no_grad()
def test_rows_that_are_not_contiguous_give_the_same_product(onednn):
    torch.manual_seed(0)
    x, weight = torch.randn(6, 4, 64), torch.randn(48, 128)[:, ::2]
    found = cpu_product.linear(x.transpose(0, 1)[:, 1:4], weight)
    assert onednn
    torch.testing.assert_close(found, F.linear(x.transpose(0, 1)[:, 1:4], weight), rtol=1e-5,
                               atol=1e-4)  # fmt: skip


@needs_onednn
@pytest.mark.parametrize("case", ["one row", "half", "gradient", "no rows", "float64"])
def test_torch_computes_everything_else(onednn, case):
    x, weight = torch.randn(4, 64), torch.randn(48, 64)
    if case == "one row":
        x = x[:1]
    elif case == "no rows":
        x = x[:0]
    elif case in ("half", "float64"):
        dtype = torch.bfloat16 if case == "half" else torch.float64
        x, weight = x.to(dtype), weight.to(dtype)
    with torch.set_grad_enabled(case == "gradient"):
        found = cpu_product.linear(x, weight)
        assert not onednn
        assert torch.equal(found, F.linear(x, weight))


@needs_onednn
def test_training_still_has_gradients(onednn):
    model = toy(width=32)
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    model(torch.tensor([[1, 2, 3]])).sum().backward()
    assert not onednn
    assert all(parameter.grad is not None for parameter in model.parameters())


@needs_onednn
@torch.no_grad()
def test_model_computes_the_same_logits_by_both(onednn, monkeypatch):
    model, tokens = toy(), torch.tensor([[1, 2, 3, 4], [4, 3, 2, 1]])
    found = model(tokens)
    assert onednn
    monkeypatch.setattr(cpu_product, "ONEDNN_IS_FASTER", False)
    torch.testing.assert_close(found, model(tokens), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("vendor", "capability", "expected"),
    [
        ("AuthenticAMD", "AVX512", True),
        ("AuthenticAMD", "AVX2", False),
        ("GenuineIntel", "AVX512", False),
        ("", "AVX512", False),
    ],
)
def test_choice_depends_on_the_processor(monkeypatch, vendor, capability, expected):
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(cpu_product, "_vendor", lambda: vendor)
    supported = hasattr(torch.ops.mkldnn, "_linear_pointwise")
    assert cpu_product.onednn_is_faster() is (expected and supported)


@torch.no_grad()
@pytest.mark.parametrize(
    ("dtype", "limit"), [(torch.float32, 5e-7), (torch.bfloat16, 5e-3), (torch.float16, 6e-4)]
)
@pytest.mark.parametrize("shape", [(1, 256), (2, 5, 256), (3, 7, 11, 256)])
def test_int8_product_is_that_of_the_dequantised_weight(shape, dtype, limit):
    torch.manual_seed(0)
    x = torch.randn(shape).to(dtype)
    x[0] = 0  # a row without a largest number
    codes, scale = torch.randint(-127, 128, (96, 256), dtype=torch.int8), torch.rand(96) + 0.1
    wanted = x.double() @ (codes.double() * scale.double()[:, None]).t()
    found = cpu_product.int8_linear(x, codes, scale)
    assert found.dtype == dtype
    assert found.shape == wanted.shape
    assert (found.double() - wanted).norm() <= limit * wanted.norm()
    assert torch.equal(found[0], torch.zeros_like(found[0]))


@torch.no_grad()
def test_int8_product_of_a_row_does_not_depend_on_other_rows():
    torch.manual_seed(0)
    x, codes = torch.randn(40, 128), torch.randint(-127, 128, (64, 128), dtype=torch.int8)
    together = cpu_product.int8_linear(x, codes, torch.ones(64))
    assert torch.equal(together[7:9], cpu_product.int8_linear(x[7:9], codes, torch.ones(64)))


def test_int8_products_are_for_few_rows_without_gradients(monkeypatch):
    few, many = torch.zeros(2, 32, 64), torch.zeros(2, 33, 64)
    monkeypatch.setattr(cpu_product, "INT8_IS_FAST", True)
    with torch.no_grad():
        assert cpu_product.int8_fits(few)
        assert not cpu_product.int8_fits(many)
    assert not cpu_product.int8_fits(few)
    monkeypatch.setattr(cpu_product, "INT8_IS_FAST", False)
    with torch.no_grad():
        assert not cpu_product.int8_fits(few)


@torch.no_grad()
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_quantised_layer_computes_the_same_both_ways(monkeypatch, dtype):
    torch.manual_seed(0)
    linear = torch.nn.Linear(256, 96, dtype=getattr(torch, dtype))
    layer = QuantizedLinear("int8", linear)
    layer.weight.copy_(linear.weight)
    x = torch.randn(2, 5, 256).to(linear.weight.dtype)
    monkeypatch.setattr(cpu_product, "INT8_IS_FAST", True)
    found = layer(x)
    monkeypatch.setattr(cpu_product, "INT8_IS_FAST", False)
    limit = 1e-6 if dtype == "float32" else 2e-2
    assert (found - layer(x)).float().norm() <= limit * found.float().norm()
