"""Load: many clients on a server of the toy model, some of them rude; what was lost or mixed.

    python runs/load.py --clients 200 --seconds 120

Clients stream, do not stream, go away, cancel, and read slowly, at random. Every answer that is
finished is held against what the model says alone. Memory of both processes is sampled.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx

KINDS: tuple[dict[str, Any], ...] = (
    {"max_tokens": 8},
    {"max_tokens": 16, "schedule": "block(size=4)"},
    {"max_tokens": 24, "steps": 8, "schedule": "standard"},
    {"max_tokens": 12, "temperature": 0.8, "seed": 5},
    {"max_tokens": 16, "schedule": "tide(take=threshold(tau=0.3))"},
)
PROMPTS = tuple(f"Client {n} says" for n in range(8))
RUDE = ("leave", "cancel", "slow", "half")


class Tally:
    """What happened."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.rejected: list[float] = []
        self.answered: list[float] = []
        self.problems: list[str] = []
        self.memory: dict[str, list[float]] = {"server": [], "decoder": []}

    def problem(self, text: str) -> None:
        self.counts["problems"] += 1
        if len(self.problems) < 20:
            self.problems.append(text)


def expected() -> dict[tuple[int, int], str]:
    """Every answer, by the library alone."""
    import wavefront

    lm = wavefront.load("toy")
    texts = {}
    for p, prompt in enumerate(PROMPTS):
        for k, kind in enumerate(KINDS):
            options = {"max_new_tokens" if n == "max_tokens" else n: v for n, v in kind.items()}
            texts[p, k] = lm.generate(prompt, raw=True, eos="stop", **options).text
    return texts


async def one_client(
    number: int, client: httpx.AsyncClient, tally: Tally, wanted: dict[Any, str], until: float
) -> None:
    dice = random.Random(number)
    while time.monotonic() < until:
        p, k = dice.randrange(len(PROMPTS)), dice.randrange(len(KINDS))
        body = {"prompt": PROMPTS[p], "user": str(number), **KINDS[k]}
        manner = dice.choice(RUDE) if dice.random() < 0.25 else dice.choice(("stream", "whole"))
        begun = time.monotonic()
        try:
            status, text = await MANNERS[manner](client, body, dice)
        except httpx.HTTPError as error:
            tally.problem(f"{manner}: {type(error).__name__} {error}")
            continue
        took = time.monotonic() - begun
        tally.counts[f"{manner} {status}"] += 1
        if status == 429:
            tally.rejected.append(took)
            await asyncio.sleep(dice.uniform(0.5, 1.5))
        elif status == 200 and text is not None:
            tally.answered.append(took)
            if text != wanted[p, k]:
                tally.problem(f"{manner}: {body} gave {text!r}, not {wanted[p, k]!r}")
        elif status != 200 and text is not None:
            tally.problem(f"{manner}: {status} {text[:200]}")


async def whole(client: httpx.AsyncClient, body: dict[str, Any], dice: Any) -> Any:
    answer = await client.post("/v1/completions", json=body)
    if answer.status_code != 200:
        return answer.status_code, answer.text
    return 200, answer.json()["choices"][0]["text"]


async def stream(
    client: httpx.AsyncClient, body: dict[str, Any], dice: Any, pause: float = 0.0
) -> Any:
    text, done = "", False
    asked = {**body, "stream": True}
    async with client.stream("POST", "/v1/completions", json=asked) as answer:
        if answer.status_code != 200:
            return answer.status_code, (await answer.aread()).decode()
        async for line in answer.aiter_lines():
            if pause:
                await asyncio.sleep(pause)
            if line == "data: [DONE]":
                done = True
            elif line.startswith("data: "):
                chunk = json.loads(line[6:])
                if "error" in chunk:
                    return 500, line
                text += chunk["choices"][0]["text"]
    return (200, text) if done else (599, "a stream without an end")


async def slow(client: httpx.AsyncClient, body: dict[str, Any], dice: Any) -> Any:
    return await stream(client, body, dice, pause=0.2)


async def leave(client: httpx.AsyncClient, body: dict[str, Any], dice: Any) -> Any:
    """Go away before the answer."""
    try:
        await asyncio.wait_for(whole(client, body, dice), dice.uniform(0.01, 0.3))
    except TimeoutError:
        return 0, None
    return 200, None


