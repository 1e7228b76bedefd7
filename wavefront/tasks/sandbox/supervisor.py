"""The cell: walls go up, judge and prisoner part, the verdict is sent.

The prisoner is forked before anything secret is read, into a process namespace of its own, so it
has neither the tests nor a way to the judge.
"""

from __future__ import annotations

import os
import signal

from wavefront.tasks.sandbox import checker, isolation, protocol, runner, syscalls

REQUEST, VERDICT = 0, 1
KEPT = 10  # descriptors below are ours; all others are closed


def main(seconds: float, memory: int, need: bool) -> None:
    layers = ["own interpreter, empty environment"]
    nothing = os.open("/dev/null", os.O_RDWR)
    try:
        layers += isolation.enter_namespaces()
        layers += isolation.enter_root()
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
    layers += isolation.limit(seconds, memory)
    requests, answers = os.pipe(), os.pipe()
    walled = len(layers) > 2
    if walled:
        syscalls.unshare(syscalls.NEW_PID)
    child = os.fork()
    if child == 0:
        _be_prisoner(requests[0], answers[1], nothing, walled)
    os.close(requests[0])
    os.close(answers[1])
    judged = Judged(requests[1], answers[0], child, seconds)
    _be_judge(judged, nothing, layers, walled)


def _lock(walled: bool) -> list[str]:
    if walled:
        syscalls.drop_capabilities()
    if not syscalls.known_machine():
        return []
    try:
        syscalls.forbid()
    except OSError:
        if walled:
            raise
        return []  # who accepted no walls accepts no filter
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
        runner.Prisoner().serve(read, write)
    finally:
        os._exit(0)


class Judged:
    """The prisoner as its judge knows it: two pipes, a process, and the time it has."""

    def __init__(self, requests: int, answers: int, process: int, seconds: float) -> None:
        self.line = checker.Line(os.fdopen(requests, "wb"), os.fdopen(answers, "rb"))
        self.process, self.seconds = process, seconds

    def out_of_time(self) -> bool:
        """Whether it was ended for the time it took on the processor."""
        _, status, usage = os.wait4(self.process, 0)
        killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGKILL, signal.SIGXCPU)
        # The kernel's two ways of counting differ a little.
        return killed and usage.ru_utime + usage.ru_stime > 0.8 * self.seconds


def _be_judge(judged: Judged, nothing: int, layers: list[str], walled: bool) -> None:
    syscalls.hide_memory()
    verdict = os.dup(VERDICT)
    with open(REQUEST, "rb") as file:
        request = protocol.receive(file)
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    try:
        layers += _lock(walled)
    except OSError as error:
        _say(verdict, {"refused": str(error)})
        os._exit(0)
    passed, reason = checker.try_tests(judged.line, request)
    if reason == "crash" and judged.out_of_time():
        reason = "timeout"
    _say(verdict, {"passed": passed, "reason": reason, "layers": layers, "seal": request["seal"]})
    os._exit(0)


def _say(number: int, message: dict[str, object]) -> None:
    with os.fdopen(number, "wb") as file:
        protocol.send(file, message)
