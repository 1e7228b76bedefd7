"""The processes that tokenise prompts and compile constraints."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from helpers.servers import PATIENCE

from wavefront.server.job_processes import KEPT_BYTES, ConstraintCompiler
from wavefront.server.settings import Limits, ModelSource, Settings
from wavefront.server.worker_messages import Job, RequestFailed

SLOW = "(a{1,500}){1,500}"  # it takes all the time that a compilation may take
SETTINGS = Settings(source=ModelSource(model="toy"))


def make_job(id: str, *, client: str = "", **options: Any) -> Job:
    return Job(id=id, client=client, prompt=[72], options=options)


def run_compiler(jobs: list[Job], *, wanted: int, settings: Settings = SETTINGS) -> list[Any]:
    """Compile jobs that come at once. Return the first `wanted` jobs and failures."""

    async def compile_all() -> list[Any]:
        ended: list[Any] = []
        compiler = ConstraintCompiler(settings, ended.append)
        for job in jobs:
            compiler.compile(job, ended.append)
        compiler.start(128)
        try:
            async with asyncio.timeout(PATIENCE):
                while len(ended) < wanted:
                    await asyncio.sleep(0.01)
                    await compiler.check()
            return ended
        finally:
            await compiler.stop()

    return asyncio.run(compile_all())


@pytest.mark.slow
def test_equal_constraints_are_compiled_once() -> None:
    """The last job does not wait for the slow one, which comes before it in the queue."""
    jobs = [
        make_job("first", client="one", regex="[ab]+"),
        make_job("slow", client="two", regex=SLOW),
        make_job("last", client="one", regex="[ab]+"),
    ]
    first, last = run_compiler(jobs, wanted=2)
    assert (first.id, last.id) == ("first", "last")
    assert first.automaton is last.automaton is not None


@pytest.mark.slow
def test_slow_compilation_ends_with_an_error_about_its_field() -> None:
    settings = Settings(source=SETTINGS.source, limits=Limits(compile_timeout=1.0))
    jobs = [make_job("slow", regex=SLOW), make_job("fine", choices=["yes", "no"])]
    failure, fine = run_compiler(jobs, wanted=2, settings=settings)
    assert isinstance(failure, RequestFailed)
    assert (failure.id, failure.status, failure.param) == ("slow", 400, "regex")
    assert failure.message == "The constraint takes more than 1 seconds to compile."
    assert (fine.id, fine.automaton is not None) == ("fine", True)


def test_kept_constraints_have_a_limit() -> None:
    async def use() -> tuple[int, list[str]]:
        kept, waiting = [], []
        compiler = ConstraintCompiler(SETTINGS, waiting.append)
        for number in range(5):
            compiler.compile(make_job(str(number), regex=f"a{number}"), kept.append)
            waiting_job = compiler._queue.pop()
            assert waiting_job is not None
            compiler._finish(waiting_job, bytes(KEPT_BYTES // 2))
        kept.clear()
        for number in range(5):
            compiler.compile(make_job(str(number), regex=f"a{number}"), kept.append)
        return len(compiler._queue), [one.id for one in kept]

    assert asyncio.run(use()) == (3, ["3", "4"])
