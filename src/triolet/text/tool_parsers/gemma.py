"""``call:name{key:value}`` between two tags, strings between tags of their own: FunctionGemma and Gemma 4.

Its values are not JSON, so a call is handed out when it is complete. JSON is read as well.
"""

from __future__ import annotations

import json
import re
from typing import Any

from triolet.text.incremental import Parsing
from triolet.text.tool_parsers.call_parser import CallParser, json_text
from triolet.text.tool_parsers.tool_format import CallShape, ToolFormat

__all__ = ["FUNCTION_GEMMA", "GEMMA4", "GemmaParser"]

BEGINS = ("<|tool_call>", "<start_function_call>")
ENDS = ("<tool_call|>", "<end_function_call>")
QUOTES = ('<|"|>', "<escape>")
CALL = "call:"

_BARE = re.compile(r'\s*([^\s:,{}\[\]"<]+)\s*')
_JSON_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)


class GemmaParser(CallParser):
    def _parse(self) -> Parsing[None]:
        while marker := (yield from self._until(BEGINS, self._say)):
            self._begin()
            name = ""
            if (yield from self._literal(CALL)):
                name, _ = yield from self._name_until(("{",))
            if name not in self._tools:
                self._reject(marker)
                continue
            pieces: list[str] = []
            end = yield from self._until(ENDS, pieces.append)
            arguments = _read("{" + "".join(pieces))
            if end is None or arguments is None:
                self._reject(marker)
                continue
            self._announce(name)
            self._add_arguments(arguments)
            self._end_call()


def _read(text: str) -> str | None:
    """Arguments as JSON; None for what cannot be read."""
    try:
        value, end = _value(text, 0)
        if not isinstance(value, dict) or text[end:].strip():
            return None
        return json_text(value)
    except (ValueError, RecursionError):
        return None


def _value(text: str, at: int) -> tuple[Any, int]:
    """A value that begins at ``at``, and where it ends. Raises ValueError."""
    at = _skip_space(text, at)
    if text.startswith("{", at):
        return _members(text, at + 1)
    if text.startswith("[", at):
        return _items(text, at + 1)
    if (string := _quoted(text, at)) is not None:
        return string
    found = _BARE.match(text, at)
    if found is None:
        raise ValueError("no value")
    return json.loads(found[1]), found.end()


def _members(text: str, at: int) -> tuple[dict[str, Any], int]:
    members: dict[str, Any] = {}
    at = _skip_space(text, at)
    while not text.startswith("}", at):
        key, at = _quoted(text, at) or _bare_key(text, at)
        at = _after(text, at, ":")
        members[key], at = _value(text, at)
        at = _next_item(text, at, "}")
    return members, at + 1


def _items(text: str, at: int) -> tuple[list[Any], int]:
    items: list[Any] = []
    at = _skip_space(text, at)
    while not text.startswith("]", at):
        item, at = _value(text, at)
        items.append(item)
        at = _next_item(text, at, "]")
    return items, at + 1


def _next_item(text: str, at: int, end: str) -> int:
    """Where the next item begins, or the end is."""
    at = _skip_space(text, at)
    return at if text.startswith(end, at) else _skip_space(text, _after(text, at, ","))


def _bare_key(text: str, at: int) -> tuple[str, int]:
    found = _BARE.match(text, at)
    if found is None:
        raise ValueError("no key")
    return found[1], found.end()


def _quoted(text: str, at: int) -> tuple[str, int] | None:
    if found := _JSON_STRING.match(text, at):
        return str(json.loads(found.group())), found.end()
    for quote in QUOTES:
        if text.startswith(quote, at):
            start = at + len(quote)
            end = text.index(quote, start)
            return text[start:end], end + len(quote)
    return None


def _after(text: str, at: int, mark: str) -> int:
    at = _skip_space(text, at)
    if not text.startswith(mark, at):
        raise ValueError(f"{mark} expected")
    return at + len(mark)


def _skip_space(text: str, at: int) -> int:
    while at < len(text) and text[at].isspace():
        at += 1
    return at


GEMMA4 = ToolFormat(
    name="gemma4",
    written_in=re.compile(r"<\|tool_call>"),
    new_parser=GemmaParser,
    markers=(BEGINS[0], ENDS[0], QUOTES[0]),
    shape=CallShape(before=BEGINS[0] + CALL + "{name}", after=ENDS[0], trigger=BEGINS[0]),
)
FUNCTION_GEMMA = ToolFormat(
    name="function_gemma",
    written_in=re.compile(r"<start_function_call>"),
    new_parser=GemmaParser,
    markers=(BEGINS[1], ENDS[1], QUOTES[1]),
    shape=CallShape(before=BEGINS[1] + CALL + "{name}", after=ENDS[1], trigger=BEGINS[1]),
)
