"""Encodes the texts of a job and builds the engine's request, or raises an error.

The error names the field of the request.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

from wavefront.core import canvas, spec
from wavefront.core.constraint import Constraint, check_room
from wavefront.core.errors import EMPTY_PROMPT, OptionError, PromptError, WavefrontError
from wavefront.engine.batcher import Request
from wavefront.engine.layout import room_after
from wavefront.engine.options import DEFAULT_LENGTH, resolve_cache, resolve_strategy
from wavefront.engine.options import plan as plan_options
from wavefront.engine.session import check_ids, model_properties
from wavefront.lm import LM, factory_tokenizer, is_factory
from wavefront.server.settings import Limits, ModelSource
from wavefront.server.worker_messages import (
    CONSTRAINT_OPTIONS,
    LENGTH_OPTIONS,
    CanvasSnapshot,
    EncodedText,
    Fork,
    Job,
    RequestFailed,
    constraint_option,
    is_whole_text,
)
from wavefront.storage.hub import locate
from wavefront.text.byte_tokenizer import byte_tokenizer
from wavefront.text.chat_template import parse_holes
from wavefront.text.constraint import (
    check_constraint,
    find_automaton,
    keep_automaton,
    pack_automaton,
)
from wavefront.text.tokenizer import Infill, Tokenizer, infill_ids, prompt_ids

FORK_FIELDS = ("at", "put")  # of the body of a fork
# The server's default options, and the fields of a request that replace each of them.
SAME_OPTION = {
    "strategy": ("strategy", "alg", "block_length", "block_size", "max_wave_size", "radius"),
    "steps": ("steps",),
    "eos": ("eos", "eos_policy", "logits_eos_inf", "confidence_eos_eot_inf", "fixed_budget"),
    "cache": ("cache", "speed"),
}
# With `measure`, every step stores a number per position. This bounds length times steps.
MAX_MEASURED = 1 << 18
MAX_MESSAGE = 600  # characters of an error message


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


def resolve_defaults(
    lm: LM, given: Mapping[str, Any], limits: Limits, *, length: int
) -> dict[str, Any]:
    """Return the server's default options, with its strategy and cache policy as objects.

    Args:
        lm: The loaded model.
        given: The options by name. They are trusted, so specs may name any class.
        limits: Bounds the default length of the answer.
        length: The longest canvas, prompt included.

    Raises:
        OptionError: An option is wrong, or the options do not fit together.
    """
    defaults = dict(given)
    if "strategy" in defaults:
        defaults["strategy"] = resolve_strategy(defaults["strategy"])
    if "cache" in defaults:
        defaults["cache"] = resolve_cache(defaults["cache"])
    lm.plan({**defaults, "max_new_tokens": default_length(lm, limits, room=length - 1)})
    return defaults


def default_length(lm: LM, limits: Limits, *, room: int) -> int:
    """Return the length of an answer if the request does not set one; each position is a step."""
    # A block-causal model fills its last block, with a step for each position there too.
    steps = limits.steps - limits.steps % (lm.model.block_size or 1)
    return min(DEFAULT_LENGTH, room, limits.new_tokens, max(1, steps))


def _with_defaults(
    options: dict[str, Any], defaults: Mapping[str, Any], *, infill: bool
) -> dict[str, Any]:
    """Return the options of a request, with the server's defaults for those it does not set."""
    missing = {
        name: value
        for name, value in defaults.items()
        if not any(options.get(other) for other in SAME_OPTION[name])
    }
    if infill:
        missing.pop("eos", None)  # a stop token in one hole does not end the others
    if options.get("speculate") not in (None, 0, 1):
        missing.pop("cache", None)  # speculation excludes a cache
    return {**missing, **options}


def build_request(
    lm: LM,
    job: Job,
    limits: Limits,
    *,
    length: int,
    defaults: Mapping[str, Any] = MappingProxyType({}),
) -> PreparedRequest:
    """Build the request of a job.

    Args:
        lm: The loaded model.
        job: The job.
        limits: Bounds the default length of the answer.
        length: The longest canvas, prompt included.
        defaults: The options of `resolve_defaults`. A fork inherits its origin's instead.

    Raises:
        PromptError: The prompt is empty, too long or malformed.
        OptionError: An option is invalid; `option` is the field of the request.
    """
    options = dict(job.options)
    if job.automaton is not None:
        size, at_start = lm.model.vocab_size, is_whole_text(job)
        keep_automaton(lm.tokenizer, job.automaton, vocab_size=size, at_start=at_start)
    for name, registry in (("strategy", "strategies"), ("cache", "caches")):
        if name in options and options[name] != "none":
            options[name] = _resolve(name, registry, options[name])
    if job.fork is None:
        options = _with_defaults(options, defaults, infill=job.infill)
    if job.fork is not None:
        prepared = _build_fork(lm, job.fork, options)
    elif job.infill:
        if isinstance(job.prompt, list) or job.prompt is None:
            raise PromptError("infill needs one text with holes: send prompt as a string.")
        request = lm.request_infill(_infill_text(lm, job, length), **options)
        prepared = PreparedRequest(request, list(request.holes))
    else:
        ids = _prompt_ids(lm, job, length)
        room = room_after(lm.model, len(ids), length)
        if room < 1:
            raise _too_long(len(ids), length)
        if not any(name in options for name in LENGTH_OPTIONS):
            options["max_new_tokens"] = default_length(lm, limits, room=room)
        plan = lm.plan(options)
        holes = [False] * len(ids) + [True] * plan.length
        tokens = [*ids, *[lm.model.mask_id] * plan.length]
        prepared = PreparedRequest(Request(tokens, holes, plan), holes)
    return _with_measures(prepared) if job.measure else prepared


