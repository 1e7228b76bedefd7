"""Model families on a GPU. Run with `pytest -m gpu`, or `python tests/gpu/test_families_cuda.py`.

Nothing here imports pytest, so that it also runs where only torch is installed.
"""

from __future__ import annotations

import itertools
import sys

import torch

from wavefront.engine.batcher import Batcher, Request
from wavefront.engine.cuda_graphs import Graphs, run_eagerly
from wavefront.engine.options import plan
from wavefront.engine.prefixes import PrefixStore
from wavefront.engine.session import model_properties
from wavefront.models import experts
from wavefront.models.architecture import ExpertLayout
from wavefront.models.experts import ExpertWeights
from wavefront.models.loader import families
from wavefront.models.toy import toy

MIXTURES = ("llada2", "llada_moe", "sdar_moe")


def tokens(rows: int = 2, length: int = 24) -> torch.Tensor:
    return torch.randint(0, 60, (rows, length), generator=torch.Generator().manual_seed(0))


def weights_and_inputs(rows: int) -> tuple[ExpertWeights, torch.Tensor, torch.Tensor]:
    """Experts of a real size in bfloat16, and rows that choose among them."""
    layout = ExpertLayout(count=64, per_token=8, width=512, router="softmax")
    weights = ExpertWeights(1024, layout).to("cuda", torch.bfloat16).requires_grad_(False)
    generator = torch.Generator("cuda").manual_seed(0)
    for parameter in weights.parameters():
        parameter.normal_(0.0, 0.02, generator=generator)
    x = torch.randn((rows, 1024), generator=generator, device="cuda").bfloat16()
    scores = torch.rand((rows, 64), generator=generator, device="cuda")
    return weights, x, scores.topk(8).indices


def test_every_family_computes_the_same_as_on_the_cpu():
    for family in families():
        logits = [
            toy(family=family, device=device, dtype="float64").raw_logits(tokens())
            for device in ("cpu", "cuda")
        ]
        torch.testing.assert_close(logits[1].cpu(), logits[0], rtol=1e-9, atol=1e-9)


def test_block_against_stored_keys_equals_the_full_pass():
    for family in ("sdar", "llada2", "fast_dllm_v2", "stable_diffcoder"):
        model, ids = toy(family=family, device="cuda", dtype="float64"), tokens().cuda()
        at = torch.arange(8, 12, device="cuda").expand(2, -1)
        with torch.no_grad():
            whole, kv = model.hidden(ids, None, at), model.new_kv(2, 24)
            model.hidden(ids, None, at, kv=kv)
            part = model.hidden(ids, None, at, window=at, kv=kv)
        torch.testing.assert_close(part, whole)


def test_requests_share_prompts_and_get_the_same_answers():
    prompt = [5 + n % 11 for n in range(150)]
    for family in ("sdar", "llada2", "fast_dllm_v2"):
        model = toy(seed=3, family=family, device="cuda", dtype="float64")
        chosen = plan({"max_new_tokens": 24, "eos": "keep"}, model_properties(model))
        ids, holes = [*prompt, *[model.mask_id] * 24], [False] * 150 + [True] * 24
        found, shared = [], 0
        for call, store in itertools.product(
            (run_eagerly, Graphs()), (None, PrefixStore(model, 1 << 30))
        ):
            batcher = Batcher(model, rows=2, length=256, call=call, prefixes=store)
            shared = 0
            for _ in range(2):
                active = batcher.admit(Request(ids, holes, chosen))
                while batcher.busy:
                    batcher.step()
                assert active.error is None
                found.append(active.tokens)
                shared = active.shared
            assert (shared == 128) is (store is not None)
        assert all(tokens == found[0] for tokens in found)


def test_every_way_computes_the_same_experts():
    ways = [experts.all_experts, experts.padded_experts]
    if torch.cuda.get_device_capability() >= (9, 0):
        ways.append(experts.grouped_experts)
    for rows in (1, 32, 700):
        weights, x, chosen = weights_and_inputs(rows)
        expected = experts.looped_experts(weights, x, chosen).float()
        for way in ways:
            found = way(weights, x, chosen).float()
            torch.testing.assert_close(found, expected, rtol=0.02, atol=0.02)


def test_grouped_product_is_used_and_does_not_wait_for_the_device():
    if torch.cuda.get_device_capability() < (9, 0):
        return
    weights, x, chosen = weights_and_inputs(32)
    assert experts.can_group(x, weights.gate_up)
    weights(x, chosen)  # loads the kernels
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        weights(x, chosen)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_mixtures_are_captured_in_a_graph():
    for family in MIXTURES:
        for dtype in ("bf16", "float32"):
            model, ids = toy(family=family, device="cuda", dtype=dtype), tokens().cuda()
            at = torch.arange(24, device="cuda").expand(2, -1)
            with torch.no_grad():
                side = torch.cuda.Stream()
                with torch.cuda.stream(side):
                    model.hidden(ids, None, at)
                torch.cuda.current_stream().wait_stream(side)
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    captured = model.hidden(ids, None, at)
                ids.copy_(tokens().flip(1))
                graph.replay()
                torch.testing.assert_close(captured, model.hidden(ids, None, at))


if __name__ == "__main__":
    import script

    sys.exit(script.run(globals()))
