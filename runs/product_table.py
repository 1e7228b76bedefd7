"""Times and errors of products with quantised weights: ours, torch's and torchao's, side by side.

    python runs/product_table.py --out products.json          # one GPU, under a minute
    python runs/product_table.py --device cpu --tiny          # a check of every call, without a GPU
    python runs/product_table.py --only torchao --seconds 120 # some of them, with more time

torchao is no dependency: put an unpacked wheel on PYTHONPATH. `--mslk FOLDER` adds mslk, a library
that some of torchao's products need, to those only. What is missing or fails is listed with its
reason. Every product runs in a process of its own, so a failure ends only that
process. All processes prepare at the same time: they import, quantise, compile and capture. Then
they are timed in turns. A number is the time of the four products of a LLaDA-8B layer, or of its
head, in one CUDA graph over several copies of the weights, so that no weight is in the L2 cache.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import functools
import importlib
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wavefront.bench.timing import summarise
from wavefront.kernels import fp8_product, small_batch_ops
from wavefront.models.quantize import QuantizedLinear

LAYER = ((12288, 4096), (4096, 4096), (24576, 4096), (4096, 12288))  # qkv, out, gate and up, down
HEAD = ((126464, 4096),)
TINY = ((256, 256), (256, 256), (512, 256), (256, 512))
COPIES, ROUNDS, REPEATS = 2, 3, 20
GROUP = 64  # inputs of an int4 weight with one scale, as in our own format
AUTOTUNE = "max-autotune-no-cudagraphs"


class Job(NamedTuple):
    """Products that are timed together."""

    name: str
    shapes: tuple[tuple[int, int], ...]
    rows: int


JOBS = (
    Job("layer, 32 rows", LAYER, 32),
    Job("head, 32 rows", HEAD, 32),
    Job("layer, 1152 rows", LAYER, 1152),
)
TINY_JOBS = (Job("layer, 32 rows", TINY, 32), Job("layer, 96 rows", TINY, 96))


class Peer(NamedTuple):
    """A way to multiply: `make` turns a bfloat16 weight (N, K) into what `apply` multiplies by."""

    make: Callable[[Tensor], Any]
    apply: Callable[[Tensor, Any], Tensor]  # x (M, K) -> (M, N)
    mode: str | None = None  # of torch.compile; None: not compiled
    most_rows: int = 1 << 20


def _ours(kind: str) -> Callable[[Tensor], QuantizedLinear]:
    def make(weight: Tensor) -> QuantizedLinear:
        like = nn.Linear(
            weight.shape[1], weight.shape[0], bias=False, device=weight.device, dtype=weight.dtype
        )
        made = QuantizedLinear(kind, like)
        made.weight.copy_(weight)
        return made

    return make


def _call(x: Tensor, module: Any) -> Tensor:
    return module(x)


def _our_product(x: Tensor, weight: Tensor) -> Tensor:
    parts = small_batch_ops.product(x[None], weight)[:, 0]
    return parts[0] if len(parts) == 1 else parts.sum(0).to(x.dtype)


def _codes(weight: Tensor, largest: float) -> tuple[Tensor, Tensor]:
    """Return a weight divided by the scale of each row, and the scales (N, 1)."""
    scale = weight.float().abs().amax(1, keepdim=True).clamp_min(1e-12) / largest
    return weight.float() / scale, scale


def _make_int8(weight: Tensor) -> tuple[Tensor, Tensor]:
    codes, scale = _codes(weight, 127)
    return codes.round().to(torch.int8), scale.flatten()


def _int_mm(x: Tensor, parts: tuple[Tensor, Tensor]) -> Tensor:
    """Round every row of x to int8, one number each, and multiply with torch._int_mm."""
    rows, scale = _codes(x, 127)
    made = torch.ops.aten._int_mm(rows.round().to(torch.int8), parts[0].t())
    return (made.float() * scale * parts[1]).to(x.dtype)


def _make_fp8(weight: Tensor) -> tuple[Tensor, Tensor]:
    codes, scale = _codes(weight, fp8_product.E4M3_LARGEST)
    return codes.to(fp8_product.E4M3), scale.flatten()


def _scaled_mm(x: Tensor, parts: tuple[Tensor, Tensor]) -> Tensor:
    rows, row_scale = fp8_product.quantize_rows(x)
    scales = "rows" if x.is_cuda else None
    made = fp8_product.scaled_product(
        rows, parts[0], row_scale=row_scale, scale=parts[1], scales=scales
    )
    return made.to(x.dtype)


def _make_int4(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return the codes in torch's layout, and bfloat16 scales and middles (K / GROUP, N, 2)."""
    groups = weight.float().unflatten(1, (-1, GROUP))
    low = groups.amin(2, keepdim=True)
    step = ((groups.amax(2, keepdim=True) - low) / 15).clamp_min(1e-6)
    codes = ((groups - low) / step).round().clamp(0, 15).to(torch.int32).flatten(1)
    scales = torch.stack((step, low + 8 * step), -1)[:, :, 0].transpose(
        0, 1
    )  # code 8 is the middle
    scales = scales.contiguous().to(torch.bfloat16)
    if weight.is_cuda:
        pairs = (codes[:, ::2] << 4 | codes[:, 1::2]).to(torch.uint8)
        return torch.ops.aten._convert_weight_to_int4pack(pairs, 8), scales
    return torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes, 1), scales


