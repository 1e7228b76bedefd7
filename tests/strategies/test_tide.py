"""Tide: with all options off it is wavefront; each option against a plain loop, and by hand."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from math import ceil, inf, log, nan
from typing import Any, NamedTuple

import pytest
import torch
from engine.test_speculation import both, holes, ragged, same
from helpers import oracle
from helpers.commands import records, refused, run
from helpers.steps import advance
from strategies.test_against_oracle import KINDS, random_case

from wavefront.core import spec
from wavefront.core.canvas import Canvas, blank, infill
from wavefront.core.errors import OptionError, WavefrontWarning
from wavefront.core.state import Config, candidates, decide_and_write, start
from wavefront.core.strategy import Strategy
from wavefront.engine import speculation
from wavefront.engine.batcher import decode
from wavefront.models.toy import toy
from wavefront.strategies.selectors.dream import Dream
from wavefront.strategies.selectors.factor import Factor
from wavefront.strategies.selectors.origin import Origin
from wavefront.strategies.selectors.quota import Quota
from wavefront.strategies.selectors.threshold import Threshold
from wavefront.strategies.standard import Standard
from wavefront.strategies.tide import Tide
from wavefront.strategies.wavefront import Wavefront
from wavefront.testing.simulation import MASK, PAD, to_meta

pytestmark = pytest.mark.filterwarnings("ignore::wavefront.core.errors.WavefrontWarning")

Places = frozenset[int]
OFF = {"cascade_rounds": 0, "horizon": 0, "selector": Quota()}


def plain_tide(*args: int, **options: Any) -> Tide:
    """Return tide with everything off, but for the given options."""
    return Tide(*args, **OFF | options)


def plain_spec(text: str) -> str:
    """Return a spec of tide with everything off, but for the options that it names."""
    if not text.startswith("tide("):
        return text
    off = [f"{name}={value!r}" for name, value in OFF.items() if f"{name}=" not in text]
    return f"{', '.join([text[:-1], *off])})".replace("(, ", "(")


class Reading(NamedTuple):
    """What a forward says of every position."""

    sure: dict[int, float]  # the probability of the proposal
    score: dict[int, float]  # its logarithm, or NaN or -inf where the position is put off
    own: dict[int, float]  # the probability of the token that stands there


class Record(NamedTuple):
    """One step, as sets of positions."""

    shown: Places  # to the model
    scope: Places
    commit: Places
    remask: Places
    final: Places  # after the step, as the front
    front: Places


Readings = Callable[[int], Reading]


# --- the loop over sets -------------------------------------------------------------------------


def tide(case: oracle.Case, readings: Readings, rule: Tide) -> Iterator[Record]:
    """One row, from the description of the class alone."""
    known, masked, final = set(case.known), set(case.masked), set(case.known)
    front = set(case.masked[: rule.size])
    taken = dict.fromkeys(case.masked, 0)
    for step in range(case.steps):
        if not masked:
            return
        shown = known | {p for p in masked if not rule.horizon or p <= max(front) + rule.horizon}
        sure, score, own = readings(step)
        quota = oracle.even(len(case.masked), case.steps, step)
        if rule.revisable_band:  # what was remasked is filled again
            quota = ceil(len(masked) / (case.steps - step))

        scope = set(front)
        if isinstance(rule.selector, Quota):
            order = oracle.ranked(front, score) + oracle.ranked(masked - front, score)
            commit = set(order[:quota])
        else:
            commit = at_once(rule.selector, scope, sure, score)
        for _ in range(rule.cascade_rounds):
            near = {
                p
                for p in (masked - commit) & shown
                if oracle.near(p, known | commit, rule.radius) and score[p] > -inf
            }
            asked = oracle.ranked(near, score)[: rule.size]
            scope = scope | set(asked)
            for place in surest(accepted(rule.selector, asked, sure, score), sure, score):
                if sum(1 - sure[p] for p in {*commit, place}) <= rule.risk:
                    commit.add(place)
        doubted = [p for p in sorted(known - final) if own[p] < rule.remask_below]
        remask = set(sorted(doubted, key=lambda p: own[p])[: max(0, len(commit) - 1)])
        if not rule.revisable_band:
            remask = set()
        if step == case.steps - 1:  # the engine completes what is left
            commit, remask = set(masked), set()

        known, masked = (known | commit) - remask, (masked - commit) | remask
        for place in remask:
            taken[place] += 1
        grown = {p for p in masked if oracle.near(p, known, rule.radius)}
        front = set(oracle.ranked(grown, score)[: rule.size])
        for place in known - final:
            if (
                not oracle.near(place, masked, rule.revisable_band)
                or taken[place] >= rule.max_remasks
            ):
                final.add(place)
        yield Record(*map(frozenset, (shown, scope, commit, remask, final, front)))


def at_once(selector, scope: set, sure: dict, score: dict) -> set:
    """What an adaptive selector commits of candidates that is not empty."""
    willing = {p for p in scope if score[p] > -inf}
    return accepted(selector, willing or scope, sure, score) or {oracle.ranked(scope, score)[0]}


def accepted(selector, asked, sure: dict, score: dict) -> set:
    if isinstance(selector, Threshold):
        return {p for p in asked if sure[p] >= selector.tau}
    found = set()
    for n, place in enumerate(surest(asked, sure, score), start=1):
        if (n + 1) * (1 - sure[place]) < selector.factor:
            found.add(place)
    return found


def surest(places, sure: dict, score: dict) -> list[int]:
    return sorted(oracle.ranked(places, score), key=lambda p: 1 - sure[p])


# --- the tensors --------------------------------------------------------------------------------


def play(
    rule: Strategy, canvas: Canvas, steps: int, readings: Readings, *, fixed_budget: bool = True
) -> Iterator[Record]:
    """Every step of one row of the tensors. What they did not ask for is noise to them."""
    config = Config(strategy=rule, fixed_budget=fixed_budget)
    rows = start(canvas, config, [steps], seeds=[0])
    no, source = torch.zeros(1, dtype=torch.bool), torch.Generator().manual_seed(0)
    while not rows.done:
        wanted = candidates(config, rows)
        boards = []
        for part in readings(int(rows.step)):
            noise = torch.rand(wanted.shape, generator=source) * 1.1
            said = torch.tensor([[part[place] for place in range(wanted.shape[1])]])
            boards.append(torch.where(wanted, said, noise.masked_fill(noise > 1, nan)))
        stats = rows.stats._replace(logp=boards[0].log())
        if "current_logp" in config.needs:
            stats = stats._replace(current_logp=boards[2].log())
        shown = rule.attended(rows.canvas, rows.state)
        given = rows._replace(score=boards[1], stats=stats, proposal=torch.full_like(wanted * 1, 7))
        rows, _, decision = decide_and_write(config, given, MASK, bad=no, void=no)
        assert not bool((decision.commit & ~wanted).any())  # its token would be a stale one
        remask = torch.zeros_like(wanted) if decision.remask is None else decision.remask
        front = rule.front(decision.state)
        assert front is not None
        shown = canvas.real if shown is None else shown
        yield Record(
            *map(places, (shown, decision.candidates, decision.commit, remask, rows.final, front))
        )


def places(board) -> Places:
    return frozenset(board[0].nonzero()[:, 0].tolist())


def random_readings(rng: random.Random, length: int, *, fine: bool) -> Readings:
    """Fresh every step. Coarse: ties dominate; certainty and positions put off are among them."""
    seed, odd = rng.randrange(1 << 30), rng.choice((0.0, 0.2))

    def at(step: int) -> Reading:
        source = random.Random(seed * 1000 + step)
        if fine:
            sure = {p: source.uniform(0.02, 0.999) for p in range(length)}
        else:
            sure = {p: source.choice((3, 7, 9, 13, 15, 16)) / 16 for p in range(length)}
        off = {p: source.choice((nan, -inf)) for p in sure if source.random() < odd}
        score = {p: off.get(p, log(value)) for p, value in sure.items()}
        own = {p: source.choice((0.0, 0.03, 0.05, 0.3, 0.9, 1.0)) for p in range(length)}
        return Reading(sure, score, own)

    return at


Draw = dict[str, tuple[Any, ...]]
TAKES = (Threshold(0.72), Threshold(0.45), Factor(0.9), Factor(1.7))
WAVE: Draw = {"size": (1, 2, 4, 8), "radius": (1, 2, 5), "selector": (Quota(), *TAKES)}
EACH: dict[str, Draw] = {
    "cascade_rounds": {"cascade_rounds": (1, 2, 4), "risk": (0.2, 0.55, 3.3), "selector": TAKES},
    "revisable_band": {
        "revisable_band": (1, 3, 20),
        "size": (2, 4, 8),  # one a step takes nothing back
        "remask_below": (0.04, 0.1, 0.5),
        "max_remasks": (1, 2, 9),
        "selector": (Quota(), *TAKES, *TAKES),
    },
    "horizon": {"horizon": (1, 3, 9)},
}


def drawn(rng: random.Random, *names: str) -> Tide:
    choices = WAVE.copy()
    for name in (
        *names,
        *(["cascade_rounds"] if "cascade_rounds" in names else []),
    ):  # its takes stand
        choices |= EACH[name]
    return plain_tide(**{name: rng.choice(values) for name, values in choices.items()})


def compared(rng: random.Random, rule: Tide, other: Tide | None = None) -> tuple[bool, int, int]:
    """Do tensors and loop agree, step by step? With the commits beyond a front, and take-backs."""
    canvas, case = random_case(rng, rng.choice(KINDS))
    while len(case.masked) < 8 or case.steps < 3:  # too little to choose from
        canvas, case = random_case(rng, rng.choice(KINDS))
    readings = random_readings(rng, canvas.tokens.shape[1], fine=rng.random() < 0.4)
    ours = list(play(rule, canvas, case.steps, readings))
    theirs = list(tide(case, readings, other or rule))
    # At the last step the engine decides, and a front that stays behind is looked at by nobody.
    ours[-1], theirs[-1] = (one[-1]._replace(scope=None, front=None) for one in (ours, theirs))
    beyond = sum(len(one.commit) > rule.size for one in ours[:-1])
    return ours == theirs, beyond, sum(len(one.remask) for one in ours)


def test_tide_with_all_options_off_equals_wavefront():
    rng = random.Random("tide")
    for number in range(24):
        canvas, case = random_case(rng, KINDS[number % 4])
        readings = random_readings(rng, canvas.tokens.shape[1], fine=rng.random() < 0.3)
        options = {name: rng.choice(values) for name, values in WAVE.items()}
        one, two = (
            list(play(made(**options), canvas, case.steps, readings))
            for made in (plain_tide, Wavefront)
        )
        assert one == two, (options, case)


def test_default_tide_is_not_wavefront():
    """Its defaults are the recommended setting, and they commit more than a front at once."""
    assert Tide() == Tide(cascade_rounds=8, horizon=64, selector=Threshold(0.98))
    assert Tide.recommended_spec() == repr(Tide())
    rows = [{0: 0.99}, {slot: 0.99 for slot in range(12) if slot != 9}]
    canvas = blank([[5, 5]], 12, mask_id=MASK, pad_id=PAD)

    def readings(step: int) -> Reading:
        sure = {place: rows[min(step, 1)].get(place - 2, 0.3) for place in range(14)}
        return Reading(sure, {place: log(value) for place, value in sure.items()}, sure)

    ours, theirs = (list(play(rule, canvas, 12, readings)) for rule in (Tide(), Wavefront()))
    assert [slots(one.commit) for one in ours[:2]] == [{0}, {1, 2, 3, 4, 5, 6, 7, 8, 10, 11}]
    assert [len(one.commit) for one in theirs] == [1] * 12


@pytest.mark.parametrize("name", EACH)
def test_each_option_equals_the_loop(name):
    rng = random.Random(f"tide {name}")
    beyond = taken = 0
    for _ in range(14):
        rule = drawn(rng, name)
        alike, more, back = compared(rng, rule)
        assert alike, rule
        beyond, taken = beyond + more, taken + back
    assert name != "cascade_rounds" or beyond > 2
    assert name != "revisable_band" or taken > 10


@pytest.mark.parametrize("count", [20, pytest.param(600, marks=pytest.mark.slow)])
def test_compositions_equal_the_loop(count):
    rng = random.Random("tide composed")
    for number in range(count):
        names = rng.sample(list(EACH), 2)
        rule = drawn(rng, *(list(EACH) if number % 3 == 0 else names))
        assert compared(rng, rule)[0], rule


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        (
            "cascade_rounds=2, selector=threshold(0.45)",
            "cascade_rounds=3, selector=threshold(0.45)",
        ),
        (
            "cascade_rounds=3, risk=0.5, selector=threshold(0.45)",
            "cascade_rounds=3, risk=0.7, selector=threshold(0.45)",
        ),
        (
            "revisable_band=2, selector=threshold(0.45)",
            "revisable_band=3, selector=threshold(0.45)",
        ),
        (
            "revisable_band=3, selector=threshold(0.45)",
            "revisable_band=3, remask_below=0.4, selector=threshold(0.45)",
        ),
        (
            "revisable_band=9, max_remasks=1, selector=threshold(0.45)",
            "revisable_band=9, selector=threshold(0.45)",
        ),
        ("horizon=3", "horizon=4"),
    ],
)
def test_comparison_notices_every_wrong_rule(right, wrong):
    """A number that is a little off is noticed."""
    rng = random.Random(right)
    one, two = (
        spec.resolve(plain_spec(f"tide(size=4, {text})"), "strategies") for text in (right, wrong)
    )
    assert sum(not compared(rng, one, two)[0] for _ in range(8)) > 1


# --- by hand ------------------------------------------------------------------------------------
# A prompt of two, then the answer: slot 0 stands at position 2.


def by_hand(text: str, length: int, rows: list[dict[int, float]], own: list[dict[int, float]] = ()):
    """(committed, remasked) of every step, in slots; `rows` repeat their last. Else 0.3 sure.

    Options of tide that the text does not name are off.
    """

    def readings(step: int) -> Reading:
        row, stands = (part[min(step, len(part) - 1)] if part else {} for part in (rows, own))
        sure = {p: row.get(p - 2, 0.3) for p in range(length + 2)}
        score = {p: log(value) for p, value in sure.items()}
        return Reading(sure, score, {p: stands.get(p - 2, 1.0) for p in sure})

    rule = spec.resolve(plain_spec(text), "strategies")
    canvas = blank([[5, 5]], length, mask_id=MASK, pad_id=PAD)
    found = list(play(rule, canvas, length, readings))
    return [(slots(one.commit), slots(one.remask)) for one in found], [
        slots(one.final) - {-2, -1} for one in found
    ]


def slots(found: Places) -> set[int]:
    return {place - 2 for place in found}


def test_cascade_commits_a_run_of_confident_positions_at_once():
    """Slot 0 comes first, alone. Then everything is 0.97 sure, but for slot 9.

    known       P P 0 . . . . . . . . . . .
    wavefront         1 2                       two positions lie within 2 of what is known
    one round         1 2|3 4
    four rounds       1 2|3 4|5 6|7 8|          slot 10 is sure, and within 2 of slot 8
                                     |  a       so it goes with the fifth round, and 9 waits
    """
    rows = [{0: 0.9}, {slot: 0.97 for slot in range(12) if slot != 9}]
    expected = {
        "wavefront(": {1, 2},
        "tide(cascade_rounds=0, horizon=0, ": {1, 2},
        "tide(cascade_rounds=1, horizon=0, ": {1, 2, 3, 4},
        "tide(cascade_rounds=3, horizon=0, ": {1, 2, 3, 4, 5, 6, 7, 8},
        "tide(cascade_rounds=4, horizon=0, ": {1, 2, 3, 4, 5, 6, 7, 8, 10},
        # The model was shown no more than two positions after the front, which was slots 1 and 2.
        "tide(cascade_rounds=4, horizon=3, ": {1, 2, 3, 4, 5},
    }
    for text, second in expected.items():
        found, _ = by_hand(f"{text}selector=threshold(0.9))", 12, rows)
        assert [commit for commit, _ in found[:2]] == [{0}, second], text


def test_risk_stops_the_cascade():
    """0.9 sure each: 1 and 2 cost 0.2, slot 3 makes it 0.3, and slot 4 would make it 0.4."""
    rows = [{0: 0.95}, dict.fromkeys(range(12), 0.9)]
    for risk, second in ((0.15, {1, 2}), (0.35, {1, 2, 3}), (0.45, {1, 2, 3, 4})):
        found, _ = by_hand(
            f"tide(cascade_rounds=9, risk={risk}, selector=threshold(0.85))", 12, rows
        )
        assert [commit for commit, _ in found[:2]] == [{0}, second]
    # The surest of a round are charged first: slot 4 fits beside 1 and 2, slot 3 no longer.
    rows[1] = rows[1] | {4: 0.97}
    found, _ = by_hand("tide(cascade_rounds=1, risk=0.25, selector=threshold(0.85))", 12, rows)
    assert found[1][0] == {1, 2, 4}


def test_token_is_remasked_at_most_max_remasks_times():
    """Two a step. Slot 0 is written, and the model never believes it.

    max_remasks=1     0 1   2 3 -0   0 4   5 6   7
    max_remasks=2     0 1   2 3 -0   0 4   5 6 -0   0 7
    """
    rows, own = [dict.fromkeys(range(8), 0.9)], [{0: 0.05}]
    text = (
        "tide(size=2, revisable_band=20, remask_below=0.2, max_remasks={}, selector=threshold(0.8))"
    )
    never, once, twice = (
        by_hand(text.format(max_remasks), 8, rows, own)[0] for max_remasks in (0, 1, 2)
    )
    none = set()
    assert never == [({0, 1}, none), ({2, 3}, none), ({4, 5}, none), ({6, 7}, none)]
    assert once == [({0, 1}, none), ({2, 3}, {0}), ({0, 4}, none), ({5, 6}, none), ({7}, none)]
    assert twice == [({0, 1}, none), ({2, 3}, {0}), ({0, 4}, none), ({5, 6}, {0}), ({0, 7}, none)]


def test_step_remasks_fewer_tokens_than_it_commits():
    rows, own = [dict.fromkeys(range(8), 0.9)], [dict.fromkeys(range(8), 0.01)]
    # One a step, by a threshold or by a quota of as many steps as positions: none.
    for text in (
        "tide(size=1, revisable_band=9, selector=threshold(0.8))",
        "tide(revisable_band=9)",
    ):
        found, _ = by_hand(text, 8, rows, own)
        assert [(len(new), gone) for new, gone in found] == [(1, set())] * 8
    # Three a step: two of the doubted go, the least believed first.
    own[0] |= {1: 0.001, 2: 0.005}
    found, _ = by_hand(
        "tide(size=3, radius=3, revisable_band=9, selector=threshold(0.8))", 8, rows, own
    )
    assert found[:2] == [({0, 1, 2}, set()), ({3, 4, 5}, {1, 2})]


def test_token_beyond_the_band_is_final():
    """revisable_band=2; slots 0 to 3 are written in order, then all become improbable.

    0 . . . . .    0 1 . . . .    0 1 2 . . .    0 1 2 3 . .    0 1 2 3 4 5 -2 -3
                                  f              f f
    """
    rows = [*({slot: 0.9} for slot in range(4)), dict.fromkeys(range(8), 0.9)]
    own = [*[{}] * 4, dict.fromkeys(range(8), 0.01)]
    text = "tide(size=3, revisable_band=2, selector=threshold(0.8))"
    found, finals = by_hand(text, 8, rows, own)
    assert found[:4] == [({slot}, set()) for slot in range(4)]
    assert finals[:4] == [set(), set(), {0}, {0, 1}]
    assert found[4] == ({4, 5}, {2})  # the front holds two positions, so one may go
    assert all(not gone & {0, 1} for _, gone in found)
    # remask_below=0: nothing is less probable than that.
    own[-1] = dict.fromkeys(range(8), 0.0)
    found, _ = by_hand(
        "tide(size=3, revisable_band=2, remask_below=0.0, selector=threshold(0.8))", 8, rows, own
    )
    assert not any(gone for _, gone in found)


# --- what is shown to the model -----------------------------------------------------------------


class Watched:
    """A model that writes down what it was asked and what it answered."""

    def __init__(self, model: Any) -> None:
        self.model, self.calls = model, []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def hidden(self, tokens, attend, at, **more):
        found = self.model.hidden(tokens, attend, at, **more)
        self.calls.append((tokens, attend, at, found))
        return found


@pytest.mark.parametrize(("family", "cfg_scale"), [("llada", 1.0), ("dream", 0.0)])
def test_hidden_masks_equal_removed_masks(family, cfg_scale):
    """Rows of unequal prompts: what is read at positions in sight is read off a shorter canvas."""
    model = Watched(toy(seed=3, family=family, dtype="float64"))
    config = Config(strategy=plain_tide(size=3, horizon=2), cfg_scale=cfg_scale)
    list(decode(model, ragged(model), config, steps=[12] * 4, seeds=range(4)))
    hid = 0
    for tokens, attend, at, found in model.calls[::3]:
        for row in range(len(tokens)):
            cut = int(attend[row].nonzero().max()) + 1
            hid += tokens.shape[1] - cut
            inside = at[row] < cut
            short = model.model.hidden(
                tokens[row : row + 1, :cut], attend[row : row + 1, :cut], at[row : row + 1, inside]
            )
            assert torch.allclose(short[0], found[row, inside], atol=1e-10)
    assert hid > 40


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_token_at_a_hidden_position_changes_nothing(family):
    """Holes anywhere, so that something known lies beyond what is hidden."""
    model = Watched(toy(seed=3, family=family, dtype="float64"))
    config = Config(strategy=plain_tide(size=1, radius=1, horizon=1))
    list(decode(model, holes(model), config, steps=[10] * 2, seeds=range(2)))
    hid = 0
    for tokens, attend, at, found in model.calls:
        hidden = ~attend & (tokens == model.mask_id)
        hid += int(hidden.sum())
        seen = attend.gather(-1, at) & ~hidden.gather(-1, at)
        # Of Dream a position is read off the one before it, which may be hidden at a later front.
        seen &= ~hidden.gather(-1, (at - 1).clamp(min=0))
        again = model.model.hidden(torch.where(hidden, 11, tokens), attend, at)
        assert torch.allclose(again[seen], found[seen], atol=1e-10)
        assert (tokens[~hidden & ~attend] == model.pad_id).all()
    assert hid > 20


def test_horizon_by_hand():
    """Two rows of one batch, the shorter padded; size 2, so the front is the first two masks.

    P P . . . . . .      front at 2, 3: with 2 more, positions up to 5 are shown
      P . . . . . .
    """
    canvas = blank([[5, 5], [5]], 6, mask_id=MASK, pad_id=PAD)
    rule = plain_tide(size=2, horizon=2)
    seen = rule.attended(canvas, rule.init(canvas))
    assert seen is not None
    assert [places(seen[row : row + 1]) for row in (0, 1)] == [set(range(6)), set(range(1, 6))]
    assert plain_tide().attended(canvas, plain_tide().init(canvas)) is None
    # A text with holes: what is known is shown, wherever it stands.
    #   P . . . P . . . P      front at 1, with 1 more: 1 and 2
    text = infill([[5] * 9], [[i % 4 > 0 for i in range(9)]], mask_id=MASK, pad_id=PAD)
    near = plain_tide(size=1, horizon=1)
    seen = near.attended(text, near.init(text))
    assert seen is not None
    assert places(seen) == {0, 1, 2, 4, 8}


def answers(rule: Strategy, canvas: Canvas, model: Any, **options: Any):
    rows = len(canvas.tokens)
    config = Config(strategy=rule, **options)
    return list(decode(model, canvas, config, steps=[12] * rows, seeds=range(rows)))[-1].canvas


def test_row_with_a_horizon_is_the_same_alone_and_in_a_batch():
    model = toy(seed=3, family="dream", dtype="float64")
    canvas = ragged(model)
    changed = 0
    cascade = plain_tide(horizon=3, cascade_rounds=2, selector=Threshold(0.4))
    for rule, cfg_scale in ((plain_tide(size=3, horizon=1), 0.0), (cascade, 0.7)):
        together = answers(rule, canvas, model, cfg_scale=cfg_scale).tokens
        for row in range(len(canvas.tokens)):
            real = canvas.real[row]
            alone = Canvas(*(part[row : row + 1, real] for part in canvas))
            shifted = list(
                decode(
                    model,
                    alone,
                    Config(strategy=rule, cfg_scale=cfg_scale),
                    steps=[12],
                    seeds=[row],
                )
            )[-1]
            assert torch.equal(shifted.canvas.tokens[0], together[row, real])
        far = plain_tide(
            rule.size, cascade_rounds=rule.cascade_rounds, horizon=99, selector=rule.selector
        )
        none = plain_tide(rule.size, cascade_rounds=rule.cascade_rounds, selector=rule.selector)
        same_far, plain = (answers(one, canvas, model, cfg_scale=cfg_scale) for one in (far, none))
        assert torch.equal(same_far.tokens, plain.tokens)
        changed += not torch.equal(plain.tokens, together)
    assert changed


SHORT_SIGHTED = (
    "tide(size=3, horizon=1)",
    "tide(horizon=2, cascade_rounds=2, selector=threshold(0.4))",
    "tide(size=3, horizon=2, revisable_band=4, selector=threshold(0.3))",
    "tbd(size=5, drop=2, min_kept=1)",
)


@pytest.mark.parametrize("text", SHORT_SIGHTED)
def test_speculation_is_lossless_with_a_horizon(text):
    strategy = spec.resolve(plain_spec(text), "strategies")
    model = toy(seed=0, dtype="float64")
    assert same(*both(model, ragged(model), Config(strategy=strategy), speculate=4))
    model = toy(seed=2, family="dream", dtype="float64")
    guided = Config(strategy=strategy, cfg_scale=1.0)
    assert same(*both(model, ragged(model), guided, speculate=2))
    assert same(*both(model, holes(model), guided, steps=[10, 9], speculate=3))


def test_draft_with_another_horizon_is_rejected(monkeypatch):
    """Equal tokens are not enough: the front that was drafted may end elsewhere."""
    config = Config(strategy=plain_tide(size=3, horizon=1))
    models = [toy(seed=seed, dtype="float64") for seed in (0, 1)]
    assert all(same(*both(model, ragged(model), config)) for model in models)
    monkeypatch.setattr(
        speculation, "_same_attention", lambda config, node, rows: ~rows.done | rows.done
    )
    assert not all(same(*both(model, ragged(model), config)) for model in models)


def test_step_with_all_options_runs_on_the_meta_device():
    """No host sync and no shape that depends on data, model included."""
    model = toy(seed=3)
    rule = spec.resolve(FULL, "strategies")
    rows = to_meta(start(ragged(model), Config(strategy=rule), [12] * 4, seeds=[0] * 4))
    after, _, _ = advance(toy().to("meta"), Config(strategy=rule, cfg_scale=0.5), rows, 8, True)
    assert after.canvas.tokens.shape == rows.canvas.tokens.shape


# --- the clock ----------------------------------------------------------------------------------


def test_skipped_tide_steps_would_change_nothing():
    """Dream's counts begin with zeros, and a step without commits leaves the front as it is."""
    rng = random.Random("idle")
    saved = 0
    for number in range(6):
        canvas, case = random_case(rng, "more steps than places")
        readings = random_readings(rng, canvas.tokens.shape[1], fine=False)
        rule = plain_tide(size=1 + number % 3, selector=Dream())
        every, few = (
            list(play(rule, canvas, case.steps, readings, fixed_budget=fixed))
            for fixed in (True, False)
        )
        assert [one for one in every if one.commit] == few
        saved += len(every) - len(few)
    assert saved > 10


