"""Measure a server with many clients, beside the same decode without a server.

    python runs/server_speed.py --out server.json                # LLaDA-8B's shape on a GPU
    python runs/server_speed.py --compile --clients 1 8 32 64 --out server.json
    python runs/server_speed.py --quantize int8 --bench server.json --clients 64
    python runs/server_speed.py --model toy --device cpu --seconds 2 --clients 1 2

The script first decodes batches of as many rows as there will be clients, without a server. Then
it starts a server with as many rows for each number of clients. Every client streams one request
after another. Each request fills its whole canvas, one token per step. The report has tokens per
second, and the p50 and p99 of the time to the first event and to the end. `share_percent` is the
server's tokens per second in % of those without a server.

Requests before the timed period warm the server up: `warm_up_s` says how long this takes. `--out`
is written after every row. `--bench` takes the rows without a server from an earlier --out file.

A shape, such as llada-8b-shape, has random weights and one token per byte.
Hardware: one CUDA GPU; 64 clients of LLaDA-8B's shape need 90 GB with the defaults. Cost: about a
minute for each number of clients, and more with --compile.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import torch
from load import Address, Answer, quantile

import wavefront
from wavefront.bench.machine import about
from wavefront.bench.model_shapes import SHAPES, shape_lm
from wavefront.bench.timing import summarise, time_piece
from wavefront.bench.workloads import Case, Cycle, new_batcher
from wavefront.engine.options import SPEEDS, resolve_cache
from wavefront.kernels.compile import compile_model
from wavefront.lm import LM
from wavefront.models.transformer import Transformer
from wavefront.text.byte_tokenizer import byte_tokenizer
from wavefront.text.tokenizer import Tokenizer

STRATEGY = "wavefront(size=8, radius=2)"
SHAPE, CHANGES = "WAVEFRONT_SHAPE", "WAVEFRONT_SHAPE_CHANGES"  # environment of the server
READY_SECONDS = 540  # a compiled model takes minutes
PATIENCE = 300  # seconds; a slower request is an error
WARM_UP_REQUESTS = 2  # of every client
COLUMNS = (
    *("tokens_per_s", "share_percent", "first_event_p50_s", "first_event_p99_s"),
    *("end_p50_s", "end_p99_s"),
)


def random_shape(
    device: str | None = None,
    dtype: str | None = None,
    quantize: str | None = None,
    *,
    tokenizer_only: bool = False,
) -> LM | Tokenizer:
    """Return the model that the environment names, or its tokenizer. `serve` calls this."""
    if tokenizer_only:
        return byte_tokenizer()
    changes = json.loads(os.environ.get(CHANGES, "{}"))
    return shape_lm(os.environ[SHAPE], device=device, dtype=dtype, quantize=quantize, **changes)


class RequestTimes(NamedTuple):
    """When a request began, had its first event and ended, in seconds."""

    began: float
    first: float
    ended: float


async def one_request(address: Address, body: dict[str, Any]) -> RequestTimes:
    """Stream one request to its end."""
    began = time.monotonic()
    first, rest = 0.0, b""
    async with Answer(address, "/v1/completions", {**body, "stream": True}) as answer:
        if answer.status != 200:
            raise RuntimeError(f"The server answered {answer.status}: {await answer.read()}")
        async for piece in answer.pieces():
            *lines, rest = (rest + piece).split(b"\n\n")
            for line in lines:
                if line.startswith(b"data: ") and not first:
                    first = time.monotonic()
                if b'"error"' in line:
                    raise RuntimeError(line.decode())
                if line == b"data: [DONE]":
                    return RequestTimes(began, first, time.monotonic())
    raise RuntimeError("The stream has no end.")


async def one_client(
    address: Address, body: dict[str, Any], until: float, *, found: list[RequestTimes]
) -> None:
    """Send requests one after another; the last one begins before `until`."""
    while time.monotonic() < until:
        async with asyncio.timeout(PATIENCE):
            found.append(await one_request(address, body))


async def warm_up(addresses: list[Address], body: dict[str, Any]) -> None:
    """Send requests together, then again with delays, so that they begin at different steps."""

    async def late(number: int, address: Address) -> None:
        await asyncio.sleep(0.02 * number)
        await one_request(address, body)

    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(*(one_request(address, body) for address in addresses))
        for _ in range(WARM_UP_REQUESTS - 1):
            await asyncio.gather(*(late(n, address) for n, address in enumerate(addresses)))


async def drive(url: str, clients: int, options: argparse.Namespace) -> dict[str, Any]:
    """Run the clients, and return what they saw after the warm-up."""
    host, port = url.removeprefix("http://").split(":")
    # Each client has an address of its own: a server shares its rows between addresses.
    addresses = [
        Address(host, int(port), f"127.0.{1 + n // 250}.{1 + n % 250}") for n in range(clients)
    ]
    body = {"prompt": "x" * options.prompt_tokens, "max_tokens": options.max_new_tokens}
    began = time.monotonic()
    await warm_up(addresses, body)
    found: list[RequestTimes] = []
    warm = time.monotonic()
    until = warm + options.seconds
    await asyncio.gather(*(one_client(address, body, until, found=found) for address in addresses))
    # Requests overlap the end, so count each by the share of its time before the end.
    shares = [min(1.0, (until - one.began) / (one.ended - one.began)) for one in found]
    first = [one.first - one.began for one in found]
    whole = [one.ended - one.began for one in found]
    return {
        "warm_up_s": warm - began,
        "requests": len(found),
        "tokens_per_s": options.max_new_tokens * sum(shares) / options.seconds,
        "first_event_p50_s": quantile(first, 0.5),
        "first_event_p99_s": quantile(first, 0.99),
        "end_p50_s": quantile(whole, 0.5),
        "end_p99_s": quantile(whole, 0.99),
    }


class ServerLog:
    """The standard error of a server, read by a thread so that the server never waits for it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.lines: deque[str] = deque(maxlen=200)
        self.url: str | None = None
        self.has_url = threading.Event()
        threading.Thread(target=self._read, args=(process,), daemon=True).start()

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stderr is not None
        for line in process.stderr:
            self.lines.append(line)
            if self.url is None and "http://" in line:
                self.url = "http://" + line.split("http://")[1].split()[0].rstrip("/.")
                self.has_url.set()
            elif self.url is not None:
                print(f"server: {line.rstrip()}", file=sys.stderr, flush=True)
        self.has_url.set()


