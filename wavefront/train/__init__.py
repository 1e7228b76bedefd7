"""Training of masked diffusion models on the task mixture: `run(TrainConfig(...))`.

Data workers import this package too, so it must stay light: torch is loaded by `run` alone.
"""

from __future__ import annotations

from wavefront.train.config import TrainConfig

__all__ = ["TrainConfig", "run"]


def run(config: TrainConfig) -> dict[str, float]:
    """Train as configured and export the result to `<out>/model`; the last log record."""
    from wavefront.train.loop import train

    return train(config)
