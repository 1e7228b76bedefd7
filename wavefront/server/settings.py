"""Settings: everything that whoever starts a server can say."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from wavefront.core.errors import OptionError, check_float, check_int

LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, kw_only=True)
class Source:
    """Which model, and where it runs: the arguments of `wavefront.load`."""

    model: str
    device: str | None = None
    dtype: str | None = None
    revision: str | None = None
    offline: bool = False
    capture: bool = False
    compile: bool = False


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a request may ask for, and how long anything may take."""

    rows: int = 8  # requests decoded at once
    queue: int = 64  # requests that wait, beyond those
    length: int = 0  # places of a board, prompt included; 0: what the model takes, at most 4096
    new_tokens: int = 2048
    steps: int = 2048
    messages: int = 256
    body: int = 1 << 20  # bytes
    seconds: float = 600.0  # until a request is given up
    drain: float = 30.0  # until what is under way at SIGTERM is given up
    stuck: float = 120.0  # without a sign of life, while it is busy
    keep: float = 300.0  # seconds that what happened can be read after the end
    kept: int = 64 << 20  # bytes of that, in all
    alone: float = 10.0  # until a decode of the page that nobody watches is given up
    quiet: float = 5.0  # between two signs of life in a stream
    unread: float = 60.0  # until a reader that takes nothing is let go

    def __post_init__(self) -> None:
        for name in ("rows", "new_tokens", "steps", "messages", "body"):
            check_int(name, getattr(self, name), 1)
        for name in ("queue", "length", "kept"):
            check_int(name, getattr(self, name), 0)
        for name in ("seconds", "stuck", "alone", "quiet", "unread"):
            check_float(name, getattr(self, name), 0.05)
        for name in ("drain", "keep"):
            check_float(name, getattr(self, name), 0)


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Replicas on Ray Serve, each with the model and `Limits.rows` rows of its own."""

    replicas: int = 1
    address: str | None = None  # of a cluster that runs, or "auto"; None starts one here
    cpus: float = 1.0  # of each replica
    gpus: float = 0.0  # of each replica; half a one lets two share it

    def __post_init__(self) -> None:
        check_int("replicas", self.replicas, 1)
        check_float("cpus_per_replica", self.cpus, 0)
        check_float("gpus_per_replica", self.gpus, 0)
        if self.gpus > 1 and self.gpus != int(self.gpus):
            raise OptionError(f"gpus_per_replica above 1 must be whole, not {self.gpus}.")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """A server."""

    source: Source
    host: str = "127.0.0.1"
    port: int = 8000
    api_key: str | None = field(default=None, repr=False)
    open_metrics: bool = False  # /metrics without the key
    hosts: tuple[str, ...] = ()  # names that requests may call us by, beyond the obvious
    name: str | None = None  # of the model, in the API
    page: bool = True
    lanes: str = "auto"  # "fit": boards as small as the requests; "one": one board for all
    cache: str | None = None
    threads: int = 0  # of torch; 0: its own choice
    limits: Limits = field(default_factory=Limits)
    scale: Scale | None = None  # None: one decode process, beside this one

    def __post_init__(self) -> None:
        check_int("port", self.port, 0, 65535)
        if self.lanes not in ("auto", "fit", "one"):
            raise OptionError(f"lanes must be auto, fit or one, not {self.lanes!r}.")
        if self.api_key is not None and (not self.api_key.strip() or not self.api_key.isascii()):
            raise OptionError("The API key must be plain characters, and some: choose another.")

    @property
    def key_hash(self) -> bytes | None:
        """The key as it is kept and compared."""
        return None if self.api_key is None else hashlib.sha256(self.api_key.encode()).digest()

    @property
    def known_hosts(self) -> frozenset[str] | None:
        """Names that requests may call us by; None: any, because we do not know our own."""
        if self.host in LOOPBACK or self.hosts:
            # This machine always: a probe from inside knows no other name.
            return frozenset((*LOOPBACK, *self.hosts))
        return None
