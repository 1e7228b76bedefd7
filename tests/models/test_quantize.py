"""Quantised weights: numbers, layers, checkpoints and memory."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import nn

import wavefront
import wavefront.storage.checkpoint
from wavefront import bench
from wavefront.bench.model_shapes import LLADA2_MINI
from wavefront.core.errors import CheckpointError, OptionError
from wavefront.kernels import fp8_product
from wavefront.models import quantize
from wavefront.models.loader import (
    check_memory,
    families,
    find_family,
    free_cuda_memory,
    load_model,
    memory_problem,
    save_checkpoint,
)
from wavefront.models.quantize import (
    KINDS,
    QuantizedLinear,
    QuantizedWeight,
    quantization_of,
    quantize_model,
)
from wavefront.models.toy import toy
from wavefront.storage.hub import builtin_checkpoints
from wavefront.train.config import DataConfig, TrainConfig
from wavefront.train.export import build_model

# The largest relative error of normally distributed weights: half a step of 254, of a float with
# 3 bits of mantissa, and of 15 steps in a group.
ERRORS = {"int8": 0.01, "fp8": 0.03, "int4": 0.1}


def matrix(rows: int = 96, columns: int = 200, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)) * 0.02


def error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found.double() - wanted.double()).norm() / wanted.double().norm())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("columns", [64, 128, 200, 384])
def test_dequantised_weight_is_close_to_the_original(kind: str, columns: int) -> None:
    weight = matrix(columns=columns)
    made = QuantizedWeight.of(weight, kind)
    assert made.dequantize(torch.float32).shape == weight.shape
    assert 1e-4 < error(made.dequantize(torch.float32), weight) < ERRORS[kind]
    # One byte a number and four a row; or half a byte, and four bytes for 64 padded columns.
    padded = -(-columns // 128) * 128
    row = columns + 4 if kind != "int4" else padded // 2 + padded // 64 * 4
    assert made.bytes == weight.shape[0] * row


@pytest.mark.parametrize("kind", KINDS)
def test_every_number_is_within_half_a_step_of_the_original(kind: str) -> None:
    weight = matrix(columns=256)
    off = (QuantizedWeight.of(weight, kind).dequantize(torch.float32) - weight).abs()
    if kind == "int4":
        groups = weight.unflatten(1, (-1, 64))
        step = (groups.amax(2) - groups.amin(2)).repeat_interleave(64, 1) / 15
    elif kind == "int8":
        step = weight.abs().amax(1, keepdim=True) / 127
    else:  # 3 bits of mantissa, and a smallest step of 2^-9 of the scale
        step = weight.abs() / 8 + weight.abs().amax(1, keepdim=True) / 448 / 512
    assert (off <= 0.51 * step + 1e-5 * weight.abs().max()).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("value", [0.0, 1e-30, 3.5])
def test_constant_rows_survive(kind: str, value: float) -> None:
    weight = torch.full((4, 70), value)
    found = QuantizedWeight.of(weight, kind).dequantize(torch.float32)
    assert torch.allclose(found, weight, rtol=1e-3, atol=1e-7)


def test_bits_of_fp8_give_the_numbers_that_torch_gives() -> None:
    codes = torch.tensor([code for code in range(256) if code & 127 != 127], dtype=torch.uint8)
    weight = QuantizedWeight("fp8", (1, len(codes)), codes[None], torch.ones(1))
    assert torch.equal(weight.dequantize(torch.float32)[0], codes.view(torch.float8_e4m3fn).float())


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_of_rows_quantise_as_the_whole_matrix(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight, x = matrix(), torch.randn(2, 7, 200)
    whole = QuantizedWeight.of(weight, kind)
    wanted = F.linear(x, whole.dequantize(torch.float32))
    monkeypatch.setattr(quantize, "QUANTIZE_BLOCK", 1000)
    monkeypatch.setattr(quantize, "CPU_BLOCK", 1000)
    small = QuantizedWeight.of(weight, kind)
    for one, two in zip(whole.tensors("").values(), small.tensors("").values(), strict=True):
        assert torch.equal(one.contiguous().view(torch.uint8), two.contiguous().view(torch.uint8))
    assert torch.allclose(quantize.product(x, small), wanted, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_slices_of_rows_share_the_memory(kind: str) -> None:
    whole = QuantizedWeight.empty(kind, (96, 200), "cpu")
    weight = matrix()
    for part, rows in zip(whole.split([32, 16, 48]), weight.split([32, 16, 48]), strict=True):
        part.copy_(rows)
    assert torch.equal(
        whole.dequantize(torch.float32), QuantizedWeight.of(weight, kind).dequantize(torch.float32)
    )


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_linear_computes_with_the_dequantised_weight(kind: str, bias: bool) -> None:
    plain = nn.Linear(200, 96, bias=bias)
    made = QuantizedLinear(kind, plain)
    made.weight.copy_(plain.weight.detach())
    for dtype in (torch.float32, torch.bfloat16):
        linear, x = made.to(dtype), torch.randn(2, 5, 200, dtype=dtype)
        # Each shape has its own product: how a library rounds may depend on the number of rows.
        for rows in (x, x[0]):
            wanted = F.linear(rows, made.weight.dequantize(dtype))
            wanted = wanted if linear.bias is None else wanted + linear.bias
            assert torch.equal(linear(rows), wanted)


@pytest.mark.parametrize("kind", KINDS)
def test_a_change_of_the_dtype_keeps_codes_and_scales(kind: str) -> None:
    linear = QuantizedLinear(kind, nn.Linear(128, 64))
    linear.weight.copy_(matrix(64, 128))
    before = linear.weight.dequantize(torch.float32)
    half = linear.half()
    assert half.bias is not None
    assert half.bias.dtype == torch.float16
    assert torch.equal(half.weight.dequantize(torch.float32), before)


@pytest.mark.parametrize("scales", [None, "matrix", "rows"])
def test_fp8_product_is_close_to_the_product(scales: str | None) -> None:
    """torch computes fp8 products on a CPU too, so all three ways run here."""
    weight, x = matrix(64, 128), torch.randn(2, 70, 128, dtype=torch.bfloat16)
    made = QuantizedWeight.of(weight, "fp8")
    (found,) = fp8_product.parts(x, made.codes, made.scale, scales=scales)
    assert found.dtype == x.dtype
    assert error(found, x.float() @ weight.T) < 0.05
    # A row does not depend on the other rows.
    (alone,) = fp8_product.parts(x[:1], made.codes, made.scale, scales=scales)
    assert torch.equal(found[:1], alone)


def test_fp8_product_needs_bfloat16_and_whole_tiles() -> None:
    codes = torch.empty(64, 128, dtype=torch.uint8)
    x = torch.empty(2, 64, 128, dtype=torch.bfloat16)
    assert fp8_product.fits(x, codes)
    assert fp8_product.fits(x[:, :1], codes)  # any number of rows, so that batches change nothing
    assert not fp8_product.fits(x.float(), codes)
    assert not fp8_product.fits(x, codes[:60])  # no whole tiles
    assert fp8_product.hardware_scales(torch.device("cpu")) is None


# Models and checkpoints.


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", families())
def test_quantised_model_computes_with_its_dequantised_weights(family: str, kind: str) -> None:
    model, plain = toy(family=family, width=128), toy(family=family, width=128)
    quantize_model(model, kind)
    assert (quantization_of(model), quantization_of(plain)) == (kind, None)
    for name, part in model.weights().items():
        if isinstance(part, QuantizedWeight):
            plain.published_weights()[name].copy_(part.dequantize(torch.float32))
    ids = [list(range(40))]
    assert torch.allclose(model.raw_logits(ids), plain.raw_logits(ids), atol=1e-4)
    assert isinstance(model.output, QuantizedLinear)
    assert model.output.kind == ("int8" if kind == "int4" else kind)
    assert model.embedding.weight.dtype == torch.float32


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, when it compiles
@pytest.mark.parametrize("kind", KINDS)
def test_layers_compile_without_a_graph_break(kind: str) -> None:
    model = toy(width=128)
    quantize_model(model, kind)
    ids = torch.arange(40)[None]
    with torch.no_grad():
        eager = model.encode(ids)
        for layer in model.layers:
            layer.compile(backend="eager", fullgraph=True)
        assert torch.equal(model.encode(ids), eager)


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bfloat16 checkpoint of a random model."""
    directory = tmp_path_factory.mktemp("dense")
    save_checkpoint(toy(family="dream", width=128), directory, dtype="bfloat16")
    return directory


