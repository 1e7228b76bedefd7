"""The process that runs what a model wrote. It never sees a test, only the calls it is asked for.

Whatever the code does to this process, all it can change is which values it answers with.
"""

from __future__ import annotations

import operator
from itertools import islice

from wavefront.tasks.sandbox import protocol

TYPE_CHECKING = False  # typing takes longer to import than all else here
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, BinaryIO

MOST_ITEMS = 1_000_000  # of an iterator that is read to its end
APPLY: dict[str, Callable[..., Any]] = {
    "call": lambda function, args, kwargs: function(*args, **kwargs),
    "getattr": getattr,
    "setattr": setattr,
    "list": lambda value: list(islice(value, MOST_ITEMS)),
    "next": next,
    "len": len,
    "bool": bool,
    "str": str,
    "repr": repr,
    "getitem": operator.getitem,
}


class Prisoner:
    """The namespace of the code, and the objects that the judge holds by number."""

    def __init__(self) -> None:
        self.scope: dict[str, Any] = {"__name__": "solution"}
        self.held: list[Any] = []

    def shelve(self, value: Any) -> int:
        for number, known in enumerate(self.held):
            if known is value:
                return number
        self.held.append(value)
        return len(self.held) - 1

    def answer(self, request: list[Any]) -> list[Any]:
        """What was asked for: a value and the arguments as they are now, or what was raised."""
        what, body = request
        try:
            if what == "load":
                exec(compile(body, "<solution>", "exec"), self.scope)
                return ["value", None, None]
            if what == "name":
                if body not in self.scope:
                    raise NameError(body)
                return ["value", protocol.pack(self.scope[body], self.shelve), None]
            args = protocol.unpack(body, self.held.__getitem__)
            value = protocol.pack(APPLY[what](*args), self.shelve)
            after = protocol.pack(args, self.shelve)
            return ["value", value, after if after != body else None]
        except BaseException as error:
            return ["raised", type(error).__name__, _message(error)]

    def serve(self, requests: BinaryIO, answers: BinaryIO) -> None:
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
