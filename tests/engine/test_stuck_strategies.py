"""A strategy that makes no progress raises an error that names it; the decode never hangs."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

import wavefront
from wavefront import Batcher, Decision, RowProgress, Selector, Strategy, View
from wavefront.core.errors import StrategyError
from wavefront.engine.batcher import Request
from wavefront.engine.options import plan
from wavefront.engine.session import model_properties
from wavefront.models.toy import toy
from wavefront.strategies.selectors.quota import Quota
from wavefront.strategies.selectors.threshold import Threshold
from wavefront.strategies.standard import Standard

SECONDS = 30


@dataclass(frozen=True)
class OffersEverything(Standard):
    """Offers the prompt too, so its candidates never fit into a step."""

    def candidates(self, canvas: Any, state: Any, progress: RowProgress) -> Tensor:
        return torch.ones_like(canvas.masked)


@dataclass(frozen=True)
class CommitsNothing(Standard):
    """Never commits anything."""

    def step(self, view: View, state: Any) -> Decision:
        return Decision(torch.zeros_like(view.masked), candidates=view.masked)


@dataclass(frozen=True)
class RevisesNothing(CommitsNothing):
    """May remask, but does nothing at all."""

    revises = True


@dataclass(frozen=True)
class StopsHalfway(Standard):
    """Commits nothing from step 3 on."""

    def step(self, view: View, state: Any) -> Decision:
        made = super().step(view, state)
        return made._replace(commit=made.commit & (view.progress.step < 3)[:, None])


@dataclass(frozen=True)
class AlwaysSkips(Selector):
    """Says of every step that it commits nothing."""

    def select(self, view: View, candidates: Tensor, fallback: Tensor) -> Tensor:
        return torch.zeros_like(candidates)

    def min_commits(self, progress: RowProgress) -> Tensor:
        return progress.left * 0

    def is_noop_step(self, length: int, steps: int, step: int) -> bool:
        return True


@dataclass(frozen=True)
class MayWait(AlwaysSkips):
    """Commits nothing, and says so: the last step commits everything."""

    def is_noop_step(self, length: int, steps: int, step: int) -> bool:
        return False


@dataclass(frozen=True)
class TooSmall(wavefront.core.cache_policy.Cache):
    """Computes fewer positions than any step needs."""

    refresh: int = 4

    def positions_to_refresh(self, rows: Any, candidates: Tensor, stored: Any) -> Tensor:
        return torch.zeros_like(candidates)

    def window(self, width: int, length: int) -> int:
        return 1


def in_time(work: Any) -> Any:
    """Return the result of a function, or fail if it does not end."""
    found: list[Any] = []

    def target() -> None:
        try:
            found.append(work())
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=target, daemon=True)
    thread.start()
    thread.join(SECONDS)
    assert found, "the decode does not end"
    if isinstance(found[0], BaseException):
        raise found[0]
    return found[0]


def decode(strategy: Strategy, **options: Any) -> Any:
    given = {"max_new_tokens": 8, "strategy": strategy, **options}
    return in_time(lambda: wavefront.generate_ids(toy(), [[5, 6, 7], [8]], **given))


@pytest.mark.parametrize("options", [{}, {"cache": "wave(refresh=4)"}, {"speculate": 3}])
def test_candidates_that_never_fit_raise_an_error(options: dict[str, Any]) -> None:
    with pytest.raises(StrategyError, match=r"OffersEverything\(.*candidates"):
        decode(OffersEverything(), **options)


@pytest.mark.parametrize("selector", [Quota(), Threshold(0.9)])
@pytest.mark.parametrize("kind", [CommitsNothing, RevisesNothing])
def test_step_that_commits_nothing_raises_an_error(kind: Any, selector: Any) -> None:
    for options in ({}, {"steps": 16}, {"steps": 16, "fixed_budget": True}, {"cache": "wave"}):
        with pytest.raises(StrategyError, match=rf"{kind.__name__}\(.*nothing at step 0"):
            decode(kind(selector=selector), **options)


def test_error_names_the_step_that_commits_nothing() -> None:
    with pytest.raises(StrategyError, match="nothing at step 3"):
        decode(StopsHalfway())


def test_strategy_that_may_wait_decodes_everything_at_the_last_step() -> None:
    for selector in (MayWait(), AlwaysSkips()):
        made = decode(Standard(selector=selector))
        assert [len(row) for row in made.tokens] == [8, 8]
        assert sum(len(step) for step in made.order[0]) == 8


@pytest.mark.slow
def test_zero_quotas_are_allowed() -> None:
    for name in ("standard", "block(size=3)", "rcr(size=4)", "tbd(size=5, drop=2, min_kept=1)"):
        for options in ({}, {"fixed_budget": True}):
            made = decode(name, steps=19, **options)  # pyright: ignore[reportArgumentType]
            assert sum(len(step) for step in made.order[0]) >= 8
    for alg in ("origin", "entropy"):
        decode(None, alg=alg, steps=19, fixed_budget=True)  # pyright: ignore[reportArgumentType]


def test_cache_that_computes_too_little_still_decodes() -> None:
    made = decode("wavefront", cache=TooSmall())  # pyright: ignore[reportArgumentType]
    assert [len(row) for row in made.tokens] == [8, 8]


@pytest.mark.parametrize("strategy", [OffersEverything(), CommitsNothing()])
def test_stuck_request_does_not_change_its_neighbours(strategy: Strategy) -> None:
    model = toy()

    def request(chosen: Any) -> Request:
        resolved = plan({"max_new_tokens": 8, "strategy": chosen}, model_properties(model))
        return Request([5, 6, 7, *[model.mask_id] * 8], [False] * 3 + [True] * 8, resolved)

    def serve(*chosen: Any) -> list[Any]:
        batcher = Batcher(model, rows=len(chosen), length=16)
        active = [batcher.admit(request(one)) for one in chosen]
        while batcher.busy:
            batcher.step()
        return active

    (alone,) = in_time(lambda: serve("wavefront"))
    stuck, neighbour = in_time(lambda: serve(strategy, "wavefront"))
    assert type(strategy).__name__ in stuck.error
    assert neighbour.error is None
    assert neighbour.tokens == alone.tokens
