"""What a service keeps about its steps and those who wait for them: how many, how long, since when.

Times are in seconds on a clock that is passed in. This module knows neither an engine core nor threads: who
has several guards it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from triolet.plan import StepPlan, StepResult
from triolet.request import Request, TokenOutput
from triolet.statistics import Histogram

__all__ = ["StepBooks"]


class StepBooks:
    """``num_in_flight``: steps planned and not committed. ``cancel_latency``: until a request that left was
    in no step any more."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.num_in_flight = 0
        self.num_steps = 0
        self.step_duration = Histogram()
        self.cancel_latency = Histogram()
        self._clock = clock
        self._last_planned = -1
        self._leaving: deque[tuple[int, float]] = deque()
        self._waiting_since: dict[int, float] = {}
        self._busy_since: float | None = None

    def added(self, requests: Iterable[Request]) -> None:
        """Requests have come."""
        now = self._clock()
        self._waiting_since.update((request.request_id, now) for request in requests)

    def planned(self, plan: StepPlan) -> None:
        """A step is under way from here on."""
        self.num_in_flight += 1
        self._last_planned = plan.step_id
        if self._busy_since is None:
            self._busy_since = self._clock()

    def committed(self, plan: StepPlan, result: StepResult, *, has_unfinished: bool) -> None:
        """A step has ended; ``has_unfinished``: there is more to do."""
        now = self._clock()
        self.num_steps += 1
        self.num_in_flight -= 1
        if result.seconds is not None:
            self.step_duration.observe(result.seconds)
        self._busy_since = now if has_unfinished else None
        while self._leaving and self._leaving[0][0] <= plan.step_id:
            self.cancel_latency.observe(now - self._leaving.popleft()[1])

    def put_out(self, outputs: Iterable[TokenOutput]) -> None:
        """These requests have something to show."""
        for output in outputs:
            self._waiting_since.pop(output.request_id, None)

    def left(self, request_id: int) -> None:
        """A request has been taken out; steps that are under way may still have it."""
        self._waiting_since.pop(request_id, None)
        if self.num_in_flight:
            self._leaving.append((self._last_planned, self._clock()))
        else:
            self.cancel_latency.observe(0.0)

    def resumed(self) -> None:
        """A pause has ended, in which nothing was expected to happen."""
        if not self.num_in_flight:
            self._busy_since = None

    def last_step_age(self) -> float | None:
        """Since a step last ended (or work began), None when there is nothing to do."""
        return None if self._busy_since is None else self._clock() - self._busy_since

    def oldest_waiting_age(self) -> float | None:
        """How long the request longest without a token has been here."""
        first = next(iter(self._waiting_since.values()), None)
        return None if first is None else self._clock() - first
