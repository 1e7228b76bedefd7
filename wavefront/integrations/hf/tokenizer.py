"""Convert between transformers and wavefront tokenizers."""

from __future__ import annotations

import os
from typing import Any

import torch
from tokenizers import Tokenizer as Backend
from tokenizers.processors import TemplateProcessing
from transformers import BatchEncoding, PreTrainedTokenizerFast

from wavefront.core.errors import OptionError
from wavefront.storage.hub import CONFIG, locate, read_json
from wavefront.text.tokenizer import Tokenizer, infill_ids

ROLES = ("bos_token", "eos_token", "pad_token", "mask_token", "unk_token", "cls_token", "sep_token")


def read_tokenizer(tokenizer: Any) -> Tokenizer:
    """Return a wavefront tokenizer with the same vocabulary, special tokens and chat template.

    BERT's `[CLS]` acts as the begin-of-sequence token.
    """
    if not hasattr(tokenizer, "backend_tokenizer"):
        raise OptionError(
            f"{type(tokenizer).__name__} is a slow tokenizer: load the fast one with "
            "AutoTokenizer.from_pretrained(..., use_fast=True)."
        )
    named = {role: str(getattr(tokenizer, role)) for role in ROLES if getattr(tokenizer, role)}
    opening, _ = frame(tokenizer)
    settings: dict[str, Any] = {
        **named,
        "bos_token": named.get("bos_token") or named.get("cls_token"),
        "eos_token": named.get("eos_token") or named.get("sep_token"),
        "add_bos_token": opening is not None,
    }
    template = tokenizer.chat_template
    return Tokenizer(
        Backend.from_str(tokenizer.backend_tokenizer.to_str()),
        {name: value for name, value in settings.items() if value is not None},
        {"mask_token_id": tokenizer.mask_token_id, "eos_token_id": end_of(tokenizer)},
        template=template if isinstance(template, str) else None,
    )


def load_tokenizer(
    path: str | os.PathLike[str], *, revision: str | None = None, offline: bool = False
) -> Any:
    """Load a checkpoint's tokenizer for transformers without remote code, which Dream's needs.

    The tokenizer pads on the left, and its mask token is the one in the checkpoint's config.
    """
    directory = locate(path, revision=revision, offline=offline, weights=False)
    ours = Tokenizer.load(directory)
    backend = Backend.from_str(ours._backend.to_str())
    named = {role: text for role, text in ours.special_tokens.items() if role in ROLES}
    mask = read_json(directory / CONFIG, required=False).get("mask_token_id")
    if isinstance(mask, int) and (token := backend.id_to_token(mask)):
        named["mask_token"] = token
    loaded = PreTrainedTokenizerFast(tokenizer_object=backend, padding_side="left", **named)
    if ours.opening and frame(loaded)[0] is None:  # transformers ignores `add_bos_token` of a file
        first = named["bos_token"]
        loaded.backend_tokenizer.post_processor = TemplateProcessing(
            single=f"{first} $A",
            pair=f"{first} $A $B",
            special_tokens=[(first, ours.opening[0])],
        )
    loaded.chat_template = ours.template
    loaded.model_input_names = ["input_ids", "attention_mask"]
    return loaded


def encode_holes(tokenizer: Any, text: str) -> BatchEncoding:
    """Encode a text with holes for `model.generate(**encoded, infill=True)`.

    The ids are those of `LM.infill`: the space before a hole is part of the hole.

    Args:
        tokenizer: A fast transformers tokenizer with a mask token.
        text: The text. Write a hole of 8 tokens as `<mask:8>`.

    Returns:
        `input_ids` and `attention_mask`, with one row.

    Raises:
        OptionError: The tokenizer is slow or has no mask token.
        PromptError: The text has no hole.
    """
    ours = read_tokenizer(tokenizer)
    if tokenizer.mask_token_id is None:
        raise OptionError("The tokenizer has no mask token: set tokenizer.mask_token.")
    _, closing = frame(tokenizer)
    ids = infill_ids(ours, text, mask_id=tokenizer.mask_token_id).ids
    rows = torch.tensor([ids if closing is None else [*ids, closing]])
    return BatchEncoding({"input_ids": rows, "attention_mask": torch.ones_like(rows)})


def end_of(tokenizer: Any) -> int | None:
    """Return the id that ends a text: end-of-sequence, or BERT's separator."""
    return tokenizer.sep_token_id if tokenizer.eos_token_id is None else tokenizer.eos_token_id


def frame(tokenizer: Any) -> tuple[int | None, int | None]:
    """Return the ids that the tokenizer adds before and after a text; None where it adds none."""
    ids = tokenizer("").input_ids
    if not ids:
        return None, None
    opens = ids[0] in (tokenizer.bos_token_id, tokenizer.cls_token_id)
    closes = ids[-1] == end_of(tokenizer) and len(ids) > opens
    return ids[0] if opens else None, ids[-1] if closes else None
