"""Responses that are kept for later, in memory and within bounds: the least recently used are dropped.

Knows nothing of what is in them, or of other servers.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

__all__ = ["ResponseStore", "StoredResponse"]

ENTRY_BYTES = 1024
"""What an entry takes besides its texts, generously."""
LARGEST_ENTRY = 16 * 2**20
"""A larger one could not be sent to another server that asks for it."""


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """``response`` and the items of the whole conversation before it, both as JSON. ``owner`` may see it."""

    owner: str
    response: bytes
    items: bytes

    @property
    def num_bytes(self) -> int:
        return len(self.response) + len(self.items) + ENTRY_BYTES


class ResponseStore:
    """At most ``max_responses`` of them, and ``max_bytes``; none at all where one of these is 0."""

    def __init__(self, max_responses: int, max_bytes: int) -> None:
        self._max_responses = max_responses
        self._max_bytes = max_bytes
        self._responses: OrderedDict[str, StoredResponse] = OrderedDict()
        self._num_bytes = 0

    @property
    def is_off(self) -> bool:
        """Whether nothing is ever kept."""
        return not (self._max_responses and self._max_bytes)

    @property
    def num_bytes(self) -> int:
        """What is taken now."""
        return self._num_bytes

    def __len__(self) -> int:
        return len(self._responses)

    def put(self, response_id: str, stored: StoredResponse) -> bool:
        """Keep it as the most recently used; False if it is too large, which costs no other its place.

        ``response_id`` is new.
        """
        if self.is_off or stored.num_bytes > min(self._max_bytes, LARGEST_ENTRY):
            return False
        self._responses[response_id] = stored
        self._num_bytes += stored.num_bytes
        while len(self._responses) > self._max_responses or self._num_bytes > self._max_bytes:
            _, dropped = self._responses.popitem(last=False)
            self._num_bytes -= dropped.num_bytes
        return True

    def find(self, response_id: str, owner: str) -> StoredResponse | None:
        """One that ``owner`` may see; it becomes the most recently used."""
        stored = self._responses.get(response_id)
        if stored is None or stored.owner != owner:
            return None
        self._responses.move_to_end(response_id)
        return stored

    def delete(self, response_id: str, owner: str) -> bool:
        """Forget it; False if there is none that ``owner`` may see."""
        if self.find(response_id, owner) is None:
            return False
        self._num_bytes -= self._responses.pop(response_id).num_bytes
        return True
