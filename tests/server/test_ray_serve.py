"""Replicas on a real Ray Serve: the same API, lost replicas and shutdown."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
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
ROWS = 2
TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64}  # cluster with a token
REPLICAS = ("--replicas", "2", "--rows", str(ROWS))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_talker(tmp_path_factory.mktemp("talker"))


@pytest.fixture(scope="module")
def alone(folder: str) -> wavefront.LM:
    return wavefront.load(folder)


@contextlib.contextmanager
def serving_replicas(
    folder: str, *arguments: str, key: str | None = None, **env: str
) -> Iterator[Running]:
    """Run a server with replicas and end it with SIGTERM, so that Ray ends too."""
    with serving("-m", folder, "--engine", "ray", *arguments, key=key, **env) as running:
        try:
            yield running
        finally:
            running.process.terminate()
            running.process.wait(PATIENCE)


@pytest.fixture(scope="module")
def server(folder: str) -> Iterator[Running]:
    with serving_replicas(folder, "--name", "talker", *REPLICAS, key=KEY) as running:
        eventually(lambda: running.metric("replicas") == 2)
        yield running


def eventually(condition: Callable[[], Any]) -> None:
    until = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


def processes() -> dict[int, tuple[int, str]]:
    """Return all processes except zombies: pid to (parent pid, name and command line)."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
            command = (
                (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
            )
            name = (folder / "comm").read_text().strip()
            if state != "Z":
                found[int(folder.name)] = int(parent), f"{name}: {command}"
    return found


def descendants(pid: int) -> dict[int, str]:
    """Return the descendants of a process: pid to name and command line."""
    every, found, new = processes(), dict[int, str](), {pid}
    while new:
        new = {one for one, (parent, _) in every.items() if parent in new}
        found |= {one: every[one][1] for one in new}
    return found


def named(server: Running, word: str) -> list[int]:
    return [pid for pid, command in descendants(server.process.pid).items() if word in command]


def user_message(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


def test_openai_client(server: Running, alone: Any) -> None:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0)
    chat = client.chat.completions.create

    def request(number: int) -> tuple[str | None, str]:
        prompt, tokens = f"Number {number % 5}", 8 + 5 * (number % 4)
        body = {"model": "talker", "messages": user_message(prompt), "max_tokens": tokens}
        want = alone.generate(prompt, max_new_tokens=tokens)
        if number % 2:
            text = "".join(c.choices[0].delta.content or "" for c in chat(**body, stream=True))
        else:
            made = chat(**body)
            text = made.choices[0].message.content
            assert made.usage.completion_tokens == len(want.tokens)
        return text, want.text

    with ThreadPoolExecutor(12) as pool:
        for text, want in pool.map(request, range(24)):
            assert text == want
    with pytest.raises(openai.BadRequestError) as caught:
        chat(model="talker", messages=user_message("Hi"), max_tokens=2000)
    assert "there is room for 256" in caught.value.message
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=client.base_url, api_key="wrong", max_retries=0).models.list()
    assert [one.id for one in client.models.list()] == ["talker"]


def test_decodes_of_any_replica_can_be_watched_forked_and_cancelled(
    server: Running, alone: Any
) -> None:
    want = alone.generate("Hi", max_new_tokens=20).text
    body = {"prompt": "Hi", "max_new_tokens": 20, "measure": True}
    begun = [server.post("/v1/wavefront/decodes", **body).json()["id"] for _ in range(6)]
    for id in begun:
        whole = server.events(id)
        assert [one["type"] for one in whole] == ["start", *["step"] * 20]
        assert whole[-1]["end"]["text"] == want
        assert server.events(id, 7) == whole[7:]
        fork = server.post(f"/v1/wavefront/decodes/{id}/fork", at=5, steps=3)
        assert len(server.events(fork.json()["id"])) == 4
    doomed = [server.post("/v1/wavefront/decodes", **LONG).json()["id"] for _ in range(4)]
    for id in doomed:
        assert server.client.delete(f"/v1/wavefront/decodes/{id}").status_code == 204
        assert server.events(id)[-1]["error"]["code"] == "cancelled"
    eventually(lambda: server.metric("num_requests_running") == 0)


