"""A chat to the text a model was trained on, by the model's own Jinja template.

It knows neither HTTP nor tokens: the text that comes out holds the model's special tokens written out.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2

from triolet.errors import InvalidRequestError, ModelFileError
from triolet.text.reasoning import ReasoningFormat, find_reasoning_format
from triolet.text.template_limits import TemplateLimitError, measure
from triolet.text.template_sandbox import TemplateSandbox
from triolet.text.tool_parsers.formats import find_tool_format
from triolet.text.tool_parsers.hermes import HERMES
from triolet.text.tool_parsers.tool_format import ToolFormat
from triolet.text.tool_prompt import describe_tools, spell_calls, with_parsed_arguments

__all__ = ["ChatTemplate", "check_variables"]

MAX_SOURCE_CHARACTERS = 2**17
_MAX_MESSAGE_CHARACTERS = 1_000
_RESERVED = frozenset({
    "add_generation_prompt", "bos_token", "continue_final_message", "cycler", "dict", "eos_token", "joiner",
    "messages", "namespace", "raise_exception", "range", "strftime_now", "tools",
})  # fmt: skip
"""What templates find under these names has another source."""
_TOOLS = re.compile(r"\btools\b")


def check_variables(variables: Mapping[str, Any]) -> None:
    """Raises :class:`InvalidRequestError` for a name that a template has another meaning for."""
    for name in sorted(_RESERVED & variables.keys()):
        param = f"chat_template_kwargs.{name}"
        raise InvalidRequestError(f"{param}: cannot be given here; the template has its own", param=param)


class ChatTemplate:
    """A compiled template; thread-safe. Raises :class:`ModelFileError` if the template is not usable.

    ``now`` is what ``strftime_now`` in a template formats; ``clock`` bounds the time of a rendering.
    ``tool_format`` and ``reasoning_format`` are how the model writes calls and reasoning: what was given, or
    what is found in the template; a model without a format for calls is told one.
    """

    def __init__(
        self,
        source: str,
        *,
        bos_token: str | None = None,
        eos_token: str | None = None,
        tool_format: ToolFormat | None = None,
        reasoning_format: ReasoningFormat | None = None,
        now: Callable[[], datetime] = datetime.now,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.source = source
        found = tool_format or find_tool_format(source)
        self.tool_format = found or HERMES
        self.reasoning_format = (
            reasoning_format or self.tool_format.reasoning or find_reasoning_format(source)
        )
        self._knows_tools = found is not None and _TOOLS.search(source) is not None
        self._knows_calls = found is not None and "tool_calls" in source
        self._special_tokens = {"bos_token": bos_token or "", "eos_token": eos_token or ""}
        functions = {
            "raise_exception": _raise_exception,
            "strftime_now": lambda layout: now().strftime(_short(str(layout))),
        }
        self._template = _compile(source, TemplateSandbox(functions=functions, clock=clock))

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt for ``messages``, each with a ``role`` and a ``content``.

        ``content`` is a string, None (an empty one), or a list of text parts, which are joined by line
        breaks. ``tools`` are described to the model, by the template or in the system message. With
        ``continue_final_message`` the prompt ends where the last message does, for the model to go on with.
        ``chat_template_kwargs`` are variables of the template, whatever their names.

        Raises :class:`InvalidRequestError` with ``param`` set if a message is malformed, or with the
        template's own words if it refuses.
        """
        check_variables(chat_template_kwargs or {})
        plain = _plain_messages(messages)
        if continue_final_message and plain[-1]["role"] != "assistant":
            raise _invalid(f"messages[{len(plain) - 1}].role", "must be 'assistant' to be continued")
        shape = self.tool_format.shape
        written = plain if self._knows_calls else spell_calls(plain, shape)
        if tools and not self._knows_tools:
            written = describe_tools(written, tools, shape)
        given = {
            **(chat_template_kwargs or {}),
            **self._special_tokens,
            "tools": list(tools) if tools and self._knows_tools else None,
            "add_generation_prompt": add_generation_prompt and not continue_final_message,
        }
        text = self._render_messages(written, given)
        return _cut_after(text, plain[-1]["content"]) if continue_final_message else text

    def _render_messages(self, messages: list[dict[str, Any]], variables: Mapping[str, Any]) -> str:
        parsed = with_parsed_arguments(messages)
        try:
            return self._render({**variables, "messages": parsed})
        except InvalidRequestError as error:
            # Some templates join the arguments of a call to a text, most have them as an object.
            if not isinstance(error.__cause__, TypeError) or parsed == messages:
                raise
            return self._render({**variables, "messages": messages})

    def _render(self, variables: Mapping[str, Any]) -> str:
        try:
            measure(variables)  # a sandbox bounds what is made of them by how long they are
            return "".join(self._template.generate(variables))
        except _RefusalError as error:
            raise InvalidRequestError(f"messages: {error}", param="messages") from error
        except TemplateLimitError as error:
            raise InvalidRequestError(f"messages: the chat template {error}", param="messages") from error
        except Exception as error:  # a template can fail in as many ways as a program
            raise InvalidRequestError(
                f"messages: the model's chat template cannot write them: {_describe(error)}", param="messages"
            ) from error


