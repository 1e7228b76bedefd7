"""TBD (reconstruction) by hand, against a plain loop over lists, and its promise of a budget."""

from __future__ import annotations

import random
from collections.abc import Iterator
from fractions import Fraction
from math import ceil, isnan

import pytest
import torch
from helpers import oracle
from strategies.test_against_oracle import KINDS, random_case, random_scores
from strategies.test_rcr import Places, decode, line, slots, table

from wavefront.core.canvas import blank, infill
from wavefront.core.errors import OptionError
from wavefront.core.reading import Sampling
from wavefront.core.state import Config, decide_and_write, start
from wavefront.strategies.selectors.threshold import Threshold
from wavefront.strategies.tbd import Tbd
from wavefront.testing.simulation import MASK, PAD, fill


def tbd(
    places: tuple[int, ...], steps: int, scores: oracle.Scores, rule: Tbd
) -> Iterator[tuple[Places, Places, Places]]:
    """(new, gone, kept) of every step, by lists."""
    n, most = len(places), rule.size - rule.drop
    # Half of the steps that a block would get if every block kept the most.
    rest_blocks = ceil(Fraction(max(0, n - rule.size), most))
    fewest = max(1, ceil(Fraction(steps // (1 + rest_blocks), 2)))
    kept, blocks, step = 0, 0, 0
    while kept < n:
        block = list(places[kept : kept + rule.size])
        typical = Fraction(kept + most, blocks + 1)
        share = ceil(Fraction(steps - step, 1 + ceil((n - kept - len(block)) / typical)))
        share = max(share, fewest)
        found: dict[int, float] = {}
        before: Places = frozenset()
        inner = 0
        while len(found) < len(block):
            masked = frozenset(p for p in places[kept:] if p not in found)
            score = scores(step, masked)
            open_ = oracle.ranked([p for p in block if p not in found], score)
            if isinstance(rule.selector, Threshold):
                chosen = [p for p in open_ if score[p] >= rule.selector.tau] or open_[:1]
            else:
                chosen = open_[: oracle.even(len(block), share, inner)]
            before = frozenset(found)
            if step == steps - 1:  # the engine completes what is left, wherever it is
                yield masked, frozenset(), frozenset(places)
                return
            found |= {p: score[p] for p in chosen}
            inner, step = inner + 1, step + 1
            if len(found) < len(block):
                yield frozenset(chosen), frozenset(), frozenset(places[:kept])
        stay = len(block)
        if kept + rule.size < n:
            sure = [not isnan(found[p]) and found[p] >= rule.gamma for p in block]
            stay = most
            if rule.mode == "confidence":
                stay = min(most, max(rule.min_kept, [*sure, False].index(False)))
            # As much as the later blocks could not fetch at that pace, each keeping the most.
            while stay < rule.size:
                later = (steps - step) // fewest
                if later and n - kept - stay <= rule.size + (later - 1) * most:
                    break
                stay += 1
        kept, blocks = kept + stay, blocks + 1
        stays = frozenset(block[:stay])
        yield stays - before, before - stays, frozenset(places[:kept])


def random_rule(rng: random.Random, selector=None) -> Tbd:
    size = rng.randint(1, 9)
    drop = rng.randrange(size)
    return Tbd(
        size=size,
        drop=drop,
        gamma=rng.choice((0.01, 0.31, 0.6180339, 0.91)),
        min_kept=rng.randint(1, size - drop),
        mode=rng.choice(("confidence", "confidence", "length")),
        **({} if selector is None else {"selector": selector}),
    )


def fits(rule: Tbd, length: int, steps: int) -> bool:
    try:
        rule.validate(length, steps)
    except OptionError:
        return False
    return True


def test_decode_by_hand():
    """N = 10, T = 10, blocks of 4 of which 3 are kept at most."""
    first = {0: 0.9, 1: 0.4, 2: 0.8, 3: 0.7}
    scores = table([first] * 4 + [{**first, 1: 0.6, 4: 0.55}] * 2 + [{}] * 4)
    rule = Tbd(size=4, drop=1, gamma=0.5, min_kept=1)
    found = list(decode(rule, line(10), 10, scores))
    assert slots(found) == [
        # Three blocks are expected: four steps for this one, the best first. Slot 1 comes last, is
        # unsure, and ends what is kept at slot 0; it was not seen by anyone, so it is no commit.
        ({0}, set()),
        ({2}, set()),
        ({3}, set()),
        (set(), {2, 3}),
        # 6 steps; 5 positions lie beyond this block, (1 + 3) / 2 of each later one stay: 3 more.
        ({2, 3}, set()),
        ({1}, set()),  # all sure: three stay, and slot 4 is dropped as soon as it is chosen
        ({4, 5}, set()),
        ({6}, set()),
        ({7, 8}, set()),
        ({9}, set()),  # the end of the canvas: everything stays
    ]
    assert [len(final) - 1 for *_, final in found] == [0, 0, 0, 1, 1, 4, 4, 7, 7, 10]


@pytest.mark.parametrize("kind", KINDS)
def test_decode_equals_the_list_oracle(kind):
    rng = random.Random(f"tbd {kind}")
    compared = taken = 0
    while compared < 60:
        canvas, case = random_case(rng, kind)
        rule = random_rule(rng)
        if not fits(rule, len(case.masked), case.steps):
            continue
        compared += 1
        scores = random_scores(rng, canvas.tokens.shape[1])
        reference = list(tbd(case.masked, case.steps, scores, rule))
        ours = list(decode(rule, canvas, case.steps, scores))
        found = [(new, gone, final - case.known) for _, new, gone, final in ours]
        assert found == reference, f"{rule} {case}"
        taken += sum(len(gone) for _, _, gone, _ in ours)
    assert taken > 15


def test_decode_with_a_threshold_equals_the_list_oracle():
    rng = random.Random("tbd threshold")
    for _ in range(60):
        canvas, case = random_case(rng, rng.choice(KINDS))
        rule = random_rule(rng, Threshold(rng.choice((0.45, 0.73))))
        drawn = random_scores(rng, canvas.tokens.shape[1])
        scores = lambda step, masked, s=drawn: {  # noqa: E731
            p: v if v == v and v > 0 else 0.0 for p, v in s(step, masked).items()
        }
        reference = list(tbd(case.masked, case.steps, scores, rule))
        ours = decode(rule, canvas, case.steps, scores)
        found = [(new, gone, final - case.known) for _, new, gone, final in ours]
        assert found == reference, f"{rule} {case}"


def test_quotas_end_in_time_and_every_block_gets_its_share():
    """The strategy fills the last position by step T, with at most size / fewest per step."""
    rng = random.Random("budget")
    last_steps = 0
    no = torch.zeros(1, dtype=torch.bool)
    for _ in range(30):
        n, size = rng.randint(20, 120), rng.randint(4, 32)
        drop = rng.randrange(size // 2)
        rule = Tbd(size=size, drop=drop, gamma=0.9, min_kept=rng.randint(1, size - drop))
        blocks = 1 + ceil(max(0, n - size) / (size - drop))
        steps = max(blocks, rng.choice((blocks, n // 4, n // 2, n)))
        most = ceil(size / max(1, ceil((steps // blocks) / 2)))
        sureness = rng.choice((0.0, 0.5, 0.9))  # 0: every block would keep the least
        source = torch.Generator().manual_seed(n)
        config = Config(strategy=rule)
        rows = start(line(n), config, [steps], seeds=[0])
        while not rows.done:
            sure = torch.rand(rows.score.shape, generator=source) < sureness
            before = fill(rows, torch.where(sure, 0.95, 0.5))
            rows, view, decision = decide_and_write(config, before, MASK, bad=no, void=no)
            assert int(decision.commit.sum()) <= most
            if bool(before.last):  # nothing is left over that only the engine would fill
                assert torch.equal(rule.step(view, before.state).commit, view.masked)
                last_steps += 1
    assert last_steps > 10


def test_finished_row_does_not_change_others():
    """Fewer steps for the first row: it ends, and its clock stands beyond its budget."""
    rule = Tbd(size=5, drop=2, min_kept=1)
    pair = blank([[5], [5]], 12, mask_id=MASK, pad_id=PAD)
    both, alone = (
        last_canvas(rule, canvas, steps) for canvas, steps in ((pair, [4, 12]), (line(12), [12]))
    )
    assert torch.equal(both[0][-1:], alone[0])
    assert torch.equal(both[1][-1:], alone[1])


def last_canvas(rule, canvas, steps):
    """Return the final state and committed_at, with scores that vary by step."""
    config = Config(strategy=rule)
    rows = start(canvas, config, steps, seeds=[0] * len(steps))
    no = torch.zeros(len(steps), dtype=torch.bool)
    for step in range(max(steps)):
        drawn = torch.rand(1, canvas.tokens.shape[1], generator=torch.Generator().manual_seed(step))
        rows = fill(rows, drawn.expand_as(rows.score))
        rows, _, _ = decide_and_write(config, rows, MASK, bad=no, void=no)
    assert bool(rows.done.all())
    return rows.state.kept, rows.committed_at


def test_length_mode_without_dropping_equals_block():
    rng = random.Random("block")
    for _ in range(40):
        canvas, case = random_case(rng, rng.choice(("one a step", "four a step")))
        n = len(case.masked)
        size = rng.randint(-(-n // case.steps), n + 2)
        scores = random_scores(rng, canvas.tokens.shape[1])
        rule = Tbd(size=size, drop=0, min_kept=1, mode="length")
        ours = [new for _, new, _, _ in decode(rule, canvas, case.steps, scores)]
        blocks = oracle.block(case, scores, size=size)
        assert ours == [set(record.commit) for record in list(blocks)[: len(ours)]]


def test_gamma_0_equals_length_mode():
    rng = random.Random("gamma")
    for _ in range(30):
        canvas, case = random_case(rng, "one a step")
        drawn = random_scores(rng, canvas.tokens.shape[1])
        scores = lambda step, masked, s=drawn: {  # noqa: E731
            p: v if v == v else 0.0 for p, v in s(step, masked).items()
        }
        one, two = (
            list(decode(Tbd(6, 2, 0.0, 1, mode), canvas, case.steps, scores))
            for mode in ("confidence", "length")
        )
        assert one == two


def test_confidence_equal_to_gamma_counts():
    for score, kept in ((1.0, 3), (0.999, 1)):
        scores = lambda step, masked, s=score: dict.fromkeys(masked, s)  # noqa: E731
        found = list(decode(Tbd(size=4, drop=1, gamma=1.0, min_kept=1), line(20), 20, scores))
        finals = [len(final) - 1 for *_, final in found]
        assert next(size for size in finals if size) == kept


def test_confidence_is_the_probability_whatever_the_priority():
    rule = Tbd(size=4, drop=1, gamma=0.9, min_kept=1)
    config = Config(strategy=rule)
    rows = start(line(10), config, [3], seeds=[0])  # one step a block
    rows = fill(rows, torch.full(rows.score.shape, 0.95))._replace(score=rows.score - 2)
    no = torch.zeros(1, dtype=torch.bool)
    rows, _, decision = decide_and_write(config, rows, MASK, bad=no, void=no)
    assert decision.state.confident[0].tolist() == [False] + [True] * 4 + [False] * 6


def test_stop_ends_the_row_with_the_block_that_keeps_an_end_token():
    scores = lambda step, masked: dict.fromkeys(masked, 0.95)  # noqa: E731
    stop = Sampling(eos="stop", stop_ids=(7,))  # every proposal of `fill` is a 7
    rule = Tbd(size=4, drop=1, min_kept=1)
    found = list(decode(rule, line(12), 12, scores, sampling=stop))
    finals = [len(final) - 1 for *_, final in found]
    # Committed at the first step, but only the truncation makes it final; then nothing more runs.
    assert finals == [0] * (len(found) - 1) + [3]
    assert len(found) < 12 == len(list(decode(rule, line(12), 12, scores)))


def test_model_attends_to_known_tokens_the_block_and_spare_masks():
    text = [5] * 10
    holes = [c == "_" for c in "..__.____."]
    canvas = infill([text, text[:8]], [holes, holes[2:]], mask_id=MASK, pad_id=PAD)
    rule = Tbd(size=2, drop=0, min_kept=1, spare=1)
    state = rule.init(canvas)
    assert drawn(rule.attended(canvas, state)) == [
        "xxxxxx...x",
        "..xxxx...x",
    ]  # two positions, one to spare; padding never
    later = state._replace(kept=torch.tensor([0, 2]))
    done = canvas.commit(canvas.masked & (canvas.slot < later.kept[:, None]), canvas.tokens)
    assert drawn(rule.attended(done, later)) == ["xxxxxx...x", "..xxxxxx.x"]
    assert Tbd(spare=None).attended(canvas, state) is None
    alone = Tbd(size=2, drop=0, min_kept=1).attended(canvas, state)
    assert drawn(alone) == ["xxxxx....x", "..xxx....x"]


def drawn(board) -> list[str]:
    return ["".join("x" if shown else "." for shown in row) for row in board.tolist()]


@pytest.mark.parametrize(
    "wrong",
    [
        {"size": 0},
        {"drop": 32},
        {"drop": -1},
        {"gamma": 1.5},
        {"min_kept": 0},
        {"min_kept": 25},
        {"mode": "both"},
        {"spare": -1},
    ],
)
def test_options_are_checked(wrong):
    with pytest.raises(OptionError):
        Tbd(**wrong)


def test_fewer_steps_than_blocks_is_refused_for_fixed_budgets():
    with pytest.raises(OptionError, match="12 positions need 4 blocks"):
        Tbd(size=5, drop=2, min_kept=1).validate(12, 3)
    Tbd(size=5, drop=2, min_kept=1).validate(12, 4)
    Tbd(size=5, drop=2, min_kept=1, selector=Threshold()).validate(12, 3)
