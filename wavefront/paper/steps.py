"""Steps: does the wave keep its lead with fewer steps, and gain more with more?"""

from __future__ import annotations

from wavefront.analysis import figures
from wavefront.analysis.figures import Figure, Point
from wavefront.evaluation.page import ResultsPage
from wavefront.evaluation.trials import Runner, Scale, TrialGroup, item_of
from wavefront.paper.claims import NOT_MEASURABLE, Claim, accuracy_claim, direction_claim
from wavefront.paper.experiment import LLADA, experiment_page
from wavefront.paper.published import dataset, published_cell, published_strategy
from wavefront.paper.tables import (
    BLOCK,
    BOTH_READINGS,
    EVALUATED,
    NATS,
    WAVES,
    Key,
    accuracy_table,
    by_case,
    grid,
    group_by,
    pool,
    wave_claims,
)
from wavefront.results.bootstrap import bootstrap_clusters
from wavefront.results.interval import bounds

NEEDS = "nothing; --paper: LLaDA-8B-Instruct, gsm8k"
SMALL = Scale(items=16, length=48)
PAPER = Scale(models=(LLADA,), tasks=("gsm8k",), items=None, length=1024, style="paper")
COMPARED = EVALUATED
RATIOS = (4, 2, 1)  # of N: the paper's 256, 512 and 1024


def run(runner: Runner) -> ResultsPage:
    """Run every strategy at a quarter, half and all of the steps."""
    budgets = {ratio: max(1, runner.steps // ratio) for ratio in RATIOS}
    trials = [
        one for steps in dict.fromkeys(budgets.values())
        for one in grid(runner, case=f"T={steps}", options={"steps": steps})
    ]  # fmt: skip
    groups = group_by(runner.measure(trials), by_case)
    names = ["model", "data set", "T", "strategy"]
    ratio = {f"T={steps}": one for one, steps in budgets.items()}

    def published(key: Key) -> str | None:
        if dataset(key[1]) != "GSM8K":
            return None
        return published_cell(
            "steps", str(1024 // ratio[key[2]]), strategy=published_strategy(key[3])
        )

    claims = []
    for case in dict.fromkeys(key[2] for key in groups):
        text = f"The wave surpasses block at {case} (paper: T = {1024 // ratio[case]})"
        low = ratio[case] == max(RATIOS)
        text = f"The wave stays competitive at {case}: not below block" if low else text
        claims += wave_claims(groups, text, case, BLOCK)
    claims += [_growth(groups, list(ratio), spec) for spec in WAVES]
    table = accuracy_table("Correct answers by steps", groups, names, paper=published)
    return experiment_page(
        runner,
        title="Correct answers by number of steps",
        text=f"T is a quarter, half and all of {runner.steps} steps. {BOTH_READINGS}",
        claims=claims,
        tables=[table],
        figures={"steps": (_picture(groups), "Correct answers against steps and forward passes")},
        numbers={"measured": table.records()},
    )


def _growth(groups: dict[Key, TrialGroup], cases: list[str], spec: str) -> Claim:
    """Claim that the lead over block is larger with the most steps than with the fewest."""
    few, many = cases[0], cases[-1]
    pairs = [(pool(groups, case, BLOCK), pool(groups, case, spec)) for case in (few, many)]
    sign = -1 if pairs[0][0].judged else 1  # lower nats are better
    (block, wave), (more_block, more_wave) = ([one.scores for one in pair] for pair in pairs)
    keys = list(more_wave if more_block else ())
    lead = [sign * (more_wave[i] - more_block[i] - wave[i] + block[i]) for i in keys]
    items = [item_of(key) for key in keys]
    gap = bootstrap_clusters(lead, items) if lead else None
    text = f"The lead over block is more pronounced at {many} than at {few}"
    claim = direction_claim(text, spec, gap=gap, items=len({*items}), claimed="higher")
    said = [accuracy_claim("", "", base=one, other=other).verdict for one, other in pairs]
    if sign < 0:  # quality cannot be bought by length or repetition
        said.append(f"{NOT_MEASURABLE}: a lead in nats alone is not one in quality")
    reasons = [one for one in said if one.startswith(NOT_MEASURABLE)]
    return claim._replace(verdict=reasons[0]) if reasons else claim


def _picture(groups: dict[Key, TrialGroup]) -> Figure:
    found: dict[str, list[Point]] = {}
    judged = False
    for case, spec in dict.fromkeys(key[2:] for key in groups):
        one = pool(groups, case, spec)
        share = one.score.scaled(0.01)
        judged = judged or one.judged
        steps = int(case.removeprefix("T="))
        found.setdefault(spec, []).append(Point(steps, one.forwards or steps, *bounds(share)))
    return figures.accuracy(found, **({"ylabel": NATS} if judged else {}))
