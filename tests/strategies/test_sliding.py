"""DSB and DCD against plain loops, commit for commit; by hand; and as what they can turn into."""

from __future__ import annotations

import random

import pytest
import torch
from helpers import oracle
from helpers.scopes import Choose, by_quota, by_threshold
from strategies.test_against_oracle import KINDS, decode, random_case, random_scores

from wavefront.core import spec
from wavefront.core.canvas import blank
from wavefront.core.errors import OptionError
from wavefront.core.state import Config, candidates
from wavefront.core.strategy import RowProgress
from wavefront.strategies.dcd import Dcd
from wavefront.strategies.dsb import Dsb
from wavefront.strategies.left_to_right import LeftToRight
from wavefront.strategies.selectors.quota import Quota
from wavefront.strategies.selectors.threshold import Threshold
from wavefront.strategies.standard import Standard
from wavefront.testing import laws
from wavefront.testing.simulation import MASK, PAD, runs, simulate

TAU = 0.72  # between the levels of the scores, so that no rounding decides


def dsb(case: oracle.Case, scores: oracle.Scores, choose: Choose, size: int, limit: int | None):
    """Yield (candidates, commit) per step; the right edge is `size` plus the number of commits."""
    open_ = [True] * len(case.masked)
    for step in range(case.steps):
        start = open_.index(True) if any(open_) else len(open_)
        edge = size + open_.count(False)
        if limit is not None and edge > start + limit:
            edge = start + limit
        yield _one_step(case, scores, choose, step, open_, range(start, edge))


def dcd(case: oracle.Case, scores: oracle.Scores, choose: Choose, masks: int, span: int):
    """(candidates, commit) a step: a window with two edges that move, as its authors run it."""
    open_ = [True] * len(case.masked)
    left, right = 0, min(masks, span)
    for step in range(case.steps):
        yield _one_step(case, scores, choose, step, open_, range(left, right))
        while left < len(open_) and not open_[left]:
            left += 1
        missing = masks - sum(open_[left:right])
        while missing > 0 and right < min(left + span, len(open_)):
            missing -= open_[right]
            right += 1


def _one_step(case, scores, choose, step, open_, slots):
    masked = {place for slot, place in enumerate(case.masked) if open_[slot]}
    scope = [case.masked[slot] for slot in slots if slot < len(open_) and open_[slot]]
    commit = choose(step, scope, masked, scores(step, frozenset(masked))) if masked else []
    for place in commit:
        open_[case.masked.index(place)] = False
    return frozenset(scope), frozenset(commit)


def draw_case(rng: random.Random):
    """A board, its scores, and a selector in both forms."""
    canvas, case = random_case(rng, rng.choice(KINDS))
    scores = random_scores(rng, canvas.tokens.shape[1])
    if rng.random() < 0.5:
        return canvas, case, scores, Quota(), by_quota(len(case.masked), case.steps)
    return canvas, case, scores, Threshold(TAU), by_threshold(case.steps, TAU)


def same(strategy, reference, canvas, case, scores) -> bool:
    ours = [(scope, commit) for commit, scope, _ in decode(strategy, canvas, case, scores)]
    return ours == list(reference)


def test_dsb_equals_the_oracle():
    rng = random.Random("dsb")
    for _ in range(250):
        canvas, case, scores, selector, choose = draw_case(rng)
        size, limit = rng.randint(1, 12), rng.choice((None, rng.randint(1, 20)))
        reference = dsb(case, scores, choose, size, limit)
        assert same(Dsb(size, limit, selector), reference, canvas, case, scores), (
            size,
            limit,
            case,
        )


def test_dcd_equals_the_oracle():
    rng = random.Random("dcd")
    for _ in range(250):
        canvas, case, scores, selector, choose = draw_case(rng)
        masks, span = rng.randint(1, 12), rng.randint(1, 20)
        reference = dcd(case, scores, choose, masks, span)
        assert same(Dcd(masks, span, selector), reference, canvas, case, scores), (
            masks,
            span,
            case,
        )


@pytest.mark.slow
def test_comparison_notices_every_wrong_rule():
    """An edge that is one slot off is noticed."""
    rng = random.Random("teeth")
    noticed = {"size": 0, "limit": 0, "masks": 0, "span": 0}
    for _ in range(50):
        canvas, case, scores, selector, choose = draw_case(rng)
        at = (canvas, case, scores)
        noticed["size"] += not same(Dsb(4, None, selector), dsb(case, scores, choose, 5, None), *at)
        noticed["limit"] += not same(Dsb(4, 6, selector), dsb(case, scores, choose, 4, 7), *at)
        noticed["masks"] += not same(Dcd(4, 99, selector), dcd(case, scores, choose, 5, 99), *at)
        noticed["span"] += not same(Dcd(4, 6, selector), dcd(case, scores, choose, 4, 7), *at)
    assert min(noticed.values()) > 10, noticed


def commits(strategy, canvas, case, scores) -> list[frozenset[int]]:
    return [commit for commit, _, _ in decode(strategy, canvas, case, scores)]


