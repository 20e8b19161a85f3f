"""Which requests are late, and when the next one will be.

A request has up to three deadlines: for its first step, its first token and its end. One that it has met does
not count any more. This module knows no clock and no event loop: times are given to it, in seconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from heapq import heapify, heappop, heappush

from triolet.request import RequestOptions

__all__ = ["Deadlines", "RequestPhase"]

SPARE_ENTRIES = 64


class RequestPhase(IntEnum):
    """How far a request has come."""

    QUEUED = 0
    STARTED = 1
    """It has been in a step."""
    GENERATING = 2
    """It has a token."""


class Deadlines:
    """The deadlines of requests under way, by request id. Requests without any cost nothing."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, RequestPhase]] = []
        self._phases: dict[int, RequestPhase] = {}

    def __len__(self) -> int:
        """Number of requests with deadlines."""
        return len(self._phases)

    def add(self, request_id: int, options: RequestOptions, now: float) -> None:
        """Take in a request; its time-outs count from ``now``."""
        timeouts = (options.queue_timeout, options.first_token_timeout, options.timeout)
        entries = [
            (now + seconds, request_id, phase)
            for phase, seconds in zip(RequestPhase, timeouts, strict=True)
            if seconds is not None
        ]
        if entries:
            self._phases[request_id] = RequestPhase.QUEUED
            for entry in entries:
                heappush(self._heap, entry)

    def reach(self, request_id: int, phase: RequestPhase) -> None:
        """The request has come as far as this."""
        if request_id in self._phases:
            self._phases[request_id] = max(phase, self._phases[request_id])

    def discard(self, request_id: int) -> None:
        """The request has ended."""
        if self._phases.pop(request_id, None) is not None:
            self._forget_old_entries()

    def next_due(self) -> float | None:
        """When the first of them will be late; None if none can be."""
        while self._heap and not self._counts(self._heap[0]):
            heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def take_late(self, now: float) -> Iterator[int]:
        """The requests that are late, each once; they are forgotten."""
        while (due := self.next_due()) is not None and due <= now:
            _, request_id, _ = heappop(self._heap)
            del self._phases[request_id]
            yield request_id

    def _counts(self, entry: tuple[float, int, RequestPhase]) -> bool:
        _, request_id, phase = entry
        return request_id in self._phases and self._phases[request_id] <= phase

    def _forget_old_entries(self) -> None:
        """Or those of long deadlines would pile up; rarely, so that it costs little for each."""
        if len(self._heap) > 6 * len(self._phases) + SPARE_ENTRIES:
            self._heap = [entry for entry in self._heap if self._counts(entry)]
            heapify(self._heap)
