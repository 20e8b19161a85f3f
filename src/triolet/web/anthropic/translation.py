"""A body of the Messages API as that of a chat completion, and errors about the one in terms of the other.

Pure; knows both types of bodies and nothing of the engine.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from triolet.errors import InvalidRequestError
from triolet.web.anthropic.conversation import chat_messages
from triolet.web.anthropic.schema import CountTokensBody, MessagesBody, Thinking, ToolBody, ToolChoice
from triolet.web.schema import ChatBody
from triolet.web.tools import Function, Tool

__all__ = ["chat_body", "naming_sent_fields"]

_NAMES = tuple(
    (re.compile(pattern), name)
    for pattern, name in (
        (r"\btools\[(\d+)\]\.function\.parameters\b", r"tools[\1].input_schema"),
        (r"\btools\[(\d+)\]\.function\b", r"tools[\1]"),
        (r"\bresponse_format\.json_schema\.schema\b", "output_config.format.schema"),
        (r"\bresponse_format\b", "output_config.format"),
        (r"\bthinking_budget\b", "thinking.budget_tokens"),
        (r"\breasoning_effort\b", "output_config.effort"),
        (r"\bstop\b(?=:)", "stop_sequences"),
    )
)
"""What fields of a chat were made of. Names inside a problem stay, unless they are clearly these."""

_EFFORTS = {"low": "low", "medium": "medium", "high": "high", "xhigh": "high", "max": "high"}
_MODES = {"auto": "auto", "any": "required", "none": "none"}


@contextmanager
def naming_sent_fields() -> Iterator[None]:
    """What is wrong with the chat is said of the fields that were sent."""
    try:
        yield
    except InvalidRequestError as error:
        message, param = _renamed(error.message), error.param and _renamed(error.param + ":")[:-1]
        if message == error.message:
            raise
        raise type(error)(message, param=param) from error.__cause__


def chat_body(body: CountTokensBody, max_model_len: int) -> ChatBody:
    """The chat that ``body`` asks for. Raises :class:`InvalidRequestError` naming what was sent.

    A ``max_tokens`` that the model could never have room for is a bound that is not reached.
    """
    chat = ChatBody(
        model=body.model,
        messages=chat_messages(body.system, body.messages),
        continue_final_message=_is_begun(body),
        tools=_tools(body.tools),
        tool_choice=_tool_choice(body.tool_choice),
        parallel_tool_calls=not (body.tool_choice and body.tool_choice.disable_parallel_tool_use),
        response_format=_response_format(body),
        reasoning_effort=_effort(body),
        chat_template_kwargs=_switches(body.thinking) | (body.chat_template_kwargs or {}),
        thinking_budget=body.thinking.budget_tokens if body.thinking else None,
        include_reasoning=not (body.thinking and body.thinking.display == "omitted"),
    )
    if isinstance(body, MessagesBody):
        chat.max_tokens = None if body.max_tokens >= max_model_len else body.max_tokens
        chat.stop = body.stop_sequences
        chat.temperature, chat.top_p, chat.top_k = body.temperature, body.top_p, body.top_k
        chat.seed, chat.stream = body.seed, body.stream
        chat.user = None if body.metadata is None else body.metadata.user_id
    return chat


def _is_begun(body: CountTokensBody) -> bool:
    """Whether the caller has written the beginning of the answer."""
    last = body.messages[-1]
    if last.role != "assistant":
        return False
    where = f"messages[{len(body.messages) - 1}].content"
    if not isinstance(last.content, str) and any(block.type == "tool_use" for block in last.content):
        raise _refusal(
            where, "a call of a tool cannot be continued; send its result in a message of the user"
        )
    return True


def _tools(tools: list[ToolBody] | None) -> list[Tool] | None:
    if tools is None:
        return None
    for index, tool in enumerate(tools):
        tool.check(f"tools[{index}]")
    return [
        Tool("function", Function(tool.name, tool.description, tool.input_schema, tool.strict))
        for tool in tools
    ]


def _tool_choice(choice: ToolChoice | None) -> str | dict[str, Any] | None:
    if choice is None:
        return None
    if choice.type == "tool":
        if choice.name is None:
            raise _refusal("tool_choice.name", "missing; it says which tool")
        return {"type": "function", "function": {"name": choice.name}}
    if choice.type not in _MODES:
        raise _refusal("tool_choice.type", f"must be auto, any, tool or none, got {choice.type!r:.60}")
    return _MODES[choice.type]


def _response_format(body: CountTokensBody) -> dict[str, Any] | None:
    wanted = None if body.output_config is None else body.output_config.format
    if wanted is None:
        return None
    if wanted.get("type") != "json_schema" or wanted.keys() - {"type", "schema"}:
        raise _refusal("output_config.format", 'must be {"type": "json_schema", "schema": …}')
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": wanted.get("schema")}}


def _effort(body: CountTokensBody) -> str | None:
    effort = None if body.output_config is None else body.output_config.effort
    if effort is None:
        return None
    if effort not in _EFFORTS:
        raise _refusal("output_config.effort", f"must be one of {', '.join(_EFFORTS)}, got {effort!r:.60}")
    return _EFFORTS[effort]


def _switches(thinking: Thinking | None) -> dict[str, Any]:
    """The variables by which chat templates turn reasoning on and off; without ``thinking`` it is theirs."""
    if thinking is None:
        return {}
    is_on = thinking.type != "disabled"
    return {"enable_thinking": is_on, "thinking": is_on}


def _renamed(text: str) -> str:
    for pattern, name in _NAMES:
        text = pattern.sub(name, text)
    return text


def _refusal(param: str, problem: str) -> InvalidRequestError:
    return InvalidRequestError(f"{param}: {problem}", param=param)
