"""What the table scripts share: decode held-out items, store the answers, grade and compare them.

A table script has two commands. `generate` decodes and writes answers; `grade` reads, grades and
prints tables. They are separate, so that model-written code runs where you want.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

import wavefront
from wavefront import tasks
from wavefront.kernels import fp8_product
from wavefront.models.quantize import QuantizedLinear
from wavefront.models.transformer import Transformer
from wavefront.results.interval import Interval
from wavefront.results.paired import compare
from wavefront.tasks.base import Sample
from wavefront.text.tokenizer import prompt_ids

CANVASES = (64, 96, 128, 192, 256)
Row = dict[str, Any]  # one answer: task, split, drawn, id, the setting, text, tokens, steps, cost
Rows = Mapping[str, Row]  # by item


def run_script(
    description: str,
    generate: Callable[[wavefront.LM, argparse.Namespace], Iterator[Row]],
    grade: Callable[[Row, list[Row], argparse.Namespace], str],
    add_options: Callable[[argparse.ArgumentParser, argparse.ArgumentParser], None],
) -> None:
    """Parse the command line and run `generate` or `grade`."""
    parser = argparse.ArgumentParser(description=description)
    commands = parser.add_subparsers(dest="command", required=True)
    make = commands.add_parser("generate", help="decode and write the answers")
    make.add_argument("--model", default="ripple")
    make.add_argument("--out", type=Path, required=True)
    make.add_argument("--seed", type=int, default=0, help="of drawing the items")
    make.add_argument("--compile", action="store_true", help="twice as fast after some seconds")
    make.add_argument("--device")
    make.add_argument("--dtype")
    make.add_argument("--rows", type=int, default=512, help="decoded together")
    judge = commands.add_parser("grade", help="grade answers and print the tables")
    judge.add_argument("answers", type=Path, nargs="+")
    judge.add_argument("--out", type=Path)
    add_options(make, judge)
    options = parser.parse_args()
    if options.command == "generate":
        write_answers(options, generate)
        return
    first, rows = read_answers(options.answers)
    text = grade(first, rows, options)
    print(text)
    if options.out:
        options.out.write_text(text)


def write_answers(
    options: argparse.Namespace,
    generate: Callable[[wavefront.LM, argparse.Namespace], Iterator[Row]],
) -> None:
    """Decode, and write a header and one line per answer."""
    lm = wavefront.load(options.model, device=options.device, dtype=options.dtype)
    if options.compile and isinstance(lm.model, Transformer):
        torch._dynamo.config.recompile_limit = 64
        for block in lm.model.layers:  # the code of one block serves all, at any shape
            block.compile(dynamic=True)
    header = {
        "model": lm.name,
        "version": wavefront.__version__,
        "torch": torch.__version__,
        "dtype": str(lm.model.dtype),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "command": " ".join(sys.argv),
        "seed": options.seed,
        "items": options.items,
    }
    with gzip.open(options.out, "wt") as file:
        for line in itertools.chain([header], generate(lm, options)):
            file.write(json.dumps(line) + "\n")


def read_answers(paths: Iterable[Path]) -> tuple[Row, list[Row]]:
    """Read and grade answers; several files must answer the same items."""
    headers: list[Row] = []
    rows: list[Row] = []
    for path in paths:
        try:
            with gzip.open(path, "rt") as file:
                headers.append(json.loads(next(file)))
                rows += [json.loads(line) for line in file]
        except (OSError, EOFError, ValueError, StopIteration) as error:
            raise SystemExit(f"{path} is not a finished file of `generate`: {error}.") from None
    if len({(one["items"], one["seed"]) for one in headers}) > 1:
        raise SystemExit("These files answer different items: --items or --seed differ.")
    grade_rows(rows, headers[0]["seed"])
    return headers[0], rows


def grade_rows(rows: Iterable[Row], seed: int) -> None:
    """Write `correct` into every row; the same text to the same item is graded once."""
    items: dict[tuple[str, str, int], dict[str, Sample]] = {}
    verdicts: dict[tuple[str, str], bool] = {}
    for row in rows:
        drawn, key = (row["task"], row["split"], row["drawn"]), (row["id"], row["text"])
        if drawn not in items:
            items[drawn] = {item.id: item for item in draw_items(*drawn, seed=seed)}
        if key not in verdicts:
            more = {"allow_unsandboxed": True} if row["task"] == "code" else {}
            grader = tasks.load(row["task"], **more)
            verdicts[key] = grader.grade(items[drawn][row["id"]], row["text"]).correct
        row["correct"] = verdicts[key]


def draw_items(name: str, split: str, count: int, *, seed: int) -> list[Sample]:
    """Draw distinct items of a task, half of them in the paper's template; or real BBH items."""
    if split == "real":
        return list(tasks.real_bbh(name))[:count]
    task = tasks.load(name)
    source = random.Random(f"{seed} {name} {split}")
    found: dict[str, Sample] = {}
    for number in range(20 * count):  # a small task may have fewer distinct items
        style = "paper" if number % 2 else "bare"
        item = task.sample(source, split=split, style=style)  # pyright: ignore[reportArgumentType]
        found.setdefault(item.id, item)
        if len(found) == count:
            break
    return list(found.values())


