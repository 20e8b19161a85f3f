"""Routers that run, and the links of their ranks, held by the test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any

import anyio
from anyio.abc import TaskGroup
from tests.triolet.cluster.ranks import FakeLink, ready, router_args

from triolet.cluster.codec import from_plain
from triolet.cluster.control_state import Order
from triolet.cluster.messages import Call, RemoteError, Result
from triolet.cluster.router import Router

__all__ = ["Served", "asked", "served"]


class Served:
    """A router that runs, and the links of its ranks."""

    def __init__(self, router: Router, tasks: TaskGroup) -> None:
        self.router = router
        self.tasks = tasks
        self.links: dict[int, FakeLink] = {}

    async def join(self, rank: int, generation: int = 0, **fields: Any) -> FakeLink:
        """A rank dials; returns once everything has come to rest."""
        self.links[rank] = link = FakeLink()
        self.tasks.start_soon(self.router.serve_rank, link, ready(rank, generation, **fields))
        await anyio.wait_all_tasks_blocked()
        return link

    async def lose(self, rank: int) -> None:
        self.links[rank].close("closed by the other side")
        await anyio.wait_all_tasks_blocked()

    async def answer(self, rank: int, method: str, value: Any = None, error: Exception | None = None) -> Call:
        """Wait for a rank to be called, and answer."""
        call: Call = await self.links[rank].next(Call)
        assert method in (call.method, asked(call).method)
        self.links[rank].say(Result(call.call_id, value, None if error is None else RemoteError.of(error)))
        return call

    async def during(self, call: Awaitable[Any], *answers: Awaitable[Any]) -> Any:
        """What a call comes to while these answers are given."""
        got: list[Any] = []

        async def make() -> None:
            try:
                got.append(await call)
            except Exception as exc:
                got.append(exc)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(make)
            for one in answers:
                await one
        return got[0]


def asked(call: Call) -> Order:
    """The order in a call, if it is one."""
    return from_plain(Order, call.arguments[0]) if call.method == "follow" else Order()


@asynccontextmanager
async def served(num_ranks: int = 2, *, num_front_ends: int = 1, **options: Any) -> AsyncIterator[Served]:
    router = Router(router_args(**options), range(num_ranks), num_front_ends=num_front_ends)
    async with anyio.create_task_group() as tasks:
        served = Served(router, tasks)
        tasks.start_soon(router.run)
        for rank in range(num_ranks):
            await served.join(rank)
        yield served
        tasks.cancel_scope.cancel()
