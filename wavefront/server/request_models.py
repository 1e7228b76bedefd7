"""The fields of request bodies, and the functions that read and validate a body.

Unknown and unsupported fields are rejected with an error that names the field.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictInt,
    ValidationError,
    model_validator,
)
from pydantic_core import PydanticCustomError
from starlette.requests import ClientDisconnect, Request

from wavefront.core.bounds import (
    DECODE_OPTIONS,
    MAX_BIASES,
    MAX_ITEMS,
    MAX_TOKEN_ID,
    TupleBounds,
)
from wavefront.core.errors import EMPTY_PROMPT, OptionError, did_you_mean
from wavefront.server.openai_format import APIError
from wavefront.server.worker_messages import CLIENT_GONE

# Fields of OpenAI's API that a body may lack here, with the values that have no effect.
UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "audio": (),
    "best_of": (1,),
    "echo": (False,),
    "frequency_penalty": (0,),
    "function_call": ("none",),
    "functions": ([],),
    "logprobs": (False,),
    "min_p": (0,),
    "modalities": (["text"],),
    "moderation": (),
    "n": (1,),
    "parallel_tool_calls": (True, False),
    "prediction": (),
    "presence_penalty": (0,),
    "prompt_cache_options": (),
    "reasoning_effort": ("none",),
    "response_format": ({"type": "text"},),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_logprobs": (0,),
    "verbosity": ("medium",),
    "web_search_options": (),
}
# Options of the library that the server does not offer, with the values that have no effect.
LIBRARY_ONLY: dict[str, tuple[Any, ...]] = {
    "mask_id": (),
    "output_history": (False,),
    "trace": (False,),
}
REASONS = {
    "output_history": "set events instead",
    "trace": "set events instead",
}


# Fields of OpenAI's API that cannot change an answer of this server. They are accepted as they are.
Hint = Annotated[str, Field(max_length=512)]


def _within(name: str) -> Any:
    """Return the bounds that the library checks for the decode option `name`."""
    bounds = DECODE_OPTIONS[name]
    assert not isinstance(bounds, TupleBounds)
    return Field(ge=bounds.low, le=bounds.high)


# JSON does not distinguish 8.0 from 8. It stands after the bounds, so that the schema shows them.
WHOLE = BeforeValidator(lambda v: int(v) if isinstance(v, float) and v.is_integer() else v)
TokenId = Annotated[StrictInt, Field(ge=0, le=MAX_TOKEN_ID), WHOLE]
NewTokens = Annotated[StrictInt, _within("max_new_tokens"), WHOLE]
BlockLength = Annotated[StrictInt, _within("block_length"), WHOLE]
# Lists stop at their first error: a body with many of them would cost seconds and gigabytes.
Texts = Annotated[list[str], Field(fail_fast=True)]
TokenIds = Annotated[list[TokenId], Field(fail_fast=True)]
Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
# The same words as in the library, repeated here for the schema.
Priority = Literal["confidence", "probability", "margin", "entropy", "random"]
Eos = Literal[
    "keep", "stop", "stop-block", "defer",
    "suppress-logit", "suppress-confidence", "llada-confidence",
]  # fmt: skip
Rule = Literal["llada", "dream"]
Speed = Literal["exact", "balanced", "fast"]
Remasking = Literal["low_confidence", "random"]
Algorithm = Literal["origin", "maskgit_plus", "topk_margin", "entropy"]

MAX_DIGITS = 100  # of a number; a longer one may not fit into a float
SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")
MAX_CHOICES = 128
FunctionName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
_PLAIN = {"type": ["string", "number", "boolean", "null"]}
# Any JSON object whose lists and objects hold plain values. Deeper ones need a schema.
JSON_OBJECT = {
    "type": "object",
    "additionalProperties": {
        "anyOf": [
            _PLAIN,
            {"type": "array", "items": _PLAIN},
            {"type": "object", "additionalProperties": _PLAIN},
        ]
    },
}
# Fields that set the same option: the library's name first.
SAME_FIELDS = (
    ("max_new_tokens", "max_completion_tokens", "max_tokens", "gen_length"),
    ("block_length", "block_size"),
    ("eos", "eos_policy"),
)
MAX_STOPS = 4
MAX_STOP_LENGTH = 256  # characters
MAX_OVERRIDES = 256


class ClosedModel(BaseModel):
    """A part of a body that has no other fields."""

    model_config = ConfigDict(extra="forbid")


class StrictBody(ClosedModel):
    """A body that rejects unknown and unsupported fields."""

    @model_validator(mode="before")
    @classmethod
    def _reject_unknown_fields(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        kept = {}
        for name, value in given.items():
            if name in cls.model_fields:
                kept[name] = value
                continue
            neutral = UNSUPPORTED.get(name, LIBRARY_ONLY.get(name))
            if neutral is None:
                name = name[:64]
                hint = did_you_mean(name, cls.model_fields)
                raise _field_error(name, f"There is no field {name!r}{hint}.", "unknown_field")
            if value is not None and not any(_equal(value, one) for one in neutral):
                reason = f" ({REASONS[name]})" if name in REASONS else ""
                message = f"{name} is not supported here{reason}: leave it out."
                raise _field_error(name, message, "unsupported_field")
        return kept


def _equal(value: Any, other: Any) -> bool:
    if isinstance(value, bool) != isinstance(other, bool):
        return False
    return value == other


def _field_error(name: str, message: str, code: str) -> PydanticCustomError:
    # Pass the message as a value: pydantic would interpret braces in a template.
    context = {"message": message, "field": name, "code": code}
    return PydanticCustomError("field", "{message}", context)


def _check_bias(value: Any) -> Any:
    """Check a logit bias, and stop at its first error."""
    if not isinstance(value, dict):
        return value
    if len(value) > MAX_BIASES:
        message = f"logit_bias has {len(value)} entries; the limit is {MAX_BIASES}."
        raise _field_error("logit_bias", message, "invalid_value")
    bounds = DECODE_OPTIONS["logit_bias"]
    for token, bias in value.items():
        if not (token.isascii() and token.isdecimal() and len(token) <= 10):
            message = f"logit_bias maps token ids to numbers, and {token[:64]!r} is not a token id."
            raise _field_error("logit_bias", message, "invalid_value")
        try:
            bounds.check("logit_bias", bias)
        except OptionError as error:
            raise _field_error("logit_bias", str(error), "invalid_value") from None
    return value


class DecodingFields(StrictBody):
    """Decoding options, named as in `wavefront.Options`."""

    model: str | None = Field(None, max_length=512, description="The id listed by /v1/models.")
    strategy: str | None = Field(
        None, max_length=1000, description="A strategy such as wavefront(size=8, radius=2)."
    )
    max_new_tokens: NewTokens | None = Field(
        None, description="Number of positions to fill. Default: 128."
    )
    max_tokens: NewTokens | None = Field(None, description="Same as max_new_tokens.")
    max_completion_tokens: NewTokens | None = Field(None, description="Same as max_new_tokens.")
    gen_length: NewTokens | None = Field(None, description="Same as max_new_tokens.")
    steps: Annotated[StrictInt, _within("steps"), WHOLE] | None = Field(
        None, description="Maximum number of steps. Default: one per position."
    )
    priority: Priority | None = Field(None, description="Score by which positions are chosen.")
    eos: Eos | None = Field(None, description="How to handle a stop token. Default: stop.")
    temperature: Annotated[Number, _within("temperature")] | None = None
    seed: Annotated[StrictInt, _within("seed"), WHOLE] | None = None
    sampling: Rule | None = None
    top_p: Annotated[Number, _within("top_p")] | None = None
    top_k: Annotated[StrictInt, _within("top_k"), WHOLE] | None = None
    order_noise: Annotated[Number, _within("order_noise")] | None = None
    cfg_scale: Annotated[Number, _within("cfg_scale")] | None = Field(
        None, description="Classifier-free guidance. Default: 0 (off)."
    )
    fixed_budget: StrictBool | None = Field(
        None, description="Run every step of the budget, even steps that commit nothing."
    )
    speculate: Annotated[StrictInt, _within("speculate"), WHOLE] | None = Field(
        None, description="Steps drafted per forward pass; the answer stays the same."
    )
    cache: str | None = Field(
        None,
        max_length=1000,
        description="A cache policy such as wave(refresh=32). Default: the server's.",
    )
    speed: Speed | None = Field(
        None,
        description="Trade exactness for time; exact uses no cache. Default: the server's.",
    )
    stop_ids: TokenIds | None = Field(None, max_length=MAX_ITEMS)
    logit_bias: (
        Annotated[dict[str, Annotated[Number, _within("logit_bias")]], BeforeValidator(_check_bias)]
        | None
    ) = Field(
        None,
        max_length=MAX_BIASES,
        description="Token ids, and what to add to their logits before anything reads them.",
    )
    block_length: BlockLength | None = None
    block_size: BlockLength | None = None
    max_wave_size: Annotated[StrictInt, _within("max_wave_size"), WHOLE] | None = None
    radius: Annotated[StrictInt, _within("radius"), WHOLE] | None = None
    remasking: Remasking | None = None
    eos_policy: Eos | None = None
    logits_eos_inf: StrictBool | None = None
    confidence_eos_eot_inf: StrictBool | None = None
    alg: Algorithm | None = None
    eps: Annotated[Number, _within("eps")] | None = None
    alg_temp: Annotated[Number, _within("alg_temp")] | None = None
    timeout: Number | None = Field(
        None,
        gt=0,
        le=86400,
        description="Seconds after which the request is cancelled; at most the server's limit.",
    )
    user: str | None = Field(
        None, max_length=512, description="Clients and users take turns when requests wait."
    )
    stop: Annotated[str, Field(max_length=MAX_STOP_LENGTH)] | Texts | None = Field(
        None, description="Up to four strings; the text ends before the first of them."
    )

    regex: Annotated[str, Field(max_length=1 << 16)] | None = Field(
        None, description="A regular expression that the whole answer must match."
    )
    choices: Texts | None = Field(
        None, min_length=1, max_length=1 << 12, description="The possible answers."
    )

    @model_validator(mode="after")
    def _check_constraint(self) -> DecodingFields:
        source = self.schema_source()
        found = [name for name in ("regex", "choices") if getattr(self, name) is not None]
        found += [] if source is None else [source[0]]
        if len(found) > 1:
            message = f"{found[0]} and {found[1]} cannot be combined: use one of them."
            raise _field_error(found[0], message, "invalid_value")
        if found and self.stop:
            message = f"stop cannot be combined with {found[0]}: it would cut the answer."
            raise _field_error("stop", message, "invalid_value")
        return self

    def schema_source(self) -> tuple[str, Any] | None:
        """Return the field that asks for JSON, and the schema of the answer; None if none does."""
        return None

    @model_validator(mode="after")
    def _check_stop(self) -> DecodingFields:
        stops = self.stops()
        if len(stops) > MAX_STOPS or any(not 0 < len(stop) <= MAX_STOP_LENGTH for stop in stops):
            raise _field_error("stop", "stop takes up to four non-empty strings.", "invalid_value")
        return self

    def stops(self) -> tuple[str, ...]:
        """Return the stop strings."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @model_validator(mode="after")
    def _check_same_options(self) -> DecodingFields:
        for names in SAME_FIELDS:
            # Some clients send max_tokens and max_completion_tokens with the same value.
            first, *others = self._set_fields(names) or [""]
            for other in others:
                if getattr(self, other) != getattr(self, first):
                    message = f"{first} and {other} set the same thing: give one of them."
                    raise _field_error(other, message, "invalid_value")
        return self

    def _set_fields(self, names: Sequence[str]) -> list[str]:
        return [name for name in names if getattr(self, name) is not None]

    def options(self) -> dict[str, Any]:
        """Return the decoding options that are set, under the library's names."""
        others = {name for names in SAME_FIELDS for name in names}
        options = {
            name: getattr(self, name)
            for name in DecodingFields.model_fields
            if name not in ("model", "timeout", "user", "stop", *others)
        }
        for names in SAME_FIELDS:
            if found := self._set_fields(names):
                options[names[0]] = getattr(self, found[0])
        if (source := self.schema_source()) is not None:
            options["schema"] = json.dumps(source[1], ensure_ascii=False)
        return {name: value for name, value in options.items() if value is not None}

    def field_names(self) -> dict[str, str]:
        """Return the fields that set options of another name, by option."""
        found = {names[0]: used[0] for names in SAME_FIELDS if (used := self._set_fields(names))}
        if (source := self.schema_source()) is not None:
            found["schema"] = source[0]
        return {option: name for option, name in found.items() if option != name}


