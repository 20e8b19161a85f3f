"""ClusterClient: an ``EngineClient`` with engines in processes of their own, and on other machines.

A :class:`Router` that brings up what it routes to, within the scope of :meth:`ClusterClient.run`.
This module knows no text and no HTTP.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import anyio
import sniffio
from anyio.abc import TaskStatus

from triolet.args import EngineArgs
from triolet.cluster.engine_cluster import EngineCluster, launch_credentials
from triolet.cluster.joining import Credentials
from triolet.cluster.model_places import with_model_at
from triolet.cluster.processes import ProcessStarter, SubprocessStarter
from triolet.cluster.reception import Reception, front_end_places
from triolet.cluster.router import Router
from triolet.cluster.transport import SocketTransport, Transport
from triolet.core.errors import single_error
from triolet.models.source import ModelFiles

__all__ = ["ClusterClient", "open_cluster_client"]


class ClusterClient(Router):
    """Serves requests on the ranks that ``args`` ask for, from this process.

    ``starter``, ``transport``, ``credentials``, ``on_phase``, ``engine_args``, ``first_generation``: see
    :class:`EngineCluster`.
    """

    def __init__(
        self,
        args: EngineArgs,
        starter: ProcessStarter,
        transport: Transport,
        credentials: Credentials,
        *,
        on_phase: Callable[[str], None],
        engine_args: EngineArgs | None = None,
        first_generation: int = 0,
    ) -> None:
        shape = args.launch_shape()
        super().__init__(args, shape.served_ranks, first_ranks=shape.local_ranks)
        (place,) = front_end_places(shape, credentials.random_bytes)
        self._reception = Reception(
            self, place, transport, credentials, liveness_timeout=args.liveness_timeout
        )
        self._cluster = EngineCluster(
            args, [place], starter, transport, credentials,
            on_phase=on_phase, engine_args=engine_args, first_generation=first_generation,
        )  # fmt: skip

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Start the engines, report started once those of this machine serve, or one where it has none.

        Raises what :meth:`EngineCluster.run` does.

        Cancellation: kills the engines of this machine.
        """
        try:
            async with anyio.create_task_group() as tasks:
                await tasks.start(self._reception.run)
                self._cluster.directory.subscribe(self.update)
                await tasks.start(self._cluster.run)
                await tasks.start(super().run)
                task_status.started()
        except BaseExceptionGroup as group:
            error = single_error(group)
            raise error from error.__cause__

    async def stop(self) -> None:
        """End all requests, then the engines."""
        await super().stop()
        await self._cluster.stop(0)

    async def restart_rank(self, rank: int, seconds: float) -> None:
        """Replace the process of a rank, once it has finished its requests, within ``seconds``.

        Return when the new one serves. Raises ConflictError where there is none to replace, EngineDeadError
        where none comes.
        """
        await self._cluster.restart(rank, seconds)
        await self.wait_back(rank)


def open_cluster_client(
    args: EngineArgs, files: ModelFiles, on_phase: Callable[[str], None]
) -> ClusterClient:
    """The client that starts real processes, on the event loop that runs here. Raises UsageError."""
    return ClusterClient(
        args,
        SubprocessStarter(backend=sniffio.current_async_library()),
        SocketTransport(),
        launch_credentials(args),
        on_phase=on_phase,
        engine_args=with_model_at(args, files),
        first_generation=int(time.time()),
    )