def _resolve(name: str, registry: str, text: Any) -> Any:
    try:
        # Never resolve dotted names: that would import a module that a client chooses.
        return spec.resolve_builtin(str(text), registry)
    except WavefrontError as error:
        raise OptionError(str(error), option=name, value=text) from error


def load_tokenizer(source: ModelSource) -> Tokenizer:
    """Load the tokenizer of a model whose files are on this machine."""
    if source.model == "toy":
        return byte_tokenizer()
    if is_factory(source.model):
        return factory_tokenizer(source.model)
    return Tokenizer.load(locate(source.model, revision=source.revision, offline=True))


def encode_texts(tokenizer: Tokenizer, job: Job, *, length: int) -> Job:
    """Return the job with its texts replaced by token ids.

    Args:
        tokenizer: The model's tokenizer.
        job: The job.
        length: The longest canvas, prompt included.

    Raises:
        PromptError: The prompt is empty or too long, or its texts cannot be encoded.
    """
    if job.fork is not None:
        overrides = {
            position: EncodedText(tokenizer.encode(new, inside=True))
            if isinstance(new, str)
            else new
            for position, new in job.fork.overrides.items()
        }
        return replace(job, fork=job.fork._replace(overrides=overrides))
    if job.messages is None and not isinstance(job.prompt, str):
        return job
    holes = None
    if job.messages is not None:
        ids = prompt_ids(tokenizer, job.messages)
    elif job.infill:
        prompt = str(job.prompt)
        # Count first: a short text can request holes of many millions of positions.
        size = sum(part for part in parse_holes(prompt) if isinstance(part, int))
        if size > length:
            raise _too_long(size, length)
        constrained = constraint_option(job) is not None
        ids, holes = infill_ids(tokenizer, prompt, mask_id=0, constrained=constrained)
    else:
        ids = prompt_ids(tokenizer, str(job.prompt), raw=job.raw)
    if len(ids) > length:
        raise _too_long(len(ids), length)
    # An empty list of messages still tells which field the prompt came from.
    messages = None if job.messages is None else []
    return replace(job, prompt=EncodedText(ids, holes), messages=messages)


def compile_automaton(tokenizer: Tokenizer, job: Job) -> bytes:
    """Compile the constraint of a job, for `Job.automaton`.

    Raises:
        OptionError: The constraint is wrong, not supported, impossible, or too large.
    """
    constraint = _constraint_of(job)
    return pack_automaton(tokenizer, constraint, at_start=is_whole_text(job))


def lacks_automaton(lm: LM, job: Job) -> bool:
    """Return whether a job needs an automaton that was sent before, but is not kept any more."""
    if not job.automaton_was_sent:
        return False
    size, at_start = lm.model.vocab_size, is_whole_text(job)
    constraint = _constraint_of(job)
    return find_automaton(lm.tokenizer, constraint, vocab_size=size, at_start=at_start) is None


def _constraint_of(job: Job) -> Constraint:
    constraint = check_constraint(**{name: job.options.get(name) for name in CONSTRAINT_OPTIONS})
    assert constraint is not None
    return constraint


def _too_long(tokens: int, length: int) -> PromptError:
    return PromptError(
        f"The prompt has {tokens} tokens, but prompt and answer together may have at most "
        f"{length}: shorten the prompt."
    )


def rejection(error: Exception, job: Job) -> RequestFailed:
    """Return the message that rejects a job because of an error."""
    if not isinstance(error, WavefrontError):  # an unexpected value of an option or a prompt
        text = shorten(f"This request cannot be decoded: {error}.")
        return RequestFailed(job.id, 400, text, "invalid_value")
    text = shorten(_with_fields(str(error), job))
    return RequestFailed(job.id, 400, text, "invalid_value", _param(error, job))


def _with_fields(message: str, job: Job) -> str:
    """Return a message of the library with the names of the request's fields."""
    for option, name in job.fields.items():
        if option not in CONSTRAINT_OPTIONS:  # messages say "the schema" and mean the schema
            # A name in quotes is quoted from the request.
            message = re.sub(rf"(?<![\w'\"]){option}(?![\w'\"])", name, message)
    return message


