"""A request gives the same tokens alone, in a batch, and among other requests."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.families import with_families

import wavefront
from wavefront.core import spec
from wavefront.core.errors import OptionError
from wavefront.engine.batcher import Batcher, Kind, Request, power_of_two
from wavefront.engine.options import plan
from wavefront.engine.session import model_properties
from wavefront.models.toy import toy

PROMPTS = [[5, 6, 7], [8, 9], [3] * 6]
HORIZON = "tide(cascade_rounds=2, horizon=8, selector=threshold(tau=0.3))"
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "guidance": {"cfg_scale": 0.7},
    "speculation": {"speculate": 3},
    "fixed budget": {"fixed_budget": True, "steps": 8},
    "prefix": {"cache": "prefix(refresh=5)"},
    "dual": {"cache": "dual(refresh=4)"},
    "wave": {"cache": "wave(refresh=6, size=12, near=2)"},
    "wave that drops": {"cache": "wave(refresh=16, size=12, near=2, drop=0.95)"},
    "wave with guidance": {"cache": "wave(refresh=6, size=12, near=2)", "cfg_scale": 0.7},
    "temperature": {"temperature": 0.8, "seed": 3},
    "stop": {"eos": "stop"},
}
QUICK = "wavefront(size=4, radius=2)"


def strategies() -> list[Any]:
    """Return every strategy; the quick tests use one of them."""
    every = [f"{name}()" for name in spec.names("strategies") if name != "adablock"]
    every += [HORIZON, "adablock(delimiters=(7, 30))", "block(size=4)", "rcr(size=4)"]
    return [QUICK, *(pytest.param(text, marks=pytest.mark.slow) for text in every)]


def request_of(model: Any, ids: list[int], options: dict[str, Any]) -> Request:
    resolved = plan(options, model_properties(model))
    holes = [False] * len(ids) + [True] * resolved.length
    return Request([*ids, *[model.mask_id] * resolved.length], holes, resolved)


def serve(model: Any, options: dict[str, Any]) -> list[tuple[list[int], int]]:
    """Return the answers and their forward passes among requests with other strategies."""
    others = [
        ([1, 2], {"max_new_tokens": 9, "strategy": "standard", **options}),
        ([9, 9, 9], {"max_new_tokens": 24, "strategy": "wavefront(size=8)", **options}),
    ]
    batcher = Batcher(model, rows=3, length=32, bucket=power_of_two)
    waiting = [request_of(model, *others[0])]
    waiting += [request_of(model, one, {"max_new_tokens": 18, **options}) for one in PROMPTS]
    waiting.insert(2, request_of(model, *others[1]))
    seats = []
    while waiting or batcher.busy:
        while waiting and batcher.free:
            seats.append(batcher.admit(waiting.pop(0)))
        batcher.step()
    mine = [seats[1], seats[3], seats[4]]
    assert all(seat.error is None for seat in seats)
    return [
        (seat.tokens[len(prompt) :], seat.forwards)
        for seat, prompt in zip(mine, PROMPTS, strict=True)
    ]


def cut(tokens: list[int], model: Any, options: dict[str, Any]) -> list[int]:
    """Return the tokens before the first stop token; with eos='stop' the rest is undecided."""
    ends = [n for n, token in enumerate(tokens) if token in (*model.stop_ids, model.mask_id)]
    return tokens[: ends[0]] if ends and options.get("eos") == "stop" else tokens


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize(("strategy", "family"), with_families(strategies()))
def test_tokens_are_the_same_alone_in_a_batch_and_among_other_requests(strategy, name, family):
    model = toy(family=family, dtype="float64")
    options = {"strategy": strategy, "eos": "keep", **OPTIONS[name]}
    if name == "fixed budget":
        options["max_new_tokens"] = 18
    together = wavefront.generate_ids(model, PROMPTS, **{"max_new_tokens": 18, **options})
    among = serve(model, options)
    for row, prompt in enumerate(PROMPTS):
        alone = wavefront.generate_ids(model, [prompt], **{"max_new_tokens": 18, **options})
        expected = cut(alone.tokens[0], model, options)
        assert cut(together.tokens[row], model, options) == expected
        tokens, forwards = among[row]
        assert cut(tokens, model, options) == expected
        assert forwards == alone.forwards


def test_horizon_saves_computation_among_other_requests(monkeypatch):
    monkeypatch.setattr("wavefront.engine.window.BUCKET", 8)
    model = toy(dtype="float64")
    batcher = Batcher(model, rows=2, length=64)
    options = {"max_new_tokens": 50, "strategy": HORIZON}
    seats = [batcher.admit(request_of(model, one, options)) for one in PROMPTS[:2]]
    while batcher.busy:
        batcher.step()
    for seat, prompt in zip(seats, PROMPTS, strict=False):
        assert seat.token_forwards < 0.9 * 64 * seat.forwards
        alone = wavefront.generate_ids(model, [prompt], **options)
        assert seat.tokens[len(prompt) :] == alone.tokens[0]


def test_requests_of_another_kind_wait_until_the_batch_is_empty():
    model = toy()
    batcher = Batcher(model, rows=2, length=32)
    batcher.admit(request_of(model, [5], {"max_new_tokens": 4}))
    guided = request_of(model, [5], {"max_new_tokens": 4, "cfg_scale": 1.0})
    with pytest.raises(OptionError, match="wait until it is empty"):
        batcher.admit(guided)
    while batcher.busy:
        batcher.step()
    batcher.admit(guided)
    assert batcher.kind == Kind(guided=True)
