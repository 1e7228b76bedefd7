"""What the table scripts share: items, canvases, loading, the header of a file, intervals."""

from __future__ import annotations

import argparse
import gzip
import json
import random
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

import wavefront
from wavefront import tasks
from wavefront.models.transformer import Transformer
from wavefront.tasks.base import Sample
from wavefront.text.tokenizer import prompt_ids

CANVASES = (64, 96, 128, 192, 256)
LARGE = {"gsm", "code"}  # tasks that get --items; the others get half of it


def load_lm(asked: argparse.Namespace) -> wavefront.LM:
    """The model of the command line, compiled on request."""
    lm = wavefront.load(asked.model, device=asked.device, dtype=asked.dtype)
    if asked.compile and isinstance(lm.model, Transformer):
        torch._dynamo.config.recompile_limit = 64
        for block in lm.model.layers:  # one block's code serves all, at any shape
            block.compile(dynamic=True)
    return lm


def header(lm: wavefront.LM, asked: argparse.Namespace) -> dict[str, Any]:
    """The first line of a file of answers: where they come from."""
    return {
        "model": lm.name,
        "version": wavefront.__version__,
        "torch": torch.__version__,
        "dtype": str(lm.model.dtype),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "command": " ".join(sys.argv),
        "seed": asked.seed,
        "items": asked.items,
    }


def read_answers(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The header and the lines of a file of answers."""
    try:
        with gzip.open(path, "rt") as file:
            return json.loads(next(file)), [json.loads(line) for line in file]
    except (OSError, EOFError, ValueError, StopIteration) as error:
        raise SystemExit(f"{path} holds no answers that `generate` finished: {error}.") from None


def common_options(parser: argparse.ArgumentParser) -> None:
    """What every `generate` takes."""
    parser.add_argument("--model", default="ripple")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--compile", action="store_true", help="twice as fast after some seconds")
    parser.add_argument("--device")
    parser.add_argument("--dtype")


def samples(name: str, count: int, split: str, seed: int) -> list[Sample]:
    """Held-out items of a task, half of them in the paper's template; or the real BBH file."""
    if split == "real":
        return list(tasks.real_bbh(name))[:count]
    task = tasks.load(name)
    rng = random.Random(f"{seed} {name} {split}")
    found: dict[str, Sample] = {}
    for number in range(20 * count):  # a small task may have fewer distinct items than asked for
        style = "paper" if number % 2 else "bare"
        item = task.sample(rng, split=split, style=style)  # pyright: ignore[reportArgumentType]
        found.setdefault(item.id, item)
        if len(found) == count:
            break
    return list(found.values())


def items_of(name: str, items: int) -> int:
    return items if name in LARGE else items // 2


def fit(lm: wavefront.LM, name: str, items: list[Sample], options: argparse.Namespace) -> int:
    """The task's canvas. Real items have no worked answer: theirs is that of the held-out ones."""
    if not any(item.answer for item in items):
        items = samples(name, items_of(name, options.items), "held-out", options.seed)
    longest = max((len(lm.tokenizer.encode(item.answer)) + 2 for item in items), default=128)
    return next((n for n in CANVASES if n >= longest), CANVASES[-1])


def batches(lm: wavefront.LM, items: list[Sample], rows: int):
    """Items with their prompts, sorted by length so that padding is short."""
    prompts = [prompt_ids(lm.tokenizer, item.prompt) for item in items]
    order = sorted(range(len(items)), key=lambda i: len(prompts[i]))
    for start in range(0, len(order), rows):
        chosen = order[start : start + rows]
        yield [items[i] for i in chosen], [prompts[i] for i in chosen]


def load_grader(name: str):
    return tasks.load(name, allow_unsandboxed=True) if name == "code" else tasks.load(name)


def judge(rows: Iterable[dict[str, Any]], known: dict[str, tuple[str, Sample]]) -> None:
    """Write `correct` into every row; the same text to the same item is run once."""
    graders: dict[str, Any] = {}
    verdicts: dict[tuple[str, str], bool] = {}
    for row in rows:
        name, item = known[row["id"]]
        key = (row["id"], row["text"])
        if key not in verdicts:
            grader = graders.setdefault(name, None) or load_grader(name)
            graders[name] = grader
            verdicts[key] = grader.grade(item, row["text"]).correct
        row["correct"] = verdicts[key]


def bootstrap(differences: list[float], draws: int = 2000) -> tuple[float, float]:
    """A paired bootstrap 95 % interval of the mean."""
    values = torch.tensor(differences, dtype=torch.float64)
    picks = torch.randint(
        0, len(values), (draws, len(values)), generator=torch.Generator().manual_seed(0)
    )
    means = values[picks].mean(-1)
    return float(means.quantile(0.025)), float(means.quantile(0.975))
