"""The most recently used results of an expensive function of a text, bounded in number and in size.

This module knows nothing of what is kept.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from typing import Generic, TypeVar

__all__ = ["LruCache"]

Value = TypeVar("Value")


class LruCache(Generic[Value]):
    """A thread-safe cache that forgets what has not been used for longest.

    It holds at most ``max_entries`` values, whose keys have at most ``max_characters`` together, and beyond
    them what is pinned.
    """

    def __init__(self, *, max_entries: int, max_characters: int) -> None:
        self._max_entries = max_entries
        self._max_characters = max_characters
        self._values: OrderedDict[str, Value] = OrderedDict()
        self._num_characters = 0
        self._pins = Counter[str]()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def get(self, key: str) -> Value | None:
        """The value of ``key``, now the most recently used one, or None."""
        with self._lock:
            if key not in self._values:
                return None
            self._values.move_to_end(key)
            return self._values[key]

    def pin(self, key: str) -> None:
        """Never forget the value of ``key``, which may come later, until :meth:`unpin` is called as often."""
        with self._lock:
            self._pins[key] += 1

    def unpin(self, key: str) -> None:
        """Take back one :meth:`pin`."""
        with self._lock:
            self._pins[key] -= 1
            if not self._pins[key]:
                del self._pins[key]
            self._shrink()

    def put(self, key: str, value: Value) -> None:
        """Keep ``value``; a key that alone is over the limit is not kept, unless it is pinned."""
        with self._lock:
            if key not in self._values:
                self._num_characters += len(key)
            self._values[key] = value
            self._values.move_to_end(key)
            self._shrink()

    def _shrink(self) -> None:
        if not self._is_full():
            return
        for key in [key for key in self._values if key not in self._pins]:
            del self._values[key]
            self._num_characters -= len(key)
            if not self._is_full():
                return

    def _is_full(self) -> bool:
        return len(self._values) > self._max_entries or self._num_characters > self._max_characters
