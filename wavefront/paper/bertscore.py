"""BERTScore: are the wave's texts closer to the reference than block's?"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from wavefront.analysis import figures
from wavefront.analysis.bertscore import Scores, score
from wavefront.analysis.encoder import Encoder
from wavefront.analysis.figures import Bar
from wavefront.evaluation import fingerprint
from wavefront.evaluation.batches import width_of
from wavefront.evaluation.page import ResultsPage
from wavefront.evaluation.task_spec import samples_of
from wavefront.evaluation.trials import RUNS, Runner, Scale, Trial, model_name
from wavefront.evaluation.worker import BatchJob, Prompt, Reply
from wavefront.paper.claims import Claim, direction_claim
from wavefront.paper.experiment import LLADA, experiment_page
from wavefront.paper.published import published_cell, published_strategy
from wavefront.paper.tables import BLOCK, EVALUATED, WAVES
from wavefront.results.bootstrap import bootstrap_mean
from wavefront.results.interval import Interval, bounds
from wavefront.results.table import Table
from wavefront.storage import jsonl
from wavefront.tasks.base import Sample

NEEDS = "the extra minilm, or --encoder; --paper: LLaDA-8B-Instruct, wikitext, roberta-large"
SMALL = Scale(items=8, seeds=(0, 1, 2))
PAPER = Scale(models=(LLADA,), tasks=("wikitext",), items=1000, seeds=(0, 1, 2), style="paper")
ROOM = 16  # round the reference's length up to a multiple of this many positions
PARTS = ("F1", "P", "R")
COLUMNS = ["model", "task", "strategy",
           *(f"{part}{end}" for part in PARTS for end in ("", ", deviation over seeds", ", paper")),
           "F1 minus block's", "texts"]  # fmt: skip


class Texts(NamedTuple):
    """The scores of a strategy's texts, by seed."""

    trial: Trial
    scores: Mapping[int, Scores]

    def values(self, part: str) -> list[float]:
        """Return one score per text."""
        at = {"P": 0, "R": 1, "F1": 2}[part]
        return [one[at] for found in self.scores.values() for one in found.each]


def run(runner: Runner) -> ResultsPage:
    """Score the texts of every strategy for items of three seeds."""
    encoder = Encoder(runner.encoder, layer=runner.layer, device=runner.loader.device)
    found = []
    for model in runner.models:
        for task in runner.scale.tasks:
            for spec in EVALUATED:
                one = Trial(model, task, spec)
                found.append(
                    Texts(
                        one,
                        {s: _scored(runner, one, s, encoder=encoder) for s in runner.scale.seeds},
                    )
                )
    rows, claims, bars = [], [], []
    for one in found:
        base = next(o for o in found if o.trial == one.trial._replace(strategy=BLOCK))
        name = [model_name(one.trial.model), one.trial.task, one.trial.strategy]
        gap = None if one is base else _gap(base, one, "F1")
        rows.append([*name, *_row(one), gap, len(one.values("F1"))])
        bars += [
            Bar(part, one.trial.strategy, *bounds(bootstrap_mean(one.values(part))))
            for part in PARTS
        ]
        if one.trial.strategy in WAVES:
            claims += [_claim(base, one, part) for part in PARTS]
    signature = next(iter(found[0].scores.values())).signature
    table = Table("BERTScore", COLUMNS, rows, f"Encoder: {signature}.")
    return experiment_page(
        runner,
        title="BERTScore: similarity to the reference",
        text="The model answers on a canvas of the reference's length, rounded up to a multiple of "
        f"{ROOM}; the reference is a sentence's second half, or the worked answer of a task. Seeds "
        "draw the items. Differences are in pairs, with 95 % bootstrap intervals.",
        claims=claims,
        tables=[table],
        figures={"bertscore": (figures.bars(bars, ylabel="BERTScore (x 100)"), "BERTScore")},
        numbers={"measured": table.records(), "encoder": signature},
        configuration={"encoder": signature, "positions (N)": "as the reference", "steps (T)": "N",
                       "seeds of the items": list(runner.scale.seeds)},
    )  # fmt: skip


def _row(one: Texts) -> list[Any]:
    cells: list[Any] = []
    for part in PARTS:
        at = {"P": 0, "R": 1, "F1": 2}[part]
        means = [found.mean[at] for found in one.scores.values()]
        spread = statistics.stdev(means) if len(means) > 1 else None
        paper = published_cell("bertscore", part, strategy=published_strategy(one.trial.strategy))
        cells += [statistics.fmean(means), spread, paper]
    return cells


def _gap(base: Texts, other: Texts, part: str) -> Interval:
    pairs = zip(base.values(part), other.values(part), strict=True)
    return bootstrap_mean([b - a for a, b in pairs])


def _claim(base: Texts, other: Texts, part: str) -> Claim:
    text, where = f"The wave has a higher {part} than block", other.trial.strategy
    gap, items = _gap(base, other, part), len(other.values(part))
    return direction_claim(text, where, gap=gap, items=items, claimed="higher")


def _scored(runner: Runner, one: Trial, seed: int, *, encoder: Encoder) -> Scores:
    ask = replace(runner.ask(), seed=runner.items_seed + seed)
    _, samples = samples_of(one.task, ask)
    texts = _written(runner, one._replace(seed=seed), samples)
    return score([texts[s.id] for s in samples], [s.answer or s.target for s in samples], encoder)


def _written(runner: Runner, one: Trial, samples: list[Sample]) -> dict[str, str]:
    """Return the texts by item. Batches that are on disk are not decoded again."""
    lm, folder = runner.lm(one.model), runner.folder / RUNS / one.folder
    decides = runner.worker(one.model).about({"strategy": one.strategy})
    about = [decides.model, one.strategy, fingerprint.of_code()]
    lots: dict[int, list[Sample]] = {}
    for sample in samples:
        length = len(lm.tokenizer.encode(sample.answer or sample.target))
        lots.setdefault(-(-max(1, length) // ROOM) * ROOM, []).append(sample)
    with jsonl.lock_directory(folder), jsonl.JsonLines(folder / "texts.jsonl") as out:
        known = jsonl.by_key(out.found, out.file)
        made: dict[str, str] = {}
        for length, lot in sorted(lots.items()):
            for start in range(0, len(lot), runner.scale.rows):
                batch = lot[start : start + runner.scale.rows]
                keys = [fingerprint.of_value([about, length, s.id, s.prompt]) for s in batch]
                if not all(key in known for key in keys):
                    runner.progress(f"{one.task}, {one.strategy}", 0.5)
                    answers = _answers(runner, one, batch, length=length)
                    for key, sample, answer in zip(keys, batch, answers, strict=True):
                        if key not in known:
                            known[key] = {"key": key, "id": sample.id, "text": answer.text}
                            out.append(known[key])
                made |= {s.id: known[k]["text"] for s, k in zip(batch, keys, strict=True)}
    return made


def _answers(runner: Runner, one: Trial, batch: list[Sample], *, length: int) -> list[Reply]:
    """Decode a batch on a canvas of this length, as an evaluation does."""
    worker, prompts = runner.worker(one.model), [Prompt.of(sample) for sample in batch]
    options = {"strategy": one.strategy, "max_new_tokens": length, "eos": "stop"}
    width = width_of(max(worker.lengths(prompts, False)))
    return worker.decode(BatchJob(0, prompts, width, options)).replies
