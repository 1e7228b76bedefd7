"""Builds the engine's request for a job, or raises an error that names the field."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from wavefront.core import spec
from wavefront.core.errors import EMPTY_PROMPT, OptionError, PromptError, WavefrontError
from wavefront.engine.batcher import Request
from wavefront.engine.options import DEFAULT_LENGTH
from wavefront.engine.session import check_ids
from wavefront.lm import LM
from wavefront.server.settings import Limits
from wavefront.server.worker_messages import CanvasSnapshot, Fork, Job
from wavefront.text.tokenizer import prompt_ids

LENGTH_OPTIONS = ("max_new_tokens", "max_tokens", "gen_length")
FORK_FIELDS = ("at", "put")  # of the body of a fork
# With `measure`, every step stores a number per position. This bounds length times steps.
MAX_MEASURED = 1 << 18


class PreparedRequest(NamedTuple):
    """A request for the engine, and which of its positions belong to the answer."""

    request: Request
    answer: list[bool]

    @property
    def canvas(self) -> CanvasSnapshot:
        """The canvas before the first step."""
        request = self.request
        return CanvasSnapshot(
            list(request.ids), list(request.holes), self.answer, request.infilling
        )


def build_request(lm: LM, job: Job, limits: Limits, *, length: int) -> PreparedRequest:
    """Build the request of a job.

    Args:
        lm: The loaded model.
        job: The job.
        limits: Bounds the default length of the answer.
        length: The longest canvas, prompt included.

    Raises:
        PromptError: The prompt is empty, too long or malformed.
        OptionError: An option is invalid; `option` is the field of the request.
    """
    options = dict(job.options)
    for name, registry in (("strategy", "strategies"), ("cache", "caches")):
        if name in options and options[name] != "none":
            options[name] = _resolve(name, registry, options[name])
    if job.fork is not None:
        prepared = _build_fork(lm, job.fork, options)
    elif job.infill:
        if not isinstance(job.prompt, str):
            raise PromptError("infill needs one text with holes: send prompt as a string.")
        request = lm.request_infill(job.prompt, **options)
        prepared = PreparedRequest(request, list(request.holes))
    else:
        ids = _prompt_ids(lm, job)
        room = length - len(ids)
        if room < 1:
            raise PromptError(
                f"The prompt has {len(ids)} tokens, but prompt and answer together may have at "
                f"most {length}: shorten the prompt."
            )
        if not any(name in options for name in LENGTH_OPTIONS):
            default = min(DEFAULT_LENGTH, room, limits.new_tokens, limits.steps)
            options["max_new_tokens"] = default
        plan = lm.plan(options)
        holes = [False] * len(ids) + [True] * plan.length
        canvas = [*ids, *[lm.model.mask_id] * plan.length]
        prepared = PreparedRequest(Request(canvas, holes, plan), holes)
    return _with_measures(prepared) if job.measure else prepared


def _resolve(name: str, registry: str, text: Any) -> Any:
    try:
        # Never resolve dotted names: that would import a module that a client chooses.
        return spec.resolve(str(text), registry, outside=False)
    except WavefrontError as error:
        raise OptionError(str(error), option=name, value=text) from error


def _prompt_ids(lm: LM, job: Job) -> list[int]:
    if isinstance(job.prompt, list):
        ids = check_ids(lm.model, job.prompt)
        if lm.model.mask_id in ids:
            raise PromptError(
                "The prompt contains the mask token: use infill and <mask:8> for holes."
            )
    elif job.messages is not None:
        ids = prompt_ids(lm.tokenizer, job.messages)
    else:
        ids = prompt_ids(lm.tokenizer, job.prompt or "", raw=job.raw)
    if not ids:
        raise PromptError(EMPTY_PROMPT)
    return ids


def _build_fork(lm: LM, fork: Fork, options: dict[str, Any]) -> PreparedRequest:
    """Build a request that keeps the decided positions and fills the others."""
    ids, holes = list(fork.canvas.ids), list(fork.canvas.holes)
    positions = [n for n, in_answer in enumerate(fork.canvas.answer) if in_answer]
    for position, new in fork.overrides.items():
        tokens = lm.tokenizer.encode(new) if isinstance(new, str) else check_ids(lm.model, [new])
        if not tokens or lm.model.mask_id in tokens:
            raise OptionError(
                f"put has no text for position {position}: give one.", option="put", value=new
            )
        if position < 0 or position + len(tokens) > len(positions):
            raise OptionError(
                f"put: {new!r} does not fit at position {position} of {len(positions)}.",
                option="put",
                value=new,
            )
        for at, token in zip(positions[position:], tokens, strict=False):
            ids[at], holes[at] = token, False
    if not any(holes):
        raise OptionError("No position is left to fill: fork at an earlier step.", option="at")
    plan = lm.plan(options, length=sum(holes))
    request = Request(ids, holes, plan, infilling=fork.canvas.infilling)
    return PreparedRequest(request, list(fork.canvas.answer))


def _with_measures(prepared: PreparedRequest) -> PreparedRequest:
    """Read every masked position in every step, without changing the decoded tokens."""
    plan = prepared.request.plan
    if plan.length * plan.steps > MAX_MEASURED:
        raise OptionError(
            f"measure stores {plan.length} positions of {plan.steps} steps, which is more than "
            f"{MAX_MEASURED} numbers: ask for fewer of either, or leave measure out.",
            option="measure",
        )
    config = replace(plan.config, read_all_masked=True)
    request = prepared.request._replace(plan=replace(plan, config=config))
    return prepared._replace(request=request)
