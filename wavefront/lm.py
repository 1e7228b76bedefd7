"""LM: a model with its tokenizer; `generate`, `stream` and `infill` over text."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Unpack

import torch

from wavefront.completion import Completion, Reader, Spent, cut_holes
from wavefront.core import canvas
from wavefront.core.errors import OptionError, PromptError
from wavefront.core.state import Step
from wavefront.core.strategy import Strategy
from wavefront.engine.batcher import ActiveRequest, CapturedBatchers, Request
from wavefront.engine.fork import fork, resolve
from wavefront.engine.options import Options, Plan, plan, wants_trace
from wavefront.engine.replay import Difference, again, difference
from wavefront.engine.session import DecodeSession, begin, check_ids, check_length, source
from wavefront.kernels.compile import compile_model
from wavefront.models import builtin
from wavefront.models.loader import load_model
from wavefront.models.protocol import Model
from wavefront.storage.hub import locate
from wavefront.text.tokenizer import Tokenizer, infill_ids, prompt_ids
from wavefront.traces.trace import Trace


class Stream:
    """Iterate it for the steps of a decode; `completions` holds what has come of it so far."""

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
        """One per prompt, in order; of an unfinished one, what is settled from the left."""
        decoding = self.decoding
        trace = decoding.trace()
        if trace is not None:
            trace = replace(trace, about=self._about(trace))
        boards = zip(decoding.tokens(), decoding.holes(), decoding.undecided(), strict=True)
        read = Reader(
            self.lm.tokenizer, decoding.plan.config.sampling.stop_ids, infilling=self._infilling
        )
        spent = Spent(decoding.forwards, decoding.token_forwards)
        return [
            read(*board, spent._replace(steps=steps), trace)
            for board, steps in zip(boards, decoding.steps(), strict=True)
        ]

    def _about(self, trace: Trace) -> dict[str, Any]:
        """What the trace says of itself, and the texts of its tokens: it can be read without us."""
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
    """A model and its tokenizer. Options by name are those of `wavefront.Options`."""

    def __init__(
        self, model: Model, tokenizer: Tokenizer, *, name: str = "", cuda_graphs: bool = False
    ) -> None:
        """`cuda_graphs`: on CUDA, capture each step once and replay it."""
        self.model: Model = model
        self.tokenizer: Tokenizer = tokenizer
        self.name: str = name
        if cuda_graphs and model.device.type != "cuda":
            raise OptionError(f"Steps are captured on CUDA, not on {model.device}: leave it out.")
        self._captured = CapturedBatchers(model) if cuda_graphs else None
        self.stop_ids: tuple[int, ...] = tuple(
            dict.fromkeys([*model.stop_ids, *tokenizer.stop_ids])
        )

    def _id_of(self, text: str) -> int:
        """The token that a text is, for options that name one by its text."""
        ids = self.tokenizer.encode(text)
        if len(ids) != 1:
            raise OptionError(f"{text!r} is {len(ids)} tokens of this model: name a single one.")
        return ids[0]

    def generate(
        self,
        prompt: Any,
        *,
        raw: bool = False,
        trace: bool | str = False,
        **options: Unpack[Options],
    ) -> Any:
        """A Completion of a string or a conversation; a list of them for a list of either.

        `raw=True` takes strings as text to continue, past the chat template.
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
        """The same, step by step: iterate the result, then read its `completions`."""
        prompts = prompt if _is_batch(prompt) else [prompt]
        rows = [prompt_ids(self.tokenizer, one, raw=raw) for one in prompts]
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
        """The text with its holes, written `<mask:8>`, filled; each cut at its first stop token."""
        stream = self.stream_infill(text, trace=trace, **options)
        stream.decoding.drain()
        return stream.completions[0]

    def stream_infill(
        self, text: str, *, trace: bool | str = False, **options: Unpack[Options]
    ) -> Stream:
        """`infill`, step by step."""
        row, settled = self._holes(text, options)
        board = canvas.infill(
            [row.ids],
            [row.holes],
            mask_id=self.model.mask_id,
            pad_id=self.model.pad_id,
            device=self.model.device,
        )
        return Stream(
            self,
            DecodeSession(self.model, board, settled, record=wants_trace(options, trace)),
            infilling=True,
        )

    def _holes(self, text: str, options: Any) -> tuple[Any, Plan]:
        """A text with holes, checked: its ids, and the plan to fill them."""
        if not isinstance(text, str):
            raise PromptError(f"Infilling takes one text with holes, not {type(text).__name__}.")
        for name in ("max_new_tokens", "gen_length", "max_tokens"):
            if name in options:
                raise OptionError(f"The holes say how many places to fill: leave out {name}.")
        row = infill_ids(self.tokenizer, text, mask_id=self.model.mask_id)
        if not any(row.holes):
            raise PromptError("There is nothing to fill: write a hole as <mask:8>.")
        check_length(self.model, len(row.ids), 0)
        return row, self.plan(options, length=sum(row.holes))

    def plan(self, options: Mapping[str, Any], *, length: int | None = None) -> Plan:
        """Options, checked and settled for this model; `length` is given when holes decide it."""
        return plan(options, source(self.model, self.stop_ids, self._id_of), length=length)

    def request(self, prompt: Any, *, raw: bool = False, **options: Unpack[Options]) -> Request:
        """One prompt, checked, as a request for `wavefront.Batcher`."""
        ids = prompt_ids(self.tokenizer, prompt, raw=raw)
        settled = self.plan(options)
        check_length(self.model, len(ids), settled.length)
        board = [*check_ids(self.model, ids), *[self.model.mask_id] * settled.length]
        return Request(board, [False] * len(ids) + [True] * settled.length, settled)

    def request_infill(self, text: str, **options: Unpack[Options]) -> Request:
        """The same of a text with holes."""
        row, settled = self._holes(text, options)
        return Request(row.ids, row.holes, settled, infilling=True)

    def completion(self, seat: ActiveRequest, *, holes: Sequence[bool] | None = None) -> Completion:
        """What has become of a request in a slot; `holes` says what the answer is, if more."""
        request = seat.request
        assert request is not None  # only a decode loaded as a whole has none
        stop_ids = request.plan.config.sampling.stop_ids
        end = stop_ids[0] if stop_ids else self.model.mask_id
        # What `stop` left undecided reads as the end.
        pairs = zip(seat.tokens, seat.final, strict=True)
        tokens = [token if settled else end for token, settled in pairs]
        spent = Spent(seat.forwards, seat.token_forwards, seat.steps)
        read = Reader(self.tokenizer, stop_ids, infilling=request.infilling)
        return read(tokens, request.holes if holes is None else holes, seat.open, spent)

    def fork(
        self,
        trace: Trace,
        at: int,
        *,
        strategy: str | Strategy | None = None,
        overrides: Mapping[int, int | str] | None = None,
    ) -> Stream:
        """Go on from a recorded decode as step `at` of it found the canvas (wavefront.engine.fork).

        `strategy` lets another strategy take over. `overrides` writes tokens by hand first: places,
        counted from 0 over those to fill, to token ids or texts; a text of several tokens takes
        as many places.
        """
        written: dict[int, int] = {}
        for place, what in (overrides or {}).items():
            ids = self.tokenizer.encode(what) if isinstance(what, str) else [what]
            if not ids:
                raise OptionError(f"There is nothing to write at place {place}: give a text.")
            for token in ids:
                if place in written:
                    raise OptionError(f"Place {place} is written twice: leave one out.")
                written[place], place = token, place + 1
        given = {"stop_ids": self.stop_ids, "id_of": self._id_of}
        forked = fork(self.model, trace, at, strategy=strategy, overrides=written, **given)
        return Stream(self, forked, infilling=bool(trace.about.get("infilling")))

    def text_of(self, trace: Trace, row: int = 0) -> str:
        """What a recorded decode came to, as `generate` or `infill` would have put it."""
        *_, last = [trace.first, *trace.replay()]
        parts = (last.tokens, last.masked, last.slot)
        tokens, masked, slot = (part[row][last.real[row]].tolist() for part in parts)
        stops = trace.about.get("options", {}).get("stop_ids", self.stop_ids)
        ends = [open_ or token in stops for token, open_ in zip(tokens, masked, strict=True)]
        shown = cut_holes(tokens, [number >= 0 for number in slot], ends)
        whole = trace.about.get("infilling")
        return self.tokenizer.decode([token for token, hole in shown if hole or whole])

    def replay(self, trace: Trace, *, strategy: str | Strategy | None = None) -> Difference | None:
        """Decode again what was recorded: where the two first differ, or None.

        `strategy` names the strategy if it comes from outside, and is not needed otherwise.
        """
        trusted = None if strategy is None else resolve(strategy).with_ids(self._id_of)
        given = {"stop_ids": self.stop_ids, "id_of": self._id_of}
        return difference(trace, again(self.model, trace, strategy=trusted, **given))


def _is_batch(prompt: Any) -> bool:
    """A list of strings or of conversations; a conversation is itself a list, of dictionaries."""
    if isinstance(prompt, str):
        return False
    if not isinstance(prompt, Sequence) or len(prompt) == 0:
        raise PromptError("A prompt is a string, a list of messages, or a list of either.")
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
    """A checkpoint with its tokenizer: a built-in name, a local directory, or a hub id.

    On CUDA in the stored half precision, elsewhere in float32, unless you say otherwise. `cuda_graphs`
    records steps as CUDA graphs; `compile` compiles the model and the work around it, which takes a
    minute once.
    """
    if path == "toy":
        model, tokenizer = builtin.make_toy(device=device, dtype=dtype)
    else:
        directory = locate(path, revision=revision, offline=offline)
        tokenizer = Tokenizer.load(directory)  # first: a missing file is told before the wait
        model = load_model(directory, device=device, dtype=dtype)
    if compile:
        compile_model(model)
    return LM(model, tokenizer, name=str(path), cuda_graphs=cuda_graphs)
