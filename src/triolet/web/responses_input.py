"""The items of a conversation: read strictly, written in one form, and as the messages of a chat.

What is stored and what is sent are items of the same form. Knows nothing of the engine or of the rest of a
body.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from triolet.errors import InvalidRequestError
from triolet.web.body import invalid_field

__all__ = [
    "CallItem",
    "CallOutputItem",
    "Item",
    "MessageItem",
    "Part",
    "ReasoningItem",
    "messages_of",
    "read_items",
    "references",
]

Item = dict[str, Any]

ROLES = ("assistant", "developer", "system", "user")
TEXT_PARTS = frozenset({"input_text", "output_text", "reasoning_text", "summary_text", "text"})


class Part(Struct):
    """A part of a message, of the output of a call, or of reasoning. Only text is served."""

    type: str
    text: str | None = None


class MessageItem(Struct):
    """What somebody said. Its status and its annotations change nothing."""

    role: str
    content: str | list[Part]

    def as_item(self, where: str) -> Item:
        if self.role not in ROLES:
            raise _refusal(f"{where}.role", f"must be one of {', '.join(ROLES)}, got {self.role!r:.60}")
        texts = _texts(self.content, f"{where}.content")
        if self.role == "assistant":
            content = [{"type": "output_text", "text": text, "annotations": []} for text in texts]
        else:
            content = [{"type": "input_text", "text": text} for text in texts]
        return {"type": "message", "role": self.role, "content": content, "status": "completed"}


class CallItem(Struct):
    """A call in an older answer."""

    call_id: str
    name: str
    arguments: str

    def as_item(self, where: str) -> Item:
        return {
            "type": "function_call",
            "call_id": self.call_id,
            "name": self.name,
            "arguments": self.arguments,
            "status": "completed",
        }


class CallOutputItem(Struct):
    """What a call has brought."""

    call_id: str
    output: str | list[Part]

    def as_item(self, where: str) -> Item:
        output = "\n".join(_texts(self.output, f"{where}.output"))
        return {
            "type": "function_call_output",
            "call_id": self.call_id,
            "output": output,
            "status": "completed",
        }


class ReasoningItem(Struct):
    """Reasoning in an older answer; what a hosted service has made unreadable cannot be used."""

    content: list[Part] | None = None
    summary: list[Part] | None = None

    def as_item(self, where: str) -> Item:
        name = "content" if self.content else "summary"
        texts = _texts(getattr(self, name) or [], f"{where}.{name}")
        content = [{"type": "reasoning_text", "text": text} for text in texts]
        return {"type": "reasoning", "summary": [], "content": content}


KINDS: Mapping[str, type[MessageItem | CallItem | CallOutputItem | ReasoningItem]] = {
    "message": MessageItem,
    "function_call": CallItem,
    "function_call_output": CallOutputItem,
    "reasoning": ReasoningItem,
}
"""By the ``type`` of an item."""


def references(given: str | Sequence[Item]) -> Iterator[tuple[str, str]]:
    """The items of an input that stand for stored ones: where they are, and the ids of those."""
    for index, raw in enumerate(() if isinstance(given, str) else given):
        if _kind_of(raw) == "item_reference":
            item_id = raw.get("id")
            if not isinstance(item_id, str):
                raise _refusal(f"input[{index}].id", "missing, or not a string")
            yield f"input[{index}].id", item_id


def read_items(
    given: str | Sequence[Item], stored: Mapping[str, Item], new_id: Callable[[str], str]
) -> list[Item]:
    """The items of an input. ``stored`` are those that it refers to, by id; ``new_id(type)`` names one that
    has no id.

    Raises :class:`InvalidRequestError` naming the field.
    """
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    items = []
    for index, raw in enumerate(given):
        where = f"input[{index}]"
        if _kind_of(raw) == "item_reference":
            items.append(stored[raw["id"]])
            continue
        item = _read(raw, where)
        given_id = raw.get("id")
        items.append({"id": given_id if isinstance(given_id, str) else new_id(item["type"]), **item})
    return items


def messages_of(instructions: str | None, items: Sequence[Item]) -> list[dict[str, Any]]:
    """The messages of a chat. Reasoning, text and calls that follow each other are one message."""
    messages: list[dict[str, Any]] = []
    if instructions is not None:
        messages.append({"role": "system", "content": instructions})
    for item in items:
        match item["type"]:
            case "message" if item["role"] == "assistant":
                _answer(messages, "content", "tool_calls")["content"] = _joined(item["content"])
            case "message":
                role = "system" if item["role"] == "developer" else item["role"]
                messages.append({"role": role, "content": _joined(item["content"])})
            case "reasoning":
                text = _joined(item["content"])
                _answer(messages, "reasoning", "content", "tool_calls").update(
                    reasoning=text, reasoning_content=text
                )
            case "function_call":
                _answer(messages).setdefault("tool_calls", []).append(_call(item))
            case "function_call_output":
                message = {"role": "tool", "tool_call_id": item["call_id"], "content": item["output"]}
                messages.append(message)
    return messages


def _kind_of(raw: Item) -> Any:
    """The type of an item, which some may leave out."""
    kind = raw.get("type")
    if kind is None:
        return "message" if "role" in raw else "item_reference" if isinstance(raw.get("id"), str) else None
    return kind


def _read(raw: Item, where: str) -> Item:
    name = _kind_of(raw)
    kind = KINDS.get(name) if isinstance(name, str) else None
    if kind is None:
        names = ", ".join([*KINDS, "item_reference"])
        raise _refusal(f"{where}.type", f"must be one of {names}, got {raw.get('type')!r:.60}")
    try:
        item = msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        raise invalid_field(str(error), where) from None
    return item.as_item(where)


def _texts(content: str | list[Part], where: str) -> list[str]:
    if isinstance(content, str):
        return [content]
    texts = []
    for index, part in enumerate(content):
        if part.type not in TEXT_PARTS or part.text is None:
            raise _refusal(f"{where}[{index}]", f"only parts with a text are served, got {part.type!r:.60}")
        texts.append(part.text)
    return texts


def _answer(messages: list[dict[str, Any]], *closed_by: str) -> dict[str, Any]:
    """The message of the assistant that the next part belongs to: the last one, unless it has any of
    ``closed_by``."""
    if (
        not messages
        or messages[-1]["role"] != "assistant"
        or any(messages[-1].get(name) for name in closed_by)
    ):
        messages.append({"role": "assistant", "content": ""})
    return messages[-1]


def _call(item: Item) -> dict[str, Any]:
    function = {"name": item["name"], "arguments": item["arguments"]}
    return {"id": item["call_id"], "type": "function", "function": function}


def _joined(parts: Sequence[Mapping[str, Any]]) -> str:
    return "\n".join(part["text"] for part in parts)


def _refusal(param: str, problem: str) -> InvalidRequestError:
    return InvalidRequestError(f"{param}: {problem}", param=param)
