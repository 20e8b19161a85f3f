"""ProgressBar: how far a batch is, on the standard error if that is a terminal.

Has no thread: it is drawn when it is told of news. This module knows nothing of engines.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from triolet.request import RequestOutput

__all__ = ["ProgressBar"]

SECONDS_BETWEEN_DRAWINGS = 0.1


class ProgressBar:
    """Requests done and tokens per second; nothing at all unless ``is_shown``."""

    def __init__(self, num_requests: int, *, is_shown: bool) -> None:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[speed]}"),
        )
        console = Console(stderr=True)  # the standard output is the caller's
        is_disabled = not (is_shown and console.is_terminal)
        self._progress = Progress(
            *columns, console=console, transient=True, auto_refresh=False, disable=is_disabled
        )
        self._task = self._progress.add_task("Processed prompts", total=num_requests, speed="")
        self._num_tokens = 0
        self._began = self._drawn = time.monotonic()

    def advance(self, outputs: Sequence[RequestOutput]) -> None:
        """Count finished requests; draw anew ten times a second at most."""
        now = time.monotonic()
        self._num_tokens += sum(output.num_output_tokens for output in outputs)
        speed = f"{self._num_tokens / max(now - self._began, 1e-9):.0f} tok/s"
        self._progress.update(self._task, advance=len(outputs), speed=speed)
        if now - self._drawn >= SECONDS_BETWEEN_DRAWINGS:
            self._progress.refresh()
            self._drawn = now

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._progress.stop()
