"""The guarantees of a decode, tested on tiny models of several bidirectional families.

`test_blocks` has those of block-causal families, whose answers end with a whole block.
"""

from __future__ import annotations

import json
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.steps import advance

import wavefront
from wavefront import Decision
from wavefront.core.canvas import blank
from wavefront.core.errors import NumericalError, PromptError
from wavefront.core.masks import first
from wavefront.core.reading import Sampling, read
from wavefront.core.state import Config, start
from wavefront.engine.batcher import decode
from wavefront.engine.session import begin
from wavefront.engine.step import store_readings
from wavefront.models.toy import toy
from wavefront.strategies.standard import Standard
from wavefront.strategies.wavefront import Wavefront
from wavefront.testing.simulation import to_meta

# A family for each kind: shifted, plain, with experts.
FAMILIES = ("dream", "llada", "llada_moe")
STRATEGIES = ("standard", "block(size=4)", "wavefront", "wavefront(grow='accumulate')")
PROMPTS = [[5, 6, 7], [8, 9, 10, 11, 12], [20], [3] * 9]


@pytest.fixture(params=FAMILIES)
def family(request) -> str:
    return request.param


def ids(model, prompts=PROMPTS, **options):
    return wavefront.generate_ids(
        model, prompts, **{"max_new_tokens": 16, "eos": "keep", **options}
    )


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("options", [{}, {"temperature": 0.8, "seed": 7}, {"cfg_scale": 1.0}])
def test_row_decodes_the_same_alone_and_in_a_batch(family, strategy, options):
    model = toy(family=family, dtype="float64")
    together = ids(model, strategy=strategy, **options)
    for row, prompt in enumerate(PROMPTS):
        alone = ids(model, [prompt], strategy=strategy, **options)
        assert alone.tokens[0] == together.tokens[row]
        assert alone.order[0] == together.order[row]


def test_row_in_the_same_bucket_is_bitwise_independent_of_its_neighbours(family):
    model = toy(family=family)
    prompts = [[5, 6, 7, 8], [1, 2, 3, 4], [9, 9, 9, 9]]
    one = ids(model, prompts, trace=True)
    two = ids(model, [prompts[0], [30, 31], [7]], trace=True)
    assert one.tokens[0] == two.tokens[0]
    assert torch.equal(one.trace.logp[:, 0], two.trace.logp[:, 0])


def test_permuting_the_batch_permutes_the_answers(family):
    model = toy(family=family, dtype="float64")
    forward = ids(model, temperature=1.0, seed=3)
    backward = ids(model, PROMPTS[::-1], temperature=1.0, seed=3)
    assert forward.tokens == backward.tokens[::-1]


def test_only_the_seed_decides_the_draws(family):
    model = toy(family=family)
    hot = {"temperature": 1.0}
    assert ids(model, seed=1, **hot).tokens == ids(model, seed=1, **hot).tokens
    assert ids(model, seed=1, **hot).tokens != ids(model, seed=2, **hot).tokens
    torch.manual_seed(0)
    before = ids(model, seed=1, **hot).tokens
    torch.rand(100)
    assert ids(model, seed=1, **hot).tokens == before


def test_draws_do_not_depend_on_the_scored_positions(family):
    """Scoring only the candidates draws the same tokens as scoring every position."""
    model = toy(family=family)
    canvas = blank([[5, 6]], 24, mask_id=model.mask_id, pad_id=model.pad_id)
    config = Config(strategy=Wavefront(), sampling=Sampling(temperature=0.9))

    runs = [
        [
            step.canvas.tokens
            for step in decode(model, canvas, config, steps=[24], seeds=[4], min_width=width)
        ]
        for width in (0, 26)
    ]
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


class Narrow(Standard):
    """Predicts a width that is always too small."""

    def width(self, length: int, steps: int) -> int:
        return 3

    def candidates(self, canvas, state, progress):
        few = first(canvas.masked, 2)  # at first, so that the predicted width is enough
        return torch.where((progress.step > 3)[:, None], canvas.masked, few)

    def step(self, view, state):
        among = torch.where((view.progress.step > 3)[:, None], view.masked, first(view.masked, 2))
        return Decision(self.selector.select(view, among, among), among)


