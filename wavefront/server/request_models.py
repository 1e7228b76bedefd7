"""The fields of request bodies, and the functions that read and validate a body.

Unknown and unsupported fields are rejected with an error that names the field.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
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

from wavefront.core.errors import EMPTY_PROMPT, did_you_mean
from wavefront.server.openai_format import APIError
from wavefront.server.worker_messages import CLIENT_GONE

# Fields of OpenAI's API without a counterpart here, with the values that have no effect.
UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "audio": (),
    "best_of": (1,),
    "echo": (False,),
    "frequency_penalty": (0,),
    "function_call": ("none",),
    "functions": ([],),
    "logit_bias": ({},),
    "logprobs": (False,),
    "min_p": (0,),
    "modalities": (["text"],),
    "n": (1,),
    "parallel_tool_calls": (True, False),
    "prediction": (),
    "presence_penalty": (0,),
    "reasoning_effort": (),
    "response_format": ({"type": "text"},),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_logprobs": (0,),
    "verbosity": (),
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

# JSON does not distinguish 8.0 from 8.
Int = Annotated[
    StrictInt,
    BeforeValidator(lambda v: int(v) if isinstance(v, float) and v.is_integer() else v),
]
TokenId = Annotated[Int, Field(ge=0, lt=1 << 31)]
PositiveInt = Annotated[Int, Field(ge=1, lt=1 << 31)]
Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
# The same words as in the library, repeated here for the schema.
Priority = Literal["confidence", "probability", "margin", "entropy", "random"]
Eos = Literal["keep", "stop", "defer", "suppress-logit", "suppress-confidence", "llada-confidence"]
Rule = Literal["llada", "dream"]
Remasking = Literal["low_confidence", "random"]
Algorithm = Literal["origin", "maskgit_plus", "topk_margin", "entropy"]

MAX_STOPS = 4
MAX_STOP_LENGTH = 256  # characters
MAX_OVERRIDES = 256


class StrictBody(BaseModel):
    """A body that rejects unknown and unsupported fields."""

    model_config = ConfigDict(extra="forbid")

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
                hint = did_you_mean(name[:64], cls.model_fields)
                raise _field_error(name, f"There is no field {name[:64]!r}{hint}.", "unknown_field")
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


class DecodingFields(StrictBody):
    """Decoding options, named as in `wavefront.Options`."""

    model: str | None = Field(None, max_length=512, description="The id listed by /v1/models.")
    strategy: str | None = Field(
        None, max_length=1000, description="A strategy such as wavefront(size=8, radius=2)."
    )
    max_new_tokens: PositiveInt | None = Field(
        None, description="Number of positions to fill; by default 128."
    )
    max_tokens: PositiveInt | None = Field(None, description="Same as max_new_tokens.")
    max_completion_tokens: PositiveInt | None = Field(None, description="Same as max_new_tokens.")
    gen_length: PositiveInt | None = Field(None, description="Same as max_new_tokens.")
    steps: PositiveInt | None = Field(
        None, description="Number of steps; by default one per position."
    )
    priority: Priority | None = Field(None, description="Score by which positions are chosen.")
    eos: Eos | None = Field(None, description="How to handle a stop token; by default stop.")
    temperature: Number | None = Field(None, ge=0, le=100)
    seed: Annotated[Int, Field(ge=0, lt=1 << 63)] | None = None
    sampling: Rule | None = None
    top_p: Number | None = Field(None, ge=0, le=1)
    top_k: Annotated[Int, Field(ge=0, lt=1 << 31)] | None = None
    order_noise: Number | None = Field(None, ge=0, le=1e6)
    cfg_scale: Number | None = Field(
        None, ge=0, le=100, description="Classifier-free guidance; by default 0, off."
    )
    fixed_budget: StrictBool | None = Field(
        None, description="Run every step of the budget, also steps that commit nothing."
    )
    speculate: Annotated[Int, Field(ge=0, le=8)] | None = Field(
        None, description="Steps drafted per forward pass; the answer stays the same."
    )
    cache: str | None = Field(
        None,
        max_length=1000,
        description="A cache policy such as wave(refresh=32); by default the server's.",
    )
    stop_ids: list[TokenId] | None = Field(None, max_length=64)
    block_length: PositiveInt | None = None
    block_size: PositiveInt | None = None
    max_wave_size: PositiveInt | None = None
    radius: PositiveInt | None = None
    remasking: Remasking | None = None
    eos_policy: Eos | None = None
    logits_eos_inf: StrictBool | None = None
    confidence_eos_eot_inf: StrictBool | None = None
    alg: Algorithm | None = None
    eps: Number | None = Field(None, ge=0, le=1)
    alg_temp: Number | None = Field(None, ge=0, le=1e6)
    timeout: Number | None = Field(
        None,
        gt=0,
        le=86400,
        description="Seconds after which the request is cancelled; at most the server's limit.",
    )
    user: str | None = Field(
        None, max_length=512, description="Clients and users take turns when requests wait."
    )
    stop: Annotated[str, Field(max_length=MAX_STOP_LENGTH)] | list[str] | None = Field(
        None, description="Up to four strings; the text ends before the first of them."
    )

    @model_validator(mode="after")
    def _check_stop(self) -> DecodingFields:
        stops = self.stops()
        if len(stops) > MAX_STOPS or any(not 0 < len(one) <= MAX_STOP_LENGTH for one in stops):
            raise _field_error("stop", "stop takes up to four non-empty strings.", "invalid")
        return self

    def stops(self) -> tuple[str, ...]:
        """Return the stop strings."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    def options(self) -> dict[str, Any]:
        """Return the decoding options that are set, under the library's names."""
        options = {
            name: getattr(self, name)
            for name in DecodingFields.model_fields
            if name not in ("model", "timeout", "user", "stop", "max_completion_tokens")
        }
        if self.max_completion_tokens is not None:
            # Some clients send max_tokens and max_completion_tokens with the same value.
            options["max_new_tokens"] = options["max_new_tokens"] or self.max_completion_tokens
            if options["max_tokens"] == self.max_completion_tokens:
                options["max_tokens"] = None
        return {name: value for name, value in options.items() if value is not None}


