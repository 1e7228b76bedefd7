"""Configs of the diffusion families for transformers."""

from __future__ import annotations

from typing import Any, cast

from transformers import PretrainedConfig

from wavefront.models.families import llada_moe
from wavefront.models.loader import find_family

# Keywords of `from_pretrained` that choose how a checkpoint is read, as in `wavefront.load`.
LOAD_OPTIONS = ("mask_id", "attention", "block_size")
# What transformers adds to every config. The families read `tie_word_embeddings` themselves.
GENERIC = {k: v for k, v in PretrainedConfig().to_dict().items() if k != "tie_word_embeddings"}


class DiffusionConfig(PretrainedConfig):
    """A published config.json. `wavefront.models` interprets and checks it."""

    # Defined in every class: newer versions of transformers would generate one otherwise.
    def __init__(self, **values: Any) -> None:
        super().__init__(**_without_null_rope_scaling(values))

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **given: Any) -> Any:
        """Read a config, and leave the options of loading to the model's class."""
        # SDAR's files ask for an attention kernel, but these models have their own.
        config_dict = {k: v for k, v in config_dict.items() if k != "attn_implementation"}
        if not given.get("return_unused_kwargs"):
            return super().from_dict(config_dict, **given)
        # transformers would store an option that has the name of a config key, and not pass it on.
        options = {name: given.pop(name) for name in LOAD_OPTIONS if name in given}
        config, unused = cast(tuple[Any, dict[str, Any]], super().from_dict(config_dict, **given))
        return config, unused | options


class LLaDAConfig(DiffusionConfig):
    """Config of LLaDA 8B, LLaDA 1.5 and models of their architecture."""

    model_type = "llada"
    # Field names that generic transformers code uses.
    attribute_map = {  # noqa: RUF012
        "hidden_size": "d_model",
        "num_hidden_layers": "n_layers",
        "num_attention_heads": "n_heads",
        "num_key_value_heads": "n_kv_heads",
        "intermediate_size": "mlp_hidden_size",
        "max_position_embeddings": "max_sequence_length",
    }

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **given: Any) -> Any:
        """Read a config of LLaDA, or of LLaDA-MoE, which has the same `model_type`."""
        if cls is LLaDAConfig and set(config_dict.get("architectures") or ()) & MOE:
            return LLaDAMoEConfig.from_dict(config_dict, **given)
        return super().from_dict(config_dict, **given)


def _config_class(name: str, model_type: str) -> Any:
    """Return a config class without names of its own."""
    body = {
        "__doc__": f"Config of models with the `model_type` {model_type}.",
        "__init__": DiffusionConfig.__init__,
        "__module__": __name__,
        "model_type": model_type,
    }
    return type(name, (DiffusionConfig,), body)


MOE = {*llada_moe.ARCHITECTURES}
LLaDAMoEConfig = _config_class("LLaDAMoEConfig", "llada")
DreamConfig = _config_class("DreamConfig", "Dream")
ILLaDAConfig = _config_class("ILLaDAConfig", "illada")
SDARConfig = _config_class("SDARConfig", "sdar")
SDARMoEConfig = _config_class("SDARMoEConfig", "sdar_moe")
LLaDA2Config = _config_class("LLaDA2Config", "llada2_moe")
FastDLLMConfig = _config_class("FastDLLMConfig", "Fast_dLLM_Qwen")
A2DQwen3Config = _config_class("A2DQwen3Config", "a2d-qwen3")
A2DQwen2Config = _config_class("A2DQwen2Config", "a2d-qwen2")
A2DLlamaConfig = _config_class("A2DLlamaConfig", "a2d-llama")


def architecture(config: PretrainedConfig) -> tuple[Any, Any]:
    """Return the module of a config's family, and the checked config with wavefront's names."""
    values = {k: v for k, v in config.to_dict().items() if k not in GENERIC or v != GENERIC[k]}
    family = find_family(values)
    return family, family.Config.from_json(values)


def _without_null_rope_scaling(values: dict[str, Any]) -> dict[str, Any]:
    """Drop a null `rope_scaling`, because newer versions of transformers warn about it."""
    return {k: v for k, v in values.items() if k != "rope_scaling" or v is not None}
