"""Values as lines of JSON between judge and prisoner: plain data, and numbers for everything else.

Nothing is ever unpickled. What is read comes from untrusted code, so reading builds built-in
values only, and refuses the rest.
"""

from __future__ import annotations

import json

TYPE_CHECKING = False  # typing takes longer to import than all else here
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, BinaryIO

    Shelve = Callable[[Any], int]
    Fetch = Callable[[int], Any]

LONGEST = 1 << 23  # bytes of one message
TUPLES = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}
# Values of the standard library that are written by what makes them again.
MADE: dict[tuple[str, str], Callable[[Any], tuple[Any, ...]]] = {
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
# What a stand-in asks of the object it stands for. None of it tells the object what is expected.
ASKED = ("next", "len", "bool", "str", "repr", "getitem")


class WireError(Exception):
    """A message that is none."""


def pack(value: Any, shelve: Shelve) -> Any:
    """`value` as JSON can hold it; what is not plain data gets a number from `shelve`."""
    if value is None or value is True or value is False:
        return value
    for kind in (int, float, str, bytes, bytearray):
        if isinstance(value, kind):
            return [kind.__name__, _scalar(kind, value)]
    for name, kind in TUPLES.items():
        if isinstance(value, kind):
            return [name, [pack(item, shelve) for item in kind.__iter__(value)]]
    if isinstance(value, dict):
        pairs = dict.items(value)
        return ["dict", [[pack(key, shelve), pack(item, shelve)] for key, item in pairs]]
    if any(value is kind for kind in TYPES):
        return ["type", value.__name__]
    kind = type(value)
    made = MADE.get((kind.__module__, kind.__name__))
    if made is not None:
        parts = [pack(part, shelve) for part in made(value)]
        return ["made", [kind.__module__, kind.__name__, parts]]
    return ["held", shelve(value)]


def _scalar(kind: type, value: Any) -> str:
    if kind is int:
        return int.__format__(value, "x")  # no limit on digits, and quick for long ones
    if kind is float:
        return float.hex(value)
    if kind is str:
        return str.__str__(value)
    return bytes(value).hex()


def unpack(data: Any, fetch: Fetch) -> Any:
    """The value again; anything that `pack` would not have written is refused."""
    if data is None or data is True or data is False:
        return data
    if not isinstance(data, list) or len(data) != 2:
        raise WireError
    name, body = data
    try:
        if name in TUPLES:
            return TUPLES[name](unpack(item, fetch) for item in body)
        return READ[name](body, fetch)
    except RecursionError:
        raise
    except Exception:
        raise WireError from None


def _made(body: Any, fetch: Fetch) -> Any:
    module, name, parts = body
    if (module, name) not in MADE:
        raise WireError
    kind = getattr(__import__(module), name)
    return kind(*(unpack(part, fetch) for part in parts))


def _held(body: Any, fetch: Fetch) -> Any:
    if not isinstance(body, int):
        raise WireError
    return fetch(body)


READ: dict[str, Callable[[Any, Fetch], Any]] = {
    "int": lambda body, _: int(body, 16),
    "float": lambda body, _: float.fromhex(body),
    "str": lambda body, _: str(body),
    "bytes": lambda body, _: bytes.fromhex(body),
    "bytearray": lambda body, _: bytearray.fromhex(body),
    "dict": lambda body, f: {unpack(key, f): unpack(item, f) for key, item in body},
    "type": lambda body, _: next(kind for kind in TYPES if kind.__name__ == body),
    "made": _made,
    "held": _held,
}


def send(stream: BinaryIO, message: Any) -> None:
    """One line."""
    stream.write(json.dumps(message).encode() + b"\n")
    stream.flush()


def receive(stream: BinaryIO) -> Any:
    """The next line; EOFError at the end, WireError for what is too long or no JSON."""
    line = stream.readline(LONGEST)
    if not line:
        raise EOFError
    if not line.endswith(b"\n"):
        raise WireError
    try:
        return json.loads(line)
    except ValueError:
        raise WireError from None
