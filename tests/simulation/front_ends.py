"""What processes with clients run: one for everything but engines, or a launcher and several API servers.

The production classes are put together as in production; a desk stands for HTTP. This module knows nothing
of what goes wrong.
"""

from __future__ import annotations

from functools import partial

import anyio
from tests.simulation.desk import Desk
from tests.simulation.processes import Role, VirtualProcess
from tests.simulation.roles import engine_roles, failed
from tests.simulation.world import SECRET, World

from triolet.args import EngineArgs, ServeArgs
from triolet.cluster.api_server_client import ApiServerClient
from triolet.cluster.cluster_client import ClusterClient
from triolet.cluster.codec import to_plain
from triolet.cluster.joining import Credentials
from triolet.cluster.launcher import Launcher
from triolet.cluster.launcher_link import LauncherLink
from triolet.cluster.link import Link
from triolet.cluster.messages import Start
from triolet.cluster.parent_link import serve_parent
from triolet.cluster.reception import FrontEndPlace
from triolet.cluster.restart_turn import restart_in_turn
from triolet.cluster.router import Router
from triolet.cluster.transport import Address
from triolet.core.signals import SignalOrders
from triolet.statistics import FrontendStatistics

__all__ = ["api_server", "head", "launcher"]

API_SERVER_ROLE = "simulation:api_server"


async def head(world: World, process: VirtualProcess) -> int:
    """Serve clients, and hold all engines of this machine; the exit code."""
    client = ClusterClient(
        EngineArgs(**world.scenario.args, **world.scenario.head_args),
        world.starter(process, engine_roles(world)),
        process.transport,
        Credentials(SECRET, world.random.randbytes),
        on_phase=lambda phase: None,
        first_generation=world.next_generation(),
    )
    world.owner = client._owner
    desk = Desk(client, process.name, world.trace)

    async def leave(_: str) -> None:
        await _close(desk, client, world.scenario.drain_seconds)
        tasks.cancel_scope.cancel()

    async def restart() -> None:
        await restart_in_turn(
            range(world.scenario.num_ranks),
            partial(client.restart_rank, seconds=world.scenario.drain_seconds),
        )

    world.desks.append(desk)
    try:
        async with anyio.create_task_group() as tasks:
            await tasks.start(SignalOrders(leave=leave, restart=restart, exit_now=process.end).obey)
            await tasks.start(client.run)
            await desk.run()
    except BaseExceptionGroup as group:
        return failed(world, group)
    return 0


async def launcher(world: World, process: VirtualProcess) -> int:
    """Start API servers and engines; the exit code."""
    roles: dict[str, Role] = {API_SERVER_ROLE: partial(api_server, world), **engine_roles(world)}
    launcher = Launcher(
        ServeArgs(
            api_server_count=world.scenario.num_api_servers,
            shutdown_timeout=world.scenario.drain_seconds,
            drain_lead_time=0.0,
            **world.scenario.args,
            **world.scenario.head_args,
        ),
        0,
        API_SERVER_ROLE,
        world.starter(process, roles),
        process.transport,
        Credentials(SECRET, world.random.randbytes),
        announce=lambda line: None,
        exit_now=process.end,
        first_generation=world.next_generation(),
    )
    world.owner = launcher._control
    return await launcher.run()


async def api_server(world: World, process: VirtualProcess) -> int:
    """Serve clients over the engines that the launcher tells of; the exit code."""

    async def serve(link: Link) -> None:
        start = await link.receive()
        assert isinstance(start, Start)
        to_launcher = LauncherLink(link)
        client = ApiServerClient(
            ServeArgs(**start.args),
            FrontEndPlace(*(_address(start.extra[name]) for name in ("near", "far"))),
            to_launcher,
            process.transport,
            Credentials(start.secret, world.random.randbytes),
            on_phase=lambda phase: None,
        )
        to_launcher.answer({"statistics": _statistics})
        desk = Desk(client, process.name, world.trace)
        world.desks.append(desk)
        async with anyio.create_task_group() as tasks:

            async def drain(seconds: float, lead_seconds: float) -> None:
                await _close(desk, client, seconds)
                tasks.cancel_scope.cancel()

            tasks.start_soon(to_launcher.run, drain)
            await tasks.start(client.run)
            await desk.run()

    return await serve_parent(process.parent_stream, serve)


async def _statistics() -> object:
    return to_plain(FrontendStatistics())


def _address(text: str | None) -> Address | None:
    return None if text is None else Address.parse(text)


async def _close(desk: Desk, client: Router, seconds: float) -> None:
    """Let clients finish, then end their requests and, where it has any, the engines."""
    desk.is_closed = True
    client.end_within(seconds)
    with anyio.move_on_after(seconds):
        await desk.wait_idle()
    if desk.is_serving:
        await client.stop()