@pytest.mark.parametrize("lag", [0, 1, 2])
def test_too_small_width_costs_a_forward_pass_and_changes_nothing(family, lag, monkeypatch):
    """This holds for late flags too, as on CUDA: then the steps in flight are void."""
    model = toy(family=family)
    canvas = blank([[5, 6]], 16, mask_id=model.mask_id, pad_id=model.pad_id)
    monkeypatch.setattr("wavefront.engine.batcher.flag_lag", lambda model: lag)
    config = Config(strategy=Narrow())
    narrow = list(decode(model, canvas, config, steps=[16], seeds=[0]))
    wide = list(decode(model, canvas, config, steps=[16], seeds=[0], min_width=18))
    assert torch.equal(narrow[-1].canvas.tokens, wide[-1].canvas.tokens)
    assert narrow[-1].forwards == 16 + 1 + lag
    assert [bool(s.decision.commit.any()) for s in narrow].count(False) == 1 + lag
    fixed = Config(strategy=Narrow(), fixed_budget=True)
    *_, last = decode(model, canvas, fixed, steps=[16], seeds=[0])
    assert last.forwards == 16


def test_finished_row_costs_its_neighbour_nothing(family):
    """The undecided positions of a finished row make no step void."""
    model = toy(family=family)
    kept = ids(model, strategy="left_to_right")
    stop = kept.tokens[0][0]
    for strategy in ("left_to_right", "block(size=4)", "wavefront"):
        ended = ids(model, strategy=strategy, eos="stop", stop_ids=[stop])
        assert ended.forwards <= 16


