"""The items of an answer, made of deltas one after the other, and the events that tell of them.

An item is open while its parts come; what comes of another kind closes it. Knows nothing of the response
around them or of how events are sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from triolet.request import TokenLogprobs
from triolet.text.parsed_text import ToolCallDelta
from triolet.web.generation import Delta

__all__ = ["Event", "OpenCall", "OpenText", "OutputItems", "TextKind"]

Event = dict[str, Any]
"""An event without its number."""
Logprobs = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class TextKind:
    """One kind of item that holds a text."""

    item_type: str
    part_type: str
    fields: dict[str, Any]
    part_fields: dict[str, Any]

    @property
    def event(self) -> str:
        return f"response.{self.part_type}"


MESSAGE = TextKind("message", "output_text", {"role": "assistant"}, {"annotations": []})
REASONING = TextKind("reasoning", "reasoning_text", {"summary": []}, {})


class OpenText:
    """A message or reasoning that comes: one part, a text. Only that of a message has log-probabilities."""

    def __init__(self, kind: TextKind, item_id: str, index: int, *, has_logprobs: bool) -> None:
        self.kind = kind
        self._id = item_id
        self._index = index
        self._has_logprobs = has_logprobs
        self._texts: list[str] = []
        self._logprobs: Logprobs = []
        self._place = {"item_id": item_id, "output_index": index, "content_index": 0}

    def begin(self) -> Iterator[Event]:
        item = self.as_item("in_progress") | {"content": []}
        yield {"type": "response.output_item.added", "output_index": self._index, "item": item}
        yield {"type": "response.content_part.added", **self._place, "part": self._part()}

    def add(self, text: str, logprobs: Logprobs) -> Event:
        self._texts.append(text)
        self._logprobs += logprobs
        return {"type": f"{self.kind.event}.delta", **self._place, "delta": text, **self._told(logprobs)}

    def end(self, status: str) -> Iterator[Event]:
        part, item = self._part(), self.as_item(status)
        done = {"text": part["text"], **self._told(self._logprobs)}
        yield {"type": f"{self.kind.event}.done", **self._place, **done}
        yield {"type": "response.content_part.done", **self._place, "part": part}
        yield {"type": "response.output_item.done", "output_index": self._index, "item": item}

    def as_item(self, status: str) -> dict[str, Any]:
        kind = self.kind
        head = {"id": self._id, "type": kind.item_type, "status": status}
        return head | kind.fields | {"content": [self._part()]}

    def _part(self) -> dict[str, Any]:
        fields = {"type": self.kind.part_type, "text": "".join(self._texts)} | self.kind.part_fields
        return fields | {"logprobs": list(self._logprobs)} if self._has_logprobs else fields

    def _told(self, logprobs: Logprobs) -> dict[str, Any]:
        """What events say of log-probabilities: those of a message always say something."""
        return {"logprobs": list(logprobs)} if self.kind is MESSAGE else {}


class OpenCall:
    """A call of a tool that comes. ``name`` and ``call_id`` are known from the beginning."""

    def __init__(self, item_id: str, index: int, first: ToolCallDelta) -> None:
        self.number = first.index
        self._index = index
        self._head = {"id": item_id, "type": "function_call", "call_id": first.id, "name": first.name}
        self._place = {"item_id": item_id, "output_index": index}
        self._arguments: list[str] = []

    def begin(self) -> Iterator[Event]:
        item = self.as_item("in_progress")
        yield {"type": "response.output_item.added", "output_index": self._index, "item": item}

    def add(self, arguments: str) -> Event:
        self._arguments.append(arguments)
        return {"type": "response.function_call_arguments.delta", **self._place, "delta": arguments}

    def end(self, status: str) -> Iterator[Event]:
        item = self.as_item(status)
        done = {"name": item["name"], "arguments": item["arguments"]}
        yield {"type": "response.function_call_arguments.done", **self._place, **done}
        yield {"type": "response.output_item.done", "output_index": self._index, "item": item}

    def as_item(self, status: str) -> dict[str, Any]:
        return self._head | {"arguments": "".join(self._arguments), "status": status}


class OutputItems:
    """What an answer has produced. ``new_id(type)`` names its items.

    ``convert`` writes log-probabilities where they were asked for. They are of all tokens of the answer,
    also of those by which reasoning and calls are told apart, and come with the text of messages.
    """

    def __init__(
        self,
        new_id: Callable[[str], str],
        convert: Callable[[Sequence[TokenLogprobs]], Logprobs] | None = None,
    ) -> None:
        self._new_id = new_id
        self._convert = convert
        self._closed: list[dict[str, Any]] = []
        self._open: OpenText | OpenCall | None = None
        self._logprobs: Logprobs = []
        self.num_reasoning_tokens = 0

    def items(self, status: str = "in_progress") -> list[dict[str, Any]]:
        """All of them; an open one with ``status``."""
        return self._closed + ([] if self._open is None else [self._open.as_item(status)])

    def add(self, delta: Delta) -> list[Event]:
        """Take a delta; → the events that tell of it."""
        if delta.logprobs and self._convert is not None:
            self._logprobs += self._convert(delta.logprobs)
        events: list[Event] = []
        if delta.reasoning:
            events += self._add_text(REASONING, delta.reasoning)
        if self._is_open(REASONING) and (delta.reasoning or not (delta.text or delta.tool_calls)):
            self.num_reasoning_tokens += delta.num_tokens
        for part in delta.parts():
            events += self._add_text(MESSAGE, part) if isinstance(part, str) else self._add_call(part)
        return events

    def finish(self, status: str) -> list[Event]:
        """The answer has ended; an answer of nothing is an empty message."""
        events: list[Event] = []
        if not self.items() or (self._is_open(MESSAGE) and self._logprobs):
            events += self._add_text(MESSAGE, "")
        return events + list(self._close(status))

    def _is_open(self, kind: TextKind) -> bool:
        return isinstance(self._open, OpenText) and self._open.kind is kind

    def _add_text(self, kind: TextKind, text: str) -> Iterator[Event]:
        if not (isinstance(self._open, OpenText) and self._open.kind is kind):
            yield from self._close("completed")
            has_logprobs = kind is MESSAGE and self._convert is not None
            self._open = OpenText(kind, *self._place(kind.item_type), has_logprobs=has_logprobs)
            yield from self._open.begin()
        logprobs: Logprobs = []
        if kind is MESSAGE:
            logprobs, self._logprobs = self._logprobs, []
        if text or logprobs:
            yield self._open.add(text, logprobs)

    def _add_call(self, call: ToolCallDelta) -> Iterator[Event]:
        if not (isinstance(self._open, OpenCall) and self._open.number == call.index):
            yield from self._close("completed")
            self._open = OpenCall(*self._place("function_call"), call)
            yield from self._open.begin()
        if call.arguments:
            yield self._open.add(call.arguments)

    def _close(self, status: str) -> Iterator[Event]:
        if self._open is not None:
            ended, self._open = self._open, None
            self._closed.append(ended.as_item(status))
            yield from ended.end(status)

    def _place(self, item_type: str) -> tuple[str, int]:
        """The id and the index of the next item."""
        return self._new_id(item_type), len(self._closed)
