"""A front end as small as can be: engines dial it, it asks them and notes what they say."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable

import anyio
from anyio.abc import TaskStatus

from triolet.cluster.handshake import Peer
from triolet.cluster.joining import Credentials, serve_links
from triolet.cluster.link import Link
from triolet.cluster.messages import Add, Message, Outputs, Ready
from triolet.cluster.transport import Address, SocketTransport
from triolet.request import FinishReason, Request, TokenOutput

__all__ = ["SECRET", "TestFrontEnd"]

SECRET = b"known to all of the launch"
_numbers = itertools.count()


class TestFrontEnd:
    """Listens at ``address``; ``links`` are those of engines that have said that they are ready, by rank."""

    __test__ = False

    def __init__(self) -> None:
        self.address = f"unix:@triolet-test-{os.getpid()}-{next(_numbers)}"
        self.links: dict[int, Link] = {}
        self.ready: list[Ready] = []
        self.messages: list[Message] = []
        self._changed = anyio.Event()

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Accept engines until cancelled."""
        listener = await SocketTransport().listen(Address.parse(self.address))
        try:
            task_status.started()
            await serve_links(listener, self._handle, Credentials(SECRET, os.urandom))
        finally:
            with anyio.CancelScope(shield=True):
                await listener.aclose()

    async def _handle(self, peer: Peer, link: Link) -> None:
        ready = await link.receive()
        assert isinstance(ready, Ready)
        self.ready.append(ready)
        self.links[peer.index] = link
        self._note()
        try:
            while True:
                self.messages.append(await link.receive())
                self._note()
        finally:
            if self.links.get(peer.index) is link:
                del self.links[peer.index]
            self._note()

    def _note(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        with anyio.fail_after(30):
            while not condition():
                await self._changed.wait()

    async def wait_linked(self, num_ranks: int = 1) -> None:
        """Return once so many engines are linked."""
        await self.wait_until(lambda: len(self.links) == num_ranks)

    def add(self, request: Request, rank: int = 0) -> None:
        self.links[rank].post(Add(request))

    def outputs(self, request_id: int) -> list[TokenOutput]:
        """Those of a request so far."""
        messages = [message for message in self.messages if isinstance(message, Outputs)]
        return [out for message in messages for out in message.outputs if out.request_id == request_id]

    def tokens(self, request_id: int) -> list[int]:
        return [token for output in self.outputs(request_id) for token in output.token_ids]

    def reason(self, request_id: int) -> FinishReason | None:
        """How a request has ended."""
        outputs = self.outputs(request_id)
        return outputs[-1].finish_reason if outputs else None

    async def wait_ended(self, *request_ids: int) -> None:
        await self.wait_until(lambda: all(self.reason(request_id) is not None for request_id in request_ids))
