"""The Ray backend, without Ray: options, settings, deployment and shutdown."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.commands import refused

from wavefront.core.errors import MissingExtraError, OptionError
from wavefront.server.metrics import Metrics
from wavefront.server.ray_backend import (
    DEPLOYMENT,
    RayBackend,
    deploy,
    join_threads,
    load_serve,
    replica_settings,
    run_in_thread,
)
from wavefront.server.settings import Limits, ModelSource, ReplicaScale, Settings
from wavefront.server.worker_messages import ModelInfo
from wavefront.storage.ray_start import load_ray


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--engine", "slurm"), "engine must be one of local, ray; 'slurm' is not"),
        (("--replicas", "2"), "give --engine ray as well"),
        (("--address", "auto"), "give --engine ray as well"),
        (("--gpus-per-replica", "1"), "give --engine ray as well"),
        (("--engine", "ray", "--replicas", "0"), "replicas must be at least 1, not 0"),
        (("--engine", "ray", "--cpus-per-replica", "-1"), "--cpus-per-replica must be at least 0"),
        (
            ("--engine", "ray", "--gpus-per-replica", "1.5"),
            "--gpus-per-replica above 1 must be a whole number",
        ),
    ],
)
def test_invalid_replica_options_are_rejected(args: tuple[str, ...], words: str) -> None:
    assert words in refused("serve", "-m", "toy", "--port", "0", *args)


def test_replica_count_must_be_an_int() -> None:
    with pytest.raises(OptionError, match="replicas must be a whole number"):
        ReplicaScale(replicas=True)
    with pytest.raises(OptionError, match="replicas"):
        ReplicaScale(replicas=1.5)


@pytest.mark.parametrize("missing", ["ray", "ray.serve"])
def test_missing_ray_says_what_to_install(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    if missing == "ray.serve":
        monkeypatch.delattr("ray.serve", raising=False)
    with pytest.raises(MissingExtraError, match=r"pip install -e '.*\[ray-serve\]'"):
        load_serve("auto")
    error = refused("serve", "-m", "toy", "--port", "0", "--engine", "ray", "--address", "auto")
    assert error.endswith("--engine ray needs Ray Serve: pip install -e '.[ray-serve]'.")


@pytest.mark.slow
def test_ray_backend_imports_neither_torch_nor_ray() -> None:
    check = "print('torch' in sys.modules, 'ray' in sys.modules)"
    code = f"import sys, wavefront.server.ray_backend; {check}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False False\n"


def test_only_a_local_ray_gets_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "ray")  # monkeypatch restores it at the end
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_ADDRESS"):
        monkeypatch.setenv(name, "")  # monkeypatch restores it at the end
        monkeypatch.delenv(name)
    nowhere = SimpleNamespace(find_spec=lambda *_: None)  # finds no module
    monkeypatch.setattr(sys, "meta_path", [nowhere])
    with pytest.raises(MissingExtraError):
        load_ray("10.0.0.1:6379")
    assert "RAY_AUTH_TOKEN" not in os.environ
    with pytest.raises(MissingExtraError):
        load_ray(None)
    assert os.environ["RAY_AUTH_MODE"] == "token"
    assert len(os.environ["RAY_AUTH_TOKEN"]) == 64


def test_replica_settings_have_no_key_and_an_absolute_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path.parent)
    scale = ReplicaScale(replicas=2, cpus=3)
    source = ModelSource(model=tmp_path.name)
    settings = Settings(source=source, host="0.0.0.0", api_key="secret", scale=scale)
    copied = replica_settings(settings)
    assert copied.source.model == str(tmp_path)
    assert (copied.api_key, copied.threads, copied.limits.event_ttl) == (None, 3, 0.0)
    for name in ("toy", "ripple", "org/model"):
        kept = replica_settings(Settings(source=ModelSource(model=name), scale=scale, threads=1))
        assert (kept.source.model, kept.threads) == (name, 1)


def test_join_threads_waits_for_pending_calls() -> None:
    done: list[str] = []

    def call() -> None:
        time.sleep(0.3)
        done.append("called")

    async def cancel_call() -> None:
        task = asyncio.create_task(run_in_thread(call))
        await asyncio.sleep(0.05)
        task.cancel()

    asyncio.run(cancel_call())
    assert done == []
    join_threads(timeout=30.0)
    assert done == ["called"]


def test_stop_during_deployment_deletes_the_deployment(monkeypatch) -> None:
    seen: list[str] = []

    def start(**options: Any) -> None:
        time.sleep(0.3)  # starting the controller takes time

    def deployment(**options: Any) -> Any:
        return lambda kind: SimpleNamespace(bind=lambda *arguments: "app")

    serve = SimpleNamespace(
        deployment=deployment,
        start=start,
        run=lambda app, **more: seen.append("deployed"),
        delete=lambda name: seen.append("deleted"),
    )
    monkeypatch.setattr("wavefront.server.ray_backend.load_ray", lambda address: SimpleNamespace())
    monkeypatch.setattr("wavefront.server.ray_backend.load_serve", lambda address: serve)
    scale = ReplicaScale(replicas=1, cpus=1, gpus=0, address="somewhere:6379")
    settings = Settings(source=ModelSource(model="toy"), limits=Limits(), scale=scale)
    backend = RayBackend(settings, Metrics())
    backend._coordinator = None

    async def stop_at_once() -> None:
        backend._tasks = [asyncio.create_task(backend._deploy())]
        await asyncio.sleep(0.05)
        await backend.stop()

    asyncio.run(stop_at_once())
    assert seen == ["deployed", "deleted"]


def test_backend_is_stalled_if_all_its_replicas_are(monkeypatch) -> None:
    monkeypatch.setattr("wavefront.server.ray_backend.load_ray", lambda address: SimpleNamespace())
    monkeypatch.setattr("wavefront.server.ray_backend.load_serve", lambda address: None)
    scale = ReplicaScale(replicas=2, cpus=1, gpus=0, address="somewhere:6379")
    backend = RayBackend(Settings(source=ModelSource(model="toy"), scale=scale), Metrics())
    states = {"RUNNING": 2}
    deployment = SimpleNamespace(replica_states=states)
    application = SimpleNamespace(deployments={DEPLOYMENT: deployment}, status="RUNNING")
    applications = {backend.name: application}
    backend.serve = SimpleNamespace(status=lambda: SimpleNamespace(applications=applications))
    backend.model_info = ModelInfo("toy", False, "fp", 20, 640, "llada", {}, {}, {})

    async def found(stalled: int) -> bool:
        async def count() -> int:
            return stalled

        async def errors() -> list[str]:
            return []

        backend._coordinator = SimpleNamespace(
            stalled=SimpleNamespace(remote=count), load_errors=SimpleNamespace(remote=errors)
        )
        backend._complete_at = time.monotonic()
        await backend._update_status()
        return backend.is_stalled

    assert [asyncio.run(found(count)) for count in (0, 1, 2)] == [False, False, True]
    states["RUNNING"] = 0
    assert not asyncio.run(found(2))


def test_deploy_does_not_wait_if_ray_supports_it() -> None:
    calls: list[Any] = []
    new = SimpleNamespace(
        RunTarget=lambda app, **more: (app, more),
        run_many=lambda targets, **more: calls.append((targets, more)),
    )
    deploy(new, "app", "name")
    (((app, named),), waits) = calls.pop()
    assert (app, named) == ("app", {"name": "name", "route_prefix": None})
    assert set(waits.values()) == {False}
    deploy(SimpleNamespace(run=lambda app, **more: calls.append((app, more))), "app", "name")
    assert calls == [("app", named)]
