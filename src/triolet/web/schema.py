"""The bodies of completion and chat requests: strict types, and how they become parameters.

Knows nothing of the engine or of HTTP; the limits of numbers are those of :class:`SamplingParams`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Protocol, TypeVar

import msgspec
from msgspec import Meta, Struct

from triolet.errors import InvalidRequestError
from triolet.field_checks import check_int
from triolet.request import MAX_KEY_LENGTH, RequestOptions
from triolet.sampling_params import (
    MAX_BEAMS,
    MAX_LOGPROBS,
    BeamSearchParams,
    RequestOutputKind,
    SamplingParams,
)
from triolet.text.chat_template import check_variables
from triolet.web import stated_limits as limits
from triolet.web.body import decode_json
from triolet.web.fields import CHAT_NEUTRAL, COMPLETION_NEUTRAL, check_other_fields, is_neutral
from triolet.web.messages import Message
from triolet.web.structured_outputs import blaming_response_format, structured_outputs_of
from triolet.web.tools import Tool, ToolUse, tool_use_of

__all__ = [
    "ChatBody",
    "CheckedBody",
    "CommonBody",
    "CompletionBody",
    "GenerationBody",
    "StreamOptions",
    "decode_body",
]

MAX_PROMPTS = 128

TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]

_SAMPLING_FIELDS = (
    "n", "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty",
    "repetition_penalty", "logit_bias", "bad_words", "allowed_token_ids", "seed", "min_tokens", "stop",
    "stop_token_ids", "include_stop_str_in_output", "ignore_eos", "skip_special_tokens", "prompt_logprobs",
    "truncate_prompt_tokens",
)  # fmt: skip
_OPTION_FIELDS = ("priority", "cache_salt", "queue_timeout", "first_token_timeout", "timeout")
_NOT_IN_A_SEARCH = ("logprobs", "echo", "thinking_budget", "reasoning_budget")
_BEAM_FIELDS = ("length_penalty", "ignore_eos", "include_stop_str_in_output")
_IDLE_IN_A_SEARCH: Mapping[str, tuple[Any, ...]] = {
    "temperature": (0, 1), "top_p": (1,), "top_k": (0, -1), "min_p": (0,), "presence_penalty": (0,),
    "frequency_penalty": (0,), "repetition_penalty": (1,), "logit_bias": ({},), "bad_words": ([],),
    "min_tokens": (0,), "stop": ([],), "stop_token_ids": ([],), "skip_special_tokens": (True,),
    "logprobs": (False,), "echo": (False,),
}  # fmt: skip
"""Values of sampling fields that ask for nothing where beams are searched."""


class StreamOptions(Struct, forbid_unknown_fields=True):
    """``stream_options``. Obfuscation is a defence of hosted services and changes no text."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None
    continuous_usage_stats: bool | None = None


class CommonBody(Struct, kw_only=True):
    """What all bodies that ask for text have in common. None is "not given"."""

    neutral_fields: ClassVar[Mapping[str, tuple[Any, ...]]]

    model: str | None = None
    stream: bool | None = None
    min_tokens: limits.Count | None = None
    temperature: limits.Temperature | None = None
    top_p: limits.TopP | None = None
    top_k: limits.TopK | None = None
    min_p: limits.MinP | None = None
    presence_penalty: limits.Penalty | None = None
    frequency_penalty: limits.Penalty | None = None
    repetition_penalty: limits.RepetitionPenalty | None = None
    logit_bias: dict[str, limits.Bias] | None = None
    bad_words: list[limits.AnyText] | None = None
    allowed_token_ids: Annotated[list[TokenId], limits.stated(minItems=1)] | None = None
    seed: limits.Seed | None = None
    stop: limits.AnyText | list[limits.AnyText] | None = None
    stop_token_ids: list[TokenId] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    structured_outputs: Annotated[dict[str, Any], limits.stated(minProperties=1)] | None = None
    priority: limits.Priority | None = None
    cache_salt: str | None = None
    user: str | None = None
    queue_timeout: limits.Seconds | None = None
    first_token_timeout: limits.Seconds | None = None
    timeout: limits.Seconds | None = None

    def check(self) -> None:
        """Check what the types cannot say. Raises :class:`InvalidRequestError`."""

    def options(self, caller: str, timeout: float | None = None, rank: int | None = None) -> RequestOptions:
        """How to serve it; ``caller`` is who gets a fair share.

        ``timeout`` and ``rank`` are what headers ask for; of two time-outs the shorter one holds.
        """
        given = {name: getattr(self, name) for name in _OPTION_FIELDS if getattr(self, name) is not None}
        if timeout is not None:
            given["timeout"] = min(timeout, given.get("timeout", timeout))
        return RequestOptions(fairness_key=caller[:MAX_KEY_LENGTH], data_parallel_rank=rank, **given)


