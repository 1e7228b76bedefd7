"""The tensor strategies against the oracle, commit for commit, on rows in which ties dominate."""

from __future__ import annotations

import random
import warnings

import pytest
import torch
from helpers import oracle

from wavefront.core.canvas import Canvas, infill
from wavefront.core.errors import WavefrontWarning
from wavefront.core.state import Config, decide_and_write, start
from wavefront.core.strategy import Strategy
from wavefront.strategies.block import Block
from wavefront.strategies.left_to_right import LeftToRight
from wavefront.strategies.standard import Standard
from wavefront.strategies.wavefront import Wavefront
from wavefront.testing.simulation import MASK, PAD, fill

pytestmark = pytest.mark.whole
KINDS = ("one a step", "four a step", "more steps than places", "any")
SLOW = ("one a step", "four a step", "more steps than places")


def random_case(rng: random.Random, kind: str) -> tuple[Canvas, oracle.Case]:
    """A row: a prompt and an answer, or a text with holes anywhere; sometimes padded."""
    if rng.random() < 0.4:
        length = rng.randint(4, 40)
        hole = rng.random()
        marks = [rng.random() < hole for _ in range(length)]
        marks[rng.randrange(length)] = True
    else:
        marks = [False] * rng.randint(0, 5) + [True] * rng.randint(1, 32)
    canvas = infill([[5] * len(marks)], [marks], mask_id=MASK, pad_id=PAD)
    left = rng.choice((0, 0, 3))
    pads = (PAD, False, False, -1)
    parts = zip(canvas, pads, strict=True)
    canvas = Canvas(*(torch.nn.functional.pad(t, (left, 0), value=v) for t, v in parts))
    masked = tuple(canvas.masked[0].nonzero()[:, 0].tolist())
    n = len(masked)
    steps = {
        "one a step": n,
        "four a step": max(1, n // 4),
        "more steps than places": n + rng.randint(1, 9),
        "any": rng.randint(1, n + 3),
    }[kind]
    known = frozenset(canvas.known[0].nonzero()[:, 0].tolist())
    return canvas, oracle.Case(known, masked, steps)


def random_scores(rng: random.Random, length: int) -> oracle.Scores:
    """Fresh scores every step from 2, 3, 10 or many levels, exact in float32; some NaN and -inf."""
    levels = rng.choice((2, 3, 10, 1 << 20))
    odd = rng.choice((0.0, 0.0, 0.2))
    seed = rng.randrange(1 << 30)

    def at(step: int, masked: frozenset[int]) -> dict[int, float]:
        source = random.Random(seed * 1000 + step)
        drawn = [source.randrange(levels) / levels for _ in range(length)]
        strange = [source.choice((float("nan"), float("-inf"))) for _ in range(length)]
        return {p: strange[p] if source.random() < odd else drawn[p] for p in sorted(masked)}

    return at


def decode(strategy: Strategy, canvas: Canvas, case: oracle.Case, scores: oracle.Scores):
    """(commit, candidates, front) of every step of the tensor strategy, as sets of positions."""
    config = Config(strategy=strategy, fixed_budget=True)
    rows = start(canvas, config, [case.steps], seeds=[0])
    no = torch.zeros(1, dtype=torch.bool)
    for step in range(case.steps):
        masked = frozenset(rows.canvas.masked[0].nonzero()[:, 0].tolist())
        board = torch.full(canvas.tokens.shape, 0.5)
        for place, value in scores(step, masked).items():
            board[0, place] = value
        rows, _, decision = decide_and_write(config, fill(rows, board), MASK, bad=no, void=no)
        state = decision.state if isinstance(decision.state, torch.Tensor) else no[None]
        yield tuple(
            frozenset(part[0].nonzero()[:, 0].tolist())
            for part in (decision.commit, decision.candidates, state)
        )


def differs(strategy, reference, canvas, case, scores) -> str | None:
    """Where tensors and oracle part, or None."""
    for step, (ours, theirs) in enumerate(
        zip(decode(strategy, canvas, case, scores), reference, strict=True)
    ):
        commit, scope, front = ours
        if commit != frozenset(theirs.commit):
            return f"step {step}: commit {sorted(commit)} against {sorted(theirs.commit)}"
        if isinstance(strategy, Wavefront) and (scope, front) != (theirs.scope, theirs.front_after):
            return f"step {step}: front {sorted(front)} against {sorted(theirs.front_after)}"
    return None


@pytest.mark.parametrize(
    "kind", [pytest.param(one, marks=pytest.mark.slow) if one in SLOW else one for one in KINDS]
)
@pytest.mark.parametrize("grow", ["rebuild", "accumulate"])
def test_wavefront_equals_the_oracle(kind, grow):
    rng = random.Random(f"{kind} {grow}")
    for _ in range(400):
        canvas, case = random_case(rng, kind)
        size, radius = rng.randint(1, 10), rng.randint(1, 9)
        scores = random_scores(rng, canvas.tokens.shape[1])
        reference = oracle.wavefront(case, scores, size=size, radius=radius, grow=grow)
        found = differs(Wavefront(size, radius, grow), reference, canvas, case, scores)
        assert found is None, f"F={size} R={radius} {case}: {found}"


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_other_strategies_equal_the_oracle(kind):
    rng = random.Random(kind)
    for _ in range(150):
        canvas, case = random_case(rng, kind)
        scores = random_scores(rng, canvas.tokens.shape[1])
        size = rng.randint(max(1, -(-len(case.masked) // case.steps)), 12 + len(case.masked))
        for strategy, reference in (
            (Standard(), oracle.standard(case, scores)),
            (LeftToRight(), oracle.left_to_right(case, scores)),
            (Block(size), oracle.block(case, scores, size=size)),
        ):
            found = differs(strategy, reference, canvas, case, scores)
            assert found is None, f"{strategy} {case}: {found}"


@pytest.mark.parametrize("mutate", ["fresh-prune", "ties-right", "reserve-first"])
def test_comparison_notices_a_wrong_rule(mutate):
    """The comparison has teeth: each deliberately wrong oracle disagrees with the tensors."""
    rng = random.Random(mutate)
    disagreements = 0
    for _ in range(200):
        canvas, case = random_case(rng, "four a step")
        scores = random_scores(rng, canvas.tokens.shape[1])
        size, radius = rng.randint(1, 4), rng.randint(2, 8)
        wrong = oracle.wavefront(case, scores, size=size, radius=radius, mutate=mutate)
        disagreements += differs(Wavefront(size, radius), wrong, canvas, case, scores) is not None
    assert disagreements > 20


@pytest.mark.slow
def test_wide_front_and_wide_block_equal_standard():
    rng = random.Random(5)
    for _ in range(100):
        canvas, case = random_case(rng, rng.choice(KINDS))
        scores = random_scores(rng, canvas.tokens.shape[1])
        n = canvas.tokens.shape[1]
        for grow in ("rebuild", "accumulate"):
            found = differs_from_standard(Wavefront(n, n, grow), canvas, case, scores)
            assert found is None, found
        assert differs_from_standard(Block(n), canvas, case, scores) is None


def differs_from_standard(strategy, canvas, case, scores) -> str | None:
    pairs = zip(
        decode(strategy, canvas, case, scores),
        decode(Standard(), canvas, case, scores),
        strict=True,
    )
    for step, (ours, theirs) in enumerate(pairs):
        if ours[0] != theirs[0]:
            return f"{strategy} {case} step {step}: {sorted(ours[0])} against {sorted(theirs[0])}"
    return None


def test_quota_above_the_size_warns_once_and_decodes():
    with pytest.warns(WavefrontWarning, match="more than the front's size"):
        Wavefront(size=4).validate(64, 8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Wavefront(size=8).validate(64, 8)
