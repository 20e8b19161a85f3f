"""``[TOOL_CALLS]`` and a list of calls, or ``[TOOL_CALLS]name[ARGS]{…}`` for each call: Mistral.

The first form is that of the older templates, the second that of those since 2025.
"""

from __future__ import annotations

import re

from triolet.text.incremental import Parsing
from triolet.text.tool_parsers.call_parser import CallParser
from triolet.text.tool_parsers.tool_format import CallShape, ToolFormat

__all__ = ["MISTRAL", "MISTRAL_ARGS", "MistralParser"]

BEGIN, CALL_ID, ARGUMENTS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"


class MistralParser(CallParser):
    def _parse(self) -> Parsing[None]:
        while (yield from self._until((BEGIN,), self._say)) is not None:
            self._begin()
            yield from self._space()
            is_list = yield from self._literal("[")
            if not (yield from self._call_list() if is_list else self._call_by_name()):
                self._reject(BEGIN)

    def _call_list(self) -> Parsing[bool]:
        """False, and none begun, for a list that does not begin with a call."""
        yield from self._space()
        if not (yield from self._call_object()):
            return False
        while True:
            self._begin()
            yield from self._space()
            is_last = not (yield from self._literal(","))
            if is_last and (yield from self._literal("]")):
                self._commit()
                return True
            yield from self._space()
            if is_last or not (yield from self._call_object()):
                self._reject()
                return True

    def _call_by_name(self) -> Parsing[bool]:
        name, marker = yield from self._name_until((CALL_ID, ARGUMENTS, "{"))
        if marker == CALL_ID:
            _, marker = yield from self._name_until((ARGUMENTS, "{"))
        if marker == "{":
            self._at -= 1
        yield from self._space()
        return marker is not None and (yield from self._call_of(name.strip()))


MISTRAL_ARGS = ToolFormat(
    name="mistral_args",
    written_in=re.compile(r"\[TOOL_CALLS\](?s:.)*\[ARGS\]"),
    new_parser=MistralParser,
    markers=(BEGIN, CALL_ID, ARGUMENTS),
    shape=CallShape(before=BEGIN + "{name}" + ARGUMENTS, trigger=BEGIN),
    id_prefix="",
    id_length=9,
)
MISTRAL = ToolFormat(
    name="mistral",
    written_in=re.compile(r"\[TOOL_CALLS\]"),
    new_parser=MistralParser,
    markers=(BEGIN, CALL_ID, ARGUMENTS),
    shape=CallShape(
        opening=BEGIN + "[",
        before='{"name": "{name}", "arguments": ',
        after="}",
        between=", ",
        closing="]",
        trigger=BEGIN,
    ),
    id_prefix="",
    id_length=9,
)
