"""Compiled steps: the same results as eager, no graph breaks, few kernels."""

from __future__ import annotations

import os
import random
import re

import pytest
import torch
from helpers.captured import Static
from torch._dynamo.utils import counters

from wavefront.core.masks import distance, near, rank, smallest, to_mask, write_at
from wavefront.core.reading import WIDE, Sampling, read
from wavefront.engine.batcher import CapturedBatchers
from wavefront.engine.session import begin
from wavefront.kernels import compile
from wavefront.models.toy import toy

PROMPTS = [[5, 6, 7], [8, 9, 10, 11, 12], [20]]
SPECS = (
    "wavefront",
    "standard",
    "block(size=4)",
    "wavefront(grow='accumulate', selector=entropy_bound(gamma=0.1))",
    "left_to_right",
    "standard(selector=dream())",
    "adablock(size=4, delimiters=(7, 8))",
    "dsb(size=6)",
    "dcd(masks=4)",
    "rcr(size=8)",
    "tbd(size=8, drop=2, min_kept=2)",
    "tide(cascade_rounds=3, horizon=6, selector=threshold(tau=0.3))",
    "tide(cascade_rounds=0, horizon=0, revisable_band=4, remask_below=0.5, "
    "selector=threshold(tau=0.3))",
)
CACHES = ("wave(refresh=4, size=20, near=2)", "dual(refresh=6)", "prefix(refresh=6)")


def board():
    """(200, 20): scores full of ties, NaN and infinities, and three masks, some of them empty."""
    rng, odd = random.Random(0), (float("nan"), float("-inf"), float("inf"), 0.0, -0.0, 0.5, 0.25)
    scores = torch.tensor([[rng.choice(odd) for _ in range(20)] for _ in range(200)])
    shares = torch.tensor([rng.choice((0.0, 0.3, 0.7, 1.0)) for _ in range(200)])[:, None]
    draw = torch.Generator().manual_seed(1)
    among, then = (torch.rand(200, 20, generator=draw) < shares for _ in range(2))
    return scores, among, then


def test_compiled_ordering_equals_sorting():
    scores, among, then = board()
    keys = torch.randint(0, 9, (200, 20), generator=torch.Generator().manual_seed(2))

    def every():
        return (
            rank(scores, among),
            rank(scores, among, then),
            smallest(keys, 7),
            smallest(keys, 20),
            to_mask(keys[:, :5], 12),
            write_at(scores, keys.argsort()[:, :6], scores[:, 3:9]),
            write_at(keys, keys.argsort(), keys.flip(-1)),
            near(among, 3),
            near(among[:, :2], 7),
            near(among, 99),
            distance(among).clamp(max=20),
        )

    base = every()
    made = torch.compile(every, dynamic=False, backend="eager", fullgraph=True)()
    for one, two in zip(base, made, strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=0, equal_nan=True)


def compared(model, strategy, **options):
    """Decoded as it stands, and again by a compiled twin of the weights; the same steps."""
    given = {"max_new_tokens": 24, "strategy": strategy, "seed": 3, **options}
    plain = begin(model, PROMPTS, given, record=True)  # a recorded decode keeps finished rows
    base = [(s.canvas.tokens, s.decision.commit, s.view.score) for s in plain]
    twin = toy(family=model.family, dtype="float64")
    twin.compiled = True
    steps = begin(twin, PROMPTS, given, captured=CapturedBatchers(twin, graphs=Static))
    made = [(s.canvas.tokens, s.decision.commit, s.view.score) for s in steps]
    assert len(base) == len(made)
    for one, two in zip(base, made, strict=True):
        assert torch.equal(one[0], two[0])
        assert torch.equal(one[1], two[1])
        torch.testing.assert_close(one[2], two[2], equal_nan=True)


@pytest.fixture
def traced(monkeypatch):
    """Everything is traced as it would be compiled, and then run as it stands: no C compiler."""
    monkeypatch.setattr(compile, "BACKEND", "eager")
    torch._dynamo.reset()
    counters.clear()
    with torch._dynamo.config.patch(recompile_limit=compile.RECOMPILES):
        yield
    assert counters["stats"]["unique_graphs"]
    assert not counters["graph_break"], dict(counters["graph_break"])
    torch._dynamo.reset()


@pytest.mark.slow
@pytest.mark.parametrize("strategy", SPECS)
def test_compiled_strategy_decodes_like_eager_without_graph_breaks(traced, strategy):
    compared(toy(dtype="float64"), strategy)
    compared(toy(dtype="float64"), strategy, temperature=0.9, eos="stop", steps=12)


@pytest.mark.slow
@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("family", ["llada", "dream"])
def test_compiled_cache_decodes_like_eager(traced, family, cache):
    compared(toy(family=family, dtype="float64"), "wavefront", cache=cache)


@pytest.mark.slow
@pytest.mark.parametrize(
    "family",
    ["llada2", *(pytest.param(name, marks=pytest.mark.slow) for name in ("sdar", "sdar_moe"))],
)
def test_compiled_block_step_decodes_like_eager(traced, family, monkeypatch):
    """Attention by block and experts are one graph too, with the exact cache."""
    options = {"max_new_tokens": 8, "eos": "keep"}
    for lag in (0, 1):  # the second decode also uses graphs of the first
        monkeypatch.setattr("wavefront.engine.batcher.flag_lag", lambda model, lag=lag: lag)
        compared(toy(family=family, dtype="float64"), "standard", **options)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, when it loads inductor
