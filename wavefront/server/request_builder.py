"""Preparing: a job becomes a request for the slots, or a refusal that names the field."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from wavefront.core import spec
from wavefront.core.errors import OptionError, PromptError
from wavefront.engine.options import DEFAULT_LENGTH
from wavefront.engine.batcher import Request
from wavefront.engine.session import check_ids
from wavefront.lm import LM
from wavefront.server.settings import Limits
from wavefront.server.worker_messages import Board, Fork, Job
from wavefront.text.tokenizer import prompt_ids

# What the page keeps of every step is as large as the canvas; this bounds both together.
MOST_MEASURED = 1 << 18


class Prepared:
    """A request, and which of its places are the answer."""

    def __init__(self, request: Request, answer: list[bool]) -> None:
        self.request, self.answer = request, answer

    @property
    def board(self) -> Board:
        request = self.request
        return Board(list(request.ids), list(request.holes), self.answer, request.infilling)


def prepare(lm: LM, job: Job, limits: Limits, *, length: int) -> Prepared:
    """The job as a request; `length` is the longest board there is."""
    options = dict(job.options)
    for name in ("strategy", "strategy"):
        if name in options:
            # Never by a dotted name: that would import whatever a stranger names.
            options[name] = spec.resolve(str(options[name]), "strategies", outside=False)
    if job.fork is not None:
        made = _forked(lm, job.fork, options)
    elif job.infill:
        if not isinstance(job.prompt, str):
            raise PromptError("Infilling takes one text with holes: give prompt as a string.")
        request = lm.request_infill(job.prompt, **options)
        made = Prepared(request, list(request.holes))
    else:
        made = _plain(lm, job, options, min(limits.new_tokens, limits.steps), length)
    return _measured(made) if job.measure else made


def _plain(lm: LM, job: Job, options: dict[str, Any], most: int, length: int) -> Prepared:
    if isinstance(job.prompt, list):
        ids = check_ids(lm.model, job.prompt)
        if lm.model.mask_id in ids:
            raise PromptError("The prompt holds the mask's id: use infill and <mask:8> for holes.")
    elif job.messages is not None:
        ids = prompt_ids(lm.tokenizer, job.messages)
    else:
        ids = prompt_ids(lm.tokenizer, job.prompt or "", raw=job.raw)
    if not ids:
        raise PromptError("The prompt is empty: write something in it.")
    room = length - len(ids)
    if room < 1:
        raise PromptError(
            f"The prompt has {len(ids)} tokens, and {length} with the answer are the most: "
            "shorten it."
        )
    if not any(name in options for name in ("max_new_tokens", "max_tokens", "gen_length")):
        options["max_new_tokens"] = min(DEFAULT_LENGTH, room, most)
    settled = lm.plan(options)
    board = [*ids, *[lm.model.mask_id] * settled.length]
    holes = [False] * len(ids) + [True] * settled.length
    return Prepared(Request(board, holes, settled), holes)


def _forked(lm: LM, fork: Fork, options: dict[str, Any]) -> Prepared:
    """What was decided is given; what was not is to be filled."""
    ids, holes = list(fork.board.ids), list(fork.board.holes)
    places = [n for n, hole in enumerate(fork.board.answer) if hole]
    for place, what in fork.put.items():
        tokens = lm.tokenizer.encode(what) if isinstance(what, str) else check_ids(lm.model, [what])
        if not tokens or lm.model.mask_id in tokens:
            raise OptionError(f"There is nothing to write at place {place}: give a text.")
        if place < 0 or place + len(tokens) > len(places):
            raise OptionError(f"put: {what!r} does not fit at place {place} of {len(places)}.")
        for at, token in zip(places[place:], tokens, strict=False):
            ids[at], holes[at] = token, False
    if not any(holes):
        raise OptionError("Nothing is left to fill there: fork at an earlier step.")
    settled = lm.plan(options, length=sum(holes))
    request = Request(ids, holes, settled, infilling=fork.board.infilling)
    return Prepared(request, list(fork.board.answer))


def _measured(made: Prepared) -> Prepared:
    """Reads every masked place in every step, without changing what is decoded."""
    settled = made.request.plan
    if settled.length * settled.steps > MOST_MEASURED:
        raise OptionError(
            f"measure keeps {settled.length} places of {settled.steps} steps, and "
            f"{MOST_MEASURED} numbers are the most: ask for fewer of either, or leave it out."
        )
    config = replace(settled.config, read_all_masked=True)
    return Prepared(made.request._replace(plan=replace(settled, config=config)), made.answer)