class GenerationBody(CommonBody, kw_only=True):
    """What completions and chat completions have in common."""

    stream_options: StreamOptions | None = None
    return_progress: bool | None = None
    n: limits.NumChoices | None = None
    max_tokens: limits.Count | None = None
    response_format: dict[str, Any] | None = None
    prompt_logprobs: limits.NumLogprobs | None = None
    truncate_prompt_tokens: limits.TruncatedLength | None = None
    use_beam_search: bool | None = None
    length_penalty: float | None = None

    @property
    def is_usage_included(self) -> bool:
        """Whether a stream ends with a chunk that tells the usage."""
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def is_usage_continuous(self) -> bool:
        """Whether each chunk of a stream tells the usage so far."""
        return bool(self.stream_options and self.stream_options.continuous_usage_stats)

    @property
    def num_choices(self) -> int:
        """Continuations of each prompt."""
        return 1 if self.n is None else self.n

    def check(self) -> None:
        if self.stream and self.prompt_logprobs is not None:
            raise InvalidRequestError(
                "prompt_logprobs: they do not come in a stream; send the request without stream",
                param="prompt_logprobs",
            )
        if self.return_progress and (not self.stream or self.use_beam_search):
            raise InvalidRequestError(
                "return_progress: allowed only with stream, and not with use_beam_search",
                param="return_progress",
            )
        if self.length_penalty not in (None, 1) and not self.use_beam_search:
            raise InvalidRequestError(
                "length_penalty: allowed only with use_beam_search", param="length_penalty"
            )
        if self.stream_options is None:
            return
        if not self.stream:
            raise InvalidRequestError("stream_options: allowed only with stream", param="stream_options")

    def options(self, caller: str, timeout: float | None = None, rank: int | None = None) -> RequestOptions:
        options = CommonBody.options(self, caller, timeout, rank)
        return replace(options, reports_prompt_progress=bool(self.return_progress))

    @contextmanager
    def blaming_its_own_fields(self) -> Iterator[None]:
        """What the engine finds wrong is said of the fields that were sent."""
        with blaming_response_format(self.response_format, self.structured_outputs):
            try:
                yield
            except InvalidRequestError as error:
                names = self._names_sent()
                if error.param not in names:
                    raise
                name = names[error.param]
                raise type(error)(error.message.replace(error.param, name), param=name) from error.__cause__

    def _names_sent(self) -> dict[str, str]:
        """What was sent for fields that only the engine knows under their names."""
        return {"beam_width": "n"}

    def _sampling_params(self, **chosen: Any) -> SamplingParams:
        given = {name: getattr(self, name) for name in _SAMPLING_FIELDS if getattr(self, name) is not None}
        if self.logit_bias is not None:
            given["logit_bias"] = _with_token_ids(self.logit_bias)
        given["structured_outputs"] = structured_outputs_of(self.response_format, self.structured_outputs)
        return SamplingParams(**(given | chosen), output_kind=RequestOutputKind.DELTA)

    def _beam_search_params(self, max_tokens: int | None) -> BeamSearchParams:
        """A search of ``n`` beams. Raises :class:`InvalidRequestError` for a field that has no part in it."""
        for name in sorted({*_SAMPLING_FIELDS, *_NOT_IN_A_SEARCH} - {"n", *_BEAM_FIELDS}):
            if not is_neutral(getattr(self, name, None), _IDLE_IN_A_SEARCH.get(name, ())):
                raise InvalidRequestError(f"{name}: not allowed with use_beam_search; remove it", param=name)
        if structured_outputs_of(self.response_format, self.structured_outputs) is not None:
            name = "structured_outputs" if self.structured_outputs else "response_format"
            raise InvalidRequestError(f"{name}: not allowed with use_beam_search; remove it", param=name)
        check_int("n", self.num_choices, 1, MAX_BEAMS)
        if max_tokens is None:
            raise InvalidRequestError("max_tokens: needed with use_beam_search", param="max_tokens")
        given = {name: getattr(self, name) for name in _BEAM_FIELDS if getattr(self, name) is not None}
        return BeamSearchParams(beam_width=self.num_choices, max_tokens=max_tokens, **given)


