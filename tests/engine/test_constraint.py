"""Constrained decodes: whatever the model says, the finished answer is in the language."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch
from helpers.captured import AutomaticStatic, Static
from helpers.languages import everything, in_language, random_automaton

from wavefront.core import spec
from wavefront.core.canvas import blank
from wavefront.core.constraint import TokenAutomaton
from wavefront.core.errors import NumericalError, OptionError, WavefrontError
from wavefront.core.reading import Sampling
from wavefront.core.state import Config
from wavefront.engine import step as step_module
from wavefront.engine.batcher import Batcher, Request, decode
from wavefront.engine.cuda_graphs import Graphs, HostCopy, run_eagerly
from wavefront.engine.options import Plan
from wavefront.engine.step import ConstraintInputs
from wavefront.models.toy import toy
from wavefront.strategies.blockwise import Blockwise

VOCAB = 40
MASK, END, LENGTH = VOCAB - 1, VOCAB - 2, 10
PROMPTS = [[1, 2, 3], [4, 5]]
STRATEGIES = (
    "standard()",
    "block(size=4)",
    "left_to_right()",
    "wavefront(size=3, radius=1)",
    "wavefront(size=4, grow='accumulate')",
    "dsb(size=4)",
    "dcd(masks=4, span=6)",
    "adablock(size=4, delimiters=(3,))",
    "rcr(size=4)",
    "rcr()",
    "tbd(size=5, drop=2, min_kept=1)",
    "tide(size=4, cascade_rounds=0, horizon=0, revisable_band=3, "
    "remask_below=0.6, selector=quota())",
    "tide(size=3, cascade_rounds=2, horizon=0, selector=threshold(0.2))",
    "tide(size=3, cascade_rounds=0, horizon=4, selector=quota())",
    "edit(tau=0.0, extra_steps=3)",
    "edit(tau=0.2, extra_steps=5, selector=threshold(0.05))",
    "blockwise(size=4)",
    "blockwise(size=3, strategy=edit(tau=0.0, extra_steps=2, selector=threshold(0.1)))",
    "blockwise(size=4, strategy=rcr(size=4))",
    "wino(size=6, keep=0.9)",
    "wino(size=4, keep=0.3, selector=threshold(0.1))",
)
QUICK = ("wavefront(size=3, radius=1)", "edit(tau=0.0, extra_steps=3)", "blockwise(size=4)")
SELECTORS = (
    "quota()", "dream()", "origin()", "threshold(0.1)", "threshold(0.0)", "factor(4.0)",
    "entropy_bound(2.0)", "local_leap(0.2, 0.1)", "hierarchy(0.2, 0.1)", "share()",
)  # fmt: skip
CACHES = (None, "prefix(refresh=3)", "dual(refresh=3)", "wave(refresh=3)")


@pytest.fixture(scope="module")
def model():
    return toy(3, vocab_size=VOCAB, width=32, layers=1)


def automaton_for(seed: int, *, ends: bool = True) -> TokenAutomaton | None:
    """Return a random automaton that has an answer on the canvas, or None."""
    made = random_automaton(seed, vocab_size=VOCAB, forbidden=(MASK, END))
    made = made.with_end_tokens((END,)) if ends else made
    return made if made.accepts([-1] * LENGTH) else None


def solvable(count: int, *, ends: bool = True) -> list[tuple[int, TokenAutomaton]]:
    found = ((seed, automaton_for(seed, ends=ends)) for seed in range(100))
    return [(seed, one) for seed, one in found if one is not None][:count]


def slow(value: str) -> Any:
    """Return a parameter that only the slow tests use."""
    return pytest.param(value, marks=pytest.mark.slow)


def strategy_of(text: str, selector: str | None = None) -> Any:
    made = spec.resolve(text, "strategies")
    if selector is None:
        return made
    chosen = spec.resolve(selector, "selectors")
    if isinstance(made, Blockwise):
        return replace(made, strategy=replace(made.strategy, selector=chosen))
    return replace(made, selector=chosen)


def takes_steps(strategy: Any, steps: int) -> bool:
    """Return whether the strategy can fill the canvas in so few steps."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            strategy.validate(LENGTH, steps)
        except OptionError:
            return False
    return True


