"""Masked: a masked LM of transformers (BERT and its kin) as a model of ours.

The family's base gives hidden states; its head is the whole model with the base replaced by one
that hands its input through, so that no head needs to be known by name.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput

from wavefront.errors import OptionError
from wavefront.hf.tokenizer import end_of, frame
from wavefront.model import KV
from wavefront.models.transformer import attend_rows, token_rows


class Masked:
    """A `wavefront.Model`: decodes with every strategy, without caches.

    The ids it needs come from the tokenizer, or by name. With `closing`, the model always sees the
    token with which its tokenizer ends a text, after the last place of the canvas.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any = None,
        *,
        mask_id: int | None = None,
        stop_ids: Sequence[int] | None = None,
        closing: bool = True,
    ) -> None:
        self.model = model.eval()  # dropout would make every forward another model
        self.family = str(model.config.model_type)
        self.mask_id = _mask_id(model, tokenizer) if mask_id is None else mask_id
        end = None if tokenizer is None else end_of(tokenizer)
        ends = () if end is None else (end,)
        self.stop_ids = ends if stop_ids is None else tuple(stop_ids)
        self.closing = frame(tokenizer)[1] if closing and tokenizer is not None else None
        self.tokenizer = tokenizer
        self._base, self._head = split(model)
        self.vocab_size = self._check()
        pad = getattr(model.config, "pad_token_id", None)
        self.pad_id = next(id for id in (pad, *self.stop_ids, 0) if id is not None)
        self.max_length = longest(model, tokenizer) - (self.closing is not None)

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def dtype(self) -> torch.dtype:
        return self.model.dtype

    def hidden(
        self,
        tokens: Tensor,
        attend: Tensor | None,
        at: Tensor,
        *,
        window: Tensor | None = None,
        kv: KV | None = None,
    ) -> Tensor:
        """(B, Q, D): see `wavefront.model.Model`."""
        if window is not None or kv is not None:
            self._no_cache()
        length = tokens.shape[1]
        first = torch.zeros_like(tokens[:, :1])
        if attend is not None:
            # Real places first, padding behind: every family counts its positions from the left,
            # each in its own way, and so a row means the same alone and in a batch.
            first = attend.long().argmax(1, keepdim=True)
            turn = (torch.arange(length, device=tokens.device) + first) % length
            tokens, attend = tokens.gather(1, turn), attend.gather(1, turn)
            attend = attend | (turn == first)  # a row of no places at all has one to look at
        if self.closing is not None:
            tokens, attend = self._closed(tokens, attend)
        mask = None if attend is None else attend.long()
        states = self._base(input_ids=tokens, attention_mask=mask)[0]
        where = (at - first) % length
        return states.gather(1, where[..., None].expand(-1, -1, states.shape[-1]))

    def _closed(self, tokens: Tensor, attend: Tensor | None) -> tuple[Tensor, Tensor]:
        """The board with one more place, and the closing token after the last place attended."""
        if attend is None:
            attend = torch.ones_like(tokens, dtype=torch.bool)
        here = torch.arange(tokens.shape[1], device=tokens.device)
        last = torch.where(attend, here, 0).amax(1, keepdim=True)
        wanted = tokens.gather(1, last) != self.closing  # a text that has its end needs no second
        board = nn.functional.pad(tokens, (0, 1), value=self.pad_id)
        seen = nn.functional.pad(attend, (0, 1), value=False)
        there = torch.where(wanted, self.closing or 0, board.gather(1, last + 1))
        return board.scatter(1, last + 1, there), seen.scatter(1, last + 1, wanted)

    def head(self, hidden: Tensor) -> Tensor:
        """(..., V) in the model's dtype, as trained."""
        rows = hidden.reshape(1, -1, hidden.shape[-1])
        return self._head(inputs_embeds=rows).logits.reshape(*hidden.shape[:-1], -1)

    @torch.no_grad()
    def raw_logits(
        self,
        ids: Tensor | Sequence[Sequence[int]],
        attend: Tensor | Sequence[Sequence[int]] | None = None,
    ) -> Tensor:
        """(B, L, V): the model's own output for these rows, with nothing moved or added."""
        tokens = token_rows(ids, self.vocab_size).to(self.device)
        mask = None if attend is None else attend_rows(attend, tokens.shape).to(self.device).long()
        return self.model(input_ids=tokens, attention_mask=mask).logits

    def new_kv(self, batch: int, length: int) -> KV:
        self._no_cache()

    def _no_cache(self) -> NoReturn:
        raise OptionError(
            f"{type(self.model).__name__} of transformers keeps no keys and values that a step "
            "could reuse: leave out cache."
        )

    @torch.no_grad()
    def _check(self) -> int:
        """The size of the vocabulary; refuses a model that head and base do not add up to."""
        tokens = torch.full((1, 3), self.mask_id, device=self.device)
        mask = torch.ones_like(tokens)
        whole = self.model(input_ids=tokens, attention_mask=mask).logits
        split = self.head(self._base(input_ids=tokens, attention_mask=mask)[0])
        if whole.shape != split.shape or not torch.allclose(whole, split, atol=1e-3, rtol=1e-2):
            raise OptionError(
                f"{type(self.model).__name__} does more than its base and then its head, so it "
                "cannot be split in two: it is no masked LM that decodes here."
            )
        if not 0 <= self.mask_id < whole.shape[-1]:
            raise OptionError(
                f"mask_id must be between 0 and {whole.shape[-1] - 1}, not {self.mask_id}."
            )
        return whole.shape[-1]