def _cut_after(text: str, content: str) -> str:
    """A prompt up to the end of its last message; a template may have stripped that."""
    for end in (content, content.strip()):
        if end and (start := text.rfind(end)) >= 0:
            return text[: start + len(end)]
    raise _invalid(
        "messages", "the last one is empty, or changed by the chat template, and cannot be continued"
    )


class _RefusalError(Exception):
    """A template calls ``raise_exception``."""


def _raise_exception(message: object) -> None:
    raise _RefusalError(str(message)[:_MAX_MESSAGE_CHARACTERS])


def _short(layout: str) -> str:
    if len(layout) > _MAX_MESSAGE_CHARACTERS:  # each of its characters can become hundreds
        raise TemplateLimitError(f"formats a date in more than {_MAX_MESSAGE_CHARACTERS:,} characters")
    return layout


def _describe(error: Exception) -> str:
    return str(error)[:_MAX_MESSAGE_CHARACTERS] or type(error).__name__


def _compile(source: str, sandbox: TemplateSandbox) -> jinja2.Template:
    if len(source) > MAX_SOURCE_CHARACTERS:
        raise ModelFileError(
            f"the chat template has {len(source):,} characters, more than {MAX_SOURCE_CHARACTERS:,}"
        )
    try:
        return sandbox.compile_bounded(source)
    except jinja2.TemplateSyntaxError as error:
        problem = f"is not valid Jinja, line {error.lineno}: {error.message}"
    except TemplateLimitError as error:
        problem = str(error)
    except (RecursionError, MemoryError, SyntaxError) as error:  # deeper than Python can compile
        problem = f"cannot be compiled: {_describe(error)}"
    raise ModelFileError(f"the chat template {problem}; give another with --chat-template FILE")


def _plain_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    if not messages:
        raise InvalidRequestError("messages: must have at least one message", param="messages")
    return [_plain_message(message, f"messages[{i}]") for i, message in enumerate(messages)]


def _plain_message(message: Mapping[str, Any], where: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise _invalid(where, f"must be an object, got {type(message).__name__}")
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise _invalid(f"{where}.role", f"must be a non-empty string, got {role!r}")
    return {**message, "content": _plain_content(message.get("content"), f"{where}.content")}


def _plain_content(content: Any, where: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list | tuple):
        raise _invalid(where, f"must be a string or a list of parts, got {type(content).__name__}")
    return "\n".join(_text_of(part, f"{where}[{i}]") for i, part in enumerate(content))


def _text_of(part: Any, where: str) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
    if kind != "text":
        raise _invalid(where, f"parts of type {kind!r} are not supported by this model; send text")
    if not isinstance(text := part.get("text"), str):
        raise _invalid(f"{where}.text", f"must be a string, got {type(text).__name__}")
    return text


def _invalid(where: str, problem: str) -> InvalidRequestError:
    return InvalidRequestError(f"{where}: {problem}", param="messages")
