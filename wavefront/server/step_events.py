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

from wavefront.core.masks import distance, extent
from wavefront.engine.batcher import ActiveRequest, Commit, StepUpdate
from wavefront.lm import LM
from wavefront.server.request_builder import PreparedRequest
from wavefront.server.worker_messages import Job, Logprob, RequestFinished, RequestProgress
from wavefront.strategies.block import Block
from wavefront.text.constraint import pinned_positions
from wavefront.text.tokenizer import UNKNOWN, stable_text

LEAST_LOGPROB = -9999.0  # JSON has no infinity; OpenAI's API uses this number too
MHCO_RADIUS = 2  # the same for every strategy, so that values can be compared


class StepEvents:
    """A request, with the text that was already sent."""

    def __init__(self, lm: LM, job: Job, prepared: PreparedRequest) -> None:
        self.lm, self.job, self.prepared = lm, job, prepared
        self.started = time.monotonic()
        self.sent = ""
        self.reported = 0  # tokens whose log-probabilities were sent
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

    def update(self, update: StepUpdate) -> RequestProgress | RequestFinished | None:
        """Return the message for a step, or None if there is nothing new."""
        request = update.request
        event = self._event(update) if self.job.events else None
        if request.done:
            return self._finish(request, event)
        settled = self._settled_positions(request)
        tokens = [request.tokens[position] for position in settled]
        text = stable_text(self.lm.tokenizer, tokens, start=self.prepared.request.infilling)
        if _find_stop(text, self.job.stop) is not None:
            return self._finish(request, event)
        added = _hold_back(text, self.job.stop)[len(self.sent) :]
        if not added and event is None:
            return None
        self.sent += added
        logprobs: list[Logprob] = []
        if self.wants_logprobs and added:
            count = self._token_count(tokens, self.sent)
            if len(self._text_of(tokens[:count])) > len(self.sent):
                count -= 1  # a part of this token is held back
            logprobs = self._new_logprobs(request, settled[:count])
        return RequestProgress(self.job.id, added, event, logprobs)

    @property
    def wants_logprobs(self) -> bool:
        """Whether the client asked for log-probabilities."""
        return self.prepared.request.plan.logprobs is not None

    def _settled_positions(self, active: ActiveRequest) -> list[int]:
        """Return the visible positions from the left that can no longer change."""
        request = self.prepared.request
        stop_ids = request.plan.config.sampling.stop_ids
        found: list[int] = []
        ended = False
        rows = zip(active.tokens, self.prepared.answer, active.undecided, strict=True)
        for position, (token, in_answer, is_open) in enumerate(rows):
            if not in_answer:
                ended = False
                if request.infilling:
                    found.append(position)
            elif not ended:
                if is_open:
                    break
                # eos="stop" leaves positions after the stop token masked.
                ended = token in stop_ids or not active.final[position]
                if not ended:
                    found.append(position)
        return found

    def _text_of(self, tokens: Sequence[int]) -> str:
        return self.lm.tokenizer.decode(tokens, start=self.prepared.request.infilling)

    def _token_count(self, tokens: Sequence[int], text: str) -> int:
        """Return how many of the tokens spell a text that all of them start with."""
        low, high = 0, len(tokens)
        while low < high:
            middle = (low + high) // 2
            # A part of a character decodes to U+FFFD, so lengths would say too little.
            if self._text_of(tokens[:middle]).startswith(text):
                high = middle
            else:
                low = middle + 1
        return low

    def _new_logprobs(self, active: ActiveRequest, positions: list[int]) -> list[Logprob]:
        """Return the log-probabilities of the positions that were not reported yet."""
        new = positions[self.reported :]
        self.reported = max(self.reported, len(positions))
        return [
            _logprob(self.lm, active.tokens[position], active.commits.get(position))
            for position in new
        ]

    def _finish(self, active: ActiveRequest, event: dict[str, Any] | None) -> RequestFinished:
        completion = self.lm.completion(active, holes=self.prepared.answer)
        text, reason = completion.text, completion.finish_reason or "stop"
        positions, request = self._settled_positions(active), self.prepared.request
        cut = _find_stop(text, self.job.stop)
        if cut is not None:
            text, reason = text[:cut], "stop"
            tokens = [active.tokens[position] for position in positions]
            positions = positions[: self._token_count(tokens, text)]
        count = sum(self.prepared.answer[position] for position in positions)
        seconds = time.monotonic() - self.started
        if event is not None:
            event["end"] = {"finish_reason": reason, "text": text, "tokens": count}
            if request.plan.config.constraint is not None:
                event["end"]["pinned"] = self._pinned(active)
            if self.mhco is not None:
                event["end"]["mhco"] = self.mhco.shares()
        added = text[len(self.sent) :]
        self.sent = text
        return RequestFinished(
            self.job.id,
            added,
            finish_reason=reason,
            completion_tokens=count,
            forwards=completion.forwards,
            steps=completion.steps,
            seconds=seconds,
            event=event,
            logprobs=self._new_logprobs(active, positions) if self.wants_logprobs else (),
            cached_tokens=max(0, active.shared - active.offset),
        )

    def _pinned(self, active: ActiveRequest) -> list[int]:
        """Return the positions where the constraint allows only one text."""
        request = self.prepared.request
        automaton = request.plan.config.constraint
        assert automaton is not None
        found = pinned_positions(
            self.lm.tokenizer,
            automaton,
            active.tokens,
            answer=self.prepared.answer,
            at_start=not request.infilling,
        )
        return [self.position[at] for at in found]

    def _event(self, update: StepUpdate) -> dict[str, Any]:
        request, position = update.request, self.position
        pieces = self.lm.tokenizer.pieces([commit.token for commit in update.commits])
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

    The definition is the same as in `wavefront.analysis.measures.mhco`, in both readings.
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
        for commit in update.commits:
            self.masked[commit.position] = False
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
            parts.append(lm.tokenizer.decode(run, start=not parts))
            run = []
        if parts and isinstance(parts[-1], int):
            parts[-1] += 1
        else:
            parts.append(1)
    return [*parts, lm.tokenizer.decode(run)] if run else parts


def _logprob(lm: LM, token: int, commit: Commit | None) -> Logprob:
    """Return a token's log-probability in OpenAI's chat format; None for a token of the prompt."""
    alternatives = () if commit is None else commit.alternatives
    first, *texts = lm.tokenizer.pieces([token, *(id for id, _ in alternatives)])
    top = zip(texts, alternatives, strict=True)
    return {
        **_logprob_entry(first, None if commit is None else commit.logp),
        "top_logprobs": [_logprob_entry(text, logp) for text, (_, logp) in top],
    }


def _logprob_entry(text: str, logp: float | None) -> dict[str, Any]:
    # A token that is a part of a character has no text of its own.
    whole = None if UNKNOWN in text else list(text.encode())
    return {
        "token": text,
        "logprob": None if logp is None else max(logp, LEAST_LOGPROB),
        "bytes": whole,
    }


def _find_stop(text: str, stops: Sequence[str]) -> int | None:
    """Return where the first stop string begins, or None."""
    return min((at for stop in stops if (at := text.find(stop)) >= 0), default=None)


def _hold_back(text: str, stops: Sequence[str]) -> str:
    """Return the text without a suffix that may be the beginning of a stop string."""
    longest = 0
    for stop in stops:
        sizes = range(min(len(stop) - 1, len(text)), 0, -1)
        longest = max(longest, next((n for n in sizes if text.endswith(stop[:n])), 0))
    return text[: len(text) - longest]
