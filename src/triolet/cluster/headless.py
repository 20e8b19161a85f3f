"""``python -m server --headless``: engines without HTTP, for a head on another machine.

SIGTERM or SIGINT lets requests under way finish, a second one ends the process at once; SIGHUP replaces one
engine process after the other. This module knows no request.
"""

from __future__ import annotations

import logging
import socket
import time

import anyio

from triolet.args import ServeArgs
from triolet.cluster.directory import Directory
from triolet.cluster.engine_cluster import launch_credentials
from triolet.cluster.messages import RankReport
from triolet.cluster.model_places import find_models
from triolet.cluster.node import HeadlessNode
from triolet.cluster.processes import SubprocessStarter
from triolet.cluster.rank_supervisor import RankSupervisor
from triolet.cluster.shared_options import shared_options
from triolet.cluster.transport import Address, SocketTransport
from triolet.core.errors import single_error
from triolet.core.signals import SignalOrders

__all__ = ["serve_headless"]

logger = logging.getLogger("triolet.cluster")


async def serve_headless(args: ServeArgs) -> int:
    """Serve until a signal or the head says that it is enough; the exit code.

    Raises UsageError for what is wrong with the options here or beside those of the head, what finding the
    model does, before any process starts, JoinError where the head is not found or lost, EngineDeadError
    where an engine dies more often than the budget allows.
    """
    shape = args.launch_shape()
    credentials = launch_credentials(args)
    directory = Directory(shape.local_ranks)

    def take_report(report: RankReport) -> None:
        directory.update([report])

    supervisor = RankSupervisor(
        await find_models(args), shape.local_ranks, SubprocessStarter(backend=args.backend),
        secret=credentials.secret, on_report=take_report, first_generation=int(time.time()),
    )  # fmt: skip
    node = HeadlessNode(
        socket.gethostname(), supervisor, directory, shared_options(args), SocketTransport(),
        Address(shape.head_host, shape.head_port), credentials, join_timeout=args.cluster_join_timeout,
        liveness_timeout=args.liveness_timeout,
    )  # fmt: skip
    try:
        async with anyio.create_task_group() as tasks:
            await tasks.start(_signal_orders(node, args.shutdown_timeout).obey)
            await node.run()
            tasks.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        error = single_error(group)
        raise error from error.__cause__
    logger.info("the engines have ended")
    return 0


def _signal_orders(node: HeadlessNode, shutdown_timeout: float) -> SignalOrders:
    async def leave(signal_name: str) -> None:
        logger.info("draining: the engines finish their requests and end")
        await node.stop(shutdown_timeout, signal_name)

    async def restart() -> None:
        await node.restart(shutdown_timeout)

    return SignalOrders(leave=leave, restart=restart)
