"""What goes wrong, done to a world.

This module knows nothing of what must hold nevertheless.
"""

from __future__ import annotations

import signal
from functools import partial
from random import Random

import anyio
from tests.simulation.desk import Control, Desk
from tests.simulation.network import GIVE_UP_SECONDS, Network
from tests.simulation.processes import VirtualProcess
from tests.simulation.roles import NodeProcess
from tests.simulation.scenarios import (
    ENGINE_FAULTS,
    FRONT_FAULTS,
    HEAD,
    HEAD_FAULTS,
    INTRUDERS,
    LINK_FAULTS,
    NODE_FAULTS,
    Fault,
)
from tests.simulation.world import ENGINE, INTRUDER, World

from triolet.cluster.api_server_client import ApiServerClient
from triolet.cluster.cluster_client import ClusterClient
from triolet.cluster.router import Router
from triolet.core.control import PauseMode, SleepPart
from triolet.errors import ModelLoadError

__all__ = ["Faults"]

MODES: tuple[PauseMode, ...] = ("abort", "wait", "keep")
TAGS: tuple[list[SleepPart] | None, ...] = (None, ["weights"], ["kv_cache"], ["scheduling"])
BOOT_SECONDS = 1.0


class Faults:
    """Does to ``world`` what its scenario says, each at its time, and undoes it when that is over."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def run(self) -> None:
        """Return when all is over and nothing is wrong any more, but for what the cluster has to mend."""
        start = anyio.current_time()
        async with anyio.create_task_group() as tasks:
            for fault in self._world.scenario.faults:
                await anyio.sleep(start + fault.at - anyio.current_time())
                self._world.trace("fault", fault.kind, fault.choice, fault.seconds)
                tasks.start_soon(self._do, fault)
        self._world.next_steps.clear()
        self._world.failing_loads.clear()
        self._world.failing_wakes.clear()
        self._world.num_failing_starts = 0

    def _open_desks(self) -> list[Desk]:
        return [desk for desk in self._world.desks if not desk.is_closed]

    async def _do(self, fault: Fault) -> None:
        if fault.kind in ENGINE_FAULTS:
            engines = self._world.processes(ENGINE)
            if engines:
                await self._do_to_engine(fault, engines[fault.choice % len(engines)])
        elif fault.kind in FRONT_FAULTS:
            if desks := self._open_desks():
                await self._do_to_front_end(fault, desks[fault.choice % len(desks)])
        elif fault.kind in LINK_FAULTS:
            await self._do_to_link(fault, f"node {fault.choice % self._world.scenario.num_nodes}")
        elif fault.kind in NODE_FAULTS:
            await self._do_to_node(fault, f"node {fault.choice % self._world.scenario.num_nodes}")
        elif fault.kind in INTRUDERS:
            self._intrude(fault, fault.choice % self._world.scenario.num_nodes)
        elif fault.kind in HEAD_FAULTS:
            await self._do_to_head(fault)
        else:
            await self._do_to_rank(fault, fault.choice % self._world.scenario.num_ranks)

    async def _do_to_engine(self, fault: Fault, process: VirtualProcess) -> None:
        self._world.disturb(fault.seconds)
        match fault.kind:
            case "kill":
                process.kill()
            case "stop":
                await self._stop(process, fault.seconds)
            case "slow":
                self._world.slow_until[process.pid] = anyio.current_time() + fault.seconds
            case kind:
                self._world.next_steps[process.pid] = kind

    async def _do_to_rank(self, fault: Fault, rank: int) -> None:
        world = self._world
        match fault.kind:
            case "restart":
                for desk in self._open_desks()[:1]:
                    desk.control(f"restart {rank}", lambda client: _restart(client, rank, fault.seconds))
            case "restart all":
                world.head.send_signal(signal.SIGHUP)
            case "fail to load":
                error = ModelLoadError("cut short") if fault.choice % 2 else RuntimeError("no memory")
                world.failing_loads[rank].append(error)
            case "fail to start":
                world.num_failing_starts += 1
        for process in world.processes(f"{ENGINE}{rank}") if fault.kind.startswith("fail") else ():
            process.kill()
        world.disturb(fault.seconds)
        await anyio.sleep(fault.seconds)

    def _intrude(self, fault: Fault, index: int) -> None:
        role = partial(NodeProcess.role, self._world, index, fault.kind)
        self._world.machines.start(f"{INTRUDER}{fault.choice}", f"node {index}", role)

    async def _do_to_head(self, fault: Fault) -> None:
        """End all of it, and start it again; unless it has ended for good, or is about to."""
        world = self._world
        if world.head.status is not None or world.is_front_end_lost:
            return
        world.is_head_restarting = True
        world.disturb(fault.seconds)
        if fault.kind == "crash head":
            await self._crash(HEAD, fault.seconds)
        else:
            world.head.kill()
        await anyio.sleep(BOOT_SECONDS)
        world.start_head()

    async def _crash(self, host: str, seconds: float) -> None:
        """The machine loses its power, so that nobody hears of the end of its processes for a while."""
        world = self._world
        nodes = [f"node {index}" for index in range(world.scenario.num_nodes)]
        others = nodes if host == HEAD else [HEAD]
        ways = [way for other in others for way in ((host, other), (other, host))]
        for way in ways:
            world.network.block(*way)
        for process in list(world.machines.processes.values()):
            if process.host == host:
                process.kill()
        await self._block(world.network, ways, seconds)

    async def _do_to_node(self, fault: Fault, host: str) -> None:
        self._world.disturb(fault.seconds)
        if fault.kind == "crash node":
            await self._crash(host, fault.seconds)
        for process in self._world.processes(host):
            match fault.kind:
                case "kill node":
                    process.kill()
                case "stop node":
                    await self._stop(process, fault.seconds)
                case "end node":
                    process.send_signal(signal.SIGTERM)

    async def _do_to_link(self, fault: Fault, host: str) -> None:
        network = self._world.network
        directions = [(HEAD, host), (host, HEAD)]
        if fault.kind == "block one way":
            directions = [directions[fault.choice // 7 % 2]]
        self._world.disturb(fault.seconds)
        match fault.kind:
            case "cut":
                network.cut(HEAD, host)
            case "delay":
                for way in (network.way(*direction) for direction in directions):
                    way.delay = (0.2, 1.0)
                await anyio.sleep(fault.seconds)
                for way in (network.way(*direction) for direction in directions):
                    way.delay = self._world.scenario.delay
            case _:
                await self._block(network, directions, fault.seconds)

    @staticmethod
    async def _block(network: Network, directions: list[tuple[str, str]], seconds: float) -> None:
        for direction in directions:
            network.block(*direction)
        await anyio.sleep(min(seconds, GIVE_UP_SECONDS))
        if seconds >= GIVE_UP_SECONDS:
            for direction in directions:
                network.give_up(*direction)
            await anyio.sleep(seconds - GIVE_UP_SECONDS)
        for direction in directions:
            network.free(*direction)

    async def _do_to_front_end(self, fault: Fault, desk: Desk) -> None:
        mode = MODES[fault.choice % 3]
        match fault.kind:
            case "stall":
                self._world.disturb(fault.seconds)
                if fault.seconds > 0.5 * self._world.scenario.args["engine_stall_timeout"]:
                    self._world.is_front_end_lost = True
                for process in self._world.processes(desk.name):
                    await self._stop(process, fault.seconds)
            case "stall head":
                self._world.disturb(fault.seconds)
                for process in self._world.processes(HEAD):
                    await self._stop(process, fault.seconds)
            case "kill front end":
                self._world.is_front_end_lost = True
                for process in self._world.processes(desk.name):
                    process.kill()
            case "pause":
                if mode == "abort":
                    self._world.allow_aborts()
                desk.control(f"pause {mode}", lambda client: client.pause(mode))
                await anyio.sleep(fault.seconds)
                desk.control("resume", lambda client: client.resume())
            case "sleep":
                if mode == "abort":
                    self._world.allow_aborts()
                desk.control(f"sleep {mode}", lambda client: client.sleep(1, mode))
                await anyio.sleep(fault.seconds)
                desk.control("wake up", lambda client: client.wake_up())
            case "fail to wake":
                desk.control("sleep keep", lambda client: client.sleep(2, "keep"))
                await anyio.sleep(fault.seconds)
                self._world.failing_wakes[fault.choice % self._world.scenario.num_ranks] += 1
                desk.control("wake up", lambda client: client.wake_up())
            case "overtake a wake-up":
                await self._overtake_wake_up(desk, Random(fault.choice))
            case "storm":
                await self._storm(Random(fault.choice))
            case "reset cache":
                desk.control("reset cache", lambda client: client.reset_prefix_cache())
            case "statistics":
                desk.control("statistics", lambda client: client.refresh_statistics())

    async def _overtake_wake_up(self, desk: Desk, random: Random) -> None:
        """Have an engine fail to wake, ask for something else meanwhile, and maybe break the links of all."""
        world = self._world
        desk.control("sleep keep", lambda client: client.sleep(random.choice((1, 2)), "keep"))
        await anyio.sleep(1.0)
        world.failing_wakes[random.randrange(world.scenario.num_ranks)] += 1
        desk.control("wake up", lambda client: client.wake_up())
        await anyio.sleep(random.uniform(0, world.scenario.load_seconds / 3))
        if random.random() < 0.5:
            desk.control("resume", lambda client: client.resume())
        else:
            desk.control("pause keep", lambda client: client.pause("keep"))
        await anyio.sleep(random.choice((0.0, 0.3, 1.0)))
        if random.random() < 0.5:
            world.disturb(0.0)
            for process in world.processes(ENGINE):
                process.break_links()

    async def _storm(self, random: Random) -> None:
        """Ask several front ends at once for what contradicts itself."""
        self._world.allow_aborts()
        for _ in range(random.randint(2, 10)):
            mode, level = random.choice(MODES), random.choice((0, 1, 2))
            tags = random.choice(TAGS)
            name, control = random.choice(_controls(mode, level, tags))
            for desk in random.sample(self._open_desks(), min(1, len(self._open_desks()))):
                desk.control(name, control)
            await anyio.sleep(random.choice((0.0, 0.0, 0.01, 0.3, 1.0)))

    async def _stop(self, process: VirtualProcess, seconds: float) -> None:
        process.send_signal(signal.SIGSTOP)
        await anyio.sleep(seconds)
        process.send_signal(signal.SIGCONT)


def _controls(mode: PauseMode, level: int, tags: list[SleepPart] | None) -> list[tuple[str, Control]]:
    """What can be asked of engines, and its name."""
    return [
        (f"pause {mode}", lambda client: client.pause(mode)),
        ("resume", lambda client: client.resume()),
        (f"sleep {level} {mode}", lambda client: client.sleep(level, mode)),
        (f"wake up {tags}", lambda client: client.wake_up(tags)),
        ("reset cache", lambda client: client.reset_prefix_cache(reset_running_requests=True)),
    ]


async def _restart(client: Router, rank: int, seconds: float) -> None:
    assert isinstance(client, ClusterClient | ApiServerClient)
    await client.restart_rank(rank, seconds)