def run(
    model: Any, config: Config, *, steps: int = LENGTH, cache: str | None = None, seed: int = 0
):
    """Decode two prompts, and return the answers with masks as end tokens."""
    canvas = blank(PROMPTS, LENGTH, mask_id=MASK, pad_id=END)
    policy = None if cache is None else spec.resolve(cache, "caches")
    budgets, last = [config.strategy.budget(LENGTH, steps)] * 2, None
    for step in decode(model, canvas, config, steps=budgets, seeds=[seed, 7], cache=policy):
        last = step
    assert last is not None
    if config.sampling.eos == "keep":
        assert not bool(last.canvas.masked.any())
    board = last.canvas.tokens.masked_fill(last.canvas.masked, END)
    return [row[hole].tolist() for row, hole in zip(board, canvas.slot >= 0, strict=True)]


def check_valid(model: Any, automaton: TokenAutomaton, strategy: Any, **options: Any) -> None:
    """Decode, and require answers in the language."""
    if not takes_steps(strategy, options.get("steps", LENGTH)):
        return
    sampling = Sampling(
        eos=options.pop("eos", "keep"),
        stop_ids=(END,),
        temperature=options.pop("temperature", 0.0),
        top_k=options.pop("top_k", None),
    )
    settings = {name: options.pop(name) for name in ("cfg_scale", "priority") if name in options}
    config = Config(strategy=strategy, sampling=sampling, constraint=automaton, **settings)
    for answer in run(model, config, **options):
        assert in_language(automaton, answer), (strategy, options, answer)


def test_every_strategy_selector_and_cache_is_listed():
    def listed(texts) -> set[str]:
        return {text.partition("(")[0] for text in texts if text is not None}

    assert listed(STRATEGIES) == set(spec.names("strategies"))
    assert listed(SELECTORS) == set(spec.names("selectors"))
    # tests/engine/test_blocks.py covers the cache of block-causal models.
    assert listed(CACHES) == set(spec.names("caches")) - {"blocks"}


@pytest.mark.parametrize("steps", [LENGTH, 4, 1])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_answers_are_in_the_language_for_every_strategy(model, strategy, steps):
    seed, automaton = solvable(1)[0]
    check_valid(model, automaton, strategy_of(strategy), steps=steps, seed=seed)


@pytest.mark.parametrize("selector", SELECTORS)
def test_answers_are_in_the_language_for_every_selector(model, selector):
    for seed, automaton in solvable(2, ends=False):
        for strategy in ("standard()", "wavefront(size=3)"):
            check_valid(model, automaton, strategy_of(strategy, selector), steps=4, seed=seed)


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("strategy", ["wavefront(size=3)", "block(size=4)", "rcr(size=4)"])
def test_answers_are_in_the_language_with_every_cache(model, strategy, cache):
    seed, automaton = solvable(1)[0]
    check_valid(model, automaton, strategy_of(strategy), steps=5, cache=cache, seed=seed)


@pytest.mark.parametrize(
    "options",
    [
        {"eos": "stop"},
        {"eos": "defer"},
        {"eos": "suppress-confidence"},
        {"eos": "llada-confidence"},
        {"temperature": 1.5},
        {"temperature": 0.8, "top_k": 1},
        {"top_k": 2},
        {"cfg_scale": 2.0},
        {"priority": "margin"},
        {"priority": "entropy"},
        {"priority": "random"},
    ],
    ids=str,
)
def test_answers_are_in_the_language_with_every_option(model, options):
    for seed, automaton in solvable(1):
        for strategy in ("standard()", "wavefront(size=4, selector=threshold(0.1))"):
            check_valid(model, automaton, strategy_of(strategy), steps=4, seed=seed, **options)


@pytest.mark.slow
@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("selector", SELECTORS)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_selector_and_cache(model, strategy, selector, cache):
    try:
        made = strategy_of(strategy, selector)
    except OptionError:
        return  # cascades need an adaptive selector
    for ends in (True, False):
        for number, (seed, automaton) in enumerate(solvable(3, ends=ends)):
            steps = (LENGTH, 3, LENGTH + 3)[number]
            check_valid(model, automaton, made, steps=steps, cache=cache, seed=seed)


