"""Text decodes: whole answers to held-out problems, and the LLaDA-style loop on the same weights.

These rows include stopping early and the quality of the answers. Every decode is compared with the
loop whose text it should reproduce, or with the same strategy without a cache.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from wavefront import tasks
from wavefront.bench import reference_loops
from wavefront.bench.results import Row, Workload, make_row
from wavefront.bench.settings import BLOCK
from wavefront.bench.step_rows import Stage
from wavefront.bench.timing import summarise
from wavefront.engine.session import begin
from wavefront.lm import LM
from wavefront.text.tokenizer import prompt_ids, visible_tokens

WAVE = "wavefront(size=8, radius=2)"
CASCADE = "tide(cascade_rounds=8, horizon=64, selector=threshold(tau=0.9))"


class TextDecode(NamedTuple):
    """A way to decode an answer."""

    name: str
    strategy: str | None = None  # None for the reference loops
    eos: str = "keep"
    cache: str | None = None
    like: str | None = None  # the decode whose text it should equal
    block: int | None = None  # of the reference loop

    @property
    def label(self) -> str:
        """What the table calls it, such as `standard, eos=stop`."""
        if self.strategy is None:
            schedule = "standard" if self.block is None else f"blocks of {self.block}"
            return f"LLaDA-style loop, {schedule}"
        cache = f", cache={self.cache}" if self.cache else ""
        return f"{self.strategy}, eos={self.eos}{cache}"

    @property
    def workload(self) -> Workload:
        if self.strategy is None:
            return Workload(kind="text", work="answer", program=self.name)
        return Workload(kind="text", work="answer", variant=self.name)


# A decode comes after the one that it is compared with.
LOOP = TextDecode("llada")
DECODES = (
    LOOP,
    TextDecode("llada-block", block=BLOCK),
    TextDecode("standard-stop", "standard", "stop", like="llada"),
    TextDecode("block-stop", f"block(size={BLOCK})", "stop", like="llada-block"),
    TextDecode("wave-stop", WAVE, "stop"),
    TextDecode("wave-defer", WAVE, "defer"),
    TextDecode("cached-stop", WAVE, "stop", "wave(refresh=32)", like="wave-stop"),
    TextDecode("cached-defer", WAVE, "defer", "wave(refresh=32)", like="wave-defer"),
    TextDecode(
        "narrow-defer", WAVE, "defer", "wave(refresh=32, size=32, near=4)", like="wave-defer"
    ),
    TextDecode("cascade", CASCADE, "defer", like="wave-defer"),
    TextDecode("cascade-cached", CASCADE, "defer", "wave(refresh=8)", like="cascade"),
)


QUICK = ("llada", "wave-defer", "narrow-defer")  # of a quick run


def decodes(*, quick: bool) -> list[TextDecode]:
    """Return the decodes of the text rows; few of them for a quick run."""
    return [one for one in DECODES if not quick or one.name in QUICK]


class Decoded(NamedTuple):
    """The tokens of an answer and what they cost."""

    tokens: list[int]
    forwards: int
    share: float  # computed positions, in forward passes over the whole canvas


class Answer(NamedTuple):
    """A timed and graded answer."""

    decoded: Decoded
    seconds: float
    right: bool


class TextRows(NamedTuple):
    """The rows of text decodes, or a note that says why there are none."""

    rows: list[Row]
    notes: list[str]


def text_rows(stage: Stage) -> TextRows:
    """Measure a row for every decode: the time of a whole answer."""
    settings = stage.settings
    lm = settings.lm
    if lm is None or stage.llada is None:
        note = f"{settings.name}: no text rows, which need a LLaDA checkpoint with a tokenizer."
        return TextRows([], [note])
    task = tasks.load("gsm")
    draw = random.Random("bench")
    found: dict[str, list[Answer]] = {}
    chosen = decodes(quick=settings.quick)
    for _ in range(1 if settings.quick else settings.items):
        item = task.sample(draw, split="held-out")
        ids = prompt_ids(lm.tokenizer, item.prompt)
        for decode in chosen:
            settings.tick(f"whole answer: {decode.label}")
            started = settings.now()
            decoded = _run(stage, lm, ids, decode=decode)
            seconds = settings.now() - started
            right = task.grade(item, lm.tokenizer.decode(decoded.tokens)).correct
            found.setdefault(decode.name, []).append(Answer(decoded, seconds, right))
    rows = [_row(decode, found, settings.max_new_tokens) for decode in chosen]
    return TextRows(rows, [])


def _run(stage: Stage, lm: LM, ids: list[int], *, decode: TextDecode) -> Decoded:
    if decode.strategy is None:
        return _run_loop(stage, lm, ids, block=decode.block)
    options: dict[str, Any] = {
        "strategy": decode.strategy,
        "eos": decode.eos,
        "cache": decode.cache,
        "max_new_tokens": stage.settings.max_new_tokens,
    }
    session = begin(lm.model, [ids], options, stop_ids=lm.stop_ids, id_of=lm._id_of).drain()
    tokens = visible_tokens(session.answers()[0], lm.stop_ids)
    share = session.token_forwards / session.canvas.tokens.numel()
    return Decoded(tokens, session.forwards, share)


def _run_loop(stage: Stage, lm: LM, ids: list[int], *, block: int | None) -> Decoded:
    count, model = stage.settings.max_new_tokens, stage.llada
    assert model is not None
    canvas = torch.full((1, len(ids) + count), model.mask_id, device=stage.model.device)
    canvas[0, : len(ids)] = torch.tensor(ids)
    for _ in reference_loops.llada(model, canvas, len(ids), steps=count, block=block):
        pass
    return Decoded(visible_tokens(canvas[0, len(ids) :].tolist(), lm.stop_ids), count, float(count))


def _row(decode: TextDecode, found: Mapping[str, Sequence[Answer]], count: int) -> Row:
    answers, ours = found[decode.name], decode.strategy is not None
    seconds = sum(answer.seconds for answer in answers)
    base = sum(answer.seconds for answer in found[LOOP.name])
    shown = sum(len(answer.decoded.tokens) + 1 for answer in answers)  # with the stop token
    forwards = sum(answer.decoded.forwards for answer in answers)
    notes = [f"{forwards / len(answers):.0f} forwards", f"{shown / forwards:.2f} tokens a forward"]
    notes.append(f"{sum(answer.right for answer in answers)} of {len(answers)} correct")
    if decode.like:
        pairs = list(zip(answers, found[decode.like], strict=True))
        same = sum(one.decoded.tokens == two.decoded.tokens for one, two in pairs)
        (like,) = (one for one in DECODES if one.name == decode.like)
        notes.append(f"{same} of {len(pairs)} texts equal to those of {like.label}")
    return make_row(
        decode.workload,
        f"whole answer: {decode.label}",
        summarise([answer.seconds for answer in answers]),
        length=count,
        tokens_per_s=len(answers) * count / seconds if decode.eos == "keep" else None,
        visible_per_s=shown / seconds,
        reference=LOOP.name if ours else None,
        ratio=base / seconds if ours else None,
        strategy=decode.strategy,
        cache=decode.cache,
        note="; ".join(notes),
    )
