"""Keys and values of prompts that requests share: the same answers, less work, bounded memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import wavefront
from wavefront.core.errors import OptionError
from wavefront.core.tree import leaves
from wavefront.engine.batcher import ActiveRequest, Batcher, Request, power_of_two
from wavefront.engine.options import plan
from wavefront.engine.prefixes import PrefixStore, can_share
from wavefront.engine.session import model_properties
from wavefront.models.quantize import quantize_model
from wavefront.models.toy import toy

PLENTY = 1 << 30
HEAD = [5 + n % 11 for n in range(150)]
# Two chunks in common, then nothing, a short end, another end, and an early difference.
PROMPTS = [HEAD, [*HEAD[:130], 7], HEAD[:128], [*HEAD[:140], *[9] * 80], [3, *HEAD[1:]]]
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "wave": {"strategy": "wavefront(size=2, radius=1)"},
    "threshold": {"strategy": "standard(selector=threshold(tau=0.3, floor=None))"},
    "edit": {"strategy": "edit(tau=0.3, selector=threshold(tau=0.3))"},
    "revised": {"strategy": "rcr(size=4)"},
    "temperature": {"temperature": 0.8, "seed": 3},
    "stop": {"eos": "stop"},
    "bias": {"logit_bias": {7: 3.0}},
}


def model_of(family: str = "sdar", *, padded: bool = False, **changes: Any) -> Any:
    model = toy(seed=3, family=family, dtype="float64", max_length=512, **changes)
    model.padded_blocks = padded
    return model


def request_of(model: Any, ids: list[int], options: dict[str, Any]) -> Request:
    resolved = plan(options, model_properties(model))
    holes = [False] * len(ids) + [True] * resolved.length
    return Request([*ids, *[model.mask_id] * resolved.length], holes, resolved)


def decode_all(
    batcher: Batcher, requests: list[Request], *, together: int = 1
) -> list[ActiveRequest]:
    """Decode requests; the next one is admitted as soon as fewer than `together` are active."""
    waiting, found = list(requests), list[ActiveRequest]()
    while waiting or batcher.busy:
        if waiting and len(batcher.active) < together:
            found.append(batcher.admit(waiting.pop(0)))
        batcher.step()
    assert [one.error for one in found] == [None] * len(found)
    return found


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize(
    "name", ["plain", *(pytest.param(name, marks=pytest.mark.slow) for name in list(OPTIONS)[1:])]
)
def test_answers_are_the_same_and_cost_less(name, lag, monkeypatch):
    model, options = model_of(), {"max_new_tokens": 6, "eos": "keep", **OPTIONS[name]}
    requests = [request_of(model, prompt, options) for prompt in PROMPTS]
    alone = [wavefront.generate_ids(model, [prompt], **options).tokens[0] for prompt in PROMPTS]
    monkeypatch.setattr("wavefront.engine.batcher.flag_lag", lambda model: lag)
    store = PrefixStore(model, PLENTY)
    size: dict[str, Any] = {"rows": 3, "length": 256, "bucket": power_of_two}
    found = decode_all(Batcher(model, **size, prefixes=store), requests)
    plain = decode_all(Batcher(model, **size), requests)
    assert [one.shared for one in found] == [0, 128, 128, 128, 0]
    assert [one.shared for one in plain] == [0] * len(plain)
    for one, other, tokens, prompt in zip(found, plain, alone, PROMPTS, strict=True):
        assert one.tokens == other.tokens
        if options["eos"] == "keep":
            assert one.tokens[len(prompt) :] == tokens
        assert one.forwards == other.forwards
        assert one.token_forwards <= other.token_forwards - one.shared + 64 * lag
    assert store.nbytes <= PLENTY


@pytest.mark.parametrize("together", [2, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "family",
    [
        *("sdar", "fast_dllm_v2"),
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("llada2", "stable_diffcoder")),
    ],
)
def test_requests_that_start_among_others_get_the_same_answers(family, together):
    model, options = model_of(family), {"max_new_tokens": 5, "eos": "keep"}
    requests = [request_of(model, prompt, options) for prompt in (*PROMPTS, *PROMPTS)]
    size: dict[str, Any] = {"rows": 3, "length": 288, "bucket": power_of_two}
    plain = decode_all(Batcher(model, **size), requests)
    store = PrefixStore(model, PLENTY)
    batcher = Batcher(model, **size, prefixes=store)
    found = decode_all(batcher, requests, together=together)
    assert [one.tokens for one in found] == [one.tokens for one in plain]
    assert all(one.shared >= 128 for one in found[len(PROMPTS) :])


def test_padding_is_part_of_the_prompt():
    """With bd3lm's padding, two prompts share only if their blocks are at the same positions."""
    model, options = model_of("a2d", padded=True), {"max_new_tokens": 8, "eos": "keep"}
    model.block_size = 32
    prompts = [HEAD, HEAD[:149], [*HEAD[:118]], [*HEAD[:140], *[9] * 10]]
    requests = [request_of(model, prompt, options) for prompt in prompts]
    store = PrefixStore(model, PLENTY)
    found = decode_all(Batcher(model, rows=1, length=192, prefixes=store), requests)
    plain = decode_all(Batcher(model, rows=1, length=192), requests)
    assert [one.tokens for one in found] == [one.tokens for one in plain]
    assert [one.offset for one in found] == [10, 11, 10, 10]
    assert [one.shared for one in found] == [0, 0, 128, 128]


