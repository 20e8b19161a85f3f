"""Launcher: several API servers on one socket, the engines that they share, and nobody's requests.

It starts them, tells all what is known of the engines, and ends them in phases: API servers answer what is
under way, then the engines end. An API server or an engine that is lost for good ends everything; so does the
end of this process. This module knows neither HTTP nor a model.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import anyio

from triolet.args import EngineArgs, ServeArgs
from triolet.cluster.api_server_process import ApiServerProcess
from triolet.cluster.codec import from_plain, to_plain
from triolet.cluster.control_owner import ControlOwner
from triolet.cluster.control_state import Order
from triolet.cluster.engine_cluster import EngineCluster
from triolet.cluster.frames import WireError
from triolet.cluster.joining import Credentials
from triolet.cluster.launcher_link import UNANSWERED
from triolet.cluster.messages import Call, Drain, Message, Phase, RankReport, RankReports, Start
from triolet.cluster.processes import API_KEY_VARIABLES, ProcessSpec, ProcessStarter
from triolet.cluster.rank_args import plain_args
from triolet.cluster.rank_calls import gather_answers
from triolet.cluster.reception import FrontEndPlace, front_end_places
from triolet.cluster.restart_turn import restart_in_turn
from triolet.cluster.transport import Transport
from triolet.core.errors import single_error
from triolet.core.signals import SignalOrders
from triolet.errors import TrioletError, UsageError
from triolet.statistics import FrontendStatistics

__all__ = ["Launcher"]

ANSWER_SECONDS = 2.0
"""How long an API server may take to answer another, besides what the other grants it."""
FAILURE_SECONDS = 2.0
"""Seconds that API servers have to tell their callers that the engines are dead."""
CLOSE_PATIENCE = 6.0
"""Seconds that API servers have to close connections, beyond those for requests under way."""

logger = logging.getLogger("triolet.cluster")


class Launcher:
    """One run of all processes. ``listener`` is the socket that API servers, which run ``role``, inherit.

    ``announce`` gets the lines for the user once all API servers are ready. ``exit_now`` ends this process
    when a second signal comes; the kernel then ends the others. ``engine_args``: see :class:`EngineCluster`.
    """

    def __init__(
        self,
        args: ServeArgs,
        listener: int,
        role: str,
        starter: ProcessStarter,
        transport: Transport,
        credentials: Credentials,
        *,
        announce: Callable[[str], None],
        engine_args: EngineArgs | None = None,
        exit_now: Callable[[int], Any] = os._exit,
        first_generation: int = 0,
    ) -> None:
        self._args = args
        self._announce = announce
        self._exit_now = exit_now
        self._num_announced = 0
        self._phase: str | None = None
        self._failure: Exception | None = None
        self._is_leaving = False
        self._is_done = anyio.Event()
        places = front_end_places(args.launch_shape(), credentials.random_bytes)
        self._cluster = EngineCluster(
            args, places, starter, transport, credentials,
            on_phase=self._tell_phase, engine_args=engine_args, first_generation=first_generation,
        )  # fmt: skip
        self._control = ControlOwner([partial(self._follow, index) for index in range(len(places))])
        self._counted = [FrontendStatistics() for _ in places]
        self._servers = [
            ApiServerProcess(
                ProcessSpec(
                    name=f"API server {index}", role=role, files=(listener,), secrets=API_KEY_VARIABLES
                ),
                _start(args, index, place, listener, credentials.secret),
                starter,
                greeting=self._greeting,
                answers={
                    "control": self._control.ask,
                    "restart_rank": self._restart_rank,
                    "peer_statistics": partial(self._peer_statistics, index),
                    "call_peers": partial(self._call_peers, index),
                },
                on_line=self._tell_user,
                stall_timeout=args.engine_stall_timeout,
            )
            for index, place in enumerate(places)
        ]

    async def run(self) -> int:
        """Serve until a signal or a failure; the exit code: 0, 1, or 2 where an option turned out wrong."""
        try:
            async with anyio.create_task_group() as tasks:
                await tasks.start(self._signal_orders().obey)
                self._cluster.directory.subscribe(self._tell_reports)
                tasks.start_soon(self._control.run)
                tasks.start_soon(self._run_engines)
                for server in self._servers:
                    tasks.start_soon(server.run)
                await self._is_done.wait()
                tasks.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            error = _first(group)
            if not isinstance(error, Exception):
                raise
            self._failure = error
        if self._failure is None:
            return 0
        logger.critical("the server has stopped: %s", self._failure)
        return 2 if isinstance(self._failure, UsageError) else 1

    # ------------------------------------------------------------------ the end

    async def _run_engines(self) -> None:
        """Keep the engines going. Should that fail, the API servers tell their callers why, and all ends."""
        try:
            await self._cluster.run()
        except Exception as exc:
            self._failure = exc
            self._is_leaving = True
            self._tell_reports(self._cluster.directory.reports)
            await self._drain_servers(FAILURE_SECONDS, lead_seconds=0.0)
            self._is_done.set()

    def _signal_orders(self) -> SignalOrders:
        return SignalOrders(
            leave=self._drain,
            restart=self._restart_ranks,
            is_leaving=lambda: self._is_leaving,
            exit_now=self._exit_now,
        )

    async def _drain(self, signal_name: str) -> None:
        """Leave in phases; the engines keep the time of the API servers, and have nothing to do after it."""
        self._is_leaving = True
        logger.info("draining: the API servers answer what is under way")
        await self._drain_servers(self._args.shutdown_timeout, lead_seconds=self._args.drain_lead_time)
        logger.info("draining: the engines end")
        await self._cluster.stop(0)
        self._is_done.set()

    async def _drain_servers(self, seconds: float, *, lead_seconds: float) -> None:
        async with anyio.create_task_group() as tasks:
            for server in self._servers:
                tasks.start_soon(server.drain, Drain(seconds, lead_seconds), CLOSE_PATIENCE)

    # ------------------------------------------------------------------ news

    def _greeting(self) -> Sequence[Message]:
        order = Call(UNANSWERED, "follow", (to_plain(self._control.order),))
        reports = RankReports(self._cluster.directory.reports)
        return [order, reports] if self._phase is None else [order, reports, Phase(self._phase)]

    def _follow(self, index: int, order: Order) -> Awaitable[Any]:
        return self._servers[index].call("follow", to_plain(order))

    def _tell_reports(self, reports: tuple[RankReport, ...]) -> None:
        for server in self._servers:
            server.post(RankReports(reports))

    def _tell_phase(self, phase: str) -> None:
        if phase != self._phase:
            self._phase = phase
            for server in self._servers:
                server.post(Phase(phase))

    def _tell_user(self) -> None:
        """Pass on a line once all API servers have said it."""
        num_said = min(len(server.lines) for server in self._servers)
        for line in self._servers[0].lines[self._num_announced : num_said]:
            self._announce(line)
        self._num_announced = num_said

    # ------------------------------------------------------------------ what API servers ask for

    async def _restart_rank(self, rank: int, seconds: float) -> None:
        """Replace a rank's process; return once all API servers can reach the new one."""
        await self._cluster.restart(rank, seconds)
        await gather_answers([server.call("wait_serving", rank) for server in self._servers])

    async def _restart_ranks(self) -> None:
        """Replace one engine process after the other, as SIGHUP asks for."""
        ranks = [report.rank for report in self._cluster.directory.reports]
        await restart_in_turn(ranks, partial(self._restart_rank, seconds=self._args.shutdown_timeout))

    async def _call_peers(
        self, index: int, method: str, arguments: Sequence[Any], seconds: float
    ) -> list[tuple[Any, str | None]]:
        """The answers of all API servers but one, for which they have ``seconds`` and a little more.

        Each with None, or with the reason why there is none.
        """
        answers: list[tuple[Any, str | None]] = []

        async def ask(server: ApiServerProcess) -> None:
            answer, reason = None, None
            try:
                with anyio.fail_after(seconds + ANSWER_SECONDS):
                    answer = await server.call(method, *arguments)
            except (TrioletError, WireError, TimeoutError) as exc:
                reason = str(exc) or "an API server does not answer"
                logger.warning("%s: %s", method, reason)
            answers.append((answer, reason))

        async with anyio.create_task_group() as tasks:
            for peer in self._peers_of(index):
                tasks.start_soon(ask, self._servers[peer])
        return answers

    def _peers_of(self, index: int) -> list[int]:
        return [peer for peer in range(len(self._servers)) if peer != index]

    async def _peer_statistics(self, index: int) -> list[Any]:
        """What all API servers but one have counted; of one that does not answer, what it told last."""
        peers = self._peers_of(index)
        async with anyio.create_task_group() as tasks:
            for peer in peers:
                tasks.start_soon(self._ask, peer)
        return [to_plain(self._counted[peer]) for peer in peers]

    async def _ask(self, index: int) -> None:
        try:
            with anyio.fail_after(ANSWER_SECONDS):
                told = await self._servers[index].call("statistics")
        except (TrioletError, WireError, TimeoutError) as exc:
            logger.warning("API server %d tells no statistics: %s", index, exc)
        else:
            self._counted[index] = from_plain(FrontendStatistics, told)


def _start(args: ServeArgs, index: int, place: FrontEndPlace, listener: int, secret: bytes) -> Start:
    """What an API server is told to be."""
    addresses = {
        name: None if address is None else str(address)
        for name, address in (("near", place.near), ("far", place.far))
    }
    return Start("API server", plain_args(args), index, 0, secret, {"listener": listener, **addresses})


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    error = single_error(group)
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