class StreamOptions(ClosedModel):
    """OpenAI's stream options."""

    include_usage: StrictBool = False
    include_obfuscation: StrictBool = False  # accepted and ignored


class JsonSchema(ClosedModel):
    """The schema of an answer, and its name."""

    name: FunctionName
    description: str | None = None
    content: dict[str, Any] | None = Field(None, alias="schema")
    strict: StrictBool | None = Field(None, description="Ignored: every answer matches the schema.")


class AnswerFormat(ClosedModel):
    """OpenAI's response format."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class FormattedFields(DecodingFields):
    """The decoding options, and the format of the answer."""

    response_format: AnswerFormat | None = Field(
        None, description="json_object: a JSON object. json_schema: JSON that matches the schema."
    )

    @model_validator(mode="after")
    def _check_format(self) -> FormattedFields:
        form = self.response_format
        if form is not None and (form.type == "json_schema") != (form.json_schema is not None):
            message = "response_format needs json_schema with type json_schema, and only then."
            raise _field_error("response_format", message, "invalid_value")
        return self

    def schema_source(self) -> tuple[str, Any] | None:
        form = self.response_format
        if form is None or form.type == "text":
            return None
        given = None if form.json_schema is None else form.json_schema.content
        return "response_format", JSON_OBJECT if given is None else given


class OpenAIBody(FormattedFields):
    """The fields that OpenAI's two completion routes share."""

    stream: StrictBool | None = None
    stream_options: StreamOptions | None = None
    metadata: dict[str, Any] | None = None
    events: StrictBool = Field(False, description="Keep every step for /v1/wavefront/decodes.")
    n: Annotated[StrictInt, Field(ge=1, le=MAX_CHOICES), WHOLE] | None = Field(
        None,
        description="Number of choices. Choice i uses seed + i; at temperature 0 all are equal.",
    )

    @model_validator(mode="after")
    def _check_choices(self) -> OpenAIBody:
        if self.events and self.choice_count > 1:
            raise _field_error("events", "events needs n: 1.", "invalid_value")
        return self

    @property
    def choice_count(self) -> int:
        """The number of answers."""
        return self.n or 1

    @model_validator(mode="after")
    def _check_stream_options(self) -> OpenAIBody:
        if self.stream_options is not None and not self.stream:
            message = "stream_options needs stream: true."
            raise _field_error("stream_options", message, "invalid_value")
        return self


