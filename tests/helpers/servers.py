"""Runs a real server in its own process."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

PATIENCE = 180.0  # seconds; other tests may keep the machine busy


class Running:
    """A running server: its URL, process and HTTP client."""

    def __init__(self, process: subprocess.Popen[str], url: str, key: str | None) -> None:
        self.process, self.url = process, url
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

    def decoder(self) -> int:
        """Return the pid of the decode process."""
        children = Path(f"/proc/{self.process.pid}/task").glob("*/children")
        pids = [int(one) for file in children for one in file.read_text().split()]
        # multiprocessing also starts a small process that tracks shared resources.
        return next(
            pid for pid in pids if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
        )

    def metric(self, name: str) -> float:
        """Return the sum of a metric over its labels."""
        found = re.findall(
            rf"^wavefront:{name}(?:{{.*}})? (\S+)$", self.client.get("/metrics").text, re.M
        )
        return sum(map(float, found))


@contextlib.contextmanager
def serving(*arguments: str, key: str | None = None, **environment: str) -> Iterator[Running]:
    """Run `wavefront serve` with these arguments, wait until it is ready, and kill it at exit."""
    command = [
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
            process.communicate()
