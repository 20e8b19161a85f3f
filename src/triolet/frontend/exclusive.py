"""Exclusive: one thread at a time, and an error for the others that says what to do instead.

This module knows nothing of what it guards.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Exclusive"]


class Exclusive:
    """Held by a thread, which may hold it several times over, and by no other meanwhile."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._owner: int | None = None

    def check(self) -> None:
        """Raises RuntimeError while another thread holds it."""
        if self._owner not in (None, threading.get_ident()):
            raise RuntimeError(
                f"this {self._name} is in use by another thread; make one for each thread, or use an Engine, "
                "which takes any number of requests at once"
            )

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold it. Raises RuntimeError while another thread does."""
        with self._lock:
            self.check()
            before, self._owner = self._owner, threading.get_ident()
        try:
            yield
        finally:
            self._owner = before
