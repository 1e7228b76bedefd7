"""Tables as records, Markdown and JSON."""

from __future__ import annotations

import math

import torch

from wavefront.results.interval import Interval
from wavefront.results.table import Table, cell_text, to_json


def test_json_has_no_nan_and_no_tensors() -> None:
    found = to_json({"a": torch.tensor([1.0, math.nan]), "b": (Interval(1.0, 0.0, 2.0),)})
    assert found == {"a": [1.0, None], "b": [{"value": 1.0, "low": 0.0, "high": 2.0}]}


def test_cells_are_markdown() -> None:
    assert cell_text("a|b\nc") == "a\\|b c"
    assert cell_text(None) == "–"
    assert cell_text(Interval(1.0, 0.5, 2.0)) == "1.000 [0.500, 2.000]"


def test_table_has_records_and_markdown() -> None:
    table = Table("t", ["a", "b"], [[1, 0.5], ["x", None]])
    assert table.records() == [{"a": 1, "b": 0.5}, {"a": "x", "b": None}]
    assert table.markdown() == "| a | b |\n|---|---|\n| 1 | 0.500 |\n| x | – |"
