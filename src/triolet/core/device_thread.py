"""The one long-lived thread that owns the device.

Torch's inference mode, thread count and current device belong to a thread, and so do CUDA graphs: worker
threads that come and go will not do. Calls run in the order given; results come back on the event loop.

This module knows no torch and nothing of what it runs.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Self, TypeVar

import anyio

from triolet.core.loop import LoopPoster, loop_poster
from triolet.errors import EngineDeadError

__all__ = ["DeviceThread"]

logger = logging.getLogger("triolet.core")

T = TypeVar("T")
Job = tuple[Callable[[], Any], Callable[[Any, BaseException | None], None]]


class DeviceThread:
    """A thread that runs calls one after another; open it with ``async with`` on the loop that uses it.

    Resource handling: leaving the scope waits, shielded, for the call under way to finish and for the
    thread to end, so that nothing runs on the device afterwards. Calls not yet begun raise EngineDeadError.
    Only a thread that :meth:`finish` has given up is left behind.
    """

    def __init__(self, name: str = "triolet-device") -> None:
        self._name = name
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._is_closing = False
        self._is_lost = False
        self.post: LoopPoster
        """Runs a callback on the loop; for what runs on the thread."""
        self._thread: threading.Thread
        self._ended: anyio.Event

    async def __aenter__(self) -> Self:
        self.post = loop_poster()
        self._ended = anyio.Event()
        # A daemon, so that a device that hangs cannot keep a dying interpreter alive.
        self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
        self._thread.start()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._is_closing = True
        self._jobs.put(None)
        if self._is_lost:
            return
        with anyio.CancelScope(shield=True):
            await self._ended.wait()
        self._thread.join()

    def submit(self, function: Callable[[], T], on_done: Callable[[Any, BaseException | None], None]) -> None:
        """Run ``function`` on the thread, then ``on_done(result, error)`` on the loop; never blocks.

        ``on_done`` must not raise. Raises EngineDeadError once the thread has ended or is going to.
        """
        if self._is_closing:
            raise _ended()
        self._jobs.put((function, on_done))

    async def call(self, function: Callable[[], T]) -> T:
        """Run ``function`` on the thread and return its result or raise its exception.

        Cancellation: stops waiting at once; the call itself goes on to its end.
        """
        done = anyio.Event()
        outcome: list[tuple[Any, BaseException | None]] = []

        def on_done(result: Any, error: BaseException | None) -> None:
            outcome.append((result, error))
            done.set()

        self.submit(function, on_done)
        await done.wait()
        result, error = outcome.pop()
        if error is not None:
            raise error
        return result  # type: ignore[no-any-return]

    async def finish(self, function: Callable[[], None], seconds: float) -> None:
        """Run a last call, shielded; where it has not ended after so many seconds, give the thread up."""
        with anyio.move_on_after(seconds, shield=True) as scope:
            await self.call(function)
        if scope.cancelled_caught:
            self._is_lost = True
            logger.error("%s does not come back; it is left to the end of the process", self._name)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            function, on_done = job
            self._run(_refuse if self._is_closing else function, on_done)
            del job, function, on_done  # or the last result stays alive until the next call
        self.post(self._ended.set)

    def _run(self, function: Callable[[], Any], on_done: Callable[[Any, BaseException | None], None]) -> None:
        result: Any = None
        error: BaseException | None = None
        try:
            result = function()
        except BaseException as exc:
            error = exc
        self.post(lambda: on_done(result, error))


def _refuse() -> None:
    raise _ended()


def _ended() -> EngineDeadError:
    return EngineDeadError("the engine has stopped")
