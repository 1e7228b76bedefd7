"""Bodies: what a request may say, field by field; anything else is refused by its name."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictInt,
    model_validator,
)
from pydantic_core import PydanticCustomError

from wavefront.core.errors import did_you_mean

# What OpenAI's API has and a diffusion model does not, with the values that ask for nothing.
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
# Ours, where a server cannot give them.
NOT_HERE = {
    "cfg_scale": (0,),
    "fixed_budget": (False,),
    "draft": (0, 1),
    "cache": ("none",),
    "mask_id": (),
    "output_history": (False,),
    "trace": (False,),
}
WHY = {
    "cfg_scale": "guidance needs two rows for one",
    "fixed_budget": "forwards are shared, so none is spent idly",
    "draft": "a draft needs rows of its own",
    "cache": "the cache is chosen when the server is started",
    "output_history": "ask for events instead",
    "trace": "ask for events instead",
}

# JSON does not tell 8.0 from 8.
Int = Annotated[
    StrictInt,
    BeforeValidator(lambda v: int(v) if isinstance(v, float) and v.is_integer() else v),
]
Id = Annotated[Int, Field(ge=0, lt=1 << 31)]
Whole = Annotated[Int, Field(ge=1, lt=1 << 31)]
Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
# As the library has them; said here too, so that the schema can.
Priority = Literal["confidence", "probability", "margin", "entropy", "random"]
Eos = Literal["keep", "stop", "defer", "suppress-logit", "suppress-confidence", "llada-confidence"]
Rule = Literal["llada", "dream"]
Remasking = Literal["low_confidence", "random"]
Algorithm = Literal["origin", "maskgit_plus", "topk_margin", "entropy"]


class Body(BaseModel):
    """A base that forbids what it does not know."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _only_what_we_know(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        kept = {}
        for name, value in given.items():
            if name in cls.model_fields:
                kept[name] = value
                continue
            neutral = UNSUPPORTED.get(name, NOT_HERE.get(name))
            if neutral is None:
                near = did_you_mean(name[:64], cls.model_fields)
                raise _refusal(name, f"There is no field {name[:64]!r}{near}.", "unknown_field")
            if value is not None and not any(_same(value, one) for one in neutral):
                why = f": {WHY[name]}" if name in WHY else ""
                sentence = f"{name} is not supported here{why}; leave it out."
                raise _refusal(name, sentence, "unsupported_field")
        return kept


def _same(value: Any, other: Any) -> bool:
    if isinstance(value, bool) != isinstance(other, bool):
        return False
    return value == other


def _refusal(name: str, sentence: str, code: str) -> PydanticCustomError:
    # pydantic fills in templates: what is in braces would be taken for one.
    context = {"sentence": sentence, "field": name, "code": code}
    return PydanticCustomError("refused", "{sentence}", context)


class DecodingFields(Body):
    """How to decode: the options of `wavefront.Options`, under the same names."""

    model: str | None = Field(None, max_length=512, description="As listed by /v1/models.")
    strategy: str | None = Field(
        None, max_length=1000, description="A strategy such as wavefront(size=8, radius=2)."
    )
    max_new_tokens: Whole | None = Field(None, description="Places to fill; 128.")
    max_tokens: Whole | None = Field(None, description="The same.")
    max_completion_tokens: Whole | None = Field(None, description="The same.")
    gen_length: Whole | None = Field(None, description="The same.")
    steps: Whole | None = Field(None, description="Forward budget; one for each place.")
    priority: Priority | None = Field(None, description="What goes first.")
    eos: Eos | None = Field(None, description="What an end token does; stop.")
    temperature: Number | None = Field(None, ge=0, le=100)
    seed: Annotated[Int, Field(ge=0, lt=1 << 63)] | None = None
    sampling: Rule | None = None
    top_p: Number | None = Field(None, ge=0, le=1)
    top_k: Annotated[Int, Field(ge=0, lt=1 << 31)] | None = None
    order_noise: Number | None = Field(None, ge=0, le=1e6)
    stop_ids: list[Id] | None = Field(None, max_length=64)
    block_length: Whole | None = None
    block_size: Whole | None = None
    max_wave_size: Whole | None = None
    radius: Whole | None = None
    remasking: Remasking | None = None
    eos_policy: Eos | None = None
    logits_eos_inf: StrictBool | None = None
    confidence_eos_eot_inf: StrictBool | None = None
    alg: Algorithm | None = None
    eps: Number | None = Field(None, ge=0, le=1)
    alg_temp: Number | None = Field(None, ge=0, le=1e6)
    timeout: Number | None = Field(
        None, gt=0, le=86400, description="Seconds until it is given up; at most the server's."
    )
    user: str | None = Field(None, max_length=512, description="Whose turn it is, when many wait.")
    stop: Annotated[str, Field(max_length=256)] | list[str] | None = Field(
        None, description="The text ends before the first of these; at most four."
    )

    @model_validator(mode="after")
    def _whole(self) -> DecodingFields:
        stops = self.stops()
        if len(stops) > 4 or any(not 0 < len(one) <= 256 for one in stops):
            raise _refusal("stop", "stop takes at most four texts, none of them empty.", "invalid")
        return self

    def stops(self) -> tuple[str, ...]:
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    def options(self) -> dict[str, Any]:
        """What was said of decoding, under the library's names."""
        said = {
            name: getattr(self, name)
            for name in DecodingFields.model_fields
            if name not in ("model", "timeout", "user", "stop", "max_completion_tokens")
        }
        if self.max_completion_tokens is not None:
            # Clients send both names of one number.
            said["max_new_tokens"] = said["max_new_tokens"] or self.max_completion_tokens
            if said["max_tokens"] == self.max_completion_tokens:
                said["max_tokens"] = None
        return {name: value for name, value in said.items() if value is not None}


