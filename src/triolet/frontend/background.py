"""Calls that an event loop waits for and that nobody has to wait for: not even the end of the process.

This module knows nothing of what is called.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

import anyio

from triolet.core.loop import loop_poster

__all__ = ["run_in_background"]

T = TypeVar("T")


async def run_in_background(function: Callable[[], T]) -> T:
    """``function()`` on a thread of its own. Raises what it raises.

    Cancellation: stops waiting at once. The call goes on unheard until its end or that of the process, which
    a worker thread of AnyIO would hold up; so it must hold nothing that has to be given back.
    """
    post, has_ended = loop_poster(), anyio.Event()
    outcome: list[tuple[Any, BaseException | None]] = []

    def work() -> None:
        try:
            outcome.append((function(), None))
        except BaseException as exc:
            outcome.append((None, exc))
        post(has_ended.set)

    thread = threading.Thread(target=work, name="background", daemon=True)
    thread.start()
    await has_ended.wait()
    thread.join()  # at once: it has nothing more to do
    result, error = outcome.pop()
    if error is not None:
        raise error
    return result  # type: ignore[no-any-return]
