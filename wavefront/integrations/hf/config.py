"""Configs of LLaDA and Dream for transformers. Every key of config.json is kept."""

from __future__ import annotations

from typing import Any

from transformers import PretrainedConfig

from wavefront.models.loader import family_module


class DiffusionConfig(PretrainedConfig):
    """A published config.json. `wavefront.models` interprets and checks it."""

    def architecture(self) -> Any:
        """Return the checked config with wavefront's own field names."""
        return family_module(self.model_type).Config.from_json(self.to_dict())


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

    # Defined in every class: newer versions of transformers would generate one otherwise.
    def __init__(self, **values: Any) -> None:
        super().__init__(**_without_null_rope_scaling(values))


class DreamConfig(DiffusionConfig):
    """Config of Dream 7B and models of its architecture."""

    model_type = "Dream"

    def __init__(self, **values: Any) -> None:
        super().__init__(**_without_null_rope_scaling(values))


def _without_null_rope_scaling(values: dict[str, Any]) -> dict[str, Any]:
    """Drop a null `rope_scaling`, because newer versions of transformers warn about it."""
    return {k: v for k, v in values.items() if k != "rope_scaling" or v is not None}
