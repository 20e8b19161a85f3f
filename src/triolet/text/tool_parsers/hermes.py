"""``<tool_call>{"name": …, "arguments": {…}}</tool_call>``: Hermes, Qwen 2.5 and 3, SmolLM3, Granite 4.

Also the format that models are asked for whose template knows no tools.
"""

from __future__ import annotations

import re

from triolet.text.incremental import Parsing
from triolet.text.tool_parsers.call_parser import CallParser
from triolet.text.tool_parsers.tool_format import CallShape, ToolFormat

__all__ = ["HERMES", "HermesParser"]

BEGIN, END = "<tool_call>", "</tool_call>"


class HermesParser(CallParser):
    def _parse(self) -> Parsing[None]:
        while (yield from self._until((BEGIN,), self._say)) is not None:
            self._begin()
            yield from self._space()
            if (yield from self._call_object()):
                yield from self._space()
                yield from self._literal(END)
            else:
                self._reject(BEGIN)


HERMES = ToolFormat(
    name="hermes",
    written_in=re.compile(r"\A(?!(?s:.)*(?:<arg_key>|<invoke|<parameter=))(?s:.)*<tool_call>"),
    new_parser=HermesParser,
    markers=(BEGIN, END),
    shape=CallShape(
        before=BEGIN + '\n{"name": "{name}", "arguments": ',
        after="}\n" + END,
        between="\n",
        trigger=BEGIN,
    ),
)