@pytest.mark.parametrize("options", [{"cfg_scale": 0.5}, {"cache": "none"}, {"speculate": 2}])
def test_nothing_is_shared_where_keys_differ_or_do_not_exist(options):
    model = model_of()
    request = request_of(model, HEAD, {"max_new_tokens": 4, **options})
    store = PrefixStore(model, PLENTY)
    found = decode_all(Batcher(model, rows=1, length=256, prefixes=store), [request] * 2)
    assert [one.shared for one in found] == [0, 0]
    assert store.nbytes == 0


def test_bidirectional_and_fp8_models_share_nothing():
    assert not can_share(toy())
    assert PrefixStore(toy(), PLENTY).capacity == 0
    assert can_share(model_of())
    for kind, shares in (("fp8", False), ("int8", True)):
        quantized = model_of()
        quantize_model(quantized, kind)
        assert can_share(quantized) is shares


def test_memory_is_bounded_and_the_least_recently_used_prompt_is_removed_first():
    model = model_of()
    chunk = PrefixStore(model, PLENTY).chunk_bytes
    assert chunk == 64 * sum(leaf.nbytes for leaf in leaves(model.new_kv(1, 1)))
    store, kv = PrefixStore(model, 4 * chunk + 1), model.new_kv(1, 256)
    assert store.capacity == 4
    first, second, third = ([number] * 128 for number in (1, 2, 3))
    for prompt in (first, second):
        store.add(prompt, kv, 0)
    assert store.nbytes == 4 * chunk
    assert store.load(first, kv, 0) == 128
    store.add([*third[:64], 0], kv, 0)  # one chunk: the end of the second prompt makes room
    assert [store.load(prompt, kv, 0) for prompt in (first, second, third)] == [128, 64, 64]
    store.add([4] * 512, kv_of(model, 512), 0)  # longer than the memory: its beginning is stored
    assert store.nbytes == 4 * chunk
    assert store.load([4] * 512, kv_of(model, 512), 0) == 256
    assert store.load(first, kv, 0) == 0
    store.clear()
    assert store.nbytes == store.load([4] * 512, kv_of(model, 512), 0) == 0


def kv_of(model: Any, length: int) -> Any:
    return model.new_kv(1, length)


def test_stored_keys_do_not_change_with_the_buffers_they_came_from():
    model, columns = model_of(), [1] * 64
    store, kv = PrefixStore(model, PLENTY), kv_of(model, 64)
    for number, buffer in enumerate((*kv.keys, *kv.values)):
        buffer.fill_(number + 1)
    store.add(columns, kv, 0)
    for buffer in (*kv.keys, *kv.values):
        buffer.zero_()
    assert store.load(columns, kv, 0) == 64
    for number, buffer in enumerate((*kv.keys, *kv.values)):
        assert bool((buffer == number + 1).all())


def test_a_request_with_bad_logits_stores_nothing():
    model = model_of()
    with torch.no_grad():
        model.embedding.weight[5] = float("nan")
    store = PrefixStore(model, PLENTY)
    batcher = Batcher(model, rows=1, length=256, prefixes=store)
    active = batcher.admit(request_of(model, HEAD, {"max_new_tokens": 4}))
    while batcher.busy:
        batcher.step()
    assert active.error is not None
    assert store.nbytes == 0


def test_a_failing_request_is_found_among_requests_with_shared_prompts():
    model, options = model_of(), {"max_new_tokens": 8, "eos": "keep"}
    store = PrefixStore(model, PLENTY)
    batcher = Batcher(model, rows=2, length=256, prefixes=store)
    decode_all(batcher, [request_of(model, HEAD, options)])
    active = batcher.admit(request_of(model, HEAD, options))
    assert active.shared == 128
    assert batcher.find_failing() is None
    while batcher.busy:
        batcher.step()
    assert active.tokens[len(HEAD) :] == wavefront.generate_ids(model, [HEAD], **options).tokens[0]


def test_negative_memory_is_refused():
    with pytest.raises(OptionError, match="max_bytes must be at least 0, not -1"):
        PrefixStore(model_of(), -1)