@contextmanager
def serving(rows: int, options: argparse.Namespace) -> Iterator[str]:
    """Run a server with this many rows, and give its URL."""
    length = options.prompt_tokens + options.max_new_tokens
    shape = options.model in SHAPES
    here = str(Path(__file__).resolve().parent)
    paths = [here, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    environment |= {SHAPE: options.model, CHANGES: json.dumps(options.changes)}
    command = [sys.executable, "-m", "wavefront", "serve", "--port", "0", "--no-page"]
    command += ["-m", "server_speed:random_shape" if shape else options.model]
    command += ["--rows", str(rows), "--queue", str(2 * rows), "--max-length", str(length)]
    command += ["--strategy", STRATEGY, "--eos", "keep", "--steps", str(options.max_new_tokens)]
    command += ["--speed", options.speed, "--batch-shape", "fixed"]
    command += [] if options.device is None else ["--device", options.device]
    command += [] if options.quantize is None else ["--quantize", options.quantize]
    command += ["--compile"] if options.compile else []
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        log = ServerLog(process)
        try:
            yield wait_until_ready(process, log)
        except Exception:
            print("".join(log.lines), file=sys.stderr, flush=True)
            raise
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()


def wait_until_ready(process: subprocess.Popen[str], log: ServerLog) -> str:
    """Return the URL of a server once it can answer.

    Raises:
        RuntimeError: The server has ended, or is not ready in time.
    """
    began = time.monotonic()
    log.has_url.wait(READY_SECONDS)
    if log.url is None:
        raise RuntimeError("The server has ended, or has not printed its URL.")
    while time.monotonic() - began < READY_SECONDS and process.poll() is None:
        try:
            if httpx.get(f"{log.url}/ready", timeout=5).status_code == 200:
                return log.url
        except httpx.HTTPError:
            pass
        time.sleep(0.2)
    raise RuntimeError(f"The server is not ready after {time.monotonic() - began:.0f} s.")


def without_server(model: Transformer, rows: int, options: argparse.Namespace) -> float:
    """Return the tokens per second of the same decode in a batch of as many rows."""
    case = Case(model, options.prompt_tokens, options.max_new_tokens, rows, STRATEGY)
    policy = resolve_cache(SPEEDS[options.speed].cache)
    captured = True if options.compile else None
    batcher = new_batcher(case, policy, captured=captured)
    piece = Cycle(case, batcher, min(32, options.max_new_tokens - 1))
    with torch.no_grad():
        seconds = [time_piece(model.device, piece) for _ in range(2 + options.repeats)]
    return rows / summarise(seconds[2:]).median


def load(options: argparse.Namespace) -> Transformer:
    """Return the model for the decode without a server."""
    chosen = {"device": options.device, "quantize": options.quantize}
    if options.model in SHAPES:
        model = shape_lm(options.model, **chosen, **options.changes).model
    else:
        model = wavefront.load(options.model, **chosen, speed=options.speed).model
    assert isinstance(model, Transformer)
    if options.compile:
        compile_model(model)
    return model


class BenchRates(NamedTuple):
    """Tokens per second without a server by the number of rows, and where they were measured."""

    rates: dict[int, float]
    about: dict[str, Any]


def bench_rates(options: argparse.Namespace) -> BenchRates:
    """Measure the decode without a server, or read an earlier measurement."""
    if options.bench is not None:
        report = json.loads(options.bench.read_text())
        found = {row["rows"]: row["without_server_tokens_per_s"] for row in report["rows"]}
        return BenchRates(found, report["about"])
    model = load(options)
    found = {}
    for rows in options.clients:
        found[rows] = without_server(model, rows, options)
        print(json.dumps({"rows": rows, "without_server_tokens_per_s": found[rows]}), flush=True)
        release_memory(model.device)
    where = about(model.device, model.dtype)
    device = model.device
    del model
    release_memory(device)  # the servers need it
    return BenchRates(found, where)


def release_memory(device: torch.device) -> None:
    """Return the memory of deleted batches and models to the GPU."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def write(rows: list[dict[str, Any]], rates: BenchRates, options: argparse.Namespace) -> None:
    """Write the report so far."""
    if options.out is None:
        return
    given = {k: str(v) if isinstance(v, Path) else v for k, v in vars(options).items()}
    done = {row["rows"] for row in rows}
    # Rows without their server, so that an interrupted run can be continued with --bench.
    left = [
        {"rows": rows, "without_server_tokens_per_s": rate}
        for rows, rate in rates.rates.items()
        if rows not in done
    ]
    report = {"about": rates.about, "settings": given, "rows": [*rows, *left]}
    options.out.write_text(json.dumps(report, indent=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--model", default="llada-8b-shape", help="a shape, or any model")
    parser.add_argument("--changes", type=json.loads, default={}, help="of the shape, as JSON")
    parser.add_argument("--device")
    parser.add_argument("--quantize", help="int8, fp8 or int4")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 32, 64])
    parser.add_argument("--seconds", type=float, default=15.0, help="for each number of clients")
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--speed", default="fast", choices=tuple(SPEEDS))
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--bench", type=Path, help="an earlier --out file, for its rates")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rates = bench_rates(options)
    rows: list[dict[str, Any]] = []
    write(rows, rates, options)
    for clients in options.clients:
        began = time.monotonic()
        with serving(clients, options) as url:
            ready = time.monotonic() - began
            found = asyncio.run(drive(url, clients, options))
        row = {"clients": clients, "rows": clients, "ready_s": ready, **found}
        if clients in rates.rates:
            row["without_server_tokens_per_s"] = rates.rates[clients]
            row["share_percent"] = 100 * row["tokens_per_s"] / rates.rates[clients]
        rows.append(row)
        print(json.dumps(row), flush=True)
        write(rows, rates, options)
    print("clients", *COLUMNS, sep="\t")
    for row in rows:
        cells = (f"{row[name]:.3g}" if name in row else "" for name in COLUMNS)
        print(row["clients"], *cells, sep="\t", flush=True)


if __name__ == "__main__":
    main()
