"""LM: a model with its tokenizer. It generates, streams and infills text."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Unpack, overload

import torch

from wavefront.completion import Completion, CompletionReader, Cost, cut_holes
from wavefront.core import canvas
from wavefront.core.cache_policy import Cache
from wavefront.core.constraint import Constraint, TokenAutomaton, check_room
from wavefront.core.errors import OptionError, PromptError, SpecError, check_choice, quote
from wavefront.core.spec import import_name
from wavefront.core.state import Step
from wavefront.core.strategy import Strategy
from wavefront.engine.batcher import ActiveRequest, CapturedBatchers, Request
from wavefront.engine.cuda_graphs import graphs_for, use_cuda_graphs
from wavefront.engine.fork import fork
from wavefront.engine.options import (
    CONSTRAINTS,
    SPEEDS,
    Options,
    Plan,
    plan,
    resolve_cache,
    resolve_strategy,
    show_options,
    wants_trace,
)
from wavefront.engine.replay import DecodeDifference, difference, rerun
from wavefront.engine.session import (
    DecodeSession,
    begin,
    check_canvas_length,
    check_ids,
    check_infilling,
    model_properties,
)
from wavefront.kernels.compile import compile_model
from wavefront.models import builtin
from wavefront.models.loader import (
    computes_bfloat16,
    find_family,
    load_model,
    resolve_device,
)
from wavefront.models.protocol import Model
from wavefront.storage.hub import locate
from wavefront.text.constraint import compile_constraint, pinned_positions
from wavefront.text.tokenizer import Infill, Tokenizer, infill_ids, prompt_ids
from wavefront.traces.trace import Trace

FACTORY = re.compile(r"[A-Za-z_][\w.]+:[A-Za-z_]\w*")
# Everything that a model must have.
MODEL_NAMES = {name for name in (*Model.__annotations__, *vars(Model)) if name[0] != "_"}


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

    def __repr__(self) -> str:
        return f"Stream({self.decoding!r}, {self.lm!r})"

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
            trace = replace(trace, about=self._about(trace), pinned=self._pinned(trace))
        boards = zip(decoding.tokens(), decoding.holes(), decoding.undecided(), strict=True)
        config = decoding.plan.config
        read = CompletionReader(
            self.lm.tokenizer,
            config.sampling.stop_ids,
            infilling=self._infilling,
            constrained=config.constraint is not None,
        )
        counts = (decoding.row_forwards(), decoding.row_token_forwards(), decoding.steps())
        costs = [Cost(*row) for row in zip(*counts, strict=True)]
        wanted = decoding.plan.logprobs is not None
        commits = decoding.commits() if wanted else [None] * len(costs)
        return [
            read(*board, cost=cost, trace=trace, commits=made)
            for board, cost, made in zip(boards, costs, commits, strict=True)
        ]

    def _pinned(self, trace: Trace) -> torch.Tensor | None:
        """Return (B, L) bool: the tokens that the constraint pinned; None without a constraint."""
        automaton = self.decoding.plan.config.constraint
        if automaton is None:
            return None
        *_, last = [trace.first, *trace.replay()]
        found = torch.zeros_like(last.masked)
        for row, (tokens, slot) in enumerate(zip(last.tokens, last.slot, strict=True)):
            pinned = pinned_positions(
                self.lm.tokenizer,
                automaton,
                tokens.tolist(),
                answer=(slot >= 0).tolist(),
                at_start=not self._infilling,
            )
            found[row, pinned] = True
        return found & ~last.masked

    def _about(self, trace: Trace) -> dict[str, Any]:
        """Return the description of the trace, with the texts of its tokens for other programs."""
        parts = [trace.first.tokens, trace.tokens[trace.written], trace.overrides[:, 3]]
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
        self,
        model: Model,
        tokenizer: Tokenizer,
        *,
        name: str = "",
        cuda_graphs: bool | None = None,
        speed: str = "exact",
    ) -> None:
        """Combine a model and a tokenizer.

        Args:
            model: The model.
            tokenizer: Its tokenizer.
            name: The name that traces and servers show.
            cuda_graphs: Whether to capture steps as CUDA graphs and replay them; see `load`.
            speed: The default `speed` of all decodes; see `wavefront.Options`.

        Raises:
            OptionError: `cuda_graphs` is True and the model is not on a CUDA device, or `speed` is
                not one of its values.
        """
        check_choice("speed", speed, SPEEDS)
        self.model: Model = model
        self.tokenizer: Tokenizer = tokenizer
        self.name: str = name
        self.speed: str = speed
        # Lends batchers whose steps are captured as CUDA graphs; None: steps are not captured.
        self.captured: CapturedBatchers | None = None
        if use_cuda_graphs(cuda_graphs, model.device):
            graphs = graphs_for(cuda_graphs, model.device)
            self.captured = CapturedBatchers(model, graphs=graphs)
        self.stop_ids: tuple[int, ...] = tuple(
            dict.fromkeys([*model.stop_ids, *tokenizer.stop_ids])
        )

    def __repr__(self) -> str:
        model = self.model
        return f"LM({self.name!r}, family {model.family}, {model.dtype} on {model.device})"

    def _id_of(self, text: str) -> int:
        """Return the token id of a text, for options that name a token by its text."""
        ids = self.tokenizer.encode(text, inside=True)
        if len(ids) != 1:
            raise OptionError(
                f"{text!r} is {len(ids)} tokens for this model: use a text of one token.",
                option="strategy",
                value=text,
            )
        return ids[0]

    def automaton_of(self, constraint: Constraint, at_start: bool = True) -> TokenAutomaton:
        """Compile a constraint for this model. The result is kept for later requests.

        Args:
            constraint: What an answer must look like; see `wavefront.text.constraint`.
            at_start: The answer is a separate text, not a hole in another text.

        Raises:
            OptionError: The constraint is wrong, not supported, impossible, or too large.
            MissingExtraError: outlines-core is not installed.
        """
        size = self.model.vocab_size
        return compile_constraint(self.tokenizer, constraint, vocab_size=size, at_start=at_start)

    @overload
    def generate(  # pyright: ignore[reportOverlappingOverload]  (a string is a sequence of strings)
        self,
        prompt: str | Sequence[Mapping[str, Any]],
        *,
        raw: bool = False,
        trace: bool | str = False,
        **options: Unpack[Options],
    ) -> Completion: ...
    @overload
    def generate(
        self,
        prompt: Sequence[str] | Sequence[Sequence[Mapping[str, Any]]],
        *,
        raw: bool = False,
        trace: bool | str = False,
        **options: Unpack[Options],
    ) -> list[Completion]: ...
    @show_options
    def generate(
        self,
        prompt: str | Sequence[Any],
        *,
        raw: bool = False,
        trace: bool | str = False,
        **options: Unpack[Options],
    ) -> Completion | list[Completion]:
        """Generate an answer to a prompt, or to each prompt of a list.

        Args:
            prompt: A string, a conversation (a list of messages), or a list of either.
            raw: Continue a string without the chat template.
            trace: The trace to record: False, True or "basic", or "full".
            **options: The decoding options; see `wavefront.Options`.

        Returns:
            A `Completion`, or a list of them if `prompt` is a list of prompts.

        Raises:
            OptionError: An option is wrong.
            PromptError: A prompt is empty, too long, or of an unsupported type.
        """
        stream = self.stream(prompt, raw=raw, trace=trace, **options)
        stream.decoding.drain()
        found = stream.completions
        return found if _is_batch(prompt) else found[0]

    @show_options
    def stream(
        self,
        prompt: str | Sequence[Any],
        *,
        raw: bool = False,
        trace: bool | str = False,
        **options: Unpack[Options],
    ) -> Stream:
        """Generate step by step. Raises the same errors as `generate`.

        Args:
            prompt: A string, a conversation (a list of messages), or a list of either.
            raw: Continue a string without the chat template.
            trace: The trace to record: False, True or "basic", or "full".
            **options: The decoding options; see `wavefront.Options`.

        Returns:
            A `Stream`: iterate over it, and read its `completions`.
        """
        prompts = prompt if _is_batch(prompt) else [prompt]
        rows = [prompt_ids(self.tokenizer, prompt, raw=raw) for prompt in prompts]
        decoding = begin(
            self.model,
            rows,
            self._with_speed(options),
            stop_ids=self.stop_ids,
            id_of=self._id_of,
            automaton_of=self.automaton_of,
            record=trace,
            captured=self.captured,
        )
        return Stream(self, decoding)

    @show_options
    def infill(
        self, text: str, *, trace: bool | str = False, **options: Unpack[Options]
    ) -> Completion:
        """Fill the holes of a text.

        Args:
            text: The text. Write a hole of 8 tokens as `<mask:8>`. The space before a hole is
                part of the hole, because most tokens start with one. With a constraint it is not.
            trace: The trace to record: False, True or "basic", or "full".
            **options: The decoding options; see `wavefront.Options`.

        Returns:
            The completion, with the whole text. Each filled hole is cut at its first stop token.

        Raises:
            OptionError: An option is wrong, or sets the number of tokens, which the holes decide.
            PromptError: The text has no hole, or is too long.
        """
        stream = self.stream_infill(text, trace=trace, **options)
        stream.decoding.drain()
        return stream.completions[0]

    def stream_infill(
        self, text: str, *, trace: bool | str = False, **options: Unpack[Options]
    ) -> Stream:
        """Fill the holes of a text step by step, with the arguments and errors of `infill`."""
        row, resolved = self._parse_holes(text, options)
        board = canvas.infill(
            [row.ids],
            [row.holes],
            mask_id=self.model.mask_id,
            pad_id=self.model.pad_id,
            device=self.model.device,
        )
        record = wants_trace(options, trace)
        session = DecodeSession(self.model, board, resolved, record=record, captured=self.captured)
        return Stream(self, session, infilling=True)

    def _parse_holes(self, text: str | Infill, options: Any) -> tuple[Infill, Plan]:
        """Check a text with holes, and return its ids and the plan to fill them."""
        if not isinstance(text, str | Infill):
            raise PromptError(
                f"Infilling takes one text with holes, not {type(text).__name__}.",
                option="text",
                value=text,
            )
        check_infilling(self.model)
        for name in ("max_new_tokens", "gen_length", "max_tokens"):
            if name in options:
                raise OptionError(
                    f"The holes decide how many positions to fill: leave out {name}.",
                    option=name,
                    value=options[name],
                )
        row = text if isinstance(text, Infill) else self._encode_holes(text, options)
        if not any(row.holes):
            raise PromptError(
                "There is nothing to fill: write a hole as <mask:8>.", option="text", value=text
            )
        check_canvas_length(self.model, len(row.ids), 0)
        resolved = self.plan(options, length=sum(row.holes))
        if resolved.config.constraint is not None:
            mask_id, pad_id = self.model.mask_id, self.model.pad_id
            board = canvas.infill([row.ids], [row.holes], mask_id=mask_id, pad_id=pad_id)
            check_room(resolved.config.constraint, board, board.masked, holes=True)
        return row, resolved

    def _encode_holes(self, text: str, options: Any) -> Infill:
        constrained = any(options.get(name) is not None for name in CONSTRAINTS)
        mask_id = self.model.mask_id
        return infill_ids(self.tokenizer, text, mask_id=mask_id, constrained=constrained)

    def plan(self, options: Mapping[str, Any], *, length: int | None = None) -> Plan:
        """Check options and resolve them for this model.

        Args:
            options: The options by name; see `wavefront.Options`.
            length: The number of positions to fill, if the holes of a text decide it.

        Raises:
            OptionError: An option is wrong.
        """
        given = self._with_speed(options)
        origin = model_properties(
            self.model, self.stop_ids, self._id_of, automaton_of=self.automaton_of
        )
        return plan(given, origin, length=length)

    def _with_speed(self, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the options with this model's `speed`, unless they set `speed` or `cache`.

        `Plan.options` names every option, so it can be used to repeat a decode exactly.
        """
        decided = options.get("speed") is not None or "cache" in options
        return options if decided else {**options, "speed": self.speed}

    def request(self, prompt: Any, *, raw: bool = False, **options: Unpack[Options]) -> Request:
        """Make a request for `wavefront.Batcher` from one prompt.

        Takes the arguments of `generate`, except a list of prompts or a trace, and raises the same
        errors.
        """
        ids = prompt_ids(self.tokenizer, prompt, raw=raw)
        resolved = self.plan(options)
        check_canvas_length(self.model, len(ids), resolved.length)
        board = [*check_ids(self.model, ids), *[self.model.mask_id] * resolved.length]
        return Request(board, [False] * len(ids) + [True] * resolved.length, resolved)

    def request_infill(self, text: str | Infill, **options: Unpack[Options]) -> Request:
        """Make a request for `wavefront.Batcher` from a text with holes; see `infill`.

        The text may be encoded already, by `wavefront.text.tokenizer.infill_ids`.
        """
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
        assert request is not None  # only a row loaded with `Batcher.load` has none
        stop_ids = request.plan.config.sampling.stop_ids
        end = stop_ids[0] if stop_ids else self.model.mask_id
        # Positions that eos="stop" left masked read as the stop token.
        pairs = zip(active.tokens, active.final, strict=True)
        tokens = [token if final else end for token, final in pairs]
        cost = Cost(active.forwards, active.token_forwards, active.steps)
        read = CompletionReader(
            self.tokenizer,
            stop_ids,
            infilling=request.infilling,
            constrained=request.plan.config.constraint is not None,
        )
        commits = None
        if request.plan.logprobs is not None:
            commits = [active.commits.get(position) for position in range(len(tokens))]
        holes = request.holes if holes is None else holes
        return read(tokens, holes, active.undecided, cost=cost, commits=commits)

    def fork(
        self,
        trace: Trace,
        at: int,
        *,
        strategy: str | Strategy | None = None,
        overrides: Mapping[int, int | str] | None = None,
    ) -> Stream:
        """Continue a recorded decode from the canvas that step `at` saw.

        `wavefront.engine.fork` explains the details.

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
            TraceError: The trace has no steps, or this model does not reproduce it.
        """
        tokens: dict[int, int] = {}
        for first, new in (overrides or {}).items():
            ids = self.tokenizer.encode(new, inside=True) if isinstance(new, str) else [new]
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
        given["automaton_of"] = self.automaton_of
        session = fork(self.model, trace, at, strategy=strategy, overrides=tokens, **given)
        return Stream(self, session, infilling=bool(trace.about.get("infilling")))

    def text_of(self, trace: Trace, row: int = 0) -> str:
        """Return the final text of a row of a trace, as `generate` or `infill` returned it."""
        *_, last = [trace.first, *trace.replay()]
        parts = (last.tokens, last.masked, last.slot)
        tokens, masked, slot = (part[row][last.real[row]].tolist() for part in parts)
        stops = trace.about.get("options", {}).get("stop_ids", self.stop_ids)
        length = trace.about.get("options", {}).get("max_new_tokens", len(slot))
        inside = [number < length for number in slot]  # the last block may hold more positions
        tokens, masked, slot = (
            [value for value, kept in zip(part, inside, strict=True) if kept]
            for part in (tokens, masked, slot)
        )
        ends = [open_ or token in stops for token, open_ in zip(tokens, masked, strict=True)]
        shown = cut_holes(tokens, [number >= 0 for number in slot], ends)
        whole = bool(trace.about.get("infilling"))
        return self.tokenizer.decode([token for token, hole in shown if hole or whole], start=whole)

    def replay(
        self,
        trace: Trace,
        *,
        strategy: str | Strategy | None = None,
        cache: str | Cache | None = None,
    ) -> DecodeDifference | None:
        """Decode a trace again and compare the two decodes.

        Args:
            trace: The recorded decode.
            strategy: The trace's strategy. Give it only if the strategy is not built in.
            cache: The trace's cache policy. Give it only if the policy is not built in.

        Returns:
            The first difference, or None if the decodes are equal.

        Raises:
            OptionError: `strategy` or `cache` is wrong.
            TraceError: The trace has no usable description, or another model made it.
        """
        named = None if strategy is None else resolve_strategy(strategy).with_ids(self._id_of)
        again = rerun(
            self.model,
            trace,
            strategy=named,
            cache=resolve_cache(cache),
            stop_ids=self.stop_ids,
            id_of=self._id_of,
            automaton_of=self.automaton_of,
        )
        return difference(trace, again)


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


