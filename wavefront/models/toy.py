"""A tiny model with seeded random weights, for tests, examples and experiments without files."""

from __future__ import annotations

import torch

from wavefront.core.errors import OptionError, did_you_mean
from wavefront.models.loader import families, family_module, resolve_device, resolve_dtype
from wavefront.models.transformer import Transformer

# Large enough that some proposals are near certain and others nearly tied, as after training.
SPREAD = 0.3


def toy(
    seed: int = 0,
    *,
    family: str = "llada",
    vocab_size: int = 64,
    width: int = 64,
    layers: int = 2,
    tied: bool = False,
    max_length: int = 1024,
    device: str | torch.device | None = "cpu",
    dtype: str | torch.dtype | None = "float32",
) -> Transformer:
    """Return a random model of a family; the last id is the mask, the one before it the stop id."""
    known = families()
    if family not in known:
        raise OptionError(
            f"There is no toy of family {family!r}; known: {', '.join(known)}"
            f"{did_you_mean(str(family), known)}.",
            option="family",
            value=family,
        )
    if vocab_size < 3 or layers < 1 or width < 8 or width % 8:
        raise OptionError(
            f"A toy needs vocab_size >= 3, layers >= 1 and a width that is a multiple of 8; "
            f"got {vocab_size}, {layers} and {width}."
        )
    module = family_module(family)
    config = module.Config(
        vocab_size=vocab_size,
        width=width,
        layers=layers,
        heads=4,
        mlp_width=2 * width,
        tied=tied,
        mask_id=vocab_size - 1,
        pad_id=vocab_size - 2,
        stop_ids=(vocab_size - 2,),
        max_length=max_length,
        **module.TOY,
    )
    model = module.Net(config).to(resolve_dtype(dtype) or torch.float32)
    model = model.to_empty(device=resolve_device(device))
    model.init_weights(seed, std=SPREAD)
    return model.eval()
