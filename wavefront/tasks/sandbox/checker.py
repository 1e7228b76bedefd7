"""The checker: the process that runs the tests.

Here the solution's functions and classes are proxies. A proxy sends a call to the runner and builds
the result from plain data. So values are compared in a process that never ran the solution.
"""

from __future__ import annotations

import builtins

from wavefront.tasks.sandbox import protocol

TYPE_CHECKING = False  # importing typing would take longer than all other imports here
if TYPE_CHECKING:
    from typing import Any, BinaryIO


class RunnerError(Exception):
    """The runner ended, or it sent something that is not a valid message."""


class Connection:
    """The two pipes to the runner."""

    def __init__(self, requests: BinaryIO, answers: BinaryIO) -> None:
        self.requests, self.answers = requests, answers

    def ask(self, operation: str, body: Any) -> tuple[Any, Any]:
        """Return the value, and the arguments if the call changed them, otherwise None."""
        try:
            protocol.send(self.requests, [operation, body])
            kind, value, more = protocol.receive(self.answers)
            if kind == "value":
                return protocol.unpack(value, self.proxy), None if more is None else (
                    protocol.unpack(more, self.proxy)
                )
            name, base = value
        except (OSError, EOFError):
            raise RunnerError("crash") from None
        except (protocol.ProtocolError, RecursionError, MemoryError, ValueError, TypeError):
            raise RunnerError("garbled answer") from None
        raise remote_error(str(name), str(base), str(more))

    def apply(self, operation: str, *args: Any) -> Any:
        """Run an operation in the runner. Arguments that it changed are changed here too."""
        value, after = self.ask(operation, protocol.pack(args, _number))
        if isinstance(after, tuple) and len(after) == len(args):
            _update(list(args), list(after))
        return value

    def proxy(self, number: int) -> Proxy:
        return Proxy(self, number)


def _number(value: Any) -> int:
    if isinstance(value, Proxy):
        return object.__getattribute__(value, "_number")
    raise TypeError(f"a {type(value).__name__} cannot be handed to the solution")


def _update(mine: Any, theirs: Any) -> None:
    """Copy the contents of their containers into mine, in place, as a call by reference does."""
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


def remote_error(name: str, base: str, message: str) -> BaseException:
    """Build an exception of the runner.

    Args:
        name: The name of its class.
        base: The name of the nearest built-in class that it is or inherits from. An own class of
            the solution with a built-in name does not inherit from the built-in of that name.
        message: Its text.
    """
    kind = getattr(builtins, base, None)
    if not (isinstance(kind, type) and issubclass(kind, BaseException)):
        kind = Exception
    if name != base:
        kind = type(name if name.isidentifier() else "exception", (kind,), {})
    try:
        error = kind(message)
    except TypeError:  # UnicodeDecodeError and others need more than one argument
        error = _without_arguments(kind)
    error.remote = True  # pyright: ignore[reportAttributeAccessIssue]
    return error


def _without_arguments(kind: type[BaseException]) -> BaseException:
    try:
        return kind.__new__(kind)
    except TypeError:  # an exception group
        return type(kind.__name__, (Exception,), {})()


class Proxy:
    """A function, class or object of the solution, which lives in the runner.

    It equals only itself, and it supports neither arithmetic nor comparison. An object that decided
    these for itself would see the expected value and could always claim to be equal.
    """

    def __init__(self, connection: Connection, number: int) -> None:
        object.__setattr__(self, "_connection", connection)
        object.__setattr__(self, "_number", number)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # A list, so that changes the call makes to its arguments come back.
        return self._connection.apply("call", self, list(args), kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._connection.apply("getattr", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._connection.apply("setattr", self, name, value)

    def __iter__(self) -> Any:
        return iter(self._connection.apply("list", self))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Proxy) and _number(other) == _number(self)

    def __hash__(self) -> int:
        return hash(_number(self))


def _forward(operation: str) -> None:
    def method(self: Proxy, *args: Any) -> Any:
        return self._connection.apply(operation, self, *args)

    setattr(Proxy, f"__{operation}__", method)


for _operation in protocol.FORWARDED:
    _forward(_operation)


def run_tests(connection: Connection, request: dict[str, Any]) -> tuple[bool, str]:
    """Return whether all tests passed, and "passed" or the first thing that went wrong."""
    scope: dict[str, Any] = {"__name__": "tests"}
    try:
        exec(compile(request["setup"], "<setup>", "exec"), scope)
        connection.ask("load", request["code"])
        for name in request["names"]:
            scope[name] = connection.ask("name", name)[0]
        exec(compile(request["tests"], "<tests>", "exec"), scope)
        return True, "passed"
    except RunnerError as error:
        return False, str(error)
    except BaseException as error:
        if isinstance(error, AssertionError) and not hasattr(error, "remote"):
            return False, "wrong value"
        name = type(error).__name__  # chosen by the solution, so it is not trusted
        return False, name if name.isidentifier() and name != "passed" else "exception"