class TextPart(ClosedModel):
    """A text part of a message, as clients that also support images send it."""

    type: Literal["text"]
    text: str


class CalledFunction(ClosedModel):
    """The function of an earlier call, and its arguments as a JSON text."""

    name: str = Field(max_length=64)
    arguments: str


class ToolCall(ClosedModel):
    """A call of a function in an earlier answer."""

    id: str = Field(max_length=128)
    type: Literal["function"] = "function"
    function: CalledFunction


class Message(ClosedModel):
    """A chat message. An answer that called functions can be sent back, with their results."""

    role: Literal["system", "user", "assistant", "developer", "tool"]
    content: str | Annotated[list[TextPart], Field(fail_fast=True)] | None = None
    name: str | None = Field(None, max_length=64)
    tool_calls: Annotated[list[ToolCall], Field(fail_fast=True, max_length=128)] | None = None
    tool_call_id: str | None = Field(None, max_length=128)
    # Fields of an answer that clients send back empty.
    refusal: None = None
    annotations: Annotated[list[Any], Field(max_length=0)] | None = None
    audio: None = None
    function_call: None = None

    @model_validator(mode="after")
    def _check_fields(self) -> Message:
        message = ""
        if self.tool_calls and self.role != "assistant":
            message = "only a message with the role assistant has tool_calls."
        elif (self.role == "tool") != (self.tool_call_id is not None):
            message = "a message has tool_call_id if its role is tool, and only then."
        elif self.content is None and not self.tool_calls:
            message = "content must be a text."
        if message:
            raise _field_error("messages", f"messages: {message}", "invalid_value")
        return self

    def text(self) -> str:
        """Return the content as one text, and the arguments of calls as the model wrote them."""
        found = self.content or ""
        if not isinstance(found, str):
            found = "".join(part.text for part in found)
        calls = [call.function.arguments for call in self.tool_calls or ()]
        return "\n".join([*([found] if found or not calls else []), *calls])

    def plain(self, calls: Mapping[str, str]) -> dict[str, str]:
        """Return the message as the tokenizer expects it: one text, and a role of the template.

        Templates have no role for results of functions, so the user says what a function returned.
        `calls` are the names of the functions by the ids of their calls.
        """
        if self.role == "tool":
            name = calls[self.tool_call_id or ""]
            return {"role": "user", "content": f"The function {name} returned: {self.text()}"}
        return {"role": "system" if self.role == "developer" else self.role, "content": self.text()}