class StreamOptions(BaseModel):
    """OpenAI's options of a stream."""

    model_config = ConfigDict(extra="forbid")
    include_usage: StrictBool = False
    include_obfuscation: StrictBool = False  # accepted and ignored


class OpenAIBody(DecodingFields):
    """The fields that OpenAI's two completion routes share."""

    stream: StrictBool | None = None
    stream_options: StreamOptions | None = None
    metadata: dict[str, Any] | None = None
    events: StrictBool = Field(False, description="Keep every step for /v1/wavefront/decodes.")

    @model_validator(mode="after")
    def _check_stream_options(self) -> OpenAIBody:
        if self.stream_options is not None and not self.stream:
            message = "stream_options needs stream: true."
            raise _field_error("stream_options", message, "invalid")
        return self


class TextPart(BaseModel):
    """A text part of a message, as clients that also support images send it."""

    model_config = ConfigDict(extra="forbid")
    type: Literal["text"]
    text: str


class Message(BaseModel):
    """A chat message."""

    model_config = ConfigDict(extra="forbid")
    role: Literal["system", "user", "assistant", "developer"]
    content: str | list[TextPart]
    name: str | None = Field(None, max_length=64)

    def plain(self) -> dict[str, str]:
        """Return the message as the tokenizer takes it: one text, a role of the template."""
        text = self.content
        if not isinstance(text, str):
            text = "".join(part.text for part in text)
        return {"role": "system" if self.role == "developer" else self.role, "content": text}


class ChatBody(OpenAIBody):
    """The body of /v1/chat/completions."""

    messages: list[Message] = Field(min_length=1)


class CompletionBody(OpenAIBody):
    """The body of /v1/completions."""

    prompt: str | list[str] | list[TokenId]
    infill: StrictBool = Field(False, description="The prompt has holes such as <mask:8>.")

    @model_validator(mode="after")
    def _check_prompt(self) -> CompletionBody:
        self.prompt = _single_prompt(self.prompt)
        return self


class DecodeBody(DecodingFields):
    """The body of /v1/wavefront/decodes, which starts a decode with events."""

    prompt: str | list[str] | list[TokenId] | None = None
    messages: list[Message] | None = Field(None, min_length=1)
    raw: StrictBool = Field(False, description="Use the prompt without the chat template.")
    infill: StrictBool = False
    measure: StrictBool = Field(
        False, description="Read every masked position in each step, for the map and MHCO."
    )

    @model_validator(mode="after")
    def _check_prompt(self) -> DecodeBody:
        if (self.prompt is None) == (self.messages is None):
            raise _field_error("prompt", "Give either prompt or messages.", "invalid")
        if self.prompt is not None:
            self.prompt = _single_prompt(self.prompt)
        return self


class ForkBody(DecodingFields):
    """The body of a fork. Options that are not set are those of the original decode."""

    at: Annotated[Int, Field(ge=0, lt=1 << 31)] = Field(
        description="Number of steps to keep of the original decode."
    )
    put: dict[str, str | TokenId] = Field(
        default_factory=dict,
        description="Texts or token ids to write first, by position, counted from 0.",
    )
    measure: StrictBool = False

    def overrides(self) -> dict[int, str | int]:
        """Return `put` with its positions as integers.

        Raises:
            ValueError: A key is not a position, or there are too many.
        """
        keys_valid = all(key.isdecimal() and len(key) <= 9 for key in self.put)
        if len(self.put) > MAX_OVERRIDES or not keys_valid:
            raise ValueError("put")
        return {int(key): value for key, value in self.put.items()}


def _single_prompt(prompt: Any) -> Any:
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], str):
        if len(prompt) > 1:
            message = "prompt takes one text: send one request per prompt."
            raise _field_error("prompt", message, "unsupported_value")
        return prompt[0]
    if prompt == []:
        raise _field_error("prompt", EMPTY_PROMPT, "invalid")
    return prompt


AnyBody = TypeVar("AnyBody", bound=BaseModel)


async def read_json(request: Request) -> Any:
    """Read the JSON body of a request.

    Raises:
        APIError: The body is not JSON, or the client disconnected.
    """
    try:
        return json.loads(await request.body(), parse_constant=_reject_constant)
    except ClientDisconnect:
        raise APIError(400, CLIENT_GONE[0], code=CLIENT_GONE[1]) from None
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise APIError(400, f"The body is not JSON: {reason}.", code="invalid_json") from None


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
    raise APIError(400, f"{path or 'The body'}: {found['msg']}.", code=code, param=param)


def _reject_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


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