def is_factory(path: object) -> bool:
    """Return whether a model's name is `module:factory`, which imports code."""
    return isinstance(path, str) and FACTORY.fullmatch(path) is not None


def refuse_factory(path: object, *, where: str) -> None:
    """Raise an error if a file names a user's own model: a file must not import code.

    Args:
        path: The model's name in the file.
        where: What the file is, for the error message.

    Raises:
        OptionError: The name is `module:factory`.
    """
    if is_factory(path):
        raise OptionError(
            f"{where} uses the model {quote(path)}, which is not built in; importing it runs its "
            "code. If you trust it, name it with --model.",
            option="model",
            value=path,
        )


def factory_tokenizer(name: str) -> Tokenizer:
    """Return the tokenizer of `module:factory`, if possible without making its model.

    A factory with a parameter `tokenizer_only` returns its tokenizer if that is True. Any other
    factory makes its model too, on the CPU if it takes a device.
    """
    factory, accepted = _find_factory(name)
    if "tokenizer_only" not in accepted:
        return _call_factory(name, {"device": "cpu"} if "device" in accepted else {})[1]
    found = factory(tokenizer_only=True)
    if not isinstance(found, Tokenizer):
        raise OptionError(
            f"The factory {quote(name)} must return a Tokenizer with tokenizer_only=True, not "
            f"{type(found).__name__}.",
            option="model",
            value=name,
        )
    return found