def _called_functions(messages: Sequence[Message]) -> dict[str, str]:
    """Return the names of the functions that the messages call, by the ids of the calls."""
    made = [call for message in messages for call in message.tool_calls or ()]
    return {call.id: call.function.name for call in made}


def _check_results(messages: list[Message]) -> list[Message]:
    calls = _called_functions(messages)
    for message in messages:
        if message.role == "tool" and message.tool_call_id not in calls:
            text = f"messages: no message has the call {message.tool_call_id!r}."
            raise _field_error("messages", text, "invalid_value")
    return messages


def plain_messages(messages: Sequence[Message]) -> list[dict[str, str]]:
    """Return messages as the tokenizer expects them."""
    calls = _called_functions(messages)
    return [message.plain(calls) for message in messages]


Messages = Annotated[list[Message], Field(fail_fast=True), AfterValidator(_check_results)]


class FunctionSpec(ClosedModel):
    """A function that a client offers."""

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: StrictBool | None = Field(None, description="Ignored: arguments match the schema.")

    @model_validator(mode="after")
    def _check_parameters(self) -> FunctionSpec:
        given = self.parameters or {}
        other = {"$ref", "anyOf", "oneOf", "allOf", "enum", "const"}.intersection(given)
        if given.get("type", "object") != "object" or other:
            message = "parameters must be the schema of an object: set its type to object."
            raise _field_error("tools", message, "invalid_value")
        return self

    def schema_of_arguments(self) -> dict[str, Any]:
        """Return the schema of the arguments, an object. Without parameters, it is empty."""
        if self.parameters is None or not self.parameters.get("properties", True):
            return {"type": "object", "additionalProperties": False}
        return {"type": "object", **self.parameters}

    def describe(self) -> str:
        """Return what the model is told about the function."""
        about = "" if self.description is None else f" {self.description.strip()}"
        schema = json.dumps(self.schema_of_arguments(), ensure_ascii=False)
        return (
            f"Call the function {self.name}.{about} Answer with its arguments as a JSON object "
            f"that matches this schema: {schema}"
        )


