"""Calls that go on whoever waits for them: begun in order, done once, their outcome for all who ask.

Whoever waits may be cancelled or lose its link; what was begun is finished. This module knows nothing of what
is called.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import anyio

from triolet.core.loop import Wakeup
from triolet.errors import EngineError

__all__ = ["DetachedCall", "DetachedCalls"]


class DetachedCall:
    """One call. ``error`` is what it has failed with, if it has."""

    def __init__(self, function: Callable[[], Awaitable[Any]]) -> None:
        self.error: Exception | None = None
        self.begun = anyio.Event()
        self._function = function
        self._over = anyio.Event()
        self._value: Any = None

    @property
    def is_over(self) -> bool:
        return self._over.is_set()

    async def outcome(self) -> Any:
        """What it returns, or raises. For any number of callers.

        Cancellation: it goes on.
        """
        await self._over.wait()
        if self.error is not None:
            raise self.error
        return self._value

    async def run(self) -> None:
        """Do it. What it does before it first waits is done when :attr:`begun` is seen."""
        self.begun.set()
        try:
            self._value = await self._function()
        except Exception as exc:
            self.error = exc
        except BaseException:
            self.lose()
            raise
        self._over.set()

    def lose(self) -> None:
        """It will not be done."""
        if not self.is_over:
            self.error = EngineError("the engine ended before this was done")
            self._over.set()


class DetachedCalls:
    """Begins calls one after the other, within :meth:`run`, and does not wait for one to begin the next."""

    def __init__(self) -> None:
        self._unbegun: deque[DetachedCall] = deque()
        self._arrived = Wakeup()
        self._has_ended = False

    def begin(self, function: Callable[[], Awaitable[Any]]) -> DetachedCall:
        """Call it soon, after all that were to be called before."""
        call = DetachedCall(function)
        if self._has_ended:
            call.lose()
        self._unbegun.append(call)
        self._arrived.set()
        return call

    async def run(self) -> None:
        """Call what is to be called until cancelled."""
        try:
            async with anyio.create_task_group() as tasks:
                while True:
                    while self._unbegun:
                        tasks.start_soon(self._unbegun[0].run)
                        await self._unbegun[0].begun.wait()
                        self._unbegun.popleft()
                    await self._arrived.wait()
        finally:
            self._has_ended = True
            for call in self._unbegun:
                call.lose()
