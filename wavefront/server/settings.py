"""Everything that you can configure when you start a server."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from wavefront.core.errors import OptionError, check_choice, check_float, check_int

LOOPBACK = ("localhost", "127.0.0.1", "::1")
BATCH_SHAPES = ("auto", "fit", "fixed")


@dataclass(frozen=True, kw_only=True)
class Source:
    """Which model to load, and where: the arguments of `wavefront.load`."""

    model: str
    device: str | None = None
    dtype: str | None = None
    revision: str | None = None
    offline: bool = False
    cuda_graphs: bool = False
    compile: bool = False


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits on the size, number and duration of requests. Times are in seconds."""

    rows: int = 8  # requests decoded at the same time
    queue: int = 64  # requests that may wait in addition
    length: int = 0  # positions of a canvas, prompt included; 0: the model's, at most 4096
    new_tokens: int = 2048
    steps: int = 2048
    messages: int = 256
    body: int = 1 << 20  # bytes of a request body
    request_timeout: float = 600.0  # cancel a request after this time
    drain_timeout: float = 30.0  # after SIGTERM, fail what is still running after this time
    stall_timeout: float = 120.0  # restart a decode process that is silent for this time
    event_ttl: float = 300.0  # keep the events of a finished decode for this time
    event_bytes: int = 64 << 20  # memory for the events of all finished decodes
    orphan_timeout: float = 10.0  # cancel a detached decode that nobody reads for this time
    keepalive_interval: float = 5.0  # send a comment into a silent stream after this time
    write_timeout: float = 60.0  # close a stream whose client accepts no data for this time

    def __post_init__(self) -> None:
        for name in ("rows", "new_tokens", "steps", "messages", "body"):
            check_int(name, getattr(self, name), 1)
        for name in ("queue", "length", "event_bytes"):
            check_int(name, getattr(self, name), 0)
        for name in (
            "request_timeout",
            "stall_timeout",
            "orphan_timeout",
            "keepalive_interval",
            "write_timeout",
        ):
            check_float(name, getattr(self, name), 0.05)
        for name in ("drain_timeout", "event_ttl"):
            check_float(name, getattr(self, name), 0)


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Replicas on Ray Serve. Each has its own model and `Limits.rows` rows."""

    replicas: int = 1
    address: str | None = None  # a running cluster, or "auto"; None: start Ray on this machine
    cpus: float = 1.0  # per replica
    gpus: float = 0.0  # per replica; with 0.5, two replicas share a GPU

    def __post_init__(self) -> None:
        check_int("replicas", self.replicas, 1)
        check_float("cpus_per_replica", self.cpus, 0)
        check_float("gpus_per_replica", self.gpus, 0)
        if self.gpus > 1 and self.gpus != int(self.gpus):
            raise OptionError(
                f"gpus_per_replica above 1 must be a whole number, not {self.gpus}.",
                option="gpus_per_replica",
                value=self.gpus,
            )


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The configuration of a server."""

    source: Source
    host: str = "127.0.0.1"
    port: int = 8000
    api_key: str | None = field(default=None, repr=False)
    open_metrics: bool = False  # serve /metrics without the API key
    hosts: tuple[str, ...] = ()  # accepted Host names besides those of this machine
    name: str | None = None  # the model's name in the API
    page: bool = True
    batch_shape: str = "auto"  # "fixed": one batch for all; "fit": batches sized to the requests
    cache: str | None = None
    threads: int = 0  # torch threads; 0: torch decides
    limits: Limits = field(default_factory=Limits)
    scale: Scale | None = None  # None: one local decode process

    def __post_init__(self) -> None:
        check_int("port", self.port, 0, 65535)
        check_choice("batch_shape", self.batch_shape, BATCH_SHAPES)
        if self.api_key is not None and (not self.api_key.strip() or not self.api_key.isascii()):
            raise OptionError("The API key must be non-empty ASCII.", option="api_key")

    @property
    def key_hash(self) -> bytes | None:
        """The hash of the API key, or None if no key is required."""
        return None if self.api_key is None else hashlib.sha256(self.api_key.encode()).digest()

    @property
    def known_hosts(self) -> frozenset[str] | None:
        """The accepted Host names, or None to accept every name."""
        if self.host in LOOPBACK or self.hosts:
            # Always accept loopback names: health checks on this machine use them.
            return frozenset((*LOOPBACK, *self.hosts))
        return None
