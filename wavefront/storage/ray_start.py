"""Ray, found and started: for runs on a cluster and for servers with replicas alike."""

from __future__ import annotations

import os
import secrets
import sys
from typing import Any

from wavefront.core.errors import MissingExtraError, RunError


def load_ray(address: str | None) -> Any:
    """The package, which is an extra, for use with this cluster or (None) one of our own.

    Ray listens on every address of the machine and runs what it is sent, so one of our own asks
    for a token that is drawn for it. Ray reads such settings when it is imported; versions before
    2.52 know no tokens.
    """
    if "ray" not in sys.modules:
        # A thread of Ray Serve that asks once more after the end must not start Ray anew.
        os.environ.setdefault("RAY_ENABLE_AUTO_CONNECT", "0")
    if "ray" not in sys.modules and is_own(address):
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent anywhere
        if "RAY_AUTH_MODE" not in os.environ:
            os.environ["RAY_AUTH_MODE"] = "token"
            os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    try:
        import ray
    except ImportError:
        raise MissingExtraError("--engine ray needs Ray: pip install 'wavefront[ray]'.") from None
    return ray


def is_own(address: str | None) -> bool:
    """Whether the cluster is one that we start."""
    return address is None and "RAY_ADDRESS" not in os.environ


def start_ray(address: str | None, *, cores: int) -> bool:
    """Connect to a cluster, or start one here with so many cores; False if that was done before."""
    ray = load_ray(address)
    if ray.is_initialized():
        return False
    given: dict[str, Any] = {"address": address}
    if is_own(address):
        # Ray counts the cores there are; whoever asks for more than that, means it.
        cores = max(cores, os.cpu_count() or 1)
        # Ray by itself would rather join one that somebody has started on this machine.
        given = {"address": "local", "include_dashboard": False, "num_cpus": cores}
    try:
        ray.init(log_to_driver=False, logging_level="ERROR", **given)
    # Whatever Ray or its network stack raises, the user needs the one sentence.
    except Exception as error:
        reason = " ".join(str(error).split())[:200].rstrip(".")
        where = address or "this machine"
        raise RunError(f"Ray cannot be reached at {where}: {reason}.") from error
    return True
