"""Load-test a server of the toy model with many clients, some of them misbehaving.

    python runs/load.py --clients 200 --seconds 120
    python runs/load.py --clients 200 --seconds 120 --queue 200 --hostile 0.1
    python runs/load.py --clients 60 --seconds 120 --replicas 2 --kill 20

Clients stream, wait, disconnect, cancel and read slowly, at random. Every finished answer is
compared with the one the library gives alone. The script samples the memory of the server and of
its decode processes. `--kill N` sends SIGKILL to one of the replicas every N seconds.

With `--hostile 0.1`, a tenth of the clients send hostile requests: extreme options, 1 MB prompts,
incomplete bodies, early disconnects, slow readers, and half headers and unfinished bodies on
connections that stay open. The others only stream and wait. Periods with
and without hostile clients alternate, and the report compares them.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
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
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx

KINDS: tuple[dict[str, Any], ...] = (
    {"max_tokens": 8},
    {"max_tokens": 16, "strategy": "block(size=4)"},
    {"max_tokens": 24, "steps": 8, "strategy": "standard"},
    {"max_tokens": 12, "temperature": 0.8, "seed": 5},
    {
        "max_tokens": 16,
        "strategy": "tide(cascade_rounds=0, horizon=0, selector=threshold(tau=0.3))",
    },
)
PROMPTS = tuple(f"Client {n} says" for n in range(8))
PATIENCE = 90  # seconds; a slower request counts as lost
BROKEN = 598  # our status for a stream whose replica was lost
MISBEHAVIOURS = ("leave", "cancel", "slow", "half")
HOSTILITIES = ("extreme", "flood", "stump", "leave", "half", "slow", "headers", "bodies")
HELD = 8  # connections that a hostile client holds open at the same time
# Short, but its expression would be very long.
NESTED: dict[str, Any] = {"type": "string"}
for _ in range(30):
    NESTED = {"type": "array", "items": NESTED}
EXTREMES: tuple[dict[str, Any], ...] = (
    {"strategy": "tide(cascade_rounds=8, horizon=64, risk=1e300, selector=threshold(tau=0.98))"},
    {"strategy": f"tide(cascade_rounds={10**9}, horizon=64, selector=threshold(tau=0.98))"},
    {"strategy": f"block(size={2**30 + 1})"},
    {"strategy": f"wavefront(size={2**30 + 1}, radius=2)"},
    {"strategy": f"block(size={10**31})"},
    {"strategy": f"wavefront(size={10**31})"},
    {"strategy": "tide(cascade_rounds=0, horizon=99999999999999999999, selector=quota())"},
    {"max_tokens": 2**31 - 1},
    {"steps": 2**31 - 1},
    {"stop": ["x" * 256] * 4, "speculate": 8, "cfg_scale": 100},
    {"temperature": 1e-300, "top_p": 1e-300},
    {"cache": f"wave(refresh={10**31})"},
    {"regex": "(a?){5000}a{5000}"},
    {"regex": "[a-z ]{0,6000}"},
    {"choices": ["x" * 4000] * 30},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": NESTED}}},
    {"logit_bias": {str(n): 1 for n in range(2000)}},
    {"n": 10**9},
)
ROUNDS = 3  # each without and then with hostile clients
MAX_SLOWDOWN = 2.0  # maximum factor by which hostile clients may raise the p99 of good requests


class LoadResult:
    """Counts and times of a load test."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.rejected: list[float] = []
        self.answered: list[float] = []
        self.undisturbed: list[float] = []  # answered while there were no hostile clients
        self.problems: list[str] = []
        self.kills = 0
        self.back: list[float] = []  # seconds until the replica was replaced
        self.lag: list[float] = []  # seconds by which this script was late
        self.memory: dict[str, list[float]] = {"server": [], "decoder": []}

    def problem(self, text: str) -> None:
        self.counts["problems"] += 1
        if len(self.problems) < 20:
            self.problems.append(text)


def expected() -> dict[tuple[int, int], str]:
    """Return every expected answer, decoded by the library alone."""
    import wavefront

    lm = wavefront.load("toy")
    texts = {}
    for p, prompt in enumerate(PROMPTS):
        for k, kind in enumerate(KINDS):
            options = {"max_new_tokens" if n == "max_tokens" else n: v for n, v in kind.items()}
            texts[p, k] = lm.generate(prompt, raw=True, eos="stop", **options).text
    return texts


