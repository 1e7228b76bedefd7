"""Batcher: requests that share forwards decode as if each were alone, whoever comes and goes."""

from __future__ import annotations

import gc
import random

import pytest
import torch
from helpers.captured import Static

import wavefront
from wavefront.core import spec
from wavefront.core.errors import OptionError, PromptError
from wavefront.engine.batcher import Batcher, Request
from wavefront.engine.options import plan
from wavefront.engine.session import source
from wavefront.models.toy import toy

ROWS, LENGTH = 3, 40
MIXED = (
    ([5, 6, 7], {"max_new_tokens": 12, "strategy": "standard"}),
    ([8, 9], {"max_new_tokens": 20, "temperature": 0.7, "seed": 4}),
    ([3] * 5, {"max_new_tokens": 16, "strategy": "block(size=4)", "steps": 8}),
    (
        [1, 2],
        {
            "max_new_tokens": 9,
            "strategy": "tide(revisable_band=4, remask_below=0.5, selector=threshold(tau=0.3))",
        },
    ),
    ([9, 9, 9], {"max_new_tokens": 24, "strategy": "rcr(size=16)"}),
    ([4, 4], {"max_new_tokens": 30, "eos": "stop"}),
    ([4, 4], {"max_new_tokens": 7, "steps": 20}),
    (
        [2],
        {
            "max_new_tokens": 30,
            "strategy": "tide(cascade_rounds=3, horizon=6, selector=threshold(tau=0.3))",
        },
    ),
    ([7, 7], {"max_new_tokens": 21, "priority": "entropy", "strategy": "wavefront(size=4)"}),
    ([5, 6, 7], {"max_new_tokens": 12, "strategy": "standard"}),  # the first one's twin
)


@pytest.fixture(params=["llada", "dream"])
def model(request):
    return toy(family=request.param, dtype="float32")


def request_of(model, ids, options) -> Request:
    settled = plan(options, source(model))
    places = settled.length
    return Request([*ids, *[model.mask_id] * places], [False] * len(ids) + [True] * places, settled)


def serve(model, requests, *, cache=None, rows=ROWS, length=LENGTH, order=None):
    """Every request through the slots, in order, as rows come free: the seats."""
    slots = Batcher(model, rows=rows, length=length, cache=cache)
    waiting, seats = list(order or range(len(requests))), {}
    while waiting or slots.busy:
        while waiting and slots.free:
            number = waiting.pop(0)
            seats[number] = slots.admit(requests[number])
        slots.step()
    assert slots.free == rows
    return [seats[number] for number in range(len(requests))]


def told(seat):
    return seat.tokens, seat.steps, seat.forwards, seat.error


def test_together_is_as_alone_and_as_decoded_by_themselves(model):
    requests = [request_of(model, *one) for one in MIXED]
    together = serve(model, requests)
    for one, seat in zip(requests, together, strict=True):
        (alone,) = serve(model, [one])
        assert told(alone) == told(seat)
        places = one.plan.length
        made = wavefront.generate_ids(model, [one.ids[:-places]], **one.plan.options())
        pairs = zip(made.tokens[0], seat.tokens[-places:], seat.final[-places:], strict=True)
        assert all(a == b for a, b, settled in pairs if settled)
        assert made.forwards == seat.forwards
    assert together[0].tokens == together[-1].tokens


def test_who_comes_first_and_sits_where_does_not_matter(model):
    requests = [request_of(model, *one) for one in MIXED]
    base = [told(seat) for seat in serve(model, requests)]
    for seed in range(3):
        order = random.Random(seed).sample(range(len(requests)), len(requests))
        assert [told(seat) for seat in serve(model, requests, order=order)] == base


def test_a_cache_that_refreshes_at_every_step_changes_nothing():
    model = toy(dtype="float64")
    requests = [request_of(model, *one) for one in MIXED]
    base = [told(seat) for seat in serve(model, requests)]
    for name in ("wave", "dual", "prefix"):
        cache = spec.resolve(f"{name}(refresh=1)", "caches")
        assert [told(seat) for seat in serve(model, requests, cache=cache)] == base


@pytest.mark.parametrize(
    "cache", ["wave(refresh=4, size=20, near=2)", "dual(refresh=5)", "prefix(refresh=6)"]
)
def test_cached_rows_are_refreshed_each_at_its_own_time(cache):
    """The cached answer of a request is its own too, also when others come and go beside it."""
    model = toy(dtype="float64")
    policy = spec.resolve(cache, "caches")
    requests = [request_of(model, *one) for one in MIXED]
    together = serve(model, requests, cache=policy)
    for one, seat in zip(requests, together, strict=True):
        (alone,) = serve(model, [one], cache=policy)
        assert told(alone) == told(seat)
        assert all(seat.final) or one.plan.config.sampling.eos == "stop"
        assert seat.error is None
    assert sum(seat.token_forwards for seat in together) < sum(
        LENGTH * seat.forwards for seat in together
    )


def test_moments_tell_every_commit_once_and_the_board_follows():
    model = toy()
    requests = [request_of(model, *one) for one in MIXED[:3]]
    slots = Batcher(model, rows=3, length=LENGTH)
    seats = [slots.admit(one) for one in requests]
    boards = {seat.row: list(one.ids) for seat, one in zip(seats, requests, strict=True)}
    seen = {seat.row: set() for seat in seats}
    while slots.busy:
        for moment in slots.step().updates:
            row = moment.seat.row
            for commit in moment.commits:
                assert commit.place not in seen[row]
                assert commit.logp <= 0
                seen[row].add(commit.place)
                boards[row][commit.place] = commit.token
            assert not set(moment.front) & seen[row]
            assert boards[row] == moment.seat.tokens
    for seat, one in zip(seats, requests, strict=True):
        assert seen[seat.row] == {n for n, hole in enumerate(one.holes) if hole}
        assert seat.done


