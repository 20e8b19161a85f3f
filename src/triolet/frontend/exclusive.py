"""Exclusive: one thread at a time, and an error for the others that says what to do instead.

This module knows nothing of what it guards.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Exclusive"]


class Exclusive:
    """Held by a thread, which may hold it several times over, and by no other meanwhile.

    There is no lock, which an interrupt at the wrong moment would leave locked for good.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._owners: dict[str, int] = {}

    def check(self) -> None:
        """Raises RuntimeError while another thread holds it."""
        thread = threading.get_ident()
        if self._owners.get("thread", thread) != thread:
            raise RuntimeError(
                f"this {self._name} is in use by another thread; make one for each thread, or use an Engine, "
                "which takes any number of requests at once"
            )

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold it. Raises RuntimeError while another thread does."""
        thread = threading.get_ident()
        is_held_already = self._owners.get("thread") == thread
        try:
            self._owners.setdefault("thread", thread)  # at once, so that no other thread comes between
            self.check()
            yield
        finally:
            if not is_held_already and self._owners.get("thread") == thread:
                del self._owners["thread"]
