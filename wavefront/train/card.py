"""The model card of an adapted model, and the curve of its training."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from wavefront.core.errors import RunError
from wavefront.storage.read_file import parse_json, read_lines
from wavefront.storage.write_file import write_text
from wavefront.train.config import AdaptConfig, RowConfig, TrainConfig

WIDTH, HEIGHT, MARGIN, TOP = 720, 260, 40, 44  # of the drawing
MARKED = 100  # a line with at most so many points shows each of them
KINDS = {"raw": "held-out loss of the weights", "ema": "held-out loss of the averaged weights"}
COLOURS = {"training loss": "#0072b2", KINDS["raw"]: "#009e73", KINDS["ema"]: "#d55e00"}


def write_card(
    folder: Path,
    *,
    config: AdaptConfig,
    training: TrainConfig,
    facts: dict[str, Any],
    log: Path,
) -> None:
    """Write `README.md`, `training.svg`, `training.jsonl` and `LICENSE` into the model's folder."""
    if config.notice:
        write_text(folder / "LICENSE", config.notice, error=RunError)
    lines = read_lines(log, error=RunError)
    records = [parse_json(line, str(log), error=RunError) for line in lines]
    # The last record of a session repeats the loss of the one before, and adds the held-out loss.
    steps = [record for record in records if "loss" in record and "held_out" not in record]
    measured = [record for record in records if "held_out" in record]
    kept = [{key: record[key] for key in ("step", "loss", "lr")} for record in steps]
    kept += [
        {"step": record["step"], "held_out": {k: v["loss"] for k, v in record["held_out"].items()}}
        for record in measured
    ]
    text = "".join(json.dumps(record) + "\n" for record in sorted(kept, key=lambda r: r["step"]))
    write_text(folder / "training.jsonl", text, error=RunError)
    write_text(folder / "training.svg", draw_curve(steps, measured), error=RunError)
    card = card_text(config, training, facts | _last(records))
    write_text(folder / "README.md", card, error=RunError)


