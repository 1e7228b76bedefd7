"""The process that runs the tests. The solution's functions and classes are stand-ins here.

A stand-in sends a call to the prisoner and builds the answer from plain data, so comparing happens
here, where the code under test has never been.
"""

from __future__ import annotations

import builtins

from wavefront.tasks.sandbox import protocol

TYPE_CHECKING = False  # typing takes longer to import than all else here
if TYPE_CHECKING:
    from typing import Any, BinaryIO


class Lost(Exception):
    """The prisoner is gone, or talks nonsense."""


class Line:
    """The way to the prisoner."""

    def __init__(self, requests: BinaryIO, answers: BinaryIO) -> None:
        self.requests, self.answers = requests, answers

    def ask(self, what: str, body: Any) -> tuple[Any, Any]:
        """The value, and the arguments where the call changed them."""
        try:
            protocol.send(self.requests, [what, body])
            kind, value, more = protocol.receive(self.answers)
            if kind == "value":
                fetch = self.stand_in
                return protocol.unpack(value, fetch), None if more is None else protocol.unpack(
                    more, fetch
                )
        except (OSError, EOFError):
            raise Lost("crash") from None
        except (protocol.WireError, RecursionError, MemoryError, ValueError, TypeError):
            raise Lost("garbled answer") from None
        raise remote_error(value, more)

    def apply(self, what: str, *args: Any) -> Any:
        """An operation in the prisoner; arguments that it changed are changed here too."""
        value, after = self.ask(what, protocol.pack(args, _number))
        if isinstance(after, tuple) and len(after) == len(args):
            _update(list(args), list(after))
        return value

    def stand_in(self, number: int) -> StandIn:
        return StandIn(self, number)


def _number(value: Any) -> int:
    if isinstance(value, StandIn):
        return object.__getattribute__(value, "_number")
    raise TypeError(f"a {type(value).__name__} cannot be handed to the solution")


def _update(mine: Any, theirs: Any) -> None:
    """Make my containers hold what theirs do, in place, as a call by reference would have."""
    if type(mine) is not type(theirs) or mine == theirs:
        return
    if isinstance(mine, list | tuple):
        for old, new in zip(mine, theirs, strict=False):
            _update(old, new)
    if isinstance(mine, list):
        kept = [old if old == new else new for old, new in zip(mine, theirs, strict=False)]
        mine[:] = kept + theirs[len(mine) :]
    elif isinstance(mine, dict | set):
        mine.clear()
        mine.update(theirs)


def remote_error(name: Any, message: Any) -> BaseException:
    """The prisoner's exception by its name: the built-in one, or one made for it."""
    kind = getattr(builtins, str(name), None)
    if not (isinstance(kind, type) and issubclass(kind, Exception)):
        kind = type(str(name), (Exception,), {})
    try:
        error = kind(str(message))
    except TypeError:  # UnicodeDecodeError and its like want more than a text
        error = type(str(name), (Exception,), {})(str(message))
    error.remote = True  # pyright: ignore[reportAttributeAccessIssue]
    return error


class StandIn:
    """A function, class or object of the solution, which lives in the other process.

    It equals nothing but itself, and neither calculates nor compares: an object that decides such
    things for itself would see what is expected, and would always be right.
    """

    def __init__(self, line: Line, number: int) -> None:
        object.__setattr__(self, "_line", line)
        object.__setattr__(self, "_number", number)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # A list, so that what the call does to its arguments comes back.
        return self._line.apply("call", self, list(args), kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._line.apply("getattr", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._line.apply("setattr", self, name, value)

    def __iter__(self) -> Any:
        return iter(self._line.apply("list", self))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StandIn) and _number(other) == _number(self)

    def __hash__(self) -> int:
        return hash(_number(self))


def _forward(what: str) -> None:
    def method(self: StandIn, *args: Any) -> Any:
        return self._line.apply(what, self, *args)

    setattr(StandIn, f"__{what}__", method)


for _what in protocol.ASKED:
    _forward(_what)


def try_tests(line: Line, request: dict[str, Any]) -> tuple[bool, str]:
    """Whether all went well, and otherwise what went wrong first."""
    scope: dict[str, Any] = {"__name__": "tests"}
    try:
        exec(compile(request["before"], "<before>", "exec"), scope)
        line.ask("load", request["code"])
        for name in request["names"]:
            scope[name] = line.ask("name", name)[0]
        exec(compile(request["tests"], "<tests>", "exec"), scope)
        return True, "passed"
    except Lost as lost:
        return False, str(lost)
    except BaseException as error:
        if isinstance(error, AssertionError) and not hasattr(error, "remote"):
            return False, "wrong value"
        name = type(error).__name__  # of the solution's choosing
        return False, name if name.isidentifier() and name != "passed" else "exception"
