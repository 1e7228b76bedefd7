"""BERTScore: are the wave's texts nearer to the reference than block's?"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any, NamedTuple

from wavefront.analysis import figures
from wavefront.analysis.bertscore import Scores, score
from wavefront.analysis.encoder import Encoder
from wavefront.analysis.figures import Bar
from wavefront.evaluation import fingerprint
from wavefront.evaluation.batches import width_of
from wavefront.evaluation.task_spec import samples_of
from wavefront.evaluation.worker import Job, Prompt, Reply
from wavefront.paper._claims import Claim, measured
from wavefront.paper._grid import BLOCK, WAVES
from wavefront.paper._groups import as_numbers, booted
from wavefront.paper._lab import LLADA, RUNS, Cell, Lab, Scale, short
from wavefront.paper._page import page
from wavefront.paper._printed import cell, strategy
from wavefront.paper.studies import Findings
from wavefront.paper.studies._bench import EVALUATED
from wavefront.results.bootstrap import ends
from wavefront.results.table import Interval, Table
from wavefront.storage import jsonl
from wavefront.tasks.base import Ask, Sample

NEEDS = "the extra minilm, or --encoder; --paper: LLaDA-8B-Instruct, wikitext, roberta-large"
SMALL = Scale(items=8, seeds=(0, 1, 2))
PAPER = Scale(models=(LLADA,), tasks=("wikitext",), items=1000, seeds=(0, 1, 2), style="paper")
ROOM = 16  # a canvas is the reference's length rounded up to so many places
PARTS = ("F1", "P", "R")
COLUMNS = ["model", "task", "strategy",
           *(f"{part}{end}" for part in PARTS for end in ("", ", deviation over seeds", ", paper")),
           "F1 less block's", "texts"]  # fmt: skip


class Texts(NamedTuple):
    """What a strategy wrote, seed by seed, and how near it came."""

    cell: Cell
    scores: Mapping[int, Scores]

    def values(self, part: str) -> list[float]:
        at = {"P": 0, "R": 1, "F1": 2}[part]
        return [one[at] for found in self.scores.values() for one in found.each]


def run(lab: Lab) -> Findings:
    """Texts of every strategy for items of three seeds, scored."""
    encoder = Encoder(lab.encoder, layer=lab.layer, device=lab.loader.device)
    found = []
    for model in lab.models:
        for task in lab.scale.tasks:
            for spec in EVALUATED:
                one = Cell(model, task, spec)
                found.append(
                    Texts(one, {s: _scored(lab, one, s, encoder) for s in lab.scale.seeds})
                )
    rows, claims, bars = [], [], []
    for one in found:
        base = next(o for o in found if o.cell == one.cell._replace(strategy=BLOCK))
        name = [short(one.cell.model), one.cell.task, one.cell.strategy]
        gap = None if one is base else _gap(base, one, "F1")
        rows.append([*name, *_row(one), gap, len(one.values("F1"))])
        bars += [Bar(part, one.cell.strategy, *_ends(one, part)) for part in PARTS]
        if one.cell.strategy in WAVES:
            claims += [_claim(base, one, part) for part in PARTS]
    signature = next(iter(found[0].scores.values())).signature
    table = Table("BERTScore", COLUMNS, rows, f"Encoder: {signature}.")
    return page(
        lab,
        title="BERTScore: nearness to the reference",
        text="The model answers on a canvas of the reference's length, rounded up to a multiple of "
        f"{ROOM}; the reference is a sentence's second half, or the worked answer of a task. Seeds "
        "draw the items. Differences are in pairs, with 95 % bootstrap intervals.",
        claims=claims,
        tables=[table],
        figures={"bertscore": (figures.bars(bars, ylabel="BERTScore (x 100)"), "BERTScore")},
        numbers={"measured": as_numbers(table), "encoder": signature},
        configuration={"encoder": signature, "places (N)": "as the reference", "steps (T)": "N",
                       "seeds of the items": list(lab.scale.seeds)},
    )  # fmt: skip


def _row(one: Texts) -> list[Any]:
    cells: list[Any] = []
    for part in PARTS:
        at = {"P": 0, "R": 1, "F1": 2}[part]
        means = [found.mean[at] for found in one.scores.values()]
        spread = statistics.stdev(means) if len(means) > 1 else None
        paper = cell("bertscore", part, strategy=strategy(one.cell.strategy))
        cells += [statistics.fmean(means), spread, paper]
    return cells


def _ends(one: Texts, part: str) -> tuple[float, float, float]:
    return ends(booted(one.values(part)))


def _gap(base: Texts, other: Texts, part: str) -> Interval | None:
    pairs = zip(base.values(part), other.values(part), strict=True)
    return booted([b - a for a, b in pairs])


def _claim(base: Texts, other: Texts, part: str) -> Claim:
    text, where = f"The wave has a higher {part} than block", other.cell.strategy
    return measured(text, where, _gap(base, other, part), len(other.values(part)), "higher")


def _scored(lab: Lab, one: Cell, seed: int, encoder: Encoder) -> Scores:
    ask = Ask(count=lab.scale.items, seed=lab.seed + seed, style=lab.scale.style, data=lab.data)
    _, samples = samples_of(one.task, ask)
    texts = _written(lab, one._replace(seed=seed), samples)
    return score([texts[s.id] for s in samples], [s.answer or s.target for s in samples], encoder)


def _written(lab: Lab, one: Cell, samples: list[Sample]) -> dict[str, str]:
    """The texts by item; whole batches that are on the disk are not made again."""
    lm, folder = lab.lm(one.model), lab.home / RUNS / one.folder
    decides = lab.worker(one.model).about({"strategy": one.strategy})
    about = [decides.model, one.strategy, fingerprint.of_code()]
    lots: dict[int, list[Sample]] = {}
    for sample in samples:
        length = len(lm.tokenizer.encode(sample.answer or sample.target))
        lots.setdefault(-(-max(1, length) // ROOM) * ROOM, []).append(sample)
    with jsonl.lock_directory(folder), jsonl.JsonLines(folder / "texts.jsonl") as out:
        known = jsonl.by_key(out.found, out.file)
        made: dict[str, str] = {}
        for length, lot in sorted(lots.items()):
            for start in range(0, len(lot), lab.scale.rows):
                batch = lot[start : start + lab.scale.rows]
                keys = [fingerprint.of_value([about, length, s.id, s.prompt]) for s in batch]
                if not all(key in known for key in keys):
                    lab.progress(f"{one.task}, {one.strategy}", 0.5)
                    answers = _answers(lab, one, batch, length)
                    for key, sample, answer in zip(keys, batch, answers, strict=True):
                        if key not in known:
                            known[key] = {"key": key, "id": sample.id, "text": answer.text}
                            out.append(known[key])
                made |= {s.id: known[k]["text"] for s, k in zip(batch, keys, strict=True)}
    return made


def _answers(lab: Lab, one: Cell, batch: list[Sample], length: int) -> list[Reply]:
    """A batch on a canvas of so many places, as an evaluation decodes it."""
    worker, prompts = lab.worker(one.model), [Prompt.of(sample) for sample in batch]
    options = {"strategy": one.strategy, "max_new_tokens": length, "eos": "stop"}
    width = width_of(max(worker.lengths(prompts, False)))
    return worker.decode(Job(0, prompts, width, len(prompts), options)).replies
