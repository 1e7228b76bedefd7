"""Batcher: requests that share forward passes decode as if each were alone."""

from __future__ import annotations

import gc
import random
from dataclasses import replace

import pytest
import torch
from helpers.captured import Static
from helpers.failing_strategies import Failing

import wavefront
from wavefront.core import spec
from wavefront.core.errors import OptionError, PromptError
from wavefront.engine.batcher import Batcher, Request
from wavefront.engine.options import plan
from wavefront.engine.session import model_properties
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
            "strategy": "tide(cascade_rounds=0, horizon=0, revisable_band=4, "
            "remask_below=0.5, selector=threshold(tau=0.3))",
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
    ([5, 6, 7], {"max_new_tokens": 12, "strategy": "standard"}),  # the same as the first one
)


@pytest.fixture(params=["llada", "dream"])
def model(request):
    return toy(family=request.param, dtype="float32")


def request_of(model, ids, options) -> Request:
    resolved = plan(options, model_properties(model))
    length = resolved.length
    return Request(
        [*ids, *[model.mask_id] * length], [False] * len(ids) + [True] * length, resolved
    )


def serve(model, requests, *, cache=None, rows=ROWS, length=LENGTH, order=None):
    """Admit the requests in order as rows become free, and return them when all are finished."""
    batcher = Batcher(model, rows=rows, length=length, cache=cache)
    waiting, active = list(order or range(len(requests))), {}
    while waiting or batcher.busy:
        while waiting and batcher.free:
            number = waiting.pop(0)
            active[number] = batcher.admit(requests[number])
        batcher.step()
    assert batcher.free == rows
    return [active[number] for number in range(len(requests))]


def outcome(seat):
    return seat.tokens, seat.steps, seat.forwards, seat.error


@pytest.mark.slow
def test_requests_decode_the_same_together_alone_and_in_a_session(model):
    requests = [request_of(model, *one) for one in MIXED]
    together = serve(model, requests)
    for one, seat in zip(requests, together, strict=True):
        (alone,) = serve(model, [one])
        assert outcome(alone) == outcome(seat)
        length = one.plan.length
        made = wavefront.generate_ids(model, [one.ids[:-length]], **one.plan.options())
        pairs = zip(made.tokens[0], seat.tokens[-length:], seat.final[-length:], strict=True)
        assert all(a == b for a, b, final in pairs if final)
        assert made.forwards == seat.forwards
    assert together[0].tokens == together[-1].tokens


@pytest.mark.slow
def test_order_and_row_of_requests_do_not_matter(model):
    requests = [request_of(model, *one) for one in MIXED]
    base = [outcome(seat) for seat in serve(model, requests)]
    for seed in range(3):
        order = random.Random(seed).sample(range(len(requests)), len(requests))
        assert [outcome(seat) for seat in serve(model, requests, order=order)] == base


def test_cache_refreshed_at_every_step_changes_nothing():
    model = toy(dtype="float64")
    requests = [request_of(model, *one) for one in MIXED]
    base = [outcome(seat) for seat in serve(model, requests)]
    for name in ("wave", "dual", "prefix"):
        cache = spec.resolve(f"{name}(refresh=1)", "caches")
        assert [outcome(seat) for seat in serve(model, requests, cache=cache)] == base


@pytest.mark.slow
@pytest.mark.parametrize(
    "cache", ["wave(refresh=4, size=20, near=2)", "dual(refresh=5)", "prefix(refresh=6)"]
)
def test_cached_rows_are_refreshed_independently(cache):
    """With a cache, too, an answer does not depend on the other requests in the batch."""
    model = toy(dtype="float64")
    policy = spec.resolve(cache, "caches")
    requests = [request_of(model, *one) for one in MIXED]
    together = serve(model, requests, cache=policy)
    for one, seat in zip(requests, together, strict=True):
        (alone,) = serve(model, [one], cache=policy)
        assert outcome(alone) == outcome(seat)
        assert all(seat.final) or one.plan.config.sampling.eos == "stop"
        assert seat.error is None
    assert sum(seat.token_forwards for seat in together) < sum(
        LENGTH * seat.forwards for seat in together
    )


def test_updates_report_every_commit_once_and_match_the_board():
    model = toy()
    requests = [request_of(model, *one) for one in MIXED[:3]]
    batcher = Batcher(model, rows=3, length=LENGTH)
    active = [batcher.admit(one) for one in requests]
    boards = {seat.row: list(one.ids) for seat, one in zip(active, requests, strict=True)}
    seen = {seat.row: set() for seat in active}
    while batcher.busy:
        for update in batcher.step().updates:
            row = update.request.row
            for commit in update.commits:
                assert commit.position not in seen[row]
                assert commit.logp <= 0
                seen[row].add(commit.position)
                boards[row][commit.position] = commit.token
            assert not set(update.front) & seen[row]
            assert boards[row] == update.request.tokens
    for seat, one in zip(active, requests, strict=True):
        assert seen[seat.row] == {n for n, hole in enumerate(one.holes) if hole}
        assert seat.done


