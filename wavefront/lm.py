"""LM: a model with its tokenizer. It generates, streams and infills text."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Unpack

import torch

from wavefront.completion import Completion, CompletionReader, Cost, cut_holes
from wavefront.core import canvas
from wavefront.core.errors import OptionError, PromptError
from wavefront.core.state import Step
from wavefront.core.strategy import Strategy
from wavefront.engine.batcher import ActiveRequest, CapturedBatchers, Request
from wavefront.engine.fork import fork
from wavefront.engine.options import Options, Plan, plan, resolve_strategy, wants_trace
from wavefront.engine.replay import Difference, difference, rerun
from wavefront.engine.session import DecodeSession, begin, check_ids, check_length, source
from wavefront.kernels.compile import compile_model
from wavefront.models import builtin
from wavefront.models.loader import load_model
from wavefront.models.protocol import Model
from wavefront.storage.hub import locate
from wavefront.text.tokenizer import Tokenizer, infill_ids, prompt_ids
from wavefront.traces.trace import Trace


class Stream:
    """A decode of text in progress. Iterate over its steps, and read `completions` at any time.

    Attributes:
        lm: The model and its tokenizer.
        decoding: The session that decodes token ids.
    """

    def __init__(self, lm: LM, decoding: DecodeSession, *, infilling: bool = False) -> None:
        self.lm: LM = lm
        self.decoding: DecodeSession = decoding
        self._infilling = infilling

    def __iter__(self) -> Iterator[Step]:
        return self

    def __next__(self) -> Step:
        return next(self.decoding)

    @property
    def completions(self) -> list[Completion]:
        """The completions so far, one per prompt, in order.

        The text of an unfinished one goes up to the first position that can still change.
        """
        decoding = self.decoding
        trace = decoding.trace()
        if trace is not None:
            trace = replace(trace, about=self._about(trace))
        boards = zip(decoding.tokens(), decoding.holes(), decoding.undecided(), strict=True)
        read = CompletionReader(
            self.lm.tokenizer, decoding.plan.config.sampling.stop_ids, infilling=self._infilling
        )
        cost = Cost(decoding.forwards, decoding.token_forwards)
        return [
            read(*board, cost=cost._replace(steps=steps), trace=trace)
            for board, steps in zip(boards, decoding.steps(), strict=True)
        ]

    def _about(self, trace: Trace) -> dict[str, Any]:
        """Return the description of the trace, with the texts of its tokens for other programs."""
        parts = [trace.first.tokens, trace.tokens[trace.commit], trace.overrides[:, 3]]
        if trace.alternatives is not None:
            parts.append(trace.alternatives.tokens)
        ids = torch.cat([part.flatten().long() for part in parts]).unique().tolist()
        tokenizer = self.lm.tokenizer
        return {
            "model": self.lm.name,
            "infilling": self._infilling,
            **trace.about,
            "special_ids": [id for id in ids if id in tokenizer.special_ids],
            "texts": dict(zip(map(str, ids), tokenizer.pieces(ids), strict=True)),
        }


class LM:
    """A model and its tokenizer.

    Every decoding method takes the options of `wavefront.Options` by name. A wrong option raises
    `OptionError`, and a wrong prompt raises `PromptError`.
    """

    def __init__(
        self, model: Model, tokenizer: Tokenizer, *, name: str = "", cuda_graphs: bool = False
    ) -> None:
        """Combine a model and a tokenizer.

        Args:
            model: The model.
            tokenizer: Its tokenizer.
            name: The name that traces and servers show.
            cuda_graphs: Capture each step as a CUDA graph and replay it. It needs a CUDA device.

        Raises:
            OptionError: `cuda_graphs` is set and the model is not on a CUDA device.
        """
        self.model: Model = model
        self.tokenizer: Tokenizer = tokenizer
        self.name: str = name
        if cuda_graphs and model.device.type != "cuda":
            raise OptionError(
                f"cuda_graphs needs a CUDA device, and the model is on {model.device}.",
                option="cuda_graphs",
                value=cuda_graphs,
            )
        self._captured = CapturedBatchers(model) if cuda_graphs else None
        self.stop_ids: tuple[int, ...] = tuple(
            dict.fromkeys([*model.stop_ids, *tokenizer.stop_ids])
        )

    def _id_of(self, text: str) -> int:
        """Return the token id of a text, for options that name a token by its text."""
        ids = self.tokenizer.encode(text)
        if len(ids) != 1:
            raise OptionError(
                f"{text!r} is {len(ids)} tokens of this model: name a single one.",
                option="strategy",
                value=text,
            )
        return ids[0]

    def generate(
        self,
        prompt: Any,
        *,
        raw: bool = False,
        trace: bool | str = False,
        **options: Unpack[Options],
    ) -> Any:
        """Generate an answer to a prompt, or to each prompt of a list.

        Args:
            prompt: A string, a conversation (a list of messages), or a list of either.
            raw: Continue the text of a string as it is, without the chat template.
            trace: The trace to record: False, True or "basic", or "full".
            **options: The decoding options; see `wavefront.Options`.

        Returns:
            A `Completion`, or a list of them if `prompt` is a list of prompts.

        Raises:
            OptionError: An option is wrong.
            PromptError: A prompt is empty, too long, or of another type.
        """
        stream = self.stream(prompt, raw=raw, trace=trace, **options)
        stream.decoding.drain()
        found = stream.completions
        return found if _is_batch(prompt) else found[0]

    def stream(
        self,
        prompt: Any,
        *,
        raw: bool = False,
        trace: bool | str = False,
        **options: Unpack[Options],
    ) -> Stream:
        """Generate step by step. The arguments and errors are those of `generate`.

        Returns:
            A `Stream`: iterate over it, and read its `completions`.
        """
        prompts = prompt if _is_batch(prompt) else [prompt]
        rows = [prompt_ids(self.tokenizer, prompt, raw=raw) for prompt in prompts]
        decoding = begin(
            self.model,
            rows,
            options,
            stop_ids=self.stop_ids,
            id_of=self._id_of,
            record=trace,
            captured=self._captured,
        )
        return Stream(self, decoding)

    def infill(
        self, text: str, *, trace: bool | str = False, **options: Unpack[Options]
    ) -> Completion:
        """Fill the holes of a text.

        Args:
            text: The text. Write a hole of 8 tokens as `<mask:8>`.
            trace: The trace to record: False, True or "basic", or "full".
            **options: The decoding options; see `wavefront.Options`.

        Returns:
            The completion. Each filled hole is cut at its first stop token.

        Raises:
            OptionError: An option is wrong, or sets a number of tokens, which the holes decide.
            PromptError: The text has no hole, or is too long.
        """
        stream = self.stream_infill(text, trace=trace, **options)
        stream.decoding.drain()
        return stream.completions[0]

    def stream_infill(
        self, text: str, *, trace: bool | str = False, **options: Unpack[Options]
    ) -> Stream:
        """Fill the holes of a text step by step. The arguments and errors are those of `infill`."""
        row, resolved = self._parse_holes(text, options)
        board = canvas.infill(
            [row.ids],
            [row.holes],
            mask_id=self.model.mask_id,
            pad_id=self.model.pad_id,
            device=self.model.device,
        )
        return Stream(
            self,
            DecodeSession(self.model, board, resolved, record=wants_trace(options, trace)),
            infilling=True,
        )

    def _parse_holes(self, text: str, options: Any) -> tuple[Any, Plan]:
        """Check a text with holes, and return its ids and the plan to fill them."""
        if not isinstance(text, str):
            raise PromptError(
                f"Infilling takes one text with holes, not {type(text).__name__}.",
                option="text",
                value=text,
            )
        for name in ("max_new_tokens", "gen_length", "max_tokens"):
            if name in options:
                raise OptionError(
                    f"The holes decide how many positions to fill: leave out {name}.",
                    option=name,
                    value=options[name],
                )
        row = infill_ids(self.tokenizer, text, mask_id=self.model.mask_id)
        if not any(row.holes):
            raise PromptError(
                "There is nothing to fill: write a hole as <mask:8>.", option="text", value=text
            )
        check_length(self.model, len(row.ids), 0)
        return row, self.plan(options, length=sum(row.holes))

    def plan(self, options: Mapping[str, Any], *, length: int | None = None) -> Plan:
        """Check options and resolve them for this model.

        Args:
            options: The options by name; see `wavefront.Options`.
            length: The number of positions to fill, if the holes of a text decide it.

        Raises:
            OptionError: An option is wrong.
        """
        return plan(options, source(self.model, self.stop_ids, self._id_of), length=length)

    def request(self, prompt: Any, *, raw: bool = False, **options: Unpack[Options]) -> Request:
        """Make a request for `wavefront.Batcher` from one prompt.

        The arguments and errors are those of `generate`, without a list of prompts or a trace.
        """
        ids = prompt_ids(self.tokenizer, prompt, raw=raw)
        resolved = self.plan(options)
        check_length(self.model, len(ids), resolved.length)
        board = [*check_ids(self.model, ids), *[self.model.mask_id] * resolved.length]
        return Request(board, [False] * len(ids) + [True] * resolved.length, resolved)

    def request_infill(self, text: str, **options: Unpack[Options]) -> Request:
        """Make a request for `wavefront.Batcher` from a text with holes; see `infill`."""
        row, resolved = self._parse_holes(text, options)
        return Request(row.ids, row.holes, resolved, infilling=True)

    def completion(
        self, active: ActiveRequest, *, holes: Sequence[bool] | None = None
    ) -> Completion:
        """Return the completion so far of a request in a batcher.

        Args:
            active: The request in its row of the batch.
            holes: The positions of the answer, if they differ from the request's.
        """
        request = active.request
        assert request is not None  # only a decode that was loaded as a whole has none
        stop_ids = request.plan.config.sampling.stop_ids
        end = stop_ids[0] if stop_ids else self.model.mask_id
        # Positions that eos="stop" left masked read as the stop token.
        pairs = zip(active.tokens, active.final, strict=True)
        tokens = [token if final else end for token, final in pairs]
        cost = Cost(active.forwards, active.token_forwards, active.steps)
        read = CompletionReader(self.tokenizer, stop_ids, infilling=request.infilling)
        return read(tokens, request.holes if holes is None else holes, active.undecided, cost=cost)

    def fork(
        self,
        trace: Trace,
        at: int,
        *,
        strategy: str | Strategy | None = None,
        overrides: Mapping[int, int | str] | None = None,
    ) -> Stream:
        """Continue a recorded decode from the canvas that step `at` saw.

        `wavefront.engine.fork` explains what is continued, and how.

        Args:
            trace: The recorded decode.
            at: The step to fork at, counted from 0.
            strategy: The strategy that takes over. The default is the trace's own.
            overrides: Token ids or texts to write first, by position. Positions are counted from 0
                over those to fill. A text of several tokens takes several positions.

        Returns:
            A `Stream` of the steps from the fork on.

        Raises:
            OptionError: `at`, `strategy` or `overrides` is wrong.
            TraceError: The trace has no steps, or this model does not repeat it.
        """
        tokens: dict[int, int] = {}
        for first, new in (overrides or {}).items():
            ids = self.tokenizer.encode(new) if isinstance(new, str) else [new]
            if not ids:
                raise OptionError(
                    f"There is nothing to write at position {first}: give a text.",
                    option="overrides",
                    value=new,
                )
            for offset, token in enumerate(ids):
                position = first + offset
                if position in tokens:
                    raise OptionError(
                        f"Position {position} is set twice: leave one out.",
                        option="overrides",
                        value=new,
                    )
                tokens[position] = token
        given = {"stop_ids": self.stop_ids, "id_of": self._id_of}
        session = fork(self.model, trace, at, strategy=strategy, overrides=tokens, **given)
        return Stream(self, session, infilling=bool(trace.about.get("infilling")))

    def text_of(self, trace: Trace, row: int = 0) -> str:
        """Return the final text of a row of a trace, as `generate` or `infill` returned it."""
        *_, last = [trace.first, *trace.replay()]
        parts = (last.tokens, last.masked, last.slot)
        tokens, masked, slot = (part[row][last.real[row]].tolist() for part in parts)
        stops = trace.about.get("options", {}).get("stop_ids", self.stop_ids)
        ends = [open_ or token in stops for token, open_ in zip(tokens, masked, strict=True)]
        shown = cut_holes(tokens, [number >= 0 for number in slot], ends)
        whole = trace.about.get("infilling")
        return self.tokenizer.decode([token for token, hole in shown if hole or whole])

    def replay(self, trace: Trace, *, strategy: str | Strategy | None = None) -> Difference | None:
        """Decode a trace again, and compare.

        Args:
            trace: The recorded decode.
            strategy: The trace's strategy. Give it only if the strategy is not built in.

        Returns:
            The first difference, or None if the decodes are equal.

        Raises:
            OptionError: `strategy` is wrong.
            TraceError: The trace has no usable description, or another model made it.
        """
        trusted = None if strategy is None else resolve_strategy(strategy).with_ids(self._id_of)
        given = {"stop_ids": self.stop_ids, "id_of": self._id_of}
        return difference(trace, rerun(self.model, trace, strategy=trusted, **given))


def _is_batch(prompt: Any) -> bool:
    """Return whether this is a list of prompts. A conversation is a list of dictionaries."""
    if isinstance(prompt, str):
        return False
    if not isinstance(prompt, Sequence) or len(prompt) == 0:
        raise PromptError(
            "A prompt must be a string, a list of messages, or a list of either.",
            option="prompt",
            value=prompt,
        )
    return not isinstance(prompt[0], Mapping)


def load(
    path: str | os.PathLike[str] = builtin.DEFAULT,
    *,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    revision: str | None = None,
    offline: bool = False,
    cuda_graphs: bool = False,
    compile: bool = False,
) -> LM:
    """Load a checkpoint with its tokenizer.

    Args:
        path: The name of a built-in model, a local directory, or a Hub id.
        device: The device. The default is CUDA if it is available, otherwise the CPU.
        dtype: The precision. The default is the checkpoint's on CUDA, and float32 elsewhere.
        revision: The revision of a Hub checkpoint.
        offline: Use only files that are already on this machine.
        cuda_graphs: Capture each step as a CUDA graph and replay it. It needs a CUDA device.
        compile: Compile the model with `torch.compile`, which takes about a minute.

    Raises:
        CheckpointError: The checkpoint is missing, damaged, or of an unsupported architecture.
        OptionError: `device`, `dtype` or `cuda_graphs` is wrong.
    """
    if path == "toy":
        model, tokenizer = builtin.make_toy(device=device, dtype=dtype)
    else:
        directory = locate(path, revision=revision, offline=offline)
        tokenizer = Tokenizer.load(directory)  # first, so that a missing file is reported early
        model = load_model(directory, device=device, dtype=dtype)
    if compile:
        compile_model(model)
    return LM(model, tokenizer, name=str(path), cuda_graphs=cuda_graphs)
