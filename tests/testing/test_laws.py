"""The laws, over every file on the shelves; and strategies that break them, each caught."""

from __future__ import annotations

import importlib
import inspect
import itertools
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from wavefront import Decision, Selector, Strategy, testing
from wavefront.core import spec
from wavefront.core.canvas import Canvas
from wavefront.core.errors import WavefrontWarning
from wavefront.core.masks import first, top
from wavefront.core.strategy import RowProgress, View
from wavefront.models.experts import Router
from wavefront.models.toy import toy
from wavefront.strategies.edit import Edit
from wavefront.strategies.selectors.quota import Quota
from wavefront.strategies.wino import Wino
from wavefront.testing import LAWS, LawBroken, laws, model_laws

pytestmark = [
    pytest.mark.filterwarnings("ignore::wavefront.core.errors.WavefrontWarning"),
    pytest.mark.whole,
]

PLAIN_TIDE = "tide(cascade_rounds=0, horizon=0, selector=quota())"
# Options beyond the defaults that reach other branches; every file is walked with its defaults too.
MORE = (
    "block(size=5)",
    "block(size=100)",
    "wavefront(size=3, radius=5)",
    "wavefront(grow='accumulate')",
    "wavefront(size=2, radius=6, grow='accumulate')",
    "blockwise(size=4, strategy=standard(selector=threshold(0.6)))",
    "blockwise(size=5, strategy=wavefront(size=3, radius=1))",
    "blockwise(size=4, strategy=rcr(size=4))",
    "rcr(size=5)",
    "rcr(size=5, stat='max', selector=threshold(0.6))",
    "tbd(size=5, drop=2, min_kept=1)",
    "tbd(size=5, drop=2, min_kept=1, selector=threshold(0.6))",
    PLAIN_TIDE,
    "tide(cascade_rounds=2, horizon=0, selector=threshold(0.6))",
    "tide(cascade_rounds=0, horizon=0, revisable_band=3, selector=threshold(0.6))",
    "tide(cascade_rounds=2, horizon=3, revisable_band=3, selector=factor(2.0))",
)


# What a strategy needs to take any selector: a quota is used up after one round.
PLAIN = {"tide": "cascade_rounds=0, "}


def slow(text: str):
    """A spec that only the slow tests check; the quick ones check every strategy's defaults."""
    quick = text in (
        PLAIN_TIDE, "wavefront(selector=threshold())", "tbd(size=5, drop=2, min_kept=1)"
    )  # fmt: skip
    return text if quick else pytest.param(text, marks=pytest.mark.slow)


EVERY = [
    *(f"{strategy}()" for strategy in spec.names("strategies")),
    *map(slow, MORE),
    *(
        slow(f"{strategy}({PLAIN.get(strategy, '')}selector={selector}())")
        for strategy, selector in itertools.product(
            spec.names("strategies"), spec.names("selectors")
        )
        if selector != "quota" and strategy != "blockwise"  # it takes the selector of its strategy
    ),
]


def named(law) -> str:
    return law.__name__


def quick(law) -> bool:
    """Whether a law needs no model, so that it is quick to check."""
    return law.__module__ == laws.__name__


@pytest.mark.parametrize("law", [law for law in LAWS if quick(law)], ids=named)
@pytest.mark.parametrize("text", EVERY)
def test_strategy_obeys_law(text, law):
    law(spec.resolve(text, "strategies"))


@pytest.mark.slow
@pytest.mark.parametrize("law", [law for law in LAWS if not quick(law)], ids=named)
@pytest.mark.parametrize("text", EVERY)
def test_strategy_obeys_model_law(text, law):
    law(spec.resolve(text, "strategies"))


@pytest.mark.filterwarnings("error")
def test_law_of_blocks_covers_every_kind_of_block_causal_model():
    kinds: list[Any] = [model_laws._block_toy(family) for family in model_laws.BLOCK_FAMILIES]
    assert {True, False} == {model.shifted for model in kinds} == {m.padded_blocks for m in kinds}
    assert any(isinstance(part, Router) for model in kinds for part in model.modules())
    for text in ("standard", "tide(size=2)"):
        model_laws.blocks_are_exact(spec.resolve(text, "strategies"))


def test_law_of_blocks_reports_what_it_does_not_cover():
    """A model that is not block-causal is no reason to skip it, but a refused strategy is."""
    short, message = spec.resolve("tide(horizon=2)", "strategies"), "not checked for tide.* a2d: "
    with pytest.warns(WavefrontWarning, match=message):
        model_laws.blocks_are_exact(short, toy())
    with pytest.warns(WavefrontWarning, match="with sdar: it hides positions of a block of 4"):
        model_laws.blocks_are_exact(short, toy(family="sdar"))


