"""EngineCluster: the engines behind one or several front ends, wherever they run.

Those of this machine are kept going here, those of other machines join. What is known of all of them is in
one directory. This module knows no request, and no front end but its address.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence

import anyio
from anyio.abc import TaskStatus

from triolet.args import EngineArgs
from triolet.cluster.directory import Directory
from triolet.cluster.head import Head
from triolet.cluster.joining import Credentials
from triolet.cluster.messages import RankReport
from triolet.cluster.processes import ProcessStarter
from triolet.cluster.rank_supervisor import RankSupervisor
from triolet.cluster.reception import FrontEndPlace, cannot_listen
from triolet.cluster.restart_turn import RestartTurn
from triolet.cluster.shared_options import cluster_secret, shared_options
from triolet.cluster.transport import Address, Listener, Transport
from triolet.cluster.wording import numbered
from triolet.core.errors import single_error
from triolet.errors import JoinError
from triolet.statistics import RankState

__all__ = ["EngineCluster", "launch_credentials"]

SECRET_BYTES = 32

WAITING_SECONDS = 10.0
"""Between two lines that say which ranks are waited for."""
LEAVE_PATIENCE = 3.0
"""Seconds that nodes may take to leave, beyond those that they have to finish requests."""

logger = logging.getLogger("triolet.cluster")


def launch_credentials(args: EngineArgs) -> Credentials:
    """The secret that all machines know, or one of this launch where there is only this one.

    Raises UsageError where one is needed and there is none.
    """
    if args.launch_shape().needs_secret:
        return Credentials(cluster_secret(args, os.environ), os.urandom)
    return Credentials(os.urandom(SECRET_BYTES), os.urandom)


class EngineCluster:
    """Keeps the engines of ``args`` going for the front ends at ``places``.

    ``starter`` and ``transport`` are how processes and connections are made; ``credentials`` are what engines
    and nodes prove themselves by. ``on_phase`` is told what is waited for until the engines are ready.
    ``engine_args`` are the options that engines of this machine get, ``args`` if not given.
    ``first_generation``: see :class:`RankSupervisor`.
    """

    def __init__(
        self,
        args: EngineArgs,
        places: Sequence[FrontEndPlace],
        starter: ProcessStarter,
        transport: Transport,
        credentials: Credentials,
        *,
        on_phase: Callable[[str], None],
        engine_args: EngineArgs | None = None,
        first_generation: int = 0,
    ) -> None:
        shape = args.launch_shape()
        self.directory = Directory(shape.served_ranks)
        self._args = args
        self._shape = shape
        self._transport = transport
        self._on_phase = on_phase
        self._supervisor: RankSupervisor | None = None
        self._head: Head | None = None
        if shape.local_ranks:
            self._supervisor = RankSupervisor(
                engine_args or args, shape.local_ranks, starter,
                secret=credentials.secret, on_report=self._take_report,
                first_generation=first_generation,
            )  # fmt: skip
            self._supervisor.set_topology([str(place.near) for place in places])
        if shape.remote_ranks:
            self._head = Head(
                shape.remote_ranks, self.directory, shared_options(args),
                [str(place.far) for place in places], credentials, liveness_timeout=args.liveness_timeout,
            )  # fmt: skip
        self._was_ready = self._is_leaving = False
        self._restart_turn = RestartTurn()
        self._left = anyio.Event()

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Report started once the engines of this machine are ready, keep all going until :meth:`stop`.

        Raises what :meth:`RankSupervisor.run` does, UsageError where nodes cannot be listened for, JoinError
        where there are no engines here and none has come in time.

        Cancellation: kills the engines of this machine.
        """
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self.directory.run)
                if self._head is not None:
                    await tasks.start(self._take_nodes_in, self._head)
                self.directory.subscribe(self._tell_phase)
                if self._supervisor is not None:
                    await tasks.start(self._supervisor.run)
                self._was_ready = True
                task_status.started()
                await self._left.wait()
                tasks.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            error = single_error(group)
            raise error from error.__cause__

    async def stop(self, seconds: float) -> None:
        """Have all engines finish their requests within ``seconds`` and end; then :meth:`run` returns."""
        self._is_leaving = True
        async with anyio.create_task_group() as tasks:
            if self._supervisor is not None:
                tasks.start_soon(self._supervisor.stop, seconds)
            if self._head is not None:
                tasks.start_soon(self._dismiss_nodes, self._head, seconds)
        self._left.set()

    async def restart(self, rank: int, seconds: float) -> None:
        """Replace the process of a rank, once it has finished its requests, within ``seconds``.

        Raises ConflictError where there is none to replace, EngineDeadError where none comes.
        """
        with self._restart_turn.of(rank):
            logger.info("engine %d is to be restarted", rank)
            if self._supervisor is not None and rank in self._shape.local_ranks:
                await self._supervisor.restart(rank, seconds)
            else:
                assert self._head is not None, "it runs on another machine"
                await self._head.restart(rank, seconds)

    # ------------------------------------------------------------------ other machines

    async def _take_nodes_in(self, head: Head, *, task_status: TaskStatus[None]) -> None:
        listener = await self._listen(Address(self._shape.head_host, self._shape.head_port))
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._await_nodes, head)
                task_status.started()
                await head.run(listener)
        finally:
            with anyio.CancelScope(shield=True):
                await listener.aclose()

    async def _listen(self, address: Address) -> Listener:
        try:
            return await self._transport.listen(address)
        except OSError as exc:
            raise cannot_listen(address, exc) from exc

    async def _await_nodes(self, head: Head) -> None:
        """Say what is missing until it is there, or the time for it is over."""
        place = f"{self._shape.head_host}:{self._shape.head_port}"
        timeout = self._args.cluster_join_timeout
        with anyio.move_on_after(timeout):
            while head.missing_ranks:
                logger.info("waiting at %s for machines with %s", place, numbered("rank", head.missing_ranks))
                self._tell_phase(self.directory.reports)
                with anyio.move_on_after(WAITING_SECONDS):
                    await head.wait_changed()
            return
        said = (
            f"no machine with {numbered('rank', head.missing_ranks)} has come to {place} within {timeout:g} s"
        )
        if not self._shape.local_ranks and len(head.missing_ranks) == len(self._shape.remote_ranks):
            raise JoinError(f"{said} (--cluster-join-timeout), and there are no engines here")
        logger.warning("%s; going on without, and taking it in whenever it comes", said)

    async def _dismiss_nodes(self, head: Head, seconds: float) -> None:
        with anyio.move_on_after(seconds + LEAVE_PATIENCE) as patience:
            await head.drain(seconds)
        if patience.cancelled_caught:
            logger.warning("some machines did not leave in time")

    # ------------------------------------------------------------------ news

    def _take_report(self, report: RankReport) -> None:
        self.directory.update([report])

    def _tell_phase(self, _: tuple[RankReport, ...]) -> None:
        """Say what is going on until there is something to serve with."""
        is_any_ready = any(report.state is RankState.READY for report in self.directory.reports)
        if not ((self._was_ready and is_any_ready) or self._is_leaving):
            self._on_phase("; ".join(self._phases()) or "waiting for connections")

    def _phases(self) -> Iterator[str]:
        for report in self.directory.reports:
            if report.rank in self._shape.local_ranks and report.state is not RankState.READY:
                yield f"engine {report.rank}: {report.phase or report.cause or report.state}"
        missing = [] if self._head is None else self._head.missing_ranks
        if missing:
            yield f"waiting for machines with {numbered('rank', missing)}"
