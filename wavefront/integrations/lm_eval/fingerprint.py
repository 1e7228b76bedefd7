"""What decides an answer, as one short name: weights, tokenizer, precision, strategy, options.

lm-eval's response cache knows an answer by its prompt alone; this name keeps the answers of two
models, or of two strategies, apart.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import wavefront
from wavefront.engine.options import Plan
from wavefront.lm import LM
from wavefront.models.protocol import Model, Publishable

_CHUNK = 1 << 22  # numbers of a tensor that are multiplied at once
_PRIME = 65_521
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def fingerprint(lm: LM, plan: Plan, more: Mapping[str, Any]) -> str:
    """32 hexadecimal digits; `more` is whatever else decides an answer, as plain values."""
    parts = {
        "wavefront": wavefront.__version__,
        "weights": of_weights(lm.model),
        "tokenizer": of_tokenizer(lm),
        "dtype": str(lm.model.dtype),
        "device": lm.model.device.type,
        "options": plan.options(),
        "strategy": of_strategy(plan),
        **more,
    }
    return _digest(json.dumps(parts, sort_keys=True))


def of_weights(model: Model) -> str:
    """A name for the weights, whatever file they came from: names, shapes, every bit."""
    if isinstance(model, Publishable):
        tensors = model.published_weights()
    elif isinstance(model, torch.nn.Module):
        tensors = model.state_dict()
    else:
        tensors = {}
    rows = [
        [name, list(part.shape), str(part.dtype), *_sums(part)]
        for name, part in sorted(tensors.items())
    ]
    return _digest(json.dumps([type(model).__name__, model.family, rows]))


def _sums(part: Tensor) -> list[int]:
    """Two sums over the bits: of the words, and of the words weighted by their place."""
    flat = part.detach().reshape(-1)
    words = flat.view(_WORDS[flat.element_size()])
    plain = weighted = 0
    for start in range(0, len(words), _CHUNK):
        chunk = words[start : start + _CHUNK].long()
        place = torch.arange(start, start + len(chunk), device=chunk.device) % _PRIME + 1
        plain += int(chunk.sum())
        weighted += int((chunk * place).sum())
    return [plain, weighted]


def of_tokenizer(lm: LM) -> str:
    """A name for how text becomes ids, and conversations become text."""
    tokenizer = lm.tokenizer
    parts = [
        tokenizer.to_json(),
        tokenizer.template,
        tokenizer.opening,
        sorted(tokenizer.special_ids),
    ]
    return _digest(json.dumps(parts))


def of_strategy(plan: Plan) -> str:
    """A name for the source of the strategy: one from outside has no version of ours."""
    strategy = plan.config.strategy
    used = [strategy, *vars(strategy).values()]
    try:
        files = sorted({inspect.getfile(type(one)) for one in used if hasattr(one, "spec_name")})
        return _digest("".join(Path(file).read_text("utf-8") for file in files))
    except (OSError, TypeError):  # written at a prompt: there is no file
        return ""


def _digest(text: str) -> str:
    return blake2b(text.encode("utf-8", "replace"), digest_size=16).hexdigest()
