"""What a child process writes: passed on line by line, the last lines kept to tell why it died.

Where the interpreter says what was fatal, that is kept, however long the traces are that follow. What the
child logs in passing tells nothing of a death.

This module knows no process and no event loop.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections import deque
from collections.abc import Callable

__all__ = ["OutputLines", "last_words", "write_to_stderr"]

FATAL = "Fatal Python error: "
"""How the first line of :mod:`faulthandler` begins when the process is about to die."""
NUM_LAST_LINES = 20
MAX_LINE_BYTES = 8192
NUM_TOLD_LINES = 5
MAX_TOLD_CHARACTERS = 400
"""Of each line that clients are told: what follows is in the log of the parent."""
LOGGED_IN_PASSING = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} (DEBUG|INFO|WARNING) ")
"""How lines of the log begin that tell of nothing that went wrong."""


class OutputLines:
    """Cuts what is written into lines, at most so long, and hands each to ``on_line``."""

    def __init__(self, on_line: Callable[[str], None]) -> None:
        self.last: deque[str] = deque(maxlen=NUM_LAST_LINES)
        self._on_line = on_line
        self._rest = b""

    def feed(self, data: bytes) -> None:
        """Take in bytes as they were written, in pieces of any size."""
        *lines, rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._take(self._cut(line))
        self._rest = self._cut(rest)

    def finish(self) -> None:
        """Nothing more will come: what there is of a last line is one too."""
        if self._rest:
            self._take(self._rest)
            self._rest = b""

    def _cut(self, line: bytes) -> bytes:
        """Take what is too long for one line; what is left of it."""
        while len(line) > MAX_LINE_BYTES:
            self._take(line[:MAX_LINE_BYTES])
            line = line[MAX_LINE_BYTES:]
        return line

    def _take(self, line: bytes) -> None:
        text = line.decode(errors="backslashreplace").rstrip("\r")
        if text.startswith(FATAL):
            self.last.clear()
        is_told = len(self.last) == NUM_LAST_LINES and self.last[0].startswith(FATAL)
        if not is_told and LOGGED_IN_PASSING.match(text) is None:
            self.last.append(text)
        self._on_line(text)


def write_to_stderr(line: str) -> None:
    """Write a line to our own standard error; nothing where nobody can read it any more."""
    with contextlib.suppress(OSError, ValueError):  # the other end is gone, or it is closed
        if sys.stderr is not None:
            sys.stderr.write(line + "\n")
            sys.stderr.flush()


def last_words(lines: tuple[str, ...]) -> str:
    """The last lines that a process wrote, in one; of a trace its headline alone, since clients see this."""
    said = [line.strip()[:MAX_TOLD_CHARACTERS] for line in lines if line.strip()]
    is_fatal = bool(said) and said[0].startswith(FATAL)
    told = said[:1] if is_fatal else said[-NUM_TOLD_LINES:]
    return f"; it wrote: {' | '.join(told)}" if told else ""
