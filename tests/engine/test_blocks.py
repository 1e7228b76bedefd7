"""Block-causal decoding: exact cache, growing canvas, batches, and what is refused."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from helpers.captured import Static

import wavefront
from wavefront.analysis.measures import dynamics, gradient, mhco
from wavefront.core.errors import OptionError, PromptError
from wavefront.engine.batcher import Batcher, CapturedBatchers, Request, power_of_two
from wavefront.engine.options import plan
from wavefront.engine.session import begin, model_properties
from wavefront.models.toy import toy
from wavefront.text.byte_tokenizer import byte_tokenizer

PROMPTS = [[5, 6, 7], [8, 9], [3] * 6, [4] * 8]
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "guidance": {"cfg_scale": 0.7},
    "speculation": {"speculate": 3},
    "no cache": {"cache": "none"},
    "few steps": {"steps": 6},
    "threshold": {"strategy": "standard(selector=threshold(tau=0.3, floor=None))"},
    "wave": {"strategy": "wavefront(size=2, radius=1)"},
    "revised": {"strategy": "rcr(size=4)"},
    "copies": {"strategy": "wino(keep=0.9, selector=threshold(tau=0.1))"},
    "temperature": {"temperature": 0.8, "seed": 3},
    "stop": {"eos": "stop"},
    "stop at the end of a block": {"eos": "stop-block"},
}


def model_of(size: int = 4, **changes: Any) -> Any:
    model = toy(seed=3, dtype="float64", **changes)
    model.block_size = size
    return model


def request_of(model: Any, ids: list[int], options: dict[str, Any]) -> Request:
    resolved = plan(options, model_properties(model))
    holes = [False] * len(ids) + [True] * resolved.length
    return Request([*ids, *[model.mask_id] * resolved.length], holes, resolved)


def visible(tokens: list[int], model: Any, options: dict[str, Any]) -> list[int]:
    if not options.get("eos", "stop").startswith("stop"):
        return tokens
    ends = [n for n, token in enumerate(tokens) if token in (*model.stop_ids, model.mask_id)]
    return tokens[: ends[0]] if ends else tokens


@pytest.mark.parametrize("name", OPTIONS)
def test_requests_at_different_blocks_get_the_tokens_of_a_decode_alone(name):
    model, options = model_of(), {"max_new_tokens": 14, **OPTIONS[name]}
    alone = [wavefront.generate_ids(model, [prompt], **options).tokens[0] for prompt in PROMPTS]
    together = wavefront.generate_ids(model, PROMPTS, **options).tokens
    batcher = Batcher(model, rows=2, length=32, bucket=power_of_two)
    waiting = [request_of(model, prompt, options) for prompt in PROMPTS]
    seats = []
    while waiting or batcher.busy:
        if waiting and batcher.free:  # one request per step, so that they are at different blocks
            seats.append(batcher.admit(waiting.pop(0)))
        batcher.step()
    assert [seat.error for seat in seats] == [None] * len(seats)
    served = [seat.tokens[len(p) :] for seat, p in zip(seats, PROMPTS, strict=True)]
    expected = [visible(tokens, model, options) for tokens in alone]
    assert [visible(tokens, model, options) for tokens in together] == expected
    assert [visible(tokens, model, options) for tokens in served] == expected


def test_random_commits_do_not_depend_on_the_padding_of_a_batch():
    """The number of a block is part of the seed, and a longer prompt adds blocks of padding."""
    model = model_of(family="a2d")
    options: Any = {"max_new_tokens": 12, "strategy": "standard(selector=origin())"}
    together = wavefront.generate_ids(model, PROMPTS, **options)
    for row, prompt in enumerate(PROMPTS):
        alone = wavefront.generate_ids(model, [prompt], **options)
        assert alone.tokens[0] == together.tokens[row]


@pytest.mark.parametrize("name", ["plain", "guidance", "wave", "revised", "temperature"])
def test_cache_changes_no_token_and_computes_less(name):
    model, options = model_of(), {"max_new_tokens": 30, "eos": "keep", **OPTIONS[name]}
    prompts = [[5] * 70]
    cached = wavefront.generate_ids(model, prompts, **options)
    plain = wavefront.generate_ids(model, prompts, cache="none", **options)
    assert cached.tokens == plain.tokens
    assert cached.order == plain.order
    assert cached.forwards == plain.forwards
    assert cached.token_forwards < plain.token_forwards / 5


def test_cached_step_computes_the_block_and_a_finished_block_once_more():
    model = model_of()
    options = {"max_new_tokens": 12, "eos": "keep", "strategy": "left_to_right"}
    session = begin(model, [[5] * 8], options)
    costs = [step.token_forwards for step in session]
    computed = [after - before for before, after in zip([0, *costs], costs, strict=False)]
    assert computed == [20, 4, 4, 4, 8, 4, 4, 4, 8, 4, 4, 4]


@pytest.mark.parametrize(
    "name", ["plain", "guidance", "threshold", "wave", "revised", "copies", "stop"]
)
def test_late_flags_change_no_token(name, monkeypatch):
    """On CUDA the flags are read one step late; a cached step then computes two blocks."""
    model, options = model_of(), {"max_new_tokens": 14, **OPTIONS[name]}
    found = wavefront.generate_ids(model, PROMPTS, **options)
    monkeypatch.setattr("wavefront.engine.batcher.flag_lag", lambda model: 1)
    late = wavefront.generate_ids(model, PROMPTS, **options)
    assert late.tokens == found.tokens
    for one, other in zip(late.order, found.order, strict=True):
        assert [step for step in one if step] == [step for step in other if step]


@pytest.mark.parametrize("family", ["fast_dllm_v2", "llada2", "sdar"])
@pytest.mark.parametrize("lag", [0, 1])
def test_late_flags_compute_no_other_positions(family, lag, monkeypatch):
    """A window that is larger than needed repeats a position, so no further expert is used."""
    model: Any = toy(seed=3, family=family, dtype="float64")
    size, seen = model.block_size, list[int]()
    hidden = model.hidden

    def count(tokens: Any, attend: Any, at: Any, *, window: Any = None, **more: Any) -> Any:
        places = tokens.shape[1] if window is None else len(set(window[0].tolist()))
        seen.append(places)
        return hidden(tokens, attend, at, window=window, **more)

    monkeypatch.setattr(model, "hidden", count)
    monkeypatch.setattr("wavefront.engine.batcher.flag_lag", lambda model: lag)
    options = {"max_new_tokens": 3 * size, "eos": "keep", "strategy": "left_to_right"}
    wavefront.generate_ids(model, [[5] * 2 * size], **options)
    block = [2 * size] + [size] * (size - 1)
    assert seen[1 : 3 * size] == (block * 3)[1:]


@pytest.mark.parametrize("name", ["plain", "threshold", "revised"])
def test_captured_steps_change_no_token(name, monkeypatch):
    model, options = model_of(), {"max_new_tokens": 20, "eos": "keep", **OPTIONS[name]}
    found = wavefront.generate_ids(model, PROMPTS, **options)
    monkeypatch.setattr("wavefront.engine.batcher.flag_lag", lambda model: 1)
    captured = CapturedBatchers(model, graphs=Static)
    for _ in range(2):  # the second decode replays what the first one captured
        session = begin(model, PROMPTS, options, captured=captured).drain()
        assert session.answers() == found.tokens


def test_answer_has_max_new_tokens_though_the_last_block_is_whole():
    model = model_of()
    found = wavefront.generate_ids(model, [[5, 6, 7]], max_new_tokens=3, eos="keep", trace=True)
    assert len(found.tokens[0]) == 3
    assert found.trace.first.tokens.shape[1] == 8
    request = request_of(model, [5, 6, 7], {"max_new_tokens": 3, "eos": "keep"})
    batcher = Batcher(model, rows=1, length=8)
    seat = batcher.admit(request)
    while batcher.busy:
        batcher.step()
    assert seat.tokens[3:] == found.tokens[0]


def test_blocks_are_decided_in_order_and_share_the_end_of_the_prompt():
    found = wavefront.generate_ids(model_of(), [[5, 6, 7]], max_new_tokens=9, eos="keep")
    blocks = [place // 4 for step in found.order[0] for place in step]
    assert blocks == sorted(blocks)
    assert found.order[0][0] == [3]


def test_steps_are_divided_over_the_blocks():
    options = {"max_new_tokens": 16, "eos": "keep", "strategy": "standard"}
    found = wavefront.generate_ids(model_of(), [[5, 6, 7, 8]], steps=8, **options)
    assert [len(step) for step in found.order[0]] == [2] * 8


def test_stop_ends_inside_a_block_and_stop_block_at_its_end():
    model = model_of()
    options = {"max_new_tokens": 16, "strategy": "left_to_right"}
    full = wavefront.generate_ids(model, [[5, 6, 7, 8]], eos="keep", **options)
    answer = full.tokens[0]
    stop = next(token for n, token in enumerate(answer) if n and token not in answer[:n])
    place = answer.index(stop)
    early, late = (
        wavefront.generate_ids(model, [[5, 6, 7, 8]], eos=eos, stop_ids=[stop], **options)
        for eos in ("stop", "stop-block")
    )
    end = place // 4 * 4 + 4  # the end of the block with the stop token
    assert (early.forwards, late.forwards, full.forwards) == (place + 1, end, 16)
    assert early.tokens[0][: place + 1] == answer[: place + 1]
    assert late.tokens[0][:end] == answer[:end]
    assert place % 4 != 3  # else both would end at the same step


@pytest.mark.parametrize("hide", [True, False])
def test_stop_block_ends_also_if_later_blocks_are_not_hidden(hide):
    model = toy(seed=3, dtype="float64")
    options: Any = {"max_new_tokens": 16, "strategy": f"blockwise(size=4, hide={hide})"}
    answer = wavefront.generate_ids(model, [[5, 6, 7]], eos="keep", **options).tokens[0]
    stop = next(token for token in answer[4:] if token not in answer[:4])
    end = answer.index(stop) // 4 * 4 + 4
    found = wavefront.generate_ids(model, [[5, 6, 7]], eos="stop-block", stop_ids=[stop], **options)
    assert found.forwards == end < 16
    assert found.tokens[0][:end] == answer[:end]


def test_full_trace_reads_the_current_block_only():
    model = model_of()
    options = {"max_new_tokens": 8, "eos": "keep", "strategy": "left_to_right"}
    full = wavefront.generate_ids(model, [[5, 6, 7, 8]], trace="full", **options)
    plain = wavefront.generate_ids(model, [[5, 6, 7, 8]], **options)
    assert full.tokens == plain.tokens
    assert full.trace is not None
    assert full.trace.full
    later = full.trace.first.slot >= 4
    assert bool((full.trace.logp[:4, later].isneginf()).all())
    assert full.trace.alternatives is not None
    assert bool((full.trace.alternatives.logp[:4, later].isneginf()).all())


@pytest.mark.parametrize("strategy", ["standard", "wavefront(size=2)"])
def test_measures_leave_out_blocks_that_were_not_read_yet(strategy):
    options: dict[str, Any] = {"max_new_tokens": 8, "eos": "keep", "strategy": strategy}
    found = wavefront.generate_ids(model_of(), [[5, 6, 7, 8]], trace="full", **options)
    assert found.trace is not None
    if strategy == "standard":
        assert mhco.measure(found.trace).candidates.violations.sum() == 0
    shown = dynamics.heat_map(found.trace, of="entropy").values
    assert (~shown.isnan()).sum(-1).tolist() == [4, 3, 2, 1] * 2
    entropies = gradient.measure(found.trace).entropies
    assert entropies.total.isfinite().all()
    assert entropies.many.sum() == 20


@pytest.mark.parametrize("cache", ["blocks", "none"])
def test_trace_replays_and_forks(cache):
    lm = wavefront.LM(model_of(), wavefront.load("ripple").tokenizer)
    model = lm.model
    found = wavefront.generate_ids(
        model,
        [[5, 6, 7]],
        strategy="wavefront",
        max_new_tokens=12,
        eos="keep",
        cache=cache,
        trace=True,
    )
    assert lm.replay(found.trace) is None
    assert found.trace.about["options"]["strategy"].startswith("wavefront(")
    forked = lm.fork(found.trace, at=3)
    forked.decoding.drain()
    assert forked.decoding.answers() == found.tokens


REFUSED = {
    "fixed_budget": ({"fixed_budget": True}, "each block ends when it is filled"),
    "a cache of bidirectional models": ({"cache": "wave()"}, "which is block-causal: use blocks()"),
    "a short horizon": (
        {"strategy": "tide(cascade_rounds=0, horizon=3, selector=quota())"},
        "hides positions of a block of 4 from the model, which does not work block by block: use "
        "horizon=0, which hides none",
    ),
    "a short tbd": ({"strategy": "tbd(size=3, drop=1, min_kept=1)"}, "use spare=None, which hides"),
    "smaller blocks": ({"strategy": "blockwise(size=2)"}, "use hide=False, which hides none"),
}
HIDES_NOTHING = {
    "tide(horizon=4)": "tide(horizon=0)",
    "tide()": "tide(horizon=0)",
    "tbd(size=4, drop=1, min_kept=1)": "tbd(size=4, drop=1, min_kept=1, spare=None)",
    "blockwise(size=4)": "blockwise(size=4, hide=False)",
    "tbd(size=3, drop=1, min_kept=1, spare=1)": "tbd(size=3, drop=1, min_kept=1, spare=None)",
}


@pytest.mark.parametrize("name", HIDES_NOTHING)
def test_strategy_that_hides_nothing_inside_a_block_is_accepted(name):
    """With and without the cache, it decodes like the same strategy without a horizon."""
    model, options = model_of(), {"max_new_tokens": 14, "eos": "keep"}
    found = wavefront.generate_ids(model, PROMPTS, strategy=name, **options)
    plain = wavefront.generate_ids(model, PROMPTS, strategy=name, cache="none", **options)
    shown = wavefront.generate_ids(model, PROMPTS, strategy=HIDES_NOTHING[name], **options)
    assert found.tokens == plain.tokens == shown.tokens
    assert found.order == plain.order == shown.order


@pytest.mark.parametrize("name", REFUSED)
def test_unsupported_options_of_a_block_causal_model_are_refused(name):
    options, message = REFUSED[name]
    with pytest.raises(OptionError, match=message.replace("(", r"\(").replace(")", r"\)")):
        wavefront.generate_ids(model_of(), [[5, 6]], max_new_tokens=8, **options)


CONSTRAINTS: dict[str, tuple[dict[str, Any], str]] = {
    "regex": ({"regex": "(?:[a-c]{3}-)+[0-9]{2}"}, "(?:[a-c]{3}-)+[0-9]{2}"),
    "choices": ({"choices": ["yes", "no", "perhaps"]}, "yes|no|perhaps"),
    "schema": ({"schema": {"type": "array", "items": {"type": "boolean"}}}, r"\[.*\]"),
}
STRATEGIES = (
    "standard", "wavefront(size=4, radius=1)", "left_to_right", "rcr(size=4)",
    "edit(tau=0.0, extra_steps=2, selector=threshold(0.01))", "standard(selector=threshold(0.0))",
)  # fmt: skip


LAYOUTS = ["row", "padded", "shifted", "partial"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_answers_of_a_block_causal_model_are_choices(layout):
    check_constrained("choices", layout, STRATEGIES[3:5])


@pytest.mark.slow
@pytest.mark.parametrize("name", CONSTRAINTS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_answers_of_a_block_causal_model_satisfy_every_constraint(name, layout):
    check_constrained(name, layout, STRATEGIES)


def check_constrained(name: str, layout: str, strategies: tuple[str, ...]) -> None:
    """Decode with and without the cache, alone and in a batch, in few and many steps."""
    model = model_of(vocab_size=258)
    model.padded_blocks, model.shifted = layout == "padded", layout == "shifted"
    model.whole_blocks = layout != "partial"
    lm = wavefront.LM(model, byte_tokenizer())
    options, pattern = CONSTRAINTS[name]
    for strategy in strategies:
        for steps in (None, 5):
            settings = {**options, "strategy": strategy, "max_new_tokens": 18, "steps": steps}
            together = lm.generate(["a", "abcdef"], raw=True, **settings)
            alone = lm.generate("abcdef", raw=True, cache="none", **settings)
            for answer in (*together, alone):
                assert re.fullmatch(pattern, answer.text), (strategy, steps, answer.text)
                assert answer.finish_reason == "stop"
            assert together[1].text == alone.text
            if name == "schema":
                assert all(type(one) is bool for one in json.loads(alone.text))


def test_an_answer_longer_than_its_positions_is_refused_in_a_whole_last_block():
    """The masks that fill up the last block are no room for the answer."""
    lm = wavefront.LM(model_of(vocab_size=258), byte_tokenizer())
    with pytest.raises(OptionError, match="6 tokens are too few"):
        lm.generate("a", raw=True, max_new_tokens=6, choices=["1234567"])
    assert lm.generate("a", raw=True, max_new_tokens=7, choices=["1234567"]).text == "1234567"


def test_constrained_trace_of_a_block_causal_model_replays_and_forks():
    lm = wavefront.LM(model_of(vocab_size=258), byte_tokenizer())
    made = lm.generate("a", raw=True, max_new_tokens=18, regex="(?:[a-c]{3}-)+[0-9]", trace=True)
    assert lm.replay(made.trace) is None
    for strategy in (None, "standard"):
        forked = lm.fork(made.trace, at=3, strategy=strategy)
        forked.decoding.drain()
        assert re.fullmatch("(?:[a-c]{3}-)+[0-9]", forked.completions[0].text)


def test_forks_and_replays_end_the_answer_before_the_rest_of_the_last_block():
    lm, pattern = wavefront.LM(model_of(8, vocab_size=258), byte_tokenizer()), "[a-d]+[e-h]"
    for length in (4, 5, 9, 11):
        options = {"raw": True, "max_new_tokens": length, "steps": length, "cache": "none"}
        bias = dict.fromkeys(lm.tokenizer.encode("abcd"), 50.0)
        made = lm.generate("a", regex=pattern, trace=True, logit_bias=bias, **options)
        assert re.fullmatch(pattern, made.text)
        assert lm.replay(made.trace) is None
        for at in range(len(made.trace)):
            forked = lm.fork(made.trace, at=at)
            forked.decoding.drain()
            assert forked.completions[0].text == made.text


def test_constrained_requests_of_different_lengths_share_a_batch():
    lm = wavefront.LM(model_of(8, vocab_size=258), byte_tokenizer())
    batcher = Batcher(lm.model, rows=3, length=64)
    batcher.admit(lm.request("a", raw=True, max_new_tokens=40))
    asked = [
        {"choices": ["yes", "no", "perhaps"], "max_new_tokens": length, "steps": steps, "raw": True}
        for length, steps in ((22, 8), (11, 2))
    ]
    seats = [batcher.admit(lm.request("abc", **one)) for one in asked]
    while batcher.busy:
        batcher.step()
    for seat, one in zip(seats, asked, strict=True):
        assert lm.completion(seat).text == lm.generate("abc", **one).text
        assert lm.completion(seat).text in one["choices"]


def test_infilling_is_refused():
    lm = wavefront.LM(model_of(vocab_size=258), wavefront.load("ripple").tokenizer)
    with pytest.raises(OptionError, match="does not see the text after a hole"):
        lm.infill("a <mask:4> b")


@pytest.mark.parametrize("options", [{"cache": "blocks"}, {"eos": "stop-block"}], ids=str)
def test_block_options_are_refused_for_a_bidirectional_model(options):
    with pytest.raises(OptionError, match="block"):
        wavefront.generate_ids(toy(), [[5, 6]], max_new_tokens=8, **options)


def test_prompt_that_fits_only_without_its_whole_last_block_is_refused():
    model = model_of()
    request = request_of(model, [5, 6], {"max_new_tokens": 4})
    with pytest.raises(PromptError, match="8 tokens, but there is room for 6"):
        Batcher(model, rows=1, length=6).check(request)
