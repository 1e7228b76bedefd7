"""`generate` for `model.generate(..., custom_generate=)`, and the mixin that provides it."""

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
    check_token_types,
    select_options,
)
from wavefront.integrations.hf.generate_call import (
    DiffusionOutput,
    GenerateInput,
    build_output,
    resolve_plan,
    start_session,
)
from wavefront.integrations.hf.masked_lm import model_of
from wavefront.integrations.hf.streaming import StreamerFeed


def _with_keywords(*names: str) -> Callable[[Any], Any]:
    """Add names to a function's signature, because transformers passes only those."""

    def add(function: Any) -> Any:
        own = list(inspect.signature(function).parameters.values())
        only = inspect.Parameter.KEYWORD_ONLY
        more = [inspect.Parameter(name, only, default=None) for name in names]
        function.__signature__ = inspect.Signature([*own[:-1], *more, own[-1]])
        return function

    return add


@_with_keywords(*NAMES)
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

    Takes the options of `wavefront.Options`. Length, sampling and stop tokens come from the
    generation config, as usual in transformers. `infill=True` fills the mask tokens in
    `input_ids` and adds no tokens. You can also call it directly.
    """
    if logits_processor is None:  # a direct call: transformers always passes a list
        options |= {"infill": infill, "trace": trace}
        options |= {"stopping_criteria": stopping_criteria, "generation_config": generation_config}
        return call_generate(model, input_ids, **options)
    config = generation_config
    check_processors(logits_processor, config)
    check_criteria(stopping_criteria or ())
    record = wants_trace(options, trace)
    if record and not config.return_dict_in_generate:
        raise OptionError("A history needs a dictionary result: give return_dict_in_generate=True.")
    ours = model_of(model, _tokenizer)
    # Not in the signature: transformers would then not pass the mask that it prepared.
    mask = options.pop("attention_mask", None)
    real = torch.ones_like(input_ids).bool() if mask is None else mask.bool()
    inputs = GenerateInput(input_ids, real, infill)
    plan = resolve_plan(ours, inputs, config, options=select_options(options), tokenizer=_tokenizer)
    copies = config.num_return_sequences or 1
    session = start_session(ours, inputs, plan, record=record, copies=copies)
    steps = session if _streamer is None else _streamed(_streamer, inputs, session)
    canvases = [step.canvas if record else None for step in steps]
    pad = ours.pad_id if config.pad_token_id is None else int(config.pad_token_id)
    found = build_output(inputs, session, canvases if record else None, pad_id=pad)  # pyright: ignore[reportArgumentType]
    return found if config.return_dict_in_generate else found.sequences  # pyright: ignore[reportReturnType]


def _streamed(streamer: Any, inputs: GenerateInput, session: Any) -> Any:
    """Yield the steps of a decode, and pass each to a streamer."""
    if inputs.infill:
        raise OptionError("A streamer shows text from the left: leave it out with infill.")
    sampling = session.plan.config.sampling
    ends = () if sampling.eos == "keep" else sampling.stop_ids  # the output is cut the same way
    feed = StreamerFeed(streamer, inputs.ids, stop_ids=ends, mask_id=session.model.mask_id)
    return feed.watch(session, session.plan.length)


def call_generate(
    model: Any,
    inputs: Any = None,
    *,
    streamer: Any = None,
    tokenizer: Any = None,
    assistant_model: Any = None,
    **given: Any,
) -> Any:
    """Call transformers' own `generate`, which prepares the inputs and then calls ours.

    transformers does not pass `streamer` and `tokenizer` to a custom function, so they are passed
    under other names.
    """
    if not isinstance(model, GenerationMixin):
        raise OptionError(
            f"{type(model).__name__} has no generate: first call "
            "wavefront.integrations.hf.enable(model, tokenizer)."
        )
    if assistant_model is not None:
        raise OptionError("assistant_model is not supported: use speculate for speculative steps.")
    if given.get("infill"):
        given["max_new_tokens"] = 1  # transformers requires a length; no token is added
    check_token_types(given.pop("token_type_ids", None))
    return GenerationMixin.generate(  # pyright: ignore[reportAttributeAccessIssue]
        model,
        inputs,
        custom_generate=generate,
        _streamer=streamer,
        _tokenizer=tokenizer,
        **given,
    )


class DiffusionGenerationMixin(GenerationMixin):
    """A mixin for models whose `generate` decodes by diffusion by default."""

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
        """Decode by diffusion. Takes the same arguments as transformers' `generate`."""
        given |= {
            "generation_config": generation_config,
            "logits_processor": logits_processor,
            "stopping_criteria": stopping_criteria,
        }
        if custom_generate is None or custom_generate is generate:
            return call_generate(self, inputs, **given)
        theirs: Any = super()
        return theirs.generate(inputs, custom_generate=custom_generate, **given)

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False  # no decode fills such a cache