class _Through(nn.Module):
    """Stands where the base stood: what comes in as embeddings goes out as hidden states."""

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self.__dict__["base"] = base  # known for its parts, and no part of the head

    def __getattr__(self, name: str) -> Any:
        # Some heads ask the base for its embedding matrix.
        return getattr(self.__dict__["base"], name)

    def forward(self, *_: Any, inputs_embeds: Tensor, **__: Any) -> BaseModelOutput:
        return BaseModelOutput(last_hidden_state=inputs_embeds)  # pyright: ignore[reportArgumentType]


def split(model: Any) -> tuple[nn.Module, nn.Module]:
    """(base, head): the head is the model itself around a base that does nothing; weights shared."""
    prefix = getattr(model, "base_model_prefix", "")
    base = getattr(model, "_modules", {}).get(prefix)
    if base is None or model.get_output_embeddings() is None:
        raise OptionError(
            f"{type(model).__name__} has no language model head over a base: load it with "
            "AutoModelForMaskedLM."
        )
    head = copy.copy(model)
    head.__dict__.pop("forward", None)  # a hook's, which would call the whole model
    head._modules = {**model._modules, prefix: _Through(base)}
    return base, head


def longest(model: Any, tokenizer: Any = None) -> int:
    """How many places the model takes."""
    sizes = [getattr(model.config, "max_position_embeddings", None) or 0]
    for name, part in model.named_modules():
        # RoBERTa counts its positions from behind its padding id.
        if name.endswith("position_embeddings") and isinstance(part, nn.Embedding):
            sizes = [part.num_embeddings - (-1 if (p := part.padding_idx) is None else p) - 1]
    sizes.append(getattr(tokenizer, "model_max_length", 0))
    return min((size for size in sizes if size > 0), default=1 << 20)


def _mask_id(model: Any, tokenizer: Any) -> int:
    for holder in (tokenizer, model.config):
        found = getattr(holder, "mask_token_id", None)
        if found is not None:
            return found
    raise OptionError(
        f"{type(model).__name__} does not say which token is the mask: give its tokenizer, or "
        "mask_id."
    )


def model_of(model: Any, tokenizer: Any = None, **settings: Any) -> Any:
    """Our model inside or around one of transformers."""
    found = getattr(model, "wavefront", None)
    if found is not None and not settings:
        return found
    return Masked(model, tokenizer, **settings)
