"""HeadlessNode: the engines of a machine without HTTP, for a head on another.

It starts its engines and looks for the head side by side, in whichever order the two come. A node that has
lost its head ends its engines and leaves: whoever started it starts it again, and it joins anew. This module
knows no request.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import anyio
from anyio.abc import TaskGroup

from triolet.cluster.directory import Directory
from triolet.cluster.handshake import Peer, Role
from triolet.cluster.joining import Credentials, dial
from triolet.cluster.launcher_link import answer_call
from triolet.cluster.link import Link, LinkClosedError
from triolet.cluster.messages import (
    Call,
    Drain,
    Join,
    Leaving,
    RankReport,
    RankReports,
    Refused,
    Welcome,
)  # fmt: skip
from triolet.cluster.rank_supervisor import RankSupervisor
from triolet.cluster.restart_turn import RestartTurn, restart_in_turn
from triolet.cluster.transport import Address, Transport
from triolet.core.errors import single_error
from triolet.errors import JoinError, UsageError

__all__ = ["HeadlessNode"]

LAST_WORDS_SECONDS = 1.0

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
        self._leaving: Leaving | None = None
        self._restart_turn = RestartTurn()
        self._link: Link | None = None
        self._is_joining = False
        self._is_welcome = anyio.Event()

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
                await self._run_engines()
                tasks.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            error = single_error(group)
            raise error from error.__cause__

    async def restart(self, seconds: float) -> None:
        """Replace one engine process after the other, each once it has finished its requests in time.

        Raises what :func:`restart_in_turn` does, EngineDeadError where a new one does not come.
        """
        ranks = [report.rank for report in self._directory.reports]
        await restart_in_turn(ranks, partial(self._restart_rank, seconds=seconds))

    async def stop(self, seconds: float, reason: str = "it was told to") -> None:
        """Have the engines finish their requests within ``seconds``; then :meth:`run` returns.

        ``reason`` is what the head is told.
        """
        self._leaving = Leaving(reason, is_failure=False)
        if self._link is not None:
            self._link.post(self._leaving)
        await self._supervisor.stop(seconds)

    async def _run_engines(self) -> None:
        """Keep them going; what they end with, the head is told as the last of them."""
        try:
            await self._supervisor.run()
        except Exception as error:
            await self._tell_last(Leaving(str(error), is_failure=True))
            raise
        await self._tell_last()

    async def _tell_last(self, leaving: Leaving | None = None) -> None:
        with suppress(LinkClosedError), anyio.move_on_after(LAST_WORDS_SECONDS):
            if self._is_joining:  # a head takes nothing before it has answered
                await self._is_welcome.wait()
            if self._link is None:
                return
            self._link.post(RankReports(self._directory.reports))
            if leaving is not None:
                self._link.post(leaving)
            await self._link.flush()

    async def _restart_rank(self, rank: int, seconds: float) -> None:
        with self._restart_turn.of(rank):
            await self._supervisor.restart(rank, seconds)

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
                if self._leaving is None:
                    raise JoinError(f"the head at {self._head} is lost: {link.closed_reason}") from None
            tasks.cancel_scope.cancel()

    async def _join(self, link: Link, ranks: tuple[int, ...]) -> None:
        link.post(Join(self._name, ranks, self._config))
        self._is_joining = True
        answer = await link.receive()
        if isinstance(answer, Refused):
            said = f"the head at {self._head} refuses this node: {answer.reason}"
            raise UsageError(said, param=answer.fields[0]) if answer.fields else JoinError(said)
        if not isinstance(answer, Welcome):
            raise JoinError(f"the head at {self._head} does not answer as one")
        logger.info("joined the head at %s", self._head)
        self._link = link
        if self._leaving is not None:
            link.post(self._leaving)
        self._is_welcome.set()
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
                match await link.receive():
                    case Call() as call:
                        tasks.start_soon(self._answer, link, call)
                    case Drain(seconds):
                        tasks.start_soon(self.stop, seconds, "the head said so")
                    case message:
                        link.close(f"{type(message).__name__} is nothing that a head sends here")
        finally:
            self._directory.unsubscribe(report)

    async def _answer(self, link: Link, call: Call) -> None:
        await answer_call(link, call, {"restart_rank": self._restart_rank})
