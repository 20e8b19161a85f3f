"""OpenAI's harmony, the format of gpt-oss: messages on channels, of which one is what the user sees.

``analysis`` is reasoning; ``commentary`` to a function is a call; everything else is content.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from triolet.text.incremental import Parsing
from triolet.text.reasoning import ReasoningFormat
from triolet.text.tool_parsers.call_parser import CallParser
from triolet.text.tool_parsers.tool_format import CallShape, ToolFormat

__all__ = ["HARMONY", "HarmonyParser"]

START, CHANNEL, CONSTRAIN, MESSAGE = "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"
ENDS = ("<|end|>", "<|return|>", "<|call|>")

_RECIPIENT = re.compile(r"to=functions\.([\w.-]+)")


class HarmonyParser(CallParser):
    def _parse(self) -> Parsing[None]:
        while marker := (yield from self._until((START, CHANNEL, *ENDS), self._say)):
            if marker in ENDS:
                continue
            self._begin()
            header, is_headed = yield from self._name_until((MESSAGE,))
            if is_headed is None:
                self._reject(marker)
                continue
            self._commit()
            yield from self._body(marker + header)

    def _body(self, header: str) -> Parsing[None]:
        """A message. It ends where the next one begins as well."""
        recipient = _RECIPIENT.search(header)
        if recipient is not None and self._announce(recipient[1]):
            if (yield from self._read_arguments(self._add_arguments)):
                self._end_call()
        elif header.partition(CHANNEL)[2].startswith("analysis"):
            yield from self._message(self._think)
        else:
            yield from self._message(self._say)

    def _message(self, emit: Callable[[str], None]) -> Parsing[None]:
        marker = yield from self._until((START, *ENDS), emit)
        if marker == START:
            self._at -= len(START)

    def _think(self, text: str) -> None:
        self._reasoning.append(text)


HARMONY = ToolFormat(
    name="harmony",
    written_in=re.compile(r"<\|channel\|>"),
    new_parser=HarmonyParser,
    markers=(START, CHANNEL, CONSTRAIN, MESSAGE, *ENDS),
    shape=CallShape(
        before=f"{CHANNEL}commentary to=functions.{{name}} {CONSTRAIN}json{MESSAGE}",
        between=f"<|call|>{START}assistant",
        trigger=f"{CHANNEL}commentary",
    ),
    reasoning=ReasoningFormat("harmony", f"{CHANNEL}analysis{MESSAGE}", f"<|end|>{START}assistant"),
)
