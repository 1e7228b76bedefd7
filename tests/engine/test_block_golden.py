"""The published samplers of the newer families, token for token, with and without the cache.

Prefill and store passes are not counted: our first step of a block does their work.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers import golden_families as golden

import wavefront
from wavefront.core.canvas import infill
from wavefront.core.strategy import RowProgress
from wavefront.engine.options import plan
from wavefront.engine.session import DecodeSession, model_properties
from wavefront.strategies.selectors.share import Share

pytestmark = pytest.mark.whole
CACHES = ["blocks", pytest.param("none", marks=pytest.mark.slow)]


def named(case: dict[str, Any]) -> str:
    return case["id"]


def block_model(folder: str, case: dict[str, Any]) -> Any:
    """Return the model of a case, with the block size of the case."""
    model, params = golden.checkpoint(folder, case), case["params"]
    model.block_size = params.get("block_length") or params["block_size"]
    return model


def decode(model: Any, case: dict[str, Any], options: dict[str, Any]) -> wavefront.GeneratedIds:
    return wavefront.generate_ids(model, golden.prompts(case), trace=True, **options)


def check_row(found: wavefront.GeneratedIds, expected: golden.Published, row: int = 0) -> None:
    """Compare order and tokens of a row; a row may wait for others in steps of its own."""
    board = golden.boards(found)[row]
    assert [step for step in found.order[row] if step] == [step for step in expected.order if step]
    assert {place: board[place] for place in expected.tokens} == expected.tokens


def check(model: Any, case: dict[str, Any], options: dict[str, Any]) -> wavefront.GeneratedIds:
    """Decode a case of one row, and compare order, edits, tokens and forward passes."""
    found = decode(model, case, options)
    expected = golden.published(case["expected"]["trace"])
    assert found.order[0] == expected.order
    assert golden.edits(found) == expected.edits
    assert found.forwards == len(expected.order)
    check_row(found, expected)
    return found


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("case", golden.cases("sdar")["generate"], ids=named)
def test_sdar_matches_the_published_sampler(case, cache):
    model, options = block_model("sdar", case), golden.sdar_options(case["params"])
    found = check(model, case, {**options, "cache": cache})
    sequence = case["expected"]["sequences"][0]
    assert golden.boards(found)[0] == sequence
    end = (options["stop_ids"] or [model.mask_id])[0]  # what we return for a masked position
    answer = sequence[len(case["prompt"][0]) :][: options["max_new_tokens"]]
    assert found.tokens[0] == [end if token == model.mask_id else token for token in answer]


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("case", golden.cases("stable_diffcoder")["generate"], ids=named)
def test_stable_diffcoder_matches_the_published_sampler(case, cache):
    options = golden.diffcoder_options(case["params"])
    check(block_model("stable_diffcoder", case), case, {**options, "cache": cache})


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("case", golden.cases("a2d")["bd3lm_generate"], ids=named)
def test_bd3lm_matches_the_published_sampler(case, cache):
    """The published code goes on with a finished row until all rows are finished; ours ends it."""
    model = block_model("a2d", case)
    options = golden.bd3lm_options(case["params"], case["eos_id"])
    found = decode(model, case, {**options, "cache": cache})
    assert found.forwards == case["expected"]["num_forward"]
    for row, prompt in enumerate(golden.prompts(case)):
        padding = golden.padding_of(model, case, row)
        expected = golden.published(case["expected"]["trace"], row, padding)
        made = sum(map(bool, found.order[row]))
        if case["eos_id"] in found.tokens[row]:
            kept = [step for step in expected.order if step][:made]
            last = max(place for step in kept for place in step)
            tokens = {place: token for place, token in expected.tokens.items() if place <= last}
            expected = expected._replace(order=kept, tokens=tokens)
            assert (last + 1 - len(prompt)) % model.block_size == 0
        check_row(found, expected, row)


@pytest.mark.parametrize("case", golden.cases("a2d")["mdlm_generate"], ids=named)
def test_mdlm_matches_the_published_sampler(case):
    params = case["params"]
    model = golden.checkpoint("a2d", case)
    model.block_size = None
    rows = golden.prompts(case)
    if case["sampler"] == "mdlm.infill":
        found = fill(model, rows, params)
        assert found.tokens() == [
            row[: len(prompt)]
            for row, prompt in zip(case["expected"]["sequences"], rows, strict=True)
        ]
        assert found.forwards == golden.passes(case)
        return
    found = decode(model, case, golden.mdlm_options(params))
    assert found.forwards == golden.passes(case)
    for row in range(len(rows)):
        check_row(found, golden.published(case["expected"]["trace"], row), row)


def fill(model: Any, rows: list[list[int]], params: dict[str, Any]) -> DecodeSession:
    """Fill the masks of texts, in blocks that are counted from their first token."""
    holes = [[token == model.mask_id for token in row] for row in rows]
    size = params["block_size"]
    steps = -(-params["steps"] // -(-max(map(len, rows)) // size))
    strategy = (
        f"blockwise(size={size}, steps={steps}, origin='row', hide=False, "
        "strategy=standard(selector=share(rounding='nearest')))"
    )
    options = plan({"strategy": strategy}, model_properties(model), length=max(map(sum, holes)))
    canvas = infill(rows, holes, mask_id=model.mask_id, pad_id=model.pad_id)
    return DecodeSession(model, canvas, options).drain()


@pytest.mark.parametrize(
    "case", golden.cases("a2d")["schedules"], ids=lambda case: f"{case['masks']} in {case['steps']}"
)
def test_tiny_a2d_commit_counts_match(case):
    """The counts of the published schedule. It leaves out its zeros, and so do we."""
    left, steps, counts = case["masks"], case["steps"], []
    while left:
        numbers = (case["masks"], steps, len(counts), left, 0)
        progress = RowProgress(*(torch.tensor([number]) for number in numbers))
        counts.append(int(Share(rounding="nearest").min_commits(progress)))
        left -= counts[-1]
    assert counts == case["counts"]


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("case", golden.cases("fast_dllm_v2")["generate"], ids=named)
def test_fast_dllm_v2_matches_the_published_sampler(case, cache):
    """The published row ends one token after a block; ours fills that block, which is not compared.

    The first token of a block has its own step. Its pass is the published store pass.
    """
    model, expected = block_model("fast_dllm_v2", case), case["expected"]
    options = golden.fast_dllm_options(case["params"], eos="stop")
    length = len(expected["sequences"][0]) - len(case["prompt"][0])
    found = decode(model, case, {**options, "max_new_tokens": length, "cache": cache})
    published = golden.published(expected["trace"])
    steps = len(published.order)
    if case["params"]["stop_token"] in expected["sequences"][0]:
        assert len(found.order[0]) == steps
    check_row(found._replace(order=[found.order[0][:steps]]), published)
    kinds = [entry["kind"] for entry in expected["trace"]]
    passes = expected["num_forward"] + kinds.count("next_token")
    if case["params"]["stop_token"] not in expected["sequences"][0]:
        # Decode up to the last finished block: without the first token of the next one.
        assert kinds[-1] == "next_token"
        passes, length = passes - 1, length - 1
        found = decode(model, case, {**options, "max_new_tokens": length, "cache": cache})
        assert found.order[0] == published.order[:-1]
    assert found.forwards == found.row_forwards[0] == passes


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("case", golden.cases("fast_dllm_v2")["batch_generate"], ids=named)
def test_fast_dllm_v2_batches_match_the_published_sampler(case, cache):
    model, rows = block_model("fast_dllm_v2", case), case["expected"]["row_traces"]
    options = golden.fast_dllm_options(case["params"], eos="stop-block")
    length = max(len(row) for row in case["expected"]["sequences"])
    found = decode(model, case, {**options, "max_new_tokens": length, "cache": cache})
    together: dict[int, list[int]] = {}  # sub-block -> the denoising passes of each row in it
    for row, trace in enumerate(rows):
        expected = golden.published(trace)
        made = [step for step in found.order[row] if step]
        assert made[: len(expected.order)] == expected.order
        board = golden.boards(found)[row]
        assert {place: board[place] for place in expected.tokens} == expected.tokens
        # Each of our steps is one pass. A row that stopped made no pass after its end.
        assert found.row_forwards[row] == len(made)
        if case["params"]["stop_token"] in expected.tokens.values():
            assert found.row_forwards[row] == len(expected.order)
        for step, entry in zip(made, trace, strict=False):
            passes = together.setdefault(step[0] // case["params"]["small_block_size"], [0] * 2)
            passes[row] += entry["kind"] != "next_token"
    assert found.forwards == max(found.row_forwards)
    # The published rows wait for each other at the end of every sub-block.
    assert sum(map(max, together.values())) == case["expected"]["num_forward"]


@pytest.mark.parametrize("case", golden.cases("illada")["generate"], ids=named)
def test_illada_matches_the_published_sampler(case):
    options = {**case["params"], "fixed_budget": True, "eos": "keep"}
    check(golden.checkpoint("illada", case), case, options)


@pytest.mark.parametrize("case", golden.cases("illada")["var_generate"], ids=named)
def test_illada_of_variable_length_matches_the_published_sampler(case):
    check(golden.checkpoint("illada", case), case, golden.var_options(case["params"]))


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("case", golden.cases("sdar_moe")["sdar_generate"], ids=named)
def test_sdar_moe_matches_the_published_sampler(case, cache):
    options = golden.sdar_options(case["params"])
    check(block_model("sdar_moe", case), case, {**options, "cache": cache})


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("case", golden.cases("llada2")["llada2_generate"], ids=named)
def test_llada2_matches_the_published_sampler(case, cache):
    options = golden.llada2_options(case["params"])
    found = check(block_model("llada2", case), case, {**options, "cache": cache})
    assert cut(found.tokens[0], case) == case["expected"]["output"][0]


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("case", golden.cases("llada2")["llada21_generate"], ids=named)
def test_llada21_matches_the_published_sampler(case, cache):
    options = golden.llada21_options(case["params"])
    found = check(block_model("llada2", case), case, {**options, "cache": cache})
    assert cut(found.tokens[0], case) == case["expected"]["output"][0]


def cut(tokens: list[int], case: dict[str, Any]) -> list[int]:
    """Cut an answer after its first end token, as the published code does."""
    end = case["params"]["eos_id"]
    return tokens[: tokens.index(end) + 1] if end in tokens else tokens


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("case", golden.cases("llada2")["llada2_sampler"], ids=named)
def test_llada2_batches_match_the_published_sampler(case, cache):
    model, options = block_model("llada2", case), golden.llada2_options(case["params"])
    found = decode(model, case, {**options, "cache": cache})
    assert golden.boards(found) == case["expected"]["sequences"]
    assert found.forwards == golden.passes(case)
    for row in range(len(golden.prompts(case))):
        check_row(found, golden.published(case["expected"]["trace"], row), row)


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("case", golden.cases("llada2")["llada21_sampler"], ids=named)
def test_llada21_stand_alone_sampler_matches(case, cache):
    options = golden.llada21_options(case["params"])
    found = check(block_model("llada2", case), case, {**options, "cache": cache})
    assert golden.boards(found) == case["expected"]["sequences"]


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("case", golden.cases("llada2")["dinfer_block_diffusion"], ids=named)
def test_dinfer_decodes_the_same_tokens_in_the_same_order(case, cache):
    """dInfer runs passes in groups, some of them on a finished block, which we do not repeat."""
    params = case["params"]
    options = {
        "strategy": f"standard(selector=threshold(tau={params['threshold']}))",
        "max_new_tokens": params["gen_length"],
        **golden.ends([params["eos_id"]]),
    }
    found = decode(block_model("llada2", case), case, {**options, "cache": cache})
    for kind in ("no_cache", "prefix_cache"):
        check_row(found, golden.published(case["expected"][kind]["trace"]))


@pytest.mark.parametrize("case", golden.cases("llada_moe")["llada_generate"], ids=named)
def test_llada_moe_matches_the_published_sampler(case):
    model, params = golden.checkpoint("llada_moe", case), case["params"]
    ids = golden.cases("llada_moe")["models"][case["model"]]
    flags = params["logits_eos_inf"] or params["confidence_eos_eot_inf"]
    options = {**params, "fixed_budget": True, **({} if flags else {"eos": "keep"})}
    options["stop_ids"] = [ids["switch_eos_id"], ids["switch_eot_id"]]
    found = decode(model, case, options)
    width = len(case["prompt"][0])
    assert found.tokens == [row[width:] for row in case["expected"]["sequences"]]
    assert found.forwards == case["expected"]["num_forward"]
    for row, prompt in enumerate(golden.prompts(case)):
        published = golden.published(case["expected"]["trace"], row, width - len(prompt))
        check_row(found, published, row)


# Corners of the published code. `docs/strategies.md` has the same table, with the reasons.
SAME = {
    "sdar_edge_quota_over_partial_b4",
    "sdar_edge_quota_over_partial_b8",
    "sdar_edge_quota_over_dynamic",
    "sdar_edge_mask_in_prefilled_block",
    "l20_eos_in_prompt_early_stop",
    "l20_early_stop_beyond_gen_length",
}
DIFFERENT = {
    "sdar_edge_mask_in_partial_block",
    "sdar_edge_mask_id_predicted",
    "a2d_bd3lm_edge_pad_generated",
    "a2d_mdlm_edge_mask_in_prompt",
    "sdc_edge_threshold_unfinished_block",
    "fdv2_edge_prompt_equals_block",
    "s20_early_stop_leaves_masks",
    "l20_mask_token_predicted",
    "l21_edit_to_mask_token",
    "illada_edge_mask_in_prompt",
    "lmoe_padded_batch_mask_ignored",
}
EDGES = [
    (folder, case)
    for folder in (
        *("sdar", "a2d", "stable_diffcoder", "fast_dllm_v2", "llada2", "illada", "llada_moe"),
        "sdar_moe",
    )
    for case in golden.cases(folder)["edge_cases"]
]


def edge_options(folder: str, case: dict[str, Any]) -> dict[str, Any]:
    params = case["params"]
    if folder == "sdar":
        return golden.sdar_options(params)
    if folder == "stable_diffcoder":
        return golden.diffcoder_options(params)
    if folder == "a2d":
        if case["sampler"] == "bd3lm.sample":
            return golden.bd3lm_options(params, case["eos_id"])
        return golden.mdlm_options(params)
    if folder == "llada2":
        edits = case["kind"].startswith("llada21")
        return golden.llada21_options(params) if edits else golden.llada2_options(params)
    if folder == "fast_dllm_v2":
        length = len(case["expected"]["sequences"][0]) - len(case["prompt"][0])
        return golden.fast_dllm_options(params, eos="stop") | {"max_new_tokens": length}
    return {**params, "fixed_budget": True, "eos": "keep"}


@pytest.mark.parametrize(
    ("folder", "case"), EDGES, ids=lambda part: part if isinstance(part, str) else named(part)
)
def test_edge_case_behaves_as_documented(folder, case):
    """Where we differ, the answer is complete and holds no mask token."""
    params = case["params"]
    bidirectional = folder in ("illada", "llada_moe") or case.get("sampler") == "mdlm.sample"
    mask_id = params.get("mask_id")
    described = golden.cases(folder)["models"][case["model"]]
    usual = {**params, "mask_id": described["mask_id"]}
    model = golden.checkpoint(folder, {**case, "params": usual})
    kept = model.mask_id, model.pad_id
    model.block_size = None
    if not bidirectional:
        model.block_size = params.get("block_length") or params["block_size"]
    model.mask_id = model.mask_id if mask_id is None else mask_id
    model.pad_id = case.get("pad_id") or model.pad_id
    try:
        options = edge_options(folder, case) | ({} if mask_id is None else {"mask_id": mask_id})
        found = decode(model, case, options)
        trace = (case["expected"] or {}).get("trace")  # None: it raised an error
        same = trace is not None
        for row in range(len(golden.prompts(case))) if trace else ():
            padding = golden.padding_of(model, case, row)
            expected, board = golden.published(trace, row, padding), golden.boards(found)[row]
            steps = [step for step in found.order[row] if step]
            same = same and steps == [step for step in expected.order if step]
            same = same and all(board[at] == token for at, token in expected.tokens.items())
        assert case["id"] in (SAME if same else DIFFERENT)
        if not same:
            assert all(model.mask_id not in row for row in found.tokens)
    finally:
        model.mask_id, model.pad_id = kept


def test_every_edge_case_is_listed():
    assert {case["id"] for _, case in EDGES} == SAME | DIFFERENT
