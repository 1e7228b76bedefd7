"""The options logprobs and logit_bias: exact, the same in every batch, and without side effects."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from helpers.families import with_families

import wavefront
from wavefront.core import spec
from wavefront.core.errors import OptionError
from wavefront.engine.batcher import Batcher, Request
from wavefront.engine.options import plan
from wavefront.engine.session import begin, model_properties
from wavefront.models.toy import toy

PROMPT, LENGTH = [5, 6, 7], 12
QUICK = "wavefront(size=4, radius=2)"
BIAS = {3: 4.0, 11: -100.0, 20: 2.5}
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "temperature": {"temperature": 0.8, "seed": 3, "top_k": 9},
    "guidance": {"cfg_scale": 0.7},
    "speculation": {"speculate": 3},
    "cache": {"cache": "wave(refresh=6, size=12, near=2)"},
    "stop": {"eos": "stop"},
    "entropy": {"priority": "entropy"},
}


def strategies() -> list[Any]:
    """Return every strategy; the quick tests use one of them."""
    every = [f"{name}()" for name in spec.names("strategies") if name != "adablock"]
    every += [
        "tide(cascade_rounds=0, horizon=0, revisable_band=4, "
        "remask_below=0.5, selector=threshold(tau=0.3))"
    ]
    every += ["adablock(delimiters=(7, 30))"]
    return [QUICK, *(pytest.param(text, marks=pytest.mark.slow) for text in every)]


def session_of(model: Any, options: dict[str, Any], *, record: bool | str = False) -> Any:
    given = {"max_new_tokens": LENGTH, "eos": "keep", **options}
    return begin(model, [PROMPT], given, record=record).drain()


def request_of(model: Any, options: dict[str, Any]) -> Request:
    resolved = plan({"max_new_tokens": LENGTH, "eos": "keep", **options}, model_properties(model))
    holes = [False] * len(PROMPT) + [True] * LENGTH
    return Request([*PROMPT, *[model.mask_id] * LENGTH], holes, resolved)


# Log-probabilities


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize(("strategy", "family"), with_families(strategies()))
def test_logprobs_are_those_of_the_step_that_wrote_the_token(
    strategy: str, name: str, family: str
) -> None:
    model = toy(family=family, dtype="float64")
    options = {"strategy": strategy, **SETTINGS[name], "logprobs": 4}
    session = session_of(model, options, record=True)
    trace, commits = session.trace(), session.commits()[0]
    for position, commit in enumerate(commits):
        steps = trace.written[:, 0, position].nonzero()[:, 0].tolist()
        if not steps:
            assert commit is None
            continue
        assert commit.token == int(trace.tokens[steps[-1], 0, position])
        assert commit.logp == pytest.approx(float(trace.logp[steps[-1], 0, position]), abs=1e-6)


@pytest.mark.parametrize("strategy", strategies())
def test_alternatives_are_the_models_likeliest_tokens(strategy: str) -> None:
    """Read the logits of every committing step again, without the engine."""
    model = toy(dtype="float64")
    session = session_of(model, {"strategy": strategy, "logprobs": 20}, record=True)
    trace, commits = session.trace(), session.commits()[0]
    for step, canvas in enumerate(trace.before()):
        places = trace.written[step, 0].nonzero()[:, 0].tolist()
        hidden = model.hidden(canvas.tokens, None, torch.arange(len(commits))[None])
        logp = model.head(hidden)[0].log_softmax(-1)
        logp[:, model.mask_id] = -math.inf
        for position in places:
            if trace.written[step + 1 :, 0, position].any():
                continue  # a later step wrote another token
            want = logp[position].topk(20)
            commit = commits[position]
            assert [token for token, _ in commit.alternatives] == want.indices.tolist()
            assert [one for _, one in commit.alternatives] == pytest.approx(
                want.values.tolist(), abs=1e-5
            )


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("strategy", strategies())
def test_logprobs_among_other_requests_equal_those_alone(strategy: str, name: str) -> None:
    model = toy(dtype="float64")
    shared = {"strategy": strategy, **SETTINGS[name]}
    wanted: tuple[int | None, ...] = (3, None, 20, 0)
    batcher = Batcher(model, rows=3, length=32)
    waiting = [request_of(model, {**shared, "logprobs": count}) for count in wanted]
    active = []
    while waiting or batcher.busy:
        while waiting and batcher.free:
            active.append(batcher.admit(waiting.pop(0)))
        batcher.step()
    for count, one in zip(wanted, active, strict=True):
        alone = session_of(model, {**shared, "logprobs": count})
        filled = [position for position, final in enumerate(one.final) if final]
        assert [one.tokens[n] for n in filled] == [alone.tokens()[0][n] for n in filled]
        if count is None:
            assert one.commits == {}
            continue
        want = alone.commits()[0]
        for position, commit in one.commits.items():
            if one.final[position]:
                assert commit.token == want[position].token
                assert commit.logp == pytest.approx(want[position].logp, abs=1e-6)
                mine, theirs = commit.alternatives, want[position].alternatives
                assert [token for token, _ in mine] == [token for token, _ in theirs]
                assert len(mine) <= count
                assert dict(mine).get(commit.token, commit.logp) == commit.logp


def test_request_without_logprobs_pays_nothing_for_them() -> None:
    model = toy()
    asks_nothing, asks = (
        plan({}, model_properties(model)),
        plan({"logprobs": 0}, model_properties(model)),
    )
    assert asks.config == asks_nothing.config  # they share one group, and nothing more is read
    assert asks_nothing.config.alternatives == 0
    session = session_of(model, {})
    assert session._logp is None


def test_tokens_do_not_depend_on_logprobs() -> None:
    model = toy()
    for options in SETTINGS.values():
        plain = session_of(model, options).tokens()
        assert session_of(model, {**options, "logprobs": 20}).tokens() == plain


def test_small_vocabulary_has_fewer_alternatives() -> None:
    model = toy(vocab_size=9)
    commits = session_of(model, {"logprobs": 20}).commits()[0]
    assert {len(one.alternatives) for one in commits if one is not None} == {8}
    filtered = session_of(model, {"logprobs": 20, "sampling": "dream", "top_k": 2}).commits()[0]
    assert all(1 <= len(one.alternatives) <= 2 for one in filtered if one is not None)


def test_completion_has_one_logprob_per_token() -> None:
    lm = wavefront.load("toy")
    made = lm.generate(["Once", "Twice more"], max_new_tokens=12, logprobs=2, eos="keep")
    for answer in made:
        assert answer.logprobs is not None
        assert [one.token for one in answer.logprobs] == answer.tokens
        for one in answer.logprobs:
            assert one.logprob is not None
            assert one.logprob <= 0
            first, second = (top.logprob for top in one.top)
            assert first is not None
            assert second is not None
            assert first >= second
    assert lm.generate("Once", max_new_tokens=4).logprobs is None
    filled = lm.infill("a <mask:3> b <mask:2>", logprobs=0)
    assert filled.logprobs is not None
    assert [one.token for one in filled.logprobs] == filled.tokens


def test_fork_has_logprobs_only_of_its_own_tokens() -> None:
    lm = wavefront.load("toy")
    options: dict[str, Any] = {"max_new_tokens": 8, "strategy": "left_to_right", "eos": "keep"}
    trace = lm.generate("Once", trace=True, logprobs=1, **options).trace
    assert trace is not None
    stream = lm.fork(trace, 3, overrides={5: 7})
    stream.decoding.drain()
    (answer,) = stream.completions
    assert answer.logprobs is not None
    given = [one.logprob is None for one in answer.logprobs]
    assert given == [n < 3 or n == 5 for n in range(8)]


# Logit bias


class BiasedToy:
    """A toy model whose head adds a bias; the reference for the engine's own."""

    def __init__(self, model: Any, bias: dict[int, float]) -> None:
        self._model, self._bias = model, bias

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        logits = self._model.head(hidden).clone()
        for token, value in self._bias.items():
            logits[..., token] += value
        return logits


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize(("strategy", "family"), with_families(strategies()))
def test_logit_bias_equals_a_model_with_biased_logits(
    strategy: str, name: str, family: str
) -> None:
    model = toy(family=family, dtype="float64")
    options = {"strategy": strategy, **SETTINGS[name], "logprobs": 3}
    mine = session_of(model, {**options, "logit_bias": BIAS})
    reference = session_of(BiasedToy(model, BIAS), options)
    assert mine.tokens() == reference.tokens()
    for one, other in zip(mine.commits()[0], reference.commits()[0], strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            assert one.logp == pytest.approx(other.logp, abs=1e-6)


@pytest.mark.parametrize("name", SETTINGS)
def test_rows_with_different_biases_share_a_batch(name: str) -> None:
    model = toy(dtype="float64")
    biases: list[dict[int, float] | None] = [{3: 6.0}, {9: 7.5, 4: -3.0}, None, {50: 100.0}]
    batcher = Batcher(model, rows=2, length=32)
    waiting = [request_of(model, {**SETTINGS[name], "logit_bias": bias}) for bias in biases]
    assert len({request.plan.config for request in waiting if request.plan.logit_bias}) == 1
    active = []
    while waiting or batcher.busy:
        while waiting and batcher.free:
            active.append(batcher.admit(waiting.pop(0)))
        batcher.step()
    for bias, one in zip(biases, active, strict=True):
        alone = session_of(model, {**SETTINGS[name], "logit_bias": bias}).tokens()[0]
        filled = [position for position, final in enumerate(one.final) if final]
        assert [one.tokens[n] for n in filled] == [alone[n] for n in filled]


def test_bias_can_force_and_prevent_a_token() -> None:
    model = toy()
    forced = session_of(model, {"logit_bias": {12: 100}}).answers()[0]
    assert set(forced) == {12}
    plain = session_of(model, {}).answers()[0]
    banned = session_of(model, {"logit_bias": dict.fromkeys(set(plain), -100)}).answers()[0]
    assert not set(plain) & set(banned)


def test_bias_on_every_token_leaves_their_order_as_it_is() -> None:
    """A bias forbids nothing: it shifts logits, and the best token is still the best."""
    model = toy()
    every = {token: -100 for token in range(model.vocab_size) if token != model.mask_id}
    options = {"strategy": "standard", "steps": 1}
    plain = session_of(model, options).answers()
    assert session_of(model, {**options, "logit_bias": every}).answers() == plain


def test_bias_survives_replay_and_fork() -> None:
    lm = wavefront.load("toy")
    options: dict[str, Any] = {"max_new_tokens": 8, "logit_bias": {"65": 3.5, 66: -4}}
    answer = lm.generate("Once", trace=True, eos="keep", **options)
    assert answer.trace is not None
    assert answer.trace.about["options"]["logit_bias"] == {"65": 3.5, "66": -4.0}
    assert lm.replay(answer.trace) is None
    stream = lm.fork(answer.trace, 2)
    stream.decoding.drain()
    assert stream.completions[0].tokens == answer.tokens


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"logprobs": 21}, "logprobs must be between 0 and 20"),
        ({"logprobs": -1}, "logprobs must be between 0 and 20"),
        ({"logprobs": True}, "logprobs must be a whole number"),
        ({"logit_bias": [3]}, "must map token ids to numbers"),
        ({"logit_bias": {64: 1}}, "logit_bias must be between 0 and 63"),
        ({"logit_bias": {"x": 1}}, "logit_bias must be a whole number"),
        ({"logit_bias": {"-1": 1}}, "logit_bias must be a whole number"),
        ({"logit_bias": {1: 101}}, "logit_bias must be between -100 and 100"),
        ({"logit_bias": {1: math.nan}}, "logit_bias must be"),
        ({"logit_bias": {1: "2"}}, "logit_bias must be a number"),
        ({"logit_bias": {63: 2}}, "must not contain the mask id"),
        ({"logit_bias": {1: 2, "1": 3}}, "names the token 1 twice"),
        ({"logit_bias": dict.fromkeys(range(1025), 0.0)}, "1025 entries; the limit is 1024"),
    ],
)
def test_invalid_values_are_rejected(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(OptionError, match=sentence) as caught:
        plan(given, model_properties(toy()))
    assert caught.value.option in given


def test_logprobs_of_an_edited_token_are_those_of_its_edit() -> None:
    lm = wavefront.load("toy")
    options = {"max_new_tokens": 8, "strategy": "edit(tau=0.0, extra_steps=2)", "eos": "keep"}
    made = lm.generate("Hi", logprobs=2, trace=True, **options)
    assert made.trace is not None
    assert made.logprobs is not None
    assert bool((made.trace.written & ~made.trace.commit).any())
    for one in made.logprobs:  # at temperature 0 every token is the likeliest when it is written
        assert one.logprob == pytest.approx(one.top[0].logprob, abs=1e-5)
        assert one.text == one.top[0].text
