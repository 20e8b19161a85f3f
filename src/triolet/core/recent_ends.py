"""RecentEnds: how fast requests have come to their ends lately, and so how long a queue will take.

Knows no clock: times are given to it, in seconds.
"""

from __future__ import annotations

from collections import deque
from math import ceil

__all__ = ["RecentEnds"]

NUM_RECENT = 64
MAX_RETRY_AFTER = 600


class RecentEnds:
    """When the last requests ended."""

    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=NUM_RECENT)

    def add(self, now: float) -> None:
        """A request has come to its end."""
        self._times.append(now)

    def retry_after(self, num_waiting: int, now: float) -> int:
        """Whole seconds until ``num_waiting`` requests will have ended, at the rate of the last ones."""
        if len(self._times) < 2:
            return 1
        seconds = now - self._times[0]
        return max(1, min(MAX_RETRY_AFTER, ceil(num_waiting * seconds / len(self._times))))
