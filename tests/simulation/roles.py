"""What processes without clients run: engines, and the launchers of machines that have nothing else.

The production classes are put together as in production.

This module knows nothing of what goes wrong.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from functools import partial
from random import Random

import anyio
from tests.simulation.engine import FakeEngine
from tests.simulation.intruders import OTHER_OPTIONS, OTHER_SECRET, VersionedTransport
from tests.simulation.processes import Role, VirtualProcess
from tests.simulation.world import SECRET, Count, World

from triolet.args import EngineArgs
from triolet.cluster.directory import Directory
from triolet.cluster.joining import Credentials
from triolet.cluster.link import Link
from triolet.cluster.messages import Start
from triolet.cluster.node import HeadlessNode
from triolet.cluster.parent_link import serve_parent
from triolet.cluster.rank_server import serve_rank
from triolet.cluster.rank_supervisor import ENGINE_ROLE, RankSupervisor
from triolet.cluster.shared_options import shared_options
from triolet.cluster.transport import Address, Transport
from triolet.core.errors import single_error
from triolet.errors import EngineDeadError, JoinError, ModelLoadError, UsageError
from triolet.request import Request

__all__ = ["EngineProcess", "NodeProcess", "engine_roles", "failed"]

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
            engine = FakeEngine(start.rank, start.args["max_num_seqs"], hooks, on_phase)
            world.engines[process.pid] = engine
            return engine

        async def serve(link: Link) -> None:
            await serve_rank(link, process.transport, make, world.random.randbytes)

        return await serve_parent(process.parent_stream, serve)

    def note(self, what: str) -> None:
        self._world.trace("engine", self._rank, what)

    def counted(self, request: Request, num_tokens: int) -> None:
        self._world.counts[request.prompt_token_ids[-1]].append(Count(self._rank, self.maker, num_tokens))

    def loaded(self) -> None:
        if failures := self._world.failing_loads[self._rank]:
            raise failures.pop()
        self._world.loaded_ranks.add(self._rank)

    def restored(self) -> None:
        if self._world.failing_wakes[self._rank] > 0:
            self._world.failing_wakes[self._rank] -= 1
            raise ModelLoadError("the file is gone")

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


class NodeProcess:
    """The launcher of a machine without clients. ``wrong``: what is wrong with it, if anything is."""

    def __init__(self, world: World, process: VirtualProcess, index: int, wrong: str | None = None) -> None:
        options = OTHER_OPTIONS if wrong == "wrong options" else {}
        args = EngineArgs(**{**world.scenario.args, **world.scenario.node_args(index), **options})
        shape = args.launch_shape()
        secret = OTHER_SECRET if wrong == "wrong secret" else SECRET
        credentials = Credentials(secret, world.random.randbytes)
        transport: Transport = process.transport
        if wrong == "wrong version":
            transport = VersionedTransport(transport)
        ranks = world.scenario.node_ranks(index)
        self.directory = Directory(ranks)
        self.supervisor = RankSupervisor(
            args,
            ranks,
            world.starter(process, engine_roles(world)),
            secret=secret,
            on_report=lambda report: self.directory.update([report]),
            first_generation=world.next_generation(),
        )
        self.node = HeadlessNode(
            process.host,
            self.supervisor,
            self.directory,
            shared_options(args),
            transport,
            Address(shape.head_host, shape.head_port),
            credentials,
            join_timeout=args.cluster_join_timeout,
            liveness_timeout=args.liveness_timeout,
        )
        self._world, self._process = world, process

    @staticmethod
    async def role(world: World, index: int, wrong: str | None, process: VirtualProcess) -> int:
        """Be such a launcher; the exit code."""
        return await NodeProcess(world, process, index, wrong).run()

    async def run(self) -> int:
        """Serve until the head says that it is enough, or is gone."""
        try:
            async with anyio.create_task_group() as tasks:

                def stop(_: int) -> None:
                    tasks.start_soon(self.node.stop, self._world.scenario.drain_seconds)

                self._process.on_signal = stop
                await self.node.run()
                tasks.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            return failed(self._world, group)
        return 0


def engine_roles(world: World) -> dict[str, Role]:
    """What a launcher can start."""
    return {ENGINE_ROLE: partial(EngineProcess.role, world)}


def failed(world: World, group: BaseExceptionGroup[BaseException]) -> int:
    """The exit code of a launcher whose engines, or whose place in the cluster, cannot be had."""
    error = single_error(group)
    if not isinstance(error, EngineDeadError | ModelLoadError | JoinError | UsageError):
        raise error
    world.trace("failed", f"{type(error).__name__}: {error}")
    return 2 if isinstance(error, UsageError) else 1