def test_updates_report_remasked_positions():
    model = toy()
    one = request_of(model, [9, 9, 9], {"max_new_tokens": 24, "strategy": "rcr(size=16)"})
    batcher = Batcher(model, rows=1, length=LENGTH)
    batcher.admit(one)
    back = 0
    while batcher.busy:
        for update in batcher.step().updates:
            back += len(update.remasked)
            open_ = [not settled for settled in update.request.final]
            assert all(open_[place] for place in update.remasked)
    assert back


def test_released_request_frees_its_row_and_changes_no_other():
    model = toy()
    stays = request_of(model, *MIXED[1])
    goes = request_of(model, *MIXED[4])
    (alone,) = serve(model, [stays])
    for after in (0, 1, 7):
        batcher = Batcher(model, rows=2, length=LENGTH)
        seat, other = batcher.admit(stays), batcher.admit(goes)
        for number in range(60):
            if number == after:
                batcher.release(other)
                batcher.release(other)  # releasing twice has no effect
                assert batcher.free == 1
            if not batcher.busy:
                break
            batcher.step()
        assert outcome(seat) == outcome(alone)
        assert not other.done


class _Sick:
    """A model whose logits are NaN for rows that begin with a given token."""

    def __init__(self, model, token: int) -> None:
        self._model, self._token = model, token

    def __getattr__(self, name):
        return getattr(self._model, name)

    def hidden(self, tokens, attend, at, **more):
        sick = (tokens[:, 0] == self._token)[:, None, None]
        made = self._model.hidden(tokens, attend, at, **more)
        return torch.where(sick, float("nan"), made)


def test_nan_ends_only_the_request_that_produced_it():
    model = toy()
    requests = [request_of(model, *one) for one in MIXED[:3]]
    base = serve(model, requests)
    made = serve(_Sick(model, 8), requests)
    assert "NaN" in made[1].error
    assert made[1].done
    assert [outcome(made[n]) for n in (0, 2)] == [outcome(base[n]) for n in (0, 2)]


def test_request_that_never_fits_is_rejected():
    model = toy()
    batcher = Batcher(model, rows=1, length=20, steps=16)

    def admit(ids, **options):
        return batcher.admit(request_of(model, ids, options))

    with pytest.raises(PromptError, match="room for 20"):
        admit([1] * 9, max_new_tokens=12)
    with pytest.raises(OptionError, match="at most 16"):
        admit([1], max_new_tokens=8, steps=17)
    with pytest.raises(PromptError, match="nothing to fill"):
        batcher.check(Request([1, 2], [False, False], plan({}, model_properties(model))))
    admit([1], max_new_tokens=8)
    with pytest.raises(OptionError, match="in use"):
        admit([1], max_new_tokens=8)
    with pytest.raises(OptionError, match="length"):
        Batcher(model, rows=1, length=model.max_length + 1)


def test_lm_makes_requests_from_text_and_reads_completions():
    lm = wavefront.load("toy")
    prompts = ["Hello", "Price: $5", "What is a wave?"]
    alone = [lm.generate(one, max_new_tokens=24, eos="stop") for one in prompts]
    filled = lm.infill("A <mask:6> and a <mask:4>.")
    batcher = Batcher(lm.model, rows=2, length=64)
    requests = [lm.request(one, max_new_tokens=24, eos="stop") for one in prompts]
    requests.append(lm.request_infill("A <mask:6> and a <mask:4>."))
    active = []
    while requests or batcher.busy:
        while requests and batcher.free:
            active.append(batcher.admit(requests.pop(0)))
        batcher.step()
    found = [lm.completion(seat) for seat in active]
    assert [one.text for one in found] == [one.text for one in (*alone, filled)]
    assert [one.finish_reason for one in found] == [one.finish_reason for one in (*alone, filled)]
    assert [one.forwards for one in found] == [one.forwards for one in (*alone, filled)]


@pytest.mark.slow
@pytest.mark.parametrize("cache", [None, "wave(refresh=4, size=20, near=2)"])
def test_step_with_static_buffers_gives_the_same_tokens(cache):
    model = toy()
    policy = cache and spec.resolve(cache, "caches")
    requests = [request_of(model, *one) for one in MIXED]
    base = [outcome(seat) for seat in serve(model, requests, cache=policy)]
    batcher = Batcher(model, rows=ROWS, length=LENGTH, cache=policy, call=Static())
    waiting, active = list(requests), []
    while waiting or batcher.busy:
        while waiting and batcher.free:
            active.append(batcher.admit(waiting.pop(0)))
        batcher.step()
    assert [outcome(seat) for seat in active] == base