async def half(client: httpx.AsyncClient, body: dict[str, Any], dice: Any) -> Any:
    """Go away in the middle of a stream."""
    asked = {**body, "stream": True}
    async with client.stream("POST", "/v1/completions", json=asked) as answer:
        async for _ in answer.aiter_lines():
            if dice.random() < 0.4:
                break
        return answer.status_code if answer.status_code == 429 else 0, None


async def cancel(client: httpx.AsyncClient, body: dict[str, Any], dice: Any) -> Any:
    """Begin a decode for a viewer, and cancel it."""
    answer = await client.post("/v1/wavefront/decodes", json=body)
    if answer.status_code != 202:
        return answer.status_code, None if answer.status_code == 429 else answer.text
    await asyncio.sleep(dice.uniform(0, 0.2))
    gone = await client.delete(f"/v1/wavefront/decodes/{answer.json()['id']}")
    return (0, None) if gone.status_code == 204 else (gone.status_code, gone.text)


MANNERS = {"whole": whole, "stream": stream, "slow": slow, "leave": leave}
MANNERS |= {"half": half, "cancel": cancel}


def resident(pid: int) -> float:
    """MiB of a process."""
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) / 1024 if found else 0.0


def decoder_of(pid: int) -> int:
    children = [
        one for f in Path(f"/proc/{pid}/task").glob("*/children") for one in f.read_text().split()
    ]
    return next(
        int(c) for c in children if b"spawn_main" in Path(f"/proc/{c}/cmdline").read_bytes()
    )


async def drive(url: str, pid: int, clients: int, seconds: float) -> Tally:
    tally, wanted = Tally(), expected()
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=clients)
    async with httpx.AsyncClient(base_url=url, timeout=120, limits=limits) as client:
        until = time.monotonic() + seconds

        async def sample() -> None:
            decoder = decoder_of(pid)
            while True:
                tally.memory["server"].append(resident(pid))
                tally.memory["decoder"].append(resident(decoder))
                await asyncio.sleep(1)

        sampling = asyncio.create_task(sample())
        await asyncio.gather(*(one_client(n, client, tally, wanted, until) for n in range(clients)))
        sampling.cancel()
        # All is quiet again: nothing may be left in the server.
        for _ in range(600):
            text = (await client.get("/metrics")).text
            left = sum(map(float, re.findall(r"^wavefront:num_requests_\w+ (\S+)$", text, re.M)))
            if not left:
                break
            await asyncio.sleep(0.1)
        else:
            tally.problem(f"{left:g} requests were never ended")
    return tally


def quantile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def report(tally: Tally, arguments: argparse.Namespace) -> dict[str, Any]:
    def memory(name: str) -> dict[str, float]:
        found = tally.memory[name]
        third = max(1, len(found) // 3)
        late = max(found[-third:])
        return {
            "at third": round(max(found[:third])),
            "end": round(late),
            "peak": round(max(found)),
        }

    return {
        "clients": arguments.clients,
        "seconds": arguments.seconds,
        "rows": arguments.rows,
        "queue": arguments.queue,
        "answers checked": len(tally.answered),
        "answers a second": round(len(tally.answered) / arguments.seconds, 1),
        "lost or mixed": tally.counts["problems"],
        "rejected": len(tally.rejected),
        "rejected p50 ms": round(1000 * quantile(tally.rejected, 0.5), 1),
        "rejected p99 ms": round(1000 * quantile(tally.rejected, 0.99), 1),
        "answered p50 s": round(quantile(tally.answered, 0.5), 2),
        "answered p99 s": round(quantile(tally.answered, 0.99), 2),
        "server MiB": memory("server"),
        "decoder MiB": memory("decoder"),
        "counts": dict(sorted(tally.counts.items())),
        "problems": tally.problems,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}",
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--queue", type=int, default=64)
    arguments = parser.parse_args()
    shape = ["--rows", str(arguments.rows), "--queue", str(arguments.queue), "--threads", "1"]
    command = [sys.executable, "-m", "wavefront", "serve", "-m", "toy", "--port", "0", *shape]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        url = process.stderr.readline().split()[-1]
        try:
            while httpx.get(f"{url}/ready").status_code != 200:
                time.sleep(0.2)
            tally = asyncio.run(drive(url, process.pid, arguments.clients, arguments.seconds))
        finally:
            process.send_signal(signal.SIGTERM)
            code = process.wait(60)
    found = report(tally, arguments) | {"exit code": code}
    print(json.dumps(found, indent=2))
    return 1 if tally.counts["problems"] or code else 0


if __name__ == "__main__":
    sys.exit(main())