class Tool(ClosedModel):
    """A tool that a client offers."""

    type: Literal["function"]
    function: FunctionSpec


class ToolName(ClosedModel):
    """The name of the chosen function."""

    name: FunctionName


class ToolChoice(ClosedModel):
    """The choice of one function."""

    type: Literal["function"]
    function: ToolName


class ChatBody(OpenAIBody):
    """The body of /v1/chat/completions."""

    messages: Messages = Field(min_length=1)
    logprobs: StrictBool | None = Field(
        None, description="Return the log-probability of each token at the step that committed it."
    )
    top_logprobs: Annotated[StrictInt, _within("logprobs"), WHOLE] | None = Field(
        None, description="How many of the likeliest tokens at that step to return."
    )
    tools: Annotated[list[Tool], Field(fail_fast=True, max_length=128)] | None = Field(
        None, description="Functions. The answer calls the one that tool_choice names."
    )
    tool_choice: Literal["none", "auto", "required"] | ToolChoice | None = Field(
        None,
        description="The function to call, or none; required if there is one. The model cannot "
        "choose by itself, so auto is refused.",
    )
    prompt_cache_key: Hint | None = Field(None, description="Ignored.")
    prompt_cache_retention: Hint | None = Field(None, description="Ignored.")
    safety_identifier: Hint | None = Field(None, description="Ignored.")

    @model_validator(mode="after")
    def _check_tools(self) -> ChatBody:
        names = [tool.function.name for tool in self.tools or ()]
        choice = self.tool_choice
        if isinstance(choice, ToolChoice):
            if choice.function.name not in names:
                message = f"tool_choice names {choice.function.name!r}, which is not in tools."
                raise _field_error("tool_choice", message, "invalid_value")
        elif choice == "required" and len(names) != 1:
            message = "tool_choice: with several tools, or none, name the function to call."
            raise _field_error("tool_choice", message, "unsupported_value")
        elif names and choice in (None, "auto"):
            message = (
                "tool_choice: the model cannot choose whether to call a function. Name one, such "
                f'as {{"type": "function", "function": {{"name": "{names[0]}"}}}}, or send "none".'
            )
            raise _field_error("tool_choice", message, "unsupported_value")
        if self.forced_tool() is not None and super().schema_source() is not None:
            message = "response_format cannot be combined with a function to call."
            raise _field_error("response_format", message, "invalid_value")
        return self

    def forced_tool(self) -> FunctionSpec | None:
        """Return the function that the answer calls, or None if it calls none."""
        found = [tool.function for tool in self.tools or ()]
        if isinstance(self.tool_choice, ToolChoice):
            name = self.tool_choice.function.name
            return next((one for one in found if one.name == name), None)
        return found[0] if found and self.tool_choice == "required" else None

    def schema_source(self) -> tuple[str, Any] | None:
        tool = self.forced_tool()
        return super().schema_source() if tool is None else ("tools", tool.schema_of_arguments())

    def plain_messages(self) -> list[dict[str, str]]:
        """Return the messages as the tokenizer expects them, with the function to call."""
        messages = plain_messages(self.messages)
        tool = self.forced_tool()
        if tool is None:
            return messages
        if messages[0]["role"] != "system":
            return [{"role": "system", "content": tool.describe()}, *messages]
        content = f"{messages[0]['content']}\n\n{tool.describe()}"
        return [{"role": "system", "content": content}, *messages[1:]]

    @model_validator(mode="after")
    def _check_logprobs(self) -> ChatBody:
        if self.top_logprobs and not self.logprobs:
            message = "top_logprobs needs logprobs: true."
            raise _field_error("top_logprobs", message, "invalid_value")
        return self

    def options(self) -> dict[str, Any]:
        options = super().options()
        return options | {"logprobs": self.top_logprobs or 0} if self.logprobs else options


