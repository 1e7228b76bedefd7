"""Constrained texts through the public object: every answer can be parsed."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pydantic
import pytest
from helpers.random_constraints import PATTERNS, QUICK, SCHEMAS
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import wavefront
from wavefront.core import spec
from wavefront.core.errors import OptionError, WavefrontError
from wavefront.models.toy import toy
from wavefront.text.byte_tokenizer import byte_tokenizer

SCHEMA = {
    "type": "object",
    "properties": {
        "fruit": {"enum": ["fig", "pear"]},
        "count": {"type": "integer", "minimum": 0, "maximum": 99},
        "note": {"type": "string", "maxLength": 6},
    },
    "required": ["fruit", "count"],
}
QUESTION = "I have two figs and a pear. How many fruits do I have?"


@pytest.fixture(scope="module")
def lm() -> wavefront.LM:
    return wavefront.load("toy")  # random weights, one token per byte: it wants anything else


class Basket(pydantic.BaseModel):
    fruit: str = pydantic.Field(pattern="^[a-z]{1,4}$")
    count: int = pydantic.Field(ge=0, le=99)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"steps": 12},
        {"steps": 1, "strategy": "standard"},
        {"strategy": "standard", "temperature": 1.0, "seed": 3},
        {"strategy": "rcr", "steps": 20},
        {"strategy": "block(size=16, selector=threshold(tau=0.2))"},
        {"cache": "wave(refresh=8)", "steps": 20},
        {"cfg_scale": 1.0, "steps": 10},
        {"eos": "keep", "steps": 10},
    ],
    ids=str,
)
def test_answers_satisfy_the_schema(lm, options):
    answer = lm.generate(QUESTION, schema=SCHEMA, max_new_tokens=64, **options)
    jsonschema.validate(json.loads(answer.text), SCHEMA)
    assert answer.finish_reason == "stop"


def test_answers_parse_into_a_pydantic_model(lm):
    for answer in lm.generate([QUESTION, "Hi"], schema=Basket, max_new_tokens=48, steps=12):
        assert 0 <= Basket.model_validate_json(answer.text).count <= 99


def test_answers_match_a_pattern_and_choices(lm):
    made = lm.generate(QUESTION, regex=r"^\d{1,3} (figs|pears)\.$", max_new_tokens=16, steps=8)
    assert re.fullmatch(r"\d{1,3} (figs|pears)\.", made.text)
    choices = ["yes", "no", "it depends: é"]
    for steps in (20, 3, 1):
        options = {"max_new_tokens": 20, "steps": steps, "strategy": "standard"}
        assert lm.generate(QUESTION, choices=choices, **options).text in choices


def test_a_bias_against_every_allowed_token_does_not_break_the_constraint(lm):
    bias = dict.fromkeys(lm.tokenizer.encode("yesno"), -100.0)
    for steps in (8, 1):
        options = {"max_new_tokens": 8, "steps": steps, "strategy": "standard"}
        made = lm.generate(QUESTION, choices=["yes", "no"], logit_bias=bias, **options)
        assert made.text in ("yes", "no")


def test_a_suppressed_end_token_is_in_no_answer(lm):
    (stop,) = lm.tokenizer.encode("b", inside=True)
    given = {"stop_ids": [stop], "eos": "suppress-logit", "max_new_tokens": 5}
    for options in ({}, {"temperature": 1.0}, {"steps": 1, "strategy": "standard"}):
        assert lm.generate(QUESTION, regex="[ab]{5}", **given, **options).text == "aaaaa"
        with pytest.raises(OptionError, match="cannot spell any answer"):
            lm.generate(QUESTION, regex="[ab]{4}b", **given, **options)


def test_an_answer_that_fills_the_canvas_is_complete(lm):
    answer = lm.generate(QUESTION, choices=["abc"], max_new_tokens=3)
    assert (answer.text, answer.finish_reason) == ("abc", "stop")


def test_unfinished_answers_have_no_finish_reason(lm):
    stream = lm.stream(QUESTION, schema=SCHEMA, max_new_tokens=64, steps=16)
    next(stream)
    assert stream.completions[0].finish_reason is None


def test_each_hole_of_a_text_satisfies_the_constraint(lm):
    filled = lm.infill("From <mask:3> to <mask:5>.", regex="[0-9]+")
    assert re.fullmatch(r"From [0-9]{1,3} to [0-9]{1,5}\.", filled.text)
    with pytest.raises(OptionError, match=r"2 tokens are too few .*; make the hole longer\."):
        lm.infill("From <mask:5> to <mask:2>.", regex="[0-9]{3}")


def test_a_space_before_a_constrained_hole_stays_in_the_text():
    ripple = wavefront.load("ripple")
    text = "Two figs and <mask:2> pears are (<mask:2>) fruits."
    made = ripple.infill(text, regex="[0-9]", trace=True)
    assert re.fullmatch(r"Two figs and [0-9] pears are \([0-9]\) fruits\.", made.text)
    assert ripple.replay(made.trace) is None


def test_examples_of_the_page_print_what_it_says(capsys):
    page = Path(__file__).parents[2] / "docs" / "constrain.md"
    blocks = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", page.read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    assert len(blocks) == 4
    for code, printed in blocks:
        exec(code, names)
        assert capsys.readouterr().out == printed


def test_traces_replay_and_fork_with_their_constraint(lm):
    answer = lm.generate(QUESTION, schema=SCHEMA, max_new_tokens=48, steps=16, trace=True)
    assert json.loads(answer.trace.about["options"]["schema"]) == SCHEMA
    assert lm.replay(answer.trace) is None
    for strategy in (None, "standard"):
        other = lm.fork(answer.trace, at=5, strategy=strategy)
        other.decoding.drain()
        jsonschema.validate(json.loads(other.completions[0].text), SCHEMA)
    with pytest.raises(OptionError, match="already written contradict"):
        lm.fork(answer.trace, at=5, overrides={0: "x"})
    filled = lm.infill("From <mask:3> to <mask:5>.", choices=["one", "two"], trace=True)
    assert lm.replay(filled.trace) is None


def test_requests_with_different_constraints_share_a_batch(lm):
    batcher = wavefront.Batcher(lm.model, rows=3, length=128)
    asked: list[dict[str, Any]] = [{"choices": ["yes", "no"]}, {}, {"regex": "[0-9]{2}"}]
    active = [batcher.admit(lm.request("Hi", max_new_tokens=12, **options)) for options in asked]
    while batcher.busy:
        batcher.step()
    texts = [lm.completion(one).text for one in active]
    alone = [lm.generate("Hi", max_new_tokens=12, **options).text for options in asked]
    assert texts == alone
    assert texts[0] in ("yes", "no")
    assert re.fullmatch("[0-9]{2}", texts[2])


@pytest.mark.parametrize(
    ("family", "strategy", "sizes"),
    [
        ("llada", "standard", [(40, 10), (24, 4), (12, 1)]),
        ("llada", "wavefront", [(40, 10), (24, 4), (12, 3)]),
        ("llada", "block(size=8)", [(40, 10), (24, 6), (16, 2)]),
        ("llada", "rcr(size=8)", [(40, 10), (24, 6), (16, 4)]),
        ("dream", "standard", [(40, 10), (24, 4), (12, 1)]),
    ],
)
def test_constrained_requests_keep_their_answers_beside_longer_ones(family, strategy, sizes):
    # Rows of different lengths read different numbers of positions, so some columns repeat.
    lm, choices = model_of(family), ["yes", "no", "it depends"]
    batcher = wavefront.Batcher(lm.model, rows=4, length=96)
    options = {"raw": True, "strategy": strategy}
    batcher.admit(lm.request("Hi", max_new_tokens=64, **options))
    asked = [
        {"max_new_tokens": length, "steps": steps, "choices": choices, **options}
        for length, steps in sizes
    ]
    active = [batcher.admit(lm.request("Hi", **one)) for one in asked]
    while batcher.busy:
        batcher.step()
    for request, one in zip(active, asked, strict=True):
        made, alone = lm.completion(request), lm.generate("Hi", **one)
        assert (made.text, made.finish_reason) == (alone.text, "stop")
        assert made.text in choices


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"schema": SCHEMA, "max_new_tokens": 8}, "8 tokens are too few for the schema"),
        ({"regex": "a{5}", "stop_ids": (), "max_new_tokens": 6}, "exactly 6 tokens"),
        ({"regex": "a{5}", "eos": "suppress-logit", "max_new_tokens": 6}, "exactly 6 tokens"),
        ({"choices": ["a"], "speculate": 4}, "speculate cannot be combined with the choices"),
        ({"choices": ["a"], "regex": "b"}, "cannot be combined"),
        ({"schema": SCHEMA, "stop_ids": [92]}, "cannot spell any answer"),  # the closing brace
    ],
    ids=lambda value: str(value)[:40],
)
def test_impossible_requests_are_refused_before_decoding(lm, options, message):
    with pytest.raises(WavefrontError, match=message):
        lm.stream("Hi", **options)


def test_token_ids_without_a_tokenizer_take_no_constraint(lm):
    with pytest.raises(OptionError, match="needs a tokenizer"):
        wavefront.generate_ids(lm.model, [[1, 2]], choices=["a"])


# -- random constraints, and random ways to decode ------------------------------------------------

LENGTH = 24
# A strategy warns if there are too few steps for its front.
ANY_STEPS = pytest.mark.filterwarnings("ignore::wavefront.core.errors.WavefrontWarning")
# What a strategy needs to take any selector, and to fit the canvas.
OPTIONS = {"tide": "cascade_rounds=0, ", "tbd": "size=5, drop=2, min_kept=1, "}


def strategy_text(name: str, selector: str) -> str:
    if name == "blockwise":  # it takes the selector of its strategy
        return f"blockwise(size=8, strategy=standard(selector={selector}()))"
    return f"{name}({OPTIONS.get(name, '')}selector={selector}())"


@st.composite
def ways(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """Return a kind of model, and options of a decode: a strategy, a selector and a cache."""
    family = draw(st.sampled_from(["llada", "dream", "sdar", "fast_dllm_v2"]))
    own = family in ("sdar", "fast_dllm_v2")
    caches = ["blocks", "none"] if own else [n for n in spec.names("caches") if n != "blocks"]
    names = draw(
        st.tuples(
            st.sampled_from(spec.names("strategies")), st.sampled_from(spec.names("selectors"))
        )
    )
    return family, {
        "strategy": strategy_text(*names),
        "cache": draw(st.sampled_from([*caches, "none"])),
        "steps": draw(st.sampled_from([LENGTH, 8, 1])),
        "temperature": draw(st.sampled_from([0.0, 1.0])),
        "seed": draw(st.integers(0, 99)),
        "max_new_tokens": LENGTH,
    }


@cache
def model_of(family: str) -> wavefront.LM:
    """Return a model with random weights, which wants anything but the answer."""
    words = byte_tokenizer()
    net = toy(5, family=family, vocab_size=words.vocab_size, width=32, layers=1)
    return wavefront.LM(net, words)


def decode(way: tuple[str, dict[str, Any]], **constraint: Any) -> str | None:
    """Return the answer; None if no word of the language fits, which is found before decoding."""
    lm, options = model_of(way[0]), way[1]
    try:
        answer = lm.generate("Hi", raw=True, **options, **constraint)
    except OptionError as error:
        if re.search("tokens are too few|too large together", str(error)):
            return None
        with pytest.raises(OptionError):  # these options do not fit together in any decode
            lm.generate("Hi", raw=True, **options)
        assume(False)
        return None
    assert answer.finish_reason == "stop"
    return answer.text


def check_pattern(pattern: str, way: tuple[str, dict[str, Any]]) -> None:
    text = decode(way, regex=pattern)
    assert text is None or re.fullmatch(pattern, text, re.DOTALL), (pattern, way, text)


def check_schema(schema: Any, way: tuple[str, dict[str, Any]]) -> None:
    text = decode(way, schema=schema)
    if text is not None:
        jsonschema.Draft202012Validator(schema).validate(json.loads(text))


@ANY_STEPS
@settings(QUICK, max_examples=40)
@given(PATTERNS, ways())
def test_decoded_answers_match_random_patterns(pattern, way):
    check_pattern(pattern, way)


@ANY_STEPS
@settings(QUICK, max_examples=40)
@given(SCHEMAS, ways())
def test_decoded_answers_satisfy_random_schemas(schema, way):
    check_schema(schema, way)


@pytest.mark.slow
@ANY_STEPS
@settings(QUICK, max_examples=600)
@given(PATTERNS, ways())
def test_many_decoded_answers_match_random_patterns(pattern, way):
    check_pattern(pattern, way)


@pytest.mark.slow
@ANY_STEPS
@settings(QUICK, max_examples=400)
@given(SCHEMAS, ways())
def test_many_decoded_answers_satisfy_random_schemas(schema, way):
    check_schema(schema, way)