def shorten(message: str) -> str:
    """Return an error message with at most MAX_MESSAGE characters: it may quote the request."""
    if len(message) <= MAX_MESSAGE:
        return message
    half = MAX_MESSAGE // 2
    return f"{message[:half]} … {message[-half:]}"


def _param(error: WavefrontError, job: Job) -> str | None:
    """Return the field of the request that an error is about, or None if it is unknown."""
    if isinstance(error, PromptError):
        return "messages" if job.messages is not None else "prompt"
    if error.option is not None and error.option in job.fields:
        return job.fields[error.option]
    # The option of a strategy or a selector, such as size, is not a field of the request. A fork
    # can inherit a schema, which is not a field either.
    known = (*job.options, *FORK_FIELDS, "measure")
    return error.option if error.option in known and error.option != "schema" else None


def _prompt_ids(lm: LM, job: Job, length: int) -> list[int]:
    if isinstance(job.prompt, list):
        ids = check_ids(lm.model, job.prompt)
        if lm.model.mask_id in ids:
            raise PromptError(
                "The prompt contains the mask token: use infill and <mask:8> for holes."
            )
    else:
        ids = _encoded_prompt(lm, job, length).ids
    if not ids:
        raise PromptError(EMPTY_PROMPT)
    return ids


def _infill_text(lm: LM, job: Job, length: int) -> Infill:
    ids, holes = _encoded_prompt(lm, job, length)
    assert holes is not None
    pairs = zip(ids, holes, strict=True)
    return Infill([lm.model.mask_id if hole else id for id, hole in pairs], holes)


def _encoded_prompt(lm: LM, job: Job, length: int) -> EncodedText:
    """Return the prompt of a job as token ids, encoded here if it is still a text."""
    if not isinstance(job.prompt, EncodedText):
        job = encode_texts(lm.tokenizer, job, length=length)
    assert isinstance(job.prompt, EncodedText)
    return job.prompt


def _build_fork(lm: LM, fork: Fork, options: dict[str, Any]) -> PreparedRequest:
    """Build a request that keeps the decided positions and fills the others."""
    ids, holes = list(fork.canvas.ids), list(fork.canvas.holes)
    positions = [n for n, in_answer in enumerate(fork.canvas.answer) if in_answer]
    written = set[int]()
    for position, new in fork.overrides.items():
        if isinstance(new, EncodedText):
            tokens = new.ids
        elif isinstance(new, str):
            tokens = lm.tokenizer.encode(new, inside=True)
        else:
            tokens = check_ids(lm.model, [new])
        if not tokens or lm.model.mask_id in tokens:
            raise OptionError(
                f"put has an empty text for position {position}.", option="put", value=new
            )
        if position < 0 or position + len(tokens) > len(positions):
            raise OptionError(
                f"put: {len(tokens)} tokens do not fit at position {position} of {len(positions)}.",
                option="put",
                value=new,
            )
        for at, token in enumerate(tokens, position):
            if at in written:
                raise OptionError(f"put writes to position {at} twice.", option="put", value=new)
            written.add(at)
            ids[positions[at]], holes[positions[at]] = token, False
    if not any(holes):
        raise OptionError("No position is left to fill: fork at an earlier step.", option="at")
    origin = model_properties(
        lm.model,
        lm.stop_ids,
        lm._id_of,
        # The fork of a whole text is one too, although only a part of it is filled.
        automaton_of=lambda constraint, _: lm.automaton_of(constraint, not fork.canvas.infilling),
    )
    plan = plan_options(lm._with_speed(options), origin, length=sum(holes))
    if plan.config.constraint is not None:
        mask_id, pad_id = lm.model.mask_id, lm.model.pad_id
        board = canvas.infill([ids], [holes], mask_id=mask_id, pad_id=pad_id)
        try:
            check_room(plan.config.constraint, board, torch.tensor([fork.canvas.answer]))
        except OptionError as error:
            error.option = "put" if fork.overrides else error.option
            raise
    request = Request(
        ids, holes, plan, infilling=fork.canvas.infilling, answer=list(fork.canvas.answer)
    )
    return PreparedRequest(request, list(fork.canvas.answer))


def _with_measures(prepared: PreparedRequest) -> PreparedRequest:
    """Read every masked position in every step, without changing the decoded tokens."""
    plan = prepared.request.plan
    if plan.length * plan.budget > MAX_MEASURED:
        raise OptionError(
            f"measure stores {plan.length} positions of {plan.budget} steps, which is more than "
            f"{MAX_MEASURED} numbers: reduce one of them, or leave out measure.",
            option="measure",
        )
    config = replace(plan.config, read_all_masked=True)
    request = prepared.request._replace(plan=replace(plan, config=config))
    return prepared._replace(request=request)
