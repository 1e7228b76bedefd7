"""LM: a model with its tokenizer; `generate`, `stream` and `infill` over text."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Unpack

import torch

from wavefront import builtin, canvas
from wavefront.decoding import Decoding, begin, check_length, source
from wavefront.errors import OptionError, PromptError
from wavefront.files import locate
from wavefront.fork import fork, resolve
from wavefront.model import Model, load_model
from wavefront.options import Options, Plan, plan, wants_trace
from wavefront.rerun import Difference, again, difference
from wavefront.rows import Step
from wavefront.schedule import Schedule
from wavefront.text import Tokenizer, infill_ids, prompt_ids
from wavefront.trace import Trace


@dataclass(frozen=True)
class Completion:
    """What became of one prompt."""

    text: str  # up to the first stop token; of an infilling, the whole text
    tokens: list[int]  # the answer up to the first stop token
    finish_reason: str | None  # "stop": the model ended it; "length": full; None: unfinished
    forwards: int  # passes through the model, of the batch it was in
    token_forwards: int  # places computed in them; guidance computes each twice
    prompt_tokens: int
    steps: int  # those of its own that committed something, one after another
    trace: Trace | None = None  # of the whole batch, on request

    @property
    def steps_per_forward(self) -> float:
        """At most 1, unless a draft was right; then how long it was right on average."""
        return self.steps / self.forwards if self.forwards else 0.0


class Stream:
    """Iterate it for the steps of a decode; `completions` holds what has come of it so far."""

    def __init__(self, lm: LM, decoding: Decoding, *, infilling: bool = False) -> None:
        self.lm, self.decoding, self._infilling = lm, decoding, infilling

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
        rows = zip(
            decoding.tokens(), decoding.holes(), decoding.undecided(), decoding.steps(), strict=True
        )
        return [self._completion(*row, trace) for row in rows]

    def _about(self, trace: Trace) -> dict[str, Any]:
        """What the trace says of itself, and the texts of its tokens: it can be read without us."""
        parts = [trace.first.tokens, trace.tokens[trace.commit], trace.by_hand[:, 3]]
        if trace.others is not None:
            parts.append(trace.others.tokens)
        ids = torch.cat([part.flatten().long() for part in parts]).unique().tolist()
        tokenizer = self.lm.tokenizer
        return {
            "model": self.lm.name,
            "infilling": self._infilling,
            **trace.about,
            "special_ids": [id for id in ids if id in tokenizer.special_ids],
            "texts": dict(zip(map(str, ids), tokenizer.pieces(ids), strict=True)),
        }

    def _completion(
        self,
        tokens: list[int],
        holes: list[bool],
        open_: list[bool],
        steps: int,
        trace: Trace | None,
    ) -> Completion:
        stop_ids = self.decoding.plan.config.sampling.stop_ids
        shown = _cut_holes(
            tokens, holes, [t in stop_ids or o for t, o in zip(tokens, open_, strict=True)]
        )
        text = [token for token, hole in shown if hole or self._infilling]
        ended = "stop" if len(shown) < len(tokens) else "length"
        return Completion(
            text=self.lm.tokenizer.decode(text),
            tokens=[token for token, hole in shown if hole],
            finish_reason=None if any(open_) else ended,
            forwards=self.decoding.forwards,
            token_forwards=self.decoding.token_forwards,
            prompt_tokens=len(holes) - sum(holes),
            steps=steps,
            trace=trace,
        )


class LM:
    """A model and its tokenizer. Options by name are those of `wavefront.Options`."""

    def __init__(self, model: Model, tokenizer: Tokenizer, *, name: str = "") -> None:
        self.model, self.tokenizer, self.name = model, tokenizer, name
        self.stop_ids = tuple(dict.fromkeys([*model.stop_ids, *tokenizer.stop_ids]))

    def _id_of(self, text: str) -> int:
        """The token that a text is, for options that name one by its text."""
        ids = self.tokenizer.encode(text)
        if len(ids) != 1:
            raise OptionError(f"{text!r} is {len(ids)} tokens of this model: name a single one.")
        return ids[0]

    def plan(self, **options: Unpack[Options]) -> Plan:
        """The options as they are settled for this model, everything said."""
        return plan(options, source(self.model, self.stop_ids, self._id_of))

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
            self.model, rows, options, stop_ids=self.stop_ids, id_of=self._id_of, record=trace
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
        if not isinstance(text, str):
            raise PromptError(f"Infilling takes one text with holes, not {type(text).__name__}.")
        for name in ("max_new_tokens", "gen_length", "max_tokens"):
            if name in options:
                raise OptionError(f"The holes say how many places to fill: leave out {name}.")
        row = infill_ids(self.tokenizer, text, mask_id=self.model.mask_id)
        if not any(row.holes):
            raise PromptError("There is nothing to fill: write a hole as <mask:8>.")
        check_length(self.model, len(row.ids), 0)
        given = source(self.model, self.stop_ids, self._id_of)
        settled = plan(options, given, length=sum(row.holes))
        board = canvas.infill(
            [row.ids],
            [row.holes],
            mask_id=self.model.mask_id,
            pad_id=self.model.pad_id,
            device=self.model.device,
        )
        return Stream(
            self,
            Decoding(self.model, board, settled, record=wants_trace(options, trace)),
            infilling=True,
        )

    def fork(
        self,
        trace: Trace,
        at: int,
        *,
        schedule: str | Schedule | None = None,
        put: Mapping[int, int | str] | None = None,
    ) -> Stream:
        """Go on from a recorded decode as step `at` of it found the canvas (wavefront.fork).

        `schedule` lets another strategy take over. `put` writes tokens by hand first: places,
        counted from 0 over those to fill, to token ids or texts; a text of several tokens takes
        as many places.
        """
        written: dict[int, int] = {}
        for place, what in (put or {}).items():
            ids = self.tokenizer.encode(what) if isinstance(what, str) else [what]
            if not ids:
                raise OptionError(f"There is nothing to write at place {place}: give a text.")
            for token in ids:
                if place in written:
                    raise OptionError(f"Place {place} is written twice: leave one out.")
                written[place], place = token, place + 1
        given = {"stop_ids": self.stop_ids, "id_of": self._id_of}
        forked = fork(self.model, trace, at, schedule=schedule, put=written, **given)
        return Stream(self, forked, infilling=bool(trace.about.get("infilling")))

    def text_of(self, trace: Trace, row: int = 0) -> str:
        """What a recorded decode came to, as `generate` or `infill` would have put it."""
        *_, last = [trace.first, *trace.replay()]
        parts = (last.tokens, last.masked, last.slot)
        tokens, masked, slot = (part[row][last.real[row]].tolist() for part in parts)
        stops = trace.about.get("options", {}).get("stop_ids", self.stop_ids)
        ends = [open_ or token in stops for token, open_ in zip(tokens, masked, strict=True)]
        shown = _cut_holes(tokens, [number >= 0 for number in slot], ends)
        whole = trace.about.get("infilling")
        return self.tokenizer.decode([token for token, hole in shown if hole or whole])

    def replay(self, trace: Trace, *, schedule: str | Schedule | None = None) -> Difference | None:
        """Decode again what was recorded: where the two first differ, or None.

        `schedule` names the strategy if it comes from outside, and is not needed otherwise.
        """
        trusted = None if schedule is None else resolve(schedule).with_ids(self._id_of)
        given = {"stop_ids": self.stop_ids, "id_of": self._id_of}
        return difference(trace, again(self.model, trace, schedule=trusted, **given))


def _is_batch(prompt: Any) -> bool:
    """A list of strings or of conversations; a conversation is itself a list, of dictionaries."""
    if isinstance(prompt, str):
        return False
    if not isinstance(prompt, Sequence) or len(prompt) == 0:
        raise PromptError("A prompt is a string, a list of messages, or a list of either.")
    return not isinstance(prompt[0], Mapping)


def _cut_holes(
    tokens: Sequence[int], holes: Sequence[bool], ends: Sequence[bool]
) -> list[tuple[int, bool]]:
    """(token, hole?) with every hole cut at its own first end."""
    kept: list[tuple[int, bool]] = []
    ended = False
    for token, hole, end in zip(tokens, holes, ends, strict=True):
        ended = hole and (ended or end)
        if not ended:
            kept.append((token, hole))
    return kept


def load(
    path: str | os.PathLike[str] = builtin.DEFAULT,
    *,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    revision: str | None = None,
    offline: bool = False,
) -> LM:
    """A checkpoint with its tokenizer: a built-in name, a local directory, or a hub id.

    On CUDA in the stored half precision, elsewhere in float32, unless you say otherwise.
    """
    if path == "toy":
        return LM(*builtin.make_toy(device=device, dtype=dtype), name="toy")
    directory = locate(path, revision=revision, offline=offline)
    tokenizer = Tokenizer.load(directory)  # first: a missing file is told before the wait
    model = load_model(directory, device=device, dtype=dtype)
    return LM(model, tokenizer, name=str(path))
