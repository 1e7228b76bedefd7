"""Quality of generated texts: how likely, how long and how varied they are.

The judge is an autoregressive model, usually the original of an adapted model (docs/train.md). A
likely text is not always a good one: repetition is likely too, and a short text has few chances to
go wrong. So the likelihood comes with the length and the share of different trigrams, all three
also over the first tokens alone, and with the same numbers for the original's own texts.

>>> from wavefront.analysis.quality import QualityJudge
>>> judge = QualityJudge.load("tale")  # doctest: +SKIP
>>> judge.measure(prompts, lm.generate(prompts, max_new_tokens=160))  # doctest: +SKIP
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from wavefront.core.errors import CheckpointError, OptionError, WavefrontError, check_int
from wavefront.models.judge import Judge
from wavefront.results.bootstrap import bootstrap_known_means
from wavefront.results.interval import Estimate
from wavefront.storage.hub import locate
from wavefront.text.tokenizer import Tokenizer, prompt_ids

FIRST = 64  # tokens of the beginning that is measured by itself
IMPOSSIBLE = 20.0  # nats of a token that the judge cannot write, which it gives probability 0
JUDGE = "judge"  # folder of the judge in the model's folder


class TextQuality(NamedTuple):
    """The quality of one text after its prompt."""

    nats: float  # mean negative log-likelihood per token, up to and with the end token
    length: int  # tokens before the end token
    distinct: float | None  # share of trigrams that are different; None below three tokens
    first_nats: float  # the same over the first tokens alone
    first_length: int
    first_distinct: float | None  # None for a text with fewer tokens: all have the same length
    premature: bool  # the end token is among the first tokens


MEASURES = TextQuality._fields


class Answer(Protocol):
    """A generated text, such as a `wavefront.Completion`."""

    @property
    def tokens(self) -> Sequence[int]: ...
    @property
    def finish_reason(self) -> str | None: ...


class ScoredText(NamedTuple):
    """The ids of a text, starting with the BOS token, and how many of them are its prompt."""

    ids: list[int]
    prompt: int


class QualityJudge:
    """A judge with the tokenizer of its model."""

    def __init__(self, judge: Judge, tokenizer: Tokenizer, *, first: int = FIRST) -> None:
        """Combine a judge and a tokenizer.

        Args:
            judge: The judge.
            tokenizer: The tokenizer of the model that writes the texts.
            first: How many tokens of a text are also measured by themselves.

        Raises:
            OptionError: `first` is not positive.
        """
        check_int("first", first, 1)
        self.judge: Judge = judge
        self.tokenizer: Tokenizer = tokenizer
        self.first: int = first

    @classmethod
    def load(
        cls, model: str = "tale", *, device: str | torch.device | None = None, first: int = FIRST
    ) -> QualityJudge:
        """Load the judge of a model.

        Args:
            model: A built-in name, or a directory that `wavefront train adapt` wrote.
            device: The device. The default is CUDA if it is available, otherwise the CPU.
            first: How many tokens of a text are also measured by themselves.

        Raises:
            CheckpointError: The model has no judge.
        """
        folder = judge_folder(model)
        if folder is None:
            raise CheckpointError(
                f"{model} has no judge, so the quality of its texts cannot be measured: use tale, "
                "or a model made by `wavefront train adapt`."
            )
        return cls(Judge.load(folder, device=device), Tokenizer.load(folder.parent), first=first)

    @property
    def end(self) -> int:
        """The id of the end token."""
        return self.judge.model.stop_ids[0]

    def measure(
        self, prompts: Sequence[Any], answers: Sequence[Answer], *, raw: bool = False
    ) -> list[TextQuality]:
        """Measure the answers to some prompts.

        Args:
            prompts: The prompts, as passed to `lm.generate`.
            answers: What `lm.generate` returned.
            raw: Whether the strings were continued without the chat template.

        Raises:
            OptionError: There is not one answer for every prompt.
        """
        if len(prompts) != len(answers):
            raise OptionError(
                f"There are {len(prompts)} prompts and {len(answers)} answers. Pass one answer for "
                "each prompt."
            )
        texts = [
            self.answer(prompt, one.tokens, ended=one.finish_reason == "stop", raw=raw)
            for prompt, one in zip(prompts, answers, strict=True)
        ]
        return self.measure_texts(texts)

    def answer(
        self, prompt: Any, tokens: Sequence[int], *, ended: bool, raw: bool = False
    ) -> ScoredText:
        """Return the ids of a prompt and its answer, with the end token if the answer has ended."""
        given = prompt_ids(self.tokenizer, prompt, raw=raw)
        return ScoredText([*given, *tokens, *([self.end] if ended else [])], len(given))

    def original(
        self, prompt: str, text: str, *, length: int, finished: bool | None = None
    ) -> ScoredText:
        """Return the ids of the original's own text, cut to what fits the canvas of an answer.

        The text is tokenised again. Where its first tokens differ from the prompt's, the
        continuation begins at the difference.

        Args:
            prompt: The prompt.
            text: The original's whole text, prompt included.
            length: The positions of the canvas.
            finished: Whether the original ended the text. The default is to assume so if the text
                is shorter than the judge's context.
        """
        given = prompt_ids(self.tokenizer, prompt, raw=True)
        whole = prompt_ids(self.tokenizer, text, raw=True)
        if finished is None:
            finished = len(whole) < self.judge.model.max_length
        if finished:
            whole.append(self.end)
        shared = takewhile(lambda pair: pair[0] == pair[1], zip(given, whole, strict=False))
        start = max(1, sum(1 for _ in shared))
        return ScoredText(whole[: start + length], start)

    def measure_texts(self, texts: Sequence[ScoredText]) -> list[TextQuality]:
        """Measure texts given as ids.

        Raises:
            OptionError: A text has nothing after its prompt.
        """
        if any(len(text.ids) <= text.prompt for text in texts):
            raise OptionError("A text needs at least one token after its prompt to have a quality.")
        every = self.judge.token_nats([text.ids for text in texts], [text.prompt for text in texts])
        return [self._measure(text, nats) for text, nats in zip(texts, every, strict=True)]

    def _measure(self, text: ScoredText, nats: Sequence[float]) -> TextQuality:
        answer = text.ids[text.prompt : text.prompt + len(nats)]
        ended = answer[-1] == self.end
        visible = answer[:-1] if ended else answer
        some = [IMPOSSIBLE if math.isinf(nat) else nat for nat in nats]
        first = self.first
        return TextQuality(
            nats=math.fsum(some) / len(some),
            length=len(visible),
            distinct=distinct_trigrams(visible),
            first_nats=math.fsum(some[:first]) / len(some[:first]),
            first_length=len(visible[:first]),
            first_distinct=distinct_trigrams(visible[:first]) if len(visible) >= first else None,
            premature=ended and len(answer) <= first,
        )


def judge_folder(model: str) -> Path | None:
    """Return the folder of a model's judge, or None if it has none."""
    try:
        folder = locate(model, offline=True, weights=False) / JUDGE
    except WavefrontError:  # the toy, or a model that is not on this machine
        return None
    return folder if folder.is_dir() else None


