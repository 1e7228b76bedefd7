"""The imports of the fork server, which make the processes forked from it start quickly.

Only the fork server imports this module; see `child_process`. Nothing here may start a thread or
use a GPU, because neither survives a fork.
"""

from __future__ import annotations

import contextlib
import importlib
import signal

import wavefront.server.decode_worker
import wavefront.server.job_processes
import wavefront.server.local_backend  # noqa: F401

with contextlib.suppress(ImportError):
    # torch imports this when it makes the first model, which takes seconds.
    importlib.import_module("torch._dynamo")

# A service manager signals every process of the server; the HTTP process decides when to stop.
signal.signal(signal.SIGTERM, signal.SIG_IGN)