def test_check_runs_every_law():
    defined = {
        name
        for module in (laws, model_laws)
        for name, thing in vars(module).items()
        if inspect.isfunction(thing)
        and not name.startswith("_")
        and thing.__module__ == module.__name__
        and list(inspect.signature(thing).parameters) in (["strategy"], ["strategy", "models"])
    }
    assert defined == {law.__name__ for law in LAWS}
    heard: list[str] = []
    found = testing.check(spec.resolve("standard", "strategies"), progress=heard.append)
    assert found == heard == [law.__name__ for law in LAWS]


def test_every_registry_module_holds_the_class_it_is_named_after():
    for registry, kind in (("strategies", Strategy), ("selectors", Selector)):
        for name in spec.names(registry):
            found = spec.find(name, registry)
            assert issubclass(found, kind)
            assert found.__module__ == f"{spec.REGISTRIES[registry][0]}.{name}"
            assert inspect.getdoc(found)
            assert importlib.import_module(found.__module__).__doc__


# --- strategies that break one law each ------------------------------------------------


@dataclass(frozen=True)
class Base(Strategy):
    selector: Selector = field(default=Quota(), repr=False)

    def step(self, view: View, state: Any) -> Decision:
        return Decision(self.selector.select(view, view.masked, view.masked), view.masked, state)


class CommitsKnown(Base):
    def step(self, view, state):
        return Decision(view.known, view.masked)


class StandsStill(Base):
    def step(self, view, state):
        return Decision(torch.zeros_like(view.masked), view.masked)


class GoesRound(Base):
    revises = True

    def step(self, view, state):
        commit = self.selector.select(view, view.masked, view.masked)
        return Decision(commit, view.masked, (), commit, view.slot < 0)


class LooksElsewhere(Base):
    def step(self, view, state):
        return Decision(self.selector.select(view, view.masked, view.masked), first(view.masked, 1))


class LooksAtTheKnown(Base):
    def step(self, view, state):
        return Decision(
            self.selector.select(view, view.masked, view.masked), view.masked | view.known
        )


@dataclass(frozen=True)
class Crowds(Base):
    size: int = 2

    def init(self, canvas: Canvas) -> Tensor:
        return canvas.masked

    def step(self, view, state):
        commit = self.selector.select(view, view.masked, view.masked)
        return Decision(commit, view.masked, view.masked & ~commit)

    def front(self, state: Tensor) -> Tensor:
        return state


class RevisesInSecret(Base):
    def step(self, view, state):
        commit = self.selector.select(view, view.masked, view.masked)
        return Decision(commit, view.masked, (), torch.zeros_like(commit), view.known)


class TakesBackFinal(Base):
    def step(self, view, state):
        commit = self.selector.select(view, view.masked, view.masked)
        mine = view.known & (view.slot >= 0)
        return Decision(commit, view.masked, (), first(mine, 1), view.known)


class Grows(Base):
    def init(self, canvas: Canvas) -> Tensor:
        return torch.zeros(1)

    def step(self, view, state):
        return super().step(view, torch.cat([state, state]))


class MixesRows(Base):
    def step(self, view, state):
        shared = view.score.mean(0, keepdim=True).expand_as(view.score)
        return Decision(
            top(shared, view.masked, self.selector.min_commits(view.progress)), view.masked
        )


class Throws(Base):
    def step(self, view, state):
        return Decision(
            top(torch.rand_like(view.score), view.masked, self.selector.min_commits(view.progress)),
            view.masked,
        )


class SeesPadding(Base):
    def step(self, view, state):
        places = torch.arange(view.score.shape[1]).expand_as(view.score)
        shifted = ((places * 7919) % 13).float()
        return Decision(
            top(shifted, view.masked, self.selector.min_commits(view.progress)), view.masked
        )


class Overreaches(Base):
    def candidates(self, canvas: Canvas, state: Any, progress: RowProgress) -> Tensor:
        return first(canvas.masked, 4)

    def width(self, length: int, steps: int) -> int:
        return 4


class RemasksUnread(Wino):
    def candidates(self, canvas: Canvas, state: Any, progress: RowProgress) -> Tensor:
        return canvas.masked  # but the decoded tokens of the block are tested too


class EditsUnread(Edit):
    def candidates(self, canvas: Canvas, state: Any, progress: RowProgress) -> Tensor:
        return canvas.masked


class AsksTheHost(Base):
    def step(self, view, state):
        k = int(self.selector.min_commits(view.progress)[0])
        return Decision(top(view.score, view.masked, k), view.masked)


class HasDataShapes(Base):
    def step(self, view, state):
        view.score[view.masked].sum()
        return super().step(view, state)


class KeepsTheDropped(Base):
    def without(self, decision, dropped, *, view, state):
        return decision


@dataclass(frozen=True)
class Forgets(Base):
    pace: int = 1

    def __repr__(self) -> str:
        return f"{__name__}.Forgets()"