def _find_factory(name: str) -> tuple[Callable[..., Any], Mapping[str, inspect.Parameter]]:
    """Import `module:factory`, and return it with its parameters."""
    module, _, attribute = name.partition(":")
    try:
        factory = import_name(module, attribute, shown=name)
        return factory, inspect.signature(factory).parameters
    except SpecError as error:
        raise OptionError(str(error), option="model", value=name) from error
    except (TypeError, ValueError) as error:
        message = f"{quote(name)} is not a function that makes a model."
        raise OptionError(message, option="model", value=name) from error


def _call_factory(name: str, options: Mapping[str, Any]) -> tuple[Model, Tokenizer]:
    """Return the model and the tokenizer that the user's factory makes."""
    factory, accepted = _find_factory(name)
    takes_any = any(one.kind is one.VAR_KEYWORD for one in accepted.values())
    for option, value in options.items():
        if option not in accepted and not takes_any:
            raise OptionError(
                f"The factory {quote(name)} has no parameter {option!r}: leave the option out.",
                option=option,
                value=value,
            )
    found = factory(**options)
    pair = (found.model, found.tokenizer) if isinstance(found, LM) else found
    if not isinstance(pair, tuple) or len(pair) != 2 or not isinstance(pair[1], Tokenizer):
        raise OptionError(
            f"The factory {quote(name)} must return a wavefront.LM, or a model and a Tokenizer, "
            f"not {type(found).__name__}.",
            option="model",
            value=name,
        )
    lacking = sorted(one for one in MODEL_NAMES if not hasattr(pair[0], one))
    if lacking:
        raise OptionError(
            f"The model of {quote(name)} lacks {', '.join(lacking)}; see wavefront.Model.",
            option="model",
            value=name,
        )
    return pair


