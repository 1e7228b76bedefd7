"""The oracle against pencil and paper. Place p has the score printed beside it; W is the front."""

import random
from itertools import pairwise
from math import inf, nan

import pytest
from helpers.oracle import (
    Case,
    Mutation,
    Scores,
    block,
    block_quotas,
    even,
    left_to_right,
    ranked,
    standard,
    wavefront,
)


def fixed(*tables: dict[int, float]) -> Scores:
    """Step s reads table s, later steps the last; asking for a position not in it is a KeyError."""

    def scores(step: int, masked: frozenset[int]) -> dict[int, float]:
        table = tables[min(step, len(tables) - 1)]
        return {place: table[place] for place in masked}

    return scores


def case(known: set[int], masked: range | list[int], steps: int) -> Case:
    return Case(frozenset(known), tuple(masked), steps)


def test_even_gives_the_remainder_to_the_first_steps():
    # 7 = 3 * 2 + 1, 8 = 3 * 2 + 2, 3 = 5 * 0 + 3, 0 = 2 * 0 + 0
    assert [even(7, 3, step) for step in range(3)] == [3, 2, 2]
    assert [even(8, 3, step) for step in range(3)] == [3, 3, 2]
    assert [even(3, 5, step) for step in range(5)] == [1, 1, 1, 0, 0]
    assert [even(0, 2, step) for step in range(2)] == [0, 0]


def test_ranked():
    # 3 is higher; 1 and 4 are equal, so 1 first.
    assert ranked({4, 1, 3}, {1: 0.5, 3: 0.7, 4: 0.5}) == [3, 1, 4]
    assert ranked({4, 1, 3}, {1: 0.5, 3: 0.7, 4: 0.5}, right=True) == [3, 4, 1]
    # Finite before NaN and -inf, however small; NaN and -inf by position only; +inf first.
    assert ranked(range(6), {0: nan, 1: -inf, 2: nan, 3: -1e30, 4: -inf, 5: inf}) == [
        5, 3, 0, 1, 2, 4,
    ]  # fmt: skip


def test_first_front_is_the_first_size_masked_positions():
    # Prompt 0-2, positions 3-9. dist <= 1 would offer only 3; W_0 is the first four all the same.
    row = case({0, 1, 2}, range(3, 10), 7)
    first = next(wavefront(row, fixed(dict.fromkeys(range(10), 0.5)), size=4, radius=1))
    assert first.scope == {3, 4, 5, 6}
    # Padding at 0 and 1 is not masked; with fewer positions than F, W_0 is all of them.
    row = case({2, 3}, [4, 5], 2)
    assert next(wavefront(row, fixed({4: 0.1, 5: 0.2}), size=4)).scope == {4, 5}
    # F = 5 over three holes: 1, 2 | 4, 5 | 8 (slots 0-4), and 9 is left out.
    row = case({0, 3, 6, 7}, [1, 2, 4, 5, 8, 9], 6)
    assert next(wavefront(row, fixed(dict.fromkeys(range(10), 0.5)), size=5)).scope == {
        1, 2, 4, 5, 8,
    }  # fmt: skip


def test_expand_counts_from_the_last_position_of_the_prompt():
    # K K . . . . . . . .   prompt 0, 1; W_0 = 2-6; 5 is best: commit 5.
    # Within 2 of 5: 3, 4, 6, 7. Within 2 of 1: 2, 3. Together five = F, so nothing is pruned;
    # 2 is there thanks to the prompt alone.
    table = {2: 0.1, 3: 0.2, 4: 0.3, 5: 0.9, 6: 0.4, 7: 0.5, 8: 0.6, 9: 0.7}
    first = next(wavefront(case({0, 1}, range(2, 10), 8), fixed(table), size=5, radius=2))
    assert first.commit == (5,)
    assert first.front_after == {2, 3, 4, 6, 7}
    # With padding in between, the distance still counts it: 3 - 1 = 2 > R = 1 but 5 - 4 = 1.
    first = next(wavefront(case({1}, range(3, 8), 5), fixed(table), size=4, radius=1))
    assert first.commit == (5,)  # W_0 = 3, 4, 5, 6
    assert first.front_after == {4, 6}


