"""Proposals and statistics against float64 brute force, EOS policies, the two sampling rules."""

from __future__ import annotations

import pytest
import torch
from helpers.languages import random_automaton

from wavefront.core.constraint import AllowedTokens, ClassScores
from wavefront.core.errors import OptionError
from wavefront.core.reading import (
    Reading,
    Sampling,
    _log_sum_exp,
    log_probability,
    read,
    read_allowed,
)
from wavefront.core.tree import leaves

V, MASK = 40, 39


def reading(logits, needs=("margin", "entropy", "current_logp"), own=None, keys=None, **sampling):
    places = logits.shape[:-1]
    flat = logits.flatten(0, -2)
    zeros = torch.zeros(places, dtype=torch.long)
    return read(
        lambda chunk: flat[chunk],
        torch.arange(flat.shape[0], dtype=torch.int32).view(places) if keys is None else keys,
        zeros if own is None else own,
        vocab_size=V,
        mask_id=MASK,
        sampling=Sampling(**sampling),
        needs=needs,
        alternatives=2,
    )


def reading_of_allowed(logits, allowed: AllowedTokens, *, score_classes=True, **sampling):
    flat = logits.flatten(0, -2)
    return read_allowed(
        lambda chunk: flat[chunk],
        torch.arange(flat.shape[0], dtype=torch.int32).view(allowed.which.shape),
        torch.zeros_like(allowed.which),
        vocab_size=V,
        mask_id=MASK,
        sampling=Sampling(**sampling),
        needs=("margin", "entropy", "current_logp"),
        alternatives=2,
        allowed=allowed,
        score_classes=score_classes,
    )


def random_sets(places, seed: int = 0) -> AllowedTokens:
    """Return random tokens that are allowed at some positions, in random classes."""
    automaton = random_automaton(seed, vocab_size=V, forbidden=(MASK,))
    source = torch.Generator().manual_seed(seed)
    inside = torch.rand(4, automaton.classes, generator=source) < 0.5
    inside[:, 1] = True
    which = torch.randint(0, 4, places, generator=source)
    table = torch.where(inside, float("inf"), float("-inf"))
    return AllowedTokens(table, which, automaton.classes_on(table.device))


def logits_of(seed: int, rows: int = 3, places: int = 5, scale: float = 3.0):
    return torch.randn(rows, places, V, generator=torch.Generator().manual_seed(seed)) * scale


def test_statistics_equal_brute_force():
    logits = logits_of(0)
    logits[..., MASK] -= 20
    own = torch.randint(0, V, logits.shape[:-1])
    found = reading(logits, own=own)
    p = logits.double().softmax(-1)
    best = p.topk(2, dim=-1).values
    assert torch.equal(found.proposal, logits.argmax(-1))
    torch.testing.assert_close(found.logp.double(), best[..., 0].log(), rtol=1e-5, atol=1e-6)
    assert found.margin is not None
    assert found.entropy is not None
    assert found.current_logp is not None
    torch.testing.assert_close(
        found.margin.double(), best[..., 0] - best[..., 1], rtol=1e-4, atol=1e-6
    )
    torch.testing.assert_close(found.entropy.double(), -(p * p.log()).sum(-1), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(
        found.current_logp.double(),
        p.gather(-1, own[..., None])[..., 0].log(),
        rtol=1e-5,
        atol=1e-5,
    )
    assert not found.bad.any()


def test_only_needed_statistics_are_computed():
    found = reading(logits_of(1), needs=())
    assert found.margin is None
    assert found.entropy is None
    assert found.current_logp is None


def test_saturated_positions_keep_their_true_order():
    """Softmax in float32 calls all of these 1; log p without cancellation tells them apart."""
    gaps = torch.tensor([20.0, 30.0, 25.0, 40.0])
    logits = torch.zeros(4, V)
    logits[:, 7] = gaps
    assert (logits.softmax(-1)[:, 7] == 1).sum() >= 3
    found = log_probability(logits, torch.full((4,), 7))
    assert found.argsort(descending=True).tolist() == gaps.argsort(descending=True).tolist()
    exact = -torch.log1p((V - 1) * (-gaps.double()).exp())
    torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=0)