async def hostile_client(number: int, server: Server, tally: LoadResult, until: float) -> None:
    """Send hostile requests. They must not affect the answers of other clients."""
    dice = random.Random(number)
    address = server.seen_from(number)
    while time.monotonic() < until:
        manner = dice.choice(HOSTILITIES)
        body = {"prompt": dice.choice(PROMPTS), **dice.choice(KINDS)}
        with contextlib.suppress(OSError, EOFError, ValueError):
            async with asyncio.timeout(PATIENCE):
                status, _ = await MANNERS[manner](address, body, dice)
                tally.counts[f"hostile {manner} {status}"] += 1
        await asyncio.sleep(dice.uniform(0.05, 0.5))


async def good_client(
    number: int, server: Server, times: list[float], tally: LoadResult, until: float
) -> None:
    """Send ordinary requests one after another, and check the answers."""
    dice = random.Random(number)
    address = server.seen_from(number)
    while time.monotonic() < until:
        p, k = dice.randrange(len(PROMPTS)), dice.randrange(len(KINDS))
        manner = dice.choice(("stream", "whole"))
        begun = time.monotonic()
        try:
            async with asyncio.timeout(PATIENCE):
                status, text = await MANNERS[manner](
                    address, {"prompt": PROMPTS[p], **KINDS[k]}, dice
                )
        except (OSError, EOFError, ValueError) as error:
            tally.problem(f"{manner}: {type(error).__name__} {error}")
            continue
        times.append(time.monotonic() - begun)
        tally.counts[f"{manner} {status}"] += 1
        if (status, text) != (200, server.wanted[p, k]):
            tally.problem(f"{manner}: {status} {str(text)[:200]}, not {server.wanted[p, k]!r}")


async def with_and_without_hostility(
    server: Server, tally: LoadResult, arguments: argparse.Namespace
) -> None:
    """Alternate between good clients alone, and good clients among hostile ones."""
    hostile = max(1, round(arguments.clients * arguments.hostile))
    numbers = range(arguments.clients)
    for turn in range(2 * ROUNDS):
        until = time.monotonic() + arguments.seconds / ROUNDS
        times = tally.answered if turn % 2 else tally.undisturbed
        clients = [good_client(n, server, times, tally, until) for n in numbers[hostile:]]
        if turn % 2:
            clients += [hostile_client(n, server, tally, until) for n in numbers[:hostile]]
        await asyncio.gather(*clients)


class Server(NamedTuple):
    """The address of the server, and the answers that the library gives alone."""

    host: str
    port: int
    wanted: dict[tuple[int, int], str]

    def seen_from(self, client: int) -> Address:
        """Return the address of the server, and a separate address for a client."""
        return Address(self.host, self.port, f"127.0.{1 + client // 250}.{1 + client % 250}")