def test_compiled_step_launches_few_kernels():
    from torch._inductor import metrics

    torch._dynamo.reset()
    metrics.reset()
    model = toy(dtype="float64")
    compared(model, "wavefront")
    # Of one step: what opens and closes the forward, the choice of positions, all that follows.
    assert metrics.generated_kernel_count <= 47
    before = metrics.generated_kernel_count
    compared(model, "wavefront", cache="wave(refresh=64, size=20, near=2)")
    assert metrics.generated_kernel_count - before <= 83  # a full step and a window
    torch._dynamo.reset()


@pytest.mark.slow
@pytest.mark.parametrize("cache", [None, CACHES[0]])
def test_compiled_step_does_not_sort_or_scatter(monkeypatch, cache):
    """Neither fuses; and what the host is told is one tensor made in the compiled step."""
    seen: list[str] = []

    def backend(graph, examples):
        seen.extend(str(node.target) for node in graph.graph.nodes)
        return graph

    monkeypatch.setattr(compile, "BACKEND", backend)
    torch._dynamo.reset()
    compared(toy(dtype="float64"), "wavefront", cache=cache)
    assert any("stack" in name for name in seen)
    assert not [name for name in seen if "scatter" in name or "sort" in name]
    torch._dynamo.reset()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiled_layer_fuses_its_additions_with_its_norms():
    """Between its products: two norms, what turns and splits the heads, and the gate."""
    from torch._inductor.utils import run_and_get_code

    model = toy(dtype="float64")
    tokens = torch.arange(10)[None]
    base = model.raw_logits(tokens)
    torch._dynamo.reset()
    for block in model.layers:
        block.compile(dynamic=False)
    made, codes = run_and_get_code(model.raw_logits, tokens)
    torch.testing.assert_close(made, base)
    assert len(codes) == 1, "one code for the first block and the others"
    kernels = re.findall(r"^ +cpp_fused_(\w+)\(", codes[0], re.MULTILINE)
    assert len(kernels) == 4, kernels
    assert "rsqrt" in kernels[0]
    assert "add" in kernels[0]
    torch._dynamo.reset()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiled_statistics_need_no_copy_of_the_logits():
    from torch._inductor.utils import run_and_get_code

    size, own = WIDE + 100, torch.zeros(1, 6, dtype=torch.long)
    logits = torch.randn(6, size, generator=torch.Generator().manual_seed(0)).bfloat16()

    def reading(logits):
        given = {
            "vocab_size": size,
            "mask_id": 7,
            "sampling": Sampling(),
            "needs": ("current_logp",),
        }
        return read(lambda chunk: logits[chunk], None, own, **given)

    torch._dynamo.reset()
    made, codes = run_and_get_code(torch.compile(reading, dynamic=False), logits)
    base = reading(logits)
    assert torch.equal(made.proposal, base.proposal)
    torch.testing.assert_close(made.logp, base.logp)
    torch.testing.assert_close(made.current_logp, base.current_logp)
    held = re.findall(r"empty_strided_cpu\(\(([^)]*)\)", codes[0])
    assert max(int(n) for shape in held for n in shape.split(",") if n.strip()) < 1000, held
    torch._dynamo.reset()


@pytest.mark.parametrize("given", ["", "torch's own"])
def test_compiled_code_is_kept_in_a_directory_of_the_user(monkeypatch, tmp_path, given):
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    # torch sets the variable to a temporary directory when its compiler is imported.
    monkeypatch.setenv(compile.CACHE_VARIABLE, default_cache_dir() if given else "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    compile.use_cache_directory()
    kept = tmp_path / "wavefront" / "compiled"
    assert os.environ[compile.CACHE_VARIABLE] == str(kept)
    assert kept.stat().st_mode & 0o077 == 0  # others may not write what we run
    monkeypatch.setenv(compile.CACHE_VARIABLE, str(tmp_path / "chosen"))
    compile.use_cache_directory()
    assert compile.cache_directory() == tmp_path / "chosen"
    assert not (tmp_path / "chosen").exists()  # torch makes it


def test_directory_that_cannot_be_made_is_left_to_torch(monkeypatch, tmp_path):
    monkeypatch.delenv(compile.CACHE_VARIABLE, raising=False)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    compile.use_cache_directory()
    assert compile.CACHE_VARIABLE not in os.environ


def test_least_recently_used_files_are_deleted_first(tmp_path):
    for age, name in enumerate(("new", "old", "older")):
        path = tmp_path / name / "code"
        path.parent.mkdir()
        path.write_bytes(bytes(100))
        os.utime(path, (1000 - age, 1000 - age))

    def left():
        return sorted(path.parent.name for path in tmp_path.glob("*/code"))

    compile.prune(tmp_path, 300)
    assert left() == ["new", "old", "older"]
    compile.prune(tmp_path, 250)
    assert left() == ["new", "old"]
    compile.prune(tmp_path, 99)
    assert left() == []
    compile.prune(tmp_path / "missing", 0)
