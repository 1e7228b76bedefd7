"""An experiment of the paper, the page it writes, and measurements repeated on every model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any, NamedTuple

from wavefront.core.errors import OptionError
from wavefront.evaluation.page import Figures, ResultsPage, Traces
from wavefront.evaluation.trials import Runner, Scale, model_name
from wavefront.paper.claims import Claim, claims_table, count_verdicts
from wavefront.paper.decoder import ItemDecoder
from wavefront.paper.published import caveats_table, place_in_paper, published_table
from wavefront.results.table import Table

# The paper's three models, by their hub ids.
LLADA, LLADA15, DREAM = (
    "GSAI-ML/LLaDA-8B-Instruct", "GSAI-ML/LLaDA-1.5", "Dream-org/Dream-v0-Instruct-7B",
)  # fmt: skip


class Experiment(NamedTuple):
    """One table or figure of the paper.

    Its module defines `NEEDS`, `SMALL`, `PAPER` and `run`, and optionally `COMPARED`, the default
    strategies. The module's docstring starts with "Name: question". `paper.toml` holds the table or
    figure and the published numbers under the experiment's name.
    """

    name: str
    question: str  # the first line of the module
    place: str  # in the paper
    needs: str
    small: Scale
    paper: Scale
    strategies: tuple[str, ...]  # the default; empty if they cannot be chosen
    run: Callable[[Runner], ResultsPage]

    @classmethod
    def load(cls, name: str) -> Experiment:
        """Import the module of an experiment."""
        module: Any = import_module(f"wavefront.paper.{name.replace('-', '_')}")
        question = (module.__doc__ or "").partition("\n")[0].partition(": ")[2].rstrip(".")
        return cls(
            name,
            question,
            place_in_paper(name),
            module.NEEDS,
            module.SMALL,
            module.PAPER,
            getattr(module, "COMPARED", ()),
            module.run,
        )

    def scale(self, *, paper: bool = False, **changes: Any) -> Scale:
        """Return the small scale or the paper's, with changes; None changes nothing.

        Raises:
            OptionError: Strategies are given, and the experiment has fixed ones.
        """
        if changes.get("strategies") and not self.strategies:
            raise OptionError(f"{self.name} compares fixed strategies: leave out --strategy.")
        made = {name: value for name, value in changes.items() if value is not None}
        return replace(
            self.paper if paper else self.small, **{"strategies": self.strategies} | made
        )


def experiment_page(
    runner: Runner,
    *,
    title: str,
    text: str,
    claims: Sequence[Claim],
    tables: Sequence[Table],
    figures: Figures,
    numbers: Mapping[str, Any],
    configuration: Mapping[str, Any] | None = None,
    traces: Traces | None = None,
) -> ResultsPage:
    """Return the page: verdicts first, then what was measured, then the paper's own numbers."""
    place = place_in_paper(runner.name)
    beside = [one for one in (published_table(runner.name), caveats_table(runner.name)) if one]
    return ResultsPage(
        title=title if place == "none" else f"{title} ({place} of the paper)",
        text=f"{text}\n\n{count_verdicts(claims)}",
        configuration=runner.configuration() | dict(configuration or {}),
        tables=[*([claims_table(claims)] if claims else []), *tables, *beside],
        numbers={"claims": [claim._asdict() for claim in claims], **numbers},
        figures=figures,
        traces=traces or {},
    )


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """What an experiment measured on one model."""

    title: str
    text: str
    items: int
    claims: Sequence[Claim]
    tables: Sequence[Table]
    numbers: Mapping[str, Any]
    figures: Figures
    traces: Traces = field(default_factory=dict)
    configuration: Mapping[str, Any] = field(default_factory=dict)


def measure_models(runner: Runner, measure: Callable[[ItemDecoder], Measurement]) -> ResultsPage:
    """Measure every model, and put the results on one page."""
    found: dict[str, Measurement] = {}
    configuration: dict[str, Any] = {}
    for model in runner.models:
        decoder = ItemDecoder(
            lm=runner.lm(model),
            scale=runner.scale,
            seed=runner.seed,
            items_seed=runner.items_seed,
            radius=runner.radius,
            data=runner.data,
            progress=runner.progress,
        )
        one = found[model_name(model)] = measure(decoder)
        configuration = configuration or {**decoder.configuration(), **one.configuration}
    tables, claims = [], []
    figures: dict[str, Any] = {}
    traces: dict[str, Any] = {}
    for model, one in found.items():
        end = f"-{model}" if len(found) > 1 else ""
        tables += [replace(t, title=f"{t.title}, {model}") if end else t for t in one.tables]
        figures |= {f"{name}{end}": made for name, made in one.figures.items()}
        traces |= {f"{name}{end}": made for name, made in one.traces.items()}
        claims += one.claims
    first = next(iter(found.values()))
    numbers = {model: {"n": one.items, **one.numbers} for model, one in found.items()}
    return experiment_page(
        runner,
        title=first.title,
        text=first.text,
        claims=claims,
        tables=tables,
        figures=figures,
        numbers={"n": first.items, "measured": numbers},
        configuration=configuration,
        traces=traces,
    )
