"""Where front ends are found, and how one has all engines that dial it served by its router.

This module knows nothing of who starts engines.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable
from dataclasses import dataclass

import anyio
from anyio.abc import TaskStatus

from triolet.cluster.front_end import FrontEnd
from triolet.cluster.joining import Credentials
from triolet.cluster.router import Router
from triolet.cluster.transport import Address, Transport
from triolet.errors import UsageError
from triolet.launch_shape import LaunchShape

__all__ = ["FrontEndPlace", "Reception", "cannot_listen", "check_ports", "front_end_places"]


@dataclass(frozen=True, slots=True)
class FrontEndPlace:
    """Where engines find a front end: those of its machine at ``near``, the others at ``far``."""

    near: Address | None
    far: Address | None

    @property
    def addresses(self) -> tuple[Address, ...]:
        """Where it has to listen."""
        return tuple(address for address in (self.near, self.far) if address is not None)


def front_end_places(shape: LaunchShape, random_bytes: Callable[[int], bytes]) -> tuple[FrontEndPlace, ...]:
    """The places of all front ends of a shape. No socket is opened that no engine would dial."""
    launch = random_bytes(8).hex()

    def place(index: int) -> FrontEndPlace:
        near = Address(name=f"triolet-{launch}-{index}") if shape.local_ranks else None
        far = Address(shape.head_host, shape.head_port + 1 + index) if shape.remote_ranks else None
        return FrontEndPlace(near, far)

    return tuple(map(place, range(shape.num_api_servers)))


class Reception:
    """Has ``router`` serve the engines that dial ``place``.

    ``liveness_timeout``: seconds of silence after which an engine on another machine counts as lost.
    """

    def __init__(
        self,
        router: Router,
        place: FrontEndPlace,
        transport: Transport,
        credentials: Credentials,
        *,
        liveness_timeout: float,
    ) -> None:
        self._router = router
        self._place = place
        self._transport = transport
        self._credentials = credentials
        self._liveness_timeout = liveness_timeout

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Report started once engines can dial; serve until cancelled. Raises UsageError where that fails."""
        async with anyio.create_task_group() as tasks:
            for address in self._place.addresses:
                await tasks.start(self._listen, address)
            task_status.started()

    async def _listen(self, address: Address, *, task_status: TaskStatus[Address]) -> None:
        front_end = FrontEnd(
            self._router, self._transport, address, self._credentials,
            liveness_timeout=None if address.host is None else self._liveness_timeout,
        )  # fmt: skip
        try:
            await front_end.run(task_status=task_status)
        except OSError as exc:
            raise cannot_listen(address, exc) from exc


def check_ports(shape: LaunchShape) -> None:
    """That the ports which other machines dial can be had, before anything starts. Raises UsageError."""
    if not shape.remote_ranks:
        return
    for port in range(shape.head_port, shape.head_port + 1 + shape.num_api_servers):
        try:
            _bind(shape.head_host, port)
        except OSError as exc:
            raise cannot_listen(Address(shape.head_host, port), exc) from exc


def _bind(host: str, port: int) -> None:
    """Have the port for a moment. Raises OSError."""
    [(family, _, _, _, place), *_] = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(place)
        probe.listen()


def cannot_listen(address: Address, error: OSError) -> UsageError:
    """What is wrong with an address of ours that other machines are to dial."""
    said = (
        f"cannot listen on {address.host} port {address.port} for other machines: {error.strerror or error}"
    )
    if error.errno in (errno.EADDRINUSE, errno.EACCES):
        return UsageError(
            f"{said}; choose another --data-parallel-rpc-port, the same on all machines, with as many free "
            "ports above it as there are API servers",
            param="data_parallel_rpc_port",
        )
    return UsageError(
        f"{said}; give an address of this machine as --data-parallel-address", param="data_parallel_address"
    )