def test_noise_differs_at_every_step_with_a_band():
    """A front over everything and no doubts: what chance settles is what it settles anywhere."""
    canvas = blank([[5, 5]], 40, mask_id=MASK, pad_id=PAD)
    sure = dict.fromkeys(range(42), 0.9)
    reading = Reading(sure, sure, sure)
    wide = plain_tide(size=40, radius=40, revisable_band=2, selector=Origin())
    ours = [one.commit for one in play(wide, canvas, 12, lambda step: reading)]
    config = Config(strategy=Standard(selector=Origin()))
    rows, expected = start(canvas, config, [12], seeds=[0]), []
    no = torch.zeros(1, dtype=torch.bool)
    while not rows.done:
        rows, _, decision = decide_and_write(config, rows, MASK, bad=no, void=no)
        expected.append(places(decision.commit))
    assert ours == expected


def test_quota_is_divided_over_the_remaining_positions():
    """12 positions in 4 steps, and two of the first three are remasked at the second.

    0 1 2 . . . . . . . . .      then the front holds 3 and 4, and slot 11 is the best elsewhere
    . . 2 3 4 . . . . . . b      so 4 at the third: a front of 3 is too short, and 8 serves
    0 1 2 3 4 5 . . 8 . . b      though it lies 3 away from everything
    """
    canvas = blank([[5, 5]], 12, mask_id=MASK, pad_id=PAD)
    sure = {place: 0.9 - place / 100 for place in range(14)} | {10: 0.98, 13: 0.99}
    score = {place: log(value) for place, value in sure.items()}
    doubted = [{}, dict.fromkeys(range(14), 0.01), {}, {}]
    readings = lambda step: Reading(sure, score, sure | doubted[step])  # noqa: E731
    for size, third in ((8, {0, 1, 5, 6}), (3, {0, 1, 5, 8})):
        found = list(play(plain_tide(size, revisable_band=20), canvas, 4, readings))
        counts = [(len(one.commit), len(one.remask)) for one in found]
        assert counts == [(3, 0), (3, 2), (4, 0), (4, 0)]
        assert slots(found[2].commit) == third


