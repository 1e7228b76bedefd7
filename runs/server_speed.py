"""Measure a server with many clients, beside the same decode without a server.

    python runs/server_speed.py                                  # LLaDA-8B's shape on a GPU
    python runs/server_speed.py --compile --clients 1 8 32 64 --out server.json
    python runs/server_speed.py --model toy --device cpu --seconds 2 --clients 1 2

For each number of clients, the script starts a server with as many rows. Every client streams one
request after another. Each request fills its whole canvas, one token per step. The report has
tokens per second, and the p50 and p99 of the time to the first event and to the end. The same rows
are then decoded without a server: `share` is the server's tokens per second in % of these.

A shape, such as llada-8b-shape, has random weights and one token per byte.
Hardware: one CUDA GPU; 64 clients of LLaDA-8B's shape need 90 GB with the defaults. Cost: about a
minute for each number of clients.
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
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import torch
from load import Address, Answer, quantile

import wavefront
from wavefront.bench.machine import about
from wavefront.bench.model_shapes import SHAPES, random_model
from wavefront.bench.timing import summarise, time_piece
from wavefront.bench.workloads import Case, Cycle, new_batcher
from wavefront.engine.options import SPEEDS, resolve_cache
from wavefront.kernels.compile import compile_model
from wavefront.lm import LM
from wavefront.models.transformer import Transformer
from wavefront.text.byte_tokenizer import byte_tokenizer

STRATEGY = "wavefront(size=8, radius=2)"
SHAPE, CHANGES = "WAVEFRONT_SHAPE", "WAVEFRONT_SHAPE_CHANGES"  # environment of the server
READY_SECONDS = 300
PATIENCE = 300  # seconds; a slower request is an error


def random_shape(device: str | None = None, dtype: str | None = None) -> LM:
    """Return the model that the environment names. `wavefront serve` calls this."""
    changes = json.loads(os.environ.get(CHANGES, "{}"))
    model = random_model(os.environ[SHAPE], device=device, dtype=dtype, **changes)
    return LM(model, byte_tokenizer(), name=os.environ[SHAPE])


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


async def drive(url: str, clients: int, options: argparse.Namespace) -> dict[str, Any]:
    """Run the clients, and return what they saw after a first round that warms up."""
    host, port = url.removeprefix("http://").split(":")
    # Each client has an address of its own: a server shares its rows between addresses.
    addresses = [
        Address(host, int(port), f"127.0.{1 + n // 250}.{1 + n % 250}") for n in range(clients)
    ]
    body = {"prompt": "x" * options.prompt_tokens, "max_tokens": options.max_new_tokens}
    warm: list[RequestTimes] = []
    for _ in range(2):  # a step is captured at its second use
        soon = time.monotonic() + 0.01
        await asyncio.gather(*(one_client(one, body, soon, found=warm) for one in addresses))
    found: list[RequestTimes] = []
    began = time.monotonic()
    until = began + options.seconds
    await asyncio.gather(*(one_client(address, body, until, found=found) for address in addresses))
    # Requests overlap the end, so count each by the share of its time before the end.
    shares = [min(1.0, (until - one.began) / (one.ended - one.began)) for one in found]
    first = [one.first - one.began for one in found]
    whole = [one.ended - one.began for one in found]
    return {
        "requests": len(found),
        "tokens_per_s": options.max_new_tokens * sum(shares) / options.seconds,
        "first_event_p50_s": quantile(first, 0.5),
        "first_event_p99_s": quantile(first, 0.99),
        "end_p50_s": quantile(whole, 0.5),
        "end_p99_s": quantile(whole, 0.99),
    }


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
    command += ["--compile"] if options.compile else []
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr is not None
        try:
            yield wait_until_ready(process)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def wait_until_ready(process: subprocess.Popen[str]) -> str:
    """Return the URL of a server once it can answer.

    Raises:
        RuntimeError: The server has ended, or is not ready in time.
    """
    assert process.stderr is not None
    lines: list[str] = []
    while "http://" not in (lines[-1] if lines else ""):
        line = process.stderr.readline()
        if not line:
            raise RuntimeError("The server has ended:\n" + "".join(lines))
        lines.append(line)
    url = "http://" + lines[-1].split("http://")[1].split()[0].rstrip("/.")
    began = time.monotonic()
    while time.monotonic() - began < READY_SECONDS and process.poll() is None:
        try:
            if httpx.get(f"{url}/ready", timeout=5).status_code == 200:
                return url
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
    if options.model in SHAPES:
        model = random_model(options.model, device=options.device, **options.changes)
    else:
        model = wavefront.load(options.model, device=options.device).model
    assert isinstance(model, Transformer)
    if options.compile:
        compile_model(model)
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--model", default="llada-8b-shape", help="a shape, or any model")
    parser.add_argument("--changes", type=json.loads, default={}, help="of the shape, as JSON")
    parser.add_argument("--device")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 32, 64])
    parser.add_argument("--seconds", type=float, default=15.0, help="for each number of clients")
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--speed", default="fast", choices=tuple(SPEEDS))
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for clients in options.clients:
        began = time.monotonic()
        with serving(clients, options) as url:
            ready = time.monotonic() - began
            found = asyncio.run(drive(url, clients, options))
        rows.append({"clients": clients, "rows": clients, "ready_s": ready, **found})
        print(json.dumps(rows[-1]), flush=True)
    model = load(options)
    for row in rows:
        row["without_server_tokens_per_s"] = without_server(model, row["rows"], options)
        row["share_percent"] = 100 * row["tokens_per_s"] / row["without_server_tokens_per_s"]
        gc.collect()
        if model.device.type == "cuda":
            torch.cuda.empty_cache()
    names = ("tokens_per_s", "share_percent", "first_event_p50_s", "first_event_p99_s")
    print("clients", *names, "end_p50_s", "end_p99_s", sep="\t")
    for row in rows:
        cells = (f"{row[name]:.3g}" for name in (*names, "end_p50_s", "end_p99_s"))
        print(row["clients"], *cells, sep="\t")
    given = {name: value for name, value in vars(options).items() if name != "out"}
    report = {"about": about(model.device, model.dtype), "settings": given, "rows": rows}
    if options.out:
        options.out.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
