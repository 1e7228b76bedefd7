"""Add `generate` to a transformers masked LM, or wrap it with its tokenizer as an `LM`."""

from __future__ import annotations

from typing import Any

from transformers import GenerationConfig, PreTrainedModel

from wavefront.core.errors import OptionError
from wavefront.integrations.hf.generation import DiffusionGenerationMixin
from wavefront.integrations.hf.masked_lm import MaskedLM, model_of
from wavefront.integrations.hf.tokenizer import read_tokenizer
from wavefront.lm import LM


def enable(model: Any, tokenizer: Any = None, **settings: Any) -> Any:
    """Add a `generate` that decodes by diffusion to a masked LM, and return the same object.

    Masked LMs in transformers have no `generate`. Takes the settings of `MaskedLM`.
    """
    if not isinstance(model, PreTrainedModel):
        raise OptionError(f"enable needs a transformers model, not {type(model).__name__}.")
    masked = MaskedLM(model, tokenizer, **settings)
    kind = type(model)
    if not isinstance(model, DiffusionGenerationMixin):
        body = {"__module__": kind.__module__, "__doc__": kind.__doc__}
        model.__class__ = type(kind.__name__, (DiffusionGenerationMixin, kind), body)
    ends = masked.stop_ids
    model.generation_config = GenerationConfig(
        eos_token_id=list(ends) if len(ends) > 1 else next(iter(ends), None),
        pad_token_id=masked.pad_id,
        use_cache=False,
    )
    object.__setattr__(model, "wavefront", masked)
    return model


def lm(model: Any, tokenizer: Any, *, name: str = "", **settings: Any) -> LM:
    """Return an `LM` for a transformers model and its tokenizer.

    Takes the settings of `MaskedLM`.
    """
    return LM(model_of(model, tokenizer, **settings), read_tokenizer(tokenizer), name=name)
