"""How often a process that dies may be started again, and how long to wait before.

This module knows no clock: times are given to it, in seconds.
"""

from __future__ import annotations

from collections import deque

__all__ = ["RestartBudget"]

WINDOW_SECONDS = 600.0
FIRST_DELAY_SECONDS = 0.5
LONGEST_DELAY_SECONDS = 30.0


class RestartBudget:
    """``num_restarts`` restarts in any ten minutes. The delay doubles with each death in that time."""

    def __init__(self, num_restarts: int) -> None:
        self._num_restarts = num_restarts
        self._deaths: deque[float] = deque()

    def spend(self, now: float) -> float | None:
        """Count a death; the seconds to wait before the restart, None where there is none left."""
        while self._deaths and self._deaths[0] <= now - WINDOW_SECONDS:
            self._deaths.popleft()
        self._deaths.append(now)
        if len(self._deaths) > self._num_restarts:
            return None
        return min(FIRST_DELAY_SECONDS * 2.0 ** (len(self._deaths) - 1), LONGEST_DELAY_SECONDS)
