"""Quality of texts: likelihood, length, variety and early ends, under the judge of tale."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch

from wavefront import tasks
from wavefront.analysis import quality
from wavefront.analysis.quality import QualityJudge, ScoredText, TextQuality
from wavefront.core.errors import CheckpointError, OptionError
from wavefront.results.bootstrap import bootstrap_mean
from wavefront.results.interval import Interval
from wavefront.tasks.base import Ask

BEGIN, END, MASK = 1, 2, 4607


@pytest.fixture(scope="module")
def judge() -> QualityJudge:
    return QualityJudge.load("tale", device="cpu")


@pytest.fixture(scope="module")
def stories() -> list:
    return tasks.load("stories").items(Ask(count=4))


def answer(ids: list[int], reason: str = "stop") -> SimpleNamespace:
    return SimpleNamespace(tokens=ids, finish_reason=reason)


def test_nats_are_those_of_the_judge_including_the_end_token(judge: QualityJudge) -> None:
    prompt = "Once upon a time, there was a little"
    ids = judge.tokenizer.encode("girl named Lily.")
    ended, cut = judge.measure([prompt] * 2, [answer(ids), answer(ids, "length")])
    given = [BEGIN, *judge.tokenizer.encode(prompt)]
    row = [*given, *ids, END]
    logits = judge.judge.model(torch.tensor([row]))[0].double()
    logits[:, [MASK, BEGIN]] = -math.inf
    logp = logits.log_softmax(-1)
    nats = [-float(logp[at - 1, row[at]]) for at in range(len(given), len(row))]
    assert ended.nats == pytest.approx(sum(nats) / len(nats), rel=1e-4)
    assert cut.nats == pytest.approx(sum(nats[:-1]) / (len(nats) - 1), rel=1e-4)
    assert ended.length == cut.length == len(ids)
    assert (ended.premature, cut.premature) == (True, False)


def test_first_tokens_are_measured_by_themselves(judge: QualityJudge, stories: list) -> None:
    story = stories[0]
    text = judge.original(story.prompt, story.extra["text"], length=160)
    short = QualityJudge(judge.judge, judge.tokenizer, first=10)
    long, part = short.measure_texts([text, text._replace(ids=text.ids[: text.prompt + 10])])
    assert long.first_nats == pytest.approx(part.nats, rel=1e-5)
    assert (long.first_length, long.first_distinct) == (part.length, part.distinct)
    assert long.length > 10 == part.length
    shorter = short.measure_texts([text._replace(ids=text.ids[: text.prompt + 9])])[0]
    assert shorter.first_distinct is None, "shares of trigrams are compared at the same length"
    assert shorter.distinct is not None


def test_repetition_lowers_the_share_of_distinct_trigrams(judge: QualityJudge) -> None:
    ids = judge.tokenizer.encode("the cat sat and")
    once, again = judge.measure(["One day"] * 2, [answer(ids, "length"), answer(ids * 10)])
    assert once.distinct == 1.0
    assert again.distinct == pytest.approx(len(ids) / (10 * len(ids) - 2))
    assert again.nats < once.nats, "repetition is likely, so nats alone say nothing"
    assert quality.distinct_trigrams(ids[:2]) is None


def test_shuffled_words_are_less_likely_than_the_original_text(
    judge: QualityJudge, stories: list
) -> None:
    text = judge.original(stories[0].prompt, stories[0].extra["text"], length=60)
    order = torch.randperm(60, generator=torch.Generator().manual_seed(0)).tolist()
    words = text.ids[text.prompt :]
    shuffled = text._replace(ids=[*text.ids[: text.prompt], *(words[at] for at in order)])
    good, bad = judge.measure_texts([text, shuffled])
    assert good.nats + 2 < bad.nats


def test_premature_end_is_an_end_token_among_the_first_64(judge: QualityJudge) -> None:
    ids = judge.tokenizer.encode("One day the cat sat. " * 20)
    found = judge.measure(
        ["Tom"] * 4, [answer(ids[:63]), answer(ids[:64]), answer(ids[:10], "length"), answer([])]
    )
    assert [one.premature for one in found] == [True, False, False, True]
    assert found[3].length == 0
    assert found[3].distinct is None
    assert found[3].nats > 5, "the judge does not end a story after one word"


def test_token_that_the_judge_cannot_write_counts_a_fixed_number(judge: QualityJudge) -> None:
    found = judge.measure_texts([ScoredText([BEGIN, BEGIN], 1)])
    assert found[0].nats == quality.IMPOSSIBLE


def test_original_text_is_cut_to_the_canvas(judge: QualityJudge, stories: list) -> None:
    for story in stories:
        given = [BEGIN, *judge.tokenizer.encode(story.prompt)]
        whole = [BEGIN, *judge.tokenizer.encode(story.extra["text"])]
        text = judge.original(story.prompt, story.extra["text"], length=1000)
        assert text.ids[: len(whole)] == whole
        assert text.prompt <= len(given)
        assert text.ids[: text.prompt] == given[: text.prompt]
        assert (text.ids[-1] == END) == (len(whole) < judge.judge.model.max_length)
        short = judge.original(story.prompt, story.extra["text"], length=20)
        assert short.ids == text.ids[: text.prompt + 20]
    unfinished = judge.original("Tom ran", "Tom ran home.", length=9, finished=False)
    assert unfinished.ids[-1] != END


@pytest.mark.parametrize("name", ["ripple", "toy", "no/such-model"])
def test_model_without_a_judge_is_named_in_one_sentence(name: str) -> None:
    with pytest.raises(CheckpointError, match=f"^{name} has no judge, so the quality .*tale"):
        QualityJudge.load(name)


def test_wrong_arguments_are_refused(judge: QualityJudge) -> None:
    with pytest.raises(OptionError, match="2 prompts and 1 answers"):
        judge.measure(["a", "b"], [answer([5])])
    with pytest.raises(OptionError, match="at least one token after its prompt"):
        judge.measure(["a"], [answer([], "length")])
    with pytest.raises(OptionError, match="first must be at least 1"):
        QualityJudge(judge.judge, judge.tokenizer, first=0)


def test_means_and_paired_differences_leave_out_missing_values() -> None:
    def text(nats: float, distinct: float | None) -> TextQuality:
        return TextQuality(nats, 9, distinct, nats, 9, distinct, False)

    first = [text(1.0, 0.5), text(2.0, None), text(4.0, 1.0)]
    second = [text(2.0, 0.5), text(3.0, 0.7), text(5.5, 0.5)]
    means, gaps = quality.estimates(first), quality.differences(first, second)
    exact = bootstrap_mean([1.0, 2.0, 4.0])
    found = means["nats"]
    assert isinstance(found, Interval)
    assert (found.value, found.low, found.high) == pytest.approx(
        (exact.value, exact.low, exact.high)
    )
    assert isinstance(means["distinct"], Interval)
    assert means["distinct"].value == pytest.approx(0.75)
    assert isinstance(gaps["nats"], Interval)
    assert gaps["nats"].value == pytest.approx(3.5 / 3)
    assert isinstance(gaps["distinct"], Interval)
    assert gaps["distinct"].value == pytest.approx(-0.25), "only pairs with both values count"
    assert quality.estimates(first[:1])["nats"] == 1.0
    assert quality.estimates([text(1.0, None)] * 2)["distinct"] is None
    assert quality.from_json(first[1]._asdict()) == first[1]
