"""Connections that send nothing, send slowly, or do not read."""

from __future__ import annotations

import contextlib
import json
import logging
import resource
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from helpers.servers import Running, serving

from wavefront.server.connections import (
    LOG_BURST,
    RESERVED_DESCRIPTORS,
    ConnectionLimiter,
    RepeatFilter,
    _network,
    available_connections,
)
from wavefront.server.metrics import Metrics
from wavefront.server.settings import Limits

HALF_HEADERS = b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Half: "
MIB = 1 << 20
# Seconds in which a well-behaved client is answered. It is less than the time limits of the server.
PROMPT = 8.0


def body_start(length: int) -> bytes:
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {length}\r\n\r\n".encode()


@contextlib.contextmanager
def many_files() -> Iterator[None]:
    """Allow the test itself to open enough sockets."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 4096)), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def assert_prompt_answer(server: Running) -> None:
    """A new client gets an answer soon, and so does its completion."""
    start = time.monotonic()
    with httpx.Client(base_url=server.url, timeout=PROMPT) as client:
        assert client.get("/health").status_code == 200
        body = {"prompt": "Hi", "max_tokens": 2}
        assert client.post("/v1/completions", json=body).status_code == 200
    assert time.monotonic() - start < PROMPT


def receive_all(connection: socket.socket, seconds: float = 20) -> bytes:
    """Return what the server sends until it closes the connection."""
    connection.settimeout(seconds)
    found = b""
    with contextlib.suppress(ConnectionResetError):
        while more := connection.recv(65536):
            found += more
    return found


def error_code(data: bytes) -> tuple[int, str]:
    head, _, body = data.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)["error"]["code"]


@pytest.mark.slow
@pytest.mark.parametrize("descriptors", [256, 1024])
def test_half_headers_do_not_block_others(descriptors: int) -> None:
    with contextlib.ExitStack() as stack:
        stack.enter_context(many_files())
        server = stack.enter_context(serving("-m", "toy", descriptors=descriptors))
        assert_prompt_answer(server)
        for _ in range(1020):
            one = stack.enter_context(server.connect())
            with contextlib.suppress(OSError):  # the server may close it
                one.sendall(HALF_HEADERS)
        for _ in range(3):
            assert_prompt_answer(server)
            time.sleep(1)
        open_files = len([*Path(f"/proc/{server.process.pid}/fd").iterdir()])
        assert open_files < descriptors - 16
    assert len(server.log) < 20_000
    assert "Traceback" not in server.log


@pytest.mark.slow
def test_unfinished_bodies_hold_bounded_memory() -> None:
    with many_files(), serving("-m", "toy") as server:
        assert_prompt_answer(server)
        before = server.memory()
        with contextlib.ExitStack() as stack:
            for _ in range(300):
                one = stack.enter_context(server.connect())
                with contextlib.suppress(OSError):  # the server may close it
                    one.sendall(body_start(MIB) + b" " * (MIB - 1))
            time.sleep(1)
            assert server.memory() - before < 128 * MIB
            assert_prompt_answer(server)
        assert server.metric("connections_closed_total") >= 200
    assert len(server.log) < 20_000


@pytest.fixture(scope="module")
def strict() -> Iterator[Running]:
    """A server with short times and few connections."""
    times = ("--header-timeout", "1", "--body-timeout", "2", "--write-timeout", "2")
    counts = ("--max-connections", "24", "--max-connections-per-address", "12")
    with serving("-m", "toy", *times, *counts) as server:
        yield server


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["header", "body"])
def test_client_that_sends_one_byte_at_a_time_is_cut_off(strict: Running, kind: str) -> None:
    # A byte that arrives while the server closes resets the connection, and the answer is lost.
    answers = (send_slowly(strict, kind) for _ in range(3))
    data = next((one for one in answers if one is not None), b"")
    assert error_code(data) == (408, f"{kind}_timeout")
    assert_prompt_answer(strict)


def send_slowly(server: Running, kind: str) -> bytes | None:
    """Send one byte at a time; return the answer, or None if the connection was reset."""
    with server.connect() as slow:
        slow.sendall(HALF_HEADERS if kind == "header" else body_start(1000))
        start, data, answer = time.monotonic(), b"", None
        with contextlib.suppress(ConnectionError):
            while time.monotonic() - start < 15:
                slow.sendall(b"a")
                time.sleep(0.1)
                slow.settimeout(0.05)
                with contextlib.suppress(TimeoutError):
                    data = slow.recv(65536)
                    break
            slow.settimeout(15)
            while more := slow.recv(65536):  # the body can come after the headers
                data += more
            answer = data
        assert time.monotonic() - start < 10
    return answer


@pytest.mark.slow
def test_silent_connection_is_closed(strict: Running) -> None:
    with strict.connect() as silent:
        assert receive_all(silent) == b""


@pytest.mark.slow
def test_body_of_a_rejected_request_is_cut_off(strict: Running) -> None:
    """The response is complete, but the client still sends the body."""
    with strict.connect() as slow:
        slow.sendall(body_start(1 << 40))
        slow.settimeout(15)
        assert b"413" in slow.recv(65536)
        start = time.monotonic()
        with contextlib.suppress(ConnectionError):
            while time.monotonic() - start < 15:
                slow.sendall(b"a" * 1000)
                time.sleep(0.1)
        assert time.monotonic() - start < 10


@pytest.mark.slow
def test_client_that_reads_nothing_is_disconnected(strict: Running) -> None:
    def is_open(port: int) -> bool:
        """Look for the server's end of the connection in the kernel's table."""
        lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
        ports = [line.split()[1:3] for line in lines if line.split()[3] == "01"]
        return any(remote.endswith(f":{port:04X}") for _, remote in ports)

    with strict.connect() as lazy:
        lazy.sendall(b"GET /share.html HTTP/1.1\r\nHost: localhost\r\n\r\n" * 400)
        port = lazy.getsockname()[1]
        assert is_open(port)
        until = time.monotonic() + 30
        while is_open(port):
            assert time.monotonic() < until
            time.sleep(0.1)
    assert strict.metric("connections") <= 2
    assert_prompt_answer(strict)


@pytest.mark.slow
def test_new_connection_is_refused_while_all_others_are_being_answered() -> None:
    pages = b"GET /share.html HTTP/1.1\r\nHost: localhost\r\n\r\n" * 400
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(serving("-m", "toy", "--max-connections-per-address", "4"))
        server.client.close()
        for _ in range(4):
            stack.enter_context(server.connect()).sendall(pages)
        until = time.monotonic() + 30
        while True:  # until the buffers of all four are full
            with server.connect() as late:
                late.sendall(
                    b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
                )
                data = receive_all(late)
            if data.startswith(b"HTTP/1.1 503"):
                break
            assert time.monotonic() < until
            # It was answered at the cost of another one that had not been read yet.
            stack.enter_context(server.connect()).sendall(pages)
            time.sleep(1)
        assert error_code(data) == (503, "too_many_connections")
        assert b"retry-after: 1" in data


@pytest.mark.slow
def test_addresses_share_the_connections(strict: Running) -> None:
    host, port = strict.url.removeprefix("http://").split(":")
    with contextlib.ExitStack() as stack:
        others = [
            stack.enter_context(
                socket.create_connection((host, int(port)), source_address=("127.0.0.9", 0))
            )
            for _ in range(5)
        ]
        flood = [stack.enter_context(strict.connect()) for _ in range(60)]
        for one in flood:
            with contextlib.suppress(OSError):
                one.sendall(HALF_HEADERS)
        # The other address keeps all its connections.
        for one in others:
            one.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        for one in others:
            assert receive_all(one).startswith(b"HTTP/1.1 200")
        assert_prompt_answer(strict)


class Answering:
    """A connection as the limiter sees it."""

    def __init__(self, address: str, phase: str = "response") -> None:
        self.address, self.phase, self.held = address, phase, 0
        self.since, self.ended = time.monotonic(), ""

    def abort(self, reason: str) -> None:
        self.ended = "cut off"

    def end(self, error: Any) -> None:
        self.ended = error.failure.code


def test_answers_of_two_addresses_do_not_keep_others_out() -> None:
    limits = Limits(connections=20, connections_per_address=10)
    limiter = ConnectionLimiter(limits, Metrics(), connections=20)
    old = [Answering(name) for name in "ab" for _ in range(10)]
    for one in old:
        limiter.add(one)
    late = [Answering("c") for _ in range(8)]
    for one in late:
        limiter.add(one)
    # The newcomer replaces the oldest answers of the largest address, until it has its share.
    assert [one.ended for one in late][:2] == ["", ""]
    assert late[-1].ended == "too_many_connections"
    cut = [one for one in old if one.ended]
    assert {one.ended for one in cut} == {"cut off"}
    assert old[0] in cut
    # An address with many connections replaces no answer of another one.
    more = Answering("b")
    limiter.add(more)
    assert more.ended == "too_many_connections"


def test_answers_are_cut_off_only_if_nothing_else_can_be_closed() -> None:
    limiter = ConnectionLimiter(Limits(), Metrics(), connections=10)
    idle, *others = (Answering("a", "body" if n == 5 else "response") for n in range(10))
    for one in (idle, *others):
        limiter.add(one)
    limiter.add(Answering("b"))
    assert [one.phase for one in (idle, *others) if one.ended] == ["body"]


def test_descriptors_bound_the_connections() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
        assert available_connections(10) == 10
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (1024, hard)
        # The limit is raised as far as the system allows.
        assert available_connections(1024) == min(1024, hard - RESERVED_DESCRIPTORS)
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= min(1024, hard)
        assert available_connections(hard) == hard - RESERVED_DESCRIPTORS
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
    ],
)
def test_clients_are_counted_by_network(host: str, network: str) -> None:
    assert _network(host) == network


def test_repeated_log_messages_are_dropped_and_counted(monkeypatch: Any) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    repeats = RepeatFilter()

    def log(text: str) -> logging.LogRecord | None:
        record = logging.LogRecord("x", logging.WARNING, "", 0, text, None, None)
        return record if repeats.filter(record) else None

    assert sum(log("full") is not None for _ in range(1000)) == LOG_BURST
    assert log("another") is not None
    now = 200.0
    record = log("full")
    assert record is not None
    assert record.getMessage() == f"full ({1000 - LOG_BURST} similar messages were not logged)"
    for number in range(10_000):
        log(f"{number}")
    assert len(repeats._seen) < 300