@pytest.mark.parametrize(("steps", "temperature"), [(LENGTH, 0.0), (4, 0.9)])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_constraint_that_allows_everything_changes_nothing(model, strategy, steps, temperature):
    sampling = Sampling(stop_ids=(END,), temperature=temperature)
    config = Config(strategy=strategy_of(strategy), sampling=sampling)
    free = replace(config, constraint=everything(VOCAB, MASK))
    if takes_steps(config.strategy, steps):
        assert run(model, free, steps=steps) == run(model, config, steps=steps)


def test_a_constraint_that_allows_everything_changes_nothing_up_to_the_end_token(model):
    config = Config(
        strategy=strategy_of("left_to_right()"), sampling=Sampling(eos="stop", stop_ids=(END,))
    )
    free = replace(config, constraint=everything(VOCAB, MASK).with_end_tokens((END,)))
    assert run(model, free) == run(model, config)


class Refusing(torch.nn.Module):
    """A model that gives every token the logit -inf, except one that is never allowed."""

    def __init__(self, inner: Any, token: int) -> None:
        super().__init__()
        self.inner, self.token = inner, token

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("inner"), name)

    def hidden(self, *given: Any, **named: Any) -> torch.Tensor:
        return self.inner.hidden(*given, **named)

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        logits = torch.full_like(self.inner.head(hidden), float("-inf"))
        logits[..., self.token] = 3.0
        return logits


@pytest.mark.parametrize("steps", [LENGTH, 3, 1])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_constraint_holds_if_no_allowed_token_has_any_probability(model, steps, temperature):
    seed, automaton = solvable(1)[0]
    for strategy in ("standard()", "wavefront(size=4, selector=threshold(0.1))"):
        check_valid(
            Refusing(model, MASK - 5), automaton, strategy_of(strategy),
            steps=steps, seed=seed, temperature=temperature,
        )  # fmt: skip


class Forgetting(Refusing):
    """A model that gives many tokens the logit -inf, other ones at every call."""

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        self.token += 1
        logits = self.inner.head(hidden)
        source = torch.Generator().manual_seed(self.token)
        lost = torch.rand(logits.shape, generator=source) < 0.9
        lost[..., 0] = False
        return logits.masked_fill(lost, float("-inf"))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_constraint_holds_if_most_tokens_have_no_probability(model, strategy):
    for seed, automaton in solvable(3):
        for steps in (5, 1):
            check_valid(
                Forgetting(model, seed), automaton, strategy_of(strategy), steps=steps, seed=seed
            )


class Broken(Refusing):
    """A model that returns NaN."""

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.inner.head(hidden) * float("nan")


@pytest.mark.parametrize("steps", [4, 1])
def test_a_model_that_returns_nan_ends_with_its_own_error(model, steps):
    config = Config(strategy=strategy_of("standard()"), constraint=solvable(1)[0][1])
    with pytest.raises(NumericalError, match="NaN"):
        run(Broken(model, 0), config, steps=steps)


def test_an_end_token_is_not_a_part_of_the_answer(model):
    """A stop id that the language needs leaves the answers without it, or none at all."""
    edges = torch.tensor([[0, 1, 1], [1, 2, 2], [0, 3, 2]])
    token_class = torch.zeros(VOCAB, dtype=torch.long)
    token_class[3], token_class[4], token_class[5] = 1, 2, 3
    automaton = TokenAutomaton(edges, token_class, states=3, accepting=[2])
    config = Config(strategy=strategy_of("standard()"), constraint=automaton.with_end_tokens((4,)))
    for answer in run(model, config):
        assert answer == [5] + [4] * (LENGTH - 1)
    both = replace(config, constraint=automaton.with_end_tokens((4, 5)))
    with pytest.raises(WavefrontError, match="cannot spell"):
        run(model, both)