class CompletionBody(GenerationBody, kw_only=True):
    """``POST /v1/completions``. ``prompt`` is a text, token ids, or a list of either."""

    neutral_fields = COMPLETION_NEUTRAL
    DEFAULT_MAX_TOKENS: ClassVar[int] = 16

    prompt: str | list[str | TokenId | list[TokenId]]
    logprobs: limits.NumLogprobs | None = None
    suffix: str | None = None
    echo: bool | None = None
    best_of: int | None = None

    @property
    def is_prompt_only(self) -> bool:
        """Whether nothing is wanted but what the model makes of the prompt."""
        return self.max_tokens == 0 and bool(self.echo)

    def check(self) -> None:
        GenerationBody.check(self)
        if self.best_of not in (None, self.num_choices):
            raise InvalidRequestError(
                "best_of: all continuations are returned; leave it out, or make it n", param="best_of"
            )
        # They are about the prompt as the model reads it, which a suffix takes the place of.
        for name in ("echo", "truncate_prompt_tokens") if self.suffix else ():
            if getattr(self, name):
                raise InvalidRequestError(f"{name}: not with suffix; send one of them", param=name)

    def params(self) -> SamplingParams | BeamSearchParams:
        """How to choose the tokens."""
        max_tokens = self.DEFAULT_MAX_TOKENS if self.max_tokens is None else self.max_tokens
        if self.use_beam_search:
            return self._beam_search_params(max_tokens)
        chosen: dict[str, Any] = {"max_tokens": 1 if self.is_prompt_only else max_tokens}
        if self.echo and self.prompt_logprobs is None:
            chosen["prompt_logprobs"] = self.logprobs
        return self._sampling_params(logprobs=self.logprobs, **chosen)

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