@pytest.mark.parametrize("kind", KINDS)
def test_quantised_checkpoint_loads_again_without_the_option(
    dense: Path, tmp_path: Path, kind: str
) -> None:
    model = load_model(dense, device="cpu", quantize=kind)
    assert quantization_of(model) == kind
    save_checkpoint(model, tmp_path)
    again = load_model(tmp_path, device="cpu")
    same = load_model(tmp_path, device="cpu", quantize=kind)
    assert quantization_of(again) == kind
    ids = [list(range(40))]
    assert torch.equal(again.raw_logits(ids), model.raw_logits(ids))
    assert torch.equal(same.raw_logits(ids), model.raw_logits(ids))
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["quantization"] == {"weights": kind, "storage_only": False}


@pytest.mark.parametrize("storage", KINDS)
def test_stored_in_8_bits_runs_unquantised(dense: Path, tmp_path: Path, storage: str) -> None:
    plain = load_model(dense, device="cpu")
    save_checkpoint(plain, tmp_path, dtype="float16", storage=storage)
    model = load_model(tmp_path, device="cpu")
    assert (quantization_of(model), model.dtype) == (None, torch.float32)
    weights = plain.published_weights()  # pyright: ignore[reportAttributeAccessIssue]
    for name, part in model.published_weights().items():  # pyright: ignore
        assert part.dim() == 1 or error(part, weights[name]) < ERRORS[storage]
    assert wavefront.storage.checkpoint.open_checkpoint(tmp_path).dtype is torch.float16
    running = load_model(tmp_path, device="cpu", quantize="int8")
    assert quantization_of(running) == "int8"


