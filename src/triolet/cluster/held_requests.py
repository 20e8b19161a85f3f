"""HeldRequests: requests that no rank can be given at present, until one can or they are given up.

Pure and synchronous; times are given to it, in seconds on any one clock. This module knows no rank.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from triolet.cluster.rank_link import RoutedRequest
from triolet.core.deadlines import Deadlines

__all__ = ["HeldRequests"]


class HeldRequests:
    """In the order in which they came. ``patience``: seconds after which one becomes doubtful, and again."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._requests: dict[int, RoutedRequest] = {}
        self._deadlines = Deadlines()
        self._doubts: dict[int, float] = {}
        self._queue: deque[tuple[float, int]] = deque()

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[RoutedRequest]:
        return iter(self._requests.values())

    def add(self, routed: RoutedRequest, now: float) -> None:
        """Take in a request; its own time-outs count from its arrival."""
        request_id = routed.request.request_id
        self._requests[request_id] = routed
        self._deadlines.add(request_id, routed.request.options, routed.arrived)
        self._doubt_later(request_id, now)

    def discard(self, request_id: int) -> None:
        """It is held no longer, if it was."""
        if self._requests.pop(request_id, None) is not None:
            self._deadlines.discard(request_id)
            del self._doubts[request_id]

    def next_due(self) -> float | None:
        """When one will be late or doubtful; None if none will."""
        while self._queue and not self._counts(*self._queue[0]):
            self._queue.popleft()
        dues = [self._deadlines.next_due(), self._queue[0][0] if self._queue else None]
        return min((due for due in dues if due is not None), default=None)

    def late(self, now: float) -> list[RoutedRequest]:
        """Those whose time is up, each once."""
        return [self._requests[request_id] for request_id in self._deadlines.take_late(now)]

    def doubtful(self, now: float) -> list[RoutedRequest]:
        """Those held for so long that a rank may never come; they are so again after as long again."""
        found: list[RoutedRequest] = []
        while self._queue and self._queue[0][0] <= now:
            due, request_id = self._queue.popleft()
            if self._counts(due, request_id):
                found.append(self._requests[request_id])
                self._doubt_later(request_id, now)
        return found

    def _doubt_later(self, request_id: int, now: float) -> None:
        self._doubts[request_id] = due = now + self._patience
        self._queue.append((due, request_id))

    def _counts(self, due: float, request_id: int) -> bool:
        return self._doubts.get(request_id) == due

    def check_integrity(self) -> None:
        """Assert that nothing is kept of what is held no longer."""
        assert self._doubts.keys() == self._requests.keys()
        assert len(self._deadlines) <= len(self._requests)
