"""Log messages on standard error: with rich on a terminal, as plain lines elsewhere.

Messages in a row that differ in their numbers alone, such as those of a download, are the progress of one
thing: a terminal shows them in one place, elsewhere one is written every few seconds and the last always.
"""

from __future__ import annotations

import logging
import re
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["PlainHandler", "TerminalHandler", "set_up_access_log", "set_up_logging"]

_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_SECONDS_BETWEEN_LINES = 5.0
_STYLES = {"DEBUG": "dim", "WARNING": "yellow", "ERROR": "bold red", "CRITICAL": "bold red"}


def set_up_logging(level: str) -> None:
    """Send what is logged at ``level`` or above to standard error. For programs, never for a library."""
    handler: logging.Handler = PlainHandler(sys.stderr)
    if sys.stderr.isatty():
        from rich.console import Console

        handler = TerminalHandler(Console(stderr=True))
    logging.basicConfig(level=level.upper(), handlers=[handler])


def set_up_access_log() -> None:
    """Send the access log to standard error, one line a request and nothing around it, whatever the level."""
    access = logging.getLogger("triolet.access")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    access.addHandler(handler)
    access.setLevel(logging.INFO)
    access.propagate = False


class _ProgressHandler(logging.Handler):
    """Tells whether a record continues the progress of the one before it."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter(_FORMAT))
        self._shape: tuple[str, str] | None = None

    def _is_continued(self, record: logging.LogRecord) -> bool:
        before = self._shape
        self._shape = (record.name, re.sub(r"[\d.,]+", "#", record.getMessage()))
        return self._shape == before


class PlainHandler(_ProgressHandler):
    """One line a message; of progress, one every few seconds and the last."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._stream = stream
        self._clock = clock
        self._written_at = 0.0
        self._skipped: str | None = None

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line, is_continued = self.format(record), self._is_continued(record)
            if is_continued and self._clock() - self._written_at < _SECONDS_BETWEEN_LINES:
                self._skipped = line
                return
            if self._skipped is not None and not is_continued:
                self._write(self._skipped)
            self._write(line)
        except Exception:
            self.handleError(record)

    def _write(self, line: str) -> None:
        self._stream.write(line + "\n")
        self._stream.flush()
        self._skipped, self._written_at = None, self._clock()


class TerminalHandler(_ProgressHandler):
    """Messages in colour; progress overwrites itself."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        from rich.control import Control
        from rich.segment import ControlType

        try:
            if self._is_continued(record):
                up_and_erase = Control((ControlType.CURSOR_UP, 1), (ControlType.ERASE_IN_LINE, 2))
                self._console.control(up_and_erase)
            style = _STYLES.get(record.levelname)
            is_short = record.levelno <= logging.INFO
            self._console.print(
                self.format(record), style=style, markup=False, highlight=False, emoji=False,
                no_wrap=is_short, overflow="ellipsis" if is_short else "fold",
            )  # fmt: skip
        except Exception:
            self.handleError(record)