def test_int8_storage_runs_in_int8_with_the_same_codes(dense: Path, tmp_path: Path) -> None:
    save_checkpoint(load_model(dense, device="cpu"), tmp_path, storage="int8")
    stored = load_file(tmp_path / "model.safetensors")
    model = load_model(tmp_path, device="cpu", quantize="int8")
    name = "model.layers.0.mlp.down_proj.weight"
    assert torch.equal(model.published_weights()[name], stored[name])  # pyright: ignore


def test_another_quantisation_of_a_quantised_checkpoint_is_refused(
    dense: Path, tmp_path: Path
) -> None:
    save_checkpoint(load_model(dense, device="cpu", quantize="int8"), tmp_path)
    with pytest.raises(OptionError, match=r"holds int8 weights.*quantize='int4'") as caught:
        load_model(tmp_path, device="cpu", quantize="int4")
    assert caught.value.option == "quantize"
    with pytest.raises(OptionError, match="already in int8"):
        save_checkpoint(load_model(tmp_path, device="cpu"), tmp_path / "b", storage="int8")


def test_bench_and_training_refuse_quantised_weights(dense: Path, tmp_path: Path) -> None:
    save_checkpoint(load_model(dense, device="cpu", quantize="int8"), tmp_path)
    tokenizer = builtin_checkpoints()["ripple"]
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((tokenizer / name).read_bytes())
    with pytest.raises(OptionError, match=r"bench cannot measure .*: its weights are in int8"):
        bench.load_model(str(tmp_path), device="cpu")
    config = TrainConfig(
        out=tmp_path / "run", data=DataConfig(tokenizer=tokenizer), init=tmp_path, steps=1
    )
    with pytest.raises(CheckpointError, match="holds int8 weights; training needs the unquant"):
        build_model(config, torch.device("cpu"))


@pytest.mark.parametrize("name", ["int5", "INT8", "", 8])
def test_unknown_quantisation_is_refused(dense: Path, name: str) -> None:
    with pytest.raises(OptionError, match=r"no quantisation .*known: int8, fp8, int4"):
        load_model(dense, device="cpu", quantize=name)
    with pytest.raises(OptionError, match="no quantisation"):
        wavefront.load("toy", quantize=name)


@pytest.mark.parametrize(
    "value",
    ["int8", [], {"weights": "gptq"}, {"weights": "int8", "storage_only": 1}, {"bits": 8},
     {"weights": "int8", "storage_only": True, "group": 32}],
)  # fmt: skip
def test_unknown_quantisation_in_a_config_is_refused(
    dense: Path, tmp_path: Path, value: object
) -> None:
    save_checkpoint(load_model(dense, device="cpu"), tmp_path, storage="int8")
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"quantization": value}))
    with pytest.raises(CheckpointError, match=r"quantization = .* is not supported; use weights"):
        load_model(tmp_path, device="cpu")


