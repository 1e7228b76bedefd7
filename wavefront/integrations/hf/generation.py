"""`generate`, for `model.generate(..., custom_generate=)`, and the mixin that brings it along."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationMixin

from wavefront.core.errors import OptionError
from wavefront.engine.options import wants_trace
from wavefront.integrations.hf.from_generation_config import (
    NAMES,
    check_criteria,
    check_processors,
    check_types,
    sort_out,
)
from wavefront.integrations.hf.generate_call import Ask, DiffusionOutput, answered, begin, settle
from wavefront.integrations.hf.masked_lm import model_of
from wavefront.integrations.hf.streaming import Feed


def _takes(*names: str) -> Callable[[Any], Any]:
    """Put names into a function's signature: transformers lets only those through to it."""

    def named(function: Any) -> Any:
        own = list(inspect.signature(function).parameters.values())
        only = inspect.Parameter.KEYWORD_ONLY
        more = [inspect.Parameter(name, only, default=None) for name in names]
        function.__signature__ = inspect.Signature([*own[:-1], *more, own[-1]])
        return function

    return named


@_takes(*NAMES)
def generate(
    model: Any,
    input_ids: Any = None,
    *,
    generation_config: Any = None,
    logits_processor: Any = None,
    stopping_criteria: Any = None,
    infill: bool = False,
    trace: bool | str = False,
    _streamer: Any = None,
    _tokenizer: Any = None,
    **options: Any,
) -> Tensor | DiffusionOutput:
    """Decode by diffusion, for transformers: `model.generate(ids, custom_generate=generate)`.

    Options are those of `wavefront.Options`; length, sampling and end tokens come from the
    generation config, as everywhere in transformers. `infill=True` fills the mask tokens that
    stand in `input_ids` and adds no places. Called by hand, it prepares the call first.
    """
    if logits_processor is None:  # transformers itself always brings a list, if an empty one
        options |= {"infill": infill, "trace": trace}
        options |= {"stopping_criteria": stopping_criteria, "generation_config": generation_config}
        return prepared(model, input_ids, **options)
    config = generation_config
    check_processors(logits_processor, config)
    check_criteria(stopping_criteria or ())
    record = wants_trace(options, trace)
    if record and not config.return_dict_in_generate:
        raise OptionError("A history has no place in plain ids: give return_dict_in_generate=True.")
    ours = model_of(model, _tokenizer)
    # Named in the signature, it would be taken from what transformers prepares.
    mask = options.pop("attention_mask", None)
    ask = Ask(input_ids, torch.ones_like(input_ids).bool() if mask is None else mask.bool(), infill)
    plan = settle(ours, ask, config, sort_out(options), _tokenizer)
    decoding = begin(ours, ask, plan, record=record, copies=config.num_return_sequences or 1)
    steps = decoding if _streamer is None else _told(_streamer, ask, decoding)
    boards = [step.canvas if record else None for step in steps]
    pad = ours.pad_id if config.pad_token_id is None else int(config.pad_token_id)
    found = answered(ask, decoding, boards if record else None, pad_id=pad)  # pyright: ignore[reportArgumentType]
    return found if config.return_dict_in_generate else found.sequences  # pyright: ignore[reportReturnType]


def _told(streamer: Any, ask: Ask, decoding: Any) -> Any:
    """The steps of a decode, each told to a streamer as well."""
    if ask.infill:
        raise OptionError("A streamer shows text from the left: leave it out with infill.")
    sampling = decoding.plan.config.sampling
    ends = () if sampling.eos == "keep" else sampling.stop_ids  # as the ids will be cut, or not
    feed = Feed(streamer, ask.ids, stop_ids=ends, mask_id=decoding.model.mask_id)
    return feed.watch(decoding, decoding.plan.length)


def prepared(
    model: Any,
    inputs: Any = None,
    *,
    streamer: Any = None,
    tokenizer: Any = None,
    assistant_model: Any = None,
    **given: Any,
) -> Any:
    """transformers' own `generate`, whose preparations end in ours.

    It keeps streamer and tokenizer to itself when another function decodes, so that they come by
    another name.
    """
    if not isinstance(model, GenerationMixin):
        raise OptionError(
            f"{type(model).__name__} has no generate: call wavefront.integrations.hf.enable(model, tokenizer) "
            "first."
        )
    if assistant_model is not None:
        raise OptionError("There is no assistant here: use draft to compute steps ahead.")
    if given.get("infill"):
        given["max_new_tokens"] = 1  # transformers wants to know of one; none is added
    check_types(given.pop("token_type_ids", None))
    return GenerationMixin.generate(  # pyright: ignore[reportAttributeAccessIssue]
        model,
        inputs,
        custom_generate=generate,
        _streamer=streamer,
        _tokenizer=tokenizer,
        **given,
    )


class DiffusionGenerationMixin(GenerationMixin):
    """A model whose `generate` decodes by diffusion, unless told otherwise."""

    def generate(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        inputs: Any = None,
        generation_config: Any = None,
        logits_processor: Any = None,
        stopping_criteria: Any = None,
        *,
        custom_generate: Any = None,
        **given: Any,
    ) -> Any:
        """`wavefront.integrations.hf.generate`, with the arguments of transformers' `generate`."""
        given |= {
            "generation_config": generation_config,
            "logits_processor": logits_processor,
            "stopping_criteria": stopping_criteria,
        }
        if custom_generate is None or custom_generate is generate:
            return prepared(self, inputs, **given)
        theirs: Any = super()
        return theirs.generate(inputs, custom_generate=custom_generate, **given)

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False  # nothing here would fill one