class StreamOptions(BaseModel):
    model_config = ConfigDict(extra="forbid")
    include_usage: StrictBool = False
    include_obfuscation: StrictBool = False  # for other servers; there is none here


class Answering(DecodingFields):
    """What OpenAI's two routes have in common."""

    stream: StrictBool | None = None
    stream_options: StreamOptions | None = None
    metadata: dict[str, Any] | None = None
    events: StrictBool = Field(False, description="Keep every step for /v1/wavefront/decodes.")

    @model_validator(mode="after")
    def _usage_of_streams(self) -> Answering:
        if self.stream_options is not None and not self.stream:
            sentence = "stream_options goes with stream: true; leave it out."
            raise _refusal("stream_options", sentence, "invalid")
        return self


class Part(BaseModel):
    """A piece of a message, as clients write it that also know images."""

    model_config = ConfigDict(extra="forbid")
    type: Literal["text"]
    text: str


class Message(BaseModel):
    model_config = ConfigDict(extra="forbid")
    role: Literal["system", "user", "assistant", "developer"]
    content: str | list[Part]
    name: str | None = Field(None, max_length=64)

    def plain(self) -> dict[str, str]:
        text = self.content
        if not isinstance(text, str):
            text = "".join(part.text for part in text)
        return {"role": "system" if self.role == "developer" else self.role, "content": text}


class Chat(Answering):
    """A conversation."""

    messages: list[Message] = Field(min_length=1)


class Complete(Answering):
    """A text to continue, or with holes to fill."""

    prompt: str | list[str] | list[Id]
    infill: StrictBool = Field(False, description="The prompt has holes such as <mask:8>.")

    @model_validator(mode="after")
    def _one_prompt(self) -> Complete:
        self.prompt = _one(self.prompt)
        return self


class Begin(DecodingFields):
    """A decode for a viewer: it goes on while nobody reads, for a while."""

    prompt: str | list[str] | list[Id] | None = None
    messages: list[Message] | None = Field(None, min_length=1)
    raw: StrictBool = Field(False, description="Continue the prompt, past the chat template.")
    infill: StrictBool = False
    measure: StrictBool = Field(False, description="Read every masked place, for map and MHCO.")

    @model_validator(mode="after")
    def _one_source(self) -> Begin:
        if (self.prompt is None) == (self.messages is None):
            raise _refusal("prompt", "Give prompt or messages, one of them.", "invalid")
        if self.prompt is not None:
            self.prompt = _one(self.prompt)
        return self


class Branch(DecodingFields):
    """A decode that goes on from a step of another; what it does not say is as it was there."""

    at: Annotated[Int, Field(ge=0, lt=1 << 31)] = Field(description="Steps to keep.")
    put: dict[str, str | Id] = Field(
        default_factory=dict, description="Places, from 0, to texts or token ids written there."
    )
    measure: StrictBool = False

    def places(self) -> dict[int, str | int]:
        if len(self.put) > 256 or any(not key.isdecimal() or len(key) > 9 for key in self.put):
            raise ValueError("put")
        return {int(key): value for key, value in self.put.items()}


def _one(prompt: Any) -> Any:
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], str):
        if len(prompt) > 1:
            sentence = "prompt takes one text: send one request for each."
            raise _refusal("prompt", sentence, "unsupported_value")
        return prompt[0]
    if prompt == []:
        raise _refusal("prompt", "The prompt is empty: write something in it.", "invalid")
    return prompt