def _int4_mm(x: Tensor, parts: tuple[Tensor, Tensor]) -> Tensor:
    ops = torch.ops.aten
    multiply = ops._weight_int4pack_mm if x.is_cuda else ops._weight_int4pack_mm_for_cpu
    return multiply(x, parts[0], GROUP, parts[1])


def _torchao(config: str, **options: Any) -> Callable[[Tensor], Tensor]:
    """Return a function that quantises with a config of torchao, whose names are given as text."""

    def make(weight: Tensor) -> Tensor:
        ao: Any = importlib.import_module("torchao.quantization")
        given = dict(options)
        if "granularity" in given:
            given["granularity"] = ao.granularity.PerRow()
        if "kernel_preference" in given:
            where = "torchao.quantization.quantize_.common.kernel_preference"
            kinds: Any = importlib.import_module(where)
            given["kernel_preference"] = kinds.KernelPreference(given["kernel_preference"])
        linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
        linear.weight = nn.Parameter(weight, requires_grad=False)
        holder = nn.Sequential(linear)
        ao.quantize_(holder, getattr(ao, config)(**given))
        found: Any = holder[0]
        if type(found.weight) is nn.Parameter:
            raise TypeError(f"torchao did not quantise a weight of {tuple(weight.shape)}")
        return found.weight.detach()

    return make


_INT8 = functools.partial(_torchao, "Int8WeightOnlyConfig", version=2)
_FP8 = functools.partial(_torchao, "Float8WeightOnlyConfig")
_FP8_INPUTS = functools.partial(
    _torchao, "Float8DynamicActivationFloat8WeightConfig", granularity="PerRow"
)
_INT4 = functools.partial(_torchao, "Int4WeightOnlyConfig")
PEERS: dict[str, Peer] = {
    "bfloat16, torch": Peer(lambda weight: weight.clone(), F.linear),
    "bfloat16, ours": Peer(
        lambda weight: weight.clone(), _our_product, "default", small_batch_ops.ROWS
    ),
    "int8, ours": Peer(_ours("int8"), _call, "default"),
    "fp8, ours": Peer(_ours("fp8"), _call, "default"),
    "int4, ours": Peer(_ours("int4"), _call, "default"),
    "int8, inputs in int8, torch._int_mm": Peer(_make_int8, _int_mm, "default"),
    "fp8, inputs in fp8, torch._scaled_mm": Peer(_make_fp8, _scaled_mm, "default"),
    "int4, torch._weight_int4pack_mm": Peer(_make_int4, _int4_mm),
    "int8, torchao weight-only": Peer(_INT8(), F.linear, "default"),
    "int8, torchao weight-only, autotuned": Peer(_INT8(), F.linear, AUTOTUNE, 64),
    "int8, torchao dynamic": Peer(
        _torchao("Int8DynamicActivationInt8WeightConfig", version=2), F.linear, "default"
    ),
    "fp8, torchao weight-only": Peer(_FP8(), F.linear, "default"),
    "fp8, torchao weight-only, autotuned": Peer(_FP8(), F.linear, AUTOTUNE, 64),
    "fp8, torchao dynamic": Peer(_FP8_INPUTS(kernel_preference="torch"), F.linear, "default"),
    "fp8, torchao dynamic (mslk)": Peer(_FP8_INPUTS(kernel_preference="mslk"), F.linear),
    "int4, torchao tile_packed_to_4d": Peer(
        _INT4(group_size=GROUP, int4_packing_format="tile_packed_to_4d"), F.linear
    ),
    "int4, torchao plain (mslk)": Peer(
        _INT4(group_size=128, int4_packing_format="plain"), F.linear
    ),
    "int4, torchao preshuffled (mslk)": Peer(
        _INT4(group_size=128, int4_packing_format="preshuffled"), F.linear
    ),
    "int4, inputs in fp8, torchao (mslk)": Peer(
        _torchao("Float8DynamicActivationInt4WeightConfig"), F.linear
    ),
}


