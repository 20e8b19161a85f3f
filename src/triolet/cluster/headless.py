"""``python -m server --headless``: engines without HTTP, for a head on another machine.

SIGTERM or SIGINT lets requests under way finish, a second one ends the process at once; SIGHUP replaces one
engine process after the other. This module knows no request.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
from anyio.abc import TaskGroup, TaskStatus

from triolet.args import ServeArgs
from triolet.cluster.directory import Directory
from triolet.cluster.engine_cluster import launch_credentials
from triolet.cluster.messages import RankReport
from triolet.cluster.node import HeadlessNode
from triolet.cluster.processes import SubprocessStarter
from triolet.cluster.rank_supervisor import RankSupervisor
from triolet.cluster.shared_options import shared_options
from triolet.cluster.transport import Address, SocketTransport
from triolet.core.errors import single_error
from triolet.errors import TrioletError

__all__ = ["serve_headless"]

logger = logging.getLogger("triolet.cluster")


async def serve_headless(args: ServeArgs) -> int:
    """Serve until a signal or the head says that it is enough; the exit code.

    Raises UsageError for what is wrong with the options here or beside those of the head, JoinError where the
    head is not found or lost, EngineDeadError where an engine dies more often than the budget allows.
    """
    shape = args.launch_shape()
    credentials = launch_credentials(args)
    directory = Directory(shape.local_ranks)

    def take_report(report: RankReport) -> None:
        directory.update([report])

    supervisor = RankSupervisor(
        args, shape.local_ranks, SubprocessStarter(backend=args.backend), secret=credentials.secret,
        on_report=take_report, first_generation=int(time.time()),
    )  # fmt: skip
    node = HeadlessNode(
        socket.gethostname(), supervisor, directory, shared_options(args), SocketTransport(),
        Address(shape.head_host, shape.head_port), credentials, join_timeout=args.cluster_join_timeout,
        liveness_timeout=args.liveness_timeout,
    )  # fmt: skip
    try:
        async with anyio.create_task_group() as tasks:
            await tasks.start(_Signals(node, args.shutdown_timeout).watch, tasks)
            await node.run()
            tasks.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        error = single_error(group)
        raise error from error.__cause__
    logger.info("the engines have ended")
    return 0


class _Signals:
    """What signals mean to a node. ``exit_now`` ends the process."""

    def __init__(
        self, node: HeadlessNode, shutdown_timeout: float, exit_now: Callable[[int], Any] = os._exit
    ) -> None:
        self._node = node
        self._shutdown_timeout = shutdown_timeout
        self._exit_now = exit_now
        self._is_leaving = False

    async def watch(self, tasks: TaskGroup, *, task_status: TaskStatus[None]) -> None:
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
            task_status.started()
            await self._obey(signals, tasks)

    async def _obey(self, signals: AsyncIterator[signal.Signals], tasks: TaskGroup) -> None:
        async for number in signals:
            if number == signal.SIGHUP:
                tasks.start_soon(self._restart)
            elif self._is_leaving:
                self._exit_now(128 + number)
            else:
                self._is_leaving = True
                logger.info("draining: the engines finish their requests and end")
                tasks.start_soon(self._node.stop, self._shutdown_timeout)

    async def _restart(self) -> None:
        try:
            await self._node.restart(self._shutdown_timeout)
        except TrioletError as error:
            logger.error("the engines are not restarted: %s", error)
        else:
            logger.info("all engines are restarted")
