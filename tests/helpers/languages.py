"""Random languages over small vocabularies, and which answers belong to them by brute force."""

from __future__ import annotations

import random
from itertools import product

import torch

from wavefront.core.constraint import ANY, TokenAutomaton


def random_automaton(
    seed: int, *, vocab_size: int, forbidden: tuple[int, ...], states: int = 6, classes: int = 7
) -> TokenAutomaton:
    """Return an automaton with random classes of tokens and random transitions."""
    source = random.Random(seed)
    token_class = torch.tensor([source.randrange(classes) for _ in range(vocab_size)])
    token_class[list(forbidden)] = 0
    edges = [
        [state, symbol, source.randrange(states)]
        for state in range(states)
        for symbol in range(1, classes)
        if source.random() < 0.3
    ]
    accepting = source.sample(range(states), 2)
    return TokenAutomaton(
        torch.tensor(edges).view(-1, 3), token_class, states=states, accepting=accepting
    )


def everything(vocab_size: int, mask_id: int) -> TokenAutomaton:
    """Return the automaton that allows every token but the mask."""
    token_class = torch.ones(vocab_size, dtype=torch.long)
    token_class[mask_id] = 0
    return TokenAutomaton(torch.tensor([[0, 1, 0]]), token_class, states=1, accepting=[0])


def in_language(automaton: TokenAutomaton, tokens: list[int]) -> bool:
    """Follow one transition after the other, without the automaton's own methods."""
    moves = {(a, symbol): b for a, symbol, b in automaton.edges.tolist()}
    state: int | None = automaton.start
    for token in tokens:
        if state is None:
            return False
        state = moves.get((state, int(automaton.token_class[token])))
    return state in automaton.accepting


def fillings(automaton: TokenAutomaton, symbols: list[int]) -> list[tuple[int, ...]]:
    """Return every complete answer, as classes."""
    moves = {(a, symbol): b for a, symbol, b in automaton.edges.tolist()}
    choices = [range(1, automaton.classes) if one == ANY else [one] for one in symbols]
    found = []
    for path in product(*choices):
        state: int | None = automaton.start
        for symbol in path:
            state = None if state is None else moves.get((state, symbol))
        if state in automaton.accepting:
            found.append(path)
    return found
