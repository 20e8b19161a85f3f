"""Finding a model, for an event loop: in a worker thread, and ended when nobody waits for it any more.

This module knows neither engines nor how a model is found.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import anyio
import anyio.to_thread

from triolet.core.loop import loop_poster

__all__ = ["fetch_model"]

T = TypeVar("T")

ABANDON_SECONDS = 5.0
"""How long a fetch may take to end once it is cancelled. That of a built-in model takes a fraction of a
second; the hub's client cannot be told to stop."""


class _AbandonedError(Exception):
    """Raised out of a fetch that nobody waits for; it ends what the fetch has started."""


async def fetch_model(find: Callable[[Callable[[str], None]], T], on_phase: Callable[[str], None]) -> T:
    """``find(on_phase)`` in a worker thread. Raises what that raises.

    Cancellation: the next time ``find`` tells its phase, it is ended, child processes included, and that is
    waited for. Only a fetch that tells nothing is left to end by itself.
    """
    post, has_ended = loop_poster(), anyio.Event()
    is_abandoned = False

    def tell(phase: str) -> None:
        if is_abandoned:
            raise _AbandonedError
        on_phase(phase)

    def work() -> T:
        try:
            return find(tell)
        finally:
            post(has_ended.set)

    try:
        return await anyio.to_thread.run_sync(work, abandon_on_cancel=True)
    except anyio.get_cancelled_exc_class():
        is_abandoned = True
        with anyio.move_on_after(ABANDON_SECONDS, shield=True):
            await has_ended.wait()
        raise