@pytest.mark.parametrize("strategy", [*STRATEGIES, "left_to_right", "standard(selector=dream())"])
def test_runs_on_the_meta_device(family, strategy):
    """A step and the model need no host sync and no data-dependent shape."""
    model = toy(family=family)
    decoding = begin(model, PROMPTS, {"max_new_tokens": 16, "strategy": strategy})
    config = Config(
        strategy=decoding.plan.config.strategy,
        priority="entropy",
        sampling=Sampling(temperature=0.5, top_p=0.9, top_k=5, eos="stop", stop_ids=(1,)),
        cfg_scale=0.5,
        order_noise=0.1,
    )
    rows = to_meta(start(decoding.canvas, config, [16] * 4, seeds=[0] * 4))
    after, _, _ = advance(model.to("meta"), config, rows, 8, True)
    assert after.canvas.tokens.shape == rows.canvas.tokens.shape


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_step_compiles_in_one_graph(family, strategy):
    model = toy(family=family)
    decoding = begin(model, PROMPTS, {"max_new_tokens": 16, "strategy": strategy})
    config = decoding.plan.config
    torch._dynamo.reset()
    compiled = torch.compile(advance, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        rows = other = start(decoding.canvas, config, [16] * 4, seeds=[0] * 4)
        for _ in range(3):
            rows, *_ = advance(model, config, rows, 16, True)
            other, *_ = compiled(model, config, other, 16, True)
    assert torch.equal(rows.canvas.tokens, other.canvas.tokens)


def test_nan_logits_stop_the_decode_and_name_the_step(family):
    model = toy(family=family)
    clean = ids(model, [[5, 6]])
    written = [clean.tokens[0][step[0] - 2] for step in clean.order[0]]
    # This token first appears after a few steps. Its NaN embedding breaks the next forward pass.
    number = next(n for n in range(3, 16) if written[n] not in (5, 6, *written[:n]))
    with torch.no_grad():
        model.embedding.weight[written[number]] = float("nan")
    with pytest.raises(NumericalError, match=f"at step {number + 2} of row 1;"):
        ids(model, [[5, 6]])


def test_guidance_takes_one_forward_pass_and_changes_the_answer(family):
    model = toy(family=family)
    wave = partial(ids, model, strategy="wavefront")
    plain, guided = wave(), wave(cfg_scale=2.0)
    assert guided.forwards == plain.forwards == 16
    assert guided.token_forwards == 2 * plain.token_forwards == 2 * 16 * 4 * (9 + 16)
    assert guided.tokens != plain.tokens
    assert wave(cfg_scale=0.0).tokens == plain.tokens


def test_stop_ends_early_with_the_same_visible_text(family):
    model = toy(family=family)
    kept = ids(model, [[5, 6, 7]], strategy="left_to_right")
    stop = kept.tokens[0][5]
    ended = ids(model, [[5, 6, 7]], strategy="left_to_right", eos="stop", stop_ids=[stop])
    first = kept.tokens[0].index(stop)
    assert ended.forwards == first + 1
    assert ended.tokens[0][: first + 1] == kept.tokens[0][: first + 1]
    assert set(ended.tokens[0][first:]) == {stop}


def test_error_names_the_row_of_the_whole_batch():
    model = toy(family="llada")
    options = {"strategy": "left_to_right", "max_new_tokens": 8}
    kept = ids(model, [[5, 6], [7, 8, 9]], **options)
    first, second = kept.tokens
    stop = first[0]  # the first row ends at once, and its row is dropped
    token = next(t for t in second[2:6] if t not in (stop, *first, 7, 8, 9, *second[:2]))
    with torch.no_grad():
        model.embedding.weight[token] = float("nan")
    with pytest.raises(NumericalError, match="of row 2;"):
        ids(model, [[5, 6], [7, 8, 9]], eos="stop", stop_ids=[stop], **options)


@pytest.mark.parametrize("options", [{}, {"cache": "dual"}, {"cfg_scale": 1.0}, {"speculate": 3}])
def test_finished_row_costs_nothing_and_counts_its_own_passes(options):
    model = toy(family="llada", dtype="float64")
    given = {"strategy": "left_to_right", "max_new_tokens": 12, **options}
    kept = ids(model, **given)
    given |= {"eos": "stop", "stop_ids": [kept.tokens[0][2]]}  # the first row ends early
    alone = [ids(model, [prompt], **given) for prompt in PROMPTS]
    together = ids(model, **given)
    assert together.tokens == [one.tokens[0] for one in alone]
    assert together.row_forwards == [one.forwards for one in alone]
    assert min(together.row_forwards) < max(together.row_forwards) <= together.forwards
    session = begin(model, PROMPTS, given).drain()
    assert session.row_forwards() == together.row_forwards
    if "cache" not in options:  # with a cache, the windows of a batch are as large as the largest
        # Every position that was computed belongs to a row that was not finished.
        assert session.token_forwards == sum(session.row_token_forwards())
    traced = begin(model, PROMPTS, given, record=True).drain()
    assert traced.answers() == together.tokens
    assert traced.row_forwards() == together.row_forwards
    assert traced.token_forwards > session.token_forwards  # a trace keeps every row


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_suppressed_eos_is_never_chosen(family, strategy):
    model = toy(family=family)
    common = Counter(token for row in ids(model).tokens for token in row).most_common(1)[0][0]
    removed = ids(model, eos="suppress-logit", stop_ids=[common], strategy=strategy)
    assert all(common not in row for row in removed.tokens)


def test_suppressed_confidence_puts_eos_last(family):
    model = toy(family=family)
    plain = ids(model, [[5, 6, 7]], strategy="standard", trace=True)
    first = plain.trace.tokens[0, 0][plain.order[0][0][0]].item()
    last = ids(
        model,
        [[5, 6, 7]],
        strategy="standard",
        eos="suppress-confidence",
        stop_ids=[first],
        trace=True,
    )
    proposals, commits = last.trace.tokens[:, 0], last.trace.commit[:, 0]
    scopes = last.trace.candidates[:, 0]
    for proposal, commit, scope in zip(proposals, commits, scopes, strict=True):
        if (proposal[commit] == first).any():
            assert (proposal[scope] == first).all()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_infilling_fills_the_holes_and_nothing_else(family, strategy):
    from wavefront.core.canvas import infill

    model = toy(family=family)
    text = list(range(10, 40))
    holes = [place in (0, 3, 4, 5, 12, 13, 20, 29) for place in range(30)]
    canvas = infill([text], [holes], mask_id=model.mask_id, pad_id=model.pad_id)
    plan = begin(model, [[1]], {"strategy": strategy, "max_new_tokens": 8}).plan
    *_, last = decode(model, canvas, plan.config, steps=[8], seeds=[0])
    given = ~torch.tensor([holes])
    assert torch.equal(last.canvas.tokens[given], torch.tensor([text])[given])
    assert not last.canvas.masked.any()
    assert last.forwards == 8


def test_steps_beyond_the_positions_are_skipped_unless_the_budget_is_fixed(family):
    model = toy(family=family)
    wave = partial(ids, model, strategy="wavefront")
    assert wave(steps=40).forwards == 16
    fixed = wave(steps=40, fixed_budget=True)
    assert fixed.forwards == 40
    assert fixed.tokens == wave(steps=40).tokens == wave().tokens
    assert [len(step) for step in fixed.order[0]] == [1] * 16 + [0] * 24


def test_random_priority_is_seeded(family):
    model = toy(family=family)
    one = ids(model, priority="random", seed=1, strategy="standard")
    assert one.order == ids(model, priority="random", seed=1, strategy="standard").order
    assert one.order != ids(model, priority="random", seed=2, strategy="standard").order


def test_order_noise_changes_the_order(family):
    model = toy(family=family)
    quiet = ids(model, strategy="standard")
    noisy = ids(model, strategy="standard", order_noise=5.0)
    assert quiet.order != noisy.order
    assert noisy.order == ids(model, strategy="standard", order_noise=5.0).order


def test_origin_commits_at_random_and_completes(family):
    model = toy(family=family)
    found = ids(model, alg="origin", seed=5)
    assert all(sorted(p for step in row for p in step) for row in found.order)
    assert found.order != ids(model, alg="origin", seed=6).order


@pytest.mark.parametrize(
    ("prompts", "sentence"),
    [
        ([], "no prompt"),
        ([[]], "empty"),
        ([[5, 900]], "outside the model's vocabulary"),
        ([[5, -1]], "outside the model's vocabulary"),
        ([[5, "6"]], "token ids"),
        ([[5, 6.0]], "token ids"),
        ([5, 6], "Each prompt must be a list"),
        ("56", "list of lists"),
        (5, "list of lists"),
        ([[5] * 1020], "1036 in total, but the model takes 1024"),
    ],
)
def test_invalid_prompts_are_rejected(prompts, sentence):
    with pytest.raises(PromptError, match=sentence):
        ids(toy(), prompts)


def test_order_counts_from_the_first_real_token_of_the_row():
    found = ids(toy(), [[5, 6, 7], [8]], strategy="left_to_right", max_new_tokens=3)
    assert found.order == [[[3], [4], [5]], [[1], [2], [3]]]


def test_golden_models_name_their_ids():
    cases = json.loads((Path(__file__).parents[1] / "golden" / "cases.json").read_text())
    for name in ("llada-tiny", "dream-tiny"):
        model = wavefront.load_model(Path(__file__).parents[1] / "golden" / name)
        assert model.mask_id == cases["models"][name]["mask_id"]
        assert model.stop_ids == (cases["models"][name]["eos_id"],)


def test_prompts_may_be_tensors_arrays_or_tuples():
    expected = ids(toy(), [[5, 6, 7]]).tokens
    for prompts in (torch.tensor([[5, 6, 7]]), [torch.tensor([5, 6, 7])], ((5, 6, 7),)):
        assert ids(toy(), prompts).tokens == expected
    assert ids(toy(), np.array([[5, 6, 7]]), steps=np.int64(16)).tokens == expected


def test_tiny_temperature_equals_the_greedy_answer(family):
    model = toy(family=family)
    for temperature in (1e-6, 1e-40):
        # With LLaDA's rule. With Dream's, confidences saturate and the order is left to right.
        found = ids(model, temperature=temperature, sampling="llada")
        assert found.tokens == ids(model, sampling="llada").tokens


def test_session_decodes_once_however_it_is_iterated(family):
    model = toy(family=family)
    decoding = begin(model, [[5, 6]], {"max_new_tokens": 8})
    first_three = [next(decoding) for _ in range(3)]
    rest = list(decoding)
    assert [step.number for step in first_three + rest] == list(range(8))
    assert list(decoding) == []
    assert decoding.answers() == ids(model, [[5, 6]], max_new_tokens=8).tokens


def test_undecided_positions_are_known_at_any_time(family):
    decoding = begin(toy(family=family), [[5, 6]], {"max_new_tokens": 4})
    assert decoding.undecided() == [[False, False, True, True, True, True]]
    step = next(decoding)
    place = step.decision.commit[0].nonzero().item()
    assert decoding.undecided()[0].count(True) == 3
    assert not decoding.undecided()[0][place]
    decoding.drain()
    assert decoding.undecided() == [[False] * 6]


def test_position_that_prefers_the_mask_token_comes_last():
    """This holds for every priority that reads the model."""
    logits = torch.zeros(1, 4, 64)
    logits[..., 7], logits[0, 2, 63] = 3.0, 40.0
    canvas = blank([[5]], 4, mask_id=63, pad_id=62)
    at = torch.tensor([[1, 2, 3, 4]])
    for priority in ("confidence", "probability", "margin", "entropy"):
        config = Config(strategy=Standard(), priority=priority)
        rows = start(canvas, config, [4], seeds=[0])
        reading = read(
            lambda chunk: logits.flatten(0, 1)[chunk],
            torch.zeros(1, 4, dtype=torch.int32),
            canvas.tokens[:, 1:],
            vocab_size=64,
            mask_id=63,
            sampling=Sampling(),
            needs=config.needs,
        )
        score = store_readings(config, rows, index=at, reading=reading).score[0, 1:]
        assert score.argmin() == 2, priority


def test_defer_commits_stop_tokens_last_and_ends_there():
    """The order is that of suppress-confidence, and the end is that of stop."""
    model = toy(dtype="float64")
    held = ids(model, strategy="wavefront", eos="suppress-confidence", stop_ids=[3, 9])
    ended = ids(model, strategy="wavefront", eos="defer", stop_ids=[3, 9])
    for kept, cut in zip(held.tokens, ended.tokens, strict=True):
        end = next((place for place, token in enumerate(kept) if token in (3, 9)), len(kept))
        assert cut[: end + 1] == kept[: end + 1]
    assert ended.forwards <= held.forwards
