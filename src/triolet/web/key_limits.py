"""The limits of single keys: how many requests at once, and how many in a minute.

Knows keys and a clock, and nothing of requests.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict, deque
from collections.abc import Callable
from functools import partial

from triolet.errors import OverloadedError
from triolet.web.api_keys import ApiKey

__all__ = ["KeyLimitError", "KeyLimits"]

MINUTE = 60.0


class KeyLimitError(OverloadedError):
    """The caller's key has reached one of its limits; the server itself has room."""

    error_type = "rate_limit_error"
    code = "rate_limit_exceeded"


class KeyLimits:
    """Counts the requests of each key, by its name."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._num_open: defaultdict[str, int] = defaultdict(int)
        self._started: defaultdict[str, deque[float]] = defaultdict(deque)

    def enter(self, key: ApiKey) -> Callable[[], None]:
        """Count a request; to be called when it is over: what is returned.

        Raises :class:`KeyLimitError` naming the limit; the request does not count then.
        """
        self._check_concurrency(key)
        self._check_rate(key)
        self._num_open[key.name] += 1
        return partial(self._leave, key.name)

    def _check_concurrency(self, key: ApiKey) -> None:
        limit = key.max_concurrent_requests
        if limit is not None and self._num_open.get(key.name, 0) >= limit:
            raise KeyLimitError(
                f"The API key {key.name!r} may have {limit} requests under way at once "
                "(max_concurrent_requests); wait until one has ended."
            )

    def _check_rate(self, key: ApiKey) -> None:
        limit = key.max_requests_per_minute
        if limit is None:
            return
        now, started = self._clock(), self._started[key.name]
        while started and now - started[0] >= MINUTE:
            started.popleft()
        if len(started) >= limit:
            seconds = math.ceil(started[-limit] + MINUTE - now)
            raise KeyLimitError(
                f"The API key {key.name!r} may send {limit} requests in a minute (max_requests_per_minute); "
                f"wait {max(1, seconds)} s.",
                retry_after=seconds,
            )
        started.append(now)

    def _leave(self, name: str) -> None:
        self._num_open[name] -= 1
        if not self._num_open[name]:
            del self._num_open[name]
