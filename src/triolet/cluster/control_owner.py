"""ControlOwner: the one place in a launch where it is decided whether its engines are paused or asleep.

Whatever front end is asked for a pause, a sleep or the end of one has it decided here. Each decision has a
number and is told to all front ends, which tell their engines; so all hear of all, in one order, and agree.
It sits where the engines are kept: in the launcher, or with the only front end.

This module knows no link and no process.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any

import anyio

from triolet.cluster.control_state import ControlState, Order
from triolet.cluster.detached import DetachedCalls
from triolet.cluster.rank_calls import gather_answers
from triolet.core.control import PauseMode, SleepPart, check_level, check_mode, check_parts
from triolet.errors import ConflictError, TrioletError

__all__ = ["ControlOwner", "Follow"]

Follow = Callable[[Order], Awaitable[Sequence[Any]]]
"""Tells a front end at once; what is returned waits until its engines have answered: what they answer."""

logger = logging.getLogger("triolet.cluster")


class ControlOwner:
    """``front_ends`` are how all of them are told; ``order`` is what they were told last."""

    def __init__(self, front_ends: Sequence[Follow]) -> None:
        self.order = Order()
        self._front_ends = front_ends
        self._calls = DetachedCalls()
        self._waking = anyio.Lock(fast_acquire=True)

    async def run(self) -> None:
        """Do what is asked for until cancelled."""
        await self._calls.run()

    async def ask(self, method: str, *arguments: Any) -> Any:
        """Do what the method of :class:`~triolet.cluster.client.EngineClient` says, with all its arguments.

        Raises what that raises. Returns once all engines that can be reached have done it. What is asked for
        while engines are woken is decided afterwards, in this order.

        Cancellation: it is done all the same.
        """
        return await self._calls.begin(partial(self._decide, method, *arguments)).outcome()

    async def _decide(self, method: str, *arguments: Any) -> Any:
        decide: dict[str, Callable[..., Awaitable[Any]]] = {
            "pause": self._pause,
            "resume": self._resume,
            "sleep": self._sleep,
            "reset_prefix_cache": self._reset_prefix_cache,
        }
        async with self._waking:  # engines that are being woken still sleep, and may have to sleep on
            if method == "wake_up":
                return await self._wake_up(*arguments)
        return await decide[method](*arguments)

    async def _pause(self, mode: PauseMode, clear_cache: bool) -> None:
        check_mode(mode)
        await self._publish(self.order.state.paused(mode), mode, "pause", _at_engine(mode), clear_cache)

    async def _resume(self) -> None:
        if self.order.state.asleep:
            raise ConflictError("the engine sleeps; wake it with wake_up()")
        await self._publish(self.order.state.resumed(), None, "resume")

    async def _sleep(self, level: int, mode: PauseMode) -> None:
        check_level(level)
        check_mode(mode)
        await self._publish(self.order.state.sleeping(level, mode), mode, "sleep", level, _at_engine(mode))

    async def _wake_up(self, tags: Iterable[SleepPart] | None) -> None:
        asleep = self.order.state
        awake = asleep.woken(check_parts(tags, asleep.parts_asleep))
        try:
            await self._publish(awake, None, "wake_up", tags)
        except TrioletError:
            await self._sleep_on(awake.asleep_again(asleep))
            raise

    async def _sleep_on(self, state: ControlState) -> None:
        """Have those sleep again that could be woken, so that all are alike."""
        try:
            await self._publish(state, None, None)
        except TrioletError as exc:
            logger.error("not all engines sleep again, after not all could be woken: %s", exc)

    async def _reset_prefix_cache(self, reset_running_requests: bool) -> bool:
        state = self.order.state.again()
        answers = await self._publish(state, None, "reset_prefix_cache", reset_running_requests)
        return not any(answer is False for answer in answers)

    async def _publish(
        self, state: ControlState, mode: PauseMode | None, method: str | None, *arguments: Any
    ) -> list[Any]:
        """Tell all front ends at once, before anything is waited for; → what all engines answer."""
        self.order = Order(state, method, arguments, ends_requests=mode == "abort")
        answers = await gather_answers([follow(self.order) for follow in self._front_ends])
        return [answer for of_front_end in answers for answer in of_front_end]


def _at_engine(mode: PauseMode) -> PauseMode:
    """What engines are asked for: aborting is done by front ends, of which each knows its requests."""
    return "keep" if mode == "abort" else mode
