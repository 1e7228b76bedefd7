"""Prune a vocabulary to the tokens that a model uses, so that a small model stays small.

Every text stays encodable: the bytes, the control tokens, and the merges that lead to a kept token
are kept. A text whose tokens are all kept is encoded as before.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from tokenizers import Tokenizer, pre_tokenizers
from torch import Tensor

from wavefront.core.errors import OptionError
from wavefront.train.original import Original, with_vocabulary

CHUNK = 16  # rows per forward pass when counting


class PrunedOriginal(NamedTuple):
    """A pruned original, and the share of its old predictions that it can still make."""

    original: Original
    coverage: float


@torch.no_grad()
def expected_usage(
    original: Original, rows: Sequence[Sequence[int]], device: torch.device
) -> Tensor:
    """Return (V,) float64: how often the original would write each token in these contexts.

    This sums the probabilities of every next token, not only of the tokens that were written, so
    few rows are enough for rare tokens.
    """
    model, end = copy.deepcopy(original.model).to(device), original.end_id
    never = torch.tensor(original.never_written, device=model.device)
    total = torch.zeros(model.vocab_size, dtype=torch.float64, device=model.device)
    for first in range(0, len(rows), CHUNK):
        chunk = rows[first : first + CHUNK]
        width = max(len(row) for row in chunk)
        tokens = torch.full((len(chunk), width), end)
        for index, row in enumerate(chunk):
            tokens[index, : len(row)] = torch.tensor(row)
        real = torch.tensor([len(row) for row in chunk])[:, None] > torch.arange(width)
        hidden = model.encode(tokens.to(model.device))[real.to(model.device)]
        logits = model.head(hidden).float().index_fill_(1, never, float("-inf"))
        total += logits.softmax(1).sum(0).double()
    return total.cpu()


def prune(original: Original, usage: Tensor, size: int) -> PrunedOriginal:
    """Keep the most used tokens, at most `size` with the mask token.

    Args:
        original: The original with its whole vocabulary.
        usage: (V,), from `expected_usage`.
        size: The rows of the new embedding.

    Raises:
        OptionError: The size has no room for the bytes and the control tokens.
    """
    state = json.loads(original.tokenizer.to_str())
    if state["model"]["type"] != "BPE":
        raise OptionError("Only byte-pair tokenizers can be pruned; leave out vocabulary.")
    vocabulary: dict[str, int] = state["model"]["vocab"]
    ranks = {tuple(pair): rank for rank, pair in enumerate(state["model"]["merges"])}
    texts = {number: text for text, number in vocabulary.items()}
    mask = original.model.mask_id
    keep = {token["id"] for token in state["added_tokens"]} - {mask}
    keep |= {vocabulary[text] for text in _alphabet(vocabulary) if text in vocabulary}
    if len(keep) >= size:
        raise OptionError(
            f"vocabulary must be above {len(keep)}, the bytes and control tokens, not {size}.",
            option="vocabulary",
            value=size,
        )
    for number in usage.argsort(descending=True, stable=True).tolist():
        if number not in texts or number in keep:
            continue
        needed = {vocabulary[text] for text in merge_path(texts[number], ranks)} | {number}
        if len(keep | needed) > size - 1:
            break
        keep |= needed
    order = sorted(keep)
    tokenizer = _smaller_tokenizer(state, {old: new for new, old in enumerate(order)}, mask)
    covered = float(usage[order].sum() / usage.sum())
    return PrunedOriginal(with_vocabulary(original, order, tokenizer), covered)


def merge_path(text: str, ranks: dict[tuple[str, ...], int]) -> list[str]:
    """Return every piece that byte-pair merging makes on its way to `text`, characters included."""
    parts = list(text)
    made = list(parts)
    while len(parts) > 1:
        pairs = [(ranks.get(pair, -1), at) for at, pair in enumerate(pairwise(parts))]
        known = [pair for pair in pairs if pair[0] >= 0]
        if not known:  # a token that merging cannot make, such as a control token
            return []
        _, at = min(known)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
        made.append(parts[at])
    return made


def _alphabet(vocabulary: Mapping[str, int]) -> Iterable[str]:
    """Return the spellings of the bytes in sentencepiece or in byte-level tokenizers."""
    spelled = [f"<0x{byte:02X}>" for byte in range(256)]
    return spelled if spelled[0] in vocabulary else pre_tokenizers.ByteLevel.alphabet()


def _smaller_tokenizer(state: dict[str, Any], place: dict[int, int], mask: int) -> Tokenizer:
    """Return the tokenizer with the mask and the ids in `place`, which maps old ids to new ones."""
    place = place | {mask: len(place)}
    model = state["model"]
    vocabulary = {text: place[old] for text, old in model["vocab"].items() if old in place}
    model["vocab"] = vocabulary
    model["merges"] = [
        [left, right]
        for left, right in model["merges"]
        if left in vocabulary and right in vocabulary and left + right in vocabulary
    ]
    state["added_tokens"] = [
        token | {"id": place[token["id"]]}
        for token in state["added_tokens"]
        if token["id"] in place
    ]
    return Tokenizer.from_str(json.dumps(state))
