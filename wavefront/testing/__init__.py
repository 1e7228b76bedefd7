"""Testing: the laws that every strategy obeys; call `wavefront.testing.check(MyStrategy())`.

Each law is a function that raises `LawBroken` with a message; `check` runs them all and returns
their names. It imports `core`, `models`, `text`, `traces` and `engine`. Start reading at `laws`.
"""

from __future__ import annotations

from collections.abc import Callable

from wavefront.core.strategy import Strategy
from wavefront.models.protocol import Model
from wavefront.testing import laws, model_laws
from wavefront.testing.interface import check_interface
from wavefront.testing.laws import LawBroken

__all__ = ["LAWS", "LawBroken", "check"]

ON_MODELS: tuple[Callable[..., None], ...] = (
    model_laws.ends_complete_and_final,
    model_laws.scoring_candidates_is_enough,
    model_laws.a_trace_replays,
    model_laws.stop_keeps_the_text,
    model_laws.stays_in_the_language,
    model_laws.blocks_are_exact,
)
LAWS: tuple[Callable[..., None], ...] = (
    laws.commits_only_masked,
    laws.commits_candidates_first,
    laws.keeps_its_front_small,
    laws.declares_that_it_revises,
    laws.makes_progress,
    laws.fills_everything,
    laws.never_remasks_final_tokens,
    laws.keeps_the_state_shape,
    laws.rows_are_independent,
    laws.is_deterministic,
    laws.padding_changes_nothing,
    laws.reads_only_candidates,
    laws.runs_on_meta,
    laws.repr_is_a_spec,
    *ON_MODELS,
)


def check(
    strategy: Strategy, *models: Model, progress: Callable[[str], object] = lambda name: None
) -> list[str]:
    """Check a strategy against every law, and return the names of the laws.

    Args:
        strategy: The strategy to check.
        models: The models to decode with; by default a toy model of every family.
        progress: Called with the name of each law that holds, as in `progress=print`.

    Raises:
        LawBroken: The strategy breaks a law; the message says how.
    """
    check_interface(strategy)
    for law in LAWS:
        law(strategy, *(models if law in ON_MODELS else ()))
        progress(law.__name__)
    return [law.__name__ for law in LAWS]
