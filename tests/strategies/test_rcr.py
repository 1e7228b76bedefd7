"""RCR by hand, against a plain loop over lists, and on the embedded model."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from random import Random

import pytest
import torch
from helpers import oracle
from strategies.test_against_oracle import KINDS, random_case, random_scores

import wavefront
from wavefront import tasks
from wavefront.core.canvas import Canvas, blank
from wavefront.core.errors import OptionError
from wavefront.core.reading import Sampling
from wavefront.core.state import Config, decide_and_write, start
from wavefront.core.strategy import Strategy
from wavefront.strategies.rcr import Rcr
from wavefront.strategies.selectors.threshold import Threshold
from wavefront.testing.simulation import MASK, PAD, fill

Places = frozenset[int]
STATS = ("last", "min", "max")


def decode(
    strategy: Strategy,
    canvas: Canvas,
    steps: int,
    scores: oracle.Scores,
    *,
    fixed_budget: bool = True,
    sampling: Sampling | None = None,
) -> Iterator[tuple[int, Places, Places, Places]]:
    """(step, commit, remask, final) of every step of one row, as sets of positions."""
    sampling = sampling or Sampling()
    config = Config(strategy=strategy, fixed_budget=fixed_budget, sampling=sampling)
    rows = start(canvas, config, [steps], seeds=[0])
    no = torch.zeros(1, dtype=torch.bool)
    while not rows.done:
        step = int(rows.step)
        masked = frozenset(rows.canvas.masked[0].nonzero()[:, 0].tolist())
        board = torch.full(canvas.tokens.shape, 0.5)
        for place, value in scores(step, masked).items():
            board[0, place] = value
        rows, _, decision = decide_and_write(config, fill(rows, board), MASK, bad=no, void=no)
        assert decision.remask is not None
        parts = (decision.commit, decision.remask, rows.final)
        commit, remask, final = (frozenset(p[0].nonzero()[:, 0].tolist()) for p in parts)
        yield step, commit, remask, final


def rcr(
    places: tuple[int, ...],
    steps: int,
    scores: oracle.Scores,
    *,
    size: int,
    stat: str = "last",
    tau: float | None = None,
) -> Iterator[tuple[Places, Places]]:
    """(new, gone) of every step, by lists: fill the block, write down r, mask the smallest again.

    With quotas, as published: at step t of a block, the sum of the quotas after t is masked again.
    With a threshold `tau` (ours), all but as many as the threshold would have taken.
    """
    quotas = oracle.block_quotas(len(places), steps, size) if tau is None else [1] * steps
    blocks = [places[at : at + size] for at in range(0, len(places), size)]
    ends = [block[-1] for block in blocks]
    shares = [oracle.even(steps, len(blocks), index) for index in range(len(blocks))]
    text: set[int] = set()
    heard: dict[int, list[float]] = {place: [] for place in places}

    def r(place: int) -> tuple[float, int]:
        values = [float("-inf") if v != v else v for v in heard[place]]
        chosen = {"last": values[-1], "min": min(values), "max": max(values)}[stat]
        return chosen, -place  # of equals, the one further right goes

    block = 0
    for step in range(steps):
        if tau is None:
            block = next(b for b in range(len(blocks)) if step < sum(shares[: b + 1]))
        to_fill = [p for p in places if p <= ends[block] and p not in text]
        if not to_fill or quotas[step] == 0:
            yield frozenset(), frozenset()
            continue
        score = scores(step, frozenset(p for p in places if p not in text))
        for place in to_fill:
            heard[place].append(score[place])
        filled = sorted(text | set(to_fill), key=r)
        if tau is None:
            back = sum(quotas[step + 1 : sum(shares[: block + 1])])
        else:
            back = len(to_fill) - max(1, sum(score[p] >= tau for p in to_fill))
        after = set(filled[back:])
        yield frozenset(after - text), frozenset(text - after)
        text = after
        if len(text) == len(places[: (block + 1) * size]) and block + 1 < len(blocks):
            block += 1


def table(rows: list[dict[int, float]]) -> Callable[[int, Places], dict[int, float]]:
    return lambda step, masked: {p: rows[step].get(p - 1, 0.5) for p in masked}


def line(places: int) -> Canvas:
    """One prompt token, then the answer: slot 0 stands at position 1."""
    return blank([[5]], places, mask_id=MASK, pad_id=PAD)


def slots(found) -> list[tuple[set[int], set[int]]]:
    return [({p - 1 for p in new}, {p - 1 for p in gone}) for _, new, gone, _ in found]


def test_token_of_an_earlier_block_is_remasked_and_filled_again():
    scores = table([{0: 0.5, 1: 0.8}, {0: 0.4}, {2: 0.9, 3: 0.7}, {0: 0.6}])
    found = list(decode(Rcr(size=2), line(4), 4, scores))
    # Block 0, both filled: slot 1 is surer. Then slot 0, which is now 0.4 and the block's rest.
    # Block 1: of 0.4, 0.8, 0.9, 0.7 three stay, so slot 0 falls out and is alone at the end.
    assert slots(found) == [({1}, set()), ({0}, set()), ({2, 3}, {0}), ({0}, set())]
    assert [len(final) - 1 for *_, final in found] == [0, 0, 0, 4]  # nothing before the end


@pytest.mark.parametrize(
    ("stat", "second", "expected"),
    [
        ("last", {0: 0.9, 1: 0.8}, ({0, 1}, {2})),
        ("max", {0: 0.9, 1: 0.8}, ({0, 1}, {2})),
        ("min", {0: 0.9, 1: 0.8}, ({1}, set())),  # 0.6 is the best minimum of the masked
        ("last", {0: 0.55, 1: 0.2}, ({0}, set())),
        ("max", {0: 0.55, 1: 0.2}, ({1}, set())),  # 0.6 is remembered
    ],
)
def test_which_score_counts(stat, second, expected):
    scores = table([{0: 0.5, 1: 0.6, 2: 0.7}, second, {}])
    found = slots(decode(Rcr(size=3, stat=stat), line(3), 3, scores))
    assert found[:2] == [({2}, set()), expected]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stat", STATS)
def test_decode_equals_the_list_oracle(kind, stat):
    rng = random.Random(f"rcr {kind} {stat}")
    pulled = 0
    for _ in range(25):
        canvas, case = random_case(rng, kind)
        n, steps = len(case.masked), case.steps
        size = rng.randint(-(-n // steps), max(-(-n // steps), n // 2 + 1))
        scores = random_scores(rng, canvas.tokens.shape[1])
        reference = list(rcr(case.masked, steps, scores, size=size, stat=stat))
        ours = list(decode(Rcr(size=size, stat=stat), canvas, steps, scores))
        while reference and reference[-1] == (set(), set()) and len(reference) > len(ours):
            reference.pop()  # a full row is done, whatever steps are left
        assert [(new, gone) for _, new, gone, _ in ours] == reference, f"{size=} {case}"
        survivors, quotas = 0, oracle.block_quotas(n, steps, size)
        for step, new, gone, _ in ours:
            survivors += len(new) - len(gone)
            assert survivors == sum(quotas[: step + 1])
            pulled += len(gone)
    assert pulled > 5


def test_decode_with_a_threshold_equals_the_list_oracle():
    rng = random.Random("rcr threshold")
    pulled = 0
    for _ in range(40):
        canvas, case = random_case(rng, "one a step")
        scores = random_scores(rng, canvas.tokens.shape[1])
        size, stat, tau = rng.randint(1, 9), rng.choice(STATS), rng.choice((0.45, 0.73))
        finite = lambda step, masked, s=scores: {  # noqa: E731
            p: v if v == v and v > 0 else 0.0 for p, v in s(step, masked).items()
        }
        reference = rcr(case.masked, case.steps, finite, size=size, stat=stat, tau=tau)
        ours = list(decode(Rcr(size, Threshold(tau), stat), canvas, case.steps, finite))
        assert [(new, gone) for _, new, gone, _ in ours] == list(reference)[: len(ours)]
        assert sum(len(new) - len(gone) for _, new, gone, _ in ours) == len(case.masked)
        assert all(new for _, new, _, _ in ours)  # a full row is done, and runs no further
        pulled += sum(len(gone) for _, _, gone, _ in ours)
    assert pulled > 20


def test_one_block_with_stat_min_remasks_nothing():
    rng = random.Random("min")
    taken = dict.fromkeys(STATS, 0)
    for _ in range(25):
        canvas, case = random_case(rng, "one a step")
        scores = random_scores(rng, canvas.tokens.shape[1])
        for stat in STATS:
            found = decode(Rcr(size=100, stat=stat), canvas, case.steps, scores)
            taken[stat] += sum(len(gone) for _, _, gone, _ in found)
    assert taken["min"] == 0
    assert min(taken["last"], taken["max"]) > 20


def test_one_block_with_fixed_scores_equals_standard():
    rng = random.Random("steady")
    for _ in range(25):
        canvas, case = random_case(rng, rng.choice(KINDS))
        fresh = random_scores(rng, canvas.tokens.shape[1])(0, frozenset(case.masked))
        steady = lambda step, masked, s=fresh: {p: s[p] for p in masked}  # noqa: E731
        for stat in STATS:
            ours = list(decode(Rcr(size=100, stat=stat), canvas, case.steps, steady))
            reference = oracle.standard(case, steady)
            assert [new for _, new, _, _ in ours] == [
                set(record.commit) for record in list(reference)[: len(ours)]
            ]
            assert not any(gone for _, _, gone, _ in ours)


def test_skipped_steps_would_change_nothing():
    rng = random.Random("idle")
    saved = 0
    for _ in range(25):
        canvas, case = random_case(rng, "more steps than places")
        scores = random_scores(rng, canvas.tokens.shape[1])
        strategy = Rcr(size=rng.randint(1, 9))
        every, few = (
            list(decode(strategy, canvas, case.steps, scores, fixed_budget=fixed))
            for fixed in (True, False)
        )
        assert [s[:3] for s in every if s[1]] == [s[:3] for s in few]
        saved += len(every) - len(few)
    assert saved > 20


def test_stop_waits_until_tokens_are_final():
    scores = table([{0: 0.5, 1: 0.8}, {0: 0.4}, {2: 0.9, 3: 0.7}, {0: 0.6}])
    stop = Sampling(eos="stop", stop_ids=(7,))  # every proposal of `fill` is a 7
    assert len(list(decode(Rcr(size=2), line(4), 4, scores, sampling=stop))) == 4


def test_options_are_checked():
    for wrong in ({"size": 0}, {"stat": "mean"}):
        with pytest.raises(OptionError):
            Rcr(**wrong)
    with pytest.raises(OptionError, match="fewer than the 4 blocks"):
        Rcr(size=3).validate(12, 3)


@pytest.mark.slow
def test_built_in_model_remasks_in_an_earlier_block():
    """A quarter of the steps: the second block's tokens push two of the first block's out."""
    lm = wavefront.load("ripple")
    sample = tasks.load("gsm").sample(Random(0), split="held-out")
    earlier, counts = [], []
    stream = lm.stream(sample.prompt, strategy="rcr(size=16)", max_new_tokens=32, steps=8)
    for step in stream:
        slot, progress = step.view.slot[0], step.view.progress
        begun = int(progress.length - progress.left) // 16 * 16
        assert step.decision.remask is not None
        gone = slot[step.decision.remask[0]].tolist()
        earlier += [(step.number, place) for place in gone if place < begun]
        counts.append(32 - int(step.canvas.masked.sum()))
    assert counts == [4, 8, 12, 16, 20, 24, 28, 32]
    assert earlier
    assert all(place < 16 for _, place in earlier)
    assert not stream.decoding.undecided()[0].count(True)
    assert stream.completions[0].forwards == 8
