"""The body of a request for a response: strict types, and the chat it asks for.

Knows neither the items of the input nor how a response is written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from triolet.errors import InvalidRequestError
from triolet.request import RequestOptions
from triolet.sampling_params import MAX_COUNT
from triolet.web.fields import RESPONSES_NEUTRAL
from triolet.web.schema import ChatBody, CommonBody
from triolet.web.stated_limits import NumLogprobs, ToolChoice, stated
from triolet.web.tools import Function, Tool

__all__ = [
    "FunctionTool",
    "ReasoningOptions",
    "ResponseStreamOptions",
    "ResponsesBody",
    "TextOptions",
    "blaming_response_fields",
]

LOGPROBS = "message.output_text.logprobs"
MAX_METADATA = 16
INCLUDABLE = frozenset({
    "code_interpreter_call.outputs", "computer_call_output.output.image_url", "file_search_call.results",
    "message.input_image.image_url", LOGPROBS, "reasoning.encrypted_content",
    "web_search_call.action.sources", "web_search_call.results",
})  # fmt: skip
"""What ``include`` may name. All but the log-probabilities are about what no answer here has: calls of tools
that OpenAI hosts, images, and reasoning that is hidden."""

_SENT_AS = (
    (re.compile(r"^response_format(\.json_schema)?"), "text.format"),
    (re.compile(r"^(tools\[\d+\])\.function"), r"\1"),
    (re.compile(r"^max_completion_tokens$"), "max_output_tokens"),
    (re.compile(r"^reasoning_effort$"), "reasoning.effort"),
    (re.compile(r"^logprobs$"), "include"),
    (re.compile(r"^messages"), "input"),
)
"""The fields of a chat, and what was sent for them."""


class ResponseStreamOptions(Struct, forbid_unknown_fields=True):
    """``stream_options``. Obfuscation is a defence of hosted services and changes no text."""

    include_obfuscation: bool | None = None


class ReasoningOptions(Struct, forbid_unknown_fields=True):
    """``reasoning``. There are no summaries: the reasoning itself is in the answer."""

    effort: str | None = None
    summary: Literal["auto"] | None = None
    generate_summary: Literal["auto"] | None = None


class TextOptions(Struct, forbid_unknown_fields=True):
    """``text``: what the answer must be."""

    format: dict[str, Any] | None = None
    verbosity: Literal["medium"] | None = None


class FunctionTool(Struct):
    """``{"type": "function", "name": …}``, the only kind of tool there is."""

    type: str
    name: str = ""
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


Short = Annotated[str, Meta(max_length=512)]
Key = Annotated[str, Meta(max_length=64)]


class ResponsesBody(CommonBody, kw_only=True):
    """``POST /v1/responses``. ``max_tool_calls`` is about hosted tools, so that it bounds nothing here."""

    neutral_fields = RESPONSES_NEUTRAL

    input: str | list[dict[str, Any]] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    background: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    include: list[str] | None = None
    max_output_tokens: Annotated[int, stated(minimum=1, maximum=MAX_COUNT)] | None = None
    max_tool_calls: Annotated[int, Meta(ge=1)] | None = None
    text: TextOptions | None = None
    tools: list[FunctionTool] | None = None
    tool_choice: ToolChoice | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    top_logprobs: NumLogprobs | None = None
    reasoning: ReasoningOptions | None = None
    include_reasoning: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    metadata: dict[Key, Short] | None = None
    prompt_cache_key: Short | None = None
    safety_identifier: Short | None = None

    def check(self) -> None:
        if not self.input and self.previous_response_id is None:
            raise _refusal("input", "missing")
        if self.stream_options is not None and not self.stream:
            raise _refusal("stream_options", "allowed only with stream")
        if len(self.metadata or ()) > MAX_METADATA:
            raise _refusal("metadata", f"{len(self.metadata or ())} pairs, at most {MAX_METADATA}")
        for index, name in enumerate(self.include or ()):
            if name not in INCLUDABLE:
                raise _refusal(
                    f"include[{index}]", f"must be one of {', '.join(sorted(INCLUDABLE))}, got {name!r:.60}"
                )
        if self.top_logprobs and not self.has_logprobs:
            raise _refusal("top_logprobs", f"allowed only with include: ['{LOGPROBS}']")
        for index, tool in enumerate(self.tools or ()):
            if tool.type != "function":
                raise _refusal(
                    f"tools[{index}].type",
                    f"only tools of type 'function' are served, got {tool.type!r:.60}; describe it as a "
                    "function, and run it yourself",
                )

    def options(self, caller: str, timeout: float | None = None, rank: int | None = None) -> RequestOptions:
        options = CommonBody.options(self, caller, timeout, rank)
        # Whoever polls is to see when it is no longer queued.
        return replace(options, reports_prompt_progress=bool(self.background))

    @property
    def has_logprobs(self) -> bool:
        """Whether the log-probabilities of the text were asked for."""
        return LOGPROBS in (self.include or ())

    @property
    def text_format(self) -> dict[str, Any]:
        """What the answer must be; text if nothing else was asked for."""
        return (self.text and self.text.format) or {"type": "text"}

    def as_chat(self) -> ChatBody:
        """The same wishes as fields of a chat, which has no messages yet."""
        return ChatBody(
            messages=[],
            max_completion_tokens=self.max_output_tokens,
            logprobs=self.has_logprobs,
            top_logprobs=self.top_logprobs,
            response_format=_response_format(self.text_format),
            tools=None if self.tools is None else [_chat_tool(tool) for tool in self.tools],
            tool_choice=_chat_tool_choice(self.tool_choice),
            parallel_tool_calls=self.parallel_tool_calls,
            reasoning_effort=self.reasoning.effort if self.reasoning else None,
            include_reasoning=self.include_reasoning,
            chat_template_kwargs=self.chat_template_kwargs,
            **{name: getattr(self, name) for name in CommonBody.__struct_fields__},
        )


@contextmanager
def blaming_response_fields() -> Iterator[None]:
    """What is found wrong with the chat is said of the fields that were sent for it."""
    try:
        yield
    except InvalidRequestError as error:
        if error.param is None:
            raise
        name = error.param
        for pattern, sent in _SENT_AS:
            name = pattern.sub(sent, name)
        message = error.message.replace(error.param, name)
        raise type(error)(message, param=name) from error.__cause__


def _response_format(text_format: Mapping[str, Any]) -> dict[str, Any] | None:
    """A chat has the schema in an object of its own; there is no need to ask for text."""
    match text_format:
        case {"type": "text", **others} if not any(others.values()):
            return None
        case {"type": "json_schema", **schema}:
            return {"type": "json_schema", "json_schema": schema}
        case _:
            return dict(text_format)


def _chat_tool(tool: FunctionTool) -> Tool:
    function = Function(
        name=tool.name, description=tool.description, parameters=tool.parameters, strict=tool.strict
    )
    return Tool(type="function", function=function)


def _chat_tool_choice(choice: str | dict[str, Any] | None) -> str | dict[str, Any] | None:
    """A chat has the name, and the tools that are allowed, in an object of their own."""
    match choice:
        case None | "auto" | "none" | "required":
            return choice
        case {"type": "function", "name": str(name)}:
            return {"type": "function", "function": {"name": name}}
        case {"type": "allowed_tools", "mode": "auto" | "required" as mode, "tools": list(some)}:
            names = [tool.get("name") if isinstance(tool, dict) else None for tool in some]
            tools = [{"function": {"name": name}} for name in names]
            return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}
    raise _refusal(
        "tool_choice",
        "must be 'auto', 'none', 'required', {'type': 'function', 'name': …} or {'type': 'allowed_tools', "
        f"'mode': …, 'tools': […]}}, got {choice!r:.100}",
    )


def _refusal(param: str, problem: str) -> InvalidRequestError:
    return InvalidRequestError(f"{param}: {problem}", param=param)
