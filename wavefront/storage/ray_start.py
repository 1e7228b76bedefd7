"""Import and start Ray, for evaluation on a cluster and for servers with replicas."""

from __future__ import annotations

import os
import secrets
import sys
from typing import Any

from wavefront.core.errors import MissingExtraError, RunError, install_command


def load_ray(address: str | None) -> Any:
    """Import Ray for use with the cluster at `address`, or (None) with a cluster that we start.

    Ray listens on every address of the machine and runs the code it receives. So a cluster that we
    start requires a random token. Ray reads these settings at import; versions before 2.52 do not
    support tokens.
    """
    if "ray" not in sys.modules:
        # A Ray Serve thread that is still running after shutdown must not start Ray again.
        os.environ.setdefault("RAY_ENABLE_AUTO_CONNECT", "0")
    if "ray" not in sys.modules and is_own(address):
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # do not send usage statistics
        if "RAY_AUTH_MODE" not in os.environ:
            os.environ["RAY_AUTH_MODE"] = "token"
            os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    try:
        import ray
    except ImportError:
        raise MissingExtraError(f"--engine ray needs Ray: {install_command('ray')}.") from None
    return ray


def is_own(address: str | None) -> bool:
    """Return whether we start the cluster ourselves."""
    return address is None and "RAY_ADDRESS" not in os.environ


def start_ray(address: str | None, *, cores: int) -> bool:
    """Connect to a cluster, or start one with this many cores; False if Ray already runs."""
    ray = load_ray(address)
    if ray.is_initialized():
        return False
    given: dict[str, Any] = {"address": address}
    if is_own(address):
        # By default Ray uses all cores of the machine; use more only if requested.
        cores = max(cores, os.cpu_count() or 1)
        # By default Ray would join a cluster that is already running on this machine.
        given = {"address": "local", "include_dashboard": False, "num_cpus": cores}
    try:
        ray.init(log_to_driver=False, logging_level="ERROR", **given)
    # Ray and its network stack can raise anything; report all of it the same way.
    except Exception as error:
        reason = " ".join(str(error).split())[:200].rstrip(".")
        where = address or "this machine"
        raise RunError(f"Ray cannot be reached at {where}: {reason}.") from error
    return True
