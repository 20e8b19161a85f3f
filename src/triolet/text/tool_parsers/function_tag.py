"""``<function=name>…</function>``: Llama 3.1's own tools, and Qwen 3 Coder and its relatives.

Inside is a JSON object, or a ``<parameter=name>`` for each argument, whose value is bare text unless the
schema says otherwise. ``<tool_call>`` may stand around it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from triolet.text.incremental import Parsing
from triolet.text.tool_parsers.call_parser import CallParser, json_text
from triolet.text.tool_parsers.tool_format import CallShape, ToolFormat

__all__ = ["FUNCTION_TAG", "QWEN_CODER", "FunctionTagParser"]

OUTER_BEGIN, OUTER_END = "<tool_call>", "</tool_call>"
BEGIN, END = "<function=", "</function>"
PARAMETER, PARAMETER_END = "<parameter=", "</parameter>"
ALTERNATIVES = ("anyOf", "oneOf")
TYPE_OF = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
ANY_TYPE = frozenset({*TYPE_OF.values(), "null"})


class FunctionTagParser(CallParser):
    def _parse(self) -> Parsing[None]:
        while marker := (yield from self._until((OUTER_BEGIN, BEGIN), self._say)):
            self._begin()
            yield from self._space()
            if marker == BEGIN or (yield from self._literal(BEGIN)):
                is_call = yield from self._call()
            else:
                is_call = False
            if not is_call:
                self._reject(marker)
                continue
            yield from self._space()
            yield from self._literal(END)
            if marker == OUTER_BEGIN:
                yield from self._space()
                yield from self._literal(OUTER_END)

    def _call(self) -> Parsing[bool]:
        name, marker = yield from self._name_until((">",))
        yield from self._space()
        if marker is None or (yield from self._peek()) == "{":
            return marker is not None and (yield from self._call_of(name.strip()))
        if not self._announce(name.strip()):
            return False
        self._add_arguments("{")
        if (yield from self._parameters(self._tools[name.strip()])):
            self._add_arguments("}")
            self._end_call()
        return True

    def _parameters(self, schema: Any) -> Parsing[bool]:
        """Whether all of them are whole."""
        properties = schema.get("properties") if isinstance(schema, Mapping) else None
        types = properties if isinstance(properties, Mapping) else {}
        separator = ""
        while True:
            yield from self._space()
            if not (yield from self._literal(PARAMETER)):
                return bool((yield from self._peek()))
            name, marker = yield from self._name_until((">",))
            pieces: list[str] = []
            if marker is None or not (yield from self._until((PARAMETER_END,), pieces.append)):
                self._add_arguments("".join(pieces))
                return False
            value = _as_json("".join(pieces), types.get(name.strip()))
            self._add_arguments(f"{separator}{json.dumps(name.strip())}: {value}")
            separator = ", "


def _as_json(text: str, schema: Any) -> str:
    """A bare value as JSON: a string where the schema allows one and not what it looks like otherwise, or
    where nothing else fits."""
    text = text.removeprefix("\n").removesuffix("\n")
    types = _types_of(schema)
    try:
        value = json.loads(text)
        if "string" not in types or _type_of(value) in types - {"string"}:
            return json_text(value)
    except (ValueError, RecursionError):
        pass
    return json_text(text)


def _type_of(value: Any) -> str:
    return "null" if value is None else TYPE_OF[type(value)]


def _types_of(schema: Any) -> frozenset[str]:
    """The types of values that a schema allows, as far as it says so itself."""
    if not isinstance(schema, Mapping):
        return ANY_TYPE
    kinds = schema.get("type")
    if isinstance(kinds, str | list):
        types = frozenset([kinds] if isinstance(kinds, str) else filter(_is_text, kinds))
        return types | {"integer"} if "number" in types else types
    for keyword in ALTERNATIVES:
        if isinstance(branches := schema.get(keyword), list) and branches:
            return frozenset().union(*map(_types_of, branches))
    if isinstance(values := schema.get("enum"), list):
        return frozenset(map(_type_of, values))
    return frozenset({_type_of(schema["const"])}) if "const" in schema else ANY_TYPE


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


QWEN_CODER = ToolFormat(
    name="qwen3_coder",
    written_in=re.compile(r"<parameter="),
    new_parser=FunctionTagParser,
    markers=(OUTER_BEGIN, OUTER_END),
    shape=CallShape(
        before=OUTER_BEGIN + "\n" + BEGIN + "{name}>\n",
        after="\n" + END + "\n" + OUTER_END,
        between="\n",
        trigger=OUTER_BEGIN,
    ),
)
FUNCTION_TAG = ToolFormat(
    name="function",
    written_in=re.compile(r"<function="),
    new_parser=FunctionTagParser,
    markers=(),
    shape=CallShape(before=BEGIN + "{name}>", after=END, between="\n", trigger=BEGIN),
)
