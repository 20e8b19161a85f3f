"""The content blocks of an answer: deltas become events, one block after the other; events fold to blocks.

Pure; knows neither HTTP nor how a message begins and ends.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any

from triolet.text.parsed_text import ToolCallDelta
from triolet.text.tool_parsers.call_parser import json_object
from triolet.web.generation import Delta

__all__ = ["BlockEvents", "fold_blocks"]

Event = dict[str, Any]


class BlockEvents:
    """The events of one message's blocks. One block is open at a time; it is closed when another begins."""

    def __init__(self) -> None:
        self._index = -1
        self._open: str | None = None
        self._thinking = hashlib.sha256()

    def add(self, delta: Delta) -> Iterator[Event]:
        """The events of one delta; its last one closes what is open."""
        if delta.reasoning:
            if self._open != "thinking":
                self._thinking = hashlib.sha256()
            yield from self._begin({"type": "thinking", "thinking": "", "signature": ""})
            self._thinking.update(delta.reasoning.encode())
            yield self._news({"type": "thinking_delta", "thinking": delta.reasoning})
        for part in delta.parts():
            yield from self._say(part) if isinstance(part, str) else self._call(part)
        if delta.finish_reason is not None:
            yield from self._end()

    def _say(self, text: str) -> Iterator[Event]:
        yield from self._begin({"type": "text", "text": ""})
        yield self._news({"type": "text_delta", "text": text})

    def _call(self, call: ToolCallDelta) -> Iterator[Event]:
        if call.name is not None:
            yield from self._end()
            yield from self._begin({"type": "tool_use", "id": call.id, "name": call.name, "input": {}})
        if call.arguments:
            yield self._news({"type": "input_json_delta", "partial_json": call.arguments})

    def _begin(self, block: dict[str, Any]) -> Iterator[Event]:
        """Open ``block``, unless one of its type is."""
        if self._open == block["type"]:
            return
        yield from self._end()
        self._index += 1
        self._open = block["type"]
        yield {"type": "content_block_start", "index": self._index, "content_block": block}

    def _news(self, delta: dict[str, Any]) -> Event:
        return {"type": "content_block_delta", "index": self._index, "delta": delta}

    def _end(self) -> Iterator[Event]:
        if self._open is None:
            return
        if self._open == "thinking":
            # Clients keep only thinking that has one. It says which text it is of, and is never looked at.
            yield self._news({"type": "signature_delta", "signature": self._thinking.hexdigest()})
        self._open = None
        yield {"type": "content_block_stop", "index": self._index}


def fold_blocks(events: Iterable[Event]) -> list[dict[str, Any]]:
    """The blocks that the events of a whole answer add up to."""
    blocks: list[dict[str, Any]] = []
    pieces: list[str] = []
    for event in events:
        match event:
            case {"content_block": block}:
                blocks.append(dict(block))
                pieces = []
            case {"delta": {"signature": signature}}:
                blocks[-1]["signature"] = signature
            case {"delta": {"text": str(text)} | {"thinking": str(text)} | {"partial_json": str(text)}}:
                pieces.append(text)
            case {"type": "content_block_stop"}:
                _fill(blocks[-1], "".join(pieces))
    return blocks


def _fill(block: dict[str, Any], text: str) -> None:
    """Put in what its deltas add up to. The input of a call that was cut off is no object, and left empty."""
    if block["type"] == "tool_use":
        block["input"] = json_object(text) or {}
    else:
        block[block["type"]] = text
