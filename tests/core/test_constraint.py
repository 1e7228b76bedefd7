"""Automata over tokens agree with brute force, on small vocabularies."""

from __future__ import annotations

import random

import pytest
import torch
from helpers.languages import everything, fillings, in_language, random_automaton

from wavefront.core import constraint as module
from wavefront.core.canvas import blank
from wavefront.core.constraint import (
    ANY,
    TokenAutomaton,
    allowed_tokens,
    check_length,
    check_room,
    compatible_writes,
    from_mask,
    members,
    to_bits,
    to_mask,
)
from wavefront.core.errors import OptionError

VOCAB, MASK = 12, 11


def automata(count: int) -> list[TokenAutomaton]:
    made = [random_automaton(seed, vocab_size=VOCAB, forbidden=(MASK, 10)) for seed in range(count)]
    ended = [one.with_end_tokens((10,)) for one in made[::2]]
    return [*made[1::2], *ended]


def random_symbols(automaton: TokenAutomaton, seed: int, length: int = 4) -> list[int]:
    source = random.Random(seed)
    return [
        ANY if source.random() < 0.6 else source.randrange(1, automaton.classes)
        for _ in range(length)
    ]


@pytest.mark.parametrize("seed", range(20))
def test_allowed_tokens_are_those_of_some_complete_answer(seed):
    for automaton in automata(6):
        symbols = random_symbols(automaton, seed)
        complete = fillings(automaton, symbols)
        assert automaton.accepts(symbols) == bool(complete)
        if not complete:
            continue
        left, right = automaton.sets(symbols)
        for at in range(len(symbols)):
            # A decided position counts as undecided here: its token is one of those allowed.
            free = [*symbols[:at], ANY, *symbols[at + 1 :]]
            expected = {path[at] for path in fillings(automaton, free)}
            allowed = automaton.allowed(left[at], right[at + 1])
            assert set(allowed[1:].nonzero()[:, 0].add(1).tolist()) == expected


@pytest.mark.parametrize("seed", range(20))
def test_best_path_is_the_best_complete_answer(seed):
    for automaton in automata(6):
        symbols = random_symbols(automaton, seed)
        complete = fillings(automaton, symbols)
        if not complete:
            continue
        source = torch.Generator().manual_seed(seed)
        scores = torch.randn(len(symbols), automaton.classes, generator=source).double()

        def value(path, scores=scores, symbols=symbols) -> float:
            gains = (scores[at, one] for at, one in enumerate(path) if symbols[at] == ANY)
            return float(sum(gains))

        path = automaton.best_path(symbols, scores)
        assert tuple(path) in complete
        assert value(path) == pytest.approx(max(map(value, complete)))


@pytest.mark.parametrize("seed", range(20))
def test_commits_are_dropped_only_if_they_contradict_better_ones(seed):
    for automaton in automata(6):
        symbols = [ANY] * 4
        if not automaton.accepts(symbols):
            continue
        left, right = automaton.sets(symbols)
        source = random.Random(seed)
        commits = []
        for at in source.sample(range(4), 4):
            allowed = automaton.allowed(left[at], right[at + 1])[1:].nonzero()[:, 0].add(1)
            commits.append((at, source.choice(allowed.tolist())))
        expected, trial = [], list(symbols)
        for at, symbol in commits:
            if fillings(automaton, [*trial[:at], symbol, *trial[at + 1 :]]):
                trial[at] = symbol
                expected.append(at)
        assert automaton.compatible(symbols, commits) == expected
        assert expected[0] == commits[0][0]  # the best one is always kept


def test_shortest_answer_and_end_tokens():
    edges = torch.tensor([[0, 1, 1], [1, 2, 2], [2, 2, 2]])
    automaton = TokenAutomaton(edges, torch.tensor([1, 2, 0, 0]), states=3, accepting=[2])
    assert automaton.shortest() == 2
    assert in_language(automaton, [0, 1, 1])
    ended = automaton.with_end_tokens((2,))
    assert ended is automaton.with_end_tokens((2,))
    assert [in_language(ended, ids) for ids in ([0, 1, 2, 2], [0, 2], [0, 1, 2, 1])] == [
        True, False, False,
    ]  # fmt: skip


def test_sets_of_states_convert_both_ways():
    for states in (set(), {0}, {7, 8, 63, 64, 200}):
        bits = to_bits(states)
        assert set(members(bits)) == states
        assert set(to_mask(bits, 201).nonzero()[:, 0].tolist()) == states


def test_memory_of_sets_is_bounded(monkeypatch):
    monkeypatch.setattr("wavefront.core.constraint.MAX_REMEMBERED", 3)
    automaton = random_automaton(1, vocab_size=VOCAB, forbidden=(MASK,))
    for seed in range(20):
        symbols = random_symbols(automaton, seed)
        assert automaton.accepts(symbols) == bool(fillings(automaton, symbols))
        automaton.sets(symbols)
        assert max(len(automaton._forward), len(automaton._backward)) <= 3