class ChatBody(GenerationBody, kw_only=True):
    """``POST /v1/chat/completions``."""

    neutral_fields = CHAT_NEUTRAL

    messages: Annotated[list[Message], Meta(min_length=1)]
    max_completion_tokens: limits.Count | None = None
    logprobs: bool | None = None
    top_logprobs: limits.NumLogprobs | None = None
    tools: list[Tool] | None = None
    tool_choice: limits.ToolChoice | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    include_reasoning: bool | None = None
    thinking_budget: limits.Count | None = None
    reasoning_budget: limits.Count | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None

    def tool_use(self) -> ToolUse | None:
        """The tools that may be called. Raises :class:`InvalidRequestError` naming the field."""
        return tool_use_of(self.tools, self.tool_choice, self.parallel_tool_calls)

    def rendering(self) -> dict[str, Any]:
        """What the chat template is told besides the messages and the tools. Its variables stay a mapping of
        their own: their names are the caller's."""
        if self.continue_final_message and self.add_generation_prompt:
            raise InvalidRequestError(
                "continue_final_message: not allowed with add_generation_prompt; send one of them",
                param="continue_final_message",
            )
        variables = dict(self.chat_template_kwargs or {})
        check_variables(variables)
        if self.reasoning_effort is not None:
            variables.setdefault("reasoning_effort", self.reasoning_effort)
            if self.reasoning_effort == "none":
                variables.setdefault("enable_thinking", False)
        return {
            "chat_template_kwargs": variables,
            "add_generation_prompt": self.add_generation_prompt is not False,
            "continue_final_message": bool(self.continue_final_message),
        }

    def params(self) -> SamplingParams | BeamSearchParams:
        """How to choose the tokens."""
        max_tokens = self._max_tokens()
        self._check_top_logprobs()
        if self.use_beam_search:
            return self._beam_search_params(max_tokens)
        logprobs = (self.top_logprobs or 0) if self.logprobs else None
        budget = self._thinking_budget()
        return self._sampling_params(max_tokens=max_tokens, logprobs=logprobs, thinking_budget=budget)

    def _thinking_budget(self) -> int | None:
        if None not in (self.thinking_budget, self.reasoning_budget):
            raise InvalidRequestError(
                "reasoning_budget: it is another name of thinking_budget; send one of them",
                param="reasoning_budget",
            )
        return self.reasoning_budget if self.thinking_budget is None else self.thinking_budget

    def _max_tokens(self) -> int | None:
        if None not in (self.max_tokens, self.max_completion_tokens) and (
            self.max_tokens != self.max_completion_tokens
        ):
            raise InvalidRequestError(
                "max_tokens: it is the older name of max_completion_tokens; send one of them",
                param="max_tokens",
            )
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    def _check_top_logprobs(self) -> None:
        if self.top_logprobs is not None and not 0 <= self.top_logprobs <= MAX_LOGPROBS:
            raise InvalidRequestError(
                f"top_logprobs: must be an integer in [0, {MAX_LOGPROBS}], got {self.top_logprobs}",
                param="top_logprobs",
            )
        if self.top_logprobs and not self.logprobs:
            raise InvalidRequestError("top_logprobs: allowed only with logprobs", param="top_logprobs")

    def _names_sent(self) -> dict[str, str]:
        names = GenerationBody._names_sent(self)
        if self.max_tokens is None and self.max_completion_tokens is not None:
            names["max_tokens"] = "max_completion_tokens"
        if self.reasoning_budget is not None:
            names["thinking_budget"] = "reasoning_budget"
        return names

    def message_mappings(self) -> list[dict[str, Any]]:
        return [message.as_mapping(index) for index, message in enumerate(self.messages)]


def _with_token_ids(logit_bias: Mapping[str, float]) -> dict[int, float]:
    try:
        return {int(token_id): bias for token_id, bias in logit_bias.items()}
    except ValueError as exc:
        raise InvalidRequestError(
            f"logit_bias: its keys must be token ids: {exc}", param="logit_bias"
        ) from None


class CheckedBody(Protocol):
    """What :func:`decode_body` makes: a struct that knows which other fields ask for nothing."""

    neutral_fields: ClassVar[Mapping[str, tuple[Any, ...]]]
    __struct_fields__: ClassVar[tuple[str, ...]]

    def check(self) -> None:
        """Check what the types cannot say. Raises :class:`InvalidRequestError`."""


Body = TypeVar("Body", bound=CheckedBody)


def decode_body(data: bytes, kind: type[Body]) -> Body:
    """Decode and check a body. Raises :class:`InvalidRequestError` whose ``param`` names the wrong field."""
    fields = decode_json(data, dict[str, msgspec.Raw])
    body = decode_json(data, kind)
    check_other_fields(fields, kind.__struct_fields__, kind.neutral_fields)
    body.check()
    return body
