"""What the tests of the head and of headless nodes share: a head at a socket, and how it is dialled."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio

from triolet.cluster.directory import Directory
from triolet.cluster.handshake import Peer, Role
from triolet.cluster.head import Head
from triolet.cluster.joining import Credentials, dial
from triolet.cluster.link import Link
from triolet.cluster.messages import Join, Message, RankReport
from triolet.cluster.transport import Address, SocketTransport
from triolet.statistics import RankState

__all__ = ["CONFIG", "CREDENTIALS", "LIVENESS_TIMEOUT", "TRANSPORT", "RunningHead", "dialled", "report"]

CREDENTIALS = Credentials(b"known to all machines", os.urandom)
TRANSPORT = SocketTransport()
CONFIG = {"model": "m", "block_size": 32}
LIVENESS_TIMEOUT = 1.0
"""For those whose silence is waited for."""
PATIENCE = 30.0
"""For all others, which are never to be taken for silent."""


def report(rank: int, state: RankState = RankState.READY, generation: int = 1) -> RankReport:
    return RankReport(rank, generation, state, None, None, num_restarts=0, phase=None)


class RunningHead:
    """A head for ``ranks``, and its directory."""

    def __init__(
        self,
        ranks: Sequence[int] = (1, 2),
        front_ends: Sequence[str] = ("unix:@first",),
        liveness_timeout: float = PATIENCE,
    ) -> None:
        self.address = Address(name=f"triolet-test-{os.urandom(8).hex()}")
        self.directory = Directory(ranks, interval=0.01)
        self.head = Head(
            ranks, self.directory, CONFIG, front_ends, CREDENTIALS, liveness_timeout=liveness_timeout
        )
        self._changed = anyio.Event()

    def _note(self, _: tuple[RankReport, ...]) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        listener = await TRANSPORT.listen(self.address)
        self.directory.subscribe(self._note)
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self.directory.run)
                tasks.start_soon(self.head.run, listener)
                yield
                tasks.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                await listener.aclose()

    async def wait_for(self, rank: int, state: RankState) -> RankReport:
        """What is known of the rank once it is in that state."""
        with anyio.fail_after(PATIENCE):
            while (known := self._report(rank)).state is not state:
                await self._changed.wait()
        return known

    def _report(self, rank: int) -> RankReport:
        return next(known for known in self.directory.reports if known.rank == rank)


class JoiningNode:
    """The link of a node made by hand."""

    def __init__(self, link: Link) -> None:
        self.link = link

    async def join(self, *ranks: int, config: dict[str, Any] = CONFIG, name: str = "b") -> Message:
        """The answer of the head."""
        self.link.post(Join(name, ranks, config))
        return await self.link.receive()


@asynccontextmanager
async def dialled(head: RunningHead, role: Role = Role.NODE) -> AsyncIterator[JoiningNode]:
    """A link to the head."""
    link = await dial(
        TRANSPORT, head.address, Peer(role, 1), CREDENTIALS, timeout=PATIENCE, liveness_timeout=PATIENCE
    )
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(link.run)
        with anyio.fail_after(PATIENCE):
            yield JoiningNode(link)
        link.close("done")