def test_equal_logits_give_the_smallest_id():
    logits = torch.zeros(1, 1, V)
    assert reading(logits).proposal.item() == 0
    logits[..., [5, 17, 30]] = 1.0
    assert reading(logits).proposal.item() == 5


def test_chunking_does_not_change_the_results(monkeypatch):
    logits = logits_of(2)
    whole = reading(logits, temperature=0.7)
    monkeypatch.setattr("wavefront.core.reading._CHUNK", 4 * V)
    for one, two in zip(whole, reading(logits, temperature=0.7), strict=True):
        assert one is not None
        assert two is not None
        assert torch.equal(one, two)


@pytest.mark.parametrize("size", ["_CHUNK", "_BLOCK"])
def test_chunks_and_blocks_do_not_change_constrained_results(monkeypatch, size):
    logits = logits_of(2)
    allowed = random_sets(logits.shape[:-1])
    whole = reading_of_allowed(logits, allowed, temperature=0.7)
    monkeypatch.setattr(f"wavefront.core.reading.{size}", 4 * V)
    parts = reading_of_allowed(logits, allowed, temperature=0.7)
    assert len(leaves(whole)) == len(Reading._fields) + len(ClassScores._fields)
    for one, two in zip(leaves(whole), leaves(parts), strict=True):
        assert torch.equal(one, two)


def test_only_allowed_tokens_are_proposed_and_share_the_probability():
    logits = logits_of(5)
    allowed = random_sets(logits.shape[:-1], seed=1)
    found, classes = reading_of_allowed(logits, allowed)
    inside = (allowed.table > 0)[allowed.which][..., allowed.classes.of_token]
    assert torch.equal(inside.flatten(0, 1), allowed.limit(slice(0, 15)) > 0)
    kept = logits.double().masked_fill(~inside, float("-inf"))
    best = kept.index_fill(-1, torch.tensor([MASK]), float("-inf"))
    assert torch.equal(found.proposal, best.argmax(-1))
    logp = kept.log_softmax(-1).gather(-1, found.proposal[..., None])[..., 0]
    torch.testing.assert_close(found.logp.double(), logp, rtol=1e-5, atol=1e-6)
    assert classes is not None
    for number in range(allowed.table.shape[1]):
        own = best.masked_fill(allowed.classes.of_token != number, float("-inf"))
        none = own.amax(-1).isneginf()
        assert torch.equal(classes.score[..., number].isneginf(), none)
        assert torch.equal(classes.token[..., number][~none], own.argmax(-1)[~none])


def test_allowed_tokens_without_probability_get_some_in_their_own_row_only():
    logits = logits_of(6)
    allowed = random_sets(logits.shape[:-1], seed=2)
    alone = reading_of_allowed(logits, allowed)
    changed = logits.clone()
    changed[0, 0] = float("-inf")
    changed[0, 0, MASK] = 0.0
    found = reading_of_allowed(changed, allowed)
    inside = (allowed.limit(slice(0, 15)) > 0).unflatten(0, (3, 5))
    assert bool(inside[0, 0, found.reading.proposal[0, 0]])
    assert not bool(found.reading.bad.any())
    for one, two in zip(leaves(found), leaves(alone), strict=True):
        assert torch.equal(one.flatten(0, 1)[1:], two.flatten(0, 1)[1:])


