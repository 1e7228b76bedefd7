"""The adaptive selectors: by hand from their sources, against plain loops, and in real decodes."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch

import wavefront
from wavefront import Config, OptionError, RowProgress, Stats, View
from wavefront.core import spec
from wavefront.core.canvas import blank
from wavefront.core.reading import Sampling
from wavefront.core.strategy import Selector
from wavefront.engine.batcher import decode
from wavefront.models.toy import toy
from wavefront.strategies.selectors.entropy_bound import EntropyBound
from wavefront.strategies.selectors.factor import Factor
from wavefront.strategies.selectors.hierarchy import Hierarchy
from wavefront.strategies.selectors.local_leap import LocalLeap
from wavefront.strategies.selectors.share import Share
from wavefront.strategies.selectors.threshold import Threshold

LAST = (float("-inf"), float("nan"))


class Row(NamedTuple):
    """One row as lists; `candidates` and `fallback` are positions."""

    logp: list[float]
    score: list[float]
    entropy: list[float]
    candidates: list[int]
    fallback: list[int]


def marks(rows: list[Row], part: str, width: int) -> torch.Tensor:
    return torch.tensor([[at in getattr(row, part) for at in range(width)] for row in rows])


def committed(selector: Selector, *rows: Row) -> list[list[int]]:
    """Return the positions that a selector commits, per row of the batch."""
    width = max(len(row.logp) for row in rows)

    def board(part: str) -> torch.Tensor:
        # Values beyond the end of a row must not matter.
        values = [getattr(row, part) + [float("nan")] * (width - len(row.logp)) for row in rows]
        return torch.tensor(values, dtype=torch.float32)

    candidates, fallback = (
        marks(list(rows), "candidates", width),
        marks(list(rows), "fallback", width),
    )
    masked = candidates | fallback
    column = torch.zeros(len(rows), dtype=torch.long)
    view = View(
        score=board("score"),
        stats=Stats(board("logp"), entropy=board("entropy")),
        proposal=torch.full(masked.shape, 7),
        masked=masked,
        known=~masked,
        slot=torch.where(masked, masked.long().cumsum(-1) - 1, -1),
        progress=RowProgress(masked.sum(-1), column + 9, column, masked.sum(-1), column),
        tokens=torch.full(masked.shape, 7),
    )
    return [row.nonzero()[:, 0].tolist() for row in selector.select(view, candidates, fallback)]


def row(
    confidence: list[float],
    *,
    score: list[float] | None = None,
    entropy: list[float] | None = None,
    candidates: list[int] | None = None,
) -> Row:
    """Return a row from probabilities; all positions are masked, and candidates by default."""
    places = list(range(len(confidence)))
    logp = [math.log(c) if c else float("-inf") for c in confidence]
    chosen = places if candidates is None else candidates
    return Row(logp, score or logp, entropy or [1.0] * len(places), chosen, places)


# --- by hand ------------------------------------------------------------------------------------


def test_threshold_by_hand():
    confident = [0.2, 0.95, 0.5, 0.91, 0.89]
    assert committed(Threshold(), row(confident)) == [[1, 3]]
    assert committed(Threshold(0.5), row(confident)) == [[1, 2, 3, 4]]  # "at least"
    assert committed(Threshold(0.99), row(confident)) == [[1]]
    assert committed(Threshold(0), row(confident)) == [[0, 1, 2, 3, 4]]
    assert committed(Threshold(1), row([0.5, 1.0, 1.0])) == [[1, 2]]
    assert committed(Threshold(), row(confident, candidates=[0, 2, 4])) == [[4]]


def test_threshold_commits_the_floor_if_too_few_are_confident():
    confident = [0.2, 0.95, 0.5, 0.91, 0.89]
    assert committed(Threshold(floor=2), row(confident)) == [[1, 3]]
    assert committed(Threshold(floor=3), row(confident)) == [[1, 3, 4]]
    assert committed(Threshold(0.99, floor=2), row(confident)) == [[1, 3]]
    assert committed(Threshold(0.5, floor=2), row(confident)) == [[1, 2, 3, 4]]
    assert committed(Threshold(floor=9), row(confident)) == [[0, 1, 2, 3, 4]]  # all there are
    # The quota of 9 steps for 5 positions is 1 at the first step.
    assert committed(Threshold(0.99, floor=None), row(confident)) == [[1]]


def test_hierarchy_by_hand():
    confident = [0.5, 0.45, 0.95, 0.3, 0.6, 0.92]
    # One gap: its best, and every confident one.
    assert committed(Hierarchy(), row(confident)) == [[2, 5]]
    assert committed(Hierarchy(tau=0.99), row(confident)) == [[2]]
    # Position 2 is known, so there are two gaps.
    gaps = [0, 1, 3, 4, 5]
    assert committed(Hierarchy(tau=0.99), row(confident, candidates=gaps)) == [[0, 5]]
    assert committed(Hierarchy(tau=0.99, low=0.55), row(confident, candidates=gaps)) == [[5]]
    assert committed(Hierarchy(tau=0.99, low=0.97), row(confident, candidates=gaps)) == [[5]]
    assert committed(Hierarchy(low=0.3), row([0.5, 0.5, 0.5])) == [[0]]  # ties: from the left


def test_share_divides_what_is_left_over_the_steps_that_are_left():
    def counts(selector, length: int, steps: int) -> list[int]:
        left, found = length, []
        while left:
            numbers = (length, steps, len(found), left, 0)
            progress = RowProgress(*(torch.tensor([number]) for number in numbers))
            found.append(int(selector.min_commits(progress)))
            left -= found[-1]
        return found

    assert counts(Share(), 8, 3) == [3, 3, 2]
    assert counts(Share("nearest"), 8, 3) == [3, 2, 3]
    assert counts(Share(), 3, 9) == counts(Share("nearest"), 3, 9) == [1, 1, 1]


def test_factor_by_hand():
    # (n + 1)(1 - c_n): .04, .15, .4, 1.0 (nearly, above), so three at 1, two at .4, one at .1.
    confident = [0.9, 0.98, 0.799, 0.95]
    assert committed(Factor(), row(confident)) == [[0, 1, 3]]
    assert committed(Factor(0.39), row(confident)) == [[1, 3]]
    assert committed(Factor(0.1), row(confident)) == [[1]]
    assert committed(Factor(0), row(confident)) == [[1]]
    assert committed(Factor(1.01), row(confident)) == [[0, 1, 2, 3]]
    assert committed(Factor(), row(confident, candidates=[2])) == [[2]]


def test_factor_is_strict_and_refuses_the_last_failing_candidate():
    assert committed(Factor(1.5), row([0.5, 0.5])) == [[0]]  # 3 * .5 is not below 1.5
    assert committed(Factor(1.51), row([0.5, 0.5])) == [[0, 1]]
    # The published loop would commit all four, because only the last one fails.
    assert committed(Factor(), row([0.99, 0.99, 0.99, 0.3])) == [[0, 1, 2]]
    # Another known bug would leave out the last one although all pass.
    assert committed(Factor(), row([0.99, 0.99, 0.99, 0.99])) == [[0, 1, 2, 3]]


def test_factor_counts_uncertainty_below_float_rounding():
    """1 - c = 1e-9 at each of 200 positions; in float32 every c is 1, and 1 - c would be 0."""
    many = [-1e-9] * 200
    places = list(range(200))
    found = committed(Factor(1.005e-7), Row(many, many, many, places, places))
    assert found == [places[:99]]  # (99 + 1) * 1e-9 < 1.005e-7


def test_entropy_bound_by_hand():
    sure = [0.5] * 5
    entropy = [0.5, 0.0625, 0.25, 0.125, 2.0]
    # In order .0625, .125, .25, .5, 2: sums without the maximum are 0, .0625, .1875, .4375, .9375.
    for gamma, expected in (
        (0, [1]),
        (0.0625, [1, 3]),
        (0.1875, [1, 2, 3]),
        (0.4, [1, 2, 3]),
        (0.5, [0, 1, 2, 3]),
        (1, [0, 1, 2, 3, 4]),
    ):
        assert committed(EntropyBound(gamma), row(sure, entropy=entropy)) == [expected]
    assert committed(EntropyBound(0.5), row(sure, entropy=entropy, candidates=[0, 4])) == [[0, 4]]
    assert committed(EntropyBound(0.4), row(sure, entropy=entropy, candidates=[0, 4])) == [[0]]


def test_entropy_bound_commits_all_certain_candidates_and_one_more():
    """A certain place costs nothing, and neither does the last one taken."""
    row_ = row([0.5] * 4, entropy=[0.7, 0.0, 0.6, 0.0])
    assert committed(EntropyBound(0), row_) == [[1, 2, 3]]


def test_each_row_has_its_own_entropy_budget():
    frugal = row([0.5] * 3, entropy=[0.01, 0.01, 0.01])
    dear = row([0.5] * 3, entropy=[3.0, 2.0, 1.0])
    assert committed(EntropyBound(0.02), frugal, dear) == [[0, 1, 2], [2]]
    assert committed(EntropyBound(0.02), dear, frugal) == [[2], [0, 1, 2]]


def test_local_leap_by_hand():
    #            0     1    2     3    4     5    6    7    8     9
    confident = [0.8, 0.8, 0.95, 0.7, 0.76, 0.1, 0.8, 0.8, 0.75, 0.8]
    assert committed(LocalLeap(), row(confident)) == [[0, 1, 2, 4, 6]]
    assert committed(LocalLeap(radius=1), row(confident)) == [[1, 2]]
    assert committed(LocalLeap(radius=0), row(confident)) == [[2]]
    assert committed(LocalLeap(relaxed=0.7, radius=2), row(confident)) == [[0, 1, 2, 3, 4]]
    # An anchor outside the candidates does not count; without any, only the best is committed.
    assert committed(LocalLeap(), row(confident, candidates=[0, 1, 3, 4])) == [[0]]
    assert committed(LocalLeap(), row([0.8, 0.89, 0.85])) == [[1]]


# --- what they have in common -------------------------------------------------------------------

EVERY = (Threshold(), Factor(), EntropyBound(), LocalLeap(), Hierarchy())
inf = float("inf")


@pytest.mark.parametrize("selector", EVERY, ids=repr)
def test_fallback_is_used_only_without_candidates(selector):
    sure = [0.99, 0.999, 0.99]
    low = [0.0, 0.0, 0.0]
    assert committed(selector, row(sure, entropy=low, candidates=[])) == [[1]]
    assert committed(selector, row(sure, entropy=low, candidates=[2])) == [[2]]
    assert committed(selector, row([0.1, 0.999, 0.1], entropy=[3, 0, 3], candidates=[0, 2])) == [
        [0]
    ]
    assert committed(selector, row(sure, candidates=[])._replace(fallback=[])) == [[]]


@pytest.mark.parametrize("selector", EVERY, ids=repr)
def test_candidate_with_score_minus_infinity_comes_last(selector):
    """A candidate with score -inf, such as an end token, is ignored by the rule."""
    sure, low = [0.999, 0.2, 0.999, 0.999], [0.0, 3.0, 0.0, 0.0]
    put_off = [-inf, -1.0, float("nan"), -inf]
    assert committed(selector, row(sure, score=put_off, entropy=low)) == [[1]]
    assert committed(selector, row(sure, score=put_off, entropy=low, candidates=[0, 2, 3])) == [
        [0, 2, 3]
    ]
    # If nothing else is left and none is confident, the leftmost is committed.
    assert committed(selector, row([0.2] * 4, score=[-inf] * 4, entropy=[3.0] * 4)) == [[0]]


def test_best_score_is_committed_when_nothing_is_confident():
    unsure, score = [0.3, 0.5, 0.4, 0.4], [1.0, 2.0, 3.0, 3.0]
    for selector in (Threshold(), Factor(), LocalLeap()):
        assert committed(selector, row(unsure, score=score)) == [[2]]
        # A confident candidate needs no score.
        assert committed(selector, row([*unsure[:3], 0.99], score=[1.0, 2.0, 4.0, 3.0])) == [[3]]


def test_ties_are_broken_by_score_then_position():
    assert committed(Factor(1.4), row([0.6] * 4, score=[1.0, 2.0, 3.0, 3.0])) == [[2, 3]]
    assert committed(Factor(1.4), row([0.6] * 4)) == [[0, 1]]
    halves = {"entropy": [0.5] * 4}
    assert committed(EntropyBound(0.5), row([0.6] * 4, score=[1, 2, 3, 3], **halves)) == [[2, 3]]
    assert committed(EntropyBound(0.5), row([0.6] * 4, **halves)) == [[0, 1]]


@pytest.mark.parametrize("selector", EVERY, ids=repr)
def test_min_commits_is_one_while_positions_are_masked(selector):
    left = torch.tensor([0, 1, 7])
    assert selector.min_commits(RowProgress(left, left, left, left, left)).tolist() == [0, 1, 1]
    assert not selector.planned
    assert not selector.is_noop_step(8, 20, 19)


@pytest.mark.parametrize(
    "text",
    [
        "threshold(tau=1.01)",
        "threshold(tau=-0.1)",
        "threshold(tau=True)",
        "factor(factor=-1)",
        "entropy_bound(gamma=-0.5)",
        "entropy_bound(gamma='0.1')",
        "local_leap(tau=2)",
        "local_leap(relaxed=0.95)",
        "hierarchy(low=0.95)",
        "threshold(floor=0)",
        "share(rounding='down')",
        "local_leap(radius=1.5)",
        "local_leap(radius=-1)",
    ],
)
def test_options_out_of_range_are_refused(text):
    with pytest.raises(OptionError):
        spec.resolve(text, "selectors")


# --- against plain loops ------------------------------------------------------------------------


def in_order(places: list[int], score: list[float]) -> list[int]:
    """Best score first, then the smaller position; NaN and -inf last."""
    return sorted(places, key=lambda at: (-score[at] if score[at] > -inf else inf, at))


def sure_enough(row: Row, asked: list[int], tau: float) -> list[int]:
    return [at for at in asked if math.exp(row.logp[at]) >= tau]


def by_factor(row: Row, asked: list[int], factor: float) -> list[int]:
    line = sorted(in_order(asked, row.score), key=lambda at: -row.logp[at])
    kept = 0
    for n in range(1, len(line) + 1):
        if (n + 1) * -math.expm1(row.logp[line[n - 1]]) < factor:
            kept = n  # the largest such n
    return line[:kept]


def by_entropy(row: Row, asked: list[int], gamma: float) -> list[int]:
    line = sorted(in_order(asked, row.score), key=lambda at: row.entropy[at])
    kept = 1
    for k in range(1, len(line) + 1):
        terms = [row.entropy[at] for at in line[:k]]
        if sum(terms) - max(terms) <= gamma:
            kept = k
    return line[:kept]


def leaping(row: Row, asked: list[int], options: dict[str, Any]) -> list[int]:
    anchors = sure_enough(row, asked, options["tau"])
    near = [at for at in asked if any(abs(at - one) <= options["radius"] for one in anchors)]
    return anchors + sure_enough(row, near, options["relaxed"])


def expected(rule: Callable[[Row, list[int]], list[int]], row: Row) -> list[int]:
    """Return what the description says that all four share, with the rule of one of them."""
    if not row.candidates:
        return in_order(row.fallback, row.score)[:1]
    willing = [at for at in row.candidates if row.score[at] > -inf]
    accepted = rule(row, willing or row.candidates)
    return sorted(set(accepted) or in_order(row.candidates, row.score)[:1])


# No level meets a bound used below exactly: there float32 and Python may differ by rounding.
LEVELS = (0.0, 0.02, 0.3, 0.55, 0.7, 0.78, 0.88, 0.93, 0.97, 0.995, 1 - 1e-6)


def random_row(rng: random.Random) -> Row:
    width = rng.randint(1, 24)
    levels = rng.sample(LEVELS, rng.randint(1, len(LEVELS)))
    logp = [math.log(c) if (c := rng.choice(levels)) else -inf for _ in range(width)]
    if rng.random() < 0.2:  # nearly certain, by different powers of two
        logp = [-(2.0 ** -rng.randint(18, 60)) for _ in range(width)]
    logp = torch.tensor(logp).tolist()  # as float32 holds them
    kind = rng.choice(("confidence", "other", "other"))
    score = [v if kind == "confidence" else rng.randrange(4) / 4 for v in logp]
    odd = rng.choice((0.0, 0.3, 0.9, 1.0))
    score = [rng.choice(LAST) if rng.random() < odd else v for v in score]
    entropy = [rng.choice((0, 1, 1, 2, 3, 40, 64)) / 64 for _ in range(width)]  # sums are exact
    fallback = [at for at in range(width) if rng.random() < 0.8]
    share = rng.choice((0.0, 0.3, 0.7, 1.0))
    candidates = [at for at in fallback if rng.random() < share]
    return Row(logp, score, entropy, candidates, fallback)


def random_case(name: str, rng: random.Random) -> tuple[Selector, Callable[..., list[int]]]:
    if name == "threshold":
        tau = rng.choice((0.0, 0.5, 0.75, 0.9, 0.99, 0.999))
        return Threshold(tau), lambda row, asked: sure_enough(row, asked, tau)
    if name == "factor":
        factor = rng.choice((0.0, 2.1e-7, 0.113, 0.53, 1.03, 2.17, 9.37))
        return Factor(factor), lambda row, asked: by_factor(row, asked, factor)
    if name == "entropy_bound":
        gamma = rng.choice((0.0, 1 / 64, 2 / 64, 7 / 64, 0.3, 1.0, 9.0))
        return EntropyBound(gamma), lambda row, asked: by_entropy(row, asked, gamma)
    options = {
        "tau": rng.choice((0.9, 0.95, 0.99)),
        "relaxed": rng.choice((0.5, 0.75, 0.9)),
        "radius": rng.randint(0, 5),
    }
    return LocalLeap(**options), lambda row, asked: leaping(row, asked, options)


@pytest.mark.parametrize("name", ["threshold", "factor", "entropy_bound", "local_leap"])
def test_selector_equals_its_plain_loop(name):
    rng = random.Random(name)
    several = 0
    for _ in range(400):
        selector, rule = random_case(name, rng)
        rows = [random_row(rng) for _ in range(rng.randint(1, 4))]
        found = committed(selector, *rows)
        assert found == [expected(rule, one) for one in rows], f"{selector} {rows}"
        pairs = zip(found, rows, strict=True)
        several += sum(1 < len(places) < len(one.candidates) for places, one in pairs)
    assert several > 100  # neither one nor all: the rule decided


# --- in real decodes ----------------------------------------------------------------------------


def steps_of(strategy: str, *, length: int = 16, steps: int | None = None, **options):
    model = toy(seed=1)
    canvas = blank([[5, 6, 7]], length, mask_id=model.mask_id, pad_id=model.pad_id)
    config = Config(strategy=spec.resolve(strategy, "strategies"), **options)
    return list(decode(model, canvas, config, steps=[steps or length], seeds=[0]))


def commits(strategy: str, **options) -> list[list[int]]:
    """The slots committed at each step."""
    return [
        step.view.slot[0][step.decision.commit[0]].tolist()
        for step in steps_of(strategy, **options)
        if step.decision.commit.any()
    ]


def test_tau_0_commits_all_candidates_at_every_step():
    everything = list(range(16))
    assert commits("standard(selector=threshold(tau=0))") == [everything]
    assert commits("block(size=6, selector=threshold(tau=0))") == [
        everything[:6],
        everything[6:12],
        everything[12:],
    ]
    for step in steps_of("wavefront(size=5, radius=3, selector=threshold(tau=0))"):
        assert (
            torch.equal(step.decision.commit, step.decision.candidates)
            or not step.decision.commit.any()
        )


@pytest.mark.parametrize("strategy", ["standard", "block(size=4)", "wavefront", "left_to_right"])
@pytest.mark.parametrize("selector", ["factor(factor=0)", "threshold(tau=1)"])
def test_unsatisfied_rule_commits_one_token_per_step(strategy, selector):
    """The toy is never certain, so the selector commits the one best position."""
    name, _, options = strategy.rstrip(")").partition("(")
    adaptive = f"{name}({options}{', ' * bool(options)}selector={selector})"
    assert commits(adaptive) == commits(strategy)


def test_last_step_commits_everything_left():
    for strategy in ("standard", "block", "wavefront", "left_to_right"):
        found = commits(f"{strategy}(selector=threshold(tau=1))", steps=4)
        assert [len(one) for one in found] == [1, 1, 1, 13]


def test_adaptive_selector_allows_fewer_steps_than_blocks():
    found = commits("block(size=4, selector=threshold(tau=0))", steps=2)
    assert found == [[0, 1, 2, 3], list(range(4, 16))]
    found = commits("block(size=2, selector=threshold(tau=1))", steps=5)
    assert [len(one) for one in found] == [1, 1, 1, 1, 12]
    assert sorted(found[0] + found[1]) == [0, 1]


@pytest.mark.parametrize(
    "selector", ["threshold(tau=0.3)", "factor(factor=1.5)", "local_leap(0.4, 0.2)"]
)
@pytest.mark.parametrize("strategy", ["standard", "block", "wavefront"])
def test_adaptive_selector_needs_fewer_steps_than_positions(strategy, selector):
    found = commits(f"{strategy}(selector={selector})", length=32)
    assert len(found) < 32
    assert sorted(itertools.chain(*found)) == list(range(32))


@pytest.mark.parametrize("selector", EVERY, ids=repr)
def test_end_token_is_committed_last_in_a_real_decode(selector):
    """With eos='suppress-confidence', no end token is committed while a candidate is text."""
    model = toy(seed=1)
    plain = wavefront.generate_ids(model, [[5, 6, 7]], max_new_tokens=24).tokens[0]
    often = max(set(plain), key=plain.count)
    sampling = Sampling(eos="suppress-confidence", stop_ids=(often,))
    waited = 0
    for strategy in ("standard", "block", "wavefront"):
        for step in steps_of(f"{strategy}(selector={selector!r})", length=24, sampling=sampling)[
            :-1
        ]:
            offered, commit = step.decision.candidates, step.decision.commit
            ends = offered & step.view.score.isneginf()
            if bool((offered & ~ends).any()):
                assert not bool((commit & ends).any())
                waited += int(ends.any())
    assert waited > 5
