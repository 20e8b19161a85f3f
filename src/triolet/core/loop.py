"""The one place where asyncio and Trio are told apart: how they are run, and how they are woken.

Everything else in the package speaks AnyIO. This module knows nothing of engines or requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
from collections.abc import Callable
from typing import Any

import anyio
import sniffio
import trio

__all__ = ["LoopPoster", "Wakeup", "backend_options", "loop_poster"]

LoopPoster = Callable[[Callable[[], Any]], None]


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

    Made before a loop runs, used on one loop only. Costs one event per actual wait, none when already set.
    """

    def __init__(self) -> None:
        self._is_set = False
        self._event: anyio.Event | None = None

    def set(self) -> None:
        self._is_set = True
        if self._event is not None:
            self._event.set()

    async def wait(self) -> None:
        """Return once set since the last return. A checkpoint only if it has to wait.

        Raises anyio.BusyResourceError if another task is waiting: one of the two would never wake.
        """
        if not self._is_set:
            if self._event is not None:
                raise anyio.BusyResourceError("waiting for")
            self._event = anyio.Event()
            try:
                await self._event.wait()
            finally:
                self._event = None
        self._is_set = False