def test_both_replicas_work_and_disconnected_clients_free_their_rows(server: Running) -> None:
    steps = server.metric("steps_total")
    with ThreadPoolExecutor(8) as pool:
        jobs = [pool.submit(server.post, "/v1/completions", **LONG) for _ in range(8)]
        eventually(lambda: server.metric("slots_busy") > ROWS)
        gone = httpx.Client(base_url=server.url, headers=dict(server.client.headers), timeout=1.0)
        with pytest.raises(httpx.ReadTimeout):
            gone.post("/v1/completions", json={**LONG, "max_tokens": 240})
        assert [one.result().status_code for one in jobs] == [200] * 8
    eventually(lambda: server.metric("num_requests_running") == 0)
    assert server.metric("num_requests_waiting") == 0
    assert server.metric("steps_total") > steps + 200


def test_invalid_request_fails_before_it_waits(server: Running) -> None:
    with ThreadPoolExecutor(8) as pool:
        jobs = [pool.submit(server.post, "/v1/completions", **LONG) for _ in range(8)]
        eventually(lambda: server.metric("num_requests_waiting") > 0)
        wrong = server.post("/v1/completions", prompt="Hi", strategy="nothing")
        assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "strategy")
        assert not all(one.done() for one in jobs)


def test_probes_page_and_key(server: Running) -> None:
    with httpx.Client(base_url=server.url, timeout=PATIENCE) as bare:
        assert bare.get("/health").json() == {"status": "ready"}
        assert bare.get("/ready").status_code == 200
        assert "<canvas" in bare.get("/").text or "<html" in bare.get("/").text
        for path in ("/metrics", "/version", "/v1/models", "/-/routes", "/-/healthz"):
            assert bare.get(path).status_code == 401
    for pid in model_processes(server):  # no other process gets the key
        assert KEY.encode() not in Path(f"/proc/{pid}/environ").read_bytes()


def stream(server: Running, body: dict[str, Any]) -> tuple[str, dict[str, Any] | None]:
    """Return the text of a stream, and its error or None. The stream must end with [DONE]."""
    body = {**body, "stream": True}
    with server.client.stream("POST", "/v1/completions", json=body) as answer:
        assert answer.status_code == 200
        lines = [line[6:] for line in answer.iter_lines() if line.startswith("data: ")]
    assert lines.pop() == "[DONE]"
    chunks = [json.loads(line) for line in lines]
    errors = [one["error"] for one in chunks if "error" in one]
    text = "".join(one["choices"][0]["text"] for one in chunks if "choices" in one)
    return text, errors[0] if errors else None


@pytest.mark.parametrize("victim", ["ServeReplica", "wavefront-dec"])
def test_killed_replica_loses_no_answer(folder: str, alone: Any, victim: str) -> None:
    """Kill a replica or its decode process: the replica is lost in both cases."""
    want = alone.generate("Once", raw=True, max_new_tokens=200).text
    with serving_replicas(folder, *REPLICAS) as server:
        eventually(lambda: server.metric("replicas") == 2)
        with ThreadPoolExecutor(16) as pool:
            plain = [pool.submit(server.post, "/v1/completions", **LONG) for _ in range(6)]
            streams = [pool.submit(stream, server, LONG) for _ in range(6)]
            eventually(lambda: server.metric("slots_busy") > ROWS)
            first = set(named(server, "ServeReplica"))
            os.kill(named(server, victim)[0], signal.SIGKILL)
            later = [pool.submit(server.post, "/v1/completions", **LONG) for _ in range(4)]
            for one in (*plain, *later):
                answer = one.result()
                assert answer.status_code == 200, answer.text
                assert answer.json()["choices"][0]["text"] == want
            broken = 0
            for text, error in (one.result() for one in streams):
                if error is None:
                    assert text == want
                    continue
                broken += 1
                assert error["code"] == "engine_down"
                assert want.startswith(text)
                assert text  # a stream without text moves to another replica
            assert broken <= ROWS
        assert server.metric("engine_restarts_total") == 1
        assert server.client.get("/ready").status_code == 200
        eventually(lambda: set(named(server, "ServeReplica")) - first)
        eventually(lambda: server.metric("replicas") == 2)
        with ThreadPoolExecutor(8) as pool:  # the new replica works too
            jobs = [pool.submit(server.post, "/v1/completions", **LONG) for _ in range(8)]
            eventually(lambda: server.metric("slots_busy") > ROWS)
            assert {one.result().status_code for one in jobs} == {200}


