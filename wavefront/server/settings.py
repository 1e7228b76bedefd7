"""Everything that you can configure when you start a server."""

from __future__ import annotations

import hashlib
import ipaddress
from dataclasses import dataclass, field
from typing import Any

from wavefront.core.errors import OptionError, check_choice, check_float, check_int, quote

LOOPBACK = ("localhost", "127.0.0.1", "::1")
MAX_HEADER_BYTES = 64 << 10
BATCH_SHAPES = ("auto", "fit", "fixed")
QUANTIZATIONS = ("int8", "fp8", "int4")  # as in models/quantize.py, which imports torch


@dataclass(frozen=True, kw_only=True)
class ModelSource:
    """Which model to load, and where: the arguments of `wavefront.load`."""

    model: str
    device: str | None = None
    dtype: str | None = None
    quantize: str | None = None
    revision: str | None = None
    offline: bool = False
    mask_id: int | None = None
    attention: str | None = None
    block_size: int | None = None
    cuda_graphs: bool | None = None
    compile: bool = False
    speed: str = "exact"

    def __post_init__(self) -> None:
        # A factory, module:factory, may have its own kinds.
        if self.quantize is not None and ":" not in self.model:
            check_choice("quantize", self.quantize, QUANTIZATIONS)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits on the size, number and duration of requests. Times are in seconds."""

    rows: int = 8  # requests decoded at the same time
    queue: int = 64  # requests that may wait in addition
    length: int = 0  # positions of a canvas, prompt included; 0: the model's, at most 4096
    new_tokens: int = 2048
    steps: int = 2048
    messages: int = 256
    choices: int = 16  # of one request
    # Bytes of keys and values of prompts that requests of a block-causal model share. None: a
    # twentieth of a GPU's memory, or 256 MiB without one.
    prefix_bytes: int | None = None
    body: int = 1 << 20  # bytes of a request body
    prompt_bytes: int = 0  # bytes of a prompt's text; 0: 32 for each position of a canvas
    client_rows: int = 0  # rows that one address may use; 0: all but one
    client_queue: int = 0  # requests of one address that may wait; 0: half of the queue
    encode_timeout: float = 5.0  # reject a prompt that takes longer to tokenise
    compile_timeout: float = 15.0  # reject a constraint that takes longer to compile
    health_timeout: float = 5.0  # report a decode process as stalled after this silence
    request_timeout: float = 600.0  # cancel a request after this time
    drain_timeout: float = 30.0  # after SIGTERM, fail what is still running after this time
    stall_timeout: float = 120.0  # restart a decode process that is silent for this time
    event_ttl: float = 300.0  # keep the events of a finished decode for this time
    event_bytes: int = 64 << 20  # memory for the events of all decodes
    readers: int = 16  # of the events of one decode, at the same time
    orphan_timeout: float = 10.0  # cancel a detached decode that has no reader for this time
    keepalive_interval: float = 5.0  # send a comment into a silent stream after this time
    write_timeout: float = 60.0  # close a connection whose client accepts no data for this time
    header_timeout: float = 10.0  # close a connection whose headers take longer to arrive
    body_timeout: float = 30.0  # close a connection whose body takes longer to arrive
    pending_bytes: int = 64 << 20  # memory for requests that have not arrived completely
    connections: int = 1024  # open at the same time
    connections_per_address: int = 512  # of one client address, or one IPv6 network of 64 bits

    def __post_init__(self) -> None:
        for name in (
            "rows",
            "new_tokens",
            "steps",
            "messages",
            "choices",
            "body",
            "readers",
            "connections",
            "connections_per_address",
        ):
            check_int(name, getattr(self, name), 1)
        for name in (
            "queue",
            "length",
            "event_bytes",
            "prompt_bytes",
            "client_rows",
            "client_queue",
        ):
            check_int(name, getattr(self, name), 0)
        if self.prefix_bytes is not None:
            check_int("prefix_bytes", self.prefix_bytes, 0)
        for name in (
            "request_timeout",
            "stall_timeout",
            "encode_timeout",
            "compile_timeout",
            "health_timeout",
            "orphan_timeout",
            "keepalive_interval",
            "write_timeout",
            "header_timeout",
            "body_timeout",
        ):
            check_float(name, getattr(self, name), 0.05)
        for name in ("drain_timeout", "event_ttl"):
            check_float(name, getattr(self, name), 0)
        check_int("pending_bytes", self.pending_bytes, 1)
        needed = self.body + MAX_HEADER_BYTES
        if self.pending_bytes < needed:
            raise OptionError(
                f"pending_bytes must be at least {needed} to receive one body, not "
                f"{self.pending_bytes}: raise --max-pending-bytes or lower --max-body.",
                option="pending_bytes",
                value=self.pending_bytes,
            )

    def rows_per_client(self, rows: int) -> int:
        """Return how many of `rows` rows one address may use."""
        return min(rows, self.client_rows or max(1, rows - 1))

    @property
    def queue_per_client(self) -> int:
        """How many requests from one address may wait."""
        return min(self.queue, self.client_queue or max(1, self.queue // 2))


@dataclass(frozen=True, kw_only=True)
class ReplicaScale:
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

    source: ModelSource
    host: str = "127.0.0.1"
    port: int = 8000
    api_key: str | None = field(default=None, repr=False)
    open_metrics: bool = False  # serve /metrics without the API key
    hosts: tuple[str, ...] = ()  # accepted Host names besides those of this machine
    # Addresses or networks of reverse proxies, whose X-Forwarded-For names the client.
    trusted_proxies: tuple[str, ...] = ()
    name: str | None = None  # the model's name in the API
    page: bool = True
    batch_shape: str = "auto"  # "fixed": one batch for all; "fit": batches sized to the requests
    # Decoding options of requests that do not set them; None: the library's defaults.
    strategy: str | None = None
    steps: int | None = None
    eos: str | None = None
    cache: str | None = None
    threads: int = 0  # torch threads; 0: torch decides
    limits: Limits = field(default_factory=Limits)
    scale: ReplicaScale | None = None  # None: one local decode process

    def __post_init__(self) -> None:
        check_int("port", self.port, 0, high=65535)
        check_choice("batch_shape", self.batch_shape, BATCH_SHAPES)
        if self.steps is not None:
            check_int("steps", self.steps, 1, high=self.limits.steps)
        if self.api_key is not None and (not self.api_key.strip() or not self.api_key.isascii()):
            raise OptionError("The API key must be non-empty ASCII.", option="api_key")
        for one in self.trusted_proxies:
            try:
                ipaddress.ip_network(one)
            except ValueError:
                raise OptionError(
                    f"A trusted proxy must be an IP address or a network such as 10.0.0.0/8, not "
                    f"{quote(one)}.",
                    option="trust_proxy",
                    value=one,
                ) from None
        if self.host not in LOOPBACK and self.api_key is None and not self.hosts:
            # Without either, a page of any site could use the server through DNS rebinding.
            raise OptionError(
                f"To listen on {self.host or 'all addresses'}, set WAVEFRONT_API_KEY or --api-key "
                "to require a key, or give --allow-host with each name that clients use.",
                option="host",
                value=self.host,
            )

    @property
    def defaults(self) -> dict[str, Any]:
        """The decoding options that are set here, by name."""
        names = ("strategy", "steps", "eos", "cache")
        values = {name: getattr(self, name) for name in names}
        return {name: value for name, value in values.items() if value is not None}

    @property
    def key_hash(self) -> bytes | None:
        """The hash of the API key, or None if no key is required."""
        if self.api_key is None:
            return None
        # A header cannot have blanks around the key, but a variable often ends with a line break.
        return hashlib.sha256(self.api_key.strip().encode()).digest()

    @property
    def known_hosts(self) -> frozenset[str] | None:
        """The accepted Host names in lower case, or None to accept every name.

        Every name is accepted only if requests need the API key, which another site cannot send.
        """
        if self.host not in LOOPBACK and not self.hosts:
            return None
        # Always accept loopback names: health checks on this machine use them.
        return frozenset((*LOOPBACK, *(name.lower() for name in self.hosts)))
