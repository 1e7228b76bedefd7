"""wavefront in transformers: decode by diffusion with `model.generate`.

>>> import wavefront.integrations.hf
>>> from transformers import AutoModel, AutoTokenizer
>>> model = AutoModel.from_pretrained("GSAI-ML/LLaDA-8B-Instruct")  # doctest: +SKIP
>>> model.generate(ids, strategy="wavefront(size=8)", max_new_tokens=64)  # doctest: +SKIP

Importing this registers every family with the Auto classes, so no remote code is needed. For any
other model, pass `custom_generate=wavefront.integrations.hf.generate`. Masked LMs such as BERT work
too: `enable(model, tokenizer)` adds `generate`, and `MaskedLM` wraps one as a wavefront model.
Install the extra: `pip install 'wavefront[transformers]'`.
"""

import re
from importlib.metadata import version
from importlib.util import find_spec

from wavefront.core.errors import MissingExtraError, install_command

if find_spec("transformers") is None:
    raise MissingExtraError(
        f"wavefront.integrations.hf needs transformers: {install_command('transformers')}."
    )
if tuple(map(int, re.findall(r"\d+", version("transformers"))[:2])) < (4, 57):
    raise MissingExtraError(
        "wavefront.integrations.hf needs transformers 4.57 or newer, not "
        f"{version('transformers')}: {install_command('transformers')}."
    )

from wavefront.integrations.hf.config import DreamConfig, LLaDAConfig
from wavefront.integrations.hf.enable import enable, lm
from wavefront.integrations.hf.generate_call import DiffusionOutput
from wavefront.integrations.hf.generation import DiffusionGenerationMixin, call_generate, generate
from wavefront.integrations.hf.masked_lm import MaskedLM
from wavefront.integrations.hf.modeling import (
    CLASSES,
    DiffusionModel,
    DreamForDiffusion,
    LLaDAForDiffusion,
    register,
)
from wavefront.integrations.hf.streaming import TextDiffusionStreamer, WaveStreamer
from wavefront.integrations.hf.tokenizer import encode_holes, load_tokenizer, read_tokenizer

__all__ = [
    "CLASSES",
    "DiffusionGenerationMixin",
    "DiffusionModel",
    "DiffusionOutput",
    "DreamConfig",
    "DreamForDiffusion",
    "LLaDAConfig",
    "LLaDAForDiffusion",
    "MaskedLM",
    "TextDiffusionStreamer",
    "WaveStreamer",
    "call_generate",
    "enable",
    "encode_holes",
    "generate",
    "lm",
    "load_tokenizer",
    "read_tokenizer",
]

register()
