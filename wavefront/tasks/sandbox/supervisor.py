"""The supervisor: sets up the isolation, forks the checker and the runner, waits for the verdict.

The runner is forked before the request is read, into its own PID namespace. So it has neither
the tests nor a way to reach the checker.
"""

from __future__ import annotations

import os
import signal

from wavefront.tasks.sandbox import checker, isolation, protocol, runner, syscalls

REQUEST, VERDICT = 0, 1
KEPT = 10  # the runner's two pipes get this descriptor and the next; all others are closed


def main(seconds: float, memory: int, *, require_sandbox: bool, caller: int) -> None:
    """Read a request from stdin, check it in isolation, and write the verdict to stdout.

    `caller` is the process that started this one. All processes of the sandbox end with it.
    """
    syscalls.die_with_parent()
    layers = ["own interpreter, empty environment"]
    dev_null = os.open("/dev/null", os.O_RDWR)
    try:
        layers += isolation.enter_namespaces()
        layers += isolation.enter_root()
    except (OSError, KeyError, AttributeError) as error:  # no such call, no such machine
        # Never run with part of the isolation: the caller accepted none, not half.
        if require_sandbox or len(layers) > 1:
            _write_message(VERDICT, {"refused": str(error)})
            return
    syscalls.die_with_parent()  # again, because a change of user cancels it
    if os.getppid() != caller:  # the caller ended before the first or the second call
        return
    child = _fork_child()
    if child:
        os.close(REQUEST)
        os.waitpid(child, 0)
        return
    layers += isolation.limit_resources(seconds, memory)
    requests, answers = os.pipe(), os.pipe()
    isolated = len(layers) > 2
    if isolated:
        syscalls.unshare(syscalls.NEW_PID)
    process = _fork_child()
    if process == 0:
        _become_runner(requests[0], answers[1], dev_null, isolated=isolated)
    os.close(requests[0])
    os.close(answers[1])
    runner_process = RunnerProcess(requests[1], answers[0], process=process, seconds=seconds)
    _become_checker(runner_process, dev_null, layers, isolated=isolated)


def _fork_child() -> int:
    """Fork a child that the kernel kills when this process ends. Return as `os.fork` does."""
    watched, held = os.pipe()  # `held` stays open as long as this process runs
    child = os.fork()
    if child:
        os.close(watched)
        return child
    os.close(held)
    syscalls.die_with_parent()
    os.set_blocking(watched, False)
    try:
        os.read(watched, 1)
    except BlockingIOError:
        os.close(watched)
        return child
    os._exit(1)  # the parent ended before the call above; getppid is 0 in a namespace


def _drop_privileges(*, isolated: bool) -> list[str]:
    """Drop every capability and filter system calls. Return the layers that this adds."""
    if isolated:
        syscalls.drop_capabilities()
    if not syscalls.is_known_machine():
        return []
    try:
        syscalls.install_filter()
    except OSError:
        if isolated:
            raise
        return []  # the caller agreed to run without a sandbox, and therefore without the filter
    return ["system call filter"]


def _become_runner(requests: int, answers: int, dev_null: int, *, isolated: bool) -> None:
    os.setsid()  # otherwise a signal to the process group would reach the checker
    read, write = (
        os.fdopen(os.dup2(requests, KEPT), "rb"),
        os.fdopen(os.dup2(answers, KEPT + 1), "wb"),
    )
    for number in (0, 1, 2):
        os.dup2(dev_null, number)
    os.closerange(3, KEPT)
    os.closerange(KEPT + 2, 1024)
    _drop_privileges(isolated=isolated)
    try:
        runner.CodeRunner().serve(read, write)
    finally:
        os._exit(0)


class RunnerProcess:
    """The runner as the checker sees it: a connection, a process id, and a CPU-time limit."""

    def __init__(self, requests: int, answers: int, *, process: int, seconds: float) -> None:
        self.connection = checker.Connection(os.fdopen(requests, "wb"), os.fdopen(answers, "rb"))
        self.process, self.seconds = process, seconds

    def ran_out_of_time(self) -> bool:
        """Wait for the process, and return whether it was killed for the CPU time it used."""
        _, status, usage = os.wait4(self.process, 0)
        killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGKILL, signal.SIGXCPU)
        # 0.8, because the kernel counts the limit and the usage in slightly different ways.
        return killed and usage.ru_utime + usage.ru_stime > 0.8 * self.seconds


def _become_checker(
    runner_process: RunnerProcess, dev_null: int, layers: list[str], *, isolated: bool
) -> None:
    syscalls.hide_memory()
    verdict = os.dup(VERDICT)
    with open(REQUEST, "rb") as file:
        request = protocol.receive(file)
    for number in (0, 1, 2):
        os.dup2(dev_null, number)
    try:
        layers += _drop_privileges(isolated=isolated)
    except OSError as error:
        _write_message(verdict, {"refused": str(error)})
        os._exit(0)
    passed, reason = checker.run_tests(runner_process.connection, request)
    if reason == "crash" and runner_process.ran_out_of_time():
        reason = "timeout"
    _write_message(
        verdict,
        {"passed": passed, "reason": reason, "layers": layers, "secret": request["secret"]},
    )
    os._exit(0)


def _write_message(number: int, message: dict[str, object]) -> None:
    with os.fdopen(number, "wb") as file:
        protocol.send(file, message)