WRONG = [
    (CommitsKnown(), laws.commits_only_masked),
    (LooksElsewhere(), laws.commits_candidates_first),
    (LooksAtTheKnown(), laws.commits_candidates_first),
    (Crowds(), laws.keeps_its_front_small),
    (RevisesInSecret(), laws.declares_that_it_revises),
    (StandsStill(), laws.makes_progress),
    (GoesRound(), laws.makes_progress),
    (TakesBackFinal(), laws.never_remasks_final_tokens),
    (Grows(), laws.keeps_the_state_shape),
    (MixesRows(), laws.rows_are_independent),
    (Throws(), laws.is_deterministic),
    (SeesPadding(), laws.padding_changes_nothing),
    (Overreaches(), laws.reads_only_candidates),
    (RemasksUnread(keep=0.6), laws.reads_only_candidates),
    (EditsUnread(), laws.reads_only_candidates),
    (AsksTheHost(), laws.runs_on_meta),
    (HasDataShapes(), laws.runs_on_meta),
    (Forgets(pace=2), laws.repr_is_a_spec),
    (Overreaches(), model_laws.scoring_candidates_is_enough),
    (KeepsTheDropped(), model_laws.stays_in_the_language),
]


@pytest.mark.parametrize(
    ("wrong", "law"),
    WRONG,
    ids=lambda value: type(value).__name__ if isinstance(value, Strategy) else named(value),
)
def test_law_catches_a_wrong_strategy(wrong, law):
    with pytest.raises(LawBroken):
        law(wrong)


@dataclass(frozen=True)
class ReadsTheEnd(Base):
    """Order the positions by how many of them there are, also in blocks to come."""

    def step(self, view: View, state: Any) -> Decision:
        odd = (view.tokens.shape[-1] // 4) % 2 == 1
        score = view.score if odd else -view.score
        commit = top(score, view.masked, self.selector.min_commits(view.progress))
        return Decision(commit, view.masked, state)


@pytest.mark.parametrize("family", model_laws.BLOCK_FAMILIES)
def test_law_of_blocks_catches_a_strategy_that_depends_on_later_blocks(family):
    with pytest.raises(LawBroken, match="when the canvas ends"):
        model_laws.blocks_are_exact(ReadsTheEnd(), model_laws._block_toy(family))


@dataclass(frozen=True)
class ReturnsATensor(Base):
    def step(self, view: View, state: Any) -> Any:
        return view.masked


@dataclass(frozen=True)
class ReturnsOneRow(Base):
    def step(self, view: View, state: Any) -> Decision:
        return Decision(view.masked[:1], candidates=view.masked)


@dataclass(frozen=True)
class ReturnsCounts(Base):
    def step(self, view: View, state: Any) -> Decision:
        return Decision(view.masked.long(), candidates=view.masked)


@dataclass(frozen=True)
class HasNoSelector(Strategy):
    pass


@dataclass(frozen=True)
class HasNoStep(Strategy):
    selector: Selector = field(default=Quota(), repr=False)


@dataclass
class IsNotFrozen(Strategy):
    selector: Selector = field(default=Quota(), repr=False)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (IsNotFrozen(), r"Decorate the class with @dataclass\(frozen=True\)"),
        (ReturnsATensor(), "step returns a Tensor, not a wavefront.Decision"),
        (ReturnsOneRow(), r"the commit of a decision .* not bool of shape \(1, "),
        (ReturnsCounts(), "the commit of a decision .* not int64 of shape"),
        (HasNoSelector(), "HasNoSelector has no selector"),
        (HasNoStep(), "HasNoStep has no method step"),
        (Quota(), "Quota is not a wavefront.Strategy"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_interface_mistake_is_reported_before_any_law(wrong, message):
    with pytest.raises(LawBroken, match=message):
        testing.check(wrong)


def test_readme_counts_the_laws_and_the_faulty_strategies():
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    assert re.findall(r"(\d+) laws", readme) == [str(len(LAWS))] * 2
    faulty = {type(wrong).__name__ for wrong, _ in WRONG}
    assert re.findall(r"(\d+) deliberately faulty", readme) == [str(len(faulty))]


def test_class_instead_of_strategy_raises_type_error():
    with pytest.raises(TypeError, match=r"check\(ReturnsATensor\(\)\)"):
        testing.check(ReturnsATensor)  # pyright: ignore[reportArgumentType]


@pytest.mark.slow
def test_strategy_that_remasks_obeys_every_law():
    assert testing.check(Reviser()) == [law.__name__ for law in LAWS]


@dataclass(frozen=True)
class Reviser(Base):
    """Remask the leftmost position that is not final, once per position, every third step."""

    revises = True
    max_remasks: int = 1

    def init(self, canvas: Canvas) -> Tensor:
        return torch.zeros_like(canvas.masked)  # what was remasked before

    def step(self, view: View, state: Tensor) -> Decision:
        k = self.selector.min_commits(view.progress)
        behind = view.progress.length - view.progress.left < view.progress.step + 1
        commit = top(view.score, view.masked, k + behind * 1)
        young = view.known & (view.slot >= 0) & ~state
        due = (view.progress.step % 3 == 2) & (commit.sum(-1) > 1)
        remask = first(young, due * 1)
        return Decision(commit, view.masked, state | remask, remask, state & view.known)
