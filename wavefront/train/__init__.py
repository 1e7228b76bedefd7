"""Train masked diffusion models: on a mixture of tasks, or from an autoregressive checkpoint.

The paper's forward process and its loss are in `corruption`, the loop is in `loop`, and `adapt`
uses both for checkpoints that `original` reads. It imports `core`, `storage`, `text`, `models` and
`tasks`. Start reading at `loop.train`, then `adapt.adapt`.

Data workers import this package too, so importing it must stay cheap: only `run` imports torch.
"""

from __future__ import annotations

from wavefront.train.config import TrainConfig

__all__ = ["TrainConfig", "run"]


def run(config: TrainConfig) -> dict[str, float]:
    """Train, export the model to `<out>/model`, and return the last log record."""
    from wavefront.train.loop import train

    return train(config)