def _last(records: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what the last record says about the whole run."""
    last = records[-1]
    exported = last.get("exported", "raw")
    losses = last.get("held_out", {}).get(exported, {})
    return {
        "step": last["step"],
        "exported": exported,
        "held_out_loss": losses.get("loss"),
        "levels": losses.get("levels", {}),
        "peak_bytes": last.get("peak_bytes"),
        "final_loss": last.get("loss"),
    }


def card_text(config: AdaptConfig, training: TrainConfig, facts: dict[str, Any]) -> str:
    """Return the card: what the model is, its data, its recipe, its loss and its limits."""
    data = training.data
    assert isinstance(data, RowConfig)
    levels = "".join(
        f"| {level} | {entry['nats']:.3f} | {entry['accuracy']:.1%} |\n"
        for level, entry in facts["levels"].items()
    )
    pruned = (
        f" Its vocabulary is pruned to {facts['vocabulary']:,} tokens, which cover "
        f"{facts['coverage']:.2%} of the original's texts."
        if "coverage" in facts
        else ""
    )
    origin = f"written by the original at temperature {config.temperature:g}"
    if config.texts_from is not None:
        origin = f"from `{config.texts_from.name}`; where it gives prompts alone, {origin}"
    judge = "**Judge.** `judge/` holds the original in 8 bits: `wavefront.models.judge.Judge`.\n"
    judge = judge if config.judge else "**Prompts.** "
    memory = f"{facts['peak_bytes'] / 2**30:.1f} GiB of memory; " if facts["peak_bytes"] else ""
    weights = ", ".join(f"{weight:g}" for weight in data.bucket_weights) or "equal"
    return f"""\
# {config.name}

A masked diffusion model, adapted from the autoregressive `{config.original.name}` by
`wavefront train adapt`.{pruned}

**Data.** {facts["texts"]:,} texts of {facts["tokens"] / facts["texts"]:.0f} tokens on average, \
{origin}.
{facts["overlap"]:,} others shared a run of 13 tokens with one of the {facts["held_out"]:,} \
held-out prompts or with one of
{facts["excluded"]:,} excluded texts, and were left out. No other text was used.

**Recipe.** The attention is bidirectional, and one row is added for the mask. The prompt of a \
text stays visible, or a prefix of
{data.prefix[0]} to {data.prefix[1]} tokens where it has none. Every other position is masked
independently with probability t, drawn from U({training.eps:g}, 1). The loss is the
cross-entropy at the masked positions, divided by t. No mask has the shape of a decoding schedule.
After its end, a text is padded with end tokens to a length from {data.buckets[0]} to \
{data.buckets[-1]} positions: {", ".join(map(str, data.buckets))}
(shares of the rows: {weights}).
{facts["step"]:,} steps of {data.tokens_per_step:,} tokens, {training.optimizer} at \
{training.lr:g}, warm-up {training.warmup} steps,
{_decay(training.decay_fraction)}, seed {data.seed}; {memory}\
{facts["exported"]} weights.

**Held-out loss**, in nats per masked token of the text, without the weight 1/t:

| masked share t | nats | accuracy |
|---|---|---|
{levels}
![Training loss and held-out loss](training.svg)

{judge}`prompts.jsonl` holds the held-out prompts, with the texts of the original.

**Limits.** The model knows only what its original wrote. Texts longer than the original's context
were never seen, and positions beyond {data.buckets[-1]} are out of range.
"""


def _decay(share: float) -> str:
    """Return in words how the learning rate falls."""
    if share == 0:
        return "no decay"
    if share == 1:
        return "linear decay over the whole run"
    return f"linear decay over the last {100 * share:g} % of the run"


def draw_curve(steps: list[dict[str, Any]], measured: list[dict[str, Any]]) -> str:
    """Return an SVG with two panels: the training loss, and each kind of held-out loss.

    The held-out losses of the weights and of the averaged weights are different numbers, so each
    kind has its own line. The two panels have different scales: the training loss is
    weighted by 1/t, and the held-out loss is not.

    Args:
        steps: Records with `step` and `loss`.
        measured: Records with `step` and `held_out`, which holds the loss of each kind.
    """
    training = {"training loss": [(record["step"], record["loss"]) for record in steps]}
    held_out: dict[str, list[tuple[int, float]]] = {}
    for record in measured:
        for kind, entry in record["held_out"].items():
            loss = entry["loss"] if isinstance(entry, dict) else entry
            held_out.setdefault(KINDS[kind], []).append((record["step"], loss))
    last = max([1, *(record["step"] for record in (*steps, *measured))])
    panels = (_panel(training, last=last, left=0), _panel(held_out, last=last, left=WIDTH // 2))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'font-family="sans-serif" font-size="11"><rect width="100%" height="100%" fill="white"/>'
        f"{''.join(panels)}</svg>\n"
    )


def _panel(lines: Mapping[str, Sequence[tuple[int, float]]], *, last: int, left: int) -> str:
    """Return one panel: a line for each name, with points if there are few, and its legend."""
    # The first steps are far above the others; the panel begins where the loss has come down.
    shown = [loss for line in lines.values() for step, loss in line if step >= last / 50]
    low, high = min(shown, default=0.0), max(shown, default=1.0)
    span = max(1e-9, high - low)
    right, bottom = left + WIDTH // 2 - 12, HEIGHT - MARGIN

    def place(step: float, loss: float) -> tuple[float, float]:
        x = left + MARGIN + (right - left - MARGIN) * step / last
        return x, bottom - (bottom - TOP) * min(1.0, (loss - low) / span)

    parts = [
        f'<path d="M{left + MARGIN},{TOP} V{bottom} H{right}" fill="none" stroke="#888"/>',
        f'<text x="{right}" y="{bottom + 16}" text-anchor="end">{last:,} steps</text>',
    ]
    for loss in (low, (low + high) / 2, high):
        height = place(0, loss)[1] + 4
        parts.append(
            f'<text x="{left + MARGIN - 5}" y="{height:.1f}" text-anchor="end">{loss:.2f}</text>'
        )
    for number, (name, line) in enumerate(lines.items()):
        colour = COLOURS[name]
        places = ["{:.1f},{:.1f}".format(*place(*point)) for point in line]
        parts.append(f'<polyline points="{" ".join(places)}" fill="none" stroke="{colour}"/>')
        if len(line) <= MARKED:
            parts += [
                '<circle cx="{}" cy="{}" r="2.5" fill="{}"/>'.format(*at.split(","), colour)
                for at in places
            ]
        across = left + MARGIN + 10
        height = 14 + 14 * number
        parts.append(
            f'<path d="M{across},{height - 4} h16" stroke="{colour}" stroke-width="2"/>'
            f'<text x="{across + 21}" y="{height}">{name}</text>'
        )
    return "".join(parts)
