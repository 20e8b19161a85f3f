"""What all parsers of calls have in common: content, calls, and calls written as JSON objects.

A call that is not what it seemed becomes content, up to the moment its name is certain; from then on what
follows is its arguments, handed out as the model writes them, and so the same streamed and plain.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from triolet.text.incremental import HeldSpace, IncrementalParser, Parsing
from triolet.text.parsed_text import ParsedText, ToolCallDelta

__all__ = ["CallParser", "json_object", "json_text"]

ARGUMENT_KEYS = ("arguments", "parameters")
OTHER_KEYS = ("type", "id")

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def json_object(text: str) -> dict[str, Any] | None:
    """The JSON object that ``text`` is, or None."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def json_text(value: Any) -> str:
    """``value`` as JSON. Raises ValueError for what JSON has no number for."""
    return _as_unicode(json.dumps(value, ensure_ascii=False, allow_nan=False))


def _as_unicode(text: str) -> str:
    """JSON in which half a character is an escape, as models write it: no UTF-8 has one."""
    return _LONE_SURROGATE.sub(lambda half: f"\\u{ord(half[0]):04x}", text)


class CallParser(IncrementalParser):
    """``tools``: the schemas of the parameters by name. ``new_id`` makes the id of a call."""

    def __init__(self, tools: Mapping[str, Any], new_id: Callable[[], str]) -> None:
        self._tools = tools
        self._new_id = new_id
        self._num_calls = 0
        self._num_complete = 0
        self._arguments: list[str] = []
        self._held_space = HeldSpace()
        super().__init__()

    @property
    def has_called(self) -> bool:
        """Whether there are calls, each of them complete with a JSON object as arguments."""
        return 0 < self._num_calls == self._num_complete

    def finish(self) -> ParsedText:
        """What was held back after a call is the beginning of a marker or of another call, and no content."""
        is_after_call = self._num_calls > 0
        parsed = IncrementalParser.finish(self)
        if is_after_call:
            return replace(parsed, content="")
        return parsed if self._num_calls else parsed + ParsedText(self._held_space.take())

    # ---- what was found

    def _say(self, text: str) -> None:
        """Content. White space waits for what follows: beside a call it is none."""
        self._content.append(self._held_space.push(text))

    def _reject(self, marker: str = "") -> None:
        """What began with ``marker`` is no call."""
        self._say(marker + self._go_back())

    def _announce(self, name: str) -> bool:
        """Begin a call; False, and nothing done, if there is no such tool."""
        if name not in self._tools:
            return False
        self._commit()
        self._held_space.take()
        self._arguments = []
        offset = sum(map(len, self._content))
        self._tool_calls.append(ToolCallDelta(self._num_calls, self._new_id(), name, content_offset=offset))
        self._num_calls += 1
        return True

    def _add_arguments(self, text: str) -> None:
        if text:
            self._arguments.append(text)
            self._tool_calls.append(ToolCallDelta(self._num_calls - 1, arguments=text))

    def _end_call(self) -> None:
        """The call has all its arguments; whether they are any good is seen here."""
        self._num_complete += json_object("".join(self._arguments)) is not None

    # ---- what formats share

    def _read_arguments(self, emit: Callable[[str], None]) -> Parsing[bool]:
        """A JSON object. A string that holds one, and null, are taken for what they stand for.

        False if the text ends in it or before it.
        """
        first = yield from self._peek()
        if first in ("{", ""):
            return first == "{" and (yield from self._value(emit))
        held: list[str] = []
        is_whole = yield from self._value(held.append)
        text = "".join(held)
        if is_whole and text.startswith('"'):
            text = _decoded(text)
        emit("{}" if text in ("null", "") and is_whole else text)
        return is_whole

    def _call_of(self, name: str) -> Parsing[bool]:
        """A call of which only the arguments are left to read; False, and none begun, for no such tool."""
        if not self._announce(name):
            return False
        if (yield from self._read_arguments(self._add_arguments)):
            self._end_call()
        return True

    def _call_object(self) -> Parsing[bool]:
        """``{"name": …, "arguments": {…}}``; False, and no call begun, for anything else."""
        if not (yield from self._literal("{")):
            return False
        held: list[str] = []
        is_announced = has_arguments = False
        while True:
            yield from self._space()
            key = yield from self._key()
            if key == "name" and not is_announced:
                is_announced = self._announce(_decoded((yield from self._string())))
                if not is_announced:
                    return False
                self._add_arguments("".join(held))
            elif key in ARGUMENT_KEYS and not has_arguments:
                emit = self._add_arguments if is_announced else held.append
                has_arguments = yield from self._read_arguments(emit)
                if not has_arguments:
                    return is_announced
            else:
                is_known = is_announced or key in OTHER_KEYS
                if key is None or not is_known or not (yield from self._value(_ignore)):
                    return is_announced
            yield from self._space()
            if not (yield from self._literal(",")):
                break
        is_closed = yield from self._literal("}")
        if is_announced and (is_closed or has_arguments):
            self._add_arguments("" if has_arguments else "{}")
            self._end_call()
        return is_announced

    def _key(self) -> Parsing[str | None]:
        """The key of a member and the colon after it."""
        text = yield from self._string()
        if text is None:
            return None
        yield from self._space()
        if not (yield from self._literal(":")):
            return None
        yield from self._space()
        return text[1:-1]


def _ignore(text: str) -> None:
    """Nothing is made of it."""


def _decoded(text: str | None) -> str:
    """The text that a JSON string stands for; an ill-formed one stands for itself."""
    try:
        return _as_unicode(str(json.loads(text or '""')))
    except ValueError:
        return text or ""
