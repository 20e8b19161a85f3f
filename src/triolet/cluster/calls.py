"""Calls from other processes to an engine: which there are, and how they are answered.

This module knows no stream.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from triolet.cluster.client import EngineClient
from triolet.cluster.codec import to_plain
from triolet.cluster.messages import Call, RemoteError, Result
from triolet.errors import InvalidRequestError

__all__ = ["answer"]


async def answer(client: EngineClient, call: Call) -> Result:
    """Do what is asked for; what goes wrong is part of the answer."""
    method = METHODS.get(call.method)
    try:
        if method is None:
            raise InvalidRequestError(f"there is no call {call.method!r}", param="method")
        return Result(call.call_id, await method(client, *call.arguments))
    except Exception as exc:
        return Result(call.call_id, error=RemoteError.of(exc))


async def _pause(client: EngineClient, mode: Any, clear_cache: bool = True) -> None:
    await client.pause(mode, clear_cache=clear_cache)


async def _resume(client: EngineClient) -> None:
    await client.resume()


async def _sleep(client: EngineClient, level: int, mode: Any) -> None:
    await client.sleep(level, mode)


async def _wake_up(client: EngineClient, tags: Any = None) -> None:
    await client.wake_up(tags)


async def _reset_prefix_cache(client: EngineClient, reset_running_requests: bool = False) -> bool:
    return await client.reset_prefix_cache(reset_running_requests=reset_running_requests)


async def _statistics(client: EngineClient) -> Any:
    (statistics,) = client.rank_statistics()
    return to_plain(statistics)


METHODS: dict[str, Callable[..., Awaitable[Any]]] = {
    "pause": _pause,
    "resume": _resume,
    "sleep": _sleep,
    "wake_up": _wake_up,
    "reset_prefix_cache": _reset_prefix_cache,
    "statistics": _statistics,
}
"""What an engine can be asked for, with what it takes after the engine."""
