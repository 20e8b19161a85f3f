"""FrontEnd: where the engines of a front end dial in; each proven one serves requests of its router.

This module knows nothing of which engines there are to be, nor of who starts them.
"""

from __future__ import annotations

import logging

import anyio
from anyio.abc import TaskStatus

from triolet.cluster.frames import WireError
from triolet.cluster.handshake import Peer, Role
from triolet.cluster.joining import Credentials, serve_links
from triolet.cluster.link import Link
from triolet.cluster.messages import Ready
from triolet.cluster.router import Router
from triolet.cluster.transport import Address, Transport

__all__ = ["FrontEnd"]

READY_TIMEOUT = 5.0

logger = logging.getLogger("triolet.cluster")


class FrontEnd:
    """Listens at ``address`` for engines. ``liveness_timeout``: seconds of silence that a link survives."""

    def __init__(
        self,
        router: Router,
        transport: Transport,
        address: Address,
        credentials: Credentials,
        *,
        liveness_timeout: float | None = None,
    ) -> None:
        self._router = router
        self._transport = transport
        self._address = address
        self._credentials = credentials
        self._liveness_timeout = liveness_timeout

    async def run(self, *, task_status: TaskStatus[Address] = anyio.TASK_STATUS_IGNORED) -> None:
        """Report started with the address to dial; serve until cancelled. Raises OSError if it is taken."""
        listener = await self._transport.listen(self._address)
        try:
            task_status.started(listener.address)
            await serve_links(
                listener, self._serve, self._credentials, liveness_timeout=self._liveness_timeout
            )
        finally:
            with anyio.CancelScope(shield=True):
                await listener.aclose()

    async def _serve(self, peer: Peer, link: Link) -> None:
        """Serve a link whose dialer has proven itself."""
        if peer.role is not Role.ENGINE:
            link.close(f"a {peer.role.name.lower()} has no business here: engines dial this address")
            return
        ready = await _greeting(link)
        if ready is None or ready.rank != peer.index:
            logger.warning("%s: closed, as it did not greet as itself", link.name)
            link.close("expected Ready of the rank that dialled")
            return
        await self._router.serve_rank(link, ready)


async def _greeting(link: Link) -> Ready | None:
    with anyio.move_on_after(READY_TIMEOUT):
        try:
            message = await link.receive()
        except WireError:
            return None
        return message if isinstance(message, Ready) else None
    return None
