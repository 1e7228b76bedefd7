"""The laws of decoding, as a kit: `wavefront.testing.check(MyStrategy())`.

Every strategy on our shelf is held to these, and yours can be too. Each law is a function that
raises `LawBroken` with one sentence; `check` runs them all and returns their names.
"""

from __future__ import annotations

from collections.abc import Callable

from wavefront.core.strategy import Strategy
from wavefront.models.loader import Model
from wavefront.testing import laws, model_laws
from wavefront.testing.interface import has_the_form
from wavefront.testing.laws import LawBroken

__all__ = ["LAWS", "LawBroken", "check"]

ON_MODELS: tuple[Callable[..., None], ...] = (
    model_laws.ends_complete_and_final,
    model_laws.scoring_reach_is_enough,
    model_laws.a_trace_replays,
    model_laws.stop_keeps_the_text,
)
LAWS: tuple[Callable[..., None], ...] = (
    laws.commits_only_masked,
    laws.looks_where_it_says,
    laws.keeps_its_front_small,
    laws.declares_that_it_revises,
    laws.makes_progress,
    laws.fills_everything,
    laws.keeps_its_word,
    laws.keeps_the_state_shape,
    laws.rows_are_independent,
    laws.is_deterministic,
    laws.padding_changes_nothing,
    laws.reads_only_its_reach,
    laws.runs_on_meta,
    laws.repr_is_a_spec,
    *ON_MODELS,
)


def check(
    strategy: Strategy, *models: Model, progress: Callable[[str], object] = lambda name: None
) -> list[str]:
    """Hold a strategy to every law; the names of the laws, or `LawBroken` with a sentence.

    The laws that need a model are tried on toys, or on models of yours. `progress` is called with
    the name of each law that holds: `check(Mine(), progress=print)`.
    """
    has_the_form(strategy)
    for law in LAWS:
        law(strategy, *(models if law in ON_MODELS else ()))
        progress(law.__name__)
    return [law.__name__ for law in LAWS]
