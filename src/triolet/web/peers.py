"""Other servers of the same engines, as the routes see them: what is to happen everywhere is done there too.

Knows nothing of how they are reached.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

import anyio

from triolet.core.errors import single_error

__all__ = ["NoPeers", "Peers", "do_everywhere"]


class Peers(Protocol):
    """The others. Arguments and answers are plain values."""

    def answer(self, answers: Mapping[str, Callable[..., Awaitable[Any]]]) -> None:
        """From here on do this when one of them calls."""
        ...

    async def call_peers(self, method: str, *arguments: Any, seconds: float = 0.0) -> list[Any]:
        """The answers; of one that gives none a :class:`~triolet.cluster.launcher_link.NoAnswer`.

        What is asked may take them ``seconds``.
        """
        ...


class NoPeers:
    """This is the only server; a ``Peers``."""

    def answer(self, answers: Mapping[str, Callable[..., Awaitable[Any]]]) -> None:
        pass

    async def call_peers(self, method: str, *arguments: Any, seconds: float = 0.0) -> list[Any]:
        return []


async def do_everywhere(
    peers: Peers, method: str, here: Callable[..., Awaitable[Any]], *arguments: Any, seconds: float = 0.0
) -> list[Any]:
    """Do something that may take ``seconds`` here and at all peers, side by side; all answers."""
    results: list[Any] = []

    async def do_here() -> None:
        results.append(await here(*arguments))

    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(do_here)
            results += await peers.call_peers(method, *arguments, seconds=seconds)
    except BaseExceptionGroup as group:
        error = single_error(group)
        raise error from error.__cause__
    return results
