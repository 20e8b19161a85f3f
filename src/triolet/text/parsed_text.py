"""What the text of an answer holds: words for the user, reasoning, and calls of tools.

Knows no format in which a model writes them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Protocol

__all__ = ["AnswerParser", "ChainedParser", "ParsedText", "ToolCallDelta", "fold_calls"]


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """News of one call: the first has its ``id`` and ``name``, the ``arguments`` join to a JSON object.

    ``content_offset``: where a call begins, the characters of the content it came with that are before it.
    """

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""
    content_offset: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class ParsedText:
    """What is certain after some more text."""

    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()

    def __add__(self, later: ParsedText) -> ParsedText:
        return ParsedText(
            self.content + later.content,
            self.reasoning + later.reasoning,
            self.tool_calls + later._calls_after(self.content),
        )

    def _calls_after(self, content: str) -> tuple[ToolCallDelta, ...]:
        if not content:
            return self.tool_calls
        size = len(content)
        return tuple(
            replace(call, content_offset=size + call.content_offset) if call.name is not None else call
            for call in self.tool_calls
        )


class AnswerParser(Protocol):
    """Takes an answer apart as it comes. However it is cut into pieces, the outputs add up to the same."""

    def add(self, text: str) -> ParsedText:
        """Take the next piece; → what is new and certain."""

    def finish(self) -> ParsedText:
        """The answer has ended; → what was held back."""

    @property
    def has_called(self) -> bool:
        """Whether there are calls, each of them complete with a JSON object as arguments."""


class ChainedParser:
    """Finds reasoning first, and calls in what is left of the text."""

    def __init__(self, reasoning: AnswerParser, tools: AnswerParser) -> None:
        self._reasoning = reasoning
        self._tools = tools

    def add(self, text: str) -> ParsedText:
        first = self._reasoning.add(text)
        return ParsedText(reasoning=first.reasoning) + self._tools.add(first.content)

    def finish(self) -> ParsedText:
        first = self._reasoning.finish()
        rest = self._tools.add(first.content) + self._tools.finish()
        return ParsedText(reasoning=first.reasoning) + rest

    @property
    def has_called(self) -> bool:
        return self._tools.has_called


def fold_calls(deltas: Iterable[ToolCallDelta]) -> list[ToolCallDelta]:
    """One for each call, by index."""
    by_index: dict[int, list[ToolCallDelta]] = {}
    for delta in deltas:
        by_index.setdefault(delta.index, []).append(delta)
    return [_sum(by_index[index]) for index in sorted(by_index)]


def _sum(deltas: list[ToolCallDelta]) -> ToolCallDelta:
    """All news of one call as one."""
    call_id = next((delta.id for delta in deltas if delta.id), None)
    name = next((delta.name for delta in deltas if delta.name), None)
    arguments = "".join(delta.arguments for delta in deltas)
    return ToolCallDelta(deltas[0].index, call_id, name, arguments, deltas[0].content_offset)