def test_one_step_writes_the_most_probable_answer(model):
    """With T = 1, no other answer in the language has a larger sum of log probabilities."""
    edges = torch.tensor([[0, 1, 1], [0, 2, 2], [1, 3, 3], [2, 4, 3]])
    token_class = torch.zeros(VOCAB, dtype=torch.long)
    token_class[[3, 4, 5]], token_class[[6, 7]], token_class[8], token_class[9] = 1, 2, 3, 4
    automaton = TokenAutomaton(edges, token_class, states=4, accepting=[3])
    answers = [[a, 8] for a in (3, 4, 5)] + [[a, 9] for a in (6, 7)]
    canvas = blank([[1, 2, 3]], 2, mask_id=MASK, pad_id=END)
    for seed in range(6):
        other = toy(seed, vocab_size=VOCAB, width=32, layers=1)
        config = Config(strategy=strategy_of("standard()"), constraint=automaton)
        (step,) = decode(other, canvas, config, steps=[1], seeds=[0])
        logp = other.raw_logits(canvas.tokens.tolist())[0, 3:].log_softmax(-1)
        best = max(answers, key=lambda ids, logp=logp: float(logp[0, ids[0]] + logp[1, ids[1]]))
        assert step.canvas.tokens[0, 3:].tolist() == best


def test_rows_with_and_without_constraints_share_a_batch(model):
    """Each request gets the tokens that it gets alone."""
    sampling = Sampling(stop_ids=(END,))
    plain = Config(strategy=strategy_of("wavefront(size=3)"), sampling=sampling)
    configs = [plain, *(replace(plain, constraint=one) for _, one in solvable(2))]

    def finish(chosen: list[Config]) -> list[list[int]]:
        batcher = Batcher(model, rows=len(chosen), length=16)
        active = []
        for number, config in enumerate(chosen):
            ids = [1 + number, 2, *[MASK] * LENGTH]
            holes = [False] * 2 + [True] * LENGTH
            active.append(batcher.admit(Request(ids, holes, Plan(config, LENGTH, LENGTH, 0))))
        while batcher.busy:
            batcher.step()
        return [one.tokens for one in active]

    together = finish(configs)
    for number, config in enumerate(configs):
        assert finish([plain] * number + [config])[number] == together[number]
        if config.constraint is not None:
            assert in_language(config.constraint, together[number][2:])


def answers_of(batcher: Batcher, plan: Plan) -> list[list[int]]:
    """Decode two requests, and return their tokens."""
    active = []
    for first in (1, 4):
        ids, holes = [first, 2, *[MASK] * LENGTH], [False] * 2 + [True] * LENGTH
        active.append(batcher.admit(Request(ids, holes, plan)))
    while batcher.busy:
        batcher.step()
    return [one.tokens for one in active]


@pytest.mark.parametrize("text", [t if t in QUICK else slow(t) for t in STRATEGIES])
@pytest.mark.parametrize("selector", [None, slow("threshold(0.1)")])
def test_the_parts_of_a_constrained_step_are_captured(model, text, selector, monkeypatch):
    """Graphs overwrite their buffers. The answers are the same, and no automaton is in a key.

    With the selector, commits of one step contradict each other, and the strategy decides again.
    With a lag, as on a GPU, it does so when the next step is planned already.
    """
    strategy = strategy_of(text, selector)
    config = Config(strategy=strategy, constraint=solvable(1)[0][1])
    for cache in (None, "wave(refresh=3, size=8)"):
        policy = cache and spec.resolve(cache, "caches")
        plan = Plan(config, LENGTH, LENGTH, 0, cache=policy)
        answers = []
        for call, lag in ((run_eagerly, 0), (Static(), 0), (Static(), 1), (AutomaticStatic(), 1)):
            monkeypatch.setattr("wavefront.engine.batcher.flag_lag", lambda _, lag=lag: lag)
            batcher = Batcher(model, rows=2, length=LENGTH + 2, call=call)
            answers += [answers_of(batcher, plan) for _ in range(2)]
            if isinstance(call, Graphs):
                keys: list[Any] = list(call._graphs)
                assert keys
                assert {key[0][0][0] for key in keys} == {"plan", "forward", "commit"}
                kept = [one for key in keys for one in key[0][0][1]]
                assert all(one.constraint is None for one in kept)
        assert all(one == answers[0] for one in answers)
        for tokens in answers[0]:
            assert in_language(config.constraint, tokens[2:])