class Address(NamedTuple):
    """The address of the server, and the one that a connection comes from."""

    host: str
    port: int
    own: str

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a connection."""
        return await asyncio.open_connection(self.host, self.port, local_addr=(self.own, 0))


async def one_client(number: int, server: Server, tally: LoadResult, until: float) -> None:
    dice = random.Random(number)
    address, wanted = server.seen_from(number), server.wanted
    while time.monotonic() < until:
        p, k = dice.randrange(len(PROMPTS)), dice.randrange(len(KINDS))
        body = {"prompt": PROMPTS[p], "user": str(number), **KINDS[k]}
        manner = (
            dice.choice(MISBEHAVIOURS) if dice.random() < 0.25 else dice.choice(("stream", "whole"))
        )
        begun = time.monotonic()
        try:
            async with asyncio.timeout(PATIENCE):
                status, text = await MANNERS[manner](address, body, dice)
        except (OSError, EOFError, ValueError) as error:
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
        elif status == BROKEN and tally.kills:
            tally.counts["streams broken off"] += 1
        elif status != 200 and text is not None:
            tally.problem(f"{manner}: {status} {text[:200]}")


class Answer:
    """Send a request on its own connection, with little client overhead."""

    def __init__(self, address: Address, path: str, body: Any, method: str = "POST") -> None:
        data = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: {address.host}\r\nConnection: close\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        self.address, self.request = address, head.encode() + data

    async def __aenter__(self) -> Answer:
        self.reader, self.writer = await self.address.connect()
        self.writer.write(self.request)
        head = await self.reader.readuntil(b"\r\n\r\n")
        self.status = int(head.split()[1])
        self.chunked = b"transfer-encoding: chunked" in head.lower()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.close()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()

    async def pieces(self) -> AsyncIterator[bytes]:
        while self.chunked:
            size = int(await self.reader.readline() or b"-1", 16)
            if size < 0:
                raise ConnectionError("the answer broke off")
            piece = await self.reader.readexactly(size + 2)
            if not size:
                return
            yield piece[:-2]
        yield await self.reader.read()

    async def read(self) -> str:
        return b"".join([piece async for piece in self.pieces()]).decode()


async def whole(address: Any, body: dict[str, Any], dice: Any) -> Any:
    async with Answer(address, "/v1/completions", body) as answer:
        text = await answer.read()
    if answer.status != 200:
        return answer.status, text
    return 200, json.loads(text)["choices"][0]["text"]


async def stream(address: Any, body: dict[str, Any], dice: Any, pause: float = 0.0) -> Any:
    text, rest = "", b""
    async with Answer(address, "/v1/completions", {**body, "stream": True}) as answer:
        if answer.status != 200:
            return answer.status, await answer.read()
        async for piece in answer.pieces():
            if pause:
                await asyncio.sleep(pause)
            *lines, rest = (rest + piece).split(b"\n\n")
            for line in lines:
                if line == b"data: [DONE]":
                    return 200, text
                if line.startswith(b"data: "):
                    chunk = json.loads(line[6:])
                    if "error" in chunk:
                        lost = chunk["error"]["code"] == "engine_down"
                        return BROKEN if lost else 500, line.decode()
                    text += chunk["choices"][0]["text"]
    return 599, "a stream without an end"


async def slow(address: Any, body: dict[str, Any], dice: Any) -> Any:
    return await stream(address, body, dice, pause=0.2)


async def leave(address: Any, body: dict[str, Any], dice: Any) -> Any:
    """Disconnect before the answer."""
    try:
        status, _ = await asyncio.wait_for(whole(address, body, dice), dice.uniform(0.01, 0.3))
    except TimeoutError:
        return 0, None
    return status, None


async def half(address: Any, body: dict[str, Any], dice: Any) -> Any:
    """Disconnect in the middle of a stream."""
    async with Answer(address, "/v1/completions", {**body, "stream": True}) as answer:
        async for _ in answer.pieces():
            if dice.random() < 0.4:
                break
        return answer.status if answer.status == 429 else 0, None


async def cancel(address: Any, body: dict[str, Any], dice: Any) -> Any:
    """Start a viewer decode, and cancel it."""
    async with Answer(address, "/v1/wavefront/decodes", body) as answer:
        text = await answer.read()
    if answer.status != 202:
        return answer.status, None if answer.status == 429 else text
    await asyncio.sleep(dice.uniform(0, 0.2))
    path = f"/v1/wavefront/decodes/{json.loads(text)['id']}"
    async with Answer(address, path, None, method="DELETE") as gone:
        return (0, None) if gone.status == 204 else (gone.status, "not cancelled")


async def extreme(address: Any, body: dict[str, Any], dice: Any) -> Any:
    """Request options that no model supports."""
    return await whole(address, {**body, **dice.choice(EXTREMES)}, dice)


async def flood(address: Any, body: dict[str, Any], dice: Any) -> Any:
    """Send a prompt of almost 1 MB."""
    return await whole(address, {**body, "prompt": "word " * 200_000}, dice)


async def stump(address: Any, body: dict[str, Any], dice: Any) -> Any:
    """Send half of a body, and disconnect."""
    request = Answer(address, "/v1/completions", {**body, "prompt": "x" * 2000}).request
    _, writer = await address.connect()
    writer.write(request[: len(request) // 2])
    await asyncio.sleep(dice.uniform(0, 1))
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return 0, None


async def headers(address: Any, body: dict[str, Any], dice: Any) -> Any:
    """Hold connections open whose headers never end."""
    request = Answer(address, "/v1/completions", body).request
    return await hold(address, request[: request.index(b"\r\n\r\n")], dice)


async def bodies(address: Any, body: dict[str, Any], dice: Any) -> Any:
    """Hold connections open whose bodies never end."""
    request = Answer(address, "/v1/completions", {**body, "prompt": "x" * 100_000}).request
    return await hold(address, request[:-1], dice)


async def hold(address: Any, start: bytes, dice: Any) -> tuple[int, None]:
    """Send the start of a request on several connections, and hold them open for a while."""
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(HELD):
            _, writer = await address.connect()
            stack.callback(writer.close)
            writer.write(start)
        await asyncio.sleep(dice.uniform(1, 5))
    return 0, None


MANNERS = {"whole": whole, "stream": stream, "slow": slow, "leave": leave}
MANNERS |= {"half": half, "cancel": cancel, "extreme": extreme, "flood": flood, "stump": stump}
MANNERS |= {"headers": headers, "bodies": bodies}


def resident(pid: int) -> float:
    """Return the resident memory of a process in MiB."""
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) / 1024 if found else 0.0


def below(pid: int, word: str) -> list[int]:
    """Return the descendants of a process whose name or command contains this word."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for file in Path(f"/proc/{pid}/task").glob("*/children"):
            for child in map(int, file.read_text().split()):
                about = Path(f"/proc/{child}/comm").read_text()
                about += Path(f"/proc/{child}/cmdline").read_bytes().decode("utf-8", "replace")
                found += [child] * (word in about) + below(child, word)
    return found


