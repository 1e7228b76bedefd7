"""runs/product_table.py on small matrices: every product that runs on a CPU is one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from helpers.pages import load_script

BOUNDS = {
    "bfloat16, torch": 0.003,
    "int8, ours": 0.01,
    "fp8, ours": 0.04,
    "int4, ours": 0.12,
    "int8, inputs in int8, torch._int_mm": 0.02,
    "fp8, inputs in fp8, torch._scaled_mm": 0.05,
    "int4, torch._weight_int4pack_mm": 0.12,
}


@torch.no_grad()
@pytest.mark.parametrize("name", BOUNDS)
def test_products_are_near_the_unquantised_one(name: str) -> None:
    script = load_script("product_table")
    for job in script.TINY_JOBS:
        ready = script.prepare(script.PEERS[name], job, "cpu")
        assert BOUNDS[name] / 100 < ready.error < BOUNDS[name]
        assert len(script.samples(ready, "cpu")) == 3


@pytest.mark.slow
def test_what_is_missing_is_listed_and_the_rest_is_timed(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    script = load_script("product_table")
    given = ["--device", "cpu", "--tiny", "--only", "int8, ours", "--only", "bfloat16, ours"]
    out = tmp_path / "products.json"
    file = Path(__file__).parents[2] / "runs" / "product_table.py"
    monkeypatch.setattr(sys, "argv", [str(file), *given, "--seconds", "120", "--out", str(out)])
    assert script.main() == 0
    printed = capfd.readouterr().out
    assert "missing: bfloat16, ours, layer, 32 rows: " in printed
    assert "| int8, ours | layer, 96 rows | " in printed
    assert out.exists()
