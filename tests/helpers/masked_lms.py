"""Tiny masked LMs of transformers and a tokenizer, for tests."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors

WORDS = (
    "[PAD] [CLS] [SEP] [MASK] [UNK] " + "a b c d e f g h i j k l the cat dog sat on mat"
).split()
SIZES = {
    "vocab_size": len(WORDS),
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
ENDS = {"bos_token_id": 1, "eos_token_id": 2}
DISTIL = {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64, "max_position_embeddings": 64}
# Family -> the arguments of its config.
FAMILIES: dict[str, dict[str, Any]] = {
    "Bert": SIZES,
    "Roberta": SIZES | ENDS,
    "ModernBert": SIZES | ENDS | {"cls_token_id": 1, "sep_token_id": 2, "local_attention": 16},
    "DistilBert": {"vocab_size": len(WORDS), "pad_token_id": 0, **DISTIL},
    "Albert": SIZES | {"embedding_size": 16},
    "Electra": SIZES | {"embedding_size": 32},
    "MPNet": SIZES,
    "DebertaV2": SIZES | {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
    "Esm": SIZES | {"mask_token_id": 3, "position_embedding_type": "rotary"},
}


def make(family: str, *, seed: int = 0, suffix: str = "ForMaskedLM", **more: Any) -> Any:
    """Build a random model with weights large enough that confidences differ."""
    config = getattr(transformers, f"{family}Config")(**FAMILIES.get(family, SIZES) | more)
    model = getattr(transformers, f"{family}{suffix}")(config).eval()
    generator = torch.Generator().manual_seed(
        seed
    )  # versions of transformers initialise differently
    for _, parameter in sorted(model.named_parameters()):
        if parameter.dim() > 1:
            parameter.data.copy_(torch.randn(parameter.shape, generator=generator) * 0.15)
    return model


def tokenizer() -> Any:
    """Build a word tokenizer that adds [CLS] and [SEP] as BERT does."""
    backend = Tokenizer(
        models.WordLevel({word: id for id, word in enumerate(WORDS)}, unk_token="[UNK]")
    )
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        unk_token="[UNK]",
        model_max_length=60,
        padding_side="left",
    )
