"""The memory of published checkpoints, and the page that shows it."""

from __future__ import annotations

from pathlib import Path

import pytest

from wavefront.bench import checkpoint_sizes
from wavefront.bench.checkpoint_sizes import CARDS, CHECKPOINTS, size_of
from wavefront.cli.completion import PUBLISHED

PAGE = Path(__file__).parents[2] / "docs" / "models.md"


def test_page_has_the_computed_table() -> None:
    assert checkpoint_sizes.markdown() in PAGE.read_text("utf-8")


def test_every_family_has_a_checkpoint_that_the_command_line_names() -> None:
    named = {name for names in PUBLISHED.values() for name in names}
    assert {*CHECKPOINTS} <= named
    assert {size_of(name).family for name in CHECKPOINTS} == {*PUBLISHED}


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("GSAI-ML/LLaDA-8B-Instruct", 8_015_581_184),
        ("Dream-org/Dream-v0-Instruct-7B", 7_615_616_512),
    ],
)
def test_sizes_are_those_of_the_published_models(name: str, parameters: int) -> None:
    size = size_of(name)
    assert size.parameters == parameters
    assert size.weights["bf16"] == 2 * parameters
    assert size.weights["bf16"] > size.weights["int8"] > size.weights["int4"]
    assert size.card("bf16") == 24
    assert size.card("int4") in CARDS
