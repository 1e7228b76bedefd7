"""A real server process: the OpenAI client, streams, limits, failures and shutdown."""

from __future__ import annotations

import contextlib
import json
import os
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
        chat(model="talker", messages=user_message("Hi"), logprobs=True)
    assert (caught.value.param, caught.value.code) == ("logprobs", "unsupported_field")
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
        {"strategy": "tide(selector=threshold(tau=0.3))"},
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


def test_request_timeout_is_enforced(server: Running) -> None:
    late = server.post("/v1/completions", **LONG, timeout=0.05)
    assert (late.status_code, late.json()["error"]["code"]) == (504, "timeout")
    body = {**LONG, "timeout": 0.3, "stream": True}
    with server.client.stream("POST", "/v1/completions", json=body) as answer:
        text = answer.read().decode()
    assert '"code":"timeout"' in text
    assert text.rstrip().endswith("[DONE]")


def test_full_queue_rejects_at_once(folder: str) -> None:
    with serving("-m", folder, "--rows", "1", "--queue", "1") as server:
        with ThreadPoolExecutor(12) as pool:
            made = list(pool.map(lambda _: server.post("/v1/completions", **LONG), range(12)))
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
        os.kill(server.decoder(), signal.SIGKILL)
        server.wait("/health", 503)
        refused = server.post("/v1/completions", prompt="Hi")
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "engine_down")
        assert server.client.get("/ready").status_code == 503
        server.wait("/health", 200)
        server.wait()


def test_stalled_decode_process_is_restarted(folder: str) -> None:
    with serving("-m", folder, "--stall-timeout", "3") as server:
        pid = server.decoder()
        os.kill(pid, signal.SIGSTOP)
        refused = server.post("/v1/completions", prompt="Hi", max_tokens=4)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "engine_down")
        server.wait()
        assert server.decoder() != pid
        assert server.post("/v1/completions", prompt="Hi", max_tokens=4).status_code == 200


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


def test_unknown_model_exits_with_an_error() -> None:
    command = [sys.executable, "-m", "wavefront", "serve", "-m", "nothing-like-it", "--port", "0"]
    made = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert made.returncode == 1
    assert "error: 'nothing-like-it' is not a directory" in made.stderr
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


def test_load_with_misbehaving_clients() -> None:
    """Run runs/load.py for a short time: no answer is lost or wrong, and memory stays flat."""
    script = Path(__file__).parents[2] / "runs" / "load.py"
    arguments = ["--clients", "60", "--seconds", "10", "--rows", "8", "--queue", "24"]
    made = subprocess.run(
        [sys.executable, str(script), *arguments],
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"},
    )
    assert made.returncode == 0, made.stdout + made.stderr
    found = json.loads(made.stdout)
    assert found["lost or mixed"] == 0
    assert found["answers checked"] > 20
    assert found["rejected"] > 0
    assert found["server MiB"]["end"] < 1.5 * found["server MiB"]["at third"] + 50
    assert found["decoder MiB"]["end"] < 1.5 * found["decoder MiB"]["at third"] + 50
