"""Masked LMs of transformers as wavefront models."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

pytest.importorskip("transformers", reason="transformers is not installed")

from helpers.masked_lms import FAMILIES, SIZES, WORDS, make, tokenizer

import wavefront
from wavefront.core import spec
from wavefront.core.canvas import blank
from wavefront.core.errors import OptionError
from wavefront.integrations import hf
from wavefront.strategies.block import Block
from wavefront.strategies.rcr import Rcr
from wavefront.strategies.selectors.quota import Quota
from wavefront.strategies.tide import Tide
from wavefront.strategies.wavefront import Wavefront
from wavefront.testing import ON_MODELS, check, model_laws

# Some versions of transformers cause these warnings in torch on import.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*Converting a tensor:UserWarning"),
]
# A masked language model of transformers has no masked copies.
STRATEGIES = [name for name in spec.names("strategies") if name != "wino"]


@pytest.fixture(scope="module")
def words() -> Any:
    return tokenizer()


@pytest.fixture(scope="module")
def bert(words: Any) -> hf.MaskedLM:
    return hf.MaskedLM(make("Bert"), words)


def everywhere(tokens: Any) -> Any:
    return torch.arange(tokens.shape[1]).expand_as(tokens)


@torch.no_grad()
def logits(model: Any, tokens: Any, attend: Any = None) -> Any:
    return model.head(model.hidden(tokens, attend, everywhere(tokens)))


@pytest.mark.parametrize("family", FAMILIES)
def test_split_is_exact_and_padding_changes_nothing(family: str, words: Any) -> None:
    model = make(family)
    plain = hf.MaskedLM(model, words, closing=False)
    tokens = torch.randint(5, len(WORDS), (3, 9))
    raw = plain.raw_logits(tokens)
    assert torch.equal(raw, model(input_ids=tokens).logits)
    assert torch.allclose(logits(plain, tokens), raw, atol=1e-5)
    padded = torch.nn.functional.pad(tokens, (4, 0), value=plain.pad_id)
    attend = torch.nn.functional.pad(tokens > 0, (4, 0), value=False)
    assert torch.allclose(logits(plain, padded, attend)[:, 4:], raw, atol=1e-5)
    # Another text gives other logits.
    other = tokens.clone()
    other[:, -1] = 5 + (other[:, -1] - 4) % (len(WORDS) - 5)
    assert not torch.allclose(logits(plain, other)[:, 0], raw[:, 0], atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_generate_works_for_every_family(family: str, words: Any) -> None:
    model = hf.enable(make(family), words)
    batch = words(["the cat sat", "the dog"], return_tensors="pt", padding=True)
    given: Any = {"max_new_tokens": 6, "strategy": "wavefront(size=3)", "eos": "keep"}
    found = model.generate(**batch, custom_generate=hf.generate, **given)
    assert found.shape == (2, batch["input_ids"].shape[1] + 6)
    alone = model.generate(**words("the dog", return_tensors="pt"), **given)
    assert alone[0, -6:].equal(found[1, -6:])
    assert (found != words.mask_token_id).all()


def test_model_sees_one_closing_token(words: Any) -> None:
    model = make("Bert")
    closed, plain = hf.MaskedLM(model, words), hf.MaskedLM(model, words, closing=False)
    assert closed.max_length == plain.max_length - 1
    tokens = torch.tensor([[1, 9, 3, 3], [1, 9, 10, 3]])
    end = torch.full((2, 1), words.sep_token_id)
    whole = torch.cat([tokens, end], 1)
    assert torch.allclose(logits(closed, tokens), logits(plain, whole)[:, :4], atol=1e-5)
    # It follows the last attended position of each row.
    attend = torch.tensor([[True, True, False, False], [True] * 4])
    short = torch.tensor([[1, 9, words.sep_token_id]])
    found = logits(closed, tokens, attend)
    assert torch.allclose(found[0, :2], logits(plain, short)[0, :2], atol=1e-5)
    # No second one follows a text that has one.
    assert torch.allclose(logits(closed, short), logits(plain, short), atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_row_of_padding_stays_finite(family: str, words: Any) -> None:
    """A free row of `Batcher` holds only padding."""
    tokens = torch.tensor([[0, 0, 0], [1, 9, 3]])
    attend = torch.tensor([[False] * 3, [True] * 3])
    plain = hf.MaskedLM(make(family), words, closing=False)
    assert torch.isfinite(logits(plain, tokens, attend)).all()


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_decodes_with_a_masked_lm(name: str, words: Any) -> None:
    lm = hf.lm(make("Bert"), words, name="tiny")
    strategy = "adablock(delimiters=('mat',))" if name == "adablock" else name
    given: Any = {"strategy": strategy, "max_new_tokens": 12, "steps": 6}
    answers = lm.generate(["the cat sat on", "the dog"], **given)
    alone = lm.generate("the dog", **given)
    assert answers[1].text == alone.text
    assert all(answer.finish_reason in ("length", "stop") for answer in answers)
    assert any(answer.tokens for answer in answers)


@pytest.mark.parametrize(
    "strategy",
    [Wavefront(size=4), Rcr(), Tide(), Tide(cascade_rounds=0, horizon=0, selector=Quota())],
    ids=repr,
)
@pytest.mark.parametrize("law", ON_MODELS, ids=lambda law: law.__name__)
def test_laws_hold_on_a_masked_lm(law: Any, strategy: Any, bert: hf.MaskedLM) -> None:
    law(strategy, bert)


@pytest.mark.slow
def test_check_accepts_a_model(bert: hf.MaskedLM) -> None:
    assert "stop_keeps_the_text" in check(Block(size=4), bert)


def test_model_that_breaks_a_law_is_caught(bert: hf.MaskedLM) -> None:
    """The laws use the model that they are given."""

    class Fickle:
        calls = 0

        def __getattr__(self, name: str) -> Any:
            return getattr(bert, name)

        def head(self, hidden: Any) -> Any:
            self.calls += 1
            return bert.head(hidden).roll(self.calls, -1)

    with pytest.raises(wavefront.testing.LawBroken):
        model_laws.scoring_candidates_is_enough(Wavefront(size=4), Fickle())  # pyright: ignore[reportArgumentType]


def test_batcher_works_with_a_masked_lm(words: Any) -> None:
    lm = hf.lm(make("Roberta"), words)
    slots = wavefront.Batcher(lm.model, rows=2, length=24)
    seats = [slots.admit(lm.request(text, max_new_tokens=6)) for text in ("the cat sat", "a")]
    while not all(seat.done for seat in seats):
        slots.step()
    for seat, text in zip(seats, ("the cat sat", "a"), strict=True):
        assert lm.completion(seat).text == lm.generate(text, max_new_tokens=6).text


def test_infill_fills_the_mask_tokens_of_bert(words: Any) -> None:
    model = hf.enable(make("Bert"), words)
    batch = words("the [MASK] sat on the [MASK]", return_tensors="pt")
    found = model.generate(**batch, infill=True)
    given = batch["input_ids"]
    assert found.shape == given.shape
    assert found[given != 3].equal(given[given != 3])
    assert (found != 3).all()
    # A single hole gets the model's own best token.
    one = words("the [MASK] sat", return_tensors="pt")
    scores = model(**one).logits[0, 2]
    scores[3] = -torch.inf
    assert model.generate(**one, infill=True)[0, 2] == scores.argmax()
    lm = hf.lm(model, words)
    filled = lm.infill("the <mask:1> sat")
    assert filled.text.split()[-1] == "sat"
    holes = hf.encode_holes(words, "the <mask:1> sat on the <mask:1>")
    assert holes["input_ids"].equal(batch["input_ids"])
    assert holes["attention_mask"].equal(batch["attention_mask"])


def test_caches_are_refused(words: Any, bert: hf.MaskedLM) -> None:
    with pytest.raises(OptionError, match="leave out cache"):
        bert.new_kv(1, 8)
    tokens = torch.tensor([[1, 3]])
    with pytest.raises(OptionError, match="leave out cache"):
        bert.hidden(tokens, None, tokens, window=tokens)
    with pytest.raises(OptionError, match="leave out cache"):
        hf.lm(bert.model, words).generate("the cat", cache="prefix", max_new_tokens=4)


def test_converted_tokenizer_encodes_the_same(words: Any) -> None:
    ours = hf.read_tokenizer(words)
    text = "the cat sat on a mat"
    assert ours.encode(text) == words(text, add_special_tokens=False).input_ids
    assert ours.opening == [words.cls_token_id]
    assert ours.stop_ids == (words.sep_token_id,)
    assert ours.decode(ours.encode(text)) == text
    assert words.mask_token_id in ours.special_ids
    with pytest.raises(OptionError, match="use_fast"):
        hf.read_tokenizer(object())


def test_other_models_are_refused(words: Any) -> None:
    sizes = {"n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": 64}
    gpt = make("GPT2", suffix="LMHeadModel", **sizes)
    with pytest.raises(OptionError, match="not bidirectional"):
        hf.MaskedLM(gpt, words)
    with pytest.raises(OptionError, match="AutoModelForMaskedLM"):
        hf.MaskedLM(make("Bert", suffix="Model"), words)
    with pytest.raises(OptionError, match="FNet"):  # mixes all positions, including padding
        hf.MaskedLM(make("FNet"), words)
    with pytest.raises(OptionError, match="int"):
        hf.enable(3, words)


def test_mask_token_must_be_known(words: Any) -> None:
    with pytest.raises(OptionError, match="mask_id"):
        hf.MaskedLM(make("Bert"))
    with pytest.raises(OptionError, match="between 0 and"):
        hf.MaskedLM(make("Bert"), mask_id=10_000)
    plain = hf.MaskedLM(make("Bert"), mask_id=3)
    assert plain.closing is None
    assert plain.stop_ids == ()
    model = hf.enable(make("Bert"), mask_id=3, stop_ids=[2, 4])
    assert model.generation_config.eos_token_id == [2, 4]
    assert model.generate(torch.tensor([[1, 9]]), max_new_tokens=4).shape[0] == 1


def test_generate_needs_enable(words: Any) -> None:
    with pytest.raises(OptionError, match="enable"):
        hf.generate(make("Bert"), torch.tensor([[1, 9]]), max_new_tokens=2)


def test_enable_returns_the_same_model(words: Any, tmp_path: Any) -> None:
    model = make("Bert")
    before = model(input_ids=torch.tensor([[1, 9, 3]])).logits
    made = hf.enable(model, words)
    assert made is model
    assert hf.enable(made, words) is model
    assert torch.equal(made(input_ids=torch.tensor([[1, 9, 3]])).logits, before)
    made.save_pretrained(tmp_path)
    from transformers import AutoModelForMaskedLM

    again = AutoModelForMaskedLM.from_pretrained(tmp_path)
    assert type(again).__name__ == "BertForMaskedLM"
    assert torch.equal(again(input_ids=torch.tensor([[1, 9, 3]])).logits, before)
    twin = copy.deepcopy(made)
    assert twin.generate(torch.tensor([[1, 9]]), max_new_tokens=3).shape[0] == 1


def test_max_length_is_that_of_the_model(words: Any) -> None:
    words = copy.deepcopy(words)
    words.model_max_length = int(1e30)  # the value of many tokenizers
    places = SIZES["max_position_embeddings"]
    assert hf.MaskedLM(make("Bert"), words).max_length == places - 1
    # RoBERTa's positions start after its padding id.
    roberta = hf.MaskedLM(make("Roberta"), words, closing=False)
    assert roberta.max_length == places - 1
    longest = torch.full((1, roberta.max_length), 9)
    assert torch.isfinite(logits(roberta, longest)).all()
    with pytest.raises(wavefront.PromptError, match="shorten"):
        hf.lm(make("Bert"), words).generate("the cat", max_new_tokens=places)


def test_decode_works_with_a_canvas(bert: hf.MaskedLM) -> None:
    board = blank([[1, 9, 10]], 6, mask_id=bert.mask_id, pad_id=bert.pad_id)
    config = wavefront.Config(strategy=Wavefront(size=2))
    *_, last = wavefront.decode(bert, board, config, steps=[6], seeds=[0])
    assert not last.canvas.masked.any()