def decode_in_turns(model: Any, call: Any) -> list[Any]:
    """Decode five requests in two rows, with and without constraints, and return the answers."""
    text = "wavefront(size=4, selector=threshold(tau=0.02))"
    batcher = Batcher(model, rows=2, length=LENGTH + 2, call=call)
    waiting, admitted = [*solvable(4), (0, None)], []
    while waiting or batcher.busy:
        while waiting and batcher.free:
            automaton = waiting.pop()[1]
            config = Config(strategy=strategy_of(text), constraint=automaton)
            plan = Plan(config, LENGTH, LENGTH, 0)
            ids, holes = [len(waiting), *[MASK] * LENGTH], [False] + [True] * LENGTH
            admitted.append((batcher.admit(Request(ids, holes, plan)), automaton))
        batcher.step()
        if len(waiting) == 2:
            batcher.release(admitted[2][0])
    for active, automaton in admitted:
        if automaton is not None and not any(active.undecided):
            assert in_language(automaton, active.tokens[1:])
    return [active.tokens for active, _ in admitted]


def test_requests_enter_and_leave_while_writes_are_checked_late(model, monkeypatch):
    again = []
    decide = step_module._decide_again
    monkeypatch.setattr(
        step_module, "_decide_again", lambda *g, **n: again.append(1) or decide(*g, **n)
    )
    expected = decode_in_turns(model, Static())
    count = len(again)
    assert count
    monkeypatch.setattr("wavefront.engine.batcher.flag_lag", lambda _: 1)
    found = decode_in_turns(model, Static())
    assert len(again) > count
    assert [one for n, one in enumerate(found) if n != 2] == [
        one for n, one in enumerate(expected) if n != 2
    ]


def test_the_next_step_is_planned_before_the_host_has_seen_the_writes(model, monkeypatch):
    """The device has work while the host checks. The forward pass waits for the check."""
    events: list[str] = []

    class Watched(Static):
        def __call__(self, key: Any, step: Any, tree: Any) -> Any:
            events.append(key[0][0])
            return super().__call__(key, step, tree)

    check = step_module._all_fit
    monkeypatch.setattr(step_module, "_all_fit", lambda *g: events.append("check") or check(*g))
    monkeypatch.setattr("wavefront.engine.batcher.flag_lag", lambda _: 1)
    batcher = Batcher(model, rows=1, length=LENGTH + 1, call=Watched())
    config = Config(strategy=strategy_of("standard()"), constraint=solvable(1)[0][1])
    ids, holes = [1, *[MASK] * LENGTH], [False] + [True] * LENGTH
    batcher.admit(Request(ids, holes, Plan(config, LENGTH, LENGTH, 0)))
    for _ in range(3):
        batcher.step()
    first, between = ["plan", "forward", "commit"], ["plan", "check", "forward", "commit"]
    assert events == [*first, *between * 3]


def test_a_strategy_that_fails_when_it_decides_again_loses_only_its_step(model, monkeypatch):
    """The step is reported as failed late, and the batch is as it was before the step."""
    monkeypatch.setattr("wavefront.engine.batcher.flag_lag", lambda _: 1)
    strategy, failing = strategy_of("wavefront(size=4, selector=threshold(tau=0.02))"), [True]
    again = step_module._decide_again

    def fail_once(*given: Any, **named: Any) -> Any:
        if failing:
            failing.clear()
            raise ValueError("no second choice")
        return again(*given, **named)

    failed = 0
    for _, automaton in solvable(4):
        plan = Plan(Config(strategy=strategy, constraint=automaton), LENGTH, LENGTH, 0)
        expected = answers_of(Batcher(model, rows=2, length=LENGTH + 2), plan)
        batcher, active = Batcher(model, rows=2, length=LENGTH + 2, call=Static()), []
        failing[:] = [True]
        for first in (1, 4):
            ids, holes = [first, 2, *[MASK] * LENGTH], [False] * 2 + [True] * LENGTH
            active.append(batcher.admit(Request(ids, holes, plan)))
        with monkeypatch.context() as patch:
            patch.setattr(step_module, "_decide_again", fail_once)
            while batcher.busy:
                try:
                    batcher.step()
                except ValueError:
                    failed += 1
        assert [one.tokens for one in active] == expected
    assert failed