def test_what_is_taken_back_is_told():
    model = toy()
    one = request_of(model, [9, 9, 9], {"max_new_tokens": 24, "strategy": "rcr(size=16)"})
    slots = Batcher(model, rows=1, length=LENGTH)
    slots.admit(one)
    back = 0
    while slots.busy:
        for moment in slots.step().updates:
            back += len(moment.back)
            open_ = [not settled for settled in moment.seat.final]
            assert all(open_[place] for place in moment.back)
    assert back


def test_a_request_that_leaves_frees_its_row_and_disturbs_nobody():
    model = toy()
    stays = request_of(model, *MIXED[1])
    goes = request_of(model, *MIXED[4])
    (alone,) = serve(model, [stays])
    for after in (0, 1, 7):
        slots = Batcher(model, rows=2, length=LENGTH)
        seat, other = slots.admit(stays), slots.admit(goes)
        for number in range(60):
            if number == after:
                slots.release(other)
                slots.release(other)  # twice is as once
                assert slots.free == 1
            if not slots.busy:
                break
            slots.step()
        assert told(seat) == told(alone)
        assert not other.done


class _Sick:
    """A model whose logits are NaN for boards that begin with a certain token."""

    def __init__(self, model, token: int) -> None:
        self._model, self._token = model, token

    def __getattr__(self, name):
        return getattr(self._model, name)

    def hidden(self, tokens, attend, at, **more):
        sick = (tokens[:, 0] == self._token)[:, None, None]
        made = self._model.hidden(tokens, attend, at, **more)
        return torch.where(sick, float("nan"), made)


def test_nan_ends_the_request_that_met_it_and_no_other():
    model = toy()
    requests = [request_of(model, *one) for one in MIXED[:3]]
    base = serve(model, requests)
    made = serve(_Sick(model, 8), requests)
    assert "NaN" in made[1].error
    assert made[1].done
    assert [told(made[n]) for n in (0, 2)] == [told(base[n]) for n in (0, 2)]


def test_what_could_never_have_a_row_is_refused():
    model = toy()
    slots = Batcher(model, rows=1, length=20, steps=16)

    def admit(ids, **options):
        return slots.admit(request_of(model, ids, options))

    with pytest.raises(PromptError, match="room for 20"):
        admit([1] * 9, max_new_tokens=12)
    with pytest.raises(OptionError, match="at most 16"):
        admit([1], max_new_tokens=8, steps=17)
    with pytest.raises(PromptError, match="nothing to fill"):
        slots.check(Request([1, 2], [False, False], plan({}, source(model))))
    admit([1], max_new_tokens=8)
    with pytest.raises(OptionError, match="taken"):
        admit([1], max_new_tokens=8)
    with pytest.raises(OptionError, match="length"):
        Batcher(model, rows=1, length=model.max_length + 1)


def test_texts_go_in_and_completions_come_out():
    lm = wavefront.load("toy")
    prompts = ["Hello", "Price: $5", "What is a wave?"]
    alone = [lm.generate(one, max_new_tokens=24, eos="stop") for one in prompts]
    filled = lm.infill("A <mask:6> and a <mask:4>.")
    slots = Batcher(lm.model, rows=2, length=64)
    requests = [lm.request(one, max_new_tokens=24, eos="stop") for one in prompts]
    requests.append(lm.request_infill("A <mask:6> and a <mask:4>."))
    seats = []
    while requests or slots.busy:
        while requests and slots.free:
            seats.append(slots.admit(requests.pop(0)))
        slots.step()
    found = [lm.completion(seat) for seat in seats]
    assert [one.text for one in found] == [one.text for one in (*alone, filled)]
    assert [one.finish_reason for one in found] == [one.finish_reason for one in (*alone, filled)]
    assert [one.forwards for one in found] == [one.forwards for one in (*alone, filled)]


@pytest.mark.parametrize("cache", [None, "wave(refresh=4, size=20, near=2)"])
def test_a_step_that_owns_its_memory_gives_the_same(cache):
    model = toy()
    policy = cache and spec.resolve(cache, "caches")
    requests = [request_of(model, *one) for one in MIXED]
    base = [told(seat) for seat in serve(model, requests, cache=policy)]
    slots = Batcher(model, rows=ROWS, length=LENGTH, cache=policy, call=Static())
    waiting, seats = list(requests), []
    while waiting or slots.busy:
        while waiting and slots.free:
            seats.append(slots.admit(waiting.pop(0)))
        slots.step()
    assert [told(seat) for seat in seats] == base


@pytest.mark.slow
def test_a_thousand_requests_leak_nothing_and_mix_no_rows():
    model = toy()
    kinds = [request_of(model, *one) for one in MIXED]
    right = [told(seat) for seat in serve(model, kinds)]
    chance = random.Random(0)
    slots = Batcher(model, rows=8, length=LENGTH)
    left, held, counts = 1000, {}, []
    while left or slots.busy:
        while left and slots.free and chance.random() < 0.8:
            kind, left = chance.randrange(len(kinds)), left - 1
            held[id(seat)] = (seat, kind) if (seat := slots.admit(kinds[kind])) else None
        if held and chance.random() < 0.02:
            key = chance.choice(list(held))
            slots.release(held.pop(key)[0])
        for moment in slots.step().updates:
            if moment.seat.done:
                seat, kind = held.pop(id(moment.seat))
                assert told(seat)[:2] == right[kind][:2]
        if left % 100 == 0:
            gc.collect()
            counts.append(sum(type(one) is torch.Tensor for one in gc.get_objects()))
    assert not held
    assert max(counts) < 2 * min(counts) + 500