class CompletionBody(OpenAIBody):
    """The body of /v1/completions."""

    prompt: str | Texts | TokenIds
    infill: StrictBool = Field(False, description="The prompt has holes such as <mask:8>.")
    logprobs: Annotated[
        Annotated[StrictInt, _within("logprobs"), WHOLE] | None,
        BeforeValidator(lambda value: None if value is False else value),
    ] = Field(
        None,
        description="Return the log-probability of each token at the step that committed it, and "
        "this many of the likeliest tokens at that step.",
    )

    def options(self) -> dict[str, Any]:
        options = super().options()
        return options if self.logprobs is None else options | {"logprobs": self.logprobs}

    @model_validator(mode="after")
    def _check_prompt(self) -> CompletionBody:
        self.prompt = _single_prompt(self.prompt)
        return self


class DecodeBody(FormattedFields):
    """The body of /v1/wavefront/decodes, which starts a decode with events."""

    prompt: str | Texts | TokenIds | None = None
    messages: Messages | None = Field(None, min_length=1)
    raw: StrictBool = Field(False, description="Use the prompt without the chat template.")
    infill: StrictBool = False
    measure: StrictBool = Field(
        False, description="Read every masked position in each step, for the map and MHCO."
    )

    @model_validator(mode="after")
    def _check_prompt(self) -> DecodeBody:
        if (self.prompt is None) == (self.messages is None):
            raise _field_error("prompt", "Give either prompt or messages.", "invalid_value")
        if self.prompt is not None:
            self.prompt = _single_prompt(self.prompt)
        return self


def _check_put_size(value: Any) -> Any:
    if isinstance(value, dict) and len(value) > MAX_OVERRIDES:
        message = f"put takes at most {MAX_OVERRIDES} positions."
        raise _field_error("put", message, "invalid_value")
    return value


class ForkBody(DecodingFields):
    """The body of a fork. Options that are not set are taken from the original decode."""

    at: Annotated[StrictInt, Field(ge=0, lt=1 << 31), WHOLE] = Field(
        description="Number of steps to keep of the original decode."
    )
    put: Annotated[dict[str, str | TokenId], BeforeValidator(_check_put_size)] = Field(
        default_factory=dict,
        description="Texts or token ids to write first, by position, counted from 0.",
    )
    measure: StrictBool = False

    def overrides(self) -> dict[int, str | int]:
        """Return `put` with its positions as integers.

        Raises:
            ValueError: A key is not a position.
        """
        keys_valid = all(key.isdecimal() and len(key) <= 9 for key in self.put)
        if not keys_valid:
            raise ValueError("put")
        return {int(key): value for key, value in self.put.items()}


