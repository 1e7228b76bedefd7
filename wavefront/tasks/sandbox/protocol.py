"""The messages between checker and runner: lines of JSON that hold values.

Plain data travels as data. Every other object travels as a number that refers to it. Nothing is
ever unpickled: messages come from untrusted code, so reading one builds only built-in values and a
few standard-library ones, and rejects everything else.
"""

from __future__ import annotations

import json

TYPE_CHECKING = False  # importing typing would take longer than all other imports here
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, BinaryIO

    Reference = Callable[[Any], int]
    Resolve = Callable[[int], Any]

MAX_BYTES = 1 << 23  # of one message
COLLECTIONS = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}
# Standard-library types that travel as the arguments that construct them.
CONSTRUCTOR_ARGUMENTS: dict[tuple[str, str], Callable[[Any], tuple[Any, ...]]] = {
    ("decimal", "Decimal"): lambda x: (str(x),),
    ("fractions", "Fraction"): lambda x: (x.numerator, x.denominator),
    ("datetime", "date"): lambda x: (x.year, x.month, x.day),
    ("datetime", "timedelta"): lambda x: (x.days, x.seconds, x.microseconds),
    ("collections", "deque"): lambda x: (list(x),),
    ("array", "array"): lambda x: (x.typecode, list(x)),
    ("builtins", "range"): lambda x: (x.start, x.stop, x.step),
    ("builtins", "complex"): lambda x: (x.real, x.imag),
}
TYPES = (bool, int, float, complex, str, bytes, list, tuple, dict, set, frozenset)
# Operations that a proxy forwards to its object. None of them reveals the expected value.
FORWARDED = ("next", "len", "bool", "str", "repr", "getitem")


class ProtocolError(Exception):
    """A message that is not valid."""


def pack(value: Any, reference: Reference) -> Any:
    """Convert `value` to JSON types. Objects that are not plain data become `reference(value)`."""
    if value is None or value is True or value is False:
        return value
    for kind in (int, float, str, bytes, bytearray):
        if isinstance(value, kind):
            return [kind.__name__, _scalar(kind, value)]
    for name, kind in COLLECTIONS.items():
        if isinstance(value, kind):
            return [name, [pack(item, reference) for item in kind.__iter__(value)]]
    if isinstance(value, dict):
        pairs = dict.items(value)
        return ["dict", [[pack(key, reference), pack(item, reference)] for key, item in pairs]]
    if any(value is kind for kind in TYPES):
        return ["type", value.__name__]
    kind = type(value)
    arguments = CONSTRUCTOR_ARGUMENTS.get((kind.__module__, kind.__name__))
    if arguments is not None:
        parts = [pack(part, reference) for part in arguments(value)]
        return ["instance", [kind.__module__, kind.__name__, parts]]
    return ["reference", reference(value)]


def _scalar(kind: type, value: Any) -> str:
    if kind is int:
        return int.__format__(value, "x")  # no limit on digits, and fast for long numbers
    if kind is float:
        return float.hex(value)
    if kind is str:
        return str.__str__(value)
    return bytes(value).hex()


def unpack(data: Any, resolve: Resolve) -> Any:
    """Convert back to the value. Raise ProtocolError for anything that `pack` does not write."""
    if data is None or data is True or data is False:
        return data
    if not isinstance(data, list) or len(data) != 2:
        raise ProtocolError
    name, body = data
    try:
        if name in COLLECTIONS:
            return COLLECTIONS[name](unpack(item, resolve) for item in body)
        return READERS[name](body, resolve)
    except RecursionError:
        raise
    except Exception:
        raise ProtocolError from None


def _instance(body: Any, resolve: Resolve) -> Any:
    module, name, parts = body
    if (module, name) not in CONSTRUCTOR_ARGUMENTS:
        raise ProtocolError
    kind = getattr(__import__(module), name)
    return kind(*(unpack(part, resolve) for part in parts))


def _referenced(body: Any, resolve: Resolve) -> Any:
    if not isinstance(body, int):
        raise ProtocolError
    return resolve(body)


READERS: dict[str, Callable[[Any, Resolve], Any]] = {
    "int": lambda body, _: int(body, 16),
    "float": lambda body, _: float.fromhex(body),
    "str": lambda body, _: str(body),
    "bytes": lambda body, _: bytes.fromhex(body),
    "bytearray": lambda body, _: bytearray.fromhex(body),
    "dict": lambda body, f: {unpack(key, f): unpack(item, f) for key, item in body},
    "type": lambda body, _: next(kind for kind in TYPES if kind.__name__ == body),
    "instance": _instance,
    "reference": _referenced,
}


def send(stream: BinaryIO, message: Any) -> None:
    """Write one message as a line."""
    stream.write(json.dumps(message).encode() + b"\n")
    stream.flush()


def receive(stream: BinaryIO) -> Any:
    """Read the next message.

    Raises:
        EOFError: The stream ended.
        ProtocolError: The line is too long or is not JSON.
    """
    line = stream.readline(MAX_BYTES)
    if not line:
        raise EOFError
    if not line.endswith(b"\n"):
        raise ProtocolError
    try:
        return json.loads(line)
    except ValueError:
        raise ProtocolError from None
