"""An answer that is nothing but calls: ``{"name": …, "parameters": {…}}``, or Python. Llama 3 and 4.

The JSON form may follow ``<|python_tag|>``, and several are separated by ``;``. The Python form is a list of
calls with named literals, ``[weather(city="Oslo", days=2)]``; it is read when it is complete.
"""

from __future__ import annotations

import ast
import re
from typing import Any

from triolet.text.incremental import Parsing
from triolet.text.tool_parsers.call_parser import CallParser, json_text
from triolet.text.tool_parsers.tool_format import CallShape, ToolFormat

__all__ = ["LLAMA", "LlamaParser"]

PYTHON_TAG = "<|python_tag|>"
MAX_PYTHON = 100_000
_HEADER = r"<\|(?:start_header_id|header_start)\|>"
JSON_NAMES = {"true": True, "false": False, "null": None}


class LlamaParser(CallParser):
    def _parse(self) -> Parsing[None]:
        space = yield from self._space()
        self._say(space)
        self._begin()
        yield from self._literal(PYTHON_TAG)
        yield from self._space()
        if (yield from self._peek()) == "[":
            yield from self._python_calls()
        elif not (yield from self._json_calls()):
            self._reject()
        while (yield from self._peek()):
            self._say(self._text[self._at :])
            self._at = len(self._text)

    def _json_calls(self) -> Parsing[bool]:
        if not (yield from self._call_object()):
            return False
        while True:
            self._begin()
            yield from self._space()
            yield from self._literal(";")
            yield from self._space()
            if not (yield from self._call_object()):
                break
        if self._mark is not None:
            self._reject()
        return True

    def _python_calls(self) -> Parsing[None]:
        """All that is held is read at its end, unless it is none from its beginning."""
        self._at += 1
        yield from self._space()
        name, _ = yield from self._name_until(("(",))
        if name not in self._tools:
            self._reject()
            return
        while (yield from self._peek()):
            self._at = len(self._text)
        calls = _read_python(self._since_mark().strip().removeprefix(PYTHON_TAG))
        if not calls or any(name not in self._tools for name, _ in calls):
            self._reject()
            return
        for name, arguments in calls:
            self._announce(name)
            self._add_arguments(arguments)
            self._end_call()


def _read_python(text: str) -> list[tuple[str, str]] | None:
    """Names and arguments as JSON; None for what is no list of calls."""
    if len(text) > MAX_PYTHON:
        return None
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        if not isinstance(tree, ast.List):
            return None
        return [_read_call(node) for node in tree.elts]
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return None


def _read_call(node: ast.expr) -> tuple[str, str]:
    if not isinstance(node, ast.Call) or node.args:
        raise ValueError("not a call with named arguments")
    arguments = {str(keyword.arg): _literal_of(keyword.value) for keyword in node.keywords if keyword.arg}
    if len(arguments) < len(node.keywords):
        raise ValueError("not only names, or one of them twice")
    return ast.unparse(node.func), json_text(arguments)


def _literal_of(node: ast.expr) -> Any:
    """The value of a literal, where JSON's own names are literals too."""
    if isinstance(node, ast.Name) and node.id in JSON_NAMES:
        return JSON_NAMES[node.id]
    if isinstance(node, ast.List | ast.Tuple):
        return [_literal_of(item) for item in node.elts]
    if isinstance(node, ast.Dict):
        keys = [_literal_of(key) if key is not None else None for key in node.keys]
        if not all(isinstance(key, str) for key in keys):
            raise ValueError("keys must be strings")
        return dict(zip(keys, map(_literal_of, node.values), strict=True))
    return ast.literal_eval(node)


LLAMA = ToolFormat(
    name="llama",
    written_in=re.compile(rf"{_HEADER}(?s:.)*\btools\b|\btools\b(?s:.)*{_HEADER}"),
    new_parser=LlamaParser,
    markers=(PYTHON_TAG,),
    shape=CallShape(before='{"name": "{name}", "parameters": ', after="}", between="; ", trigger=None),
)
