"""The saved state of a training run: weights, optimisers, average and step.

It has no random state, because everything random is a function of the seed and the step.
"""

from __future__ import annotations

import errno
import pickle
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from wavefront.core.errors import CheckpointError, OptionError
from wavefront.models.loader import family_module
from wavefront.models.transformer import Transformer
from wavefront.storage.write_file import replacing
from wavefront.train.config import TrainConfig
from wavefront.train.optimizer import WeightAverage

FORMAT = 2
STATE = "state.pt"


def save_state(
    path: Path,
    *,
    config: TrainConfig,
    step: int,
    model: Transformer,
    optimizers: Sequence[torch.optim.Optimizer],
    average: WeightAverage,
    steps: int | None = None,
    seconds: float = 0.0,
) -> None:
    """Replace the file atomically. A kill at any moment leaves the old state or the new one.

    `steps` is the planned number of steps, if there is a plan; `seconds` is the time trained.
    """
    state = {
        "format": FORMAT,
        "step": step,
        "fixed": config.resume_settings(),
        "steps": steps,
        "seconds": seconds,
        "architecture": {"family": model.family} | asdict(model.config),
        "model": model.state_dict(),
        "optimizers": [optimizer.state_dict() for optimizer in optimizers],
        "average": average.weights,
    }
    with replacing(path, error=CheckpointError) as part, part.open("wb") as file:
        try:
            torch.save(state, file)
        except RuntimeError as error:  # torch hides the system's error
            raise OSError(errno.EIO, " ".join(str(error).split())[:200]) from None


def read_state(path: Path, device: torch.device | str) -> dict[str, Any]:
    """Read a saved state. Raise CheckpointError if the file is missing or not a state."""
    try:
        state = torch.load(path, map_location=device, weights_only=True)
    except FileNotFoundError:
        raise CheckpointError(
            f"{path} does not exist; there is nothing to resume or export."
        ) from None
    except (OSError, RuntimeError, ValueError, EOFError, pickle.UnpicklingError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CheckpointError(f"{path} cannot be read as a training state: {reason}.") from None
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise CheckpointError(f"{path} is not a training state of format {FORMAT}.")
    return state


def build_from_state(path: Path, device: torch.device | str) -> Transformer:
    """Build a model of the stored architecture, without loading its weights."""
    stored = dict(read_state(path, "cpu")["architecture"])
    module = family_module(stored.pop("family"))
    stored["stop_ids"] = tuple(stored["stop_ids"])
    return module.Net(module.Config(**stored)).to_empty(device=device)


def restore_state(
    path: Path,
    *,
    config: TrainConfig,
    model: Transformer,
    optimizers: Sequence[torch.optim.Optimizer],
    average: WeightAverage,
) -> dict[str, Any]:
    """Restore everything but the learning rates, and return the stored state."""
    state = read_state(path, next(model.parameters()).device)
    _check_same(state["fixed"], config.resume_settings(), path)
    model.load_state_dict(state["model"])
    for optimizer, stored in zip(optimizers, state["optimizers"], strict=True):
        wanted = [
            {key: value for key, value in group.items() if key != "params"}
            for group in optimizer.param_groups
        ]
        optimizer.load_state_dict(stored)
        for group, values in zip(optimizer.param_groups, wanted, strict=True):
            group.update(values)
    average.load(state["average"])
    return state


def _check_same(stored: dict[str, Any], wanted: dict[str, Any], path: Path) -> None:
    for name, value in wanted.items():
        if stored.get(name) != value:
            raise OptionError(
                f"{path} was made with {name}={stored.get(name)!r}, not {value!r}. Resume with the"
                " same value, or start a new run from its exported weights."
            )
