"""Infilling with the built-in models, whose tokenizers are byte-level and sentencepiece."""

from __future__ import annotations

import pytest

import wavefront
from wavefront.core.canvas import infill
from wavefront.engine.options import plan
from wavefront.engine.session import DecodeSession, model_properties
from wavefront.evaluation.worker import Prompt
from wavefront.models.toy import toy

STORY = "Once upon a time there was a <mask:6>. She <mask:12>."


@pytest.fixture(scope="module")
def ripple() -> wavefront.LM:
    return wavefront.load("ripple")


@pytest.fixture(scope="module")
def tale() -> wavefront.LM:
    return wavefront.load("tale")


def test_number_is_filled_in_after_a_space(ripple: wavefront.LM) -> None:
    answer = ripple.infill("Ivy reads 24 * 9 = <mask:3> pages.\n304 - 216 = <mask:2> are left.")
    assert answer.text.startswith("Ivy reads 24 * 9 = 216 pages.\n304 - 216 = ")
    assert answer.finish_reason == "filled"


@pytest.mark.parametrize("strategy", ["wavefront", "standard", "block", "left_to_right", "rcr"])
def test_story_is_filled_with_whole_words(tale: wavefront.LM, strategy: str) -> None:
    answer = tale.infill(STORY, strategy=strategy)
    first, second = answer.text.removesuffix(".").split(". She ", 1)
    assert first.startswith("Once upon a time there was a ")
    words = f"{first} {second}".split()
    assert len(words) >= 16
    # Every word is one that the tokenizer knows after a space, or a name.
    assert all(word.strip(".,!?\"'").isalpha() or "'" in word for word in words)


@pytest.mark.parametrize("strategy", ["block(size=4)", "rcr", "wavefront"])
def test_row_without_holes_stays_as_it_is(strategy: str) -> None:
    model = toy(seed=3)
    resolved = plan({"strategy": strategy}, model_properties(model), length=2)
    texts, holes = [[5, 6, 7, 8], [9, 10, 11, 12]], [[False, True, True, False], [False] * 4]
    ids = {"mask_id": model.mask_id, "pad_id": model.pad_id}
    both = DecodeSession(model, infill(texts, holes, **ids), resolved).drain()
    one = DecodeSession(model, infill(texts[:1], holes[:1], **ids), resolved).drain()
    assert both.tokens() == [*one.tokens(), texts[1]]


def test_text_may_be_a_single_hole(ripple: wavefront.LM) -> None:
    answer = ripple.infill("<mask:1>", choices=["a"])
    assert (answer.text, answer.forwards) == ("a", 1)


def test_unfinished_infilling_has_no_finish_reason(tale: wavefront.LM) -> None:
    stream = tale.stream_infill(STORY)
    next(stream)
    assert stream.completions[0].finish_reason is None
    assert stream.completions[0].text.startswith("Once upon a time there was a")


def test_trace_of_an_infill_has_its_text(tale: wavefront.LM) -> None:
    answer = tale.infill("Tom saw a <mask:3>. He ran.", trace=True)
    assert answer.trace is not None
    assert tale.text_of(answer.trace) == answer.text
    assert answer.text.startswith("Tom saw a ")
    assert answer.text.endswith(". He ran.")


def test_prompt_with_a_suffix_is_encoded_as_an_infill(
    ripple: wavefront.LM, tale: wavefront.LM
) -> None:
    for lm in (ripple, tale):
        for text, suffix in (("Tom saw a ", "and ran."), ("Tom saw a", "\nHe ran.")):
            after = suffix if suffix[0] == "\n" else f" {suffix}"
            request = lm.request_infill(f"{text}<mask:1>{after}")
            before, rest = Prompt(text, suffix).ids(lm.tokenizer, raw=False)
            assert [*before, lm.model.mask_id, *rest] == request.ids


def test_texts_that_name_tokens_get_no_space(tale: wavefront.LM) -> None:
    stream = tale.stream("Tom", strategy="adablock", max_new_tokens=8)
    (newline,) = stream.decoding.plan.config.strategy.delimiters  # pyright: ignore[reportAttributeAccessIssue]
    assert tale.tokenizer.decode([newline]) == "\n"


def test_override_texts_get_no_space(tale: wavefront.LM) -> None:
    made = tale.generate("Tom saw a big", max_new_tokens=8, strategy="left_to_right", trace=True)
    for text in (" dog", "ger"):
        stream = tale.fork(made.trace, 0, overrides={0: text})
        stream.decoding.drain()
        assert stream.completions[0].text.startswith(text)