def test_prune_breaks_ties_to_the_left():
    # W_0 = 2, 3, 4; commit 4. Within 2 of 1: 2, 3; within 2 of 4: 2, 3, 5, 6. Four for F = 3,
    # 2, 5 and 6 are equal and below 3: keep 3, then the two leftmost of the equal.
    row = case({0, 1}, range(2, 8), 6)
    table = {2: 0.5, 3: 0.6, 4: 0.9, 5: 0.5, 6: 0.5, 7: 0.5}
    assert next(wavefront(row, fixed(table), size=3)).front_after == {2, 3, 5}
    wrong = next(wavefront(row, fixed(table), size=3, mutate="ties-right"))
    assert wrong.front_after == {3, 5, 6}
    # NaN and -inf are last but eligible: 5 is the only number, then 2 and 3 of 2, 3, 6.
    table = {2: nan, 3: -inf, 4: 0.9, 5: -1e30, 6: nan, 7: 0.9}
    assert next(wavefront(row, fixed(table), size=3)).front_after == {2, 3, 5}


def test_prune_reads_the_scores_from_before_the_commit():
    # As above, W_0 = 2, 3, 4, commit 4, grown 2, 3, 5, 6. Now: 2 is the worst, so 3, 5, 6.
    # After the commit 6 would be the worst, so a fresh prune keeps 2, 3, 5.
    row = case({0, 1}, range(2, 8), 6)
    before = {2: 0.1, 3: 0.2, 4: 0.9, 5: 0.3, 6: 0.4, 7: 0.0}
    after = {2: 0.9, 3: 0.8, 5: 0.7, 6: 0.1, 7: 0.0}
    assert next(wavefront(row, fixed(before, after), size=3)).front_after == {3, 5, 6}
    wrong = next(wavefront(row, fixed(before, after), size=3, mutate="fresh-prune"))
    assert wrong.front_after == {2, 3, 5}


def test_fallback_is_used_after_the_front():
    # K . . . . . .   N = 6, T = 2: three a step, F = 2, R = 1.
    # t = 1: W_0 = 1, 2 gives 2, 1 in this order, one short; outside 4 is best. Known 0, 1, 2, 4.
    #        Within 1: 3, 5.
    # t = 2: front gives 5, 3; fallback is 6.
    table = {1: 0.1, 2: 0.2, 3: 0.3, 4: 0.9, 5: 0.8, 6: 0.7}
    row = case({0}, range(1, 7), 2)
    assert list(wavefront(row, fixed(table), size=2, radius=1)) == [
        (3, {1, 2}, (2, 1, 4), {3, 5}),
        (3, {3, 5}, (5, 3, 6), set()),
    ]
    # The wrong rule takes 4, 5, 6 from outside first.
    wrong = next(wavefront(row, fixed(table), size=2, radius=1, mutate="reserve-first"))
    assert wrong.commit == (4, 5, 6)


def test_empty_front_uses_the_fallback():
    # R = 0: nothing but a known position is within 0 of a known position, so W_1 is empty.
    row = case({0}, range(1, 4), 3)
    records = list(wavefront(row, fixed({1: 0.1, 2: 0.2, 3: 0.3}), size=1, radius=0))
    assert [record.scope for record in records] == [{1}, set(), set()]
    assert [record.commit for record in records] == [(1,), (3,), (2,)]


def test_accumulate_keeps_positions_that_rebuild_drops():
    # K K . . . . . . . .   F = 4, R = 1, W_0 = 2-5, commit 5.
    # rebuild: within 1 of 0, 1, 5: 2, 4, 6.   accumulate: left 2, 3, 4 and beside 5: 4, 6.
    # t = 2: 3 (.8) is open to accumulate only; rebuild takes 6 (.3).
    table = {2: 0.1, 3: 0.8, 4: 0.2, 5: 0.9, 6: 0.3, 7: 0.0, 8: 0.0, 9: 0.0}
    row = case({0, 1}, range(2, 10), 8)
    rebuild = list(wavefront(row, fixed(table), size=4, radius=1))
    accumulate = list(wavefront(row, fixed(table), size=4, radius=1, grow="accumulate"))
    assert rebuild[0].commit == accumulate[0].commit == (5,)
    assert rebuild[0].front_after == {2, 4, 6}
    assert accumulate[0].front_after == {2, 3, 4, 6}
    assert rebuild[1].commit == (6,)
    assert accumulate[1].commit == (3,)


