"""The configs of LLaDA and Dream as transformers knows configs: every key of the file is kept."""

from __future__ import annotations

from typing import Any

from transformers import PretrainedConfig

from wavefront.models.loader import family_module


class DiffusionConfig(PretrainedConfig):
    """A published config.json. What it means is read and checked by `wavefront.models`."""

    def architecture(self) -> Any:
        """The same, checked key by key, in our vocabulary."""
        return family_module(self.model_type).Config.from_json(self.to_dict())


class LLaDAConfig(DiffusionConfig):
    """LLaDA 8B, 1.5, and whatever has their shape."""

    model_type = "llada"
    # The names that code made for any model of transformers asks for.
    attribute_map = {  # noqa: RUF012
        "hidden_size": "d_model",
        "num_hidden_layers": "n_layers",
        "num_attention_heads": "n_heads",
        "num_key_value_heads": "n_kv_heads",
        "intermediate_size": "mlp_hidden_size",
        "max_position_embeddings": "max_sequence_length",
    }

    # In every class, because newer versions of transformers write one where there is none.
    def __init__(self, **values: Any) -> None:
        super().__init__(**_said(values))


class DreamConfig(DiffusionConfig):
    """Dream 7B, and whatever has its shape."""

    model_type = "Dream"

    def __init__(self, **values: Any) -> None:
        super().__init__(**_said(values))


def _said(values: dict[str, Any]) -> dict[str, Any]:
    """The keys that say something: of a null `rope_scaling` newer versions warn."""
    return {k: v for k, v in values.items() if k != "rope_scaling" or v is not None}
