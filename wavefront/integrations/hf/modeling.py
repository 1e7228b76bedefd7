"""The diffusion families as transformers models, without remote code."""

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
    LlamaConfig,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.modeling_outputs import MaskedLMOutput

from wavefront.core.errors import OptionError
from wavefront.integrations.hf import config as configs
from wavefront.integrations.hf.config import DiffusionConfig, architecture
from wavefront.integrations.hf.generation import DiffusionGenerationMixin
from wavefront.models.loader import find_family, load_model, resolve_device, save_checkpoint
from wavefront.models.transformer import Transformer
from wavefront.storage.checkpoint import Checkpoint, open_checkpoint
from wavefront.text.tokenizer import END_OF_TURN

# Keywords of `from_pretrained` that have no effect.
IGNORED = (
    "_commit_hash", "_from_auto", "_from_pipeline", "adapter_kwargs", "code_revision",
    "low_cpu_mem_usage", "trust_remote_code", "use_safetensors",
)  # fmt: skip


# Config keys that an option of `from_pretrained` decides.
DECIDED = ("mask_token_id", "block_size", "bd_size", "attention")


class DiffusionModel(DiffusionGenerationMixin, PreTrainedModel):
    """Base class of the families. `forward` returns the published model's logits, unshifted.

    Its `from_pretrained` loads a checkpoint of any family.
    """

    config_class: Any = DiffusionConfig
    base_model_prefix = "net"
    main_input_name = "input_ids"
    _supports_sdpa = True

    def __init__(self, config: PretrainedConfig, net: Transformer | None = None) -> None:
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
        mask_id: int | None = None,
        attention: str | None = None,
        block_size: int | None = None,
        **others: Any,
    ) -> Any:
        """Load a checkpoint in the published layout with `wavefront.load_model` (safetensors only).

        The default dtype is float32 on a CPU and the stored dtype on a GPU; "auto" is the stored
        dtype everywhere. `device_map` names one device. `mask_id`, `attention` and `block_size` are
        those of `wavefront.load_model`.
        """
        _check_keywords(cls.__name__, others)
        files = open_checkpoint(
            pretrained_model_name_or_path, revision=revision, offline=local_files_only
        )
        kind = _class_of(files)
        if not issubclass(kind, cls):
            raise OptionError(
                f"{files.directory} is no checkpoint for {cls.__name__}: use {kind.__name__} or "
                "AutoModelForMaskedLM."
            )
        chosen = torch_dtype if dtype is None else dtype
        net: Any = load_model(
            files.directory,
            device=_device(device_map),
            dtype=files.dtype if chosen == "auto" else chosen,
            mask_id=mask_id,
            attention=attention,
            block_size=block_size,
        )
        if not isinstance(config, kind.config_class):
            config = kind.config_class.from_pretrained(files.directory)
        config._name_or_path = str(pretrained_model_name_or_path)
        published = net.config.to_json()
        known = [key for key in DECIDED if key in published or hasattr(config, key)]
        config.update({key: published.get(key) for key in known})
        model = kind(config, net)
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

    config_class = configs.LLaDAConfig


class LLaDAMoEForDiffusion(DiffusionModel):
    """LLaDA-MoE."""

    config_class = configs.LLaDAMoEConfig


class DreamForDiffusion(DiffusionModel):
    """Dream 7B and models of its architecture; logits predict the next position, as published."""

    config_class = configs.DreamConfig


class ILLaDAForDiffusion(DiffusionModel):
    """iLLaDA."""

    config_class = configs.ILLaDAConfig


class SDARForDiffusion(DiffusionModel):
    """SDAR, TraDo and DiRL; block-causal."""

    config_class = configs.SDARConfig


class SDARMoEForDiffusion(DiffusionModel):
    """SDAR-MoE; block-causal."""

    config_class = configs.SDARMoEConfig


class LLaDA2ForDiffusion(DiffusionModel):
    """LLaDA2.0 and 2.1; block-causal."""

    config_class = configs.LLaDA2Config


class FastDLLMForDiffusion(DiffusionModel):
    """Fast-dLLM v2; block-causal, and logits predict the next position, as published."""

    config_class = configs.FastDLLMConfig


class A2DQwen3ForDiffusion(DiffusionModel):
    """Tiny-A2D of Qwen3. A bd3lm needs `attention="block"`."""

    config_class = configs.A2DQwen3Config


class A2DQwen2ForDiffusion(DiffusionModel):
    """Tiny-A2D of Qwen2. A bd3lm needs `attention="block"`."""

    config_class = configs.A2DQwen2Config


class A2DLlamaForDiffusion(DiffusionModel):
    """Tiny-A2D of Llama. A bd3lm needs `attention="block"`."""

    config_class = configs.A2DLlamaConfig


class StableDiffCoderForDiffusion(DiffusionModel):
    """Stable-DiffCoder; block-causal. Its files name transformers' own config of Llama."""

    config_class = LlamaConfig


# By the name in `architectures`.
CLASSES: dict[str, type[DiffusionModel]] = {
    "LLaDAModelLM": LLaDAForDiffusion,
    "LLaDAMoEModelLM": LLaDAMoEForDiffusion,
    "DreamModel": DreamForDiffusion,
    "ILLaDAForCausalLM": ILLaDAForDiffusion,
    "SDARForCausalLM": SDARForDiffusion,
    "SDARMoeForCausalLM": SDARMoEForDiffusion,
    "LLaDA2MoeModelLM": LLaDA2ForDiffusion,
    "Fast_dLLM_QwenForCausalLM": FastDLLMForDiffusion,
    "A2DQwen3LMHeadModel": A2DQwen3ForDiffusion,
    "A2DQwen2LMHeadModel": A2DQwen2ForDiffusion,
    "A2DLlamaLMHeadModel": A2DLlamaForDiffusion,
    "StableDiffcoderForCausalLM": StableDiffCoderForDiffusion,
}


def register() -> None:
    """Register these classes, so that the Auto classes load checkpoints of every family.

    transformers keeps Llama for `AutoModel` and `AutoModelForCausalLM`, so Stable-DiffCoder needs
    `AutoModelForMaskedLM`.
    """
    for model in CLASSES.values():
        kind, autos = model.config_class, (AutoModel, AutoModelForMaskedLM, AutoModelForCausalLM)
        if issubclass(kind, DiffusionConfig):
            if kind is not configs.LLaDAMoEConfig:  # LLaDA's config class finds it
                AutoConfig.register(kind.model_type, kind, exist_ok=True)
        else:
            autos = (AutoModelForMaskedLM,)
        for auto in autos:
            auto.register(kind, model, exist_ok=True)


def _class_of(files: Checkpoint) -> type[DiffusionModel]:
    """Return the class of a checkpoint, found as `wavefront.load_model` finds the family."""
    family = find_family(files.config)
    listed = files.config.get("architectures") or ()
    names = [name for name in family.ARCHITECTURES if name in listed]
    if not names:  # the family was found by its model type
        said = str(files.config["model_type"]).lower()
        names = [
            name
            for name in family.ARCHITECTURES
            if CLASSES[name].config_class.model_type.lower() == said
        ]
    return CLASSES[(names or family.ARCHITECTURES)[0]]


def _random(config: PretrainedConfig) -> Transformer:
    family, checked = architecture(config)
    net: Transformer = family.Net(checked)
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
