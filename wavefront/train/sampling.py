"""Let an autoregressive model write training data: batched sampling with stored keys and values.

All rows of a batch advance by one token per forward pass, each at its own position. So prompts of
different lengths need no padding: what lies after a row's position is overwritten before any
later position attends to it. Shapes change only when the longest row passes a multiple of 64.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from wavefront.models.protocol import KV
from wavefront.models.transformer import Transformer
from wavefront.train.original import Original

REACH = 64  # attention covers a multiple of this many positions
PREFILL = 1 << 17  # prompt tokens that one forward pass reads at most
CHECK_EVERY = 16  # steps between checks whether every row has ended


class WrittenText(NamedTuple):
    """A text that the original wrote, as ids."""

    prompt: list[int]
    answer: np.ndarray  # (n,) without the end token
    finished: bool  # whether the end token came before the length was reached


Filter = Callable[[WrittenText], bool]


def is_finished(text: WrittenText) -> bool:
    """Return whether the text has an end."""
    return text.finished


def is_long_enough(text: WrittenText, tokens: int = 8) -> bool:
    """Return whether the text has at least this many tokens after its prompt."""
    return len(text.answer) >= tokens


def is_varied(text: WrittenText, share: float = 0.5) -> bool:
    """Return whether at least this share of the text's trigrams are distinct."""
    answer = text.answer.tolist()
    trigrams = list(zip(answer, answer[1:], answer[2:], strict=False))
    return len(set(trigrams)) >= share * len(trigrams)


FILTERS: dict[str, Filter] = {
    "finished": is_finished,
    "long_enough": is_long_enough,
    "varied": is_varied,
}


class Writer:
    """An original on a device, ready to write."""

    def __init__(
        self, original: Original, *, device: torch.device, dtype: torch.dtype | None = None
    ) -> None:
        """Copy the model to the device, in float32 unless a dtype is given."""
        self.original, self.device = original, device
        self.model: Transformer = copy.deepcopy(original.model).to(device, dtype)
        self._never = torch.tensor(original.never_written, device=device)

    def write(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        length: int,
        temperature: float = 1.0,
        seed: int = 0,
        stop: Sequence[int] = (),
        most: int | None = None,
    ) -> list[WrittenText]:
        """Continue every prompt up to its end or to `length` tokens in total.

        A text also ends after a token of `stop`, which stays in it, and after `most` tokens, so
        that a long prompt in a batch does not lengthen the other texts. The same seed on the same
        device gives the same texts.
        """
        rows = self.sample(
            prompts, length=length, temperature=temperature, seed=seed, stop=stop, most=most
        )
        return list(self._texts(prompts, rows.cpu(), most=length if most is None else most))

    @torch.no_grad()
    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        length: int,
        temperature: float = 1.0,
        seed: int = 0,
        stop: Sequence[int] = (),
        most: int | None = None,
    ) -> Tensor:
        """Return (B, length) long: each prompt, its continuation, then end tokens."""
        end = self.original.end_id
        ends = torch.tensor([end, *stop], device=self.device)
        generator = torch.Generator(self.device).manual_seed(seed)
        tokens = torch.full((len(prompts), length), end)
        for row, prompt in enumerate(prompts):
            tokens[row, : len(prompt)] = torch.tensor(prompt)
        tokens = tokens.to(self.device)
        last = torch.tensor([len(prompt) - 1 for prompt in prompts], device=self.device)
        steps = length - min(len(prompt) for prompt in prompts)
        steps = steps if most is None else min(steps, most)
        reached = max(len(prompt) for prompt in prompts)
        kv = self.model.new_kv(len(prompts), length)
        self._read_prompts(tokens[:, :reached], kv, common=_common_prefix(prompts))
        ended = torch.zeros(len(prompts), dtype=torch.bool, device=self.device)
        for step in range(steps):
            reach = min(length, -(-(reached + step) // REACH) * REACH)
            at = last[:, None]
            hidden = self.model.encode(tokens[:, :reach], window=at, kv=_reach(kv, reach))
            chosen = self._choose(self.model.head(hidden[:, 0]), temperature, generator)
            # Rows that have reached the length stay where they are and keep their tokens.
            ended |= last >= length - 1
            chosen = torch.where(ended, end, chosen)
            place = (last + 1).clamp_max(length - 1)[:, None]
            kept = torch.where(ended[:, None], tokens.gather(1, place), chosen[:, None])
            tokens.scatter_(1, place, kept)
            ended |= torch.isin(chosen, ends)
            last = place[:, 0]
            if step % CHECK_EVERY == CHECK_EVERY - 1 and bool(ended.all()):
                break
        return tokens

    def _read_prompts(self, tokens: Tensor, kv: KV, *, common: int) -> None:
        """Store the keys and values of the prompts, tokens (B, L).

        The first `common` tokens, which all prompts share, are read once.
        """
        count, length = tokens.shape
        positions = torch.arange(length, device=self.device)
        if common:
            first = _rows(_reach(kv, common), slice(0, 1))
            self.model.encode(tokens[:1, :common], window=positions[None, :common], kv=first)
            for part in (*kv.keys, *kv.values):
                part[1:, :, :common] = part[:1, :, :common]
        size = max(1, PREFILL // max(1, length - common))
        for begin in range(0, count if common < length else 0, size):
            rows = slice(begin, min(begin + size, count))
            window = positions[common:].expand(rows.stop - rows.start, -1)
            self.model.encode(tokens[rows], window=window, kv=_rows(_reach(kv, length), rows))

    def _choose(self, logits: Tensor, temperature: float, generator: torch.Generator) -> Tensor:
        """Sample one token per row, (B,) long, or take the best at temperature 0."""
        scores = logits.float().index_fill_(1, self._never, float("-inf"))
        if not temperature:
            return scores.argmax(1)
        reached = (scores / temperature).softmax(1).cumsum(1)
        total = reached[:, -1:]
        draw = torch.rand(total.shape, generator=generator, device=self.device) * total
        # Stay below the total: rounding could otherwise choose an id after the last possible one.
        return torch.searchsorted(reached, draw.minimum(total * 0.999999), right=True)[:, 0]

    def _texts(
        self, prompts: Sequence[Sequence[int]], rows: Tensor, *, most: int
    ) -> Iterator[WrittenText]:
        table = rows.numpy().astype(np.uint32)
        for prompt, row in zip(prompts, table, strict=True):
            answer = row[len(prompt) : len(prompt) + most]
            ends = answer == self.original.end_id
            done = bool(ends.any())
            yield WrittenText(list(prompt), answer[: int(ends.argmax()) if done else None], done)


def _common_prefix(prompts: Sequence[Sequence[int]]) -> int:
    """Return how many first tokens all prompts share."""
    rows = [tuple(prompt) for prompt in prompts]
    shortest, longest = min(rows), max(rows)  # in order of their tokens
    pairs = enumerate(zip(shortest, longest, strict=False))
    differ = (number for number, (one, other) in pairs if one != other)
    return next(differ, min(len(shortest), len(longest)))


def _rows(kv: KV, rows: slice) -> KV:
    """Return some rows of stored keys and values, as views."""
    return KV(tuple(part[rows] for part in kv.keys), tuple(part[rows] for part in kv.values))


def _reach(kv: KV, length: int) -> KV:
    """Return the first `length` positions of stored keys and values, as views."""
    return KV(
        tuple(part[:, :, :length] for part in kv.keys),
        tuple(part[:, :, :length] for part in kv.values),
    )