@pytest.mark.slow
def test_special_settings_equal_other_strategies():
    rng = random.Random("turn")
    for _ in range(20):
        canvas, case, scores, selector, _ = draw_case(rng)
        at, n = (canvas, case, scores), len(case.masked)
        everywhere = commits(Standard(selector=selector), *at)
        assert commits(Dsb(n, selector=selector), *at) == everywhere
        assert commits(Dcd(n, n, selector), *at) == everywhere
        assert commits(Dsb(1, selector=selector), *at) == commits(
            LeftToRight(selector=selector), *at
        )
        assert commits(Dcd(1, selector=selector), *at) == commits(
            LeftToRight(selector=selector), *at
        )
        # Every commit lets in one more slot, so a block without a limit always holds `size` masks.
        size = rng.randint(1, 9)
        assert commits(Dsb(size, selector=selector), *at) == commits(Dcd(size, n, selector), *at)
        # The published "const" is a window of so many slots from the first masked one.
        assert commits(Dsb(size, size, selector), *at) == commits(Dcd(size, size, selector), *at)


# By hand. Six slots after a prompt of two; slot 0 is unsure to the end.
BOARD = blank([[5, 5]], 6, mask_id=MASK, pad_id=PAD)
CASE = oracle.Case(frozenset((0, 1)), (2, 3, 4, 5, 6, 7), 6)
SURE = dict(enumerate((0.1, 0.95, 0.2, 0.95, 0.3, 0.95), start=2))


@pytest.mark.parametrize(
    ("text", "slots"),
    [
        # Of slots 0-2 only 1 is sure; with it committed the block ends after slot 3, which is; then
        # after 4 where nothing is, so the best, 4; then after 5; then 2, then 0.
        ("dsb(size=3)", [(1,), (3,), (4,), (5,), (2,), (0,)]),
        # Never more than three slots from slot 0: 1, then the better of what is left, 2, then 0;
        # now slots 3-5 are in, and 3 and 5 are sure.
        ("dsb(size=3, limit=3)", [(1,), (2,), (0,), (3, 5), (4,), ()]),
        # Two masked slots at a time: 0 1, 0 2, 0 3, 0 4, 0 5, 0.
        ("dcd(masks=2)", [(1,), (2,), (3,), (4,), (5,), (0,)]),
        # The same, but at most four slots from the first: 0 1, 0 2, 0 3, 0, 4 5, 4.
        ("dcd(masks=2, span=4)", [(1,), (2,), (3,), (0,), (5,), (4,)]),
        # Three in six steps of one token, the surest of the window each time.
        ("dcd(masks=3, selector=quota())", [(1,), (3,), (4,), (5,), (2,), (0,)]),
    ],
)
def test_by_hand(text, slots):
    strategy = spec.resolve(text, "strategies")
    found = commits(strategy, BOARD, CASE, lambda step, masked: {p: SURE[p] for p in masked})
    assert [tuple(sorted(place - 2 for place in commit)) for commit in found] == slots


def test_quota_above_the_window_uses_the_next_positions():
    """Three a step from a window of two: the window, then what follows it, whatever the scores."""
    case = CASE._replace(steps=2)
    for text in ("dsb(size=2, selector=quota())", "dcd(masks=2, selector=quota())"):
        strategy = spec.resolve(text, "strategies")
        found = commits(strategy, BOARD, case, lambda step, masked: {p: SURE[p] for p in masked})
        assert found == [{2, 3, 4}, {5, 6, 7}]


@pytest.mark.parametrize("strategy", [Dsb(3, 4, Quota()), Dcd(3, 5, Quota())], ids=repr)
def test_laws_where_the_window_is_short(strategy):
    laws.reads_only_candidates(strategy)
    laws.commits_candidates_first(strategy)
    laws.padding_changes_nothing(strategy)
    config = Config(strategy=strategy, fixed_budget=True)
    for canvas, scores, steps in runs(strategy):
        for before, _, decision, _ in simulate(strategy, canvas, scores, steps=steps):
            # The spare positions go whatever their scores, but what is written there must be read.
            assert not bool((decision.commit & ~candidates(config, before)).any())


def test_candidates_are_the_window_and_not_the_answer():
    canvas = blank([[5]], 400, mask_id=MASK, pad_id=PAD)
    n = torch.tensor([400])
    progress = RowProgress(length=n, steps=n, step=n * 0, left=n, seed=n * 0)
    for strategy, places in ((Dsb(), 32), (Dcd(), 16), (Dsb(limit=8), 8), (Dcd(span=8), 8)):
        assert int(strategy.candidates(canvas, (), progress).sum()) == places
        assert places <= strategy.width(400, 400) <= 32


def test_published_defaults_and_refused_options():
    assert Dsb() == Dsb(32, None, Threshold(0.9))
    assert Dcd() == Dcd(16, 128, Threshold(0.9))
    assert repr(Dsb()) == "dsb(size=32, limit=None)"
    for made in (
        lambda: Dsb(0),
        lambda: Dsb(8, 0),
        lambda: Dsb(8, 2.0),  # pyright: ignore[reportArgumentType]
        lambda: Dcd(0),
        lambda: Dcd(4, 0),
    ):
        with pytest.raises(OptionError, match=r"must be (a|between)"):
            made()