@pytest.mark.slow
def test_thousand_requests_leak_nothing_and_mix_no_rows():
    model = toy()
    kinds = [request_of(model, *one) for one in MIXED]
    right = [outcome(seat) for seat in serve(model, kinds)]
    chance = random.Random(0)
    batcher = Batcher(model, rows=8, length=LENGTH)
    left, held, counts = 1000, {}, []
    while left or batcher.busy:
        while left and batcher.free and chance.random() < 0.8:
            kind, left = chance.randrange(len(kinds)), left - 1
            held[id(seat)] = (seat, kind) if (seat := batcher.admit(kinds[kind])) else None
        if held and chance.random() < 0.02:
            key = chance.choice(list(held))
            batcher.release(held.pop(key)[0])
        for update in batcher.step().updates:
            if update.request.done:
                seat, kind = held.pop(id(update.request))
                assert outcome(seat)[:2] == right[kind][:2]
        if left % 100 == 0:
            gc.collect()
            counts.append(sum(type(one) is torch.Tensor for one in gc.get_objects()))
    assert not held
    assert max(counts) < 2 * min(counts) + 500


@pytest.mark.parametrize("cache", [None, "wave(refresh=3)", "dual(refresh=2)"])
def test_failing_request_changes_no_other(model, cache) -> None:
    """Whether it fails when it is admitted or in a later step, the others take the same steps."""
    policy = None if cache is None else spec.resolve(cache, "caches")
    requests = [request_of(model, *one) for one in MIXED[:4]]
    alone = [outcome(one) for one in serve(model, requests, cache=policy, rows=8)]
    batcher = Batcher(model, rows=8, length=LENGTH, cache=policy)
    active = [batcher.admit(one) for one in requests]
    for failing in (Failing(at=2), Failing(at=4, method="candidates")):
        config = replace(requests[0].plan.config, strategy=failing)
        batcher.admit(requests[0]._replace(plan=replace(requests[0].plan, config=config)))
    config = replace(requests[0].plan.config, strategy=Failing(method="init"))
    with pytest.raises(RuntimeError, match="this strategy fails"):
        batcher.admit(requests[0]._replace(plan=replace(requests[0].plan, config=config)))
    failed = 0
    while batcher.busy:
        try:
            batcher.step()
        except RuntimeError:
            found = batcher.find_failing()
            assert found is not None
            batcher.release(found[0])
            failed += 1
    assert failed == 2
    assert [outcome(one) for one in active] == alone


def test_captured_steps_keep_their_buffers_when_guidance_alternates() -> None:
    """A captured step refers to the keys and values by address, so they must not be replaced."""
    model = toy()
    policy = spec.resolve("wave(refresh=4, size=20, near=2)", "caches")
    batcher = Batcher(model, rows=2, length=LENGTH, cache=policy)
    made = []
    for scale in (0.0, 1.5, 0.0, 1.5):
        batcher.admit(request_of(model, [5, 6], {"max_new_tokens": 8, "cfg_scale": scale}))
        made.append(batcher._kv)
        while batcher.busy:
            batcher.step()
    plain, guided, plain_again, guided_again = made
    assert plain is plain_again
    assert guided is guided_again
    assert plain is not guided


def test_captured_refreshes_have_few_shapes_and_change_no_token() -> None:
    """Seven requests begin while another one continues: in parts of 4, 2 and 1 rows."""
    model = toy(dtype="float32")
    options = {"max_new_tokens": 30, "strategy": "wavefront(size=4)", "cache": "wave(refresh=9)"}
    request = request_of(model, [5, 6, 7], options)

    class Counted(Static):
        def __init__(self) -> None:
            super().__init__()
            self.rows: set[int] = set()

        def __call__(self, key, step, tree):
            self.rows |= set() if tree.rows is None else {len(tree.rows)}
            return super().__call__(key, step, tree)

    texts = []
    for call in (None, Counted()):
        batcher = Batcher(model, rows=8, length=LENGTH, **({"call": call} if call else {}))
        running = [batcher.admit(request)]
        batcher.step()
        running += [batcher.admit(request) for _ in range(7)]
        while batcher.busy:
            batcher.step()
        texts.append([active.tokens for active in running])
        assert len({active.forwards for active in running}) == 1
        if call is not None:
            assert call.rows == {1, 2, 4}
    assert texts[0] == texts[1]
