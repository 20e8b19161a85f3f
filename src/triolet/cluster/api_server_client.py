"""ApiServerClient: the ``EngineClient`` of one API server among several.

A :class:`Router` over engines that its launcher watches. This module knows no text and no HTTP.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

import anyio
from anyio.abc import TaskStatus

from triolet.args import ServeArgs
from triolet.cluster.codec import from_plain
from triolet.cluster.frames import WireError
from triolet.cluster.joining import Credentials
from triolet.cluster.launcher_link import LauncherLink
from triolet.cluster.reception import FrontEndPlace, Reception
from triolet.cluster.router import Router
from triolet.cluster.transport import Transport
from triolet.core.errors import single_error
from triolet.errors import TrioletError
from triolet.statistics import FrontendStatistics

__all__ = ["ApiServerClient"]

PEER_TIMEOUT = 3.0
"""Seconds that the launcher may take to tell what the other API servers have counted."""

logger = logging.getLogger("triolet.cluster")


class ApiServerClient(Router):
    """Serves the requests of an API server that engines find at ``place``.

    ``launcher`` tells of the engines. ``on_phase`` is told what is waited for until they are ready.
    """

    def __init__(
        self,
        args: ServeArgs,
        place: FrontEndPlace,
        launcher: LauncherLink,
        transport: Transport,
        credentials: Credentials,
        *,
        on_phase: Callable[[str], None],
    ) -> None:
        shape = args.launch_shape()
        super().__init__(
            args, shape.served_ranks, first_ranks=shape.local_ranks,
            num_front_ends=shape.num_api_servers, ask=partial(launcher.call, "control"),
        )  # fmt: skip
        self._reception = Reception(
            self, place, transport, credentials, liveness_timeout=args.liveness_timeout
        )
        self._launcher = launcher
        self._on_phase = on_phase
        self._peers: tuple[FrontendStatistics, ...] = (FrontendStatistics(),) * (shape.num_api_servers - 1)

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Report started once the engines of this machine serve, or one where it has none.

        Raises UsageError where engines cannot be listened for.
        """
        try:
            async with anyio.create_task_group() as tasks:
                self.adopt(self._launcher.order)
                self._launcher.follow(self.update, self._on_phase, self.follow, self.wait_back)
                await tasks.start(self._reception.run)
                await tasks.start(super().run)
                task_status.started()
        except BaseExceptionGroup as group:
            error = single_error(group)
            raise error from error.__cause__

    async def restart_rank(self, rank: int, seconds: float) -> None:
        """See :class:`~triolet.cluster.client.RankRestarter`."""
        await self._launcher.call("restart_rank", rank, float(seconds))

    @property
    def peer_statistics(self) -> tuple[FrontendStatistics, ...]:
        """What the other API servers have counted, as of the last :meth:`refresh_statistics`."""
        return self._peers

    async def refresh_statistics(self) -> None:
        """Ask all ranks, and all other API servers; who does not answer in time keeps what it told last."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(super().refresh_statistics)
            tasks.start_soon(self._refresh_peers)

    async def _refresh_peers(self) -> None:
        try:
            with anyio.fail_after(PEER_TIMEOUT):
                told = await self._launcher.call("peer_statistics")
            self._peers = tuple(from_plain(FrontendStatistics, one) for one in told)
        except (TrioletError, WireError, TimeoutError) as exc:
            logger.warning("the other API servers tell no statistics: %s", exc)