def load(
    path: str | os.PathLike[str] = builtin.DEFAULT,
    *,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    revision: str | None = None,
    offline: bool = False,
    quantize: str | None = None,
    mask_id: int | None = None,
    attention: str | None = None,
    block_size: int | None = None,
    cuda_graphs: bool | None = None,
    compile: bool = False,
    speed: str = "exact",
) -> LM:
    """Load a checkpoint with its tokenizer, or your own model.

    Args:
        path: The name of a built-in model, a local directory, a Hub id, or `module:factory` for
            your own model. The factory returns an `LM`, or a model and its tokenizer. Options
            that you set are passed to it by name. This imports the module, so do not take such a
            name from an untrusted source.
        device: The device. The default is CUDA if it is available, otherwise the CPU.
        dtype: The precision. The default is the stored precision on CUDA, and float32 elsewhere.
        revision: The revision of a Hub checkpoint.
        offline: Use only files that are already on this machine.
        quantize: Quantise the linear layers while loading: "int8", "fp8" or "int4". By
            default, they stay as stored.
        mask_id: The id of the mask token. By default it comes from the files.
        attention: "bidirectional" or "block". The default depends on the model's family.
        block_size: The number of positions in an attention block. By default it comes from the
            checkpoint or its family.
        cuda_graphs: Whether to capture steps as CUDA graphs and replay them. By default, steps are
            captured on CUDA, and run directly if a capture fails. True raises an error instead.
        compile: Compile the model with `torch.compile`. This takes a minute or two. The compiled
            code is kept on disk, so the next start is faster.
        speed: "exact", "balanced" or "fast". It sets the precision here and the cache of every
            decode, unless you set them; see docs/speed.md.

    Raises:
        CheckpointError: The checkpoint is missing, damaged, or of an unsupported architecture, or
            its weights do not fit into the memory.
        OptionError: An option is wrong.
    """
    check_choice("speed", speed, SPEEDS)
    own = is_factory(path)
    if not own and dtype is None and computes_bfloat16(resolve_device(device)):
        dtype = SPEEDS[speed].cpu_dtype
    if own:
        given: dict[str, Any] = {
            "device": device,
            "dtype": dtype,
            "revision": revision,
            "offline": offline or None,
            "quantize": quantize,
            "mask_id": mask_id,
            "attention": attention,
            "block_size": block_size,
        }
        model, tokenizer = _call_factory(
            str(path), {name: value for name, value in given.items() if value is not None}
        )
    elif path == "toy":
        model, tokenizer = builtin.make_toy(
            device=device,
            dtype=dtype,
            quantize=quantize,
            attention=attention,
            block_size=block_size,
        )
        if mask_id not in (None, model.mask_id):
            raise OptionError(
                f"mask_id={quote(mask_id)} is not this model's mask id, {model.mask_id}.",
                option="mask_id",
                value=mask_id,
            )
    else:
        directory = locate(
            path, revision=revision, offline=offline, factory=True, check=find_family
        )
        tokenizer = Tokenizer.load(directory)  # first, so that a missing file is reported early
        model = load_model(
            directory,
            device=device,
            dtype=dtype,
            quantize=quantize,
            mask_id=mask_id,
            attention=attention,
            block_size=block_size,
        )
    if compile:
        compile_model(model)
    return LM(model, tokenizer, name=str(path), cuda_graphs=cuda_graphs, speed=speed)
