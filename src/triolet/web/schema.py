"""The bodies of completion and chat requests: strict types, and how they become sampling parameters.

Knows nothing of the engine or of HTTP; the limits of numbers are those of :class:`SamplingParams`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, ClassVar, TypeVar

import msgspec
from msgspec import Meta, Struct

from triolet.errors import InvalidRequestError
from triolet.sampling_params import MAX_LOGPROBS, RequestOutputKind, SamplingParams
from triolet.web.body import decode_json
from triolet.web.fields import CHAT_NEUTRAL, COMPLETION_NEUTRAL, check_other_fields

__all__ = [
    "ChatBody",
    "CompletionBody",
    "ContentPart",
    "GenerationBody",
    "Message",
    "StreamOptions",
    "decode_body",
]

MAX_PROMPTS = 128
ROLES = frozenset({"system", "developer", "user", "assistant"})

TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class StreamOptions(Struct, forbid_unknown_fields=True):
    """``stream_options``. Obfuscation is a defence of hosted services and changes no text."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None
    continuous_usage_stats: bool | None = None


class GenerationBody(Struct, kw_only=True):
    """What completions and chat completions have in common. None is "not given"."""

    neutral_fields: ClassVar[Mapping[str, tuple[Any, ...]]]

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[TokenId] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None

    @property
    def is_usage_included(self) -> bool:
        """Whether a stream ends with a chunk that tells the usage."""
        return bool(self.stream_options and self.stream_options.include_usage)

    def check(self) -> None:
        """Check what the types cannot say. Raises :class:`InvalidRequestError`."""
        if self.stream_options is None:
            return
        if not self.stream:
            raise InvalidRequestError("stream_options: allowed only with stream", param="stream_options")
        if self.stream_options.continuous_usage_stats:
            raise InvalidRequestError(
                "stream_options.continuous_usage_stats: this server does not support it; remove it",
                param="stream_options.continuous_usage_stats",
            )

    def _sampling_params(self, **chosen: Any) -> SamplingParams:
        given = {name: getattr(self, name) for name in _SAMPLING_FIELDS if getattr(self, name) is not None}
        if isinstance(self.stop, str):
            given["stop"] = (self.stop,)
        return SamplingParams(**(given | chosen), output_kind=RequestOutputKind.DELTA)


_SAMPLING_FIELDS = (
    "temperature", "top_p", "top_k", "min_p", "seed", "stop", "stop_token_ids",
    "include_stop_str_in_output", "ignore_eos", "skip_special_tokens",
)  # fmt: skip


