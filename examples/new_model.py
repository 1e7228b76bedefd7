"""Write your own model outside the package: a model that counts pairs of letters.

The model knows which letter follows which in a short text. A masked position gets the letters that
fit its neighbours, on both sides. It has no layers, so this file shows only what the engine needs:

    wavefront generate -m examples.new_model:pairs "the cat" -n 24 --raw
    wavefront eval run -m examples.new_model:pairs --task gsm -i 4 -n 8 --out runs/pairs
    wavefront serve -m examples.new_model:pairs
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

import wavefront
from wavefront.models.protocol import KV
from wavefront.text.byte_tokenizer import byte_tokenizer
from wavefront.text.tokenizer import Tokenizer

TEXT = "the cat sat on the mat and the hat that the rat had sat on. the end. "


class PairModel:
    """Scores a letter by the letter before it and the letter after it."""

    family = "pairs"  # the name in traces
    max_length = 512  # positions of the longest canvas
    block_size: int | None = None  # every position sees every other one
    padded_blocks = whole_blocks = False  # only for models with blocks
    shifted = False  # the output at a position is about that position
    masked_copies = False  # so the strategy wino is refused
    windows = False  # it always computes the whole canvas, so a cache is refused
    compiled = False

    def __init__(self, tokenizer: Tokenizer, device: str = "cpu") -> None:
        self.vocab_size = tokenizer.vocab_size
        self.stop_ids = tokenizer.stop_ids
        self.pad_id = self.stop_ids[0]
        self.mask_id = tokenizer.vocab_size - 1  # the last token of the byte tokenizer
        ids = torch.tensor(tokenizer.encode(TEXT))
        counts = torch.full((self.vocab_size, self.vocab_size), 0.01, device=device)
        for before, after in pairwise(ids.tolist()):
            counts[before, after] += 1.0
        counts[:, [self.mask_id, *self.stop_ids]] = 1e-4
        self.logp = (counts / counts.sum(-1, keepdim=True)).log()  # [before, after]

    @property
    def device(self) -> torch.device:
        return self.logp.device

    @property
    def dtype(self) -> torch.dtype:
        return self.logp.dtype

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
        """Return one vector per position of `at`. Here it already holds the logits."""
        known = tokens != self.mask_id
        if attend is not None:
            known &= attend  # padding says nothing
        tokens = tokens.masked_fill(~known, self.mask_id)
        flat = torch.zeros_like(self.logp[0])
        left = tokens.roll(1, 1)
        right = tokens.roll(-1, 1)
        left[:, 0], right[:, -1] = self.mask_id, self.mask_id
        before = torch.where((left == self.mask_id)[..., None], flat, self.logp[left])
        after = torch.where((right == self.mask_id)[..., None], flat, self.logp.T[right])
        logits = before + after
        return logits.gather(1, at[..., None].expand(-1, -1, self.vocab_size))

    def head(self, hidden: Tensor) -> Tensor:
        return hidden

    def raw_logits(
        self,
        ids: Tensor | Sequence[Sequence[int]],
        attend: Tensor | Sequence[Sequence[int]] | None = None,
    ) -> Tensor:
        tokens = torch.as_tensor(ids, device=self.device)
        everywhere = torch.arange(tokens.shape[1], device=self.device).expand_as(tokens)
        seen = None if attend is None else torch.as_tensor(attend, device=self.device).bool()
        return self.hidden(tokens, seen, everywhere)

    def new_kv(self, batch: int, length: int) -> KV:
        raise NotImplementedError("This model has no keys and values.")


def pairs(device: str = "cpu") -> wavefront.LM:
    """Make the model. `--device` of the command line is passed by name."""
    tokenizer = byte_tokenizer()
    return wavefront.LM(PairModel(tokenizer, device), tokenizer, name="pairs")


if __name__ == "__main__":
    lm = pairs()
    print(lm.generate("the c", raw=True, max_new_tokens=12, strategy="left_to_right").text)
    print(lm.infill("the <mask:3> sat").text)
