"""The messages of a chat request: strict types, and how they become what chat templates take.

Knows nothing of the engine or of the rest of a body.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from msgspec import Struct

from triolet.errors import InvalidRequestError
from triolet.web.stated_limits import stated

__all__ = ["CalledFunction", "ContentPart", "Message", "ToolCall", "check_num_messages"]

ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})


def check_num_messages(messages: Sequence[object], limit: int) -> None:
    """Raises :class:`InvalidRequestError` above ``limit``."""
    if len(messages) > limit:
        raise InvalidRequestError(
            f"messages: {len(messages)} of them, and at most {limit} are taken (--max-num-messages)",
            param="messages",
        )


class ContentPart(Struct):
    """A part of a message. Only ``{"type": "text", "text": …}`` is served."""

    type: str
    text: str | None = None


class CalledFunction(Struct):
    """The name of a tool and its arguments, a JSON object as text."""

    name: str
    arguments: str = "{}"


class ToolCall(Struct):
    """A call in an older answer."""

    function: CalledFunction
    id: str | None = None
    type: str = "function"
    index: int | None = None


class Message(Struct, forbid_unknown_fields=True):
    """One message of a chat. The fields after ``name`` are what clients send back with an old answer."""

    role: Annotated[str, stated(enum=sorted(ROLES))]
    content: str | list[ContentPart] | None = None
    name: str | None = None
    refusal: str | None = None
    annotations: list[Any] | None = None
    audio: Any = None
    function_call: Any = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None

    def as_mapping(self, index: int) -> dict[str, Any]:
        """The message as chat templates take it; ``developer`` is the newer name of ``system``."""
        where = f"messages[{index}]"
        for name in ("refusal", "audio", "function_call"):
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
        message: dict[str, Any] = {"role": role, "content": self._text(where)}
        if self.name:
            message["name"] = self.name
        if role == "assistant":
            message |= self._assistant_fields()
        elif self.tool_calls:
            raise InvalidRequestError(
                f"{where}.tool_calls: only messages of the assistant have them", param=f"{where}.tool_calls"
            )
        if self.tool_call_id is not None:
            message["tool_call_id"] = self.tool_call_id
        return message

    def _assistant_fields(self) -> dict[str, Any]:
        """Calls and reasoning, under the names that templates know."""
        added: dict[str, Any] = {}
        if reasoning := self.reasoning_content or self.reasoning:
            added = {"reasoning_content": reasoning, "reasoning": reasoning}
        if self.tool_calls:
            added["tool_calls"] = [
                {
                    "id": call.id or "",
                    "type": "function",
                    "function": {"name": call.function.name, "arguments": call.function.arguments},
                }
                for call in self.tool_calls
            ]
        return added

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
