"""Ray Serve, found, started and left as it was; and what replicas are given."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from wavefront.core.errors import MissingExtraError, WavefrontWarning
from wavefront.server.settings import Scale, Settings
from wavefront.storage.hub import builtin_checkpoints
from wavefront.storage.ray_start import is_own, load_ray, start_ray

ASIDE = "wavefront-aside"  # threads


def load_serve(address: str | None) -> Any:
    """Ray Serve, which is an extra."""
    try:
        load_ray(address)
        from ray import serve
    except (ImportError, MissingExtraError):
        raise MissingExtraError(
            "--engine ray needs Ray Serve: pip install 'wavefront[ray-serve]'."
        ) from None
    return serve


@contextlib.contextmanager
def cluster(scale: Scale) -> Iterator[None]:
    """Ray, while the server runs; what was started for it ends with it."""
    serve = load_serve(scale.address)
    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    began = start_ray(scale.address, cores=math.ceil(scale.replicas * scale.cpus))
    ray = load_ray(scale.address)
    try:
        gpus = ray.cluster_resources().get("GPU", 0)
        if gpus and not scale.gpus:
            message = f"{gpus:g} GPUs are there and no replica uses one: give --gpus-per-replica."
            warnings.warn(message, WavefrontWarning, stacklevel=2)
        yield
        if not is_own(scale.address):
            with contextlib.suppress(Exception):  # the cluster may be gone before us
                left = serve.status()
                if not (left.applications or left.proxies):
                    serve.shutdown()  # nobody else uses it
    finally:
        still()
        if began:
            ray.shutdown()


def begin(serve: Any, application: Any, name: str) -> None:
    """Have it run, without waiting: who waits asks Ray every second, also when the server ends."""
    if not hasattr(serve, "run_many"):  # an older Ray always waits
        serve.run(application, name=name, route_prefix=None)
        return
    serve.run_many(
        [serve.RunTarget(application, name=name, route_prefix=None)],
        wait_for_ingress_deployment_creation=False,
        wait_for_applications_running=False,
    )


def still(patience: float = 10.0) -> None:
    """Wait for threads that are still asking Ray: one that asks when it is shut down is answered by
    the end of the process, with status 1, and one that deploys after the end has nobody to end it.
    """
    end = time.monotonic() + patience
    for thread in threading.enumerate():
        if thread.name == ASIDE:
            thread.join(max(0.0, end - time.monotonic()))


async def aside(work: Callable[[], Any]) -> Any:
    """Blocking work in a thread that nobody has to wait for at the end."""
    loop = asyncio.get_running_loop()
    made: asyncio.Future[Any] = loop.create_future()

    def tell(set: Callable[[Any], None], value: Any) -> None:
        if not made.done():
            set(value)

    def run() -> None:
        try:
            said = (made.set_result, work())
        except Exception as error:
            said = (made.set_exception, error)
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(tell, *said)

    threading.Thread(target=run, daemon=True, name=ASIDE).start()
    return await made


def remote(settings: Settings) -> Settings:
    """The same as a replica needs it: paths that hold anywhere, no secrets, nothing kept."""
    assert settings.scale is not None
    source, local = settings.source, Path(settings.source.model).expanduser()
    if source.model not in (*builtin_checkpoints(), "toy") and local.is_dir():
        source = replace(source, model=str(local.resolve()))
    threads = settings.threads or max(1, int(settings.scale.cpus))
    limits = replace(settings.limits, keep=0.0)
    return replace(settings, source=source, api_key=None, threads=threads, limits=limits)
