"""How a run is divided into batches."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavefront.core.errors import OptionError
from wavefront.evaluation.batches import Shard, divide, width_of

LENGTHS = st.lists(st.integers(1, 700), max_size=60)


def test_widths_grow_by_a_half_and_a_third() -> None:
    assert sorted({width_of(length) for length in range(1, 400)}) == [
        32, 48, 64, 96, 128, 192, 256, 384, 512,
    ]  # fmt: skip


@given(st.integers(1, 100_000))
def test_width_holds_its_prompt_and_wastes_at_most_a_third(length: int) -> None:
    assert length <= width_of(length) <= max(32, length * 3 // 2)


@given(LENGTHS, st.integers(1, 9))
def test_every_item_is_in_one_batch_the_largest_first(lengths: list[int], rows: int) -> None:
    division = divide(lengths, rows=rows, new_tokens=100, max_length=600)
    listed = [item for batch in division.batches for item in batch.items]
    assert sorted(listed + division.too_long) == list(range(len(lengths)))
    assert division.too_long == [item for item, n in enumerate(lengths) if n > 500]
    widths = [batch.width for batch in division.batches]
    assert widths == sorted(widths, reverse=True)
    for number, batch in enumerate(division.batches):
        assert batch.number == number
        assert 1 <= len(batch.items) <= rows
        assert batch.width <= 500
        assert {min(width_of(lengths[item]), 500) for item in batch.items} == {batch.width}


@given(LENGTHS, st.integers(1, 5))
def test_width_of_an_item_depends_on_the_item_alone(lengths: list[int], rows: int) -> None:
    def widths(listed: list[int]) -> list[set[int]]:
        division = divide(listed, rows=rows, new_tokens=8, max_length=4096)
        return [
            {batch.width for batch in division.batches if item in batch.items}
            for item in range(len(listed))
        ]

    assert widths([*lengths, 5, 300])[: len(lengths)] == widths(lengths)


@given(LENGTHS, st.integers(1, 6))
def test_every_batch_belongs_to_one_shard(lengths: list[int], parts: int) -> None:
    batches = divide(lengths, rows=2, new_tokens=8, max_length=4096).batches
    owners = [[Shard(n, parts).has(batch) for n in range(parts)] for batch in batches]
    assert all(sum(one) == 1 for one in owners)


@pytest.mark.parametrize(
    "text", ["", "1", "2/2", "-1/3", "a/b", "0/0", "1/", "/2", "0/2/3", "1.0/2"]
)
def test_shard_is_written_with_a_slash(text: str) -> None:
    with pytest.raises(OptionError, match="i/n"):
        Shard.parse(text)
    assert Shard.parse("1/3") == (1, 3)


def test_batch_has_at_least_one_row() -> None:
    with pytest.raises(OptionError, match="batch_size"):
        divide([3], rows=0, new_tokens=1, max_length=9)


def test_items_of_different_kinds_share_no_batch() -> None:
    kinds = ["a", "b", "a", "b", "b", "a"]
    given = {"rows": 2, "new_tokens": 8, "max_length": 100}
    division = divide([10, 11, 12, 50, 13, 14], kinds=kinds, **given)
    assert sorted(item for batch in division.batches for item in batch.items) == [*range(6)]
    assert all(len({kinds[item] for item in batch.items}) == 1 for batch in division.batches)
    alike = divide([10, 11, 12, 50, 13, 14], kinds=["x"] * 6, **given)
    assert alike == divide([10, 11, 12, 50, 13, 14], **given)
