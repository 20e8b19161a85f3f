"""Tools, calls and their results in the words of a model whose chat template has none for them.

The tools are described at the end of the system message, with the way to call them; calls and results in
older messages become text. Knows no template and no request.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from triolet.text.tool_parsers.call_parser import json_object
from triolet.text.tool_parsers.tool_format import CallShape

__all__ = ["describe_tools", "spell_calls", "with_parsed_arguments"]

Message = dict[str, Any]

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")

_SECTION = """\
You can call these functions, given one a line as JSON:
{tools}

To call one, write this and nothing after it, with its name and a JSON object of its arguments:
{example}"""


def describe_tools(
    messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], shape: CallShape
) -> list[Message]:
    """The messages with the tools in the first one, which is the system's."""
    example = shape.opening + shape.call_before("NAME") + "{ARGUMENTS}" + shape.after + shape.closing
    lines = "\n".join(_json(tool.get("function", tool)) for tool in tools)
    section = _SECTION.format(tools=lines, example=example)
    if messages and messages[0]["role"] == "system":
        first, rest = messages[0], messages[1:]
        text = f"{first['content']}\n\n{section}" if first["content"] else section
        return [{**first, "content": text}, *rest]
    return [{"role": "system", "content": section}, *messages]


def spell_calls(messages: Sequence[Message], shape: CallShape) -> list[Message]:
    """Calls as the text the model would have written, and their results as messages of the user."""
    return [_spelled(message, shape) for message in messages]


def with_parsed_arguments(messages: Sequence[Message]) -> list[Message]:
    """The arguments of calls as objects, as most templates want them; no JSON stays as it is.

    Half a character, which models can write as an escape, has no token: U+FFFD takes its place.
    """
    return [
        {**message, "tool_calls": [_with_object(call) for call in message["tool_calls"]]}
        if message.get("tool_calls")
        else message
        for message in messages
    ]


def _spelled(message: Message, shape: CallShape) -> Message:
    if message["role"] == "tool":
        content = f"<tool_response>\n{message['content']}\n</tool_response>"
        return {"role": "user", "content": content}
    if not (calls := message.get("tool_calls")):
        return message
    texts = [
        shape.call_before(call["function"]["name"]) + call["function"]["arguments"] + shape.after
        for call in calls
    ]
    written = shape.opening + shape.between.join(texts) + shape.closing
    content = f"{message['content']}\n{written}" if message["content"] else written
    return {name: value for name, value in message.items() if name != "tool_calls"} | {"content": content}


def _with_object(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    arguments = json_object(function["arguments"])
    if arguments is not None and _LONE_SURROGATE.search(text := _json(arguments)):
        arguments = json.loads(_LONE_SURROGATE.sub("\ufffd", text))
    parsed = function["arguments"] if arguments is None else arguments
    return {**call, "function": {**function, "arguments": parsed}}


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