def test_rows_without_an_answer_allow_everything():
    automaton = random_automaton(3, vocab_size=VOCAB, forbidden=(MASK, 10)).with_end_tokens((10,))
    canvas = blank([[1, 2], [3]], 4, mask_id=MASK, pad_id=0)
    index = torch.arange(6).expand(2, -1)
    answer, rows = canvas.slot >= 0, torch.tensor([True, False])
    allowed = allowed_tokens(automaton, canvas, answer, rows=rows, index=index, device=index.device)
    mask = (allowed.limit(slice(0, 12)) > 0).unflatten(0, (2, 6))
    assert bool(mask[1].all())
    assert bool(mask[0, :2].all())
    assert not bool(mask[0, 2:, MASK].any())


def test_mask_token_keeps_its_share_where_nothing_else_is_forbidden():
    canvas = blank([[1]], 3, mask_id=MASK, pad_id=0)
    automaton, rows = everything(VOCAB, MASK), torch.tensor([True])
    index = torch.arange(4)[None]
    answer = canvas.slot >= 0
    allowed = allowed_tokens(automaton, canvas, answer, rows=rows, index=index, device=index.device)
    assert bool((allowed.limit(slice(0, 4)) > 0).all())


def test_single_commits_need_no_check():
    canvas = blank([[1]], 3, mask_id=MASK, pad_id=0)
    automaton, answer = everything(VOCAB, MASK), canvas.slot >= 0
    commit = canvas.slot == 1
    proposal, score = canvas.tokens * 0, canvas.tokens.float()
    kept = compatible_writes(
        automaton, canvas, answer, write=commit, proposal=proposal, score=score
    )
    assert kept is commit


def test_a_canvas_that_no_answer_fits_is_refused():
    edges = torch.tensor([[0, 1, 1], [1, 1, 2]])
    automaton = TokenAutomaton(edges, torch.tensor([1, 0, 0, 0]), states=3, accepting=[2])
    for length, message in ((1, "1 tokens are too few"), (3, "exactly 3 tokens")):
        canvas = blank([[1]], length, mask_id=3, pad_id=2)
        with pytest.raises(OptionError, match=message):
            check_room(automaton, canvas, canvas.slot >= 0)
    canvas = blank([[1]], 2, mask_id=3, pad_id=2)
    check_room(automaton, canvas, canvas.slot >= 0)
    wrong = canvas.commit(canvas.slot == 0, canvas.tokens * 0 + 1)
    with pytest.raises(OptionError, match="already written contradict"):
        check_room(automaton, wrong, canvas.slot >= 0)
    ended = automaton.with_end_tokens((2,))
    check_room(
        ended, blank([[1]], 3, mask_id=3, pad_id=2), torch.tensor([[False, True, True, True]])
    )


def counter(states: int, lengths: int) -> TokenAutomaton:
    """Return the automaton of texts of fewer than `states` letters; class c has c letters."""
    parts = [torch.arange(states - length) for length in range(1, lengths + 1)]
    edges = [torch.stack([one, one * 0 + n, one + n], 1) for n, one in enumerate(parts, 1)]
    token_class = torch.arange(lengths + 1)
    return TokenAutomaton(torch.cat(edges), token_class, states=states, accepting=range(states))


def test_sets_of_states_are_the_same_as_tensors_and_as_loops(monkeypatch):
    for seed in range(8):
        few = random_automaton(seed, vocab_size=VOCAB, forbidden=(MASK, 10))
        monkeypatch.setattr(module, "FEW_MOVES", 0)
        many = random_automaton(seed, vocab_size=VOCAB, forbidden=(MASK, 10))
        symbols = random_symbols(few, seed, 6)
        assert many.sets(symbols) == few.sets(symbols)
        monkeypatch.undo()
    assert all(from_mask(to_mask(states, 19)) == states for states in range(0, 1 << 19, 77))


def test_commits_of_a_large_automaton_are_checked_in_bounded_time(monkeypatch):
    automaton = counter(400, 8)
    # Every second position takes 8 letters. Only 49 tokens of 8 letters fit.
    commits = [(at, 8) for at in range(0, 200, 2)]
    assert len(automaton.compatible([ANY] * 200, commits)) < len(commits)
    monkeypatch.setattr(module, "MAX_STEP_WORK", 0)
    monkeypatch.setattr(module, "CHECKED_PASSES", 1)
    kept = automaton.compatible([ANY] * 200, commits)
    assert 0 < len(kept) < 10
    symbols = [8 if at in kept else ANY for at in range(200)]
    assert automaton.accepts(symbols)


def test_an_automaton_that_is_too_large_for_the_answer_is_refused():
    automaton = counter(8000, 14)
    check_length(automaton, [ANY] * 200)
    with pytest.raises(OptionError, match="at most 299 tokens are possible"):
        check_length(automaton, [ANY] * 2048)


def test_remembered_steps_of_a_large_automaton_are_bounded(monkeypatch):
    monkeypatch.setattr(module, "REMEMBERED_BITS", 1 << 14)
    automaton, before = counter(1000, 4), counter(1000, 4).size
    automaton.sets([ANY] * 400)
    assert before < automaton.size < before + 100_000