# --- options and the command line ---------------------------------------------------------------

FULL = (
    "tide(size=6, cascade_rounds=2, risk=0.8, horizon=6, revisable_band=3, "
    "selector=threshold(tau=0.6))"
)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "tide(cascade_rounds=4, selector=quota())",
            r"tide: cascade_rounds needs an adaptive selector, .*=threshold\(tau=0.9\)\)\.",
        ),
        ("tide(cascade_rounds=1, selector=dream())", "needs an adaptive selector"),
        ("tide(selector=quota())", r"Write tide\(cascade_rounds=0, selector=quota\(\)\), or try"),
        ("tide(size=0)", "size must be between 1 and 1048576, not 0"),
        ("tide(radius=0)", "radius must be between 1 and 1048576, not 0"),
        (
            "tide(cascade_rounds=-1, selector=threshold())",
            "cascade_rounds must be between 0 and 64, not -1",
        ),
        ("tide(cascade_rounds=1.5, selector=threshold())", "cascade_rounds must be a whole number"),
        ("tide(horizon=-1)", "horizon must be between 0"),
        ("tide(max_remasks=True)", "max_remasks must be a whole number"),
        ("tide(revisable_band=-1)", "revisable_band must be between 0"),
        ("tide(max_remasks=-1)", "max_remasks must be between 0"),
        ("tide(risk=-0.1)", "risk must be between 0"),
        ("tide(remask_below=1.1)", "remask_below must be between 0 and 1"),
        ("tide(tides=2)", "tide has no option 'tides'"),
    ],
)
def test_invalid_options_are_refused(text, sentence):
    with pytest.raises(OptionError, match=sentence):
        spec.resolve(text, "strategies")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (
            "tide",
            "tide(size=8, radius=2, cascade_rounds=8, horizon=64, selector=threshold(tau=0.98))",
        ),
        (
            "tide(cascade_rounds=0, horizon=0, selector=quota())",
            "tide(size=8, radius=2, cascade_rounds=0, horizon=0, selector=quota())",
        ),
        (
            "tide(cascade_rounds=4, horizon=32, selector=threshold(tau=0.9))",
            "tide(size=8, radius=2, cascade_rounds=4, horizon=32, selector=threshold(tau=0.9))",
        ),
        (FULL, FULL.replace("size=6, ", "size=6, radius=2, ")),
    ],
)
def test_spec_and_repr_resolve_to_the_same_tide(text, shown):
    made = spec.resolve(text, "strategies")
    assert repr(made) == shown
    assert spec.resolve(shown, "strategies") == made
    assert hash(spec.resolve(shown, "strategies")) == hash(made)


def test_quota_above_the_size_warns_like_wavefront():
    with pytest.warns(WavefrontWarning, match="more than the front's size"):
        plain_tide(size=4).validate(64, 8)


def test_only_a_band_revises_and_needs_current_logp():
    assert (plain_tide().revises, plain_tide().needs) == (False, ())
    assert (plain_tide(revisable_band=1).revises, plain_tide(revisable_band=1).needs) == (
        True,
        ("current_logp",),
    )


def test_command_line_describes_and_runs_tide():
    told = run("list", "strategies", "tide").stdout
    assert told.startswith("tide: our own strategy.")
    for name in (*EACH, "risk", "remask_below", "max_remasks"):
        assert f"`{name}`" in told
    assert "tide" in run("list", "strategies").stdout
    for text in (FULL, "tide", "tide(cascade_rounds=4, selector=threshold(tau=0.9))"):
        (record,) = records(run("generate", "hi", "-n", "16", "--json", "-s", text))
        assert len(record["tokens"]) <= 16
        assert spec.resolve(record["settings"]["strategy"], "strategies") == spec.resolve(
            text, "strategies"
        )
    assert "needs an adaptive selector" in refused("generate", "hi", "-s", "tide(selector=quota())")
