"""The timers of one event loop, which share one alarm.

Most are for something that has long happened when they would ring. The loop is told only of the earliest that
somebody still waits for; so one that is not needed any more costs a place in a heap, and neither a timer of
the loop (on Trio a task) nor a wake-up.

Knows neither loops nor tasks.
"""

from __future__ import annotations

import heapq
import math
import weakref
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Protocol

__all__ = ["Rung", "Timers"]


class Rung(Protocol):
    """Who waits for a timer."""

    def ring(self, at: float) -> None:
        """It is ``at``, the time that was asked for, or later."""


class Timers:
    """``clock`` is the loop's, in seconds; ``set_alarm`` has it call a function at a time."""

    def __init__(
        self, clock: Callable[[], float], set_alarm: Callable[[float, Callable[[], None]], None]
    ) -> None:
        self._clock = clock
        self._set_alarm = set_alarm
        self._waiting: list[tuple[float, int, weakref.ref[Rung]]] = []
        self._numbers = count()
        self._alarm_at = math.inf

    def ring_at(self, at: float, rung: Rung) -> None:
        """Ring once at that time, if whoever is to be rung is still there."""
        heapq.heappush(self._waiting, (at, next(self._numbers), weakref.ref(rung)))
        self._set_first()

    def _set_first(self) -> None:
        while self._waiting and self._waiting[0][2]() is None:
            heapq.heappop(self._waiting)
        if self._waiting and self._waiting[0][0] < self._alarm_at:
            self._alarm_at = self._waiting[0][0]
            self._set_alarm(self._alarm_at, partial(self._go_off, self._alarm_at))

    def _go_off(self, at: float) -> None:
        if at != self._alarm_at:
            return  # it was overtaken by an earlier one
        self._alarm_at = math.inf
        now = max(at, self._clock())
        # Taken out first: one for whom it is too early by part of a tick asks for the same time again.
        due = []
        while self._waiting and self._waiting[0][0] <= now:
            due.append(heapq.heappop(self._waiting))
        for asked_at, _, rung in due:
            found = rung()
            if found is not None:
                found.ring(asked_at)
        self._set_first()
