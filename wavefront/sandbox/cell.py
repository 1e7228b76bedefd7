"""The cell: walls go up, judge and prisoner part, the verdict is sent.

The prisoner is forked before anything secret is read, into a process namespace of its own, so it
has neither the tests nor a way to the judge.
"""

from __future__ import annotations

import os

from wavefront.sandbox import judge, prisoner, syscalls, walls, wire

REQUEST, VERDICT = 0, 1
KEPT = 10  # descriptors below are ours; all others are closed


def main(seconds: float, memory: int, need: bool) -> None:
    layers = ["own interpreter, empty environment"]
    nothing = os.open("/dev/null", os.O_RDWR)
    try:
        layers += walls.enter_namespaces()
        layers += walls.enter_root()
    except (OSError, KeyError, AttributeError) as error:  # no such call, no such machine
        if need or len(layers) > 1:  # half a wall is none
            _say(VERDICT, {"refused": str(error)})
            return
    keeper = os.fork()
    if keeper:
        os.close(REQUEST)
        os.waitpid(keeper, 0)
        return
    syscalls.die_with_parent()
    layers += walls.limit(seconds, memory)
    requests, answers = os.pipe(), os.pipe()
    walled = len(layers) > 2
    if walled:
        syscalls.unshare(syscalls.NEW_PID)
    if os.fork() == 0:
        _be_prisoner(requests[0], answers[1], nothing, walled)
    os.close(requests[0])
    os.close(answers[1])
    _be_judge(requests[1], answers[0], nothing, layers, walled)


def _lock(walled: bool) -> list[str]:
    if walled:
        syscalls.drop_capabilities()
    if not syscalls.known_machine():
        return []
    syscalls.forbid()
    return ["system call filter"]


def _be_prisoner(requests: int, answers: int, nothing: int, walled: bool) -> None:
    syscalls.die_with_parent()
    os.setsid()  # or a signal to the group would reach the judge
    read, write = (
        os.fdopen(os.dup2(requests, KEPT), "rb"),
        os.fdopen(os.dup2(answers, KEPT + 1), "wb"),
    )
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    os.closerange(3, KEPT)
    os.closerange(KEPT + 2, 1024)
    _lock(walled)
    try:
        prisoner.Prisoner().serve(read, write)
    finally:
        os._exit(0)


def _be_judge(requests: int, answers: int, nothing: int, layers: list[str], walled: bool) -> None:
    syscalls.hide_memory()
    verdict = os.dup(VERDICT)
    with open(REQUEST, "rb") as file:
        request = wire.receive(file)
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    layers += _lock(walled)
    line = judge.Line(os.fdopen(requests, "wb"), os.fdopen(answers, "rb"))
    passed, reason = judge.try_tests(line, request)
    _say(verdict, {"passed": passed, "reason": reason, "layers": layers, "seal": request["seal"]})
    os._exit(0)


def _say(number: int, message: dict[str, object]) -> None:
    with os.fdopen(number, "wb") as file:
        wire.send(file, message)
