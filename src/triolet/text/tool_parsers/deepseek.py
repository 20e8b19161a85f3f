"""The calls of DeepSeek V3 and R1, which name the type of a call, and of V3.1, which do not.

Each stands between ``<｜tool▁call▁begin｜>`` and ``<｜tool▁call▁end｜>``, with its name before its arguments.
"""

from __future__ import annotations

import re

from triolet.text.incremental import Parsing
from triolet.text.tool_parsers.call_parser import CallParser
from triolet.text.tool_parsers.tool_format import CallShape, ToolFormat

__all__ = ["DEEPSEEK_V3", "DEEPSEEK_V31", "DeepSeekParser"]

ALL_BEGIN, ALL_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
BEGIN, SEPARATOR, END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
MARKERS = (ALL_BEGIN, ALL_END, BEGIN, SEPARATOR, END)


class DeepSeekParser(CallParser):
    def _parse(self) -> Parsing[None]:
        while marker := (yield from self._until((ALL_BEGIN, ALL_END, BEGIN), self._say)):
            if marker != BEGIN:
                continue
            self._begin()
            if not (yield from self._call()):
                self._reject(BEGIN)
                continue
            yield from self._space()
            yield from self._literal("```")
            yield from self._space()
            yield from self._literal(END)

    def _call(self) -> Parsing[bool]:
        name, marker = yield from self._name_until((SEPARATOR,))
        if marker is not None and name.strip() == "function":
            name, marker = yield from self._name_until(("\n",))
            yield from self._space()
            yield from self._literal("```json")
        yield from self._space()
        is_fence_open = (yield from self._peek()) == "`"  # cut off, or around something else
        if marker is None or is_fence_open:
            return False
        return (yield from self._call_of(name.strip()))


DEEPSEEK_V3 = ToolFormat(
    name="deepseek_v3",
    written_in=re.compile(r"<｜tool▁call▁begin｜>(?s:.)*```json"),
    new_parser=DeepSeekParser,
    markers=MARKERS,
    shape=CallShape(
        opening=ALL_BEGIN,
        before=BEGIN + "function" + SEPARATOR + "{name}\n```json\n",
        after="\n```" + END,
        between="\n",
        closing=ALL_END,
        trigger=ALL_BEGIN,
    ),
)
DEEPSEEK_V31 = ToolFormat(
    name="deepseek_v31",
    written_in=re.compile(r"<｜tool▁call▁begin｜>"),
    new_parser=DeepSeekParser,
    markers=MARKERS,
    shape=CallShape(
        opening=ALL_BEGIN, before=BEGIN + "{name}" + SEPARATOR, after=END, closing=ALL_END, trigger=ALL_BEGIN
    ),
)