def _single_prompt(prompt: Any) -> Any:
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], str):
        if len(prompt) > 1:
            message = "prompt takes one text: send one request per prompt."
            raise _field_error("prompt", message, "unsupported_value")
        return prompt[0]
    if prompt == []:
        raise _field_error("prompt", EMPTY_PROMPT, "invalid_value")
    return prompt


AnyBody = TypeVar("AnyBody", bound=BaseModel)


async def read_json(request: Request) -> Any:
    """Read the JSON body of a request.

    The rules are stricter than for `json.loads`: UTF-8 only, no lone surrogates, no key twice
    in an object, no NaN or infinity, and no number of more than `MAX_DIGITS` digits.

    Raises:
        APIError: The body is not JSON, or the client disconnected.
    """
    try:
        text = (await request.body()).decode("utf-8-sig")
        content = json.loads(
            text,
            parse_constant=_reject_constant,
            parse_int=_read_int,
            parse_float=_read_float,
            object_pairs_hook=_read_object,
        )
        # Only an escape such as \ud800 can produce a lone surrogate.
        if SURROGATE_ESCAPE.search(text):
            _reject_surrogates(content)
    except ClientDisconnect:
        raise APIError(400, CLIENT_GONE[0], code=CLIENT_GONE[1]) from None
    except UnicodeDecodeError as error:
        message = f"The body is not UTF-8: byte {error.start} is invalid."
        raise APIError(400, message, code="invalid_json") from None
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise APIError(400, f"The body is not JSON: {reason}.", code="invalid_json") from None
    return content


def _reject_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def _read_int(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise ValueError(f"a number has more than {MAX_DIGITS} digits")
    return int(text)


def _read_float(text: str) -> float:
    value = float(text) if len(text) <= MAX_DIGITS else math.inf
    if math.isinf(value):
        raise ValueError(f"the number {text[:20]} is too large or has too many digits")
    return value


def _read_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"the key {twice[:64]!r} appears twice")
    return content


def _reject_surrogates(content: Any) -> None:
    """Raise an `APIError` that names the top-level field if a string is not valid Unicode."""
    fields = content.items() if isinstance(content, dict) else [(None, content)]
    for name, value in fields:
        if _is_unicode(name) and _is_unicode(value):
            continue
        param = name if _is_unicode(name) else None
        text = f"{param or 'The body'} has a lone surrogate: send complete characters."
        raise APIError(400, text, code="invalid_value", param=param)


def _is_unicode(value: Any) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def validate(kind: type[AnyBody], content: Any) -> AnyBody:
    """Validate a body.

    Raises:
        APIError: The body is invalid; the error names the first wrong field.
    """
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)[0]
    except RecursionError:
        raise APIError(400, "The body is nested too deeply.", code="invalid_value") from None
    context = found.get("ctx", {})
    if found["type"] == "field":
        raise APIError(400, context["message"], code=context["code"], param=context["field"])
    location = found["loc"]
    param = str(location[0]) if location else None
    # For a union, pydantic appends the name of the type, which starts with a capital letter.
    path = ".".join(str(part) for part in location if isinstance(part, int) or part.islower())
    code = "missing_field" if found["type"] == "missing" else "invalid_value"
    text = f"{path or 'The body'}: {found['msg']}."
    if found["type"] == "extra_forbidden":
        text = f"There is no field {path}.{_PLACES.get(path, '')}"
    raise APIError(400, text, code=code, param=param)


# Where a field belongs that OpenAI's format has elsewhere.
_PLACES = {
    "response_format.schema": " Put the schema into response_format.json_schema.schema.",
    "response_format.name": " Put the name into response_format.json_schema.name.",
    "response_format.strict": " Put it into response_format.json_schema.strict.",
}


def schema(kind: type[BaseModel]) -> dict[str, Any]:
    """Return the JSON schema of a body without references, as OpenAPI needs it at a route."""
    root = kind.model_json_schema()
    definitions = root.pop("$defs", {})

    def inline(node: Any) -> Any:
        if isinstance(node, dict):
            if "$ref" in node:
                return inline(definitions[node["$ref"].rpartition("/")[2]])
            return {key: inline(value) for key, value in node.items()}
        return [inline(one) for one in node] if isinstance(node, list) else node

    content = {"application/json": {"schema": inline(root)}}
    return {"requestBody": {"required": True, "content": content}}
