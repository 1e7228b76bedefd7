"""Score texts by their negative log-likelihood under an autoregressive model.

The weights are stored in 8 bits, with one scale per row of a matrix, so that a judge fits into a
small model's folder. It computes in float32.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F

from wavefront.core.errors import CheckpointError
from wavefront.models.loader import (
    check_memory,
    checkpoint_contents,
    empty_model,
    family_module,
    resolve_device,
)
from wavefront.models.quantize import read_weights
from wavefront.models.transformer import Transformer
from wavefront.storage.checkpoint import open_checkpoint, write_checkpoint

CHUNK = 32  # texts per forward pass


class TextScore(NamedTuple):
    """The negative log-likelihood of one text after its prompt, in nats."""

    nats: float
    tokens: int  # number of scored tokens, including the end token if there is one

    @property
    def mean(self) -> float:
        """The nats per token; NaN for a text without tokens."""
        return self.nats / self.tokens if self.tokens else float("nan")


class Judge:
    """An autoregressive model that scores texts."""

    def __init__(self, model: Transformer, never: Iterable[int]) -> None:
        """Wrap a causal model; `never` are the ids that it cannot write."""
        self.model = model
        self._never = torch.tensor(list(never), dtype=torch.long, device=model.device)

    @classmethod
    def load(cls, directory: Path, *, device: str | torch.device | None = None) -> Judge:
        """Load a judge that `save` wrote.

        Raises:
            CheckpointError: The directory holds no judge, its weights belong to another model, or
                they do not fit into the memory.
        """
        files, target = open_checkpoint(directory), resolve_device(device)
        family = family_module(str(files.config.get("model_type")))
        values = dict(files.config)
        never = values.pop("never_written", None)
        config = family.Config.from_json(values)
        if not isinstance(never, list) or not all(
            type(id) is int and 0 <= id < config.vocab_size for id in never
        ):
            raise CheckpointError(
                f"{directory} is not a judge; its config.json lists no ids as never_written."
            )
        model: Transformer = empty_model(files, family, config)
        check_memory(model, torch.float32, None, device=target)
        model = model.to_empty(device=target)
        read_weights(files.entries, model.weights())
        model.block_size = 1
        return cls(model.eval().requires_grad_(False), never)

    def save(self, directory: Path) -> None:
        """Write the judge in 8 bits."""
        config, tensors = checkpoint_contents(self.model, dtype="float32", storage="int8")
        write_checkpoint(directory, config | {"never_written": self._never.tolist()}, tensors)

    def score(self, texts: Sequence[Sequence[int]], prompts: Sequence[int]) -> list[TextScore]:
        """Return the score of every text after its prompt, up to its first end token.

        Takes the same arguments as `token_nats`, which also explains how a text is scored.
        """
        return [TextScore(sum(nats), len(nats)) for nats in self.token_nats(texts, prompts)]

    @torch.no_grad()
    def token_nats(
        self, texts: Sequence[Sequence[int]], prompts: Sequence[int]
    ) -> list[list[float]]:
        """Return the nats of every token after the prompt, up to and including the first end token.

        A text longer than the model's context is read in windows that overlap by half. Each token
        counts once, in the first window that holds it, so it always sees the tokens of half a
        context or the whole text before it. A token that the model cannot write, such as a mask,
        has infinite nats.

        Args:
            texts: The ids of each text, starting with the BOS token.
            prompts: How many ids of each text are its prompt, at least one.
        """
        rows = [self._until_end(text, start) for text, start in zip(texts, prompts, strict=True)]
        windows = [
            (number, first) for number, row in enumerate(rows) for first in self._windows(len(row))
        ]
        found: list[list[float]] = [[] for _ in rows]  # of every token but the first of its row
        for chunk in (windows[at : at + CHUNK] for at in range(0, len(windows), CHUNK)):
            parts = [rows[number][first : first + self.model.max_length] for number, first in chunk]
            for (number, first), nats in zip(chunk, self._nats(parts), strict=True):
                found[number] += nats[len(found[number]) - first :]
        return [nats[start - 1 :] for nats, start in zip(found, prompts, strict=True)]

    def _until_end(self, text: Sequence[int], start: int) -> list[int]:
        row, end = list(text), self.model.stop_ids[0]
        return row[: row.index(end, start) + 1] if end in row[start:] else row

    def _windows(self, length: int) -> range:
        """Return where the windows of a text begin."""
        half = self.model.max_length // 2
        return range(0, max(1, length - half), half)

    def _nats(self, rows: Sequence[list[int]]) -> list[list[float]]:
        """Return the nats of every token of each row after its first one."""
        width = max(2, *(len(row) for row in rows))
        end = self.model.stop_ids[0]
        tokens = torch.tensor([row + [end] * (width - len(row)) for row in rows])
        tokens = tokens.to(self.model.device)
        logits = self.model(tokens[:, :-1]).float().index_fill_(2, self._never, float("-inf"))
        nats = F.cross_entropy(logits.transpose(1, 2), tokens[:, 1:], reduction="none").tolist()
        return [line[: len(row) - 1] for row, line in zip(rows, nats, strict=True)]
