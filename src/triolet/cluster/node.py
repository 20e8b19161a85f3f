"""HeadlessNode: the engines of a machine without HTTP, for a head on another.

It starts its engines and looks for the head side by side, in whichever order the two come. A node that has
lost its head ends its engines and leaves: whoever started it starts it again, and it joins anew. This module
knows no request.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import anyio
from anyio.abc import TaskGroup

from triolet.cluster.directory import Directory
from triolet.cluster.handshake import Peer, Role
from triolet.cluster.joining import Credentials, dial
from triolet.cluster.link import Link, LinkClosedError
from triolet.cluster.messages import Drain, Join, RankReport, RankReports, Refused, Topology, Welcome
from triolet.cluster.rank_supervisor import RankSupervisor
from triolet.cluster.transport import Address, Transport
from triolet.core.errors import single_error
from triolet.errors import JoinError, UsageError

__all__ = ["HeadlessNode"]

logger = logging.getLogger("triolet.cluster")


class HeadlessNode:
    """Runs ``supervisor``'s ranks for the head at ``head``.

    ``directory`` is what the supervisor reports to. ``name`` is how the head calls this node, ``config`` what
    both must have been started with, by option.
    """

    def __init__(
        self,
        name: str,
        supervisor: RankSupervisor,
        directory: Directory,
        config: Mapping[str, Any],
        transport: Transport,
        head: Address,
        credentials: Credentials,
        *,
        join_timeout: float,
        liveness_timeout: float,
    ) -> None:
        self._name = name
        self._supervisor = supervisor
        self._directory = directory
        self._config = dict(config)
        self._transport = transport
        self._head = head
        self._credentials = credentials
        self._join_timeout = join_timeout
        self._liveness_timeout = liveness_timeout
        self._is_leaving = False

    async def run(self) -> None:
        """Serve until :meth:`stop`, the head's own drain, or the loss of one of the two.

        Raises JoinError where the head cannot be found, UsageError where it refuses the options, JoinError
        again where it is lost, and what the supervisor raises.

        Cancellation: the engines are killed.
        """
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._directory.run)
                tasks.start_soon(self._serve_head)
                await self._supervisor.run()
                tasks.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            error = single_error(group)
            raise error from error.__cause__

    async def restart(self, seconds: float) -> None:
        """Replace one engine process after the other, each once it has finished its requests in time.

        Raises ConflictError where one is not ready, EngineDeadError where a new one does not come.
        """
        for report in self._directory.reports:
            await self._supervisor.restart(report.rank, seconds)

    async def stop(self, seconds: float) -> None:
        """Have the engines finish their requests within ``seconds``; then :meth:`run` returns."""
        self._is_leaving = True
        await self._supervisor.stop(seconds)

    async def _serve_head(self) -> None:
        ranks = tuple(report.rank for report in self._directory.reports)
        peer = Peer(Role.NODE, ranks[0])
        link = await dial(
            self._transport, self._head, peer, self._credentials,
            timeout=self._join_timeout, liveness_timeout=self._liveness_timeout,
        )  # fmt: skip
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(link.run)
            try:
                await self._join(link, ranks)
                await self._follow(link, tasks)
            except LinkClosedError:
                if not self._is_leaving:
                    raise JoinError(f"the head at {self._head} is lost: {link.closed_reason}") from None
            tasks.cancel_scope.cancel()

    async def _join(self, link: Link, ranks: tuple[int, ...]) -> None:
        link.post(Join(self._name, ranks, self._config))
        answer = await link.receive()
        if isinstance(answer, Refused):
            said = f"the head at {self._head} refuses this node: {answer.reason}"
            raise UsageError(said, param=answer.fields[0]) if answer.fields else JoinError(said)
        if not isinstance(answer, Welcome):
            raise JoinError(f"the head at {self._head} does not answer as one")
        logger.info("joined the head at %s", self._head)
        self._set_front_ends(answer.front_ends)

    def _set_front_ends(self, addresses: tuple[str, ...]) -> None:
        """Serve these, on the machine of the head as it is known here, whatever it calls itself."""
        places = [replace(Address.parse(address), host=self._head.host) for address in addresses]
        self._supervisor.set_topology([str(place) for place in places])

    async def _follow(self, link: Link, tasks: TaskGroup) -> None:
        """Report to the head and obey it until it is gone."""

        def report(reports: tuple[RankReport, ...]) -> None:
            link.post(RankReports(reports))

        self._directory.subscribe(report)
        try:
            while True:
                message = await link.receive()
                if isinstance(message, Topology):
                    self._set_front_ends(message.front_ends)
                elif isinstance(message, Drain):
                    tasks.start_soon(self.stop, message.seconds)
        finally:
            self._directory.unsubscribe(report)
