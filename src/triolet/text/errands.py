"""Work done beside other work, one piece after the other, by a thread that is there only while there is some.

This module knows nothing of what is done.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

__all__ = ["Errands"]


class Errands:
    """Runs functions in the order given, on a thread called ``name``. They must not raise."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._waiting: deque[Callable[[], None]] = deque()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def add(self, function: Callable[[], None]) -> None:
        """Run ``function`` when those before it have run. Returns at once; any thread may call."""
        with self._lock:
            self._waiting.append(function)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Drop what has not begun, and wait for what has."""
        with self._lock:
            self._waiting.clear()
            thread = self._thread
        if thread is not None:
            thread.join()

    def _work(self) -> None:
        while (function := self._next()) is not None:
            function()

    def _next(self) -> Callable[[], None] | None:
        with self._lock:
            if self._waiting:
                return self._waiting.popleft()
            self._thread = None
            return None
