"""Page: the findings of an experiment, put together in one order for all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from wavefront.analysis.figures import Figure
from wavefront.paper import _claims, _printed
from wavefront.paper._claims import Claim
from wavefront.paper._lab import Lab
from wavefront.paper.studies import Findings
from wavefront.results.table import Table

Figures = Mapping[str, tuple[Figure, str]]


def page(
    lab: Lab,
    *,
    title: str,
    text: str,
    claims: Sequence[Claim],
    tables: Sequence[Table],
    figures: Figures,
    numbers: Mapping[str, Any],
    configuration: Mapping[str, Any] | None = None,
    traces: Mapping[str, Any] | None = None,
) -> Findings:
    """Verdicts first, then what was measured, then the paper's own numbers and points."""
    beside = [one for one in (_printed.printed(lab.name), _printed.points(lab.name)) if one]
    said = [claim._asdict() for claim in claims]
    return Findings(
        title=f"{title} ({_printed.where(lab.name)} of the paper)",
        text=f"{text}\n\n{sentence(claims)}",
        configuration=lab.configuration() | dict(configuration or {}),
        tables=[*([_claims.table(claims)] if claims else []), *tables, *beside],
        numbers={"claims": said, **numbers},
        figures=figures,
        traces=traces or {},
    )


def sentence(claims: Sequence[Claim]) -> str:
    """The verdicts counted."""
    count = Counter(claim.word for claim in claims)
    words = {"agrees": "agree", "disagrees": "disagree", "undecided": "are undecided"}
    told = [f"{count[word]} {said}" for word, said in words.items()]
    if count["not"]:
        told.append(f"{count['not']} cannot be measured here")
    return f"Of {len(claims)} claims of the paper, {', '.join(told)}."