def distinct_trigrams(tokens: Sequence[int]) -> float | None:
    """Return the share of trigrams that are different; None if there are no trigrams."""
    trigrams = [*zip(tokens, tokens[1:], tokens[2:], strict=False)]
    return len({*trigrams}) / len(trigrams) if trigrams else None


def estimates(texts: Sequence[TextQuality]) -> dict[str, Estimate]:
    """Return the mean of every measure over texts, with 95 % bootstrap intervals.

    A mean leaves out the texts that have no value, because they are too short for a trigram.
    """
    return _named(bootstrap_known_means(_columns(texts)))


def differences(first: Sequence[TextQuality], second: Sequence[TextQuality]) -> dict[str, Estimate]:
    """Return the mean of `second` minus `first`, in pairs over the same prompts."""
    return _named(bootstrap_known_means(_columns(second) - _columns(first)))


def _columns(texts: Sequence[TextQuality]) -> Tensor:
    """Return (texts, measures), NaN where a text has no value."""
    rows = [[math.nan if one is None else float(one) for one in text] for text in texts]
    return torch.tensor(rows, dtype=torch.float64).view(-1, len(MEASURES))


def _named(found: Sequence[Estimate]) -> dict[str, Estimate]:
    return dict(zip(MEASURES, found, strict=True))


def from_json(record: Mapping[str, Any]) -> TextQuality:
    """Return the quality that `TextQuality._asdict` was written from."""
    return TextQuality(**{name: record[name] for name in MEASURES})
