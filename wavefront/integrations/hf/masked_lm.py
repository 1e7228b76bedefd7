"""MaskedLM: a transformers masked LM, such as BERT, as a wavefront model.

The base of the model computes hidden states. The head is the whole model with its base replaced by
an identity, so the code does not depend on the names of heads.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput

from wavefront.core.errors import OptionError
from wavefront.integrations.hf.tokenizer import end_of, frame
from wavefront.models.loader import family_modules
from wavefront.models.protocol import KV
from wavefront.models.transformer import attend_rows, token_rows


class MaskedLM:
    """A `wavefront.Model` that decodes with every strategy, without caches.

    The special ids come from the tokenizer, or from the arguments. With `closing`, the model always
    sees the tokenizer's closing token after the last position of the canvas.
    """

    windows = False  # it computes whole canvases only
    masked_copies = False
    compiled = False
    block_size = None  # attention is bidirectional
    padded_blocks = False
    whole_blocks = True
    shifted = False

    def __init__(
        self,
        model: Any,
        tokenizer: Any = None,
        *,
        mask_id: int | None = None,
        stop_ids: Sequence[int] | None = None,
        closing: bool = True,
    ) -> None:
        _check_family(model)
        self.model = model.eval()  # without dropout, forward passes are deterministic
        self.family = str(model.config.model_type)
        self.mask_id = _mask_id(model, tokenizer) if mask_id is None else mask_id
        end = None if tokenizer is None else end_of(tokenizer)
        ends = () if end is None else (end,)
        self.stop_ids = ends if stop_ids is None else tuple(stop_ids)
        self.closing = frame(tokenizer)[1] if closing and tokenizer is not None else None
        self.tokenizer = tokenizer
        self._base, self._head = split(model)
        self.vocab_size = int(model.get_output_embeddings().weight.shape[0])
        pad = getattr(model.config, "pad_token_id", None)
        self.pad_id = next(id for id in (pad, *self.stop_ids, 0) if id is not None)
        self.max_length = longest(model, tokenizer) - (self.closing is not None)
        self._check()

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
        copies: Tensor | None = None,
    ) -> Tensor:
        """Return (B, Q, D) hidden states; see `wavefront.models.protocol.Model`."""
        if window is not None or kv is not None:
            self._no_cache()
        assert copies is None  # `masked_copies` is false
        return self._states(tokens, attend, at, closing=self.closing is not None)

    def _states(
        self, tokens: Tensor, attend: Tensor | None, at: Tensor, *, closing: bool = False
    ) -> Tensor:
        length = tokens.shape[1]
        first = torch.zeros_like(tokens[:, :1])
        if attend is not None:
            # Move padding to the right. Every family counts positions from the left in its own
            # way, so a row gives the same result alone and in a batch.
            first = attend.long().argmax(1, keepdim=True)
            order = (torch.arange(length, device=tokens.device) + first) % length
            tokens, attend = tokens.gather(1, order), attend.gather(1, order)
        if closing:
            tokens, attend = self._with_closing(tokens, attend)
        mask = None if attend is None else attend.long()
        states = self._base(input_ids=tokens, attention_mask=mask)[0]
        where = (at - first) % length
        return states.gather(1, where[..., None].expand(-1, -1, states.shape[-1]))

    def _with_closing(self, tokens: Tensor, attend: Tensor | None) -> tuple[Tensor, Tensor]:
        """Add a position, and put the closing token after the last attended position."""
        if attend is None:
            attend = torch.ones_like(tokens, dtype=torch.bool)
        index = torch.arange(tokens.shape[1], device=tokens.device)
        last = torch.where(attend, index, 0).amax(1, keepdim=True)
        missing = tokens.gather(1, last) != self.closing  # the text may already end with one
        longer = nn.functional.pad(tokens, (0, 1), value=self.pad_id)
        seen = nn.functional.pad(attend, (0, 1), value=False)
        closing = torch.where(missing, self.closing or 0, longer.gather(1, last + 1))
        return longer.scatter(1, last + 1, closing), seen.scatter(1, last + 1, missing)

    def head(self, hidden: Tensor) -> Tensor:
        """Return (..., V) logits in the model's dtype."""
        rows = hidden.reshape(1, -1, hidden.shape[-1])
        return self._head(inputs_embeds=rows).logits.reshape(*hidden.shape[:-1], -1)

    @torch.no_grad()
    def raw_logits(
        self,
        ids: Tensor | Sequence[Sequence[int]],
        attend: Tensor | Sequence[Sequence[int]] | None = None,
    ) -> Tensor:
        """Return the model's own (B, L, V) output for these rows, without a closing token."""
        tokens = token_rows(ids, self.vocab_size).to(self.device)
        mask = None if attend is None else attend_rows(attend, tokens.shape).to(self.device).long()
        return self.model(input_ids=tokens, attention_mask=mask).logits

    def new_kv(self, batch: int, length: int) -> KV:
        self._no_cache()

    def _no_cache(self) -> NoReturn:
        raise OptionError(
            f"{type(self.model).__name__} of transformers has no keys and values that a step could "
            "reuse: leave out cache."
        )

    @torch.no_grad()
    def _check(self) -> None:
        """Check that the model follows the `Model` protocol."""
        name, size = type(self.model).__name__, self.vocab_size
        if not 0 <= self.mask_id < size:
            raise OptionError(f"mask_id must be between 0 and {size - 1}, not {self.mask_id}.")
        if self.mask_id in self.stop_ids:
            raise OptionError(
                f"mask_id = {self.mask_id} is also a stop id; a mask token is never proposed.",
                option="mask_id",
                value=self.mask_id,
            )
        tokens = torch.tensor([[self.mask_id, size // 2, self.mask_id]], device=self.device)
        everywhere = torch.arange(3, device=self.device)[None]
        padded = nn.functional.pad(tokens, (2, 0), value=self.pad_id)
        real = nn.functional.pad(tokens >= 0, (2, 0), value=False)
        try:
            whole = self.raw_logits(tokens)
            states = self._states(tokens, None, everywhere)
            parted = self.head(states)
            beside = self.head(self._states(padded, real, everywhere + 2))
            before = self._states(tokens[:, [0, 1, 1]], None, everywhere[:, :1])
        except Exception as error:  # an unknown forward may fail in any way
            raise OptionError(f"{name} cannot be split into a base and a head: {error}.") from error
        if not _alike(whole, parted):
            raise OptionError(
                f"{name} does more than run its base and then its head: it cannot be split, and is "
                "not supported."
            )
        if torch.equal(states[:, :1], before):
            raise OptionError(
                f"{name} ignores the text after a position, so it is not bidirectional: load a "
                "masked LM with AutoModelForMaskedLM."
            )
        if not _alike(whole, beside):
            raise OptionError(
                f"The padding of a row changes the output of {name}, so the rows of a batch would "
                "affect each other: use a model that follows its attention mask."
            )


def _alike(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors are equal up to rounding errors."""
    atol, rtol = (1e-4, 1e-3) if a.dtype in (torch.float32, torch.float64) else (0.1, 0.05)
    return a.shape == b.shape and torch.allclose(a, b, atol=atol, rtol=rtol)


class _HiddenStates(BaseModelOutput):
    """Hidden states, and None for every other field of a family's output."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


class _IdentityBase(nn.Module):
    """Replaces the base: returns the input embeddings as hidden states."""

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self.__dict__["base"] = base  # not a submodule
        self.__dict__["signature"] = inspect.signature(base.forward)

    def __getattr__(self, name: str) -> Any:
        # Some heads ask the base for its embedding matrix.
        return getattr(self.__dict__["base"], name)

    def forward(self, *given: Any, **named: Any) -> BaseModelOutput:
        bound = self.signature.bind(*given, **named).arguments
        return _HiddenStates(last_hidden_state=bound["inputs_embeds"])


def split(model: Any) -> tuple[nn.Module, nn.Module]:
    """Return the base, and the model around an identity as its head; weights are shared."""
    prefix = getattr(model, "base_model_prefix", "")
    base = getattr(model, "_modules", {}).get(prefix)
    if base is None or model.get_output_embeddings() is None:
        raise OptionError(
            f"{type(model).__name__} has no language model head: load it with AutoModelForMaskedLM."
        )
    head = copy.copy(model)
    head.__dict__.pop("forward", None)  # a hook would call the whole model
    head._modules = {**model._modules, prefix: _IdentityBase(base)}
    return base, head


def longest(model: Any, tokenizer: Any = None) -> int:
    """Return the number of positions that the model accepts."""
    sizes = [getattr(model.config, "max_position_embeddings", None) or 0]
    for name, part in model.named_modules():
        # RoBERTa counts its positions from its padding id + 1.
        if name.endswith("position_embeddings") and isinstance(part, nn.Embedding):
            sizes = [part.num_embeddings - (-1 if (p := part.padding_idx) is None else p) - 1]
    sizes.append(getattr(tokenizer, "model_max_length", 0))
    return min((size for size in sizes if size > 0), default=1 << 20)


def _check_family(model: Any) -> None:
    """Raise for a model of a family that must not be decoded as a bidirectional masked LM."""
    named = {type(model).__name__, *(getattr(model.config, "architectures", None) or ())}
    for family, module in family_modules().items():
        if not named & {*module.ARCHITECTURES}:
            continue
        if module.TOY.get("block_size") is not None:
            what = "attends by blocks"
        elif module.Net.shifted:
            what = "predicts the next position"
        else:
            continue
        raise OptionError(
            f"{type(model).__name__} is of the family {family}, which {what}, so it is no plain "
            "masked LM: load the checkpoint with wavefront.load(path)."
        )


def _mask_id(model: Any, tokenizer: Any) -> int:
    for holder in (tokenizer, model.config):
        found = getattr(holder, "mask_token_id", None)
        if found is not None:
            return found
    raise OptionError(
        f"{type(model).__name__} does not name its mask token: give its tokenizer or mask_id."
    )


def model_of(model: Any, tokenizer: Any = None, **settings: Any) -> Any:
    """Return the wavefront model inside a transformers model, or wrap it."""
    found = getattr(model, "wavefront", None)
    if found is not None and not settings:
        return found
    return MaskedLM(model, tokenizer, **settings)
