"""A child's link to its parent, for as long as the child does what it is for; what fails there is told.

This module knows nothing of what a child does.
"""

from __future__ import annotations

import traceback
from collections.abc import Awaitable, Callable
from contextlib import suppress

import anyio
from anyio.abc import ByteStream

from triolet.cluster.link import Link, LinkClosedError
from triolet.cluster.messages import Dead, RemoteError
from triolet.core.errors import single_error
from triolet.errors import ModelLoadError, UsageError

__all__ = ["serve_parent"]

LAST_WORDS_SECONDS = 1.0


async def serve_parent(stream: ByteStream, serve: Callable[[Link], Awaitable[None]]) -> int:
    """Run ``serve`` over a link to the parent; the exit code, 0 or 1 where it failed.

    The parent is told of a failure, whose traceback goes to standard error, unless it is a user's mistake.
    """
    link = Link(stream, name="parent")
    error: Exception | None = None
    async with anyio.create_task_group() as task_group:
        task_group.start_soon(link.run)
        try:
            await serve(link)
        except Exception as exc:
            error = _cause(exc)
            if not isinstance(error, UsageError | ModelLoadError):
                traceback.print_exception(error)
            link.post(Dead(RemoteError.of(error)))
        with suppress(LinkClosedError), anyio.move_on_after(LAST_WORDS_SECONDS):
            await link.flush()
        task_group.cancel_scope.cancel()
    return 0 if error is None else 1


def _cause(exc: Exception) -> Exception:
    single = single_error(exc) if isinstance(exc, BaseExceptionGroup) else exc
    return single if isinstance(single, Exception) else exc
