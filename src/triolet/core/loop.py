"""The one place where asyncio and Trio are told apart: how they are run, and how they are woken.

Everything else in the package speaks AnyIO. This module knows nothing of engines or requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import math
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import sniffio
import trio
from anyio.lowlevel import RunVar

from triolet.core.timers import Timers

__all__ = ["LoopPoster", "Wakeup", "backend_options", "loop_clock", "loop_poster"]

LoopPoster = Callable[[Callable[[], Any]], None]
_TIMERS: RunVar[Timers | None] = RunVar("triolet.timers")


def backend_options(backend: str) -> dict[str, Any]:
    """Options of :func:`anyio.run` for a backend: asyncio is run on uvloop where that is installed."""
    if backend == "asyncio" and importlib.util.find_spec("uvloop") is not None:
        return {"use_uvloop": True}
    return {}


def loop_poster() -> LoopPoster:
    """A function that any thread may call to run a callback on the loop running here.

    The callback must not raise: on Trio that would end the whole run. Once the loop has ended, callbacks
    are dropped, since there is nobody left to hear of them.
    """
    if sniffio.current_async_library() == "trio":
        token = trio.lowlevel.current_trio_token()

        def post_to_trio(callback: Callable[[], Any]) -> None:
            with contextlib.suppress(trio.RunFinishedError):
                token.run_sync_soon(callback)

        return post_to_trio
    loop = asyncio.get_running_loop()

    def post_to_asyncio(callback: Callable[[], Any]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(callback)

    return post_to_asyncio


class Wakeup:
    """A flag that one task waits for and clears by waking. Setting it twice is setting it once.

    Made before a loop runs, used on one loop only. It is waited for once for every token of every stream, so
    it goes to the event loop itself: AnyIO's event and time-out cost ten times as much.
    """

    def __init__(self) -> None:
        self._is_set = False
        self._sleeper: _Sleeper | None = None

    def set(self) -> None:
        self._is_set = True
        if self._sleeper is not None:
            self._sleeper.wake()

    async def wait(self, until: float = math.inf) -> bool:
        """Return True once set since the last return, False at the time ``until`` (``anyio.current_time()``).

        A checkpoint only if it has to wait. Raises anyio.BusyResourceError if another task is waiting: one of
        the two would never wake.
        """
        if not self._is_set:
            if self._sleeper is None:
                is_trio = sniffio.current_async_library() == "trio"
                self._sleeper = _TrioSleeper() if is_trio else _AsyncioSleeper()
            await self._sleeper.sleep(until)
        was_set, self._is_set = self._is_set, False
        return was_set


class _Sleeper(ABC):
    """Holds one task until it is woken, or until a time.

    The timer outlives a sleep that ended early. It looks when it rings for how long the sleeper sleeps now:
    so one timer serves all the short sleeps in a long time, where setting one for each is most of their cost.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._until = math.inf
        self._rings_at = math.inf

    def sleep(self, until: float) -> Awaitable[None]:
        """To be awaited at once. Raises anyio.BusyResourceError."""
        if self._is_asleep:
            raise anyio.BusyResourceError("waiting for")
        self._until = until
        if until < self._rings_at:
            self._set_timer()
        return self._park()

    def ring(self, at: float) -> None:
        """The timer that was set for this time."""
        if at != self._rings_at:
            return  # it was overtaken by an earlier one
        self._rings_at = math.inf
        if not self._is_asleep:
            return
        if self._clock() < self._until:
            self._set_timer()
        else:
            self.wake()

    def _set_timer(self) -> None:
        self._rings_at = self._until
        _timers().ring_at(self._until, self)

    @property
    @abstractmethod
    def _is_asleep(self) -> bool: ...

    @abstractmethod
    def wake(self) -> None: ...

    @abstractmethod
    def _park(self) -> Awaitable[None]:
        """Until :meth:`wake` is called."""


class _AsyncioSleeper(_Sleeper):
    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        super().__init__(self._loop.time)
        self._future: asyncio.Future[None] | None = None

    @property
    def _is_asleep(self) -> bool:
        return self._future is not None and not self._future.done()

    def wake(self) -> None:
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    def _park(self) -> Awaitable[None]:
        self._future = self._loop.create_future()
        return self._future


class _TrioSleeper(_Sleeper):
    def __init__(self) -> None:
        super().__init__(trio.current_time)
        self._task: trio.lowlevel.Task | None = None

    @property
    def _is_asleep(self) -> bool:
        return self._task is not None

    def wake(self) -> None:
        if self._task is not None:
            trio.lowlevel.reschedule(self._task)
            self._task = None

    async def _park(self) -> None:
        self._task = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(self._leave)

    def _leave(self, _: object) -> trio.lowlevel.Abort:
        self._task = None
        return trio.lowlevel.Abort.SUCCEEDED


def _timers() -> Timers:
    """Those of the loop that runs here, which nothing here may hold: it would never be let go."""
    timers = _TIMERS.get(None)
    if timers is None:
        is_trio = sniffio.current_async_library() == "trio"
        timers = Timers(anyio.current_time, _set_trio_alarm if is_trio else _set_asyncio_alarm)
        _TIMERS.set(timers)
    return timers


def _set_asyncio_alarm(at: float, callback: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_at(at, callback)


def _set_trio_alarm(at: float, callback: Callable[[], None]) -> None:
    async def call() -> None:
        await trio.sleep_until(at)
        callback()

    trio.lowlevel.spawn_system_task(call)


def loop_clock() -> Callable[[], float]:
    """What :func:`anyio.current_time` asks, for those who ask often."""
    if sniffio.current_async_library() == "trio":
        return trio.current_time
    return asyncio.get_running_loop().time