async def drive(url: str, pid: int, arguments: argparse.Namespace) -> LoadResult:
    tally = LoadResult()
    host, port = url.removeprefix("http://").split(":")
    server = Server(host, int(port), expected())
    address = server.seen_from(arguments.clients)
    until = time.monotonic() + arguments.seconds

    async def sample() -> None:
        while True:
            tally.memory["server"].append(resident(pid))
            with contextlib.suppress(OSError):  # one may have just been killed
                tally.memory["decoder"].append(sum(map(resident, below(pid, "wavefront-dec"))))
            before = time.monotonic()
            await asyncio.sleep(1)
            tally.lag.append(time.monotonic() - before - 1)

    async def kill() -> None:
        while arguments.kill:
            await asyncio.sleep(arguments.kill)
            if time.monotonic() < until - 5:
                tally.kills += 1
                os.kill(random.choice(below(pid, "ServeReplica")), signal.SIGKILL)
                begun = time.monotonic()
                for whole in (False, True):  # first it has to be noticed
                    while (await metric(address, "replicas") == arguments.replicas) != whole:
                        await asyncio.sleep(0.2)
                tally.back.append(time.monotonic() - begun)

    sampling, killing = asyncio.create_task(sample()), asyncio.create_task(kill())
    if arguments.hostile:
        await with_and_without_hostility(server, tally, arguments)
    else:
        numbers = range(arguments.clients)
        await asyncio.gather(*(one_client(n, server, tally, until) for n in numbers))
    sampling.cancel()
    killing.cancel()
    # All is quiet again: nothing may be left in the server.
    for _ in range(600):
        if not await metric(address, r"num_requests_\w+"):
            return tally
        await asyncio.sleep(0.1)
    tally.problem("some requests were never ended")
    return tally


async def metric(address: Any, name: str) -> float:
    async with Answer(address, "/metrics", None, method="GET") as answer:
        text = await answer.read()
    return sum(map(float, re.findall(rf"^wavefront:{name} (\S+)$", text, re.M)))


def quantile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def slowdown(tally: LoadResult) -> float:
    """Return the factor by which hostile clients raise the p99 of good requests; 0 if none ran."""
    alone = quantile(tally.undisturbed, 0.99)
    return quantile(tally.answered, 0.99) / alone if alone else 0.0


def report(tally: LoadResult, arguments: argparse.Namespace) -> dict[str, Any]:
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
        "replicas": arguments.replicas,
        "replicas killed": tally.kills,
        "replaced after s": [round(one, 1) for one in tally.back],
        "answers checked": len(tally.answered),
        "answered without hostile clients": len(tally.undisturbed),
        "undisturbed p99 s": round(quantile(tally.undisturbed, 0.99), 2),
        "answers a second": round(len(tally.answered) / arguments.seconds, 1),
        "lost or mixed": tally.counts["problems"],
        "rejected": len(tally.rejected),
        "rejected p50 ms": round(1000 * quantile(tally.rejected, 0.5), 1),
        "rejected p99 ms": round(1000 * quantile(tally.rejected, 0.99), 1),
        "answered p50 s": round(quantile(tally.answered, 0.5), 2),
        "answered p99 s": round(quantile(tally.answered, 0.99), 2),
        "slowdown of p99": round(slowdown(tally), 2),
        "own lag p99 ms": round(1000 * quantile(tally.lag, 0.99), 1),
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
    parser.add_argument("--replicas", type=int, default=0, help="on Ray Serve; 0: without")
    parser.add_argument("--hostile", type=float, default=0, help="share of hostile clients")
    parser.add_argument("--kill", type=float, default=0, help="seconds between kills of a replica")
    arguments = parser.parse_args()
    shape = ["--rows", str(arguments.rows), "--queue", str(arguments.queue), "--threads", "1"]
    if arguments.replicas:
        shape += ["--engine", "ray", "--replicas", str(arguments.replicas)]
    command = [sys.executable, "-m", "wavefront", "serve", "-m", "toy", "--port", "0", *shape]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        url = process.stderr.readline().split()[-1]
        try:
            while httpx.get(f"{url}/ready").status_code != 200:
                time.sleep(0.2)
            tally = asyncio.run(drive(url, process.pid, arguments))
        finally:
            process.send_signal(signal.SIGTERM)
            code = process.wait(60)
    found = report(tally, arguments) | {"exit code": code}
    print(json.dumps(found, indent=2))
    return 1 if tally.counts["problems"] or code or slowdown(tally) > MAX_SLOWDOWN else 0


if __name__ == "__main__":
    sys.exit(main())