@pytest.mark.parametrize("eos", ["keep", "suppress-confidence", "stop"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("on_gpu", [False, True])
def test_reading_in_place_equals_reading_of_copies(monkeypatch, eos, dtype, on_gpu):
    """With the branches of a GPU, which must not wait, too. The logits of the model are kept."""
    logits = logits_of(10).round().to(dtype)  # some are equal
    logits[0, 0], logits[0, 1, MASK] = float("-inf"), 30
    logits[0, 2], logits[0, 2, MASK] = float("-inf"), 1
    logits[1, 0, 3], logits[1, 1, MASK], logits[1, 2, 4] = float("nan"), float("nan"), float("inf")
    allowed = random_sets(logits.shape[:-1], seed=3)
    allowed.table[1] = float("inf")  # every token, also the mask token
    before = logits.clone()
    options = {"eos": eos, "stop_ids": (11, 12)}
    expected = reading_of_allowed(logits, allowed, **options).reading
    if on_gpu:
        monkeypatch.setattr(torch.Tensor, "is_cuda", True, raising=False)
    found = reading_of_allowed(logits, allowed, score_classes=False, **options).reading
    monkeypatch.undo()
    for name, one, two in zip(found._fields, found, expected, strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=0, equal_nan=True, msg=name)
    torch.testing.assert_close(logits, before, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("share", [0.0, 0.5, 0.99, 1.0])
def test_sum_of_exponentials_equals_torch(dtype, share):
    source = torch.Generator().manual_seed(3)
    for scale in (0.1, 4.0, 60.0):
        logits = scale * torch.randn(6, 5000, generator=source, dtype=dtype)
        lost = torch.rand(logits.shape, generator=source) < share
        logits = logits.masked_fill(lost, float("-inf"))
        logits[0] = float("-inf")
        assert torch.equal(_log_sum_exp(logits), logits.logsumexp(-1))


RULES = (
    {},
    {"temperature": 0.7},
    {"rule": "dream", "temperature": 0.5, "top_k": 3},
    {"rule": "dream", "top_p": 0.6},
    {"eos": "llada-confidence", "stop_ids": (11, 12)},
    {"eos": "suppress-logit", "stop_ids": (11, 12)},
)


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("part", [1, 8, 16])  # 40 tokens: parts of one, whole parts, and a rest
def test_compiled_reading_in_parts_equals_plain_reading(monkeypatch, rule, part):
    logits = logits_of(9, rows=4)
    logits[0] = logits[0].round()  # equal ones, in one part and in several
    logits[1, :, MASK], logits[1, 0] = 30, float("-inf")
    logits[1, 1, 5:] = float("-inf")  # whole parts of nothing
    logits[1, 2, :], logits[1, 3, 12], logits[1, 4, 9] = 1.0, 40.0, 200.0
    logits[2, 0, 7], logits[2, 1, 35], logits[2, 2, 39] = (float("nan"),) * 3
    logits[2, 3, 7], logits[2, 4, 20] = float("inf"), float("-inf")
    own = torch.randint(0, V, logits.shape[:-1], generator=torch.Generator().manual_seed(0))
    plain = reading(logits, own=own, **rule)
    monkeypatch.setattr("wavefront.core.reading.WIDE", V)
    monkeypatch.setattr("wavefront.core.reading.PART", part)
    torch._dynamo.reset()
    compiled = torch.compile(reading, backend="eager", fullgraph=True)
    found = compiled(logits, own=own, **rule)
    assert torch.equal(found.bad, plain.bad)
    for name, one, two in zip(found._fields, found, plain, strict=True):
        assert one is not None
        assert two is not None
        if one.dtype.is_floating_point:
            torch.testing.assert_close(
                one[~found.bad], two[~found.bad], rtol=1e-5, atol=1e-6, equal_nan=True, msg=name
            )
        else:
            assert torch.equal(one[~found.bad], two[~found.bad]), name
    torch._dynamo.reset()


def test_mask_token_is_never_proposed_and_keeps_its_probability():
    logits = logits_of(3)
    logits[..., MASK] = 30
    for temperature in (0.0, 1.0):
        found = reading(logits, temperature=temperature)
        assert (found.proposal != MASK).all()
        assert (found.logp < -10).all()
    assert found.margin is not None
    assert (found.margin < 0).all()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_bad_logits_are_flagged(value):
    logits = logits_of(4)
    logits[1, 2, 3] = value
    assert reading(logits).bad.nonzero().tolist() == [[1, 2]]


def test_suppress_logit_removes_eos_and_leaves_eot():
    logits = logits_of(5)
    logits[..., 11], logits[..., 12] = 30, 29
    found = reading(logits, eos="suppress-logit", stop_ids=(11, 12))
    assert (found.proposal == 12).all()
    assert (found.logp > -0.01).all()  # probabilities are those of the remaining tokens


def test_llada_confidence_removes_both_after_the_proposal():
    logits = logits_of(6)
    logits[0, :, 11] = 30
    plain = reading(logits)
    found = reading(logits, eos="llada-confidence", stop_ids=(11, 12))
    assert torch.equal(found.proposal, plain.proposal)
    assert found.logp[0].isneginf().all()
    removed = logits[1:].clone()
    removed[..., [11, 12]] = float("-inf")
    expected = removed.log_softmax(-1).gather(-1, found.proposal[1:, :, None])[..., 0]
    keeps = ~torch.isin(found.proposal[1:], torch.tensor([11, 12]))
    torch.testing.assert_close(found.logp[1:][keeps], expected[keeps], rtol=1e-4, atol=1e-5)


def test_llada_confidence_comes_from_the_unchanged_logits():
    logits = logits_of(7)
    found = reading(logits, temperature=0.5, rule="llada", top_k=3)
    expected = logits.log_softmax(-1).gather(-1, found.proposal[..., None])[..., 0]
    torch.testing.assert_close(found.logp, expected, rtol=1e-4, atol=1e-5)


def test_dream_confidence_comes_from_the_tempered_filtered_distribution():
    logits = logits_of(8)
    logits[..., MASK] = -30
    found = reading(logits, temperature=0.5, rule="dream", top_k=3)
    kept = logits / 0.5
    kept = kept.masked_fill(kept < kept.topk(3, dim=-1).values[..., -1:], float("-inf"))
    expected = kept.log_softmax(-1).gather(-1, found.proposal[..., None])[..., 0]
    torch.testing.assert_close(found.logp, expected, rtol=1e-4, atol=1e-5)
    assert found.proposal.shape == (3, 5)
    assert expected.isfinite().all()  # nothing outside the best three was drawn


def test_top_p_keeps_the_token_that_crosses_it():
    logits = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()
    padded = torch.cat([logits, torch.full((1, V - 4), -40.0)], -1)
    found = reading(padded[None], rule="dream", top_p=0.6)
    torch.testing.assert_close(found.logp.exp(), torch.tensor([[0.5 / 0.8]]), rtol=1e-4, atol=0)
    alone = reading(padded[None], rule="dream", top_p=0.3)
    torch.testing.assert_close(alone.logp.exp(), torch.tensor([[1.0]]), rtol=1e-4, atol=0)


def test_temperature_samples_the_tempered_softmax():
    logits = torch.zeros(1, 20000, V)
    logits[..., 4], logits[..., MASK] = 2.0, -30
    found = reading(logits, temperature=0.8, needs=())
    share = (found.proposal == 4).float().mean()
    expected = (logits[0, 0] / 0.8).softmax(-1)[4]
    assert abs(share - expected) < 0.012


def test_invalid_sampling_options_are_refused():
    for options, word in (
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"rule": "lada"}, "did you mean 'llada'"),
        ({"eos": "suppress"}, "suppress-logit"),
        ({"eos": "stop"}, "stop_ids"),
        ({"top_p": 1.5}, "top_p"),
        ({"top_k": 0}, "top_k"),
    ):
        with pytest.raises(OptionError, match=word):
            Sampling(**options)


def test_removed_tokens_have_probability_zero_and_not_nan():
    logits = torch.zeros(1, 1, V)
    logits[..., 11] = 9
    found = reading(logits, rule="dream", top_k=1, eos="llada-confidence", stop_ids=(11,), needs=())
    assert found.logp.isneginf().all()
