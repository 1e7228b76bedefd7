"""Turns the steps of a request into text and events for its client.

**Text** is the part of the answer that can no longer change, from the left. It ends on a whole
character. The end of the text is held back while it may be the beginning of a stop string.

**Events** describe every step. Positions are counted from 0 over the answer.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

import torch

from wavefront.completion import Completion
from wavefront.core.masks import distance, extent
from wavefront.engine.batcher import ActiveRequest, StepUpdate
from wavefront.lm import LM
from wavefront.server.request_builder import PreparedRequest
from wavefront.server.worker_messages import Finished, Job, Progress
from wavefront.strategies.block import Block
from wavefront.text.tokenizer import stable_text

MHCO_RADIUS = 2  # the same for every strategy, so that values can be compared


class StepEvents:
    """A request, with the text that was already sent."""

    def __init__(self, lm: LM, job: Job, prepared: PreparedRequest) -> None:
        self.lm, self.job, self.prepared = lm, job, prepared
        self.started = time.monotonic()
        self.sent = ""
        self.position = {n: k for k, n in enumerate(_true_indices(prepared.answer))}
        self.mhco = MhcoCounter(prepared) if job.measure else None

    def start_event(self) -> dict[str, Any]:
        """Return the first event, which describes the canvas before the first step."""
        request, answer = self.prepared.request, self.prepared.answer
        pieces = self.lm.tokenizer.pieces(request.ids)
        given = [
            [self.position[n], int(request.ids[n]), pieces[n], None]
            for n, (in_answer, hole) in enumerate(zip(answer, request.holes, strict=True))
            if in_answer and not hole
        ]
        return {
            "type": "start",
            "id": self.job.id,
            "model": self.lm.name,
            "places": sum(answer),
            "given": given,
            "around": _context(self.lm, self.prepared) if request.infilling else None,
            "options": request.plan.options(),
            "stop_ids": list(request.plan.config.sampling.stop_ids),
            "prompt_tokens": len(answer) - sum(answer),
        }

    def mark_started(self) -> None:
        """Start the clock: the request has a row."""
        self.started = time.monotonic()

    def update(self, update: StepUpdate) -> Progress | Finished | None:
        """Return the message for a step, or None if there is nothing new."""
        request = update.request
        event = self._event(update) if self.job.events else None
        if request.done:
            return self._finish(self._completion(request), event)
        text = stable_text(self.lm.tokenizer, self._settled_tokens(request))
        if _find_stop(text, self.job.stop) is not None:
            return self._finish(self._completion(request), event)
        added = _hold_back(text, self.job.stop)[len(self.sent) :]
        if not added and event is None:
            return None
        self.sent += added
        return Progress(self.job.id, added, event)

    def _completion(self, request: ActiveRequest) -> Completion:
        return self.lm.completion(request, holes=self.prepared.answer)

    def _settled_tokens(self, active: ActiveRequest) -> list[int]:
        """Return the visible tokens from the left that can no longer change."""
        request = self.prepared.request
        stop_ids = request.plan.config.sampling.stop_ids
        tokens: list[int] = []
        ended = False
        rows = zip(active.tokens, self.prepared.answer, active.undecided, strict=True)
        for token, in_answer, is_open in rows:
            if not in_answer:
                ended = False
                if request.infilling:
                    tokens.append(token)
            elif not ended:
                if is_open:
                    break
                ended = token in stop_ids
                if not ended:
                    tokens.append(token)
        return tokens

    def _finish(self, completion: Completion, event: dict[str, Any] | None) -> Finished:
        text, tokens = completion.text, completion.tokens
        reason = completion.finish_reason or "stop"
        cut = _find_stop(text, self.job.stop)
        if cut is not None:
            text, reason = text[:cut], "stop"
            tokens = tokens[: _token_count(self.lm, tokens, cut)]
        seconds = time.monotonic() - self.started
        if event is not None:
            event["end"] = {"finish_reason": reason, "text": text, "tokens": len(tokens)}
            if self.mhco is not None:
                event["end"]["mhco"] = self.mhco.shares()
        added = text[len(self.sent) :]
        self.sent = text
        return Finished(
            self.job.id,
            added,
            finish_reason=reason,
            completion_tokens=len(tokens),
            forwards=completion.forwards,
            steps=completion.steps,
            seconds=seconds,
            event=event,
        )

    def _event(self, update: StepUpdate) -> dict[str, Any]:
        request, position = update.request, self.position
        pieces = self.lm.tokenizer.pieces([one.token for one in update.commits])
        event: dict[str, Any] = {
            "type": "step",
            "step": request.steps,
            "forwards": request.forwards,
            "seconds": round(time.monotonic() - self.started, 4),
            "commits": [
                [position[one.position], one.token, piece, round(math.exp(one.logp), 4)]
                for one, piece in zip(update.commits, pieces, strict=True)
            ],
            "back": [position[n] for n in update.remasked],
            "front": [position[n] for n in update.front],
        }
        if self.mhco is not None and update.scores is not None:
            event |= self.mhco.add(update, position)
        return event


class MhcoCounter:
    """Computes the MHCO measure step by step, while the request is decoded.

    The definition is that of `wavefront.analysis.measures.mhco`, in both of its readings.
    """

    def __init__(self, prepared: PreparedRequest) -> None:
        self.masked = list(prepared.request.holes)
        strategy = prepared.request.plan.config.strategy
        self.block = strategy.size if isinstance(strategy, Block) else 1
        holes = torch.tensor(prepared.request.holes)
        self.slot = torch.where(holes, holes.long().cumsum(0) - 1, -1)[None]
        self.commits = 0
        self.violations = {"candidates": 0, "extent": 0}

    def add(self, update: StepUpdate, position: dict[int, int]) -> dict[str, Any]:
        """Count a step and return the fields that it adds to the event."""
        scores = update.scores
        assert scores is not None
        masked = torch.tensor(self.masked)[None]
        candidates = torch.tensor(scores.candidates)[None]
        confidence = torch.tensor(scores.logp).exp()[None]
        committed = torch.zeros_like(masked)
        committed[0, [one.position for one in update.commits]] = True
        readings = {
            "candidates": candidates,
            "extent": extent(candidates, self.slot, self.block),
        }
        for name, inside in readings.items():
            outside = masked & ~committed & ~inside & (distance(inside) <= MHCO_RADIUS)
            best = torch.where(outside, confidence, -1.0).amax(-1, keepdim=True)
            self.violations[name] += int((committed & (best > confidence)).sum())
        self.commits += len(update.commits)
        seen = [
            [position[n], round(float(confidence[0, n]), 3)] for n in _true_indices(self.masked)
        ]
        for one in update.commits:
            self.masked[one.position] = False
        for n in update.remasked:
            self.masked[n] = True
        scope = [position[n] for n in _true_indices(scores.candidates) if n in position]
        return {"scope": scope, "sure": seen}

    def shares(self) -> dict[str, float]:
        """Return the share of commits with a more confident position nearby, per reading."""
        return {name: round(n / max(self.commits, 1), 4) for name, n in self.violations.items()}


def _true_indices(mask: Sequence[bool]) -> list[int]:
    return [n for n, value in enumerate(mask) if value]


def _context(lm: LM, prepared: PreparedRequest) -> list[str | int]:
    """Return an infilling prompt as its texts and, between them, the lengths of its holes."""
    parts: list[str | int] = []
    run: list[int] = []
    for token, in_answer in zip(prepared.request.ids, prepared.answer, strict=True):
        if not in_answer:
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


def _find_stop(text: str, stops: Sequence[str]) -> int | None:
    """Return where the first stop string begins, or None."""
    return min((at for stop in stops if (at := text.find(stop)) >= 0), default=None)


def _hold_back(text: str, stops: Sequence[str]) -> str:
    """Return the text without an end that may be the beginning of a stop string."""
    longest = 0
    for stop in stops:
        sizes = range(min(len(stop) - 1, len(text)), 0, -1)
        longest = max(longest, next((n for n in sizes if text.endswith(stop[:n])), 0))
    return text[: len(text) - longest]


def _token_count(lm: LM, tokens: Sequence[int], characters: int) -> int:
    """Return how many of the tokens decode to at least this many characters."""
    low, high = 0, len(tokens)
    while low < high:
        middle = (low + high) // 2
        if len(lm.tokenizer.decode(tokens[:middle])) < characters:
            low = middle + 1
        else:
            high = middle
    return low
