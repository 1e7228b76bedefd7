"""The optimisers and the moving average of the weights."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from wavefront.core.errors import OptionError
from wavefront.train.config import TrainConfig

# The matrices inside the blocks. Embedding and head are lookup tables, for which an orthogonal
# update has no meaning, and norms are vectors. AdamW updates those.
MUON_MATRICES = ("qkv.weight", "attention_out.weight", "gate_up.weight", "down.weight")
BETAS = (0.9, 0.98)


def build_optimizers(model: nn.Module, config: TrainConfig) -> list[torch.optim.Optimizer]:
    """Build one optimiser, or two with Muon. Each parameter belongs to exactly one of them."""
    parameters = {name: part for name, part in model.named_parameters() if part.requires_grad}
    hidden: dict[str, nn.Parameter] = {}
    if config.optimizer == "muon":
        hidden = {name: part for name, part in parameters.items() if name.endswith(MUON_MATRICES)}
    rest = [part for name, part in parameters.items() if name not in hidden]
    # Rows of an embedding that is not trained must not decay either.
    kept = [] if config.embeddings else [parameters["embedding.weight"]]
    decays = [part for part in rest if part.dim() > 1 and not any(part is other for other in kept)]
    groups = [
        {"params": decays, "weight_decay": config.weight_decay},
        {"params": [part for part in rest if part.dim() < 2] + kept, "weight_decay": 0.0},
    ]
    fused = all(part.is_cuda for part in rest)
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.AdamW(groups, lr=config.lr, betas=BETAS, fused=fused)
    ]
    if hidden:
        optimizers.append(_muon(list(hidden.values()), config))
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["peak"] = group["lr"]
    return optimizers


def _muon(matrices: list[nn.Parameter], config: TrainConfig) -> torch.optim.Optimizer:
    if not hasattr(torch.optim, "Muon"):
        raise OptionError(f"torch {torch.__version__} has no Muon; use optimizer='adamw'.")
    return torch.optim.Muon(
        matrices,
        lr=config.matrix_lr or config.lr,
        weight_decay=config.weight_decay,
        # Scale updates to AdamW's size, so that one learning rate works for both.
        adjust_lr_fn="match_rms_adamw",
    )


def set_rate(optimizers: Sequence[torch.optim.Optimizer], factor: float) -> None:
    """Set every group to `factor` times its peak learning rate."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["peak"] * factor


class WeightAverage:
    """An exponential moving average of the weights, in float32."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.parameters = [part.detach() for part in model.parameters()]
        self.weights = [part.clone() for part in self.parameters] if decay else []

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Update after step `step`, from 0. Early averages are short, to forget the start."""
        if self.decay:
            keep = min(self.decay, (1 + step) / (10 + step))
            torch._foreach_lerp_(self.weights, self.parameters, 1.0 - keep)  # pyright: ignore[reportPrivateImportUsage]

    @torch.no_grad()
    def swap(self) -> None:
        """Exchange the model's weights with the average. A second call undoes it."""
        for mine, theirs in zip(self.weights, self.parameters, strict=True):
            held = theirs.clone()
            theirs.copy_(mine)
            mine.copy_(held)

    def load(self, weights: Sequence[Tensor]) -> None:
        for mine, stored in zip(self.weights, weights, strict=True):
            mine.copy_(stored)
