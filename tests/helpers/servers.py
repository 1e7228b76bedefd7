"""Runs a real server in its own process."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx

PATIENCE = 180.0  # seconds; other tests may keep the machine busy


class Running:
    """A running server: its URL, process and HTTP client."""

    def __init__(self, process: subprocess.Popen[str], url: str, key: str | None) -> None:
        self.process, self.url, self.log = process, url, ""
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.client = httpx.Client(base_url=url, headers=headers, timeout=PATIENCE)

    def post(self, path: str, **body: Any) -> httpx.Response:
        return self.client.post(path, json=body)

    def events(self, id: str, start: int = 0) -> list[dict[str, Any]]:
        """Return all events of a decode from number `start` on."""
        path = f"/v1/wavefront/decodes/{id}/events?from={start}"
        with self.client.stream("GET", path) as answer:
            assert answer.status_code == 200
            lines = [line[6:] for line in answer.iter_lines() if line.startswith("data: ")]
        assert lines.pop() == "[DONE]"
        return [json.loads(line) for line in lines]

    def wait(self, path: str = "/ready", status: int = 200) -> None:
        """Wait until a path answers with a status."""
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            with contextlib.suppress(httpx.TransportError):
                if self.client.get(path).status_code == status:
                    return
            time.sleep(0.05)
        raise AssertionError(f"{path} never answered {status}")

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition holds."""
        until = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < until
            time.sleep(0.05)

    def decoder(self) -> int:
        """Return the pid of the decode process."""
        return next(iter(self.children("wavefront-dec")))

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Stop the decode process for a while, so that a request lasts as long as a test needs."""
        decoder = self.decoder()
        os.kill(decoder, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(decoder, signal.SIGCONT)

    def children(self, name: str = "") -> dict[int, str]:
        """Return the names of all processes below the server, or those with one name, by pid."""
        found = descendants(self.process.pid)
        return {pid: one for pid, one in found.items() if name in ("", one)}

    def memory(self) -> int:
        """Return the memory of the server process in bytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.findall(r"VmRSS:\s+(\d+) kB", status)[0]) << 10

    def connect(self) -> socket.socket:
        """Open a connection to the server."""
        host, port = self.url.removeprefix("http://").split(":")
        return socket.create_connection((host, int(port)), timeout=PATIENCE)

    def metric(self, name: str) -> float:
        """Return the sum of a metric over its labels."""
        found = re.findall(
            rf"^wavefront:{name}(?:{{.*}})? (\S+)$", self.client.get("/metrics").text, re.M
        )
        return sum(map(float, found))


def descendants(pid: int) -> dict[int, str]:
    """Return the names of all processes below a process, by pid."""
    found: dict[int, str] = {}
    with contextlib.suppress(OSError):  # it may have just ended
        for file in Path(f"/proc/{pid}/task").glob("*/children"):
            for child in map(int, file.read_text().split()):
                with contextlib.suppress(OSError):
                    found[child] = Path(f"/proc/{child}/comm").read_text().strip()
                    found |= descendants(child)
    return found


@contextlib.contextmanager
def serving(
    *arguments: str, key: str | None = None, descriptors: int | None = None, **environment: str
) -> Iterator[Running]:
    """Run `wavefront serve` with these arguments, wait until it is ready, and kill it at exit.

    `descriptors` is the number of files and sockets that it may open. What it logs is in `log`
    afterwards.
    """
    limit = [] if descriptors is None else ["prlimit", f"--nofile={descriptors}:{descriptors}"]
    command = [
        *limit,
        sys.executable,
        "-m",
        "wavefront",
        "serve",
        "--port",
        "0",
        "--threads",
        "1",
        *arguments,
    ]
    settings = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    for name in ("WAVEFRONT_API_KEY", "WAVEFRONT_API_KEY_FILE"):
        settings.pop(name, None)
    settings |= environment
    if key:
        settings["WAVEFRONT_API_KEY"] = key
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=settings) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        found = re.search(r"http://\S+", line)
        assert found, line + process.stderr.read()
        running = Running(process, found[0], key)
        try:
            running.wait()
            yield running
        finally:
            running.client.close()
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            running.log = process.communicate()[1]