class Prepared(NamedTuple):
    """A job that is ready to be timed."""

    replay: Callable[[], object]  # of all copies; it returns how many they are
    error: float  # the largest relative error of its products
    held: object  # the inputs and weights, whose memory a captured graph reads


def prepare(peer: Peer, job: Job, device: str) -> Prepared:
    """Quantise, compile and capture; compare the first copy with the unquantised product."""
    draw, apply = torch.Generator(device).manual_seed(0), peer.apply

    def normal(*shape: int) -> Tensor:
        made = torch.empty(shape, device=device, dtype=torch.bfloat16)
        return made.normal_(generator=draw)

    inputs = [normal(job.rows, depth) for _, depth in job.shapes]
    copies: list[list[Any]] = []
    wanted: list[Tensor] = []
    with one_at_a_time(device):
        for number in range(1 if job.shapes == HEAD else COPIES):
            copies.append([])
            for x, shape in zip(inputs, job.shapes, strict=True):
                weight = normal(*shape).mul_(0.02)
                if not number:
                    torch.set_float32_matmul_precision("highest")
                    wanted.append(x.float() @ weight.float().t())
                copies[-1].append(peer.make(weight))
                del weight

    def multiply(inputs: Sequence[Tensor], parts: Sequence[Any]) -> list[Tensor]:
        return [apply(x, part) for x, part in zip(inputs, parts, strict=True)]

    run = multiply
    if peer.mode and device == "cuda":
        run = torch.compile(multiply, dynamic=False, mode=peer.mode)
    found = run(inputs, copies[0])
    errors = [
        float((one.double() - other.double()).norm() / other.double().norm())
        for one, other in zip(found, wanted, strict=True)
    ]
    if any(one.dtype != torch.bfloat16 for one in found):
        raise TypeError("the result is not in bfloat16")
    del wanted, found

    def everything() -> None:
        for parts in copies:
            run(inputs, parts)

    if device == "cuda":
        everything = _captured(everything)
    held = (inputs, copies)
    return Prepared(lambda: (everything(), len(copies))[1], max(errors), held)


@contextlib.contextmanager
def one_at_a_time(device: str) -> Iterator[None]:
    """Let one process quantise at a time: all at once would need too much memory."""
    with open(__file__) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
        if device == "cuda":
            torch.cuda.synchronize()
            torch.cuda.empty_cache()


def _captured(work: Callable[[], object]) -> Callable[[], None]:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay


def samples(job: Prepared, device: str) -> list[float]:
    """Return the seconds of a layer or head, REPEATS times, after as many that do not count."""
    found: list[float] = []
    for number in range(2 * REPEATS if device == "cuda" else 3):
        if device == "cuda":
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            count = job.replay()
            end.record()
            torch.cuda.synchronize()
            seconds = begin.elapsed_time(end) / 1000
        else:
            began = time.perf_counter()
            count = job.replay()
            seconds = time.perf_counter() - began
        if number >= REPEATS or device != "cuda":
            found.append(seconds / int(str(count)))
    return found


@torch.no_grad()
def serve(name: str, options: argparse.Namespace) -> None:
    """Prepare one peer, say so, and answer every line of the input with times."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever a library prints must not mix with the answers
    peer, began = PEERS[name], time.monotonic()
    ready: dict[str, Prepared] = {}
    missing: dict[str, str] = {}
    for job in TINY_JOBS if options.tiny else JOBS:
        if job.rows > peer.most_rows:
            continue
        if ready and time.monotonic() - began > options.seconds / 2:
            missing[job.name] = "no time was left to prepare it"
            continue
        try:
            ready[job.name] = prepare(peer, job, options.device)
        except Exception as error:  # whatever a library raises is the reason
            missing[job.name] = reason_of(str(error) or type(error).__name__)
    errors = {job: one.error for job, one in ready.items()}
    print(json.dumps({"errors": errors, "missing": missing}), file=answers)
    for _ in sys.stdin:
        print(
            json.dumps({job: samples(one, options.device) for job, one in ready.items()}),
            file=answers,
        )


def reason_of(text: str) -> str:
    """Return the first line of an error, shortened."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0][:200] if lines else "no reason given"


