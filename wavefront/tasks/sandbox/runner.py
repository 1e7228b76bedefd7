"""The runner: the process that runs the model-written code.

It never sees a test, only the calls that the checker requests. Whatever the code does to this
process, it can only change the values that the process replies with.
"""

from __future__ import annotations

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


class Runner:
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
            return ["raised", type(error).__name__, _message(error)]

    def serve(self, requests: BinaryIO, answers: BinaryIO) -> None:
        """Answer requests until the stream ends."""
        while True:
            try:
                request = protocol.receive(requests)
            except EOFError:
                return
            protocol.send(answers, self.answer(request))


def _message(error: BaseException) -> str:
    try:
        return str(error)[:500]
    except BaseException:
        return ""
