"""What the processes of a simulated cluster run: the production classes, put together as in production.

This module knows nothing of what goes wrong.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from functools import partial
from random import Random

import anyio
from tests.simulation.desk import Desk
from tests.simulation.engine import FakeEngine
from tests.simulation.processes import Role, VirtualProcess, VirtualStarter
from tests.simulation.world import SECRET, World, rank_of

from triolet.args import EngineArgs
from triolet.cluster.directory import Directory
from triolet.cluster.front_end import FrontEnd
from triolet.cluster.joining import Credentials
from triolet.cluster.link import Link
from triolet.cluster.messages import Start
from triolet.cluster.parent_link import serve_parent
from triolet.cluster.processes import ProcessSpec
from triolet.cluster.rank_server import serve_rank
from triolet.cluster.rank_supervisor import ENGINE_ROLE, RankSupervisor
from triolet.cluster.resources import RankResources
from triolet.cluster.router import Router
from triolet.cluster.transport import Address
from triolet.core.errors import single_error
from triolet.errors import EngineDeadError, ModelLoadError
from triolet.request import Request

__all__ = ["EngineProcess", "Launcher"]

SLOW_FACTOR = 20.0


class EngineProcess:
    """What happens in the engine of a process; an ``EngineHooks``."""

    def __init__(self, world: World, process: VirtualProcess, rank: int) -> None:
        self.maker = process.pid
        self.random = Random(process.pid * 1000 + world.scenario.seed)
        self.load_seconds = world.scenario.load_seconds
        self.step_seconds = world.scenario.step_seconds
        self._world, self._process, self._rank = world, process, rank

    @staticmethod
    async def role(world: World, process: VirtualProcess) -> int:
        """Be an engine; the exit code."""

        def make(start: Start, on_phase: Callable[[str], None]) -> FakeEngine:
            hooks = EngineProcess(world, process, start.rank)
            return FakeEngine(start.rank, start.args["max_num_seqs"], hooks, on_phase)

        async def serve(link: Link) -> None:
            await serve_rank(link, process.transport, make, world.random.randbytes)

        return await serve_parent(process.parent_stream, serve)

    def loaded(self) -> None:
        if failures := self._world.failing_loads[self._rank]:
            raise failures.pop()
        self._world.loaded_ranks.add(self._rank)

    async def compute(self, requests: list[Request]) -> None:
        self._world.check_work(self._process, requests)
        seconds = self.random.uniform(*self.step_seconds)
        if self._world.slow_until.get(self.maker, 0.0) > anyio.current_time():
            seconds *= SLOW_FACTOR
        await anyio.sleep(seconds)
        match self._world.next_steps.pop(self.maker, None):
            case "crash":
                raise RuntimeError("the device is gone")
            case "segfault":
                self._process.last_lines = ("Fatal Python error: Segmentation fault",)
                self._process.send_signal(signal.SIGSEGV)
            case "out of memory":
                self._process.send_signal(signal.SIGKILL)
            case "hang":
                await anyio.sleep_forever()


class Launcher:
    """The process that holds everything but the engines."""

    def __init__(self, world: World, process: VirtualProcess) -> None:
        scenario = world.scenario
        args = EngineArgs(**scenario.args)
        ranks = range(scenario.num_ranks)
        self.directory = Directory(ranks)
        self.router = Router(args, ranks)
        self.directory.subscribe(self.router.update)
        self.desk = Desk(self.router, process.name, world.trace)
        roles: dict[str, Role] = {ENGINE_ROLE: partial(EngineProcess.role, world)}
        self.supervisor = RankSupervisor(
            args,
            ranks,
            VirtualStarter(process, roles, self._fails_to_start),
            secret=SECRET,
            on_report=lambda report: self.directory.update((report,)),
            resources=(RankResources(1, 1, {}),) * len(ranks),
        )
        credentials = Credentials(SECRET, world.random.randbytes)
        self.front_end = FrontEnd(self.router, process.transport, Address(name="front-end"), credentials)
        self._world, self._process = world, process
        self._is_told_to_end = anyio.Event()

    async def run(self) -> int:
        """Serve until signalled; the exit code."""
        self._process.on_signal = self._take_signal
        self._world.desks.append(self.desk)
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self.directory.run)
                address = await tasks.start(self.front_end.run)
                self.supervisor.set_topology([str(address)])
                tasks.start_soon(self.router.run)
                tasks.start_soon(self.desk.run)
                tasks.start_soon(self._end)
                await self.supervisor.run()
                tasks.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            error = single_error(group)
            if not isinstance(error, EngineDeadError | ModelLoadError):
                raise
            self._world.trace("failed", str(error))
            return 1
        return 0

    def _take_signal(self, signal_number: int) -> None:
        if self._is_told_to_end.is_set():
            self._process.end(-signal_number)
        self._is_told_to_end.set()

    async def _end(self) -> None:
        await self._is_told_to_end.wait()
        await self.supervisor.stop(self._world.scenario.drain_seconds)

    def _fails_to_start(self, spec: ProcessSpec) -> bool:
        fails = self._world.num_failing_starts > 0
        self._world.num_failing_starts -= fails
        self._world.num_deaths[rank_of(spec.name)] += fails
        return fails
