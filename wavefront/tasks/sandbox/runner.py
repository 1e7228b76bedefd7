"""The runner: the process that runs the model-written code.

It never sees a test, only the calls that the checker requests. Whatever the code does to this
process, it can only change the values that the process replies with.
"""

from __future__ import annotations

import builtins
import operator
from itertools import islice

from wavefront.tasks.sandbox import protocol

TYPE_CHECKING = False  # importing typing would take longer than all other imports here
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, BinaryIO

MAX_ITEMS = 1_000_000  # taken from an iterator that the tests read to its end
OPERATIONS: dict[str, Callable[..., Any]] = {
    "call": lambda function, args, kwargs: function(*args, **kwargs),
    "getattr": getattr,
    "setattr": setattr,
    "list": lambda value: list(islice(value, MAX_ITEMS)),
    "next": next,
    "len": len,
    "bool": bool,
    "str": str,
    "repr": repr,
    "getitem": operator.getitem,
}
# Before the code runs, which may replace the built-ins.
ERRORS = [
    kind
    for kind in vars(builtins).values()
    if isinstance(kind, type) and issubclass(kind, BaseException)
]


class CodeRunner:
    """The namespace of the code, and the objects that the checker refers to by number."""

    def __init__(self) -> None:
        self.scope: dict[str, Any] = {"__name__": "solution"}
        self.objects: list[Any] = []

    def reference(self, value: Any) -> int:
        """Return the number of an object. Keep the object if it is new."""
        for number, known in enumerate(self.objects):
            if known is value:
                return number
        self.objects.append(value)
        return len(self.objects) - 1

    def answer(self, request: list[Any]) -> list[Any]:
        """Do what was requested.

        Return the value and the changed arguments (None if unchanged), or the raised exception.
        """
        operation, body = request
        try:
            if operation == "load":
                exec(compile(body, "<solution>", "exec"), self.scope)
                return ["value", None, None]
            if operation == "name":
                if body not in self.scope:
                    raise NameError(body)
                return ["value", protocol.pack(self.scope[body], self.reference), None]
            args = protocol.unpack(body, self.objects.__getitem__)
            value = protocol.pack(OPERATIONS[operation](*args), self.reference)
            after = protocol.pack(args, self.reference)
            return ["value", value, after if after != body else None]
        except BaseException as error:
            return ["raised", _names(error), _message(error)]

    def serve(self, requests: BinaryIO, answers: BinaryIO) -> None:
        """Answer requests until the stream ends."""
        while True:
            try:
                request = protocol.receive(requests)
            except EOFError:
                return
            protocol.send(answers, self.answer(request))


def _names(error: BaseException) -> list[str]:
    """Return the name of the class, and of the nearest built-in class that it is or inherits from.

    The objects are compared and not their names, because the code may use a built-in name.
    """
    name = type(error).__name__
    try:
        bases = [
            error_class
            for kind in type(error).__mro__
            for error_class in ERRORS
            if error_class is kind
        ]
        return [str(name), bases[0].__name__]
    except BaseException:
        return [str(name), "Exception"]


def _message(error: BaseException) -> str:
    try:
        return str(error)[:500]
    except BaseException:
        return ""