class Process:
    """A process with one peer, and its answers."""

    def __init__(self, name: str, options: argparse.Namespace) -> None:
        self.name, self.lines = name, queue.Queue[str | None]()
        self.log: IO[str] = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the process
        given = {"TORCHINDUCTOR_COMPILE_THREADS": "4", "OMP_NUM_THREADS": "1", **os.environ}
        if options.mslk and "(mslk)" in name:
            given["PYTHONPATH"] = f"{options.mslk}{os.pathsep}{given.get('PYTHONPATH', '')}"
        self.process = subprocess.Popen(
            [sys.executable, *sys.argv, "--peer", name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            env=given,
        )
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put(None)

    def answer(self, seconds: float) -> dict[str, Any]:
        """Return the next answer.

        Raises:
            RuntimeError: The process ended, or did not answer in time.
        """
        try:
            line = self.lines.get(timeout=max(0.1, seconds))
        except queue.Empty:
            raise RuntimeError(f"it was not ready in time ({seconds:.0f} s more)") from None
        if line is None:
            self.log.seek(0)
            last = self.log.read().strip().splitlines()[-1:] or ["no reason given"]
            raise RuntimeError(f"the process ended: {last[0][:200]}")
        return json.loads(line)

    def ask(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("time\n")
        self.process.stdin.flush()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self.reader.join(timeout=5)
        for file in (self.process.stdin, self.process.stdout, self.log):
            with contextlib.suppress(OSError):
                if file is not None:
                    file.close()


class Table:
    """The numbers so far."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.errors: dict[str, dict[str, float]] = {}
        self.missing: dict[str, dict[str, str]] = {}
        self.seconds: dict[str, dict[str, list[float]]] = {}

    def miss(self, name: str, job: str, reason: str) -> None:
        self.missing.setdefault(name, {})[job] = reason
        print(f"missing: {name}, {job}: {reason}", flush=True)

    def row(self, name: str, job: str) -> str:
        timing = summarise(self.seconds[name][job])
        micro = [1e6 * one for one in (timing.median, timing.low, timing.high)]
        number = "{:.1f} [{:.1f}, {:.1f}]".format(*micro)
        return f"| {name} | {job} | {number} | {100 * self.errors[name][job]:.3f} |"

    def save(self) -> None:
        if self.options.out is None:
            return
        found = {
            "torch": torch.__version__,
            "device": torch.cuda.get_device_name() if self.options.device == "cuda" else "cpu",
            "rows": [
                {
                    "peer": name,
                    "job": job,
                    "error": self.errors[name][job],
                    **summarise(seconds)._asdict(),
                }
                for name, jobs in self.seconds.items()
                for job, seconds in jobs.items()
            ],
            "missing": self.missing,
        }
        self.options.out.write_text(json.dumps(found, indent=1) + "\n")


def compare(options: argparse.Namespace) -> int:
    """Run all peers, print a row for each as soon as it is known, and return the exit status."""
    began = time.monotonic()
    names = [name for name in PEERS if not options.only or any(w in name for w in options.only)]
    table = Table(options)
    processes = [Process(name, options) for name in names]
    try:
        ready: list[Process] = []
        for one in processes:
            try:
                found = one.answer(began + options.seconds - time.monotonic())
            except RuntimeError as error:
                table.miss(one.name, "all", str(error))
                one.end()
                continue
            for job, reason in found["missing"].items():
                table.miss(one.name, job, reason)
            table.errors[one.name] = found["errors"]
            if found["errors"]:
                ready.append(one)
        print(f"ready after {time.monotonic() - began:.0f} s: {len(ready)} of {len(names)}")
        print("| product | work | µs | error % |\n|---|---|---|---|", flush=True)
        for number in range(ROUNDS):
            for one in list(ready):
                one.ask()
                try:
                    found = one.answer(20)
                except RuntimeError as error:
                    table.miss(one.name, "all", str(error))
                    one.end()
                    ready.remove(one)
                    continue
                for job, seconds in found.items():
                    table.seconds.setdefault(one.name, {}).setdefault(job, []).extend(seconds)
                    if number == ROUNDS - 1:
                        print(table.row(one.name, job), flush=True)
            table.save()
    finally:
        for one in processes:
            one.end()
    print(f"{time.monotonic() - began:.0f} s")
    return 0 if ready else 1


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare products with quantised weights.")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="small matrices, to check the calls")
    parser.add_argument("--only", action="append", help="peers whose name contains this")
    parser.add_argument(
        "--seconds", type=float, default=45, help="to prepare; what is not ready then is missing"
    )
    parser.add_argument("--mslk", type=Path, help="a folder with an unpacked mslk")
    parser.add_argument("--out", type=Path, help="write the numbers as JSON after every round")
    parser.add_argument("--peer", choices=PEERS, help=argparse.SUPPRESS)  # as a process of its own
    options = parser.parse_args()
    if options.peer:
        serve(options.peer, options)
        return 0
    return compare(options)


if __name__ == "__main__":
    sys.exit(main())
