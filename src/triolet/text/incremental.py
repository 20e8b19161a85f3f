"""A base for parsers of text that comes in pieces: each is written as a generator that reads characters.

A generator yields when it needs more text, and only then; nothing it decides depends on where pieces end.
That is why any cutting of a text gives the same result. The work is linear in the text: what has been read
leaves the window, and how much is held back and read again is bounded. Knows no format.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from functools import cache
from typing import TypeVar

from triolet.text.parsed_text import ParsedText, ToolCallDelta, fold_calls

__all__ = ["HeldSpace", "IncrementalParser", "Parsing"]

T = TypeVar("T")
Parsing = Generator[None, None, T]
"""A part of a parser: yields where text is missing, returns what it has read."""

MAX_NAME = 256
"""Longest key or name of a tool; a longer one is none."""
MAX_HELD = 2**18
"""Most characters that are held back until they turn out to be a call or none; then they are none."""
MAX_REREAD = 2**18
"""Characters of one text that are read again because they were no call; after that they are content as they
stand, calls inside them as well."""
MAX_STEP = 2**12
"""Characters that are taken into the window at a time."""

_SPACE = re.compile(r"\s*")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_SCALAR = re.compile(r"[-+.\w]*")


class HeldSpace:
    """White space that waits for what follows it."""

    def __init__(self) -> None:
        self._pieces: list[str] = []

    def push(self, text: str) -> str:
        """→ what was held and ``text``, without the white space at its end, which is held from here on."""
        body = text.rstrip()
        ready = self.take() + body if body else ""
        if space := text[len(body) :]:
            self._pieces.append(space)
        return ready

    def take(self) -> str:
        """→ what is held, no longer."""
        held = "".join(self._pieces)
        self._pieces.clear()
        return held


class IncrementalParser(ABC):
    """Reading, and what has been found so far. Subclasses write :meth:`_parse`."""

    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        self._mark: int | None = None
        self._kept: list[str] = []
        self._num_kept_before = 0
        self._num_reread = 0
        self._is_over = False
        self._is_cut = False
        self._is_parsed = False
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._tool_calls: list[ToolCallDelta] = []
        self._machine = self._parse()

    @abstractmethod
    def _parse(self) -> Parsing[None]:
        """Read the whole text; must not return before its end."""

    def add(self, text: str) -> ParsedText:
        """Take the next piece; → what is new and certain."""
        at = 0
        while at < len(text):
            size = min(MAX_STEP, MAX_HELD - self._num_kept)
            self._take_in(text[at : at + size])
            at += size
        return self._take_output()

    def finish(self) -> ParsedText:
        """The text has ended; → what was held back."""
        self._is_over = True
        self._advance()
        return self._take_output()

    def _take_in(self, text: str) -> None:
        """Go on with ``text``; what has been read leaves the window, and is kept if it is marked."""
        if self._mark is not None:
            self._keep(self._text[self._mark : self._at])
            self._mark = 0
        self._text = self._text[self._at :] + text
        self._at = 0
        self._advance()
        if self._num_kept == MAX_HELD:
            self._is_cut = True
            self._advance()
            assert not self._is_cut, "what is cut off is no call, or a whole one"

    def _keep(self, text: str) -> None:
        self._kept.append(text)
        self._num_kept_before += len(text)

    @property
    def _num_kept(self) -> int:
        """Characters since the mark, those that are not read yet as well."""
        return 0 if self._mark is None else self._num_kept_before + len(self._text) - self._mark

    def _advance(self) -> None:
        if not self._is_parsed:
            self._is_parsed = next(self._machine, self) is self

    def _take_output(self) -> ParsedText:
        parsed = ParsedText(
            "".join(self._content), "".join(self._reasoning), tuple(fold_calls(self._tool_calls))
        )
        self._content, self._reasoning, self._tool_calls = [], [], []
        return parsed

    # ---- where to come back to

    def _begin(self) -> None:
        """Keep the text from here on, for :meth:`_go_back`."""
        self._commit()
        self._mark = self._at

    def _commit(self) -> None:
        """What was read is what it seemed to be."""
        self._mark, self._num_kept_before, self._is_cut = None, 0, False
        self._kept.clear()

    def _since_mark(self) -> str:
        """What was read since :meth:`_begin` was called."""
        assert self._mark is not None, "nothing was begun"
        return "".join([*self._kept, self._text[self._mark : self._at]])

    def _go_back(self) -> str:
        """Read again from where :meth:`_begin` was called; → what is too much to read again, else nothing."""
        text = self._since_mark()
        if self._num_reread + len(text) <= MAX_REREAD:
            self._num_reread += len(text)
            if self._kept:
                self._text, self._at = text + self._text[self._at :], len(text)
            self._at -= len(text)
            text = ""
        self._commit()
        return text

    # ---- reading

    def _more(self) -> Parsing[bool]:
        """Wait for more text; False where there will be none, or no more is held back."""
        if self._is_over or self._is_cut:
            return False
        yield
        return True

    def _peek(self) -> Parsing[str]:
        """The next character, left where it is; empty at the end."""
        while self._at == len(self._text):
            if not (yield from self._more()):
                return ""
        return self._text[self._at]

    def _until(self, markers: tuple[str, ...], emit: Callable[[str], None]) -> Parsing[str | None]:
        """Hand out the text before the first of ``markers`` and skip that; → which it was, None at the end.

        No marker may begin inside another one.
        """
        pattern = _alternatives(markers)
        while True:
            if found := pattern.search(self._text, self._at):
                emit(self._text[self._at : found.start()])
                self._at = found.end()
                return found.group()
            end = len(self._text) - (0 if self._is_over else self._num_held(markers))
            emit(self._text[self._at : end])
            self._at = end
            if not (yield from self._more()):
                return None

    def _num_held(self, markers: tuple[str, ...]) -> int:
        """Characters at the end that may be the beginning of a marker."""
        longest = min(max(map(len, markers)) - 1, len(self._text) - self._at)
        ends = (self._text[len(self._text) - size :] for size in range(longest, 0, -1))
        return next((len(end) for end in ends if any(marker.startswith(end) for marker in markers)), 0)

    def _literal(self, text: str) -> Parsing[bool]:
        """Read exactly ``text``, or nothing."""
        while len(self._text) - self._at < len(text) and text.startswith(self._text[self._at :]):
            if not (yield from self._more()):
                return False
        if not self._text.startswith(text, self._at):
            return False
        self._at += len(text)
        return True

    def _matching(self, pattern: re.Pattern[str]) -> Parsing[str]:
        """Read a run of characters, each of which ``pattern`` repeats."""
        read: list[str] = []
        while True:
            found = pattern.match(self._text, self._at)
            assert found is not None, "the pattern matches nothing as well"
            read.append(found.group())
            self._at = found.end()
            if self._at < len(self._text) or not (yield from self._more()):
                return "".join(read)

    def _space(self) -> Parsing[str]:
        return (yield from self._matching(_SPACE))

    def _name_until(self, markers: tuple[str, ...]) -> Parsing[tuple[str, str | None]]:
        """A short text before one of ``markers``, and which it was; None if there is none near."""
        pattern = _alternatives(markers)
        limit = MAX_NAME + max(map(len, markers))
        while not (found := pattern.search(self._text, self._at, self._at + limit)):
            if len(self._text) - self._at >= limit or not (yield from self._more()):
                return "", None
        name = self._text[self._at : found.start()]
        if len(name) > MAX_NAME:
            return "", None
        self._at = found.end()
        return name, found.group()

    def _string(self) -> Parsing[str | None]:
        """A short JSON string as it is written, or None and nothing read."""
        if (yield from self._peek()) != '"':
            return None
        while not (found := _STRING.match(self._text, self._at, self._at + MAX_NAME)):
            if len(self._text) - self._at > MAX_NAME or not (yield from self._more()):
                return None
        self._at = found.end()
        return found.group()

    def _value(self, emit: Callable[[str], None]) -> Parsing[bool]:
        """A JSON value, handed out as it is written; False if the text ends in it. Only brackets and quotes
        are looked at."""
        if (yield from self._peek()) not in tuple('{["'):
            emit((yield from self._matching(_SCALAR)))
            return True
        depth, is_in_string, is_escaped = 0, False, False
        while True:
            start = self._at
            for character in self._text[start : start + MAX_STEP]:
                self._at += 1
                if is_escaped:
                    is_escaped = False
                elif is_in_string and character == "\\":
                    is_escaped = True
                elif character == '"':
                    is_in_string = not is_in_string
                elif not is_in_string:
                    depth += (character in "{[") - (character in "}]")
                if depth == 0 and not is_in_string:
                    emit(self._text[start : self._at])
                    return True
            emit(self._text[start : self._at])
            if self._at == len(self._text) and not (yield from self._more()):
                return False


@cache
def _alternatives(markers: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, markers)))
