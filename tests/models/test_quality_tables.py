"""runs/speed_table.py and runs/quantize_table.py: quality of speeds and quantisations."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.pages import load_script

from wavefront.kernels import fp8_product
from wavefront.models.quantize import QuantizedLinear, quantize_model
from wavefront.models.toy import toy

RUNS = Path(__file__).parents[2] / "runs"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Load the script with the others of its folder, which it imports."""
    monkeypatch.syspath_prepend(str(RUNS))
    return load_script("speed_table")


def test_inputs_are_rounded_as_fp8_products_round_them(script: Any) -> None:
    model = toy(vocab_size=96, width=128)
    with torch.no_grad():
        quantize_model(model, "fp8")
    layer = next(one for one in model.modules() if isinstance(one, QuantizedLinear))
    x = torch.randn(2, 3, layer.in_features)
    usual = layer.parts(x)
    sys.modules["shared"].round_inputs(model)
    expected = fp8_product.parts(x, layer.codes, layer.scale, scales=None)
    torch.testing.assert_close(layer.parts(x), expected, rtol=1e-6, atol=1e-6)
    assert not torch.allclose(layer(x), usual[0], rtol=1e-4, atol=1e-4)


def test_table_of_speeds_is_written_after_every_row(
    script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "tale.md"
    few = ["--items", "2", "--max-new-tokens", "8", "--settings", "fast", "fp8-inputs"]
    command = ["speed_table.py", *few, "--strategies", "wavefront", "--device", "cpu"]
    monkeypatch.setattr(sys, "argv", [*command, "--out", str(out)])
    script.main()
    rows = [line for line in out.read_text().splitlines() if line.startswith("| `")]
    assert [row.split("|")[1].strip(" `") for row in rows] == ["exact", "fast", "fp8-inputs"]
    assert rows[1].count("[") >= 3  # nats, those of the first tokens, and the length
