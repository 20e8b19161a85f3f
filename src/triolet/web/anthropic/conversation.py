"""The turns of a conversation as the messages of a chat: blocks become text, reasoning, calls and results.

Pure; knows the types of both APIs, and nothing of the rest of a body.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from itertools import groupby

from triolet.errors import InvalidRequestError
from triolet.web.anthropic.schema import Block, InputMessage
from triolet.web.messages import CalledFunction, Message, ToolCall

__all__ = ["chat_messages"]

Placed = tuple[str, Block]
"""A block, and where it was sent."""

ROLES = ("user", "assistant", "system")
_WORDS = frozenset({"text"})
_USER, _ASSISTANT = _WORDS | {"tool_result"}, _WORDS | {"tool_use"}
_THINKING = frozenset({"thinking", "redacted_thinking"})


def chat_messages(system: str | Sequence[Block] | None, messages: Sequence[InputMessage]) -> list[Message]:
    """The same conversation for a chat template. Raises :class:`InvalidRequestError` naming the block.

    Messages of one role that follow each other are one turn. Results of tools come before what the user says
    beside them. Thinking is given back to the model; that which is redacted cannot be read by anyone here.
    Instructions in the midst of a conversation stay where they are; some templates take none there.
    """
    chat: list[Message] = []
    if system:
        blocks = _blocks(system, "system")
        chat.append(Message(role="system", content=_text(blocks, _WORDS)))
    names: dict[str, str] = {}
    for role, turn in groupby(enumerate(messages), key=lambda item: _role(*item)):
        placed = [block for index, message in turn for block in _blocks_of(index, message)]
        if role == "assistant":
            chat.append(_answer(placed, names))
        elif role == "system":
            chat.append(Message(role="system", content=_text(placed, _WORDS)))
        else:
            results, said = _results(placed, names), _text(placed, _USER)
            chat += results
            if said or not results:
                chat.append(Message(role="user", content=said))
    return chat


def _role(index: int, message: InputMessage) -> str:
    if message.role not in ROLES:
        problem = f"must be one of {', '.join(ROLES)}, got {message.role!r:.60}"
        raise _refusal(f"messages[{index}].role", problem)
    return message.role


def _blocks_of(index: int, message: InputMessage) -> list[Placed]:
    where = f"messages[{index}].content"
    if not message.content:
        raise _refusal(where, "must not be empty")
    return _blocks(message.content, where)


def _blocks(content: str | Sequence[Block], where: str) -> list[Placed]:
    if isinstance(content, str):
        return [(where, Block(type="text", text=content))]
    return [(f"{where}[{number}]", block) for number, block in enumerate(content)]


def _text(placed: Iterable[Placed], served: Collection[str]) -> str:
    """All texts among the blocks, which must be of the types ``served``."""
    texts: list[str] = []
    for where, block in placed:
        if block.type not in served:
            known = " and ".join(sorted(served))
            raise _refusal(where, f"blocks of type {block.type!r:.60} are not served here; send {known}")
        if block.type == "text":
            texts.append(_required(block.text, f"{where}.text"))
    return "\n".join(texts)


def _answer(placed: Sequence[Placed], names: dict[str, str]) -> Message:
    """A turn of the model; the names of the tools it calls are noted by the ids of the calls."""
    thoughts = [block.thinking or "" for _, block in placed if block.type in _THINKING]
    calls: list[ToolCall] = []
    for where, block in placed:
        if block.type == "tool_use":
            call_id, name = _required(block.id, f"{where}.id"), _required(block.name, f"{where}.name")
            names[call_id] = name
            arguments = json.dumps(block.input or {}, ensure_ascii=False)
            calls.append(ToolCall(id=call_id, function=CalledFunction(name=name, arguments=arguments)))
    said = [item for item in placed if item[1].type not in _THINKING]
    return Message(
        role="assistant",
        content=_text(said, _ASSISTANT),
        reasoning="\n".join(filter(None, thoughts)) or None,
        tool_calls=calls or None,
    )


def _results(placed: Sequence[Placed], names: dict[str, str]) -> list[Message]:
    """The results of tools among the blocks, each a message of its own."""
    results: list[Message] = []
    for where, block in placed:
        if block.type != "tool_result":
            continue
        call_id = _required(block.tool_use_id, f"{where}.tool_use_id")
        if call_id not in names:
            raise _refusal(
                f"{where}.tool_use_id", f"no earlier message has a tool_use block with the id {call_id!r:.80}"
            )
        text = _text(_blocks(block.content or "", f"{where}.content"), _WORDS)
        content = f"Error: {text}" if block.is_error else text
        results.append(Message(role="tool", content=content, tool_call_id=call_id, name=names[call_id]))
    return results


def _required(value: str | None, where: str) -> str:
    if value is None:
        raise _refusal(where, "missing")
    return value


def _refusal(param: str, problem: str) -> InvalidRequestError:
    return InvalidRequestError(f"{param}: {problem}", param=param)
