"""Build models for training, and write them as LLaDA checkpoints."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import torch

from wavefront.core.errors import CheckpointError, OptionError
from wavefront.models.families.llada import Config, Net
from wavefront.models.loader import load_model, save_checkpoint
from wavefront.models.quantize import quantization_of
from wavefront.models.transformer import Transformer
from wavefront.train.config import EXPORTS, RowConfig, TrainConfig
from wavefront.train.row_layout import RowEncoder
from wavefront.train.state import STATE, build_from_state, read_state

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")
THETA, EPS = 500_000.0, 1e-5  # as in LLaDA


def build_model(config: TrainConfig, device: torch.device) -> Transformer:
    """Build the model in float32, with random weights or the weights in `config.init`.

    A run that is resumed gets the architecture of its saved state.
    """
    state = config.out / STATE
    if config.resume and state.exists():
        return build_from_state(state, device).train()
    if config.init is not None:
        return _load_initial(config, device)
    encoder = RowEncoder(config.data.tokenizer)
    shape = {name: getattr(config, name) for name in ("width", "layers", "heads", "mlp_width")}
    model = build_architecture(encoder, max_length=config.max_length, **shape).to_empty(
        device=device
    )
    model.init_weights(config.data.seed)
    return model.train()


def build_architecture(
    encoder: RowEncoder, *, width: int, layers: int, heads: int, mlp_width: int, max_length: int
) -> Transformer:
    """Build a LLaDA model on the meta device for this tokenizer."""
    return Net(
        Config(
            vocab_size=encoder.vocab_size,
            width=width,
            layers=layers,
            heads=heads,
            kv_heads=heads,
            mlp_width=mlp_width,
            theta=THETA,
            eps=EPS,
            qkv_bias=False,
            tied=False,
            rotary_float32=True,
            mask_id=encoder.special.mask,
            pad_id=encoder.special.eos,
            stop_ids=(encoder.special.eos,),
            max_length=max_length,
        )
    )


def _load_initial(config: TrainConfig, device: torch.device) -> Transformer:
    path = config.init
    assert path is not None
    model = load_model(path, device=device, dtype="float32")
    if (kind := quantization_of(model)) is not None:
        raise CheckpointError(f"{path} holds {kind} weights; training needs the unquantised model.")
    if isinstance(config.data, RowConfig):
        assert isinstance(model, Transformer)
        arch = replace(model.config, max_length=config.max_length)
        model.config, model.max_length = arch, config.max_length
        return model.train().requires_grad_(True)
    encoder = RowEncoder(config.data.tokenizer)
    if not isinstance(model, Transformer) or model.family != "llada":
        raise CheckpointError(f"{path} is not a LLaDA model; training supports only that family.")
    if model.vocab_size != encoder.vocab_size or model.mask_id != encoder.special.mask:
        raise CheckpointError(f"{path} has another tokenizer; pass its directory as tokenizer.")
    return model.train().requires_grad_(True)


def keep_embeddings(model: Transformer) -> None:
    """Train only the mask token's row of the embedding, and do not train a separate head."""
    if model.output is not None:
        model.output.requires_grad_(False)
    trained = torch.zeros(model.vocab_size, 1, device=model.device)
    trained[model.mask_id] = 1.0
    model.embedding.weight.register_hook(lambda gradient: gradient * trained)


def write_model(
    model: Transformer, tokenizer: Path, directory: Path, *, storage: str | None = None
) -> Path:
    """Write safetensors under the published names, config.json and the tokenizer files.

    The weights are float16, and bfloat16 for Dream: in float16, activations of Qwen2 can overflow.
    With `storage`, the matrices are stored quantised; see `save_checkpoint`.
    """
    dtype = "bfloat16" if model.family == "dream" else "float16"
    largest = max(float(part.detach().abs().max()) for part in model.parameters())
    if not largest < torch.finfo(torch.float16).max:
        raise CheckpointError(f"A weight of {largest:g} does not fit float16; training diverged.")
    save_checkpoint(model, directory, dtype=dtype, storage=storage)
    for name in TOKENIZER_FILES:
        if (tokenizer / name).resolve() != (directory / name).resolve():
            shutil.copyfile(tokenizer / name, directory / name)
    return directory


def export_run(
    run: Path,
    tokenizer: Path,
    directory: Path,
    *,
    weights: str = "ema",
    storage: str | None = None,
) -> Path:
    """Export the weights in the `state.pt` of a run's directory."""
    if weights not in EXPORTS[1:]:
        raise OptionError(f"weights must be ema or raw, not {weights!r}.")
    state = read_state(run / STATE, "cpu")
    model = build_from_state(run / STATE, "cpu")
    model.load_state_dict(state["model"])
    if weights == "ema":
        if not state["average"]:
            raise OptionError(f"{run} was trained without ema; export the raw weights.")
        for part, mean in zip(model.parameters(), state["average"], strict=True):
            part.data.copy_(mean)
    return write_model(model, tokenizer, directory, storage=storage)
