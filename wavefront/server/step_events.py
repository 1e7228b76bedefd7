"""Telling: what a client hears of a request, step by step.

**Text** is what is settled from the left: it is exact, never taken back, and ends on a whole
character. Where the request has stop strings, the end of it that may yet become one is held back.

**Events** tell the whole picture. Places are counted from 0 over the answer.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

import torch

from wavefront.completion import Completion
from wavefront.core.masks import distance, extent
from wavefront.engine.requests import ActiveRequest, StepUpdate
from wavefront.lm import LM
from wavefront.server.request_builder import Prepared
from wavefront.server.worker_messages import Ended, Job, Told
from wavefront.strategies.block import Block
from wavefront.text.tokenizer import stable_text

MHCO_RADIUS = 2  # the same for every strategy, as the measure wants it


class Teller:
    """A request on its way, and what its client has heard of it."""

    def __init__(self, lm: LM, job: Job, prepared: Prepared) -> None:
        self.lm, self.job, self.prepared = lm, job, prepared
        self.begun = time.monotonic()
        self.sent = ""
        self.place = {n: k for k, n in enumerate(_where(prepared.answer))}
        self.mhco = Mhco(prepared) if job.measure else None

    def first(self) -> dict[str, Any]:
        """The event before all others: the canvas as it stands."""
        request, answer = self.prepared.request, self.prepared.answer
        pieces = self.lm.tokenizer.pieces(request.ids)
        given = [
            [self.place[n], int(request.ids[n]), pieces[n], None]
            for n, (mine, hole) in enumerate(zip(answer, request.holes, strict=True))
            if mine and not hole
        ]
        return {
            "type": "start",
            "id": self.job.id,
            "model": self.lm.name,
            "places": sum(answer),
            "given": given,
            "around": _around(self.lm, request.ids, answer) if request.infilling else None,
            "options": request.plan.options(),
            "stop_ids": list(request.plan.config.sampling.stop_ids),
            "prompt_tokens": len(answer) - sum(answer),
        }

    def begin(self) -> None:
        """It has a row."""
        self.begun = time.monotonic()

    def tell(self, moment: StepUpdate) -> Told | Ended | None:
        """What there is to say after a step, if anything."""
        seat = moment.seat
        event = self._event(moment) if self.job.events else None
        if seat.done:
            return self._end(self._completion(seat), event)
        text = stable_text(self.lm.tokenizer, self._settled(seat))
        cut = _first_of(text, self.job.stop)
        if cut is not None:
            return self._end(self._completion(seat), event)
        more = _withheld(text, self.job.stop)[len(self.sent) :]
        if not more and event is None:
            return None
        self.sent += more
        return Told(self.job.id, more, event)

    def _completion(self, seat: ActiveRequest) -> Completion:
        return self.lm.completion(seat, holes=self.prepared.answer)

    def _settled(self, seat: ActiveRequest) -> list[int]:
        """The tokens from the left that nothing can change."""
        request = self.prepared.request
        stops = request.plan.config.sampling.stop_ids
        kept: list[int] = []
        ended = False
        rows = zip(seat.tokens, self.prepared.answer, seat.open, strict=True)
        for token, mine, open_ in rows:
            if not mine:
                ended = False
                if request.infilling:
                    kept.append(token)
            elif not ended:
                if open_:
                    break
                ended = token in stops
                if not ended:
                    kept.append(token)
        return kept

    def _end(self, made: Completion, event: dict[str, Any] | None) -> Ended:
        text, tokens, reason = made.text, made.tokens, made.finish_reason or "stop"
        cut = _first_of(text, self.job.stop)
        if cut is not None:
            text, reason = text[:cut], "stop"
            tokens = tokens[: _tokens_of(self.lm, tokens, cut)]
        seconds = time.monotonic() - self.begun
        if event is not None:
            event["end"] = {"finish_reason": reason, "text": text, "tokens": len(tokens)}
            if self.mhco is not None:
                event["end"]["mhco"] = self.mhco.shares()
        more = text[len(self.sent) :]
        self.sent = text
        facts = (made.forwards, made.steps, seconds, event)
        return Ended(self.job.id, more, reason, len(tokens), *facts)

    def _event(self, moment: StepUpdate) -> dict[str, Any]:
        seat, place = moment.seat, self.place
        pieces = self.lm.tokenizer.pieces([one.token for one in moment.commits])
        event: dict[str, Any] = {
            "type": "step",
            "step": seat.steps,
            "forwards": seat.forwards,
            "seconds": round(time.monotonic() - self.begun, 4),
            "commits": [
                [place[one.place], one.token, piece, round(math.exp(one.logp), 4)]
                for one, piece in zip(moment.commits, pieces, strict=True)
            ],
            "back": [place[n] for n in moment.back],
            "front": [place[n] for n in moment.front],
        }
        if self.mhco is not None and moment.survey is not None:
            event |= self.mhco.add(moment, place)
        return event


class Mhco:
    """The measure of `wavefront.analysis.measures.mhco`, step by step, in both readings."""

    def __init__(self, prepared: Prepared) -> None:
        self.masked = list(prepared.request.holes)
        strategy = prepared.request.plan.config.strategy
        self.block = strategy.size if isinstance(strategy, Block) else 1
        number = torch.tensor(prepared.request.holes).long().cumsum(0) - 1
        self.slot = torch.where(torch.tensor(prepared.request.holes), number, -1)[None]
        self.commits = 0
        self.violations = {"candidates": 0, "extent": 0}

    def add(self, moment: StepUpdate, place: dict[int, int]) -> dict[str, Any]:
        """Count a step; what the event says of it."""
        survey = moment.survey
        assert survey is not None
        masked = torch.tensor(self.masked)[None]
        scope = torch.tensor(survey.scope)[None]
        sure = torch.tensor(survey.logp).exp()[None]
        commit = torch.zeros_like(masked)
        commit[0, [one.place for one in moment.commits]] = True
        boards = {"candidates": scope, "extent": extent(scope, self.slot, self.block)}
        for name, board in boards.items():
            outside = masked & ~commit & ~board & (distance(board) <= MHCO_RADIUS)
            best = torch.where(outside, sure, -1.0).amax(-1, keepdim=True)
            self.violations[name] += int((commit & (best > sure)).sum())
        self.commits += len(moment.commits)
        seen = [[place[n], round(float(sure[0, n]), 3)] for n in _where(self.masked)]
        for one in moment.commits:
            self.masked[one.place] = False
        for n in moment.back:
            self.masked[n] = True
        return {"scope": [place[n] for n in _where(survey.scope) if n in place], "sure": seen}

    def shares(self) -> dict[str, float]:
        """Of all committed tokens, those that something surer outside the scope had to wait for."""
        return {name: round(n / max(self.commits, 1), 4) for name, n in self.violations.items()}


def _where(board: Sequence[bool]) -> list[int]:
    return [n for n, there in enumerate(board) if there]


def _around(lm: LM, ids: Sequence[int], answer: Sequence[bool]) -> list[str | int]:
    """A text with holes: what is given as text, and how many places lie between."""
    parts: list[str | int] = []
    run: list[int] = []
    for token, mine in zip(ids, answer, strict=True):
        if not mine:
            run.append(token)
            continue
        if run:
            parts.append(lm.tokenizer.decode(run))
            run = []
        if parts and isinstance(parts[-1], int):
            parts[-1] += 1
        else:
            parts.append(1)
    return [*parts, lm.tokenizer.decode(run)] if run else parts


def _first_of(text: str, stops: Sequence[str]) -> int | None:
    """Where the first stop string begins."""
    return min((at for stop in stops if (at := text.find(stop)) >= 0), default=None)


def _withheld(text: str, stops: Sequence[str]) -> str:
    """The text without an end that may be the beginning of a stop string."""
    most = 0
    for stop in stops:
        sizes = range(min(len(stop) - 1, len(text)), 0, -1)
        most = max(most, next((n for n in sizes if text.endswith(stop[:n])), 0))
    return text[: len(text) - most]


def _tokens_of(lm: LM, tokens: Sequence[int], characters: int) -> int:
    """How many tokens it takes to write so many characters."""
    low, high = 0, len(tokens)
    while low < high:
        middle = (low + high) // 2
        if len(lm.tokenizer.decode(tokens[:middle])) < characters:
            low = middle + 1
        else:
            high = middle
    return low