def fit_canvas(lm: wavefront.LM, items: Iterable[Sample]) -> int:
    """Return the smallest canvas that holds every reference answer."""
    lengths = [len(lm.tokenizer.encode(item.answer)) + 2 for item in items if item.answer]
    longest = max(lengths, default=128)
    return next((length for length in CANVASES if length >= longest), CANVASES[-1])


def decode(
    lm: wavefront.LM, items: list[Sample], rows: int, **options: Any
) -> Iterator[tuple[Sample, Row]]:
    """Decode items in batches of similar length; yield each with its part of a row.

    The cost is in forward passes over the whole canvas, until the row is done.
    """
    lengths = {item.id: len(prompt_ids(lm.tokenizer, item.prompt)) for item in items}
    order = sorted(items, key=lambda item: lengths[item.id])
    for start in range(0, len(order), rows):
        some = order[start : start + rows]
        answers = lm.generate([item.prompt for item in some], **options)
        canvas = max(one.prompt_tokens for one in answers) + options["max_new_tokens"]
        for item, one in zip(some, answers, strict=True):
            yield (
                item,
                {
                    "id": item.id,
                    "places": options["max_new_tokens"],
                    "eos": options["eos"],
                    "text": one.text,
                    "tokens": one.tokens,
                    "steps": one.steps,
                    "cost": one.token_forwards / canvas,
                },
            )


FP8_INPUTS = "fp8-inputs"  # fp8 weights, and inputs rounded to fp8 as a GPU does
QUANTIZATIONS = ("int8", "fp8", FP8_INPUTS, "int4")


def load_quantized(
    name: str, quantization: str | None, *, device: str | None = None, dtype: str | None = None
) -> wavefront.LM:
    """Load a model with quantised weights; `quantization` is one of QUANTIZATIONS or None."""
    kind = "fp8" if quantization == FP8_INPUTS else quantization
    lm = wavefront.load(name, device=device, dtype=dtype, quantize=kind)
    if quantization == FP8_INPUTS:
        assert isinstance(lm.model, Transformer)
        round_inputs(lm.model)
    return lm


def round_inputs(model: Transformer) -> None:
    """Let the fp8 layers of a model round their inputs, which only a GPU with fp8 does itself."""
    for layer in model.modules():
        if not isinstance(layer, QuantizedLinear) or layer.kind != "fp8":
            continue
        if not any(side % fp8_product.MULTIPLE for side in layer.codes.shape):
            setattr(layer, "parts", _rounding_product(layer))  # noqa: B010  (in place of the method)


def _rounding_product(layer: QuantizedLinear) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return `fp8_product.parts` of a layer. The weight is converted once, which takes long."""
    weight = layer.codes.view(fp8_product.E4M3).float()

    def parts(x: torch.Tensor) -> torch.Tensor:
        rows, scale = fp8_product.quantize_rows(x.flatten(0, -2))
        made = torch.nn.functional.linear(rows.float(), weight) * scale * layer.scale
        made = made.to(x.dtype).unflatten(0, x.shape[:-1])
        return (made if layer.bias is None else made + layer.bias)[None]

    return parts


def percent_correct(rows: Rows) -> float:
    """Return the share of correct answers in %."""
    return 100 * sum(row["correct"] for row in rows.values()) / len(rows)


def gap(rows: Rows, base: Rows) -> Interval:
    """Return the difference to the base, in pairs, in points of percent."""
    first, second = ({key: row["correct"] for key, row in one.items()} for one in (base, rows))
    return compare(first, second).gap.scaled(100)


def signed_text(found: Interval) -> str:
    """Return an interval with signs and one decimal."""
    return f"{found.value:+.1f} [{found.low:+.1f}, {found.high:+.1f}]"


def headline(header: Row, *more: str) -> str:
    """Return the first line of a page: command, machine and seed."""
    machine = f"{header['device']}, torch {header['torch']}, {header['dtype']}"
    return ", ".join([f"`{header['command']}`: {machine}", f"seed {header['seed']}", *more])
