"""LLaDA and Dream as transformers models, without remote code."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    GenerationConfig,
    PreTrainedModel,
)
from transformers.modeling_outputs import MaskedLMOutput

from wavefront.core.errors import OptionError
from wavefront.integrations.hf.config import DiffusionConfig, DreamConfig, LLaDAConfig
from wavefront.integrations.hf.generation import DiffusionGenerationMixin
from wavefront.models.loader import family_module, load_model, resolve_device, save_checkpoint
from wavefront.models.transformer import Transformer
from wavefront.storage.checkpoint import Checkpoint, open_checkpoint
from wavefront.text.tokenizer import END_OF_TURN

# Keywords of `from_pretrained` that have no effect.
IGNORED = (
    "_commit_hash", "_from_auto", "_from_pipeline", "adapter_kwargs", "code_revision",
    "low_cpu_mem_usage", "trust_remote_code", "use_safetensors",
)  # fmt: skip


class DiffusionModel(DiffusionGenerationMixin, PreTrainedModel):
    """Base class of the families. `forward` returns the published model's logits, unshifted."""

    config_class: Any = DiffusionConfig
    base_model_prefix = "net"
    main_input_name = "input_ids"
    _supports_sdpa = True

    def __init__(self, config: DiffusionConfig, net: Transformer | None = None) -> None:
        """Create the model with random weights, or around an existing network."""
        super().__init__(config)
        self.net = _random(config) if net is None else net
        self.generation_config = _generation(self.net.stop_ids, self.net.pad_id)
        self.post_init()

    @property
    def wavefront(self) -> Transformer:
        """Return the wavefront model."""
        return self.net

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        return_dict: bool | None = None,
        **_: Any,
    ) -> Any:
        """Return the logits (B, L, V) of `wavefront.Model.raw_logits`, with gradients.

        `token_type_ids`, which some tokenizers return, are ignored.
        """
        visible = None if attention_mask is None else attention_mask.bool()
        logits = self.net(input_ids, visible)
        return (logits,) if return_dict is False else MaskedLMOutput(logits=logits)

    def get_input_embeddings(self) -> nn.Module:
        return self.net.embedding

    def get_output_embeddings(self) -> nn.Module | None:
        return self.net.output

    def _init_weights(self, module: nn.Module) -> None:
        """Do nothing: the network is already initialised."""

    def tie_weights(self, *_: Any, **__: Any) -> None:
        """Do nothing: a network with tied weights has only one matrix."""

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: Any,
        *model_args: Any,
        config: Any = None,
        dtype: Any = None,
        torch_dtype: Any = None,
        device_map: Any = None,
        revision: str | None = None,
        local_files_only: bool = False,
        generation_config: Any = None,
        **others: Any,
    ) -> Any:
        """Load a checkpoint in the published layout with `wavefront.load_model` (safetensors only).

        The default dtype is float32 on a CPU and the stored dtype on a GPU; "auto" is the stored
        dtype everywhere. `device_map` names one device.
        """
        _check_keywords(cls.__name__, others)
        files = open_checkpoint(
            pretrained_model_name_or_path, revision=revision, offline=local_files_only
        )
        chosen = torch_dtype if dtype is None else dtype
        net: Any = load_model(
            files.directory,
            device=_device(device_map),
            dtype=files.dtype if chosen == "auto" else chosen,
        )
        if not isinstance(config, DiffusionConfig):
            config = cls.config_class.from_pretrained(files.directory)
        config._name_or_path = str(pretrained_model_name_or_path)
        model = cls(config, net)
        ends = (*net.stop_ids, *_ends_of_turn(files, net.stop_ids))
        model.generation_config = generation_config or _generation(ends, net.pad_id)
        return model.eval()

    def save_pretrained(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, save_directory: str | os.PathLike[str], **others: Any
    ) -> None:
        """Write the checkpoint in the published layout of its family."""
        if others.get("push_to_hub"):
            raise OptionError("push_to_hub is not supported: save, then upload the folder.")
        save_checkpoint(self.net, save_directory)
        self.generation_config.save_pretrained(save_directory)


class LLaDAForDiffusion(DiffusionModel):
    """LLaDA 8B, LLaDA 1.5 and models of their architecture."""

    config_class = LLaDAConfig


class DreamForDiffusion(DiffusionModel):
    """Dream 7B and models of its architecture; logits predict the next position, as published."""

    config_class = DreamConfig


def register() -> None:
    """Register these classes, so that the Auto classes load LLaDA and Dream checkpoints."""
    for model in (LLaDAForDiffusion, DreamForDiffusion):
        AutoConfig.register(model.config_class.model_type, model.config_class, exist_ok=True)
        for auto in (AutoModel, AutoModelForMaskedLM, AutoModelForCausalLM):
            auto.register(model.config_class, model, exist_ok=True)


def _random(config: DiffusionConfig) -> Transformer:
    family = family_module(config.model_type)
    net: Transformer = family.Net(config.architecture())
    device = torch.empty(0).device
    if device.type == "meta":
        return net
    net = net.to(torch.get_default_dtype()).to_empty(device=device)
    net.init_weights(torch.initial_seed() % (1 << 63))
    return net


def _generation(ends: tuple[int, ...], pad_id: int) -> GenerationConfig:
    """Return a config with the special ids only; sampling options are chosen for every call."""
    eos = ends[0] if len(ends) == 1 else list(ends) or None
    return GenerationConfig(eos_token_id=eos, pad_token_id=pad_id, use_cache=False)


def _ends_of_turn(files: Checkpoint, known: tuple[int, ...]) -> list[int]:
    """Return the end-of-turn ids, which only the tokenizer's files contain."""
    found = [files.added_token(content) for content in END_OF_TURN]
    return [id for id in found if id is not None and id not in known]


def _device(device_map: Any) -> torch.device:
    if device_map is None:
        return torch.device("cpu")
    if isinstance(device_map, dict) and len(device_map) == 1:
        device_map = next(iter(device_map.values()))
    if isinstance(device_map, int) and not isinstance(device_map, bool):
        device_map = f"cuda:{device_map}"
    if not isinstance(device_map, str | torch.device):
        raise OptionError(f"device_map must name one device or 'auto', not {device_map!r}.")
    return resolve_device(device_map)


def _check_keywords(name: str, others: dict[str, Any]) -> None:
    for key, value in others.items():
        if key not in IGNORED and value not in (None, False, "", "sdpa"):
            raise OptionError(
                f"{name}.from_pretrained does not support {key}={value!r}: leave it out. Hub "
                "settings come from the environment (HF_TOKEN, HF_HOME)."
            )