def test_server_without_replicas_reports_it_and_recovers(folder: str) -> None:
    with serving_replicas(folder, "--rows", "1") as server:
        with ThreadPoolExecutor(3) as pool:
            jobs = [pool.submit(server.post, "/v1/completions", **LONG) for _ in range(3)]
            eventually(lambda: server.metric("slots_busy") == 1)
            (pid,) = named(server, "ServeReplica")
            os.kill(pid, signal.SIGKILL)
            server.wait("/health", 503)
            refused = server.post("/v1/completions", prompt="Hi")
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "engine_down")
            assert refused.headers["retry-after"]
            # Requests accepted before wait for the next replica.
            assert [one.result().status_code for one in jobs] == [200] * 3
        server.wait()


def test_sigterm_answers_all_accepted_requests_and_ends_ray(folder: str) -> None:
    with serving_replicas(folder, *REPLICAS, "--drain-timeout", "120") as server:
        every = descendants(server.process.pid)
        assert any("raylet" in one for one in every.values())
        with ThreadPoolExecutor(10) as pool:
            jobs = [pool.submit(server.post, "/v1/completions", **LONG) for _ in range(8)]
            names = ("num_requests_waiting", "num_requests_running")
            eventually(lambda: sum(map(server.metric, names)) == 8)
            server.process.send_signal(signal.SIGTERM)
            server.wait("/ready", 503)
            late = server.post("/v1/completions", prompt="late")
            assert (late.status_code, late.json()["error"]["code"]) == (503, "draining")
            assert [one.result().status_code for one in jobs] == [200] * 8
        assert server.process.wait(PATIENCE) == 0
        eventually(lambda: not every.keys() & processes().keys())


def model_processes(server: Running) -> set[int]:
    """Return the processes that hold a model, or that could start such a process."""
    words = (
        "ServeReplica",
        "wavefront-dec",
        "ServeController",
        "Coordinator",
        "raylet",
        "gcs_server",
    )
    return {pid for word in words for pid in named(server, word)}


def test_replicas_end_with_a_killed_server(folder: str) -> None:
    with serving_replicas(folder, *REPLICAS) as server:
        every = model_processes(server)
        server.process.kill()
        server.process.wait()
        # Two agents of Ray, which hold no model, end a minute later.
        eventually(lambda: not every & processes().keys())


@pytest.fixture
def cluster() -> Iterator[str]:
    """Start a Ray cluster and return its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # Ray also assigns a GPU that does not exist.
    options = f"--head --block --port={port} --num-cpus=4 --num-gpus=1 --include-dashboard=false"
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", *options.split()]
    environment = {**os.environ, **TOKEN, "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        until = time.monotonic() + PATIENCE
        while "--block" not in (line := process.stdout.readline()):
            assert line, process.wait()
            assert time.monotonic() < until
        yield f"127.0.0.1:{port}"
        process.kill()  # SIGTERM would wait half a minute for clients
        process.communicate()


def test_two_servers_share_an_existing_cluster(folder: str, cluster: str, alone: Any) -> None:
    want = alone.generate("Hi", raw=True, max_new_tokens=12).text
    there = ("--address", cluster, "--rows", "1", "--gpus-per-replica", "0.5", "--device", "cpu")

    def replicas() -> list[int]:
        return [pid for pid, (_, command) in processes().items() if "ServeReplica" in command]

    before = set(replicas())
    with (
        serving_replicas(folder, *there, **TOKEN) as one,
        serving_replicas(folder, *there, **TOKEN) as two,
    ):
        for server in (one, two):  # both work at the same time
            made = server.post("/v1/completions", prompt="Hi", max_tokens=12)
            assert made.json()["choices"][0]["text"] == want
        found = {*replicas()} - before
        assert len(found) == 2
        for pid in found:
            (decoder,) = (
                one for one, command in descendants(pid).items() if "wavefront-dec" in command
            )
            environment = Path(f"/proc/{decoder}/environ").read_bytes().split(b"\0")
            assert b"CUDA_VISIBLE_DEVICES=0" in environment
        two.process.terminate()
        assert two.process.wait(PATIENCE) == 0, two.process.stderr.read()
        eventually(lambda: len({*replicas()} - before) == 1)
        assert one.post("/v1/completions", prompt="Hi", max_tokens=4).status_code == 200
        # The replica of a killed server notices by itself.
        one.process.kill()
        one.process.wait()
        eventually(lambda: not {*replicas()} - before)


def test_unknown_model_exits_with_an_error() -> None:
    arguments = ["-m", "nothing-like-it", "--port", "0", "--engine", "ray"]
    command = [sys.executable, "-m", "wavefront", "serve", *arguments]
    made = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert made.returncode == 1
    assert "error: There is no model 'nothing-like-it'" in made.stderr
    assert "Traceback" not in made.stderr
