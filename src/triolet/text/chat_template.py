"""A chat to the text a model was trained on, by the model's own Jinja template.

It knows neither HTTP nor tokens: the text that comes out holds the model's special tokens written out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2

from triolet.errors import InvalidRequestError, ModelFileError
from triolet.text.template_limits import TemplateLimitError, measure
from triolet.text.template_sandbox import TemplateSandbox

__all__ = ["ChatTemplate"]

MAX_SOURCE_CHARACTERS = 2**17
_MAX_MESSAGE_CHARACTERS = 1_000
_RESERVED = frozenset({"add_generation_prompt", "bos_token", "eos_token", "messages", "tools"})


class ChatTemplate:
    """A compiled template; thread-safe. Raises :class:`ModelFileError` if the template is not usable.

    ``now`` is what ``strftime_now`` in a template formats; ``clock`` bounds the time of a rendering.
    """

    def __init__(
        self,
        source: str,
        *,
        bos_token: str | None = None,
        eos_token: str | None = None,
        now: Callable[[], datetime] = datetime.now,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.source = source
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
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> str:
        """The prompt for ``messages``, each with a ``role`` and a ``content``.

        ``content`` is a string, None (an empty one), or a list of text parts, which are joined by line
        breaks. ``variables`` go to the template. Raises :class:`InvalidRequestError` with ``param`` set
        if a message is malformed, or with the template's own words if it refuses.
        """
        if reserved := _RESERVED & variables.keys():
            names = ", ".join(sorted(reserved))
            raise InvalidRequestError(
                f"chat_template_kwargs: {names} cannot be given", param="chat_template_kwargs"
            )
        return self._render(
            {
                **variables,
                **self._special_tokens,
                "messages": _plain_messages(messages),
                "tools": None if tools is None else list(tools),
                "add_generation_prompt": add_generation_prompt,
            }
        )

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
