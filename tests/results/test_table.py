"""Tables as records, Markdown and JSON."""

from __future__ import annotations

import math
import re

import torch

from wavefront.results.interval import Interval, wilson_share
from wavefront.results.table import Table, cell_text, fixed_text, to_json


def test_json_has_no_nan_and_no_tensors() -> None:
    found = to_json({"a": torch.tensor([1.0, math.nan]), "b": (Interval(1.0, 0.0, 2.0),)})
    assert found == {"a": [1.0, None], "b": [{"value": 1.0, "low": 0.0, "high": 2.0}]}


def test_cells_are_markdown() -> None:
    assert cell_text("a|b\nc") == "a\\|b c"
    assert cell_text(None) == "–"
    assert cell_text(Interval(1.0, 0.5, 2.0)) == "1.0 [0.5, 2.0]"


def test_decimals_fit_the_sample() -> None:
    """An interval has two digits of its width, so few items show few decimals."""
    assert cell_text(wilson_share(9, 10).percent) == "90 [60, 98]"
    assert cell_text(wilson_share(239, 250).percent) == "95.6 [92.3, 97.5]"
    assert cell_text(Interval(0.1 + 0.2, 0.1 + 0.2, 0.1 + 0.2)) == "0.300 [0.300, 0.300]"
    assert cell_text(Interval(0.0, -0.0001, 0.0)) == "0.00000 [-0.00010, 0.00000]"


def test_zero_has_no_sign() -> None:
    assert cell_text(Interval(-0.01, -0.9, 0.5)) == "0.0 [-0.9, 0.5]"
    assert cell_text(Interval(0.3, -0.004, 0.62)) == "0.30 [0.00, 0.62]"
    assert fixed_text(-0.06, 1) == "-0.1"


def test_numbers_have_three_digits() -> None:
    found = [cell_text(one) for one in (0.0, 128.968, 86.248, 1319.5, 2.0, 0.5586, 0.0081, 1e-5)]
    assert found == ["0", "129", "86.2", "1320", "2", "0.559", "0.008", "1e-05"]
    assert cell_text(7.3283e10) == "7.33e+10"
    assert cell_text(-12.345) == "-12.3"


def test_table_has_records_and_markdown() -> None:
    table = Table("t", ["a", "b"], [[1, 0.5], ["x", None]])
    assert table.records() == [{"a": 1, "b": 0.5}, {"a": "x", "b": None}]
    assert table.markdown() == "| a | b |\n|---|---|\n| 1 | 0.500 |\n| x | – |"


def test_line_breaks_and_bars_stay_inside_a_markdown_cell():
    made = Table("t", ["a|b", "c\rd"], [["x\ry", "x\r\ny|z"], ["\u2028", "\x0b"]]).markdown()
    assert len(made.splitlines()) == 4
    assert all(len(re.findall(r"(?<!\\)\|", line)) == 3 for line in made.splitlines())
