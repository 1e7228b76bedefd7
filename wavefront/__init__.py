"""Decoding for diffusion language models.

>>> import wavefront
>>> lm = wavefront.load("toy")
>>> lm.generate("Hello", strategy="wavefront(size=8, radius=2)", max_new_tokens=16).finish_reason
'length'

This module lists the public names and loads each one at its first use, so that the import is fast.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

# Threads that spin while they wait make small models many times slower on a busy machine. torch
# reads this variable when it is imported, so it has no effect after `import torch`.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

__version__ = "0.1.0.dev0"

if TYPE_CHECKING:
    from wavefront import testing as testing
    from wavefront.completion import TokenLogprob as TokenLogprob
    from wavefront.core.canvas import Canvas as Canvas
    from wavefront.core.errors import CheckpointError as CheckpointError
    from wavefront.core.errors import MissingExtraError as MissingExtraError
    from wavefront.core.errors import NumericalError as NumericalError
    from wavefront.core.errors import OptionError as OptionError
    from wavefront.core.errors import PromptError as PromptError
    from wavefront.core.errors import ReportError as ReportError
    from wavefront.core.errors import RunError as RunError
    from wavefront.core.errors import SpecError as SpecError
    from wavefront.core.errors import TraceError as TraceError
    from wavefront.core.errors import WavefrontError as WavefrontError
    from wavefront.core.errors import WavefrontWarning as WavefrontWarning
    from wavefront.core.state import Config as Config
    from wavefront.core.state import Step as Step
    from wavefront.core.strategy import Decision as Decision
    from wavefront.core.strategy import RowProgress as RowProgress
    from wavefront.core.strategy import Selector as Selector
    from wavefront.core.strategy import Stats as Stats
    from wavefront.core.strategy import Strategy as Strategy
    from wavefront.core.strategy import View as View
    from wavefront.engine.batcher import ActiveRequest as ActiveRequest
    from wavefront.engine.batcher import Batcher as Batcher
    from wavefront.engine.batcher import Request as Request
    from wavefront.engine.batcher import StepUpdate as StepUpdate
    from wavefront.engine.batcher import decode as decode
    from wavefront.engine.options import Options as Options
    from wavefront.engine.session import DecodeSession as DecodeSession
    from wavefront.engine.session import GeneratedIds as GeneratedIds
    from wavefront.engine.session import generate_ids as generate_ids
    from wavefront.lm import LM as LM
    from wavefront.lm import Completion as Completion
    from wavefront.lm import Stream as Stream
    from wavefront.lm import load as load
    from wavefront.models.loader import load_model as load_model
    from wavefront.models.loader import save_checkpoint as save_checkpoint
    from wavefront.models.protocol import Model as Model
    from wavefront.traces.trace import Trace as Trace

_HOME = {
    "ActiveRequest": "engine.batcher",
    "Batcher": "engine.batcher",
    "Canvas": "core.canvas",
    "CheckpointError": "core.errors",
    "Completion": "lm",
    "Config": "core.state",
    "Decision": "core.strategy",
    "DecodeSession": "engine.session",
    "GeneratedIds": "engine.session",
    "LM": "lm",
    "MissingExtraError": "core.errors",
    "Model": "models.protocol",
    "NumericalError": "core.errors",
    "OptionError": "core.errors",
    "Options": "engine.options",
    "PromptError": "core.errors",
    "ReportError": "core.errors",
    "Request": "engine.batcher",
    "RowProgress": "core.strategy",
    "RunError": "core.errors",
    "Selector": "core.strategy",
    "SpecError": "core.errors",
    "Stats": "core.strategy",
    "Step": "core.state",
    "StepUpdate": "engine.batcher",
    "Strategy": "core.strategy",
    "Stream": "lm",
    "TokenLogprob": "completion",
    "Trace": "traces.trace",
    "TraceError": "core.errors",
    "View": "core.strategy",
    "WavefrontError": "core.errors",
    "WavefrontWarning": "core.errors",
    "decode": "engine.batcher",
    "generate_ids": "engine.session",
    "load": "lm",
    "load_model": "models.loader",
    "save_checkpoint": "models.loader",
}

__all__ = ["__version__", "testing", *_HOME]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name in ("testing", "integrations"):  # such as `wavefront.testing.check(...)`
        return importlib.import_module(f"wavefront.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'wavefront' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"wavefront.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