def test_quantised_tensors_without_the_config_key_are_refused(dense: Path, tmp_path: Path) -> None:
    save_checkpoint(load_model(dense, device="cpu"), tmp_path, storage="int8")
    config = json.loads((tmp_path / "config.json").read_text())
    del config["quantization"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r"which config.json does not describe|stored as I8"):
        load_model(tmp_path, device="cpu")


@pytest.mark.parametrize("kind", KINDS)
def test_missing_or_misshapen_scales_are_refused(dense: Path, tmp_path: Path, kind: str) -> None:
    save_checkpoint(load_model(dense, device="cpu", quantize=kind), tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    name = "model.layers.1.mlp.up_proj.weight.scale"
    short = {**tensors, name: tensors[name][:-1].clone()}
    for damaged in (short, {key: part for key, part in tensors.items() if key != name}):
        save_file(damaged, tmp_path / "model.safetensors")
        with pytest.raises(CheckpointError, match=r"up_proj\.weight.*is quantised, but.*scale"):
            load_model(tmp_path, device="cpu")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("kind", KINDS)
def test_nan_in_the_weights_is_refused_when_quantising(
    dense: Path, tmp_path: Path, kind: str, value: float
) -> None:
    (tmp_path / "config.json").write_bytes((dense / "config.json").read_bytes())
    tensors = load_file(dense / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.weight"][3, 5] = value
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"up_proj\.weight.*holds NaN"):
        load_model(tmp_path, device="cpu", quantize=kind)


# Traces and answers tell quantised from unquantised weights.


def test_trace_names_the_quantisation() -> None:
    for kind in (None, "int8"):
        answer = wavefront.load("toy", quantize=kind).generate(
            "Hello", max_new_tokens=4, trace=True
        )
        assert answer.trace is not None
        assert answer.trace.about["quantize"] == kind


# Memory.

# Load a small model first, for imports; then watch the memory that no file backs.
MEASURE = """
import sys, threading
from wavefront.models.loader import load_model

def held():
    lines = open("/proc/self/status").read().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))

def watch():
    while not done.wait(0.001):
        peaks.append(held())

directory, small, kind = sys.argv[1:]
load_model(small, device="cpu", dtype="bfloat16", quantize=kind)
peaks, done, before = [], threading.Event(), held()
watcher = threading.Thread(target=watch)
watcher.start()
model = load_model(directory, device="cpu", dtype="bfloat16", quantize=None if {plain} else kind)
done.set()
watcher.join()
size = sum(part.numel() * part.element_size() for part in (*model.parameters(), *model.buffers()))
print(size, max(peaks) - before, len(peaks))
"""
CONSTANT = 48 << 20  # bytes: the temporaries of one block of rows, and the allocator's own


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A bfloat16 checkpoint of 270 MB in four shards, and the bytes of its largest tensor."""
    directory = tmp_path_factory.mktemp("sharded")
    model = toy(family="dream", width=1024, layers=14, vocab_size=4096, dtype="bfloat16")
    save_checkpoint(model, directory)
    tensors = load_file(directory / "model.safetensors")
    (directory / "model.safetensors").unlink()
    where = {name: f"part{number % 4}.safetensors" for number, name in enumerate(sorted(tensors))}
    for shard in set(where.values()):
        kept = {name: part for name, part in tensors.items() if where[name] == shard}
        save_file(kept, directory / shard)
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    return directory, max(part.numel() * part.element_size() for part in tensors.values())


def measured(directory: Path, small: Path, kind: str, *, plain: bool = False) -> list[int]:
    """Return the bytes of the loaded model, the most memory while it was loaded, and samples."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURE.replace("{plain}", str(plain)), directory, small, kind],
        check=True,
        capture_output=True,
        text=True,
    )
    return [int(number) for number in done.stdout.split()]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_loading_never_holds_the_unquantised_model(
    sharded: tuple[Path, int], dense: Path, kind: str
) -> None:
    directory, largest = sharded
    size, peak, samples = measured(directory, dense, kind)
    print(f"{kind}: {size / 1e6:.0f} MB, peak {peak / 1e6:.0f} MB in {samples} samples")
    assert samples > 20
    assert 0.9 * size < peak < size + largest + CONSTANT
    unquantised, peak, _ = measured(directory, dense, kind, plain=True)
    assert peak > 0.9 * unquantised > size + largest + CONSTANT  # the measure sees such a model