def test_rebuild_regains_positions_that_accumulate_pruned():
    # K . . . . . . .   F = 2, R = 2.
    # t = 1: W_0 = 1, 2; commit 2; both readings grow 1, 3, 4 and prune 1 (.1).
    # t = 2: commit 4 from 3, 4; 1 now scores .8.
    #        rebuild: within 2 of 0, 2, 4: 1, 3, 5, 6; the best two are 1 (.8) and 3 (.5).
    #        accumulate: left 3, and within 2 of 4: 3, 5, 6; the best two are 3 (.5) and 5 (.4).
    first = {1: 0.1, 2: 0.9, 3: 0.5, 4: 0.6, 5: 0.4, 6: 0.3, 7: 0.2}
    later = {**first, 1: 0.8}
    row = case({0}, range(1, 8), 7)
    rebuild = list(wavefront(row, fixed(first, later), size=2))
    accumulate = list(wavefront(row, fixed(first, later), size=2, grow="accumulate"))
    for records in (rebuild, accumulate):
        assert [record.commit for record in records[:2]] == [(2,), (4,)]
        assert records[0].front_after == {3, 4}
    assert rebuild[1].front_after == {1, 3}
    assert accumulate[1].front_after == {3, 5}


def test_more_steps_than_positions_ends_in_zero_quotas():
    # N = 2, T = 4: 1, 1, 0, 0. Nothing is scored at a zero quota.
    def scores(step: int, masked: frozenset[int]) -> dict[int, float]:
        assert step < 2
        return {place: float(place) for place in masked}

    row = case({0}, [1, 2], 4)
    assert list(wavefront(row, scores)) == [
        (1, {1, 2}, (2,), {1}),
        (1, {1}, (1,), set()),
        (0, set(), (), set()),
        (0, set(), (), set()),
    ]
    assert [record.commit for record in standard(row, scores)] == [(2,), (1,), (), ()]
    assert [record.commit for record in left_to_right(row, scores)] == [(1,), (2,), (), ()]
    nothing = case({0}, [], 2)
    for strategy in (wavefront, standard, block, left_to_right):
        assert [record.quota for record in strategy(nothing, fixed({}))] == [0, 0]


def test_infilling_measures_by_position_across_holes():
    # K . . K . . . K   holes 1, 2 (slots 0, 1) and 4, 5, 6 (slots 2, 3, 4). F = 3, R = 2.
    # W_0 = 1, 2, 4 (three slots, two holes); commit 2.
    # accumulate: left 1, 4; within 2 of position 2: 1, 4, over the known token 3. By slot it would
    # have been slots 0, 2, 3 = 1, 4, 5.
    # rebuild: 1 (of 0), 4, 5 (of 3), 5, 6 (of 7): four; the best three are 6, 5, 4.
    table = {1: 0.1, 2: 0.9, 4: 0.2, 5: 0.3, 6: 0.4}
    row = case({0, 3, 7}, [1, 2, 4, 5, 6], 5)
    first = next(wavefront(row, fixed(table), size=3, grow="accumulate"))
    assert first == (1, {1, 2, 4}, (2,), {1, 4})
    first = next(wavefront(row, fixed(table), size=3))
    assert first == (1, {1, 2, 4}, (2,), {4, 5, 6})


def test_standard_and_left_to_right():
    # N = 5, T = 2: 3, 2. By score: 5, 2 before 3 (equal), then 3, 4 is NaN, 1 is -inf.
    table = {1: -inf, 2: 0.5, 3: 0.5, 4: nan, 5: 0.9}
    row = case({0}, range(1, 6), 2)
    assert list(standard(row, fixed(table))) == [
        (3, {1, 2, 3, 4, 5}, (5, 2, 3), set()),
        (2, {1, 4}, (1, 4), set()),
    ]
    assert list(left_to_right(row, fixed(table))) == [
        (3, {1, 2, 3}, (1, 2, 3), set()),
        (2, {4, 5}, (4, 5), set()),
    ]


