"""Forks continue a recorded decode, exactly if nothing is changed; replays repeat it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import wavefront
from wavefront import Trace
from wavefront.core import spec
from wavefront.core.canvas import Canvas, infill
from wavefront.core.errors import OptionError, TraceError
from wavefront.core.masks import FAR
from wavefront.core.reading import Sampling
from wavefront.core.state import Config
from wavefront.core.strategy import most_steps
from wavefront.engine.batcher import decode
from wavefront.engine.fork import fork
from wavefront.engine.layout import block_numbers
from wavefront.engine.replay import DecodeDifference, difference, rerun
from wavefront.engine.session import DecodeSession, begin
from wavefront.models.toy import toy
from wavefront.traces import trace_file

pytestmark = pytest.mark.filterwarnings("ignore::wavefront.core.errors.WavefrontWarning")

PROMPTS = [[5, 6, 7], [8, 9, 10, 11, 12], [20]]
PLACES = 12
BAND = (
    "tide(size=4, cascade_rounds=0, horizon=0, revisable_band=3, remask_below=0.9, "
    "selector=quota())"
)
EVERY = [
    *(f"{name}()" for name in spec.names("strategies") if name != "adablock"),
    "adablock(delimiters=(7, 30))",
    *(f"wavefront(selector={selector}())" for selector in spec.names("selectors")),
    "wavefront(grow='accumulate')",
    "rcr(size=4)",
    "tbd(size=5, drop=2, min_kept=1, gamma=0.5)",
    BAND,
]
# Every kind of state: a front, recorded scores, counts and a board, the end of a block.
FEW = ["wavefront(size=4)", "rcr(size=4)", "tbd(size=5, drop=2, min_kept=1, gamma=0.5)"]
FEW += [BAND, "adablock(delimiters=(7, 30))"]


@pytest.fixture(scope="module")
def model() -> Any:
    return toy(seed=3)


@pytest.fixture(scope="module")
def lm() -> wavefront.LM:
    return wavefront.load("toy")


def record_trace(model: Any, *, rows: int = 3, kind: str = "basic", **options: Any) -> Trace:
    given = {"max_new_tokens": PLACES, "eos": "keep", **options}
    trace = begin(model, PROMPTS[:rows], given, record=kind).drain().trace()
    assert trace is not None
    return trace


def run_to_end(decoding: DecodeSession) -> Trace:
    trace = decoding.drain().trace()
    assert trace is not None
    return trace


def last_canvas(trace: Trace) -> Canvas:
    *_, canvas = [trace.first, *trace.replay()]
    return canvas


def assert_same(one: Trace, two: Trace) -> None:
    """Check for equal commits at equal steps, equal canvases and equally many forward passes."""
    assert difference(one, two) is None
    assert torch.equal(last_canvas(one).tokens, last_canvas(two).tokens)
    assert torch.equal(last_canvas(one).masked, last_canvas(two).masked)
    assert one.forwards == two.forwards
    assert torch.equal(one.step, two.step)


# The same strategy.


@pytest.mark.parametrize("text", EVERY)
def test_fork_at_step_0_equals_the_original(model, text):
    for steps, eos in ((PLACES, "keep"), (5, "stop")):
        trace = record_trace(model, strategy=text, steps=steps, eos=eos, stop_ids=[22])
        assert_same(trace, run_to_end(fork(model, trace, 0)))
        assert_same(trace, rerun(model, trace))


@pytest.mark.parametrize("text", FEW)
def test_fork_at_any_step_equals_the_original(model, text):
    trace = record_trace(model, strategy=text, steps=9)
    for at in range(len(trace)):
        forked = fork(model, trace, at)
        assert forked.forwards == trace.forwards - (len(trace) - at)
        found = run_to_end(forked)
        assert_same(trace, found)
        for name in ("candidates", "front"):
            assert torch.equal(getattr(found, name), getattr(trace, name))


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.8, "seed": 5, "top_k": 20},
        {"order_noise": 0.5, "priority": "margin"},
        {"priority": "random", "seed": 2},
        {"cfg_scale": 1.0, "steps": 4},
        {"steps": 30},
        {"steps": 30, "fixed_budget": True},
        {"eos": "stop", "stop_ids": [22], "steps": 7},
        {"kind": "full"},
    ],
    ids=str,
)
def test_fork_keeps_every_option(model, options):
    trace = record_trace(model, strategy="wavefront(size=3)", **options)
    for at in range(0, len(trace), 4):
        found = run_to_end(fork(model, trace, at))
        assert difference(trace, found) is None
        assert torch.equal(last_canvas(trace).tokens, last_canvas(found).tokens)
        assert found.full == trace.full
        assert found.about["options"] == trace.about["options"]


def test_fork_of_a_finished_row_keeps_its_fixed_budget(model):
    text = "standard(selector=threshold(tau=0.2))"
    trace = record_trace(model, strategy=text, fixed_budget=True)
    assert not trace.commit[-2:].any()
    for at in range(0, len(trace), 3):
        forked = fork(model, trace, at)
        assert_same(trace, run_to_end(forked))
        assert forked.row_forwards() == [PLACES] * 3


def test_fork_counts_a_last_step_that_changes_nothing(model):
    options = {"strategy": "edit(tau=0.6, selector=threshold(tau=0.1))", "max_new_tokens": PLACES}
    session = begin(model, PROMPTS, {"eos": "keep", **options}, record=True).drain()
    trace, passes = session.trace(), session.row_forwards()
    assert trace is not None
    assert min(passes) < len(trace)  # a row ends before the others
    forked = fork(model, trace, len(trace) - 1)
    run_to_end(forked)
    assert forked.row_forwards() == passes


@pytest.mark.parametrize("rows", [1, 3])
def test_speculative_decode_forks_between_steps_of_one_forward_pass(rows):
    model = toy(seed=3, dtype="float64")
    options = {"strategy": "wavefront(size=4)", "max_new_tokens": PLACES}
    trace = record_trace(model, rows=rows, speculate=3, **options)
    assert trace.forwards < len(trace)
    for at in range(len(trace)):
        found = run_to_end(fork(model, trace, at))
        assert difference(trace, found) is None
        assert torch.equal(last_canvas(trace).tokens, last_canvas(found).tokens)


def test_row_of_a_batch_forks_alone():
    model = toy(seed=3, dtype="float64")
    trace = record_trace(model, strategy="rcr(size=4)", speculate=3)
    for row in range(3):
        one = trace.row(row)
        assert difference(one, run_to_end(fork(model, one, 5))) is None


def test_fork_counts_include_the_recorded_steps(lm):
    options = {"max_new_tokens": 12, "strategy": "block(size=4)", "cfg_scale": 0.5, "trace": True}
    for draft in (0, 3):
        made = lm.generate("Hello", speculate=draft, **options)
        stream = lm.fork(made.trace, 4)
        assert [step.number for step in stream][:2] == [4, 5]
        (found,) = stream.completions
        assert found.text == made.text
        assert (found.steps, found.finish_reason) == (made.steps, made.finish_reason)
        assert (found.prompt_tokens, found.tokens) == (made.prompt_tokens, made.tokens)
        if not draft:
            assert found.forwards == made.forwards
            assert found.token_forwards == made.token_forwards


def test_model_that_does_not_reproduce_the_trace_is_rejected(model):
    trace = record_trace(model, strategy="standard")
    other = toy(seed=4)
    found = difference(trace, rerun(other, trace))
    assert found is not None
    assert f"row {found.row + 1} differs at step {found.step + 1}" in refusal(other, trace, 11)
    # Another strategy needs only the canvas.
    assert not bool(last_canvas(run_to_end(fork(other, trace, 6, strategy="block"))).masked.any())


# Another strategy.


@pytest.mark.parametrize("text", EVERY)
def test_another_strategy_at_step_0_makes_its_own_decode(model, text):
    options = {"steps": 6, "eos": "stop", "stop_ids": [22]}
    trace = record_trace(model, strategy="standard", **options)
    if text == "standard()":
        return
    assert_same(
        record_trace(model, strategy=text, **options),
        run_to_end(fork(model, trace, 0, strategy=text)),
    )


@pytest.mark.slow
@pytest.mark.parametrize("text", EVERY)
def test_another_strategy_decodes_as_an_infill_of_the_canvas(model, text):
    """Its steps are those of infilling the canvas at the fork."""
    strategy = spec.resolve(text, "strategies")
    trace = record_trace(
        model, strategy="wavefront(size=5)", rows=1, steps=8, temperature=0.3, seed=4
    )
    for at in (1, 4, 7):
        forked = fork(model, trace, at, strategy=text)
        if text == "wavefront(size=5)":
            continue
        before = list(trace.before())[at]
        sampling = Sampling(temperature=0.3, stop_ids=model.stop_ids)
        config = Config(strategy=strategy, sampling=sampling)
        board = infill(
            before.tokens.tolist(), before.masked.tolist(), mask_id=model.mask_id, pad_id=0
        )
        budget = most_steps(strategy, int(before.masked.sum()), 8 - at)
        steps = list(decode(model, board, config, steps=[budget], seeds=[4]))
        found = list(forked)
        assert [step.number for step in found] == list(range(at, at + len(steps)))
        for mine, other in zip(found, steps, strict=True):
            assert torch.equal(mine.canvas.tokens, other.canvas.tokens)
            assert torch.equal(mine.view.progress.step, other.view.progress.step + at)
            assert torch.equal(mine.canvas.slot, trace.first.slot)
        given = before.known
        assert torch.equal(last_canvas(forked.trace()).tokens[given], before.tokens[given])
        assert not bool(last_canvas(forked.trace()).masked.any())
        assert int(forked.trace().step.max()) < at + budget


@pytest.mark.parametrize("at", [0, 6])
@pytest.mark.parametrize("text", ["standard", "left_to_right"])
def test_another_strategy_stays_in_the_blocks_of_a_block_causal_model(text, at):
    """Its steps finish a block before the next one begins, and a replay repeats them."""
    model = toy(seed=3)
    model.block_size = 4
    trace = record_trace(model, strategy="standard")
    forked = run_to_end(fork(model, trace, at, strategy=text))
    if text == "standard":
        assert_same(trace, forked)
    assert difference(forked, rerun(model, forked)) is None
    for canvas in forked.before():
        committed = canvas.known & (canvas.slot >= 0)
        blocks = block_numbers(model, canvas).expand_as(committed)
        latest = torch.where(committed, blocks, 0).amax(-1)
        assert bool((latest <= torch.where(canvas.masked, blocks, FAR).amin(-1)).all())


def test_stop_token_before_the_fork_ends_the_answer(model):
    """With eos='stop', nothing is decoded after a stop token that was there at the fork."""
    free = record_trace(model, strategy="standard", rows=1)
    order = [int(board.nonzero()[0, 1]) for board in free.commit]
    written = last_canvas(free).tokens[0, order].tolist()
    at = (
        next(
            n for n, place in enumerate(order) if 9 < place < 13 and written.index(written[n]) == n
        )
        + 1
    )
    end = written[at - 1]
    trace = record_trace(model, strategy="standard", rows=1, eos="stop", stop_ids=[end])
    found = run_to_end(fork(model, trace, at, strategy="left_to_right"))
    left = last_canvas(found)
    behind = torch.arange(left.tokens.shape[1]) > order[at - 1]
    assert bool(left.masked[0, behind].any())
    assert not bool(left.masked[0, ~behind].any())
    assert difference(found, rerun(model, found)) is None


def test_finished_row_stays_unchanged(model):
    free = record_trace(model, strategy="left_to_right")
    end = int(last_canvas(free).tokens[0, -PLACES + 1])  # the first row's second token
    trace = record_trace(model, strategy="left_to_right", eos="stop", stop_ids=[end])
    done = last_canvas(trace).masked[0]
    assert bool(done.any())
    for strategy in (None, "standard", "block(size=4)"):
        found = last_canvas(run_to_end(fork(model, trace, 5, strategy=strategy)))
        assert torch.equal(found.masked[0], done)
        assert torch.equal(found.tokens[0], last_canvas(trace).tokens[0])


@pytest.mark.parametrize("eos", ["stop", "defer", "stop-block"])
def test_another_strategy_decodes_nothing_in_a_finished_row(eos):
    model = toy(seed=3)
    model.block_size = 4
    options: dict[str, Any] = {"strategy": "left_to_right", "max_new_tokens": 20}
    free = last_canvas(record_trace(model, **options))
    answer = free.tokens[0, free.slot[0] >= 0].tolist()
    end = next(token for n, token in enumerate(answer) if n and token not in answer[:n])
    trace = record_trace(model, eos=eos, stop_ids=[end], **options)
    first = int(trace.commit[:, 0].any(-1).nonzero()[-1]) + 1  # the first step after the answer
    assert first < len(trace)
    assert bool(last_canvas(trace).masked[0].any())
    found = run_to_end(fork(model, trace, first, strategy="standard"))
    assert not bool(found.commit[first:, 0].any())
    assert bool(found.commit[first:, 1].any())


def test_end_token_before_the_fork_ends_the_answer_after_its_block():
    model = toy(seed=3)
    model.block_size = 4
    options: dict[str, Any] = {"strategy": "left_to_right", "rows": 1, "max_new_tokens": 13}
    end = int(last_canvas(record_trace(model, **options)).tokens[0, 4])  # begins the second block
    for draft in (0, 3):
        trace = record_trace(model, eos="stop-block", stop_ids=[end], speculate=draft, **options)
        at = trace.step[:, 0].tolist().index(2)
        found = run_to_end(fork(model, trace, at, strategy="standard"))
        assert last_canvas(found).masked[0].nonzero()[:, 0].tolist() == [*range(8, 16)]
        assert difference(found, rerun(model, found)) is None


def test_too_few_steps_for_the_other_strategy_are_rejected(model):
    trace = record_trace(model, strategy="wavefront(size=5)", steps=6)
    assert "fewer than the" in refusal(model, trace, 5, strategy="block(size=1)")


# Overrides.


def greedy(model: Any, tokens: list[int], masked: set[int]) -> list[int]:
    """Decode with the standard strategy, one token per step, in plain loops."""
    tokens, masked = list(tokens), set(masked)
    while masked:
        logits = model(torch.tensor([tokens]))[0].float().detach()
        best = []
        for place in sorted(masked):
            chance = logits[place].log_softmax(-1)
            allowed = chance.clone()
            allowed[model.mask_id] = float("-inf")
            token = int(allowed.argmax())
            best.append((-float(chance[token]), place, token))
        _, place, token = min(best)
        tokens[place] = token
        masked.remove(place)
    return tokens


@pytest.mark.parametrize("at", [0, 6, 11])
def test_steps_after_an_override_depend_on_it(model, at):
    trace = record_trace(model, strategy="standard", rows=1)
    before = list(trace.before())[at]
    places = (trace.first.slot[0] >= 0).nonzero()[:, 0].tolist()
    for slot in range(0, PLACES, 2):
        found = run_to_end(fork(model, trace, at, overrides={slot: 41}))
        seen = list(found.before())[at] if len(found) > at else last_canvas(found)
        assert seen.tokens[0, places[slot]] == 41
        tokens = [t if p != places[slot] else 41 for p, t in enumerate(before.tokens[0].tolist())]
        masked = {p for p in before.masked[0].nonzero()[:, 0].tolist() if p != places[slot]}
        assert last_canvas(found).tokens[0].tolist() == greedy(model, tokens, masked)
        assert difference(trace.until(at), found.until(at)) is None


@pytest.mark.parametrize(
    "text",
    [
        "wavefront(size=4)",
        "tide(size=4, cascade_rounds=0, horizon=0, selector=quota())",
        "wavefront(size=1, radius=1)",
    ],
)
def test_overridden_position_leaves_the_front(model, text):
    trace = record_trace(model, strategy=text, rows=1)
    at = 5
    for place in trace.front[at - 1, 0].nonzero()[:, 0].tolist():
        slot = int(trace.first.slot[0, place])
        steps = list(forked := fork(model, trace, at, overrides={slot: 41}))
        assert not any(bool(step.decision.candidates[0, place]) for step in steps)
        assert [int(step.decision.commit.sum()) for step in steps] == [1] * (PLACES - at - 1)
        assert last_canvas(forked.trace()).tokens[0, place] == 41


def test_overridden_token_stays_unless_the_strategy_remasks_it(model):
    for text in EVERY:
        trace = record_trace(model, strategy=text, rows=1)
        at = min(5, len(trace) - 1)
        known = list(trace.before())[at].known & (trace.first.slot >= 0)
        if not bool(known.any()):
            continue
        place = int(known[0].nonzero()[0, 0])
        found = run_to_end(fork(model, trace, at, overrides={int(trace.first.slot[0, place]): 41}))
        taken = bool(found.remask[at:, 0, place].any())
        assert taken or last_canvas(found).tokens[0, place] == 41
        assert not taken or spec.resolve(text, "strategies").revises
        assert not bool(last_canvas(found).masked.any())


def test_override_and_another_strategy_work_together(model):
    trace = record_trace(model, strategy="standard", rows=1)
    found = run_to_end(fork(model, trace, 6, strategy="rcr(size=4)", overrides={0: 41, 11: 42}))
    assert last_canvas(found).tokens[0, -PLACES] == 41
    assert last_canvas(found).tokens[0, -1] == 42
    assert found.about["options"]["strategy"] == "rcr(size=4, stat='last')"
    assert difference(found, rerun(model, found)) is None


def test_override_texts_are_written_token_by_token(lm):
    made = lm.generate("Hello", max_new_tokens=12, strategy="standard", trace=True)
    stream = lm.fork(made.trace, 6, overrides={2: "cat", 9: lm.tokenizer.encode("!")[0]})
    stream.decoding.drain()
    tokens = stream.decoding.answers()[0]
    assert lm.tokenizer.decode(tokens[2:5]) == "cat"
    assert lm.tokenizer.decode(tokens[9:10]) == "!"
    about = stream.completions[0].trace.about
    assert about["texts"][str(lm.tokenizer.encode("c")[0])] == "c"
    assert "texts" not in about["fork"]["of"]


def test_infill_forks_as_an_infill(lm):
    text = "The <mask:4> and the <mask:3>!"
    made = lm.infill(text, trace=True, strategy="standard")
    for strategy in (None, "left_to_right"):
        stream = lm.fork(made.trace, 3, strategy=strategy)
        stream.decoding.drain()
        (found,) = stream.completions
        assert found.text.startswith("The ")
        assert (found.text == made.text) or strategy
        assert " and the " in found.text


# Forks of forks, and their files.


def test_fork_trace_can_be_saved_replayed_and_forked(model, tmp_path):
    trace = record_trace(model, rows=1, strategy="wavefront(size=4)")
    one = run_to_end(fork(model, trace, 3, overrides={8: 41}))
    two = run_to_end(fork(model, one, 5, strategy="rcr(size=4)"))
    three = run_to_end(fork(model, two, 8, overrides={0: 42, 8: 43}))
    for number, made in enumerate((one, two, three)):
        kept = trace_file.load(trace_file.save(made, tmp_path / f"{number}.npz"))
        assert difference(made, kept) is None
        assert torch.equal(last_canvas(made).tokens, last_canvas(kept).tokens)
        assert difference(kept, rerun(model, kept)) is None
        for at in range((3, 5, 8)[number], len(kept)):
            assert_same(kept, run_to_end(fork(model, kept, at)))
    assert last_canvas(three).tokens[0, -PLACES + 8] in (43, 41) or three.remask.any()
    assert (
        three.about["fork"]["of"]["fork"]["of"]["fork"]["of"]["options"] == trace.about["options"]
    )


def test_fork_before_an_earlier_fork_equals_the_original(model):
    trace = record_trace(model, rows=1, strategy="wavefront(size=4)")
    one = run_to_end(fork(model, trace, 6, strategy="standard", overrides={8: 41}))
    back = run_to_end(fork(model, one, 2))
    assert_same(trace, back)
    assert back.about["fork"]["of"]["options"] == trace.about["options"]
    assert len(back.overrides) == 0
    assert difference(back, rerun(model, back)) is None


def test_later_override_at_the_same_step_wins(model):
    trace = record_trace(model, rows=1, strategy="standard")
    one = run_to_end(fork(model, trace, 4, overrides={8: 41, 9: 42}))
    two = run_to_end(fork(model, one, 4, overrides={9: 43}))
    assert last_canvas(two).tokens[0, -PLACES + 8 :][:2].tolist() == [41, 43]
    assert sorted(two.overrides[:, 3].tolist()) == [41, 43]
    assert difference(two, rerun(model, two)) is None


def test_lm_replay_reports_the_first_difference(lm):
    made = lm.generate("Hello", max_new_tokens=8, trace=True)
    assert lm.replay(made.trace) is None
    tokens = made.trace.tokens.clone()
    tokens[5][made.trace.commit[5]] += 1
    assert lm.replay(replace(made.trace, tokens=tokens)) == DecodeDifference(row=0, step=5)
    remask = made.trace.remask.clone()
    remask[3, 0, -1] = True
    assert lm.replay(replace(made.trace, remask=remask)) == DecodeDifference(row=0, step=3)
    assert lm.replay(made.trace.until(6)) == DecodeDifference(row=0, step=6)


# Errors.


def refusal(model: Any, trace: Trace, at: Any, **how: Any) -> str:
    with pytest.raises((TraceError, OptionError)) as caught:
        fork(model, trace, at, **how).drain()
    said = str(caught.value)
    assert "\n" not in said
    return said


def test_invalid_forks_are_rejected(model):
    trace = record_trace(model, rows=1)
    assert "at must be between 0 and 11" in refusal(model, trace, 12)
    assert "at must be between 0 and 11" in refusal(model, trace, -1)
    assert "whole number" in refusal(model, trace, 1.5)
    assert "no step" in refusal(model, trace.until(0), 0)
    assert "between 0 and 11, not 12" in refusal(model, trace, 3, overrides={12: 5})
    assert "between 0 and 63, not 64" in refusal(model, trace, 3, overrides={0: 64})
    assert "cannot write the mask" in refusal(model, trace, 3, overrides={0: 63})
    assert "trace.row(0)" in refusal(model, record_trace(model), 3, overrides={0: 5})
    assert "did you mean 'block'" in refusal(model, trace, 3, strategy="blok")
    assert "not 7" in refusal(model, trace, 3, strategy=7)


def test_trace_of_another_model_is_rejected(model):
    trace = record_trace(model, rows=1)
    assert "another model" in refusal(toy(vocab_size=80), trace, 3, strategy="standard")
    assert "another model" in refusal(toy(vocab_size=40), trace, 3)
    small = toy(seed=3, max_length=8)
    assert "the model takes 8" in refusal(small, trace, 3)
    assert "the model takes 8" in refusal(small, trace, 3, strategy="standard")


@pytest.mark.parametrize(
    "about",
    [
        {},
        {"options": None},
        {"options": {"strategy": 3}},
        {"options": {"strategy": "wavefront", "steps": "many"}},
        {"options": {"strategy": "wavefront", "unheard": 1}},
        {"options": {"strategy": "wavefront"}, "fork": 3},
        {"options": {"strategy": "wavefront"}, "fork": {"at": 1}},
        {
            "options": {"strategy": "wavefront"},
            "fork": {
                "at": 99,
                "steps": [1],
                "put": [],
                "of": {"options": {"strategy": "wavefront"}},
            },
        },
        {
            "options": {"strategy": "wavefront"},
            "fork": {"at": 1, "steps": [1, 2], "put": [], "of": {"options": {"strategy": "block"}}},
        },
        {
            "options": {"strategy": "wavefront"},
            "fork": {
                "at": 1,
                "steps": [1],
                "put": [[0, 99, 5]],
                "of": {"options": {"strategy": "block"}},
            },
        },
        {"options": {"strategy": "wavefront"}, "fork": {"at": 1, "steps": [1], "put": [], "of": 5}},
    ],
    ids=range(11),
)
def test_invalid_trace_description_is_rejected(model, about):
    trace = replace(record_trace(model, rows=1), about=about)
    refusal(model, trace, 3)
    with pytest.raises((TraceError, OptionError)):
        rerun(model, trace)


def test_too_long_chain_of_forks_is_rejected(model):
    trace = record_trace(model, rows=1)
    about: dict[str, Any] = dict(trace.about)
    for _ in range(80):
        about = {**trace.about, "fork": {"at": 1, "steps": [1], "put": [], "of": about}}
    assert "more than 64 times" in refusal(model, replace(trace, about=about), 3)


def test_strategy_that_is_not_built_in_runs_only_if_the_caller_names_it(lm, monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(Path(__file__).parents[2])
    (tmp_path / "evil.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    name = "examples.new_strategy.OutsideIn(size=2)"
    made = lm.generate("Hello", max_new_tokens=8, trace=True, strategy=name)
    with pytest.raises(TraceError, match=r"name it with strategy="):
        lm.replay(made.trace)
    with pytest.raises(TraceError, match=r"name it with strategy="):
        lm.fork(made.trace, 3)
    assert lm.replay(made.trace, strategy=name) is None
    stream = lm.fork(made.trace, 3, strategy=name)
    stream.decoding.drain()
    assert difference(made.trace, stream.completions[0].trace) is None
    about = {**made.trace.about, "options": {"strategy": "evil.Strategy()"}}
    for trusted in (None, "block", name):
        with pytest.raises(TraceError, match=r"evil\.Strategy"):
            lm.fork(replace(made.trace, about=about), 3, strategy=trusted)


def test_override_texts_are_checked(lm):
    made = lm.generate("Hello", max_new_tokens=8, trace=True)
    with pytest.raises(OptionError, match="nothing to write at position 3"):
        lm.fork(made.trace, 2, overrides={3: ""})
    with pytest.raises(OptionError, match="Position 4 is set twice"):
        lm.fork(made.trace, 2, overrides={3: "ab", 4: "c"})
    with pytest.raises(OptionError, match="between 0 and 7, not 8"):
        lm.fork(made.trace, 2, overrides={7: "ab"})


@pytest.mark.parametrize(
    "options",
    [
        {"strategy": "planted.Mine()"},
        {"strategy": "standard(selector=planted.Mine())"},
        {"cache": "planted.Mine()"},
        {"cache": "planted.Mine(refresh=1)"},
    ],
)
def test_trace_file_never_imports_a_module(lm, planted_module, options, tmp_path):
    made = lm.generate("Hello", max_new_tokens=8, trace=True)
    about = {**made.trace.about, "options": made.trace.about["options"] | options}
    file = trace_file.save(replace(made.trace, about=about), tmp_path / "trace.npz")
    trace = trace_file.load(file)
    with pytest.raises(TraceError, match=r"planted\.Mine"):
        lm.replay(trace)
    with pytest.raises(TraceError, match=r"planted\.Mine"):
        lm.fork(trace, 3)
    parent = {**made.trace.about, "fork": {"at": 1, "steps": [1], "put": [], "of": about}}
    with pytest.raises(TraceError, match=r"planted\.Mine"):
        lm.replay(replace(made.trace, about=parent))
    assert not planted_module()