def test_captured_steps_are_shared_by_constraints(model):
    """The tables of allowed tokens have few sizes, so a second constraint captures nothing."""
    call = Static()
    batcher = Batcher(model, rows=2, length=LENGTH + 2, call=call)
    counts = []
    for _, automaton in solvable(3):
        config = Config(strategy=strategy_of("wavefront(size=3)"), constraint=automaton)
        answers_of(batcher, Plan(config, LENGTH, LENGTH, 0))
        counts.append(len(call._graphs))
    assert counts == counts[:1] * 3


@pytest.mark.parametrize("strategy", ["standard()", "wavefront(selector=threshold(tau=0.1))"])
def test_a_constrained_step_waits_for_the_device_twice(model, strategy, monkeypatch):
    """Once for the tokens before the forward pass, and once for what it proposes."""
    batcher = Batcher(model, rows=2, length=LENGTH + 2)
    config = Config(strategy=strategy_of(strategy), constraint=solvable(1)[0][1])
    for first in (1, 4):
        ids, holes = [first, 2, *[MASK] * LENGTH], [False] * 2 + [True] * LENGTH
        batcher.admit(Request(ids, holes, Plan(config, LENGTH, LENGTH, 0)))
    events = []
    forward, read, copy = type(model).hidden, HostCopy.read, torch.Tensor.cpu

    def asks(tree):
        return isinstance(tree, tuple) and any(isinstance(one, ConstraintInputs) for one in tree)

    def run(*given, **named):
        events.append("forward")
        return forward(*given, **named)

    def wait(self):
        found = read(self)
        if asks(found):
            events.append("tokens")
        return found

    def to_host(self):
        if self.dim() == 3:
            events.append("proposals")
        return copy(self)

    init = HostCopy.__init__

    def send(self, tree):
        if asks(tree):
            events.append("send")
        init(self, tree)

    monkeypatch.setattr(type(model), "hidden", run)
    monkeypatch.setattr(HostCopy, "__init__", send)
    monkeypatch.setattr(HostCopy, "read", wait)
    monkeypatch.setattr(torch.Tensor, "cpu", to_host)
    batcher.step()
    assert events[:4] == ["send", "forward", "tokens", "proposals"]
    assert set(events[4:]) <= {"proposals"}  # the strategy chose again


def test_decided_positions_of_the_answer_count(model):
    """A request may give a part of its answer. The constraint applies to all of it."""
    automaton = solvable(1)[0][1]
    config = Config(strategy=strategy_of("standard()"), constraint=automaton)
    whole = next(iter(run(model, config)))
    ids = [1, 2, *whole[:3], *[MASK] * (LENGTH - 3)]
    holes = [False] * 5 + [True] * (LENGTH - 3)
    answer = [False] * 2 + [True] * LENGTH
    batcher = Batcher(model, rows=1, length=LENGTH + 2)
    plan = Plan(config, LENGTH - 3, LENGTH - 3, 0)
    active = batcher.admit(Request(ids, holes, plan, answer=answer))
    while batcher.busy:
        batcher.step()
    assert in_language(automaton, active.tokens[2:])


def test_a_canvas_that_no_answer_fits_is_refused_before_decoding(model):
    edges = torch.tensor([[0, 1, 1]])
    token_class = torch.zeros(VOCAB, dtype=torch.long)
    token_class[3] = 1
    automaton = TokenAutomaton(edges, token_class, states=2, accepting=[1])
    config = Config(strategy=strategy_of("standard()"), constraint=automaton)
    with pytest.raises(WavefrontError, match="exactly 10 tokens"):
        run(model, config)