class CompletionBody(GenerationBody, kw_only=True):
    """``POST /v1/completions``. ``prompt`` is a text, token ids, or a list of either."""

    neutral_fields = COMPLETION_NEUTRAL
    DEFAULT_MAX_TOKENS: ClassVar[int] = 16

    prompt: str | list[str | TokenId | list[TokenId]]
    logprobs: int | None = None

    def sampling_params(self) -> SamplingParams:
        max_tokens = self.DEFAULT_MAX_TOKENS if self.max_tokens is None else self.max_tokens
        return self._sampling_params(max_tokens=max_tokens, logprobs=self.logprobs)

    def prompts(self) -> list[str | list[int]]:
        """The prompts, one for each choice. Raises :class:`InvalidRequestError` for a mixed or empty list."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        kinds = {type(item) for item in self.prompt}
        if kinds == {int}:
            return [self.prompt]  # type: ignore[list-item]
        if kinds not in ({str}, {list}):
            raise InvalidRequestError(
                "prompt: must be a text, a list of token ids, or a list of either, and not empty",
                param="prompt",
            )
        if len(self.prompt) > MAX_PROMPTS:
            raise InvalidRequestError(
                f"prompt: at most {MAX_PROMPTS} prompts in one request, got {len(self.prompt)}",
                param="prompt",
            )
        return self.prompt  # type: ignore[return-value]


class ContentPart(Struct):
    """A part of a message. Only ``{"type": "text", "text": …}`` is served."""

    type: str
    text: str | None = None


class Message(Struct, forbid_unknown_fields=True):
    """One message of a chat. The fields after ``name`` are what clients send back with an old answer."""

    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None
    refusal: str | None = None
    annotations: list[Any] | None = None
    audio: Any = None
    function_call: Any = None
    tool_calls: Any = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None

    def as_mapping(self, index: int) -> dict[str, Any]:
        """The message as chat templates take it; ``developer`` is the newer name of ``system``."""
        where = f"messages[{index}]"
        for name in ("refusal", "audio", "function_call", "tool_calls", "tool_call_id", "reasoning_content"):
            if getattr(self, name):
                raise InvalidRequestError(
                    f"{where}.{name}: this server does not support it; remove it", param=f"{where}.{name}"
                )
        if self.role not in ROLES:
            raise InvalidRequestError(
                f"{where}.role: must be one of {', '.join(sorted(ROLES))}, got {self.role!r}",
                param=f"{where}.role",
            )
        role = "system" if self.role == "developer" else self.role
        message = {"role": role, "content": self._text(where)}
        return message | {"name": self.name} if self.name else message

    def _text(self, where: str) -> str:
        if isinstance(self.content, str):
            return self.content
        if self.content is None:
            if self.role != "assistant":
                raise InvalidRequestError(f"{where}.content: missing", param=f"{where}.content")
            return ""
        for number, part in enumerate(self.content):
            if part.type != "text" or part.text is None:
                raise InvalidRequestError(
                    f"{where}.content[{number}]: only parts of type 'text' are served, got {part.type!r}",
                    param=f"{where}.content[{number}]",
                )
        return "\n".join(part.text or "" for part in self.content)


class ChatBody(GenerationBody, kw_only=True):
    """``POST /v1/chat/completions``."""

    neutral_fields = CHAT_NEUTRAL

    messages: Annotated[list[Message], Meta(min_length=1)]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    add_generation_prompt: bool | None = None

    def sampling_params(self) -> SamplingParams:
        if None not in (self.max_tokens, self.max_completion_tokens) and (
            self.max_tokens != self.max_completion_tokens
        ):
            raise InvalidRequestError(
                "max_tokens: it is the older name of max_completion_tokens; send one of them",
                param="max_tokens",
            )
        if self.top_logprobs is not None and not 0 <= self.top_logprobs <= MAX_LOGPROBS:
            raise InvalidRequestError(
                f"top_logprobs: must be an integer in [0, {MAX_LOGPROBS}], got {self.top_logprobs}",
                param="top_logprobs",
            )
        if self.top_logprobs and not self.logprobs:
            raise InvalidRequestError("top_logprobs: allowed only with logprobs", param="top_logprobs")
        max_tokens = self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens
        logprobs = (self.top_logprobs or 0) if self.logprobs else None
        return self._sampling_params(max_tokens=max_tokens, logprobs=logprobs)

    @contextmanager
    def blaming_its_own_fields(self) -> Iterator[None]:
        """What is wrong with ``max_tokens`` is said of its newer name, where that was sent."""
        try:
            yield
        except InvalidRequestError as error:
            if error.param != "max_tokens" or self.max_tokens is not None:
                raise
            message = error.message.replace("max_tokens", "max_completion_tokens")
            raise type(error)(message, param="max_completion_tokens") from error.__cause__

    def message_mappings(self) -> list[dict[str, Any]]:
        return [message.as_mapping(index) for index, message in enumerate(self.messages)]


Body = TypeVar("Body", bound=GenerationBody)


def decode_body(data: bytes, kind: type[Body]) -> Body:
    """Decode and check a body. Raises :class:`InvalidRequestError` whose ``param`` names the wrong field."""
    fields = decode_json(data, dict[str, msgspec.Raw])
    body = decode_json(data, kind)
    check_other_fields(fields, kind.__struct_fields__, kind.neutral_fields)
    body.check()
    return body
