"""Adapting on a GPU: a run in several commands agrees with an uninterrupted one."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from helpers.tiny_llamas import write_llama2c

from wavefront.train.adapt import adapt
from wavefront.train.config import AdaptConfig, RowConfig, TrainConfig


def adapt_on_gpu(folder: Path, *, commands: int) -> dict[str, Any]:
    """Adapt a tiny Llama for 60 steps, in one command or in several."""
    folder.mkdir()
    write_llama2c(folder / "tiny.bin")
    out = folder / "run"
    config = AdaptConfig(
        original=folder / "tiny.bin",
        out=out,
        texts=256,
        write_batch=128,
        write_dtype="float16",
        held_out=32,
        held_out_texts=128,
        prompt_tokens=16,
        filters="",
    )
    data = RowConfig(
        tokenizer=out / "original",
        rows_path=out / "rows",
        tokens_per_step=1536,
        buckets=(32, 48),
        prefix=(1, 8),
        group=4,
    )
    training = TrainConfig(
        out=out, data=data, steps=60, lr=3e-3, warmup=4, ema=0.9, device="cuda", workers=0
    )
    record: dict[str, Any] = {}
    for number in range(1, commands + 1):
        # A run of fixed steps continues exactly; here each command adds its share of the steps.
        part = replace(training, decay_fraction=0.0, steps=60 * number // commands)
        record = adapt(config, part)
    return record


def test_run_in_three_commands_agrees_with_one(tmp_path: Path) -> None:
    whole = adapt_on_gpu(tmp_path / "whole", commands=1)
    parts = adapt_on_gpu(tmp_path / "parts", commands=3)
    losses = [record["held_out"]["raw"]["loss"] for record in (whole, parts)]
    assert abs(losses[0] - losses[1]) < 0.02 * losses[0], losses
    assert whole["peak_bytes"] > 0


if __name__ == "__main__":
    import script

    sys.exit(script.run(globals()))