# The arithmetic of the error, without a GPU.


def llada_8b() -> nn.Module:
    """The published sizes, without memory."""
    from wavefront.models.families.llada import Config, Net

    return Net(
        Config(
            vocab_size=126464, width=4096, layers=32, heads=32, kv_heads=32, mlp_width=12288,
            theta=5e5, eps=1e-5, qkv_bias=False, tied=False, rotary_float32=True, mask_id=126336,
            pad_id=126081, stop_ids=(126081,), max_length=4096,
        )
    )  # fmt: skip


@pytest.mark.parametrize(
    ("dtype", "kind", "free", "wanted"),
    [
        ("bfloat16", None, 16.1, None),
        ("bfloat16", None, 11.2, "need 16.0 GB in bfloat16, and X: use quantize='int8' (8.5 GB)."),
        ("bfloat16", None, 8.0, "need 16.0 GB in bfloat16, and X: use quantize='int4' (5.5 GB)."),
        ("bfloat16", None, 4.0,
         "need 16.0 GB in bfloat16, and X: even quantize='int4' needs 5.5 GB, so use a smaller "
         "model."),
        ("bfloat16", "int8", 8.6, None),
        ("bfloat16", "fp8", 8.0, "need 8.5 GB in fp8, and X: use quantize='int4' (5.5 GB)."),
        ("bfloat16", "int4", 5.0, "need 5.5 GB in int4, and X: use a smaller model."),
        ("float32", None, 20.0, "need 32.1 GB in float32, and X: use dtype='bfloat16' (16.0 GB)."),
    ],
)  # fmt: skip
def test_memory_error_names_the_next_smaller_option(
    dtype: str, kind: str | None, free: float, wanted: str | None
) -> None:
    found = memory_problem(llada_8b(), getattr(torch, dtype), kind, memory=int(free * 1e9))
    assert found == (None if wanted is None else f"The weights {wanted.replace('X', '{memory}')}")


def test_memory_error_says_that_experts_are_not_quantised() -> None:
    family = find_family(LLADA2_MINI)
    model = family.Net(family.Config.from_json(LLADA2_MINI))
    found = memory_problem(model, torch.bfloat16, "int4", memory=int(12e9))
    assert found is not None
    assert re.search(r"experts are not quantised and need \d\d\.\d GB in bfloat16\.$", found)
    assert "experts" not in str(memory_problem(model, torch.bfloat16, None, memory=int(32.3e9)))


@pytest.mark.parametrize(
    ("count", "said"), [(1, ""), (2, " A model is not split over several GPUs.")]
)
def test_memory_error_says_that_several_gpus_do_not_help(
    monkeypatch: pytest.MonkeyPatch, count: int, said: str
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr("wavefront.models.loader.free_cuda_memory", lambda device: int(11.2e9))
    with pytest.raises(CheckpointError) as caught:
        check_memory(llada_8b(), torch.bfloat16, None, device=torch.device("cuda"))
    assert str(caught.value) == (
        "The weights need 16.0 GB in bfloat16, and 11.2 GB are free on cuda: use quantize='int8' "
        f"(8.5 GB).{said}"
    )
    check_memory(llada_8b(), torch.bfloat16, "int8", device=torch.device("cuda"))


@pytest.mark.parametrize(("share", "wanted"), [(1.0, 11), (0.25, 4)])
def test_free_memory_counts_cached_blocks_and_the_limit_of_the_process(
    monkeypatch: pytest.MonkeyPatch, share: float, wanted: int
) -> None:
    """A GPU of 24 bytes: 10 are free, 3 are cached and 2 of them are used."""

    def fraction(index: int) -> float:
        assert type(index) is int  # torch refuses a device without an index
        return share

    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: (10, 24))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda index: 2)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda index: 3)
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", fraction)
    assert free_cuda_memory(torch.device("cuda")) == wanted
