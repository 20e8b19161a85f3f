"""RankControl: has an engine be paused or asleep as its launch is, whichever front end tells it first.

Every front end tells of every order, each over its own link and in their order, so an order comes several
times and is carried out once. An engine that has just started, or could not do what was asked, or missed
something, finds its own way to what holds now.

This module knows no link.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from triolet.cluster.client import EngineClient
from triolet.cluster.control_state import Order
from triolet.cluster.detached import DetachedCall, DetachedCalls
from triolet.cluster.frames import WireError
from triolet.errors import ConflictError

__all__ = ["RankControl"]

NUM_REMEMBERED = 16
"""Orders whose outcome is known to whoever tells of them late."""


class RankControl:
    """Orders to ``client``, which nobody else gives any."""

    def __init__(self, client: EngineClient) -> None:
        self._client = client
        self._calls = DetachedCalls()
        self._version = 0
        self._outcomes: dict[int, DetachedCall] = {}
        self._is_in_line = True

    async def run(self) -> None:
        """Carry out orders until cancelled."""
        await self._calls.run()

    def follow(self, order: Order) -> Awaitable[Any]:
        """Carry the order out, unless that was begun before; what is returned waits for the outcome.

        That of one that was overtaken before it came is the outcome of the last. Raises WireError for what
        is no order.
        """
        if order.method is not None and order.method not in METHODS:
            raise WireError(f"{order.method!r} is no order to an engine")
        version = order.state.version
        last = self._outcomes.get(self._version)
        if version > self._version or (version == self._version and last and last.error is not None):
            last = self._begin(order)
        return self._outcome(self._outcomes.get(version, last))

    @staticmethod
    async def _outcome(call: DetachedCall | None) -> Any:
        return None if call is None else await call.outcome()

    def _begin(self, order: Order) -> DetachedCall:
        version = order.state.version
        is_next = self._is_in_line and version == self._version + 1 and order.method is not None
        self._version = version
        self._is_in_line = is_next
        carry_out = self._step if is_next else self._line_up
        self._outcomes[version] = self._calls.begin(partial(carry_out, order))
        self._outcomes.pop(version - NUM_REMEMBERED, None)
        return self._outcomes[version]

    async def _step(self, order: Order) -> Any:
        """Go on from the state before."""
        assert order.method is not None
        try:
            return await METHODS[order.method](self._client, *order.arguments)
        except Exception as exc:
            is_overtaken = isinstance(exc, ConflictError) and order.state.version < self._version
            self._is_in_line = self._is_in_line and is_overtaken
            raise

    async def _line_up(self, order: Order) -> None:
        """Get there from wherever it is, unless another order overtakes this one."""
        state = order.state
        calls: list[tuple[str, tuple[Any, ...]]] = [("reset_prefix_cache", (True,))]
        if self._client.is_sleeping and not state.level:
            calls.append(("wake_up", (None,)))
        for method, arguments in (*calls, *state.calls()):
            if state.version == self._version:
                await METHODS[method](self._client, *arguments)
        self._is_in_line = self._is_in_line or state.version == self._version


async def _pause(client: EngineClient, mode: Any, clear_cache: bool) -> None:
    await client.pause(mode, clear_cache=clear_cache)


async def _resume(client: EngineClient) -> None:
    await client.resume()


async def _sleep(client: EngineClient, level: int, mode: Any) -> None:
    await client.sleep(level, mode)


async def _wake_up(client: EngineClient, tags: Any) -> None:
    await client.wake_up(tags)


async def _reset_prefix_cache(client: EngineClient, reset_running_requests: bool) -> bool:
    return await client.reset_prefix_cache(reset_running_requests=reset_running_requests)


METHODS: dict[str, Callable[..., Awaitable[Any]]] = {
    "pause": _pause,
    "resume": _resume,
    "sleep": _sleep,
    "wake_up": _wake_up,
    "reset_prefix_cache": _reset_prefix_cache,
}
"""What orders can ask an engine for, with what that takes after the engine."""
