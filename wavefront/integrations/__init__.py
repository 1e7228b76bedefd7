"""Integrations: wavefront inside other libraries.

`hf` lets transformers models decode by diffusion, and `lm_eval` runs wavefront models in the LM
evaluation harness; each is imported on first use, because each needs an extra. It imports `lm`,
`tasks`, `evaluation` and what those see. Start reading at `hf/generation.py` or
`lm_eval/adapter.py`.
"""

from __future__ import annotations

import importlib
from typing import Any


def __getattr__(name: str) -> Any:
    if name in ("hf", "lm_eval"):
        return importlib.import_module(f"wavefront.integrations.{name}")
    raise AttributeError(f"module 'wavefront.integrations' has no attribute {name!r}")
