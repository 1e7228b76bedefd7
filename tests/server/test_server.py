"""A real server process: the OpenAI client, streams, limits, failures and shutdown."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from helpers.commands import save_talker
from helpers.processes import kill_and_count_survivors
from helpers.servers import PATIENCE, Running, serving

import wavefront

pytestmark = pytest.mark.slow
KEY = "a-secret"
LONG = {"prompt": "Once", "max_tokens": 200}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_talker(tmp_path_factory.mktemp("talker"))


@pytest.fixture(scope="module")
def server(folder: str) -> Iterator[Running]:
    with serving("-m", folder, "--name", "talker", "--rows", "4", key=KEY) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Running) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0, timeout=PATIENCE)


@pytest.fixture(scope="module")
def alone(folder: str) -> wavefront.LM:
    return wavefront.load(folder)


def user_message(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


# The OpenAI client


def test_openai_client_completes(client: openai.OpenAI, alone: Any) -> None:
    answer = client.chat.completions.create(
        model="talker", messages=user_message("Hi"), max_tokens=24
    )
    want = alone.generate("Hi", max_new_tokens=24)
    assert answer.choices[0].message.content == want.text
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == want.finish_reason
    assert answer.usage.completion_tokens == len(want.tokens)
    assert answer.usage.prompt_tokens == want.prompt_tokens
    assert answer.usage.total_tokens == want.prompt_tokens + len(want.tokens)
    assert answer.system_fingerprint.startswith("fp_")
    assert answer.id.startswith("chatcmpl-")
    text = client.completions.create(model="talker", prompt="Hi", max_tokens=24)
    assert text.choices[0].text == alone.generate("Hi", raw=True, max_new_tokens=24).text


def test_openai_client_streams(client: openai.OpenAI, alone: Any) -> None:
    want = alone.generate("Hi", max_new_tokens=48)
    chunks = list(
        client.chat.completions.create(
            model="talker",
            messages=user_message("Hi"),
            max_completion_tokens=48,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    pieces = [one.choices[0].delta.content or "" for one in chunks if one.choices]
    assert "".join(pieces) == want.text
    assert len([one for one in pieces if one]) > 2
    assert chunks[-2].choices[0].finish_reason == want.finish_reason
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == len(want.tokens)
    assert len({one.id for one in chunks}) == 1
    plain = client.completions.create(model="talker", prompt="Hi", max_tokens=20, stream=True)
    text = "".join(one.choices[0].text for one in plain)
    assert text == alone.generate("Hi", raw=True, max_new_tokens=20).text


def test_options_have_the_names_of_the_library(client: openai.OpenAI, alone: Any) -> None:
    options = {
        "strategy": "block(size=4)",
        "steps": 12,
        "priority": "entropy",
        "eos": "keep",
        "order_noise": 0.1,
        "top_k": 9,
    }
    answer = client.chat.completions.create(
        model="talker",
        messages=user_message("Hi"),
        max_tokens=24,
        temperature=0.8,
        seed=7,
        top_p=0.9,
        extra_body=options,
    )
    want = alone.generate("Hi", max_new_tokens=24, temperature=0.8, seed=7, top_p=0.9, **options)
    assert answer.choices[0].message.content == want.text
    assert answer.usage.to_dict()["wavefront"]["forwards"] == want.forwards  # pyright: ignore[reportIndexIssue]
    holes = "Once <mask:6> upon <mask:5>."
    filled = client.completions.create(model="talker", prompt=holes, extra_body={"infill": True})
    assert filled.choices[0].text == alone.infill(holes).text


def test_openai_client_gets_errors(client: openai.OpenAI) -> None:
    chat = client.chat.completions.create
    with pytest.raises(openai.BadRequestError) as caught:
        chat(model="talker", messages=user_message("Hi"), presence_penalty=1)
    assert (caught.value.param, caught.value.code) == ("presence_penalty", "unsupported_field")
    with pytest.raises(openai.BadRequestError) as caught:
        chat(model="talker", messages=user_message("Hi"), extra_body={"strategy": "os.path"})
    assert caught.value.param == "strategy"
    with pytest.raises(openai.BadRequestError) as caught:
        chat(model="talker", messages=user_message("Hi"), max_tokens=2000, stream=True)
    assert "there is room for 256" in caught.value.message
    with pytest.raises(openai.NotFoundError) as caught:
        chat(model="gpt-9", messages=user_message("Hi"))
    assert caught.value.code == "model_not_found"
    other = openai.OpenAI(base_url=client.base_url, api_key="wrong", max_retries=0)
    with pytest.raises(openai.AuthenticationError):
        other.models.list()
    assert [one.id for one in client.models.list()] == ["talker"]
    assert client.models.retrieve("talker").id == "talker"


def test_concurrent_requests_equal_lone_decodes(client: openai.OpenAI, alone: Any) -> None:
    kinds: list[dict[str, Any]] = [
        {"strategy": "wavefront(size=4, radius=1)"},
        {"strategy": "block(size=8)"},
        {"strategy": "standard", "steps": 9},
        {"temperature": 0.9, "seed": 3},
        {"strategy": "tide(cascade_rounds=0, horizon=0, selector=threshold(tau=0.3))"},
    ]

    def request(number: int) -> tuple[str, str]:
        options = kinds[number % len(kinds)]
        prompt, tokens = f"Number {number % 7}", 8 + 5 * (number % 6)
        body = {"model": "talker", "messages": user_message(prompt), "max_tokens": tokens}
        if number % 2:
            stream = client.chat.completions.create(**body, extra_body=options, stream=True)
            text = "".join(c.choices[0].delta.content or "" for c in stream)
        else:
            answer = client.chat.completions.create(**body, extra_body=options)
            text = answer.choices[0].message.content
        return text, alone.generate(prompt, max_new_tokens=tokens, **options).text

    with ThreadPoolExecutor(24) as pool:
        for text, want in pool.map(request, range(48)):
            assert text == want


# Streams and events


def test_stream_is_server_sent_events(server: Running) -> None:
    body = {"prompt": "Hi", "max_tokens": 16, "stream": True}
    with server.client.stream(
        "POST", "/v1/completions", json=body, headers={"x-request-id": "mine-1"}
    ) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["x-request-id"] == "mine-1"
        lines = [line for line in answer.iter_lines() if line]
    assert all(line.startswith(("data: ", ": ")) for line in lines)
    assert lines[-1] == "data: [DONE]"


def test_events_can_be_read_again_and_from_any_number(server: Running, alone: Any) -> None:
    begun = server.post("/v1/wavefront/decodes", prompt="Hi", max_new_tokens=20, measure=True)
    assert begun.status_code == 202
    id = begun.json()["id"]
    whole = server.events(id)
    assert whole == server.events(id)
    assert whole[5:] == server.events(id, 5)
    assert server.events(id, 10**6) == []
    assert whole[-1]["end"]["text"] == alone.generate("Hi", max_new_tokens=20).text
    fork = server.post(f"/v1/wavefront/decodes/{id}/fork", at=5, put={"19": "z"}, steps=3)
    forked = server.events(fork.json()["id"])
    assert len(forked) == 4
    assert [19, *[p for p, *_ in whole[0]["given"]]][0] in [p for p, *_ in forked[0]["given"]]
    late = server.post(f"/v1/wavefront/decodes/{id}/fork", at=99)
    assert (late.status_code, late.json()["error"]["param"]) == (400, "at")
    odd = server.post(f"/v1/wavefront/decodes/{id}/fork", at=1, put={"x": "z"})
    assert odd.json()["error"]["param"] == "put"


def test_fork_keeps_every_option_of_its_origin(server: Running) -> None:
    options = {
        "temperature": 0.9,
        "top_p": 0,
        "seed": 7,
        "cfg_scale": 0.5,
        "cache": "wave(refresh=4, size=64, delay=2, near=16, drop=0.0)",
        "order_noise": 0.25,
        "max_new_tokens": 8,
    }
    id = server.post("/v1/wavefront/decodes", prompt="Once", **options).json()["id"]
    origin = server.events(id)[0]["options"]
    assert {name: origin[name] for name in options} == options
    fork = server.post(f"/v1/wavefront/decodes/{id}/fork", at=3).json()["id"]
    kept = server.events(fork)[0]["options"]
    assert kept | {"steps": 8, "max_new_tokens": 8} == origin
    other = {"cfg_scale": 0.0, "top_p": 1.0, "speculate": 2, "cache": "none"}
    fork = server.post(f"/v1/wavefront/decodes/{id}/fork", at=3, **other).json()["id"]
    changed = server.events(fork)[0]["options"]
    assert changed == kept | other | {"cache": None}


@pytest.mark.parametrize(
    ("begun", "asked", "found"),
    [
        ({"cache": "wave(refresh=4)"}, {"speed": "exact"}, {"cache": None}),
        ({}, {"alg": "entropy"}, {"priority": "entropy", "sampling": "dream"}),
        ({}, {"logits_eos_inf": True}, {"eos": "suppress-logit"}),
        ({}, {"remasking": "random"}, {"priority": "random"}),
        ({"regex": "[ab]{3}"}, {"choices": ["a", "bbb"]}, {"choices": ["a", "bbb"], "regex": None}),
    ],
)
def test_fork_changes_an_option_by_any_of_its_names(
    server: Running, begun: dict[str, Any], asked: dict[str, Any], found: dict[str, Any]
) -> None:
    made = server.post("/v1/wavefront/decodes", prompt="Once", max_new_tokens=8, **begun).json()
    fork = server.post(f"/v1/wavefront/decodes/{made['id']}/fork", at=0, **asked)
    assert fork.status_code == 202, fork.text
    options = fork.json()["first"]["options"]
    assert {name: options.get(name) for name in found} == found


def test_fork_does_not_cut_a_constrained_answer_at_a_stop_string(server: Running) -> None:
    path, form = "/v1/wavefront/decodes", {"prompt": "Once", "max_new_tokens": 8}
    for one, two in (({"regex": "[a-z]+"}, {"stop": "e"}), ({"stop": "e"}, {"regex": "[a-z]+"})):
        id = server.post(path, **form, **one).json()["id"]
        server.events(id)
        refused = server.post(f"{path}/{id}/fork", at=1, **two)
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == "stop"
        assert "stop cannot be combined with regex" in refused.json()["error"]["message"]
        assert server.post(f"{path}/{id}/fork", at=1).status_code == 202


def test_completion_with_events_can_be_watched(server: Running) -> None:
    made = server.post("/v1/completions", prompt="Hi", max_tokens=12, events=True).json()
    told = server.events(made["id"])
    assert told[-1]["end"]["text"] == made["choices"][0]["text"]
    quiet = server.post("/v1/completions", prompt="Hi", max_tokens=12).json()
    assert server.client.get(f"/v1/wavefront/decodes/{quiet['id']}/events").status_code == 404


def test_decode_can_be_cancelled(server: Running) -> None:
    id = server.post("/v1/wavefront/decodes", **LONG).json()["id"]
    assert server.client.delete(f"/v1/wavefront/decodes/{id}").status_code == 204
    assert server.events(id)[-1]["error"]["code"] == "cancelled"
    assert server.client.delete("/v1/wavefront/decodes/nothing").status_code == 404


def raw_post(server: Running, body: dict[str, Any]) -> socket.socket:
    """Send a request on a new socket and read nothing."""
    host, port = server.url.removeprefix("http://").split(":")
    data = json.dumps(body).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {KEY}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    made = socket.create_connection((host, int(port)))
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
    made.sendall(head.encode() + data)
    return made


def eventually(condition: Any) -> None:
    until = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.mark.parametrize("stream", [False, True])
def test_disconnected_clients_free_their_rows(server: Running, stream: bool) -> None:
    gone = server.metric("request_success_total")
    sockets = [raw_post(server, {**LONG, "stream": stream}) for _ in range(8)]
    eventually(lambda: server.metric("num_requests_running") >= 1)
    for one in sockets:
        one.close()
    eventually(lambda: server.metric("num_requests_running") == 0)
    assert server.metric("request_success_total") == gone + 8
    assert server.metric("num_requests_waiting") == 0
    assert server.post("/v1/completions", prompt="Hi", max_tokens=4).status_code == 200


def test_slow_reader_does_not_block_others(server: Running) -> None:
    lazy = [raw_post(server, {**LONG, "stream": True, "events": True}) for _ in range(3)]
    for _ in range(3):
        answer = server.post("/v1/completions", prompt="Hi", max_tokens=8)
        assert answer.status_code == 200
    for one in lazy:  # a slow reader still gets everything
        one.settimeout(PATIENCE)
        data = b""
        while b"[DONE]" not in data:
            more = one.recv(65536)
            assert more
            data += more
        one.close()


# Probes and limits


def test_probes_metrics_and_version(server: Running) -> None:
    with httpx.Client(base_url=server.url, timeout=PATIENCE) as bare:
        assert bare.get("/health").json() == {"status": "ready"}
        assert bare.get("/ready").status_code == 200
        for path in ("/metrics", "/version", "/openapi.json", "/v1/models", "/nowhere"):
            assert bare.get(path).status_code == 401
    assert server.client.get("/version").json()["version"] == wavefront.__version__
    server.post("/v1/completions", prompt="Hi", max_tokens=5)
    for name in ("steps_total", "forwards_total", "generation_tokens_total", "step_seconds_count"):
        assert server.metric(name) > 0
    assert server.metric("time_to_first_token_seconds_count") > 0


def test_invalid_addresses_methods_and_json(server: Running) -> None:
    assert server.client.get("/nowhere").json()["error"]["code"] == "http_404"
    wrong = server.client.get("/v1/completions")
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (405, "http_405")
    headers = {"content-type": "application/json"}
    deep = b"[" * 100_000
    for content in (b"{", b"", b"\xff", deep, b'{"prompt": "x", "temperature": NaN}', b"null"):
        answer = server.client.post("/v1/completions", content=content, headers=headers)
        assert answer.status_code == 400
        assert answer.json()["error"]["message"]
    assert server.post("/v1/completions", prompt="x" * (1 << 20)).status_code == 413
    half = json.dumps({"prompt": "half a character: \ud800"}).encode()
    odd = server.client.post("/v1/completions", content=half, headers=headers)
    assert (odd.status_code, odd.json()["error"]["param"]) == (400, "prompt")


ODD_PATHS = (
    "//", "/../../etc/passwd", "/..%2f..%2fetc/passwd", "/%2e%2e/%2e%2e/etc/passwd",
    "/page/index.html", "/static_files.py", "/%00", "/%ff%fe", "/%ed%a0%80", "/player.js%00.html",
    "/v1/models/%ed%a0%80", "/v1/models/%00", "/v1/models/" + "a" * 5000, "/metrics/",
    "/health/../metrics", "/player.js/..", "*", "http://evil.example/",
    "/v1/wavefront/decodes/%ff/events?from=1", "/v1/wavefront/decodes/x/events?from=%ed%a0%80",
    "/v1/wavefront/decodes/x/events?from=1" + "0" * 5000, "/v1/wavefront/decodes/x/events?from=nan",
    "/v1/wavefront/decodes/%ed%a0%80/fork", "/nowhere?" + "a=1&" * 3000,
)  # fmt: skip
ODD_HEADERS = (
    b"Host: \xff", b"Host: localhost\r\nHost: evil.example", b"Host: localhost\r\nX: \xed\xa0\x80",
    b"Host: localhost\r\nAuthorization: Bearer \xff", b"Host: localhost\r\nContent-Length: -1",
    b"Host: localhost\r\nContent-Length: " + b"9" * 5000, b"Host: localhost\r\nX-Request-Id: \xff",
    b"Host: localhost\r\nUpgrade: websocket\r\nConnection: upgrade", b"Host: evil.example", b"",
    b"Host: localhost\r\nTransfer-Encoding: gzip", b"X: " + b"a" * 100_000, b"\x00: \x00",
)  # fmt: skip


def test_odd_paths_and_headers_are_answered_with_4xx(server: Running) -> None:
    def status(method: str, path: str, headers: bytes) -> int:
        line = f"{method} {path} HTTP/1.1\r\n".encode() + headers
        with server.connect() as connection:
            connection.sendall(line + b"\r\nConnection: close\r\n\r\n")
            return int(connection.recv(65536).split()[1])

    right = f"Host: localhost\r\nAuthorization: Bearer {KEY}".encode()
    right += b"\r\nContent-Type: application/json\r\nContent-Length: 0"
    for path in ODD_PATHS:
        for method in ("GET", "POST", "DELETE", "HEAD", "OPTIONS", "FOO"):
            assert 400 <= status(method, path, right) < 500, (method, path)
            assert status(method, path, b"Host: localhost") in (401, 400), (method, path)
    for headers in ODD_HEADERS:
        for path in ("/version", "/metrics", "/v1/models"):
            assert 400 <= status("GET", path, headers) < 500, headers
    # Files and probes need no key, but the right name.
    for path in ("/", "/health", "/ready", "/share.html", "/player.js"):
        assert status("GET", path, b"Host: localhost") == 200
        assert status("GET", path, b"Host: evil.example") == 421
    assert server.client.get("/health").status_code == 200


def test_request_timeout_is_enforced(server: Running) -> None:
    with server.paused():
        late = server.post("/v1/completions", **LONG, timeout=0.05)
    assert (late.status_code, late.json()["error"]["code"]) == (504, "timeout")
    body = {**LONG, "timeout": 1.0, "stream": True}
    text = ""
    for _ in range(10):  # a fast decode may end before it is paused
        with server.client.stream("POST", "/v1/completions", json=body) as answer:
            lines = answer.iter_lines()
            next(lines)
            with server.paused():
                text = "\n".join(lines)
        if '"code":"timeout"' in text:
            break
    assert '"code":"timeout"' in text
    assert text.rstrip().endswith("[DONE]")


def test_full_queue_rejects_at_once(folder: str) -> None:
    with serving("-m", folder, "--rows", "1", "--queue", "1") as server:
        with ThreadPoolExecutor(12) as pool:
            with server.paused():
                jobs = [pool.submit(server.post, "/v1/completions", **LONG) for _ in range(12)]
                eventually(lambda: any(job.done() for job in jobs))  # one was rejected
            made = [job.result() for job in jobs]
        statuses = sorted(one.status_code for one in made)
        assert set(statuses) == {200, 429}
        assert statuses.count(200) >= 2
        for one in made:
            if one.status_code == 429:
                assert int(one.headers["retry-after"]) >= 1
                assert one.json()["error"]["type"] == "rate_limit_error"


# Failures


def test_killed_decode_process_is_restarted(folder: str, alone: Any) -> None:
    with serving("-m", folder, "--rows", "2") as server:
        body = {**LONG, "stream": True}
        with ThreadPoolExecutor(4) as pool:
            plain = [pool.submit(server.post, "/v1/completions", **LONG) for _ in range(3)]
            with server.client.stream("POST", "/v1/completions", json=body) as answer:
                next(answer.iter_lines())
                os.kill(server.decoder(), signal.SIGKILL)
                rest = answer.read().decode() if not answer.is_stream_consumed else ""
            ended = [one.result() for one in plain]
        assert '"code":"engine_down"' in rest or not rest
        for one in ended:
            if one.status_code != 200:
                assert one.status_code == 503
                assert one.json()["error"]["code"] == "engine_down"
                assert one.headers["retry-after"]
        assert any(one.status_code == 503 for one in ended)
        server.wait("/ready", 200)
        again = server.post("/v1/completions", prompt="Hi", max_tokens=12)
        want = alone.generate("Hi", raw=True, max_new_tokens=12).text
        assert again.json()["choices"][0]["text"] == want
        assert server.metric("engine_restarts_total") == 1


def test_health_fails_during_a_restart(folder: str) -> None:
    with serving("-m", folder) as server:
        decoder = server.decoder()
        fork_server = int(Path(f"/proc/{decoder}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(fork_server, signal.SIGSTOP)  # the restart takes as long as this test needs
        os.kill(decoder, signal.SIGKILL)
        server.wait("/health", 503)
        refused = server.post("/v1/completions", prompt="Hi")
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "engine_down")
        assert server.client.get("/ready").status_code == 503
        os.kill(fork_server, signal.SIGCONT)
        server.wait("/health", 200)
        server.wait()


def test_constraint_is_sent_again_after_a_restart(folder: str) -> None:
    body = {"prompt": "Hi", "max_tokens": 16, "choices": ["a fig", "some pears", "no fruit"]}
    with serving("-m", folder) as server:
        first, second = (server.post("/v1/completions", **body) for _ in range(2))
        os.kill(server.decoder(), signal.SIGKILL)
        eventually(lambda: server.metric("engine_restarts_total") == 1)
        server.wait()
        third = server.post("/v1/completions", **body)
        texts = [one.json()["choices"][0]["text"] for one in (first, second, third)]
        assert texts[0] in body["choices"]
        assert texts == texts[:1] * 3


def test_stalled_decode_process_is_restarted(folder: str) -> None:
    with serving("-m", folder, "--stall-timeout", "3") as server:
        pid = server.decoder()
        os.kill(pid, signal.SIGSTOP)
        refused = server.post("/v1/completions", prompt="Hi", max_tokens=4)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "engine_down")
        server.wait()
        assert server.decoder() != pid
        assert server.post("/v1/completions", prompt="Hi", max_tokens=4).status_code == 200


@pytest.mark.parametrize("given", ["environment", "option"])
def test_api_key_does_not_reach_other_processes(folder: str, given: str) -> None:
    """Neither the environment nor the memory of a child process contains the key."""
    key = f"only-for-the-{given}-of-the-server"
    arguments = ("--api-key", key) if given == "option" else ()
    with serving("-m", folder, *arguments, key=key) as server:
        assert server.post("/v1/completions", prompt="Hi", max_tokens=4).status_code == 200
        names = server.children()
        assert {"wavefront-dec", "wavefront-enc"} <= set(names.values())
        for pid in names:
            for file in ("environ", "cmdline"):
                assert key.encode() not in Path(f"/proc/{pid}/{file}").read_bytes()
            assert key.encode() not in writable_memory(pid)
        assert key.encode() in writable_memory(server.process.pid)  # so the check can fail


def writable_memory(pid: int) -> bytes:
    """Return the private, writable memory of a process."""
    found = []
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", 0) as memory:
        for line in maps:
            where, mode, *_ = line.split()
            first, last = (int(part, 16) for part in where.split("-"))
            if mode.startswith("rw") and last - first < 256 << 20:
                with contextlib.suppress(OSError):
                    memory.seek(first)
                    found.append(memory.read(last - first))
    return b"".join(found)


def test_ten_restarts_in_a_minute_are_quick() -> None:
    """Kill the decode process 10 times in a minute: each time it answers within 5 seconds."""
    took = []
    with serving("-m", "ripple") as server:
        begun = time.monotonic()
        for number in range(10):
            eventually(lambda due=begun + 6 * number: time.monotonic() >= due)
            os.kill(server.decoder(), signal.SIGKILL)
            killed = time.monotonic()
            while server.post("/v1/completions", prompt="Hi", max_tokens=2).status_code != 200:
                assert time.monotonic() < killed + PATIENCE
                time.sleep(0.05)
            took.append(time.monotonic() - killed)
        assert max(took) < 5, took
        assert server.metric("engine_restarts_total") == 10


def test_health_reports_a_stalled_decode_process(folder: str) -> None:
    with serving("-m", folder) as server:
        os.kill(server.decoder(), signal.SIGSTOP)
        begun = time.monotonic()
        server.wait("/health", 503)
        assert time.monotonic() - begun < 10
        assert server.client.get("/health").json() == {"status": "stalled"}
        os.kill(server.decoder(), signal.SIGCONT)
        server.wait("/health", 200)


def test_server_answers_probes_while_it_starts(folder: str) -> None:
    """The imports of the decode process do not block the HTTP process."""
    command = [sys.executable, "-m", "wavefront", "serve", "-m", folder, "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        url = process.stderr.readline().split()[-1]
        statuses, slowest = [], 0.0
        with httpx.Client(base_url=url, timeout=PATIENCE) as client:
            while "ready" not in statuses:
                begun = time.monotonic()
                health = client.get("/health")
                statuses.append(health.json()["status"])
                assert health.status_code == (200 if statuses[-1] == "ready" else 503)
                slowest = max(slowest, time.monotonic() - begun)
                time.sleep(0.05)
        process.kill()
        process.communicate()
    assert statuses[0] == "loading"
    assert slowest < 2


def test_long_prompts_do_not_delay_other_requests(folder: str) -> None:
    """66 prompts of almost 1 MB are refused at once, and a stream goes on."""
    huge = "word " * (200_000)
    bodies = [
        {"prompt": huge},
        {"messages": user_message(huge)},
        {"prompt": [1] * 300_000},
        {"messages": user_message("Hi") * 10_000},
    ]
    paths = ["/v1/completions", "/v1/chat/completions"]
    with serving("-m", folder, "--stall-timeout", "5") as server:
        pid, waits = server.decoder(), []
        stop = threading.Event()

        def ask() -> None:
            while not stop.is_set():
                begun = time.monotonic()
                answer = server.post("/v1/completions", prompt="Hi", max_tokens=4)
                assert answer.status_code == 200, answer.text
                waits.append(time.monotonic() - begun)

        def refuse(number: int) -> Any:
            body = bodies[number % len(bodies)]
            return server.post(paths["messages" in body], **body)

        with ThreadPoolExecutor(10) as pool:
            asking = pool.submit(ask)
            refused = list(pool.map(refuse, range(66)))
            stop.set()
            asking.result()
        for number, answer in enumerate(refused):
            assert answer.status_code == 400, answer.text
            assert answer.json()["error"]["param"] in bodies[number % len(bodies)]
            assert len(answer.text) < 1000
        assert max(waits) < 5, waits
        assert server.decoder() == pid
        assert server.metric("engine_restarts_total") == 0


def test_prompt_that_takes_too_long_to_encode_is_refused(folder: str, tmp_path: Path) -> None:
    """The chat template of this model never ends for one message; other requests go on."""
    slow = tmp_path / "slow"
    shutil.copytree(folder, slow)
    loop = "{% for a in range(9999) %}" * 3 + "{% endfor %}" * 3
    template = "{% if messages[0].content == 'slow' %}" + loop + "{% endif %}"
    template += "{{ messages[0].content }}"
    settings = json.loads((slow / "tokenizer_config.json").read_text())
    (slow / "tokenizer_config.json").write_text(json.dumps(settings | {"chat_template": template}))
    with serving("-m", str(slow)) as server, ThreadPoolExecutor(2) as pool:
        begun = time.monotonic()
        late = pool.submit(server.post, "/v1/chat/completions", messages=user_message("slow"))
        with server.client.stream(
            "POST", "/v1/completions", json={"prompt": [72], "max_tokens": 200, "stream": True}
        ) as answer:
            assert "[DONE]" in answer.read().decode()
        answer = late.result()
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "messages")
        assert "takes longer than 2 seconds" in answer.json()["error"]["message"]
        assert time.monotonic() - begun < 30
        fine = server.post("/v1/chat/completions", messages=user_message("Hi"), max_tokens=4)
        assert fine.status_code == 200
        assert server.metric("engine_restarts_total") == 0


def test_one_address_gets_only_its_share(folder: str) -> None:
    with serving("-m", folder, "--rows", "2", "--queue", "4") as server:
        ends = [httpx.HTTPTransport(local_address=f"127.0.0.{n}") for n in (2, 3)]
        greedy, other = (
            httpx.Client(base_url=server.url, transport=end, timeout=PATIENCE) for end in ends
        )
        with greedy, other, ThreadPoolExecutor(12) as pool:
            jobs = [pool.submit(greedy.post, "/v1/completions", json=LONG) for _ in range(12)]
            eventually(lambda: server.metric("num_requests_running") == 1)
            # One row is free for others, although requests of the first address wait.
            answer = other.post("/v1/completions", json={"prompt": "Hi", "max_tokens": 4})
            assert answer.status_code == 200, answer.text
            ended = [one.result().status_code for one in jobs if one.done()]
            assert 200 not in ended  # the other address waited for no request of the first
            made = [one.result() for one in jobs]
        refused = [one for one in made if one.status_code == 429]
        assert {one.status_code for one in made} == {200, 429}
        assert {one.json()["error"]["code"] for one in refused} == {"client_limit"}
        assert "Your address already has 3 requests" in refused[0].json()["error"]["message"]


def test_refused_requests_use_little_memory(folder: str) -> None:
    with serving("-m", folder) as server:
        huge = "x" * 900_000

        def send(_: int) -> None:
            for path in ("/v1/wavefront/decodes", "/v1/completions"):
                body = {"prompt": huge, "events": True} if "comp" in path else {"prompt": huge}
                assert server.post(path, **body).status_code == 400

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(send, range(4)))
            before = resident(server.process.pid)
            list(pool.map(send, range(75)))
        assert resident(server.process.pid) - before < 50


def resident(pid: int) -> float:
    """Return the resident memory of a process in MiB."""
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    assert found
    return int(found[1]) / 1024


def test_failing_request_does_not_affect_others(server: Running, alone: Any) -> None:
    """Options that make a step fail do not change other answers or restart the process."""
    pid = server.decoder()
    bad = {
        "prompt": "Hi",
        "strategy": "tide(cascade_rounds=8, horizon=0, risk=1e300, selector=threshold(tau=0.98))",
        "max_tokens": 16,
    }
    with ThreadPoolExecutor(12) as pool:
        good = [
            pool.submit(server.post, "/v1/completions", prompt=f"n{n}", max_tokens=60)
            for n in range(4)
        ]
        failed = [pool.submit(server.post, "/v1/completions", **bad) for _ in range(8)]
        assert {one.result().status_code for one in failed} <= {400, 500}
        for n, one in enumerate(good):
            want = alone.generate(f"n{n}", raw=True, max_new_tokens=60).text
            assert one.result().json()["choices"][0]["text"] == want
    assert server.decoder() == pid


def test_sigterm_answers_all_accepted_requests(folder: str) -> None:
    with serving("-m", folder, "--rows", "2", "--drain-timeout", "120") as server:
        with ThreadPoolExecutor(10) as pool:
            jobs = [
                pool.submit(server.post, "/v1/completions", prompt=f"n{n}", max_tokens=200)
                for n in range(8)
            ]
            names = ("num_requests_waiting", "num_requests_running")
            eventually(lambda: sum(map(server.metric, names)) == 8)
            server.process.send_signal(signal.SIGTERM)
            server.wait("/ready", 503)
            late = server.post("/v1/completions", prompt="late")
            assert (late.status_code, late.json()["error"]["code"]) == (503, "draining")
            assert server.client.get("/health").status_code == 200
            assert [one.result().status_code for one in jobs] == [200] * 8
        assert server.process.wait(PATIENCE) == 0


def test_requests_that_outlast_the_drain_fail(folder: str) -> None:
    with serving("-m", folder, "--drain-timeout", "0", "--threads", "1") as server:
        with ThreadPoolExecutor(1) as pool:
            job = pool.submit(server.post, "/v1/completions", **LONG)
            eventually(lambda: server.metric("num_requests_running") >= 1)
            server.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(httpx.TransportError):
                assert job.result().status_code in (200, 503)
        assert server.process.wait(PATIENCE) == 0


def test_decode_process_ends_with_a_killed_server(folder: str) -> None:
    with serving("-m", folder) as server:
        pid = server.decoder()
        server.process.kill()
        server.process.wait()

        def ended() -> bool:
            try:
                with open(f"/proc/{pid}/stat") as stat:
                    return stat.read().rpartition(")")[2].split()[0] == "Z"
            except FileNotFoundError:
                return True

        eventually(ended)


def test_decode_process_that_loads_ends_with_a_killed_server() -> None:
    command = ["-m", "wavefront", "serve", "-m", "toy", "--port", "0", "--threads", "1"]
    # The fork server, the decode process, the tokenizing process and multiprocessing's tracker.
    # The others end at once; the fork server needs about a second to unload its modules.
    assert kill_and_count_survivors(command, children=4, wait=0.0, seconds=5.0) == 0
    # A fork server that still imports notices it after its imports.
    assert kill_and_count_survivors(command, children=2, wait=0.2, seconds=20.0) == 0


def test_unknown_model_exits_with_an_error() -> None:
    command = [sys.executable, "-m", "wavefront", "serve", "-m", "nothing-like-it", "--port", "0"]
    made = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert made.returncode == 1
    assert "error: There is no model 'nothing-like-it'" in made.stderr
    assert "Traceback" not in made.stderr


def test_port_in_use_is_reported(server: Running) -> None:
    port = server.url.rpartition(":")[2]
    command = [sys.executable, "-m", "wavefront", "serve", "-m", "toy", "--port", port]
    made = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert made.returncode == 1
    assert "Cannot listen" in made.stderr


def test_probes_answer_while_all_rows_are_busy(server: Running) -> None:
    """Probes answer while every row is busy."""
    stop = threading.Event()

    def busy() -> None:
        while not stop.is_set():
            server.post("/v1/completions", **LONG)

    with ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(busy) for _ in range(4)]
        for _ in range(10):
            assert server.client.get("/health").status_code == 200
        stop.set()
        for job in jobs:
            job.result()


def run_load(*arguments: str, name: str = "load.py") -> str:
    """Run a script of runs/ and return what it prints."""
    script = Path(__file__).parents[2] / "runs" / name
    made = subprocess.run(
        [sys.executable, str(script), *arguments],
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"},
    )
    assert made.returncode == 0, made.stdout + made.stderr
    return made.stdout


def test_server_speed_is_compared_with_a_decode_without_a_server(tmp_path: Path) -> None:
    """Run runs/server_speed.py with a shape of random weights, made tiny."""
    width = {"d_model": 64, "n_layers": 2, "n_heads": 4, "n_kv_heads": 4, "mlp_hidden_size": 128}
    ids = {"vocab_size": 512, "embedding_size": 512, "mask_token_id": 300, "eos_token_id": 301}
    shape = json.dumps({**width, **ids, "pad_token_id": 301})
    sizes = ("--prompt-tokens", "16", "--max-new-tokens", "32", "--seconds", "1")
    out = tmp_path / "server.json"
    run_load("--changes", shape, "--device", "cpu", *sizes, "--clients", "2", "--repeats", "1",
             "--out", str(out), name="server_speed.py")  # fmt: skip
    (row,) = json.loads(out.read_text())["rows"]
    assert row["requests"] >= 2
    assert row["warm_up_s"] > 0
    assert 0 < row["first_event_p50_s"] <= row["first_event_p99_s"] <= row["end_p99_s"]
    whole = row["tokens_per_s"] / row["without_server_tokens_per_s"]
    assert row["share_percent"] == pytest.approx(100 * whole)


def test_load_with_misbehaving_clients() -> None:
    """Run runs/load.py for a short time: no answer is lost or wrong, and memory stays flat."""
    found = json.loads(
        run_load("--clients", "60", "--seconds", "10", "--rows", "8", "--queue", "24")
    )
    assert found["lost or mixed"] == 0
    assert found["answers checked"] > 20
    assert found["rejected"] > 0
    assert found["server MiB"]["end"] < 1.5 * found["server MiB"]["at third"] + 50
    assert found["decoder MiB"]["end"] < 1.5 * found["decoder MiB"]["at third"] + 50


def test_load_with_hostile_clients() -> None:
    """A tenth of the clients is hostile: good answers stay correct and almost as fast."""
    found = json.loads(
        run_load("--clients", "40", "--seconds", "15", "--rows", "8", "--hostile", "0.1")
    )
    assert found["lost or mixed"] == 0
    assert found["rejected"] == 0
    assert min(found["answers checked"], found["answered without hostile clients"]) > 100
    assert found["slowdown of p99"] < 2
    kinds = {name.split()[1] for name in found["counts"] if name.startswith("hostile")}
    assert kinds == {"extreme", "flood", "stump", "leave", "half", "slow", "headers", "bodies"}
