"""Teacher forcing against a loop that knows the published model only, and bins by hand."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch

from wavefront.analysis.measures import calibration
from wavefront.analysis.measures.calibration import (
    TeacherForcing,
    decode_forced,
    forced_batch,
    reliability,
)
from wavefront.core.canvas import Canvas
from wavefront.core.errors import OptionError
from wavefront.core.reading import Sampling
from wavefront.core.spec import resolve
from wavefront.core.state import Config
from wavefront.engine.batcher import decode
from wavefront.models.toy import toy

pytestmark = pytest.mark.filterwarnings("ignore::wavefront.core.errors.WavefrontWarning")

PROMPTS = [[1, 2, 3], [4, 5, 6, 7, 8], [9]]
ANSWERS = [[11, 12, 13, 14, 15, 16], [21, 22, 23], [31, 32, 33, 34, 35, 36, 37, 38, 39]]
EOS = 62


def model_of(family="llada"):
    return toy(seed=7, family=family, dtype="float64", layers=1)


def lesson_of(model, length=None, rows=slice(None)):
    return forced_batch(
        PROMPTS[rows], ANSWERS[rows], eos=EOS, mask_id=model.mask_id, pad_id=model.pad_id,
        length=length,
    )  # fmt: skip


def config_of(strategy, **more):
    return Config(strategy=resolve(strategy, "strategies"), **more)


# --- the reference: lists and sets, one row, the model's own logits -----------------------------


def opinion(model, tokens):
    """Return {position: (proposal, probability)} of a canvas, without the mask token."""
    logits = model.raw_logits([tokens])[0]
    said = {}
    for place in range(len(tokens)):
        odds = logits[max(place - 1, 0) if model.family == "dream" else place].softmax(-1)
        best = max(range(len(odds)), key=lambda v, o=odds: (v != model.mask_id, float(o[v]), -v))
        said[place] = (best, float(odds[best]))
    return said


def scope_of(strategy, masked, known, front, start):
    if strategy.startswith("block"):
        size = 3
        return {p for p in masked if (p - start) // size == (min(masked) - start) // size}
    if strategy.startswith("wavefront"):
        return front
    return {min(masked)} if strategy == "left_to_right" else masked


def counts(strategy, places):
    """Return how many positions each of T = N steps commits. Blocks of 3 share the steps."""
    if not strategy.startswith("block"):
        return [1] * places
    blocks = -(-places // 3)
    found = []
    for block in range(blocks):
        size, steps = min(3, places - 3 * block), places // blocks + (block < places % blocks)
        found += [size // steps + (step < size % steps) for step in range(steps)]
    return found


def expected(model, strategy, prompt, truth, prefix):
    """Return [(t, position, probability, right)] in order, with size 4 and radius 2."""
    tokens = [*prompt, *[model.mask_id] * len(truth)]
    start = len(prompt)
    masked, known = set(range(start, len(tokens))), set(range(start))
    front = set(sorted(masked)[:4])
    found = []
    for t, k in enumerate(counts(strategy, len(truth)), 1):
        said = opinion(model, tokens)
        scope = scope_of(strategy, masked, known, front, start) if k else set()
        chosen = sorted(scope, key=lambda p: (-said[p][1], p))[:k]
        for place in sorted(chosen):
            found.append((t, place, said[place][1], said[place][0] == truth[place - start]))
        written = sorted(masked)[:k] if prefix else chosen
        for place in written:
            tokens[place] = truth[place - start]
        masked, known = masked - {*written}, known | {*written}
        near = {p for p in masked if any(abs(p - one) <= 2 for one in known)}
        # In the strict reading the leftmost count as the best, also when the front is pruned.
        order = sorted(near, key=lambda p: p if prefix else (-said[p][1], p))
        front = set(order[:4])
    return found


@pytest.mark.parametrize("prefix", [False, True])
@pytest.mark.parametrize("length", [None, 12])
@pytest.mark.parametrize(
    ("family", "strategy"),
    [
        ("llada", "wavefront(size=4, radius=2)"),
        ("llada", "block(size=3)"),
        ("dream", "standard"),
        ("llada", "left_to_right"),
    ],
)
def test_equals_brute_force(family, strategy, length, prefix):
    model = model_of(family)
    found = decode_forced(model, lesson_of(model, length), config_of(strategy), prefix=prefix)
    width = max(len(prompt) for prompt in PROMPTS)
    for row, (prompt, answer) in enumerate(zip(PROMPTS, ANSWERS, strict=True)):
        size = len(answer) + 1 if length is None else length
        truth = [*answer, *[EOS] * (size - len(answer))]
        want = expected(model, strategy, prompt, truth, prefix)
        mine = found.row == row
        ours = sorted(
            zip(
                found.t[mine].tolist(),
                (found.place[mine] - width + len(prompt)).tolist(),
                found.confidence[mine].tolist(),
                found.correct[mine].tolist(),
                strict=True,
            )
        )
        assert [line[:2] for line in ours] == [line[:2] for line in want]
        assert [line[2] for line in ours] == pytest.approx([line[2] for line in want], abs=1e-5)
        assert [line[3] for line in ours] == [line[3] for line in want]


# --- what holds of every strategy ----------------------------------------------------------------

EVERY = [
    "standard", "block(size=3)", "left_to_right", "wavefront(size=3, radius=1)",
    "wavefront(size=3, grow='accumulate')", "rcr(size=4)", "tbd(size=4, drop=1, min_kept=1)",
    "tide(size=4, cascade_rounds=0, horizon=0, revisable_band=2, "
    "remask_below=0.5, selector=quota())", "dsb(size=4)", "dcd(masks=4)",
    "adablock(delimiters=(3,))", "wavefront(selector=threshold(0.5))",
    "standard(selector=origin())",
]  # fmt: skip


def steps_of(model, lesson, config, **how):
    return list(
        decode(
            model, lesson.canvas, config, steps=lesson.steps, seeds=[0] * len(lesson.steps),
            hook=TeacherForcing(lesson.truth, config, mask_id=model.mask_id, **how),
        )
    )  # fmt: skip


@pytest.mark.parametrize("strategy", EVERY)
def test_only_the_truth_is_written(strategy):
    model = model_of()
    lesson = lesson_of(model)
    inside = lesson.canvas.slot >= 0
    steps = steps_of(model, lesson, config_of(strategy))
    for step in steps:
        known = step.canvas.known & inside
        assert torch.equal(step.canvas.tokens[known], lesson.truth[known])
        assert torch.equal(step.canvas.tokens[~inside], lesson.canvas.tokens[~inside])
        assert (step.canvas.tokens[step.canvas.masked] == model.mask_id).all()
    assert not steps[-1].canvas.masked.any()
    found = decode_forced(model, lesson, config_of(strategy))
    commits = torch.stack([step.decision.commit for step in steps])
    assert len(found.confidence) == int(commits.sum()) >= int(inside.sum())


@pytest.mark.parametrize("strategy", [one for one in EVERY if not one.startswith(("rcr", "tbd"))])
def test_prefix_reading_writes_from_the_left(strategy):
    model = model_of()
    if strategy.startswith("tide"):
        with pytest.raises(OptionError, match="remasks tokens"):
            decode_forced(model, lesson_of(model), config_of(strategy), prefix=True)
        return
    steps = steps_of(model, lesson_of(model), config_of(strategy), prefix=True)
    for step in steps:
        masked = step.canvas.masked
        slots = step.canvas.slot
        left = torch.where(masked, slots, 99).amin(-1, keepdim=True)
        assert not ((slots >= left) & step.canvas.known).any()
    assert not steps[-1].canvas.masked.any()


def test_batch_equals_its_rows():
    model = model_of()
    for prefix in (False, True):
        config = config_of("wavefront(size=4, radius=2)")
        together = decode_forced(model, lesson_of(model), config, prefix=prefix)
        parts = [
            decode_forced(model, lesson_of(model, rows=slice(i, i + 1)), config, prefix=prefix)
            for i in range(3)
        ]
        joined = calibration.Outcomes.join(parts)
        key = together.row * 100 + together.t
        order = key.argsort(stable=True)
        assert torch.equal(together.row[order], joined.row)
        assert torch.equal(together.correct[order], joined.correct)
        assert torch.allclose(together.confidence[order], joined.confidence, atol=1e-5)


def test_narrow_width_gives_the_same_outcomes():
    """A step with more candidates than the width is repeated, also under teacher forcing."""
    model = model_of()
    narrow = config_of("wavefront(size=2, radius=1, selector=threshold(0.3))")
    wide = config_of("wavefront(size=2, radius=1, selector=threshold(0.3))", read_all_masked=True)
    for prefix in (False, True):
        a, b = (
            decode_forced(model, lesson_of(model), one, prefix=prefix) for one in (narrow, wide)
        )
        assert torch.equal(a.place, b.place)
        assert torch.allclose(a.confidence, b.confidence)


def test_forced_batch_has_room_for_references_and_eos():
    one = forced_batch([[1], [2, 3]], [[7, 8], [9]], eos=5, mask_id=0, pad_id=6)
    assert one.steps == [3, 2]
    assert one.truth.tolist() == [[6, 1, 7, 8, 5], [2, 3, 9, 5, 6]]
    assert one.canvas.tokens.tolist() == [[6, 1, 0, 0, 0], [2, 3, 0, 0, 6]]
    padded = forced_batch([[1], [2, 3]], [[7, 8], [9]], eos=5, mask_id=0, pad_id=6, length=4)
    assert padded.steps == [4, 4]
    assert padded.truth.tolist() == [[6, 1, 7, 8, 5, 5], [2, 3, 9, 5, 5, 5]]
    assert isinstance(padded.canvas, Canvas)


def test_invalid_input_raises():
    model = model_of()
    with pytest.raises(OptionError, match="needs 3 positions"):
        forced_batch([[1]], [[7, 8]], eos=5, mask_id=0, pad_id=6, length=2)
    with pytest.raises(OptionError, match="references"):
        forced_batch([[1]], [], eos=5, mask_id=0, pad_id=6)
    stops = config_of("standard", sampling=Sampling(eos="stop", stop_ids=(EOS,)))
    with pytest.raises(OptionError, match="eos='keep'"):
        decode_forced(model, lesson_of(model), stops)


# --- bins -----------------------------------------------------------------------------------------


def bins_by_hand(confidence, correct, bins):
    groups = [[] for _ in range(bins)]
    for p, right in zip(confidence, correct, strict=True):
        exact = Fraction(p)
        index = next(i for i in range(bins) if exact < Fraction(i + 1, bins) or i == bins - 1)
        groups[index].append((p, right))
    gaps = [
        abs(sum(r for _, r in group) / len(group) - sum(p for p, _ in group) / len(group))
        for group in groups
        if group
    ]
    sizes = [len(group) for group in groups]
    share = [size / len(confidence) for size in sizes if size]
    return sizes, sum(s * g for s, g in zip(share, gaps, strict=True)), max(gaps)


@pytest.mark.parametrize("bins", [1, 3, 10, 15])
def test_bins_equal_brute_force(bins):
    source = torch.Generator().manual_seed(bins)
    drawn = torch.rand(300, generator=source)
    # Edges as float32 has them, and both ends.
    confidence = torch.cat([drawn, torch.arange(bins + 1) / bins, torch.tensor([0.3, 0.7])])
    correct = torch.rand(len(confidence), generator=source) < confidence**2
    found = reliability(confidence, correct, bins)
    sizes, ece, mce = bins_by_hand(confidence.tolist(), correct.tolist(), bins)
    assert found.count.tolist() == sizes
    assert found.total == len(confidence)
    assert (found.ece, found.mce) == (pytest.approx(ece), pytest.approx(mce))


def test_bins_match_hand_arithmetic():
    """Four confident outcomes, three of them right, and one unsure outcome that is right."""
    found = reliability([0.9, 0.9, 0.9, 0.9, 0.25], [1, 1, 1, 0, 1])
    assert found.count.tolist() == [0, 0, 1, 0, 0, 0, 0, 0, 0, 4]
    assert found.edges.tolist() == pytest.approx([i / 10 for i in range(11)])
    assert found.gap[9] == pytest.approx(-0.15)
    assert found.mce == pytest.approx(0.75)
    assert found.ece == pytest.approx(0.8 * 0.15 + 0.2 * 0.75)
    assert math.isnan(found.accuracy[0])


def test_calibrated_model_has_no_error():
    found = reliability([0.75] * 4, [1, 1, 1, 0])
    assert (found.ece, found.mce) == (0.0, 0.0)
    assert math.isnan(reliability([], []).ece)
    assert math.isnan(reliability([], []).mce)


@pytest.mark.parametrize(
    ("confidence", "correct"), [([0.5], [1, 0]), ([1.5], [1]), ([math.nan], [1]), ([[0.5]], [[1]])]
)
def test_values_outside_probabilities_raise(confidence, correct):
    with pytest.raises(OptionError):
        reliability(confidence, correct)
    with pytest.raises(OptionError, match="bins"):
        reliability([0.5], [1], 0)