@pytest.mark.parametrize(
    ("length", "size", "steps", "quotas"),
    [
        # LLaDA's: 2 blocks of 8, 3 steps each, 8 = 3 + 3 + 2.
        (16, 8, 6, [3, 3, 2, 3, 3, 2]),
        # Blocks 4, 4, 2; 7 steps = 3 + 2 + 2; 4 over 3, 4 over 2, 2 over 2.
        (10, 4, 7, [2, 1, 1, 2, 2, 1, 1]),
        # 10 steps = 4 + 3 + 3; the last block has 2 positions for 3 steps.
        (10, 4, 10, [1, 1, 1, 1, 2, 1, 1, 1, 1, 0]),
        # T > N: blocks 2, 2, 1, three steps each; zeros end every block, not only the run.
        (5, 2, 9, [1, 1, 0, 1, 1, 0, 1, 0, 0]),
        # One block larger than N is the plain quota.
        (5, 8, 3, [2, 2, 1]),
    ],
)
def test_block_quotas(length: int, size: int, steps: int, quotas: list[int]):
    assert block_quotas(length, steps, size) == quotas


def test_block_uses_the_leftmost_unfinished_block():
    # N = 5, B = 2 by slot: (1, 2), (5, 6), (7); holes 1-2 and 5-7, so block 2 starts a hole.
    # T = 7 = 3 + 2 + 2: quotas 1, 1, 0 | 1, 1 | 1, 0. At the zero the first block is finished.
    table = {1: 0.1, 2: 0.2, 5: 0.5, 6: 0.5, 7: 0.9}
    assert list(block(case({0, 3, 4}, [1, 2, 5, 6, 7], 7), fixed(table), size=2)) == [
        (1, {1, 2}, (2,), set()),
        (1, {1}, (1,), set()),
        (0, {5, 6}, (), set()),
        (1, {5, 6}, (5,), set()),
        (1, {6}, (6,), set()),
        (1, {7}, (7,), set()),
        (0, set(), (), set()),
    ]
    # A block may span two holes: B = 3 is (1, 2, 5), then (6, 7).
    records = list(block(case({0, 3, 4}, [1, 2, 5, 6, 7], 2), fixed(table), size=3))
    assert [record.commit for record in records] == [(5, 2, 1), (7, 6)]
    with pytest.raises(ValueError, match="2 steps for 3 blocks"):
        list(block(case({0}, range(1, 6), 2), fixed(table), size=2))


def drawn(seed: int) -> tuple[Case, Scores]:
    """A random row with holes and padding, and scores from few levels so that ties dominate."""
    draw = random.Random(seed)
    kinds = draw.choices("kmp", weights=(1, 3, 0.3), k=draw.randint(1, 24))
    places = {kind: [p for p, other in enumerate(kinds) if other == kind] for kind in "km"}
    levels = draw.choice(([0.1, 0.2], [nan, -inf, 0.5], [level / 64 for level in range(64)]))

    def scores(step: int, masked: frozenset[int]) -> dict[int, float]:
        assert masked
        return {place: random.Random(f"{seed} {step} {place}").choice(levels) for place in masked}

    return case(set(places["k"]), places["m"], draw.randint(1, 30)), scores


@pytest.mark.parametrize("grow", ["rebuild", "accumulate"])
def test_laws(grow):
    for seed in range(200):
        row, scores = drawn(seed)
        wave = list(wavefront(row, scores, size=2, radius=4, grow=grow))
        alone = list(standard(row, scores))
        large = max(1, len(row.masked))
        wide = list(wavefront(row, scores, size=large, radius=30, grow=grow))
        for records in (wave, alone, list(left_to_right(row, scores))):
            assert len(records) == row.steps
            assert sorted(p for record in records for p in record.commit) == list(row.masked)
            assert all(len(record.commit) == record.quota for record in records)
        assert all(len(record.front_after) <= 2 for record in wave)
        assert all(b.scope == a.front_after for a, b in pairwise(wave))
        assert [record.commit for record in alone] == [record.commit for record in wide]
        assert alone == list(block(row, scores, size=large))


@pytest.mark.parametrize("mutate", ["fresh-prune", "ties-right", "reserve-first"])
@pytest.mark.parametrize("grow", ["rebuild", "accumulate"])
def test_comparison_notices_a_wrong_rule(grow, mutate: Mutation):
    # A front narrower than the radius: with F > R a prune rarely has anything to cut, under
    # `accumulate` above all (F = 3, R = 2: 39 of 1417 steps), and its rule would go untested.
    seen = 0
    for seed in range(200):
        row, scores = drawn(seed)
        right = wavefront(row, scores, size=2, radius=4, grow=grow)
        wrong = wavefront(row, scores, size=2, radius=4, grow=grow, mutate=mutate)
        seen += [record.commit for record in right] != [record.commit for record in wrong]
    assert seen >= 100  # 105 to 173 of 200 rows; the seeds are fixed
